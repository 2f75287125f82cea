//! What two layers that are joined with `and` add to a request.

mod support;

use support::checks::{FEW, PLENTY};
use support::requests::{assert_decided, bare, limiter, per_ip, send};
use support::{Case, program};
use tower::Layer;
use tower_throttle_instructions::algorithm::FixedWindow;
use tower_throttle_instructions::key::Global;
use tower_throttle_instructions::{ErrorResponder, Quota, RateLimitLayer};

fn main() {
    program(&[
        Case::new("no layer", |calls| send(bare(), calls)),
        Case::new("admitted", |calls| count(PLENTY, calls))
            .without(&[(1.0, "no layer")])
            .at_most(2_150.0, 4.0),
        Case::new("denied", |calls| count(FEW, calls)).without(&[(1.0, "no layer")]).at_most(2_110.0, 2.0),
    ]);
}

fn count(limit: u64, calls: usize) {
    let all = RateLimitLayer::with_limiter(Global, limiter(FixedWindow::new(Quota::per_hour(limit))));
    let layer = per_ip(limit).responder(ErrorResponder).and(all);
    send(layer.layer(bare()), calls);
    layer.stats().iter().for_each(|stats| assert_decided(stats, limit, calls));
}
