//! Limiters of one's own, written with the public API only. They decide at once, or reply later.

mod at_once;
#[cfg(feature = "test-util")]
mod contract;
mod later;
mod permits;
