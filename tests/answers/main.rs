//! What callers are told: header fields that any parser reads and that are true, answers of each form, and what
//! handlers, callers and limits know of each other.

mod any;
#[cfg(feature = "axum")]
mod extract;
mod fields;
mod obey;
mod options;
mod read;
mod settle;
mod settled;
mod shadow;
#[path = "../support/mod.rs"]
mod support;
mod vectors;
mod world;
