//! The instructions that a server executes for each decision, counted by valgrind. They hardly differ between runs,
//! also while the machine is busy.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Cmd, Pipeline, Value};
use tower_throttle::algorithm::{FixedWindow, SlidingCounter, SlidingWindow, StoredAlgorithm, TokenBucket};
use tower_throttle_redis::RedisStore;

use super::alone::is_script;
use super::{BARE, PLENTY, PLENTY_A_MINUTE, bare, check};
use crate::table;

/// The numbers of commands of the two runs, whose difference is without the start and the end of the server.
const COMMANDS: [usize; 2] = [1_500, 4_500];
const IN_A_PIPELINE: usize = 300;
const KEYS: usize = 1_000;
/// The time in which a server under valgrind starts.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints the instructions of the bare script and of each limiter.
pub fn run() {
    let bare = per_command(|_| bare_command());
    let contestants: [(&str, f64); 4] = [
        ("token bucket", of_limiter(&TokenBucket::new(PLENTY))),
        ("fixed window", of_limiter(&FixedWindow::new(PLENTY_A_MINUTE))),
        ("sliding counter", of_limiter(&SlidingCounter::new(PLENTY_A_MINUTE))),
        ("sliding window", of_limiter(&SlidingWindow::new(PLENTY_A_MINUTE))),
    ];
    let row = |(name, count): (&str, f64)| {
        vec![name.to_owned(), format!("{:.1}", count / 1e3), format!("{:.2}", count / bare)]
    };
    let rows: Vec<_> = [(BARE, bare)].into_iter().chain(contestants).map(row).collect();
    table::print("instructions of the server per decision", &["", "thousands", "to a bare script"], &rows);
}

fn bare_command() -> Vec<Vec<u8>> {
    let script = bare();
    ["EVALSHA", script.get_hash(), "1", "key", "1 1700000000000000"]
        .map(|word| word.as_bytes().to_vec())
        .into()
}

fn of_limiter<A: StoredAlgorithm>(algorithm: &A) -> f64 {
    per_command(|url| command_of(url, algorithm.clone()))
}

/// Lets a limiter make calls, so that the server has its script. Returns the last command, without a deadline.
fn command_of<A: StoredAlgorithm>(url: &str, algorithm: A) -> Vec<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = RedisStore::builder(url).deadline(PATIENCE).connect().await.expect("the server answers");
        let limiter = store.limiter("api", algorithm).build().expect("a limiter");
        check(limiter.check("user-42")).await;
        check(limiter.check("user-42")).await;
    });
    let mut connection = connect(url).expect("the server answers");
    let entries: Vec<Vec<Value>> =
        redis::cmd("SLOWLOG").arg("GET").arg(1).query(&mut connection).expect("a list of commands");
    let mut words: Vec<Vec<u8>> = redis::from_redis_value(entries[0][3].clone()).expect("a command");
    assert!(is_script(&words), "{words:?}");
    let last = words.len() - 1;
    words[last][..8].copy_from_slice(&((1_u64 << 53) as f64).to_le_bytes());
    words
}

/// Returns the instructions that the server executes for a command, whose fourth word is replaced by different keys.
fn per_command(command: impl Fn(&str) -> Vec<Vec<u8>>) -> f64 {
    let [few, many] = COMMANDS.map(|commands| instructions(commands, &command) as f64);
    (many - few) / (COMMANDS[1] - COMMANDS[0]) as f64
}

fn instructions(commands: usize, command: impl Fn(&str) -> Vec<Vec<u8>>) -> u64 {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let server = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", "redis-server"])
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--hz",
            "1",
        ])
        .args(["--enable-debug-command", "yes", "--slowlog-log-slower-than", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("valgrind and redis-server are installed");
    let url = format!("redis://127.0.0.1:{port}");
    let start = Instant::now();
    let mut connection = loop {
        match connect(&url) {
            Ok(connection) => break connection,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    // Work that depends on the time would be counted as well.
    send(&mut connection, &["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    bare().prepare_invoke().load(&mut connection).expect("an answer");
    let words = command(&url);
    send(&mut connection, &["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    let numbers: Vec<_> = (0..commands).collect();
    for numbers in numbers.chunks(IN_A_PIPELINE) {
        let mut pipeline = Pipeline::new();
        for number in numbers {
            let mut command = Cmd::new();
            let key = format!("throttle:{{user-{}}}:api:t", number % KEYS);
            for (at, word) in words.iter().enumerate() {
                command.arg(if at == 3 { key.as_bytes() } else { word });
            }
            pipeline.add_command(command);
        }
        let replies: Vec<Value> = pipeline.query(&mut connection).expect("an answer");
        let is_decided = |reply: &Value| match reply {
            Value::BulkString(text) => text.starts_with(b"D"),
            other => *other == Value::Int(1),
        };
        assert!(replies.iter().all(is_decided), "{:?}", replies[0]);
    }
    let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").query::<Value>(&mut connection);
    let output = server.wait_with_output().expect("the output of valgrind");
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = report.lines().find(|line| line.contains(" refs:")).unwrap_or_else(|| panic!("{report}"));
    let (_, count) = line.rsplit_once(' ').expect("a count");
    count.replace(',', "").parse().expect("a count")
}

fn connect(url: &str) -> redis::RedisResult<redis::Connection> {
    redis::Client::open(url)?.get_connection()
}

fn send(connection: &mut redis::Connection, words: &[&str]) {
    let mut command = Cmd::new();
    words.iter().for_each(|word| _ = command.arg(*word));
    let _: Value = command.query(connection).expect("an answer");
}
