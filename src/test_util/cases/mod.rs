//! The cases. Each case is a function whose name is the promise.

/// Defines the function `cases`, which returns the cases of a file.
macro_rules! list {
    ($($name:ident)+) => {
        pub(super) fn cases<M: Subject>() -> Vec<crate::test_util::Case<M>> {
            vec![$(crate::test_util::Case { name: stringify!($name), run: |env| Box::pin($name(env)) }),+]
        }
    };
}

mod algorithms;
mod counting;
mod keys;
mod layer;
mod refunds;
mod time;

use super::{Case, Subject};

/// Returns all cases.
pub(super) fn all<M: Subject>() -> Vec<Case<M>> {
    [counting::cases(), keys::cases(), refunds::cases(), time::cases(), algorithms::cases(), layer::cases()]
        .into_iter()
        .flatten()
        .collect()
}
