use axum::extract::ConnectInfo;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let call = async |account: u8, password: &str| {
        let body =
            serde_json::json!({ "account": format!("user-{account}"), "password": password }).to_string();
        let request = Request::post("/login").header("content-type", "application/json");
        let mut request = request.body(Body::from(body)).unwrap();
        request.extensions_mut().insert(ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, 1], 4711))));
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let eight = async |password: &str| {
        let call = async |account| call(account, password).await;
        <[u16; 8]>::from(tokio::join!(call(0), call(1), call(2), call(3), call(4), call(5), call(6), call(7)))
    };
    assert_eq!(eight("right").await, [200, 200, 200, 200, 200, 429, 429, 429]);
    assert_eq!(eight("wrong").await, [401, 401, 401, 401, 401, 429, 429, 429]);
    assert_eq!(eight("right").await, [429; 8]);
}
