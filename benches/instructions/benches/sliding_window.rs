//! A check of a `SlidingWindow`.

mod support;

use support::checks::{PLENTY, admitted, few, refused};
use support::{Case, program};
use tower_throttle_instructions::Quota;
use tower_throttle_instructions::algorithm::SlidingWindow;

fn main() {
    program(&[
        Case::new("admitted", |calls| admitted(SlidingWindow::new(Quota::per_hour(PLENTY)), calls)),
        Case::new("refused", |calls| refused(SlidingWindow::new(few()), calls)),
    ]);
}
