use http::Request;
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::Global;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    // the block
    let inner = service_fn(|_: Request<()>| async {
        Ok::<_, std::convert::Infallible>(Response::new(http_body_util::Full::<Bytes>::default()))
    });
    let once = TokenBucket::new(Quota::per_minute(1));
    let responder = HttpResponder::new().rejection_response(connect);
    let service = RateLimitLayer::new(Global, once).responder(responder).layer(inner);
    let call = async |kind: &'static str| {
        let request = Request::post("/shop.Items/Get").header(CONTENT_TYPE, kind).body(()).unwrap();
        let (head, body) = service.clone().oneshot(request).await.unwrap().into_parts();
        let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        (head, body)
    };
    call("application/json").await;
    let error = json!({ "code": "resource_exhausted", "message": "rejected by a rate limit" });
    for kind in ["application/json", "application/proto"] {
        let (head, body) = call(kind).await;
        assert_eq!(
            (head.status.as_u16(), head.headers[CONTENT_TYPE].to_str().unwrap()),
            (429, "application/json")
        );
        assert_eq!(head.headers["retry-after"], "60");
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), error);
    }
    let (head, body) = call("application/connect+proto").await;
    assert_eq!(
        (head.status.as_u16(), head.headers[CONTENT_TYPE].to_str().unwrap()),
        (200, "application/connect+proto")
    );
    assert_eq!((body[0], body[1..5].to_vec()), (2, (body.len() as u32 - 5).to_be_bytes().to_vec()));
    assert_eq!(serde_json::from_slice::<Value>(&body[5..]).unwrap(), json!({ "error": error }));
    // gRPC needs nothing
    let (head, _) = call("application/grpc").await;
    assert_eq!((head.status.as_u16(), head.headers["grpc-status"].to_str().unwrap()), (200, "8"));
}
