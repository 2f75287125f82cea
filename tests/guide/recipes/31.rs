use http::Request;
use prost::Message;
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
    let responder = HttpResponder::new().rejection_response(otlp);
    let service = RateLimitLayer::new(Global, once).responder(responder).layer(inner);
    let call = async |kind: &'static str| {
        let request = Request::post("/v1/traces").header(CONTENT_TYPE, kind).body(()).unwrap();
        let (head, body) = service.clone().oneshot(request).await.unwrap().into_parts();
        let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        (head, body)
    };
    call("application/json").await;
    for kind in ["application/json", "application/x-protobuf"] {
        let (head, body) = call(kind).await;
        assert_eq!((head.status.as_u16(), head.headers[CONTENT_TYPE].to_str().unwrap()), (429, kind));
        assert_eq!(head.headers["retry-after"], "60");
        let message = if kind == "application/json" {
            let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
            status["message"].as_str().unwrap().to_owned()
        } else {
            let status = tonic_types::pb::Status::decode(body).unwrap();
            assert_eq!((status.code, status.details.len()), (0, 0));
            status.message
        };
        assert_eq!(message, "too much telemetry: retry later");
    }
}
