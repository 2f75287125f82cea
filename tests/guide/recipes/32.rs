use http::Request;
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::Global;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let inner = service_fn(|_: Request<()>| async {
        Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    });
    let once = TokenBucket::new(Quota::per_minute(1));
    let responder = HttpResponder::new().rejection_response(json_rpc);
    let service = RateLimitLayer::new(Global, once).responder(responder).layer(inner);
    let call = async || {
        let (head, body) =
            service.clone().oneshot(Request::post("/").body(()).unwrap()).await.unwrap().into_parts();
        (head, http_body_util::BodyExt::collect(body).await.unwrap().to_bytes())
    };
    call().await;
    let (head, body) = call().await;
    assert_eq!((head.status.as_u16(), head.headers["retry-after"].to_str().unwrap()), (429, "60"));
    let error = json!({ "code": -32005, "message": "limit exceeded", "data": { "retryAfterMs": 60_000 } });
    let expected = json!({ "jsonrpc": "2.0", "id": null, "error": error });
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
}
