//! What a layer adds to a request that has no key and is not limited.

mod support;

use axum::body::Body;
use axum::http::Request;
use support::checks::PLENTY;
use support::requests::{bare, limiter, send};
use support::{Case, program};
use tower::Layer;
use tower_throttle_instructions::algorithm::TokenBucket;
use tower_throttle_instructions::key::from_fn;
use tower_throttle_instructions::{ErrorResponder, Quota, RateLimitLayer};

fn main() {
    program(&[
        Case::new("no layer", |calls| send(bare(), calls)),
        Case::new("not limited", |calls| {
            let no_key = from_fn(|_: &Request<Body>| None::<u64>);
            let limiter = limiter(TokenBucket::new(Quota::per_hour(PLENTY)));
            let layer = RateLimitLayer::with_limiter(no_key, limiter).responder(ErrorResponder);
            send(layer.layer(bare()), calls);
            assert_eq!(layer.stats().calls.ended(), 0, "no request is limited");
        })
        .without(&[(1.0, "no layer")]),
    ]);
}
