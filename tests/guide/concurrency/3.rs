use axum::body::Body;
use axum::http::{HeaderMap, Request};
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let handler = async |headers: HeaderMap| {
        if headers["x-tenant"] == "large" { std::future::pending().await } else { "served" }
    };
    // the block
    let call = |tenant: &str| {
        let request = Request::get("/").header("x-tenant", tenant).body(Body::empty()).unwrap();
        app.clone().oneshot(request)
    };
    // 20 are in progress, and 50 wait
    let large: Vec<_> = (0..70).map(|_| tokio::spawn(call("large"))).collect();
    while fair.stats().store.waiting < 50 {
        tokio::task::yield_now().await;
    }
    for n in 0..50 {
        assert!(call(["a", "b", "c", "d", "e"][n % 5]).await.unwrap().status().is_success());
    }
    assert!(large.iter().all(|call| !call.is_finished()));
    assert_eq!(call("large").await.unwrap().status(), 429);
    drop(permit);
    Ok(())
}
