//! The promises of a store, as tests that run against any store (feature `test-util`).
//!
//! A store of your own must keep the same promises as the stores of this crate. Otherwise, limits are not enforced
//! exactly. [`Contract`] verifies these promises:
//!
//! - counts are exact, also under concurrency;
//! - denials charge nothing, and report exact waits;
//! - different keys have separate budgets;
//! - refunds, cancelled calls, settled costs and replaced algorithms have the effects that the docs describe;
//! - a layer can use the store.
//!
//! The tests use tokio's clock. With `start_paused`, the tests of a store that uses tokio's clock take no time, and
//! their times are exact. The tests of other stores take about two seconds. A case fails if it takes more than a
//! minute, or if a settlement has no effect within two seconds. There is no other upper bound on the time that a store
//! takes to reply, so a slow machine causes no other failures.
//!
//! ```
//! use tower_throttle::test_util::{Contract, InMemory};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let report = Contract::new(InMemory).run().await;
//! report.assert_passed();
//! assert!(report.passed().len() >= 40);
//! # }
//! ```
//!
//! For a store of your own, implement [`TestedStore`]. Its methods await the replies of the store:
//!
//! ```
//! # use std::future::Future;
//! # use std::pin::Pin;
//! # use tower_throttle::algorithm::Algorithm;
//! # use tower_throttle::key::StoreKey;
//! use tower_throttle::error::BoxError;
//! use tower_throttle::store::{CheckStore, KeyedStore, ReplaceAlgorithm, SettleStore};
//! use tower_throttle::test_util::TestedStore;
//!
//! # fn implement<A, E, S>()
//! # where
//! #     A: Algorithm,
//! #     E: Into<BoxError>,
//! #     S: SettleStore<A> + ReplaceAlgorithm<A> + KeyedStore<A, str> + KeyedStore<A, StoreKey<String>>
//! #         + CheckStore<A>,
//! # {
//! # struct MyStore<S>(S);
//! # }
//! type Reply<T> = Pin<Box<dyn Future<Output = Result<T, std::io::Error>> + Send>>;
//!
//! // as in `impl TestedStore<A> for MyStore<A>`
//! async fn reply<T: Send + 'static>(reply: Reply<T>) -> Result<T, BoxError> {
//!     Ok(reply.await?)
//! }
//! ```

mod case;
mod cases;
mod contract;
mod in_memory;
mod tested;

pub use contract::{Contract, Report};
pub use in_memory::InMemory;
pub use tested::TestedStore;
#[doc(hidden)]
pub use tested::{MakeTested, Subject};
