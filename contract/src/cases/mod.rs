//! The cases. Each case is a function whose name is the promise.

/// Defines the function `cases`, which returns the cases of a file.
macro_rules! list {
    ($($name:ident)+) => {
        list! { for Subject: $($name)+ }
    };
    (for $make:ident: $($name:ident)+) => {
        pub(super) fn cases<M: $make>() -> Vec<crate::case::Case<M>> {
            vec![$(crate::case::Case { name: stringify!($name), run: |env| Box::pin($name(env)) }),+]
        }
    };
}

mod algorithms;
mod counting;
mod keys;
mod layer;
mod permits;
mod refunds;
mod time;

use crate::case::Case;
use crate::tested::{MakePermits, Subject};

/// Returns all cases of a limiter of units.
pub(super) fn of_units<M: Subject>() -> Vec<Case<M>> {
    [counting::cases(), keys::cases(), refunds::cases(), time::cases(), algorithms::cases(), layer::cases()]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns all cases of a limiter of the calls in progress.
pub(super) fn of_permits<M: MakePermits>() -> Vec<Case<M>> {
    permits::cases()
}
