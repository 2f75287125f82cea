use axum::body::Body;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let response = async |token: &str| {
        let request = Request::get("/").header("authorization", format!("Bearer {token}"));
        app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    assert_eq!(response("forged").await.status(), 401);
    let left = async |token: &str| response(token).await.headers()["ratelimit"].to_str().unwrap().to_owned();
    assert!(left("signed-ann").await.contains("r=99;"));
    assert!(left("signed-ann").await.contains("r=98;"));
    assert!(left("signed-bob").await.contains("r=99;"));
}
