//! What a layer without header fields adds to a request, if it lists the keys that are denied most often.

mod support;

use support::checks::{FEW, PLENTY};
use support::requests::{assert_decided, bare, per_ip, send};
use support::{Case, program};
use tower::Layer;
use tower_throttle_instructions::ErrorResponder;
use tower_throttle_instructions::key::PeerIp;
use tower_throttle_instructions::stats::TopKeys;

fn main() {
    program(&[
        Case::new("no layer", |calls| send(bare(), calls)),
        Case::new("admitted", |calls| count(PLENTY, calls)).without(&[(1.0, "no layer")]),
        Case::new("denied", |calls| count(FEW, calls)).without(&[(1.0, "no layer")]),
    ]);
}

fn count(limit: u64, calls: usize) {
    let layer = per_ip(limit).responder(ErrorResponder).on_reject(TopKeys::new().watch(&PeerIp::new()));
    send(layer.layer(bare()), calls);
    assert_decided(&layer.stats(), limit, calls);
}
