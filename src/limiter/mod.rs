//! The engine without HTTP: the parts of a [`RateLimiter`].
//!
//! A [`RateLimiter`] is an [algorithm](crate::algorithm), a [store](crate::store) and a [clock](crate::clock) together.
//! [`RateLimiter::new`] creates a limiter with its state in memory. A [`Builder`] creates a limiter with other bounds,
//! another clock or another store.

mod future;
pub(crate) mod rate_limiter;
mod tier;

pub use crate::store::memory::OnClose;
pub use future::{Acquire, AcquirePermit};
pub use rate_limiter::Builder;
#[doc(hidden)]
pub use rate_limiter::CustomStore;
pub(crate) use rate_limiter::RateLimiter;
pub use tier::Tier;
