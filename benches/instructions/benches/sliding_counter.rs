//! A check of a `SlidingCounter`.

mod support;

use support::checks::{PLENTY, admitted, denied, few};
use support::{Case, program};
use tower_throttle_instructions::Quota;
use tower_throttle_instructions::algorithm::SlidingCounter;

fn main() {
    program(&[
        Case::new("admitted", |calls| admitted(SlidingCounter::new(Quota::per_hour(PLENTY)), calls)),
        Case::new("denied", |calls| denied(SlidingCounter::new(few()), calls)),
    ]);
}
