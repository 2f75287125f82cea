use axum::body::Body;
use axum::http::StatusCode;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    async fn log_in(request: Request) -> StatusCode {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        if request.uri().query() == Some("right") { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
    }
    // the block
    let status = async |uri: &str| {
        let mut request = Request::post(uri).body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let right = async || {
        let right = async || status("/login?right").await;
        let statuses = tokio::join!(right(), right(), right(), right(), right(), right(), right(), right());
        <[u16; 8]>::from(statuses)
    };
    assert_eq!(right().await, [200; 8]);
    for _ in 0..5 {
        assert_eq!(status("/login").await, 401);
    }
    assert_eq!(right().await, [429; 8]);
    let address = IpAddr::from([192, 0, 2, 1]);
    (0..95).for_each(|_| failures.charge(&address, 1));
    let denied = failures.peek(&address);
    assert_eq!(denied.retry_after().unwrap().as_secs() / 60, 19);
}
