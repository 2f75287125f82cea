use axum::body::{Body, to_bytes};
use axum::extract::Request;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let get = async |path: &str| {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
        let response = app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1_000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    for _ in 0..3 {
        assert_eq!(get("/").await.0, 200);
    }
    for _ in 0..10 {
        let expected = r#"{"limit":5,"remaining":2,"reset_after_ms":3000,"retry_after_ms":null}"#;
        assert_eq!(get("/quota").await, (200, expected.to_owned()));
    }
    assert_eq!([get("/").await.0, get("/").await.0, get("/").await.0], [200, 200, 429]);
    let expected = r#"{"limit":5,"remaining":0,"reset_after_ms":5000,"retry_after_ms":1000}"#;
    assert_eq!(get("/quota").await, (200, expected.to_owned()));
}
