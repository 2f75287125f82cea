//! Limiters that decide at once, limiters that reply later, and limiters that fail.

mod local;
mod remote;
