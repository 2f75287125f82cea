use std::sync::{Arc, Mutex};

use tokio::time::{Duration, Instant};
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let begin = Instant::now();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let calls = sent.clone();
    // its server stalls for four seconds
    let client = tower::service_fn(move |_: ()| {
        calls.lock().unwrap().push(begin.elapsed().as_secs());
        async move {
            tokio::time::sleep_until(begin + Duration::from_secs(4)).await;
            Ok::<_, std::io::Error>(())
        }
    });
    // the block
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..30 {
        calls.spawn(client.clone().oneshot(()));
    }
    while let Some(called) = calls.join_next().await {
        assert!(called.unwrap().is_ok());
    }
    let in_second = |second| sent.lock().unwrap().iter().filter(|at| **at == second).count();
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(in_second), [5, 5, 0, 0, 5, 5, 5, 5]);
}
