//! A limiter by another author. Its code is that of the guide, and names public items only.

mod in_progress;

pub use in_progress::InProgress;

#[cfg(test)]
mod tests;
