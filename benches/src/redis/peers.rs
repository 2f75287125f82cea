//! Peers in this program, and peers in a program of their own, the package `peers`, which runs between the other
//! contestants.

use std::cell::RefCell;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use super::alone::CALLS as CALLS_ALONE;
use super::{CALLERS, CALLS, KEYS, Setting};
use crate::interleave::Contestant;

pub(super) const THROTTLE_KIT: &str = "throttle-kit, a bucket";

/// The peers in the other program, and what each of them is called in the tables.
pub(super) const PEERS: [(&str, &str); 2] = [
    ("limitador", "limitador, a fixed window"),
    ("tower-rate-limiter", "tower-rate-limiter, a fixed window"),
];

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/Cargo.toml");

/// The program of the peers, which ends when this value is dropped.
#[derive(Clone)]
pub(super) struct Peers(Rc<RefCell<Program>>);

struct Program {
    process: Child,
    /// `None` only while the program is dropped.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // tower-rate-limiter names a later Rust than it needs.
    cargo.args([command, "--release", "--locked", "--ignore-rust-version", "--manifest-path", MANIFEST]);
    cargo
}

/// Builds the program, which takes minutes when it is done for the first time.
pub(super) fn build() {
    let built = cargo("build").status();
    assert!(built.is_ok_and(|status| status.success()), "the package benches/peers cannot be built");
}

impl Peers {
    /// Starts the program, on the core of this thread.
    pub(super) fn start(url: &str) -> Self {
        let numbers = [CALLERS, CALLS, KEYS, CALLS_ALONE].map(|number| number.to_string());
        let mut run = cargo("run");
        run.args(["--quiet", "--", url]).args(numbers).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = run.spawn().expect("cargo runs");
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self(Rc::new(RefCell::new(Program { process, input, output })))
    }

    /// Lets a peer make a run, and returns the numbers in its reply.
    pub(super) fn ask(&self, peer: &str, run: &str) -> Vec<f64> {
        let mut program = self.0.borrow_mut();
        let input = program.input.as_mut().expect("the program runs");
        writeln!(input, "{peer} {run}").expect("the program reads");
        let mut reply = String::new();
        program.output.read_line(&mut reply).expect("the program replies");
        assert!(!reply.is_empty(), "the program of the peers has ended");
        reply.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    }

    /// Creates a contestant for a peer and a run.
    pub(super) fn contestant(
        &self,
        name: String,
        peer: &'static str,
        run: &'static str,
    ) -> Contestant<'static> {
        let peers = self.clone();
        Contestant::new(name, move || Duration::from_secs_f64(peers.ask(peer, run)[0]))
    }

    /// Returns the number of the process. Cargo replaces itself by the program.
    pub(super) fn pid(&self) -> u32 {
        self.0.borrow().process.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program ends when its input does.
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

impl Setting {
    /// Creates a contestant of throttle-kit.
    pub(super) fn throttle_kit(&self, name: &str, url: &str, keys: Rc<[String]>) -> Contestant<'static> {
        let (setting, limiter) = (self.clone(), self.throttle_kit_limiter(url));
        Contestant::new(name, move || {
            let (keys, limiter) = (Rc::clone(&keys), limiter.clone());
            setting.time(move |number| {
                let (keys, limiter) = (Rc::clone(&keys), limiter.clone());
                async move { assert!(limiter.check(&keys[number % keys.len()]).await.allowed) }
            })
        })
    }

    /// Creates a limiter of throttle-kit: a bucket in a script that uses the clock of the client. The backend of
    /// throttle-kit reports no failures.
    pub(super) fn throttle_kit_limiter(
        &self,
        url: &str,
    ) -> throttle_kit::RateLimiter<throttle_kit::RedisBackend> {
        let backend = self.runtime.block_on(throttle_kit::RedisBackend::connect(url)).expect("a connection");
        let quota = throttle_kit::Quota::from_parts(Duration::from_millis(1), 1_000_000);
        throttle_kit::RateLimiter::new(quota, backend)
    }
}
