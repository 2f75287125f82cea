use axum::body::Body;
use http::Request;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    async fn handler() {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    // the block
    let call = || app.clone().oneshot(Request::new(Body::empty()));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..64 {
        calls.spawn(call());
    }
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let shed = call().await.unwrap();
    assert_eq!((shed.status().as_u16(), shed.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    for response in calls.join_all().await {
        assert_eq!(response.unwrap().status(), 200);
    }
    assert_eq!(call().await.unwrap().status(), 200);
}
