#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let (limit, calls) = (limit(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
    let begin = tokio::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let (limit, calls) = (limit.clone(), calls.clone());
        tasks.spawn(async move {
            let calls = &calls;
            let send = || async move {
                let mut calls = calls.lock().unwrap();
                calls.push(begin.elapsed().as_millis() / 100);
                let response = Response::builder();
                let response = match calls.len() {
                    2 => response.status(429).header("retry-after", "7").body(()),
                    _ => response.body(()),
                };
                response.map_err(|error| error.to_string())
            };
            assert_eq!(get(&limit, "api.example", send).await.unwrap().status(), 200);
        });
    }
    assert_eq!(tasks.join_all().await.len(), 5);
    assert_eq!(*calls.lock().unwrap(), [0, 2, 72, 74, 76, 78]);
}
