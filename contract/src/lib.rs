//! The promises of a limiter of [`tower_throttle`], as tests that run against any limiter.
//!
//! A limiter of your own must keep the same promises as the limiters in memory and in Redis. Otherwise, limits are not
//! enforced exactly. [`Contract`] verifies these promises:
//!
//! - counts are exact, also under concurrency;
//! - denials charge nothing, and report exact waits;
//! - different keys have separate budgets;
//! - refunds, cancelled calls, settled costs and replaced algorithms have the effects that the docs describe;
//! - permits are released once, wherever they are dropped;
//! - a layer can use the limiter.
//!
//! The tests use tokio's clock. With `start_paused`, the tests of a limiter that uses tokio's clock take no time, and
//! their times are exact. The tests of other limiters take about two seconds. A case fails if it takes more than a
//! minute, or if a settlement or a release has no effect within two seconds. There is no other upper bound on the time
//! that a limiter takes to reply, so a slow machine causes no other failures.
//!
//! ```
//! use tower_throttle_contract::{Contract, InMemory};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let report = Contract::new(InMemory).run().await;
//! report.assert_passed();
//! assert!(report.passed().len() >= 40);
//!
//! // limits of the calls in progress
//! Contract::of_permits(InMemory).run().await.assert_passed();
//! # }
//! ```
//!
//! For a limiter of your own, implement [`TestedLimiter`] and [`MakeLimiter`], or [`MakePermits`]. If the type of the
//! limiter is of another crate, wrap it in a type of your own. [`Contract::run_if`] leaves out promises that the docs
//! of a limiter do not make.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod case;
mod cases;
mod contract;
mod tested;

pub use contract::{Contract, Report};
pub use tested::{InMemory, MakeLimiter, MakePermits, Subject, TestedLimiter};

/// The code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
