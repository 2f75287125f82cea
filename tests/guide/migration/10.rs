use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    for call in 0..30 {
        let mut request = Request::get("/api/items").body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 4711))));
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), if call < 21 { 200 } else { 429 });
    }
}
