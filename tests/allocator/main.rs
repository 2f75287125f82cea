//! What is allocated and held. A program of their own: its allocator counts.

mod allocation;
mod flood;
mod memory;
