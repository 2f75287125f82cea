//! A check of a `SlidingCounter`.

mod support;

use support::checks::{PLENTY, admitted, few, refused};
use support::{Case, program};
use tower_throttle_instructions::Quota;
use tower_throttle_instructions::algorithm::SlidingCounter;

fn main() {
    program(&[
        Case::new("admitted", |calls| admitted(SlidingCounter::new(Quota::per_hour(PLENTY)), calls)),
        Case::new("refused", |calls| refused(SlidingCounter::new(few()), calls)),
    ]);
}
