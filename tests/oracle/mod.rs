//! The exactness suite: random sequences of everything that can happen to a key, held against naive models of the rules.
//!
//! Every sequence comes from a number, which a failure prints with the whole sequence.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod act;
pub(crate) mod checker;
pub(crate) mod model;
pub(crate) mod pair;
pub(crate) mod plain;
#[path = "../support/random.rs"]
pub(crate) mod random;
pub(crate) mod rule;
pub(crate) mod setup;
mod truth;
pub(crate) mod twins;
