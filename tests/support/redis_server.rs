//! Redis servers for tests. Each has a free port and a directory of its own, keeps nothing on disk, and is killed on
//! drop. All methods block, so that they work without a runtime, too.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) use super::redis_connection::{Connection, Reply};

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

/// Three masters that share the slots, without replicas.
#[derive(Debug)]
pub(crate) struct RedisCluster {
    pub(crate) nodes: [RedisServer; 3],
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
            let asked = Connection::to(self.port, &self.arguments)
                .and_then(|mut server| server.try_call(&["INFO", "replication"]));
            let Ok(info) = asked.map(Reply::text) else { return false };
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

    /// Returns a section of `INFO`.
    pub(crate) fn info(&self, section: &str) -> String {
        self.call(&["INFO", section]).text()
    }

    /// Returns the number of calls of `command`, in lower case, that the server has executed since it started or since
    /// `CONFIG RESETSTAT`.
    pub(crate) fn calls_of(&self, command: &str) -> u64 {
        let stats = self.info("commandstats");
        let calls = stats.lines().find_map(|line| {
            let rest = line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(":calls=")?;
            rest.split(',').next()?.parse().ok()
        });
        calls.unwrap_or(0)
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.pid())]).status();
        assert!(sent.unwrap().success());
    }
}

impl RedisCluster {
    /// Starts three masters, each with a third of the slots, and waits until all of them know the slots.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts three masters with further arguments.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let nodes = [(); 3].map(|()| cluster_node(arguments));
        for (index, (node, _)) in nodes.iter().enumerate() {
            let (first, last) = (16_384 * index / 3, 16_384 * (index + 1) / 3 - 1);
            node.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).ok();
            node.call(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).ok();
            for (other, bus) in &nodes[..index] {
                node.call(&["CLUSTER", "MEET", "127.0.0.1", &other.port.to_string(), bus]).ok();
            }
        }
        let is_ready = |node: &RedisServer| {
            let info = node.call(&["CLUSTER", "INFO"]).text();
            // If the nodes do not require full coverage, their state is `ok` before all slots are known. So the number
            // of slots is checked, too.
            let parts = ["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3"];
            parts.iter().all(|part| info.contains(part))
        };
        until("the cluster is formed", || nodes.iter().all(|(node, _)| is_ready(node)));
        Self { nodes: nodes.map(|(node, _)| node) }
    }

    /// Starts a replica of a master. Waits until the replica has the master's data, and all masters know the replica.
    pub(crate) fn replica_of(&self, index: usize) -> RedisServer {
        // With this setting, the replica may take over however long it was suspended.
        let (replica, bus) = cluster_node(&["--cluster-replica-validity-factor", "0"]);
        let (master, port) = (self.id(index), replica.port.to_string());
        self.nodes[index].call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).ok();
        until("the master is known", || replica.call(&["CLUSTER", "NODES"]).text().contains(&master));
        until("it replicates", || {
            replica.call(&["CLUSTER", "REPLICATE", &master]) == Reply::Text(b"OK".into())
        });
        replica.until_role("slave");
        until("all know it", || {
            let knows =
                |node: &RedisServer| node.call(&["CLUSTER", "NODES"]).text().matches("slave").count() == 1;
            self.nodes.iter().all(knows)
        });
        replica
    }

    /// Returns the node that has the slot of `key`.
    pub(crate) fn node_of(&self, key: &str) -> usize {
        match self.nodes[0].call(&["CLUSTER", "KEYSLOT", key]) {
            Reply::Integer(slot) => (0..3).find(|index| slot < 16_384 * (*index as i64 + 1) / 3).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a node that was started again has found the others.
    pub(crate) fn join(&self, index: usize) {
        let is_ready =
            |node: &RedisServer| node.call(&["CLUSTER", "INFO"]).text().contains("cluster_slots_ok:16384");
        until("the node is back", || is_ready(&self.nodes[index]));
    }

    /// Marks the slot of `key` as moving from one node to another. Returns the number of the slot.
    pub(crate) fn begin_to_move(&self, key: &str, from: usize, to: usize) -> String {
        let Reply::Integer(slot) = self.nodes[0].call(&["CLUSTER", "KEYSLOT", key]) else {
            panic!("no slot")
        };
        let slot = slot.to_string();
        self.nodes[to].call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]).ok();
        self.nodes[from].call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]).ok();
        slot
    }

    /// Moves a key whose slot is moving.
    pub(crate) fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.nodes[to].port.to_string();
        self.nodes[from].call(&["MIGRATE", "127.0.0.1", &port, key, "0", "30000"]).ok();
    }

    /// Gives the slot to the other node, which tells the third node.
    pub(crate) fn finish_moving(&self, slot: &str, from: usize, to: usize) {
        for node in [to, from] {
            self.nodes[node].call(&["CLUSTER", "SETSLOT", slot, "NODE", &self.id(to)]).ok();
        }
    }

    fn id(&self, index: usize) -> String {
        self.nodes[index].call(&["CLUSTER", "MYID"]).text()
    }

    pub(crate) fn urls(&self) -> [String; 3] {
        [0, 1, 2].map(|index: usize| self.nodes[index].url())
    }
}

#[derive(Debug)]
struct Process(Child);

impl Process {
    /// Starts a process, and waits until it replies. Returns `None` if the process ends instead, because its port is
    /// taken.
    fn start(directory: &Directory, port: u16, arguments: &[String]) -> Option<Self> {
        // A sentinel keeps its state in its configuration file.
        let configuration = arguments.iter().any(|argument| argument == "--sentinel").then(|| {
            let path = directory.0.join("sentinel.conf");
            fs::write(&path, "").unwrap();
            path
        });
        let mut process = Self(
            Command::new(program())
                .args(configuration)
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
                .args(["--repl-diskless-sync-delay", "0", "--dir"])
                .arg(&directory.0)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("the server cannot be started. This test needs it: `apt-get install redis-server`"),
        );
        let own = format!("process_id:{}\r", process.0.id());
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if process.0.try_wait().unwrap().is_some() {
                return None;
            }
            let info =
                Connection::to(port, arguments).and_then(|mut server| server.try_call(&["INFO", "server"]));
            match info {
                // Another process may have taken the port.
                Ok(Reply::Text(info)) if String::from_utf8_lossy(&info).contains(&own) => {
                    return Some(process);
                }
                _ => sleep(Duration::from_millis(5)),
            }
        }
        panic!("redis-server does not answer on port {port}");
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A directory of its own, removed on drop.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("tower-throttle-redis-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a node of a cluster that has no slots yet. Returns the node and the port of its cluster bus.
fn cluster_node(arguments: &[&str]) -> (RedisServer, String) {
    let bus = free_port().to_string();
    let mut options =
        vec!["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1000"];
    options.extend(arguments);
    (RedisServer::with(&options), bus)
}

/// Returns the program that is started as the server. The environment can name another, such as `valkey-server`.
fn program() -> String {
    std::env::var("TOWER_THROTTLE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
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
