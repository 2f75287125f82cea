//! The process of a server and its directory, both of which end with their owner.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Connection, PATIENCE, Reply};

#[derive(Debug)]
pub(super) struct Process(pub(super) Child);

impl Process {
    /// Starts a process, and waits until it replies. Returns `None` if the process ends instead, because its port is
    /// taken.
    pub(super) fn start(directory: &Directory, port: u16, arguments: &[String]) -> Option<Self> {
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

    pub(super) fn end(&mut self) {
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
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new() -> Self {
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

/// Returns the program that is started as the server. The environment can name another, such as `valkey-server`.
fn program() -> String {
    std::env::var("TOWER_THROTTLE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}
