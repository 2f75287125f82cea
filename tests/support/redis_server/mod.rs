//! Redis servers for tests. Each has a free port and a directory of its own, keeps nothing on disk, and is killed on
//! drop. All methods block, so that they work without a runtime, too.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

mod cluster;
mod process;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) use super::redis_connection::{Connection, Reply};
pub(crate) use cluster::RedisCluster;
use process::{Directory, Process};

/// The time limit for a server to reply, and for servers to find each other.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server, ended with SIGKILL on drop.
#[derive(Debug)]
pub(crate) struct RedisServer {
    /// The process. It is dropped before its directory, since it may write to the directory.
    process: Process,
    port: u16,
    arguments: Vec<String>,
    directory: Directory,
}

impl RedisServer {
    /// Starts a server on a free port of 127.0.0.1.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments, such as `--maxmemory 3mb`. Each word is an element.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        for _ in 0..5 {
            let (directory, port) = (Directory::new(), free_port());
            // Redis cannot choose a free port itself. If another process takes the port first, Redis ends, and another
            // port is tried.
            if let Some(process) = Process::start(&directory, port, &arguments) {
                return Self { process, port, arguments, directory };
            }
        }
        panic!("redis-server does not start. This test needs it: `apt-get install redis-server`");
    }

    /// Starts a replica of this server, and waits until the replica has all data.
    pub(crate) fn replica(&self) -> Self {
        let replica = Self::with(&["--replicaof", "127.0.0.1", &self.port.to_string()]);
        until("the replica is linked", || replica.info("replication").contains("master_link_status:up"));
        replica
    }

    /// Starts a sentinel that watches `master` under the name `mymaster`. Two sentinels must agree that the master has
    /// failed.
    pub(crate) fn sentinel(master: &Self) -> Self {
        let sentinel = Self::with(&["--sentinel"]);
        let port = master.port.to_string();
        sentinel.call(&["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &port, "2"]).ok();
        for (option, value) in [("down-after-milliseconds", "500"), ("failover-timeout", "3000")] {
            sentinel.call(&["SENTINEL", "SET", "mymaster", option, value]).ok();
        }
        sentinel
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until the server is a master, or a replica that is linked to its master. A sentinel closes the connections
    /// of a server that becomes a replica, including the connection of this function.
    pub(crate) fn until_role(&self, role: &str) {
        until(role, || {
            let Ok(info) = self.try_call(&["INFO", "replication"]).map(Reply::text) else { return false };
            let is_linked = role == "master" || info.contains("master_link_status:up");
            info.contains(&format!("role:{role}\r")) && is_linked
        });
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns `redis://127.0.0.1:4711`, without a password.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Ends the process with SIGKILL. Afterwards, the port is closed.
    pub(crate) fn kill(&mut self) {
        self.process.end();
    }

    /// Starts the server again, without data, on the same port and with the same arguments. If the server runs, it is
    /// ended first.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let started = || Process::start(&self.directory, self.port, &self.arguments);
        let start = Instant::now();
        self.process = loop {
            match started() {
                Some(process) => break process,
                None => assert!(start.elapsed() < PATIENCE, "port {} is taken", self.port),
            }
        };
    }

    /// Suspends the process with SIGSTOP. The port still accepts connections, but nothing is answered.
    pub(crate) fn suspend(&self) {
        self.signal("STOP");
    }

    /// Resumes a suspended process with SIGCONT.
    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::to(self.port, &self.arguments).unwrap()
    }

    /// Sends one command on a connection of its own.
    pub(crate) fn call(&self, command: &[&str]) -> Reply {
        self.connect().call(command)
    }

    /// Sends one command on a connection of its own, which the server may close meanwhile.
    pub(crate) fn try_call(&self, command: &[&str]) -> io::Result<Reply> {
        Connection::to(self.port, &self.arguments)?.try_call(command)
    }

    /// Returns a section of `INFO`.
    pub(crate) fn info(&self, section: &str) -> String {
        self.call(&["INFO", section]).text()
    }

    /// Returns the number of calls of `command`, in lower case, that the server has executed since it started or since
    /// `CONFIG RESETSTAT`.
    pub(crate) fn calls_of(&self, command: &str) -> u64 {
        self.try_calls_of(command).unwrap()
    }

    /// Returns the same as [`calls_of`](Self::calls_of), from a server that may close the connection meanwhile.
    pub(crate) fn try_calls_of(&self, command: &str) -> io::Result<u64> {
        let stats = self.try_call(&["INFO", "commandstats"])?.text();
        let calls = stats.lines().find_map(|line| {
            let rest = line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls=")?;
            rest.split(',').next()?.parse().ok()
        });
        Ok(calls.unwrap_or(0))
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.pid())]).status();
        assert!(sent.unwrap().success());
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}
