use axum::body::to_bytes;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let download = async |address: u8| {
        let mut request = Request::get("/file").body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711))));
        let response = app.clone().oneshot(request).await.unwrap();
        to_bytes(response.into_body(), usize::MAX).await.unwrap().len()
    };
    let begin = tokio::time::Instant::now();
    assert_eq!(download(1).await, 200 * 1024);
    // 200 KiB without the burst of 16 KiB, at 100 KiB a second
    assert_eq!(begin.elapsed().as_millis() / 10, 184);
    let begin = tokio::time::Instant::now();
    assert_eq!(tokio::join!(download(2), download(2), download(3)), (200 * 1024, 200 * 1024, 200 * 1024));
    assert_eq!(begin.elapsed().as_millis() / 10, 384);
}
