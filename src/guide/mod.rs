//! The guide: how to set things up.
//!
//! - [Behind a proxy](proxy): who is asking, when all connections come from a proxy.

#[doc = include_str!("proxy.md")]
pub mod proxy {}
