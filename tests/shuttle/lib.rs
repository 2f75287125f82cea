//! The tests are in `tests/shuttle/main.rs`, which says how to run them.
