use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::Global;
use tower_throttle::middleware::GrpcMode;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer};

fn main() {
    // the block
    let layer = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_minute(1)))
        .responder(HttpResponder::new().grpc(GrpcMode::Always));
    layer.limiter().check(&()).into_result().unwrap();
    let denied = layer.limiter().check(&()).into_result().unwrap_err();
    let response = layer.reject(&http::Request::new(()), denied);
    let status = Status::from_header_map(response.headers()).unwrap();
    assert!((Duration::from_secs(55)..=Duration::from_secs(60)).contains(&wait(&status).unwrap()));
    assert_eq!(status.metadata().get("retry-after").unwrap(), "60");
}
