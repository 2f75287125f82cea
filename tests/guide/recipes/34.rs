use axum::body::Body;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let status = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!(status("/tenants/a/users").await, 200);
    assert_eq!(status("/tenants/%61/items").await, 200);
    assert_eq!(status("/tenants/a/items").await, 429);
    assert_eq!(status("/tenants/b/items").await, 200);
    for _ in 0..5 {
        assert_eq!(status("/health").await, 200);
        assert_eq!(status("/tenants").await, 404);
    }
}
