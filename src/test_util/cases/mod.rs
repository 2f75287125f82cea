//! The cases. Each case is a function whose name is the promise.

/// Defines the function `cases`, which returns the cases of a file.
macro_rules! list {
    ($($name:ident)+) => {
        pub(super) fn cases<M: Subject>() -> Vec<super::super::case::Case<M>> {
            vec![$(super::super::case::Case { name: stringify!($name), run: |env| Box::pin($name(env)) }),+]
        }
    };
}

mod combined;
mod counting;
mod keys;
mod layer;
mod refunds;
mod replace;
mod settle;
mod tasks;
mod time;
mod waiting;

use super::case::Case;
use super::tested::Subject;

/// Returns all cases.
pub(super) fn cases<M: Subject>() -> Vec<Case<M>> {
    [
        counting::cases(),
        keys::cases(),
        refunds::cases(),
        time::cases(),
        tasks::cases(),
        waiting::cases(),
        combined::cases(),
        settle::cases(),
        replace::cases(),
        layer::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
