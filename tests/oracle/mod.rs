//! The exactness suite: random sequences of everything that can happen to a key, held against naive models of the rules.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod act;
pub(crate) mod checker;
pub(crate) mod model;
#[path = "../support/random.rs"]
pub(crate) mod random;
pub(crate) mod rule;
pub(crate) mod setup;
pub(crate) mod plain;
mod truth;
pub(crate) mod twins;
