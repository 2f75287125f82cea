//! A reading of the default clock, without the system's work, which is not part of the program.

mod support;

use std::hint::black_box;

use support::{Case, counted, program};
use tower_throttle_instructions::clock::AnyClock;

fn main() {
    program(&[Case::new("one reading", |readings| {
        let clock = AnyClock::default();
        counted(|| walk(&clock, readings));
    })
    .at_most(99.5, 0.0)]);
}

#[inline(never)]
fn walk(clock: &AnyClock, readings: usize) {
    for _ in 0..readings {
        black_box(clock.now());
    }
}
