//! Runs the package `tower-throttle-benches` on `cargo bench`. It is a separate package, so that its dependencies and
//! features are not unified with those of this one.
//!
//! Otherwise the peers would be dev-dependencies, and tokio's `test-util`, which the tests need, would slow the clock.

use std::env;
use std::process::{Command, exit};

fn main() {
    let mut arguments: Vec<_> = env::args().skip(1).collect();
    let before = arguments.len();
    arguments.retain(|argument| argument != "--bench");
    if arguments.len() == before {
        // Run by `cargo test --benches`: there is nothing to test.
        return;
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let features =
        if arguments.iter().any(|argument| ["redis", "alone", "counted"].contains(&argument.as_str())) {
            "redis"
        } else {
            ""
        };
    let status = Command::new(cargo)
        .args(["run", "--release", "--package", "tower-throttle-benches", "--features", features, "--"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    match status {
        Ok(status) => exit(status.code().unwrap_or(1)),
        Err(error) => {
            eprintln!("cannot run cargo: {error}");
            exit(1);
        }
    }
}
