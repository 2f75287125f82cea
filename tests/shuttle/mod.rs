//! Models of concurrent operations on a limiter, and their helpers.

pub(crate) mod clock;
pub(crate) mod denials;
pub(crate) mod explorer;
pub(crate) mod fair;
pub(crate) mod harness;
pub(crate) mod models;
pub(crate) mod mutants;
pub(crate) mod queue_model;
pub(crate) mod two_limiters;
