//! The guide: how to set things up.
//!
//! - [Behind a proxy](proxy): who is asking, when all connections come from a proxy.
//! - [Floods of keys](floods): what happens when the table of keys is full, and how to keep invented keys out.
//! - [Ordering](ordering): what goes outside of a limit, and what inside.

#[doc = include_str!("floods.md")]
pub mod floods {}

#[doc = include_str!("ordering.md")]
pub mod ordering {}

#[doc = include_str!("proxy.md")]
pub mod proxy {}
