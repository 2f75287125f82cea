//! A check of a `SlidingWindow`.

mod support;

use support::checks::{PLENTY, admitted, denied, few};
use support::{Case, program};
use tower_throttle_instructions::Quota;
use tower_throttle_instructions::algorithm::SlidingWindow;

fn main() {
    program(&[
        Case::new("admitted", |calls| admitted(SlidingWindow::new(Quota::per_hour(PLENTY)), calls)),
        Case::new("denied", |calls| denied(SlidingWindow::new(few()), calls)),
    ]);
}
