//! What tower_governor adds to a request, for comparison. Its table has random hash seeds, and its clock is the time
//! stamp counter.

mod support;

use std::time::Duration;

use governor::clock::QuantaInstant;
use governor::middleware::NoOpMiddleware;
use support::checks::{FEW, PLENTY};
use support::requests::{bare, send, typed};
use support::{Case, program};
use tower::Layer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

fn main() {
    const BARE: &[(f64, &str)] = &[(1.0, "no layer")];
    const TYPED: &[(f64, &str)] = &[(1.0, "no layer, a content type")];
    program(&[
        Case::new("no layer", |calls| send(bare(), calls)),
        Case::new("no layer, a content type", |calls| send(typed(), calls)),
        Case::new("admitted", |calls| count(PLENTY, calls)).without(BARE).random(),
        Case::new("denied", |calls| count(FEW, calls)).without(BARE).random(),
        Case::new("fields, admitted", |calls| count_fields(PLENTY, calls)).without(BARE).random(),
        Case::new("fields, denied", |calls| count_fields(FEW, calls)).without(BARE).random(),
        Case::new("fields after a type, admitted", |calls| count_typed(PLENTY, calls))
            .without(TYPED)
            .random(),
        Case::new("fields after a type, denied", |calls| count_typed(FEW, calls)).without(TYPED).random(),
    ]);
}

fn count(limit: u64, calls: usize) {
    let config = builder(limit).finish().expect("a quota");
    send(GovernorLayer::new(config).layer(bare()), calls);
}

fn count_fields(limit: u64, calls: usize) {
    let config = builder(limit).use_headers().finish().expect("a quota");
    send(GovernorLayer::new(config).layer(bare()), calls);
}

fn count_typed(limit: u64, calls: usize) {
    let config = builder(limit).use_headers().finish().expect("a quota");
    send(GovernorLayer::new(config).layer(typed()), calls);
}

/// Returns a builder with a quota of `limit` per hour, as an interval and a burst.
fn builder(limit: u64) -> GovernorConfigBuilder<PeerIpKeyExtractor, NoOpMiddleware<QuantaInstant>> {
    let limit = u32::try_from(limit).expect("a limit of 32 bits");
    let mut builder = GovernorConfigBuilder::default();
    builder.period(Duration::from_secs(3_600) / limit).burst_size(limit);
    builder
}
