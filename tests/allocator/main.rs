//! Tests of allocations and memory. They are a program of their own because its allocator counts.

mod allocation;
#[cfg(feature = "axum")]
mod axum_body;
mod flood;
mod layer_calls;
mod memory;
#[path = "../support/scale.rs"]
mod scale;
