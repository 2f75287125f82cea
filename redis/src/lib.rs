// The front page is the README. Of two definitions of a link, the first one counts: here, links lead to items and
// chapters that rustdoc checks, and on a repository's page to files.
#![doc = include_str!("guide/rustdoc_links.md")]
#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod calls;
mod client;
mod connection;
mod error;
mod flight;
mod frame;
// Its code is tested in `tests/guide`.
#[cfg(not(doctest))]
pub mod guide;
#[cfg(any(test, feature = "__in-process"))]
mod in_process;
mod joint;
mod lease;
mod limiter;
mod link;
mod links;
mod names;
mod parts;
mod permits;
mod script;
mod sentinel;
mod served;
mod settlements;
mod states;
mod store;
#[cfg(test)]
mod tests;
mod trips;
mod url;
mod wait;

pub use call::{Callee, RedisCall, RedisReply};
pub use error::{RedisError, RedisErrorKind};
pub use lease::{RedisLeases, RedisLeasesBuilder};
pub use limiter::{RedisLimiter, RedisLimiterBuilder};
pub use permits::{RedisPermits, RedisPermitsBuilder};
pub use store::{RedisStore, RedisStoreBuilder};

#[cfg(feature = "__in-process")]
#[doc(hidden)]
pub use in_process::RedisInProcess;
