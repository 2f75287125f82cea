//! Limiters: who is let in, who waits and who leaves, on one thread and on many. No sockets.

mod acquire;
mod cancel;
mod concurrency;
mod concurrent;
mod cooperative;
mod crossing;
mod flood;
mod idle;
mod panics;
mod priority;
mod refund;
mod release;
mod replace;
mod subtle;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod tiers;
