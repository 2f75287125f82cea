//! Algorithms made of other algorithms.

pub(in crate::algorithm) mod lockout;
pub(in crate::algorithm) mod priority;
pub(in crate::algorithm) mod tiered;
pub(in crate::algorithm) mod tuple;
