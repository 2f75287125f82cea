//! The engine without HTTP: the parts of a [`RateLimiter`].
//!
//! A [`RateLimiter`] is an [algorithm](crate::algorithm), a [store](crate::store) and a [clock](crate::clock) together.
//! [`RateLimiter::new`] creates a limiter with its state in memory. A [`Builder`] creates a limiter with other bounds,
//! another clock or another store.

mod acquire;
mod builder;
mod future;
mod manage;
pub(crate) mod rate_limiter;
mod tier;

pub use crate::store::memory::OnClose;
pub use builder::Builder;
#[doc(hidden)]
pub use builder::CustomStore;
pub use future::{Acquire, AcquirePermit};
pub(crate) use rate_limiter::RateLimiter;
pub use tier::Tier;
