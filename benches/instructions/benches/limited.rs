//! What a layer without header fields adds to a request, and what a timeline adds to that. Both are the same code.

mod support;

use std::hint::black_box;

use support::checks::{FEW, PLENTY};
use support::clock::Steps;
use support::requests::{assert_decided, bare, per_ip, send};
use support::{Case, counted, program};
use tower::Layer;
use tower_throttle_instructions::algorithm::TokenBucket;
use tower_throttle_instructions::clock::AnyClock;
use tower_throttle_instructions::key::PeerIp;
use tower_throttle_instructions::stats::Timeline;
use tower_throttle_instructions::{ErrorResponder, Quota, RateLimitLayer};

type Limited = RateLimitLayer<PeerIp, TokenBucket>;

fn main() {
    program(&[
        Case::new("no layer", |calls| send(bare(), calls)),
        Case::new("one reading of the clock", |readings| {
            let clock = AnyClock::from(Steps::new());
            counted(|| walk(&clock, readings));
        }),
        Case::new("admitted", |calls| count(PLENTY, calls, |layer| layer))
            .without(&[(1.0, "no layer")])
            .at_most(815.0, 3.0),
        Case::new("denied", |calls| count(FEW, calls, |layer| layer))
            .without(&[(1.0, "no layer")])
            .at_most(640.0, 0.01),
        // Only the difference counts: what a request pays for ever once the algorithm of its limiter was replaced.
        Case::new("admitted, after a replacement", |calls| {
            count(PLENTY, calls, |layer| replaced(layer, PLENTY));
        })
        .without(&[(1.0, "admitted")])
        .at_most(20.0, 3.0),
        Case::new("denied, after a replacement", |calls| {
            count(FEW, calls, |layer| replaced(layer, FEW));
        })
        .without(&[(1.0, "denied")])
        .at_most(20.0, 3.0),
        // A timeline reads its clock twice for a request that is admitted, and once for one that is denied. Such an
        // admitted request keeps its layer until its end, which one without a timeline does not, so all that the layer
        // adds is counted.
        Case::new("admitted, with a timeline", |calls| count(PLENTY, calls, with_timeline))
            .without(&[(1.0, "no layer"), (2.0, "one reading of the clock")])
            .at_most(855.0, 3.0),
        Case::new("a timeline, denied", |calls| count(FEW, calls, with_timeline))
            .without(&[(1.0, "denied"), (1.0, "one reading of the clock")])
            .at_most(22.0, 0.0),
    ]);
}

/// Replaces the algorithm by an equal one.
fn replaced(layer: Limited, limit: u64) -> Limited {
    layer.limiter().replace(TokenBucket::new(Quota::per_hour(limit)));
    layer
}

fn with_timeline(layer: Limited) -> Limited {
    layer.timeline(&Timeline::new().clock(Steps::new()))
}

fn count(limit: u64, calls: usize, observed: fn(Limited) -> Limited) {
    let layer = observed(per_ip(limit)).responder(ErrorResponder);
    send(layer.layer(bare()), calls);
    assert_decided(&layer.stats(), limit, calls);
}

#[inline(never)]
fn walk(clock: &AnyClock, readings: usize) {
    for _ in 0..readings {
        // The compiler must not take a part of the reading out of the loop.
        black_box(black_box(clock).now());
    }
}
