use axum::body::Body;
use axum::extract::ConnectInfo;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let statuses = async |api_key: &str, calls: usize| {
        let mut ok = 0;
        for _ in 0..calls {
            let mut request = Request::new(Body::empty());
            let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 4711)));
            request.extensions_mut().insert(peer);
            request.headers_mut().insert("x-api-key", api_key.parse().unwrap());
            ok += usize::from(app.clone().oneshot(request).await.unwrap().status() == StatusCode::OK);
        }
        ok
    };
    assert_eq!(
        (statuses("k-1", 20).await, statuses("k-2", 120).await, statuses("k-3", 1).await),
        (10, 100, 0)
    );
}
