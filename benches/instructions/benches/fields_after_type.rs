//! What a layer with header fields adds to a request whose response has a content type.

mod support;

use support::checks::{FEW, PLENTY};
use support::requests::{assert_decided, per_ip, send, typed};
use support::{Case, program};
use tower::Layer;
use tower_throttle_instructions::HttpResponder;

fn main() {
    program(&[
        Case::new("no layer", |calls| send(typed(), calls)),
        Case::new("admitted", |calls| count(PLENTY, calls))
            .without(&[(1.0, "no layer")])
            .at_most(2_437.0, 5.0),
        Case::new("denied", |calls| count(FEW, calls)).without(&[(1.0, "no layer")]).at_most(2_102.0, 4.01),
    ]);
}

fn count(limit: u64, calls: usize) {
    let layer = per_ip(limit).responder(HttpResponder::new().insert_extension(false));
    send(layer.layer(typed()), calls);
    assert_decided(&layer.stats(), limit, calls);
}
