//! A check of a `TokenBucket`.

mod support;

use support::checks::{PLENTY, admitted, denied, few};
use support::{Case, program};
use tower_throttle_instructions::Quota;
use tower_throttle_instructions::algorithm::TokenBucket;

fn main() {
    program(&[
        // The bucket does not become full again between two calls of a key.
        Case::new("admitted", |calls| admitted(TokenBucket::new(Quota::per_minute(70).burst(PLENTY)), calls))
            .at_most(260.0, 1.0),
        Case::new("denied", |calls| denied(TokenBucket::new(few()), calls)).at_most(199.0, 0.01),
    ]);
}
