use futures_util::StreamExt;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // the block
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/socket", listener.local_addr().unwrap());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async { axum::serve(listener, app).await });
    let first = async || connect_async(&url).await.unwrap().0.next().await.unwrap().unwrap();
    assert_eq!(first().await.into_text().unwrap().as_str(), "hello");
    let tokio_tungstenite::tungstenite::Message::Close(Some(close)) = first().await else {
        panic!("the second socket is open")
    };
    assert_eq!(close.code, CloseCode::Again);
    assert!((55..=61).contains(&close.reason.parse::<u64>().unwrap()), "{}", close.reason);
    server.abort();
}
