//! The layer around services: alone, joined with others, among tower's own, and in front of stores that answer later.

mod block;
mod built_keys;
mod close;
mod compose;
mod edges;
mod ends;
mod fields;
mod joined;
mod keys;
mod mistakes;
mod service;
mod stack;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod together;
mod unread;
