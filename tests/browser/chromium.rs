//! A page in a Chromium with a new profile. The browser ends, and its files are removed, when the page is dropped.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::response::Html;
use axum::routing::{get, post};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::support::Server;

/// The time limit for the page's report.
const PATIENCE: Duration = Duration::from_secs(120);

/// A script that makes requests one after another, and sends to the page's server what it can read of the responses.
const SCRIPT: &str = r#"
    const answers = [];
    for (const { url, times, init } of FETCHES) {
        for (let time = 0; time < times; time += 1) {
            try {
                const answer = await fetch(url, init);
                const headers = Object.fromEntries(answer.headers);
                answers.push({ status: answer.status, headers, text: await answer.text() });
            } catch (error) {
                answers.push({ error: String(error) });
            }
        }
    }
    await fetch("/answers", { method: "POST", body: JSON.stringify(answers) });
"#;

/// The origin that a page comes from.
pub(crate) struct Page {
    /// The origin in the form that browsers send.
    pub(crate) origin: String,
    html: Arc<Mutex<String>>,
    answers: mpsc::UnboundedReceiver<String>,
    _server: Server,
}

impl Page {
    pub(crate) async fn new() -> Self {
        let html = Arc::<Mutex<String>>::default();
        let (sender, answers) = mpsc::unbounded_channel();
        let page = {
            let html = html.clone();
            move || async move { Html(html.lock().unwrap().clone()) }
        };
        let listen = move |said: String| async move {
            let _ = sender.send(said);
        };
        let server = Server::start(Router::new().route("/", get(page)).route("/answers", post(listen))).await;
        Self { origin: format!("http://{}", server.address), html, answers, _server: server }
    }

    /// Opens the page, whose script makes the requests `fetches`. Returns what the script could read.
    pub(crate) async fn fetches(mut self, fetches: &[Value]) -> Vec<Value> {
        // The JSON must not contain `</script>`.
        let fetches = serde_json::to_string(fetches).unwrap().replace('<', "\\u003c");
        let script = SCRIPT.replace("FETCHES", &fetches);
        *self.html.lock().unwrap() = format!("<!doctype html><script type=\"module\">{script}</script>");
        let mut browser = Chromium::open(&self.origin);
        let said = tokio::select! {
            said = timeout(PATIENCE, self.answers.recv()) => said,
            ended = browser.ends() => panic!("chromium ended: {ended}"),
        };
        let said = said.unwrap_or_else(|_| panic!("the page says nothing: {}", browser.errors()));
        serde_json::from_str(&said.unwrap()).unwrap()
    }
}

/// Returns the HTML that a browser shows at this address.
pub(crate) async fn shown(url: &str) -> String {
    let mut browser = Chromium::run(url, &["--dump-dom"]);
    let ended = timeout(PATIENCE, browser.ends()).await;
    let ended = ended.unwrap_or_else(|_| panic!("it does not end: {}", browser.errors()));
    let shown = browser.output();
    assert!(!shown.is_empty(), "it shows nothing: {ended}");
    shown
}

struct Chromium {
    process: Child,
    directory: PathBuf,
}

impl Chromium {
    fn open(url: &str) -> Self {
        Self::run(url, &[])
    }

    fn run(url: &str, arguments: &[&str]) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tower-throttle-browser-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let process = Command::new("chromium")
            // The browser opens only pages of the test. As root, it does not start with its sandbox.
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-sync", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-quic", "--no-proxy-server"])
            .arg(format!("--user-data-dir={}", directory.join("profile").display()))
            .args(arguments)
            .arg(url)
            // The browser writes all other files to this directory.
            .env("HOME", &directory)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_CACHE_HOME")
            .stdin(Stdio::null())
            .stdout(fs::File::create(directory.join("output")).unwrap())
            .stderr(fs::File::create(directory.join("errors")).unwrap())
            .spawn();
        match process {
            Ok(process) => Self { process, directory },
            Err(error) => {
                let _ = fs::remove_dir_all(&directory);
                panic!("chromium cannot be started: {error}. This test needs it: run `tests/install-deps`");
            }
        }
    }

    /// Waits until the process ends, which it does only if it fails.
    async fn ends(&mut self) -> String {
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return format!("{status}, {}", self.errors());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn output(&self) -> String {
        fs::read_to_string(self.directory.join("output")).unwrap_or_default()
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.directory.join("errors")).unwrap_or_default()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // The processes that the browser has started end with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
        // One of these processes may still be writing.
        for _ in 0..100 {
            if fs::remove_dir_all(&self.directory).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
