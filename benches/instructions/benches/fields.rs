//! What a layer with header fields adds to a request: without the decision in an extension, and with the default
//! responder, which inserts it. Both are the same code.

mod support;

use support::checks::{FEW, PLENTY};
use support::requests::{assert_decided, bare, per_ip, send};
use support::{Case, program};
use tower::Layer;
use tower_throttle_instructions::HttpResponder;

fn main() {
    program(&[
        Case::new("no layer", |calls| send(bare(), calls)),
        Case::new("no extension, admitted", |calls| count(PLENTY, calls, false))
            .without(&[(1.0, "no layer")])
            .at_most(2_450.0, 5.0),
        Case::new("no extension, denied", |calls| count(FEW, calls, false))
            .without(&[(1.0, "no layer")])
            .at_most(2_690.0, 4.01),
        Case::new("default, admitted", |calls| count(PLENTY, calls, true))
            .without(&[(1.0, "no layer")])
            .at_most(2_754.0, 5.0),
        Case::new("default, denied", |calls| count(FEW, calls, true))
            .without(&[(1.0, "no layer")])
            .at_most(2_690.0, 4.01),
    ]);
}

fn count(limit: u64, calls: usize, insert_extension: bool) {
    let layer = per_ip(limit).responder(HttpResponder::new().insert_extension(insert_extension));
    send(layer.layer(bare()), calls);
    assert_decided(&layer.stats(), limit, calls);
}
