use axum::extract::ConnectInfo;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let status = async |signature: &str| {
        let request =
            Request::post("/hooks").header("x-hook-sender", "shop").header("x-hook-signature", signature);
        let mut request = request.body(Body::from("ping")).unwrap();
        request.extensions_mut().insert(ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 4711))));
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    for _ in 0..20 {
        assert_eq!(status("shop 4").await, 204);
    }
    for _ in 0..10 {
        assert_eq!(status("shop 5").await, 401);
    }
    assert_eq!(status("shop 4").await, 429);
}
