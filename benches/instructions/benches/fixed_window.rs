//! A check of a `FixedWindow`.

mod support;

use support::checks::{PLENTY, admitted, denied, few};
use support::{Case, program};
use tower_throttle_instructions::Quota;
use tower_throttle_instructions::algorithm::FixedWindow;

fn main() {
    program(&[
        Case::new("admitted", |calls| admitted(FixedWindow::new(Quota::per_hour(PLENTY)), calls))
            .at_most(238.0, 1.0),
        Case::new("denied", |calls| denied(FixedWindow::new(few()), calls)).at_most(198.5, 0.01),
    ]);
}
