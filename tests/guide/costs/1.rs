use axum::extract::ConnectInfo;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // the block
    let mut request = Request::post("/").body(Body::from("Why is the sky blue?")).unwrap();
    request.extensions_mut().insert(ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 4711))));
    let body = app.oneshot(request).await.unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes().len(), 31);
    assert_eq!(limiter.stats().units.refunded, 500 - 13);
}
