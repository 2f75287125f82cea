//! Stores that reply later, and stores that fail.

mod local;
mod remote;
