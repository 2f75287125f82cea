//! The tests are in `tests/shuttle/main.rs`: see there how they are run.
