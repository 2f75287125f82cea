//! A separate nginx for a test, with a free port and a directory of its own. It is removed on drop.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// The time limit for nginx to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of its own, removed on drop.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tower-throttle-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn name(&self) -> String {
        self.0.file_name().unwrap().to_str().unwrap().to_owned()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A reverse proxy, stopped on drop.
#[derive(Debug)]
pub(crate) struct Nginx {
    /// The process. It is dropped before its directory, since it writes to the directory.
    process: Process,
    pub(crate) address: SocketAddr,
    directory: Directory,
}

#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the address of an upstream: `http://127.0.0.1:4711`, or `http://unix:/tmp/socket`.
pub(crate) fn at(address: SocketAddr) -> String {
    format!("http://{address}")
}

pub(crate) fn at_socket(path: &Path) -> String {
    format!("http://unix:{}", path.display())
}

impl Nginx {
    /// Starts an nginx on a free port of `ip`, with `directives` in its `location`. It forwards all requests to
    /// `upstream`.
    pub(crate) async fn start(ip: &str, upstream: &str, directives: &str) -> Self {
        let listen = if ip.contains(':') { format!("[{ip}]:PORT") } else { format!("{ip}:PORT") };
        Self::listening(&listen, ip, upstream, directives).await
    }

    /// Starts an nginx with a `listen` directive, in nginx's syntax, for a free port of `ip`.
    pub(crate) async fn listening(listen: &str, ip: &str, upstream: &str, directives: &str) -> Self {
        let ip: IpAddr = ip.parse().unwrap();
        for _ in 0..5 {
            let directory = Directory::new();
            // nginx cannot choose a free port itself. If another process takes the port that was found here, another
            // port is tried.
            let free = TcpListener::bind((ip, 0)).await.unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let listen = listen.replace("PORT", &address.port().to_string());
            let sign = directory.name();
            let server = format!(
                r#"
                listen {listen};
                location = /ready {{ return 200 "{sign}"; }}
                location / {{
                    proxy_pass {upstream};
                    proxy_http_version 1.1;
                    {directives}
                }}"#
            );
            fs::write(directory.join("nginx.conf"), configuration(&directory, &server)).unwrap();
            let process = Process(spawn(&directory));
            let mut nginx = Self { process, address, directory };
            if nginx.is_ready(&sign).await {
                return nginx;
            }
        }
        panic!("nginx found no free port");
    }

    /// Returns whether nginx listens. Returns `false` if its port is taken.
    async fn is_ready(&mut self, sign: &str) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let ended = self.process.0.try_wait().unwrap();
            let errors = self.errors();
            // If the port is taken, nginx tries again for some seconds.
            if errors.contains("Address already in use") {
                return false;
            }
            assert!(ended.is_none(), "nginx ended: {ended:?}, {errors}");
            // If another process listens on the port, its response is another one.
            if ready(self.address).await.is_ok_and(|answer| answer.contains(sign)) {
                return true;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("nginx does not listen: {}", self.errors());
    }

    /// Returns the content of its log.
    fn errors(&self) -> String {
        fs::read_to_string(self.directory.join("error.log")).unwrap_or_default()
    }
}

async fn ready(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /ready HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn spawn(directory: &Directory) -> Child {
    // Debian installs nginx in a directory that is only in the `PATH` of root.
    let spawned = ["nginx", "/usr/sbin/nginx"].iter().find_map(|program| {
        Command::new(program)
            .args(["-e", "error.log", "-c", "nginx.conf", "-p"])
            .arg(format!("{}/", directory.0.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()
    });
    spawned.expect("nginx cannot be started. This test needs it: `apt-get install nginx-light`")
}

/// Returns a configuration with a single process, so that no other process is left when it ends.
fn configuration(directory: &Directory, server: &str) -> String {
    let prefix = directory.0.display();
    // As root, nginx needs the name of a user, which is different on each system. As another user, nginx rejects this
    // directive.
    let user = if fs::metadata(&directory.0).unwrap().uid() == 0 { "user root;" } else { "" };
    format!(
        r#"
{user}
daemon off;
master_process off;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
    proxy_cache_path {prefix}/cache keys_zone=answers:1m;
    {FORWARDED}
    server {{
        {server}
    }}
}}
"#
    )
}

/// `$add_forwarded` is for `Forwarded` what `$proxy_add_x_forwarded_for` is for `X-Forwarded-For`. nginx does not have
/// such a variable, so operators write their own. This one does not check the value to which it appends.
const FORWARDED: &str = r#"
    map $remote_addr $forwarded_for {
        "~:" "for=\"[$remote_addr]\"";
        default "for=$remote_addr";
    }
    map $http_forwarded $add_forwarded {
        "" "$forwarded_for";
        default "$http_forwarded, $forwarded_for";
    }
"#;
