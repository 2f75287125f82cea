//! Runs a client in a process of its own.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

/// The Python that `tests/install-deps` installs.
const PYTHON: &str = "target/python/bin/python";

/// The time limit for a client. A client that exceeds it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

fn home() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Runs a script of this directory with Python or, if the name of the script says so, with node.
pub(crate) async fn script(name: &str, arguments: &[&str]) -> Vec<Value> {
    let program = if name.ends_with(".py") { home().join(PYTHON) } else { "node".into() };
    let script = home().join("tests/clients").join(name);
    let mut all = vec![script.to_str().unwrap()];
    all.extend(arguments);
    let output = run(program, &all).await;
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs a program that must exit successfully. Returns its output.
pub(crate) async fn run(program: impl AsRef<OsStr>, arguments: &[&str]) -> String {
    let program = program.as_ref();
    let mut command = Command::new(program);
    // Environment variables for these programs must not affect the test.
    for (name, _) in std::env::vars_os() {
        let upper = name.to_string_lossy().to_ascii_uppercase();
        if ["PYTHON", "NODE_", "CURL_"].iter().any(|start| upper.starts_with(start))
            || upper.ends_with("_PROXY")
        {
            command.env_remove(&name);
        }
    }
    let running = command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(PATIENCE, running).await.expect("the client hangs");
    let output = output.unwrap_or_else(|error| panic!("{program:?}: {error}: run tests/install-deps"));
    let complaints = String::from_utf8_lossy(&output.stderr);
    let is_installed =
        !["ModuleNotFoundError", "ERR_MODULE_NOT_FOUND"].iter().any(|what| complaints.contains(what));
    assert!(is_installed, "something is missing: run tests/install-deps\n{complaints}");
    assert!(output.status.success(), "{program:?} {arguments:?}: {}\n{complaints}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
