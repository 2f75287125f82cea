//! The tests are in `tests/shuttle.rs`: see there how they are run.
