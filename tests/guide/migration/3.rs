use axum::body::Body;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // the block
    let call = |api_key: Option<&str>| {
        let mut request = Request::new(Body::empty());
        if let Some(api_key) = api_key {
            request.headers_mut().insert("x-api-key", api_key.parse().unwrap());
        }
        app.clone().oneshot(request)
    };
    for _ in 0..5 {
        let response = call(None).await.unwrap();
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
    for status in [200, 200, 429] {
        assert_eq!(call(Some("k-1")).await.unwrap().status(), status);
    }
    assert_eq!(call(Some("k-2")).await.unwrap().status(), 200);
}
