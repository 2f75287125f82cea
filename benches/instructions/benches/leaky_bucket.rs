//! A check of a `LeakyBucket`.

mod support;

use support::checks::{admitted, denied, few};
use support::{Case, program};
use tower_throttle_instructions::Quota;
use tower_throttle_instructions::algorithm::LeakyBucket;

fn main() {
    program(&[
        // One call per nanosecond, so no call finds that the bucket is full.
        Case::new("admitted", |calls| admitted(LeakyBucket::new(Quota::per_second(1_000_000_000)), calls)),
        Case::new("denied", |calls| denied(LeakyBucket::new(few()), calls)),
    ]);
}
