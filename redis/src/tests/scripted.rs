//! A script that keeps a hash, on a real server and at times that the tests set. It is compared with its reference in
//! Rust.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use super::redis_connection::Connection;
use super::redis_server::{RedisServer, Reply};
use crate::script::{Packed, Script, TimeSource};

const KEY: &str = "throttle:{a}:test";
/// The first reading of the clock, in microseconds.
pub(crate) const START: u64 = 1_700_000_000_000_000;

pub(crate) struct Scripted {
    side: Connection,
    sha: String,
    _server: RedisServer,
}

impl Scripted {
    pub(crate) fn start(body: &str) -> Self {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let server = RedisServer::start();
        let mut side = server.connect();
        let script = Script::of_hash(TimeSource::Passed(&NOW), body);
        let sha = side.call(&["SCRIPT", "LOAD", script.text()]).text();
        Self { side, sha, _server: server }
    }

    /// Executes the script with these arguments and the deadline. Returns what follows the time in the reply.
    pub(crate) fn execute(&mut self, arguments: &[&str], now: u64) -> String {
        let mut time = Packed::default();
        time.number(now);
        let words = [&["EVALSHA", &self.sha, "1", KEY], arguments].concat();
        let command: Vec<_> = words.into_iter().map(str::as_bytes).chain([time.as_ref()]).collect();
        let reply = match self.side.try_call(&command).unwrap() {
            Reply::Text(reply) => reply,
            other => panic!("{other:?}"),
        };
        let rest = reply.strip_prefix(b"D").and_then(|reply| reply.strip_prefix(time.as_ref()));
        String::from_utf8(rest.expect("the time").to_vec()).unwrap()
    }

    /// Lets the server be out of memory.
    pub(crate) fn fill(&mut self) {
        self.side.call(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    }

    /// Returns the fields of the hash.
    pub(crate) fn fields(&mut self) -> BTreeMap<String, String> {
        let Reply::List(fields) = self.side.call(&["HGETALL", KEY]) else { panic!("no hash") };
        let mut fields = fields.into_iter().map(Reply::text);
        std::iter::from_fn(|| Some((fields.next()?, fields.next()?))).collect()
    }

    /// Returns the time to live that was set last, in milliseconds.
    pub(crate) fn ttl(&mut self) -> u64 {
        self.side.call(&["GET", &format!("ttl:{KEY}")]).text().parse().unwrap()
    }
}
