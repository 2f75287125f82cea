//! Permits of processes that are killed or suspended. Such a process is this test program, which is started again for a
//! single test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, SystemTime};

use tokio::time::{sleep, timeout};

use crate::permits::{leasing, limiter};
use crate::support::redis_server::{RedisServer, Reply};
use crate::support::{Random, scaled};

const URL: &str = "TOWER_THROTTLE_TEST_PERMITS";
const KIND: &str = "TOWER_THROTTLE_TEST_PERMITS_KIND";
const LEASE: Duration = Duration::from_millis(600);
const KEY: &str = "throttle:{a}:exports:p";

/// Returns the time in microseconds, by the clock of the machine, which the server uses, too.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64
}

/// What a started process does. With the kind `hold`, it takes a permit and keeps it. Otherwise, the kind is a limit.
/// The process then takes a permit again and again, writes to a resource until the permit is lost, and returns the
/// permit. In the test run itself, the function does nothing.
#[tokio::test]
async fn child() {
    let (Ok(url), Ok(kind)) = (std::env::var(URL), std::env::var(KIND)) else { return };
    let limit = kind.parse().unwrap_or(1);
    let exports = limiter(&leasing(&url, LEASE).connect().await.unwrap(), LEASE, limit);
    let mut random = Random::new(u64::from(std::process::id()));
    loop {
        let Ok(Ok(permit)) = exports.acquire_permit("a").await else { continue };
        let token = permit.fencing_token().unwrap();
        println!("begin {token} {};", now());
        if kind == "hold" {
            sleep(Duration::from_secs(60)).await;
        }
        for _ in 0..random.below(8) {
            if timeout(Duration::from_millis(2), permit.lost()).await.is_ok() {
                break;
            }
            println!("write {token} {};", now());
        }
        println!("end {token} {};", now());
        drop(permit);
    }
}

/// A line that a process has printed.
#[derive(Debug)]
struct Line {
    process: u32,
    action: String,
    token: u64,
    at: u64,
}

/// The time from the grant of a permit to its return.
#[derive(Clone, Copy, Debug)]
struct Span {
    process: u32,
    from: u64,
    to: u64,
    /// `true` if the process was not suspended during this time.
    is_sure: bool,
}

/// The times during which each process was suspended, each with its beginning and end.
type Suspended = BTreeMap<u32, Vec<(u64, u64)>>;

/// A started process, which is killed on drop.
struct Process(Child);

impl Process {
    fn start(server: &RedisServer, kind: &str, lines: Sender<Line>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["permit_processes::child", "--exact", "--nocapture"]);
        command.env(URL, server.url()).env(KIND, kind).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, process) = (BufReader::new(child.stdout.take().unwrap()), child.id());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The test harness prints other lines, and a killed process may print a part of one.
                let Some(line) = line.strip_suffix(';') else { continue };
                let [action, token, at] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
                let (token, at) = (token.parse().unwrap(), at.parse().unwrap());
                let _ = lines.send(Line { process, action: action.to_owned(), token, at });
            }
        });
        Self(child)
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.0.id())]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the time at which the record of the only holder expires.
fn end_of_holder(server: &RedisServer) -> u64 {
    let Reply::List(fields) = server.call(&["HGETALL", KEY]) else { panic!("no hash") };
    let texts = fields.into_iter().map(Reply::text);
    let holder = texts.filter(|text| text.starts_with("h ")).collect::<Vec<_>>();
    assert_eq!(holder.len(), 1, "{holder:?}");
    holder[0].split(' ').nth(2).unwrap().parse().unwrap()
}

/// The fencing token of a permit is the server's time at the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_permit_of_a_killed_process_goes_to_the_next_waiter_after_its_lease() {
    let mut late = Vec::new();
    for round in 0..3 {
        let server = RedisServer::start();
        let (sender, lines) = channel();
        let holder = Process::start(&server, "hold", sender);
        assert_eq!(lines.recv_timeout(Duration::from_secs(20)).unwrap().action, "begin");
        let store = leasing(&server.url(), LEASE).connect().await.unwrap();
        let waiter = limiter(&store, LEASE, 1);
        let next = tokio::spawn(async move { waiter.acquire_permit("a").await.unwrap().unwrap() });
        // The holder renews its permit a few times.
        sleep(Duration::from_millis(400 + 150 * round)).await;
        assert!(!next.is_finished());
        drop(holder);
        let (killed, expires) = (now(), end_of_holder(&server));
        assert!(
            expires <= killed + LEASE.as_micros() as u64,
            "it was not renewed after the process was killed"
        );
        let next = timeout(Duration::from_secs(20), next).await.unwrap().unwrap();
        let granted = next.fencing_token().unwrap();
        assert!(granted >= expires, "{granted} is before {expires}");
        late.push(granted - expires);
    }
    late.sort_unstable();
    println!("microseconds after the end of the lease: {late:?}");
    assert!(late[1] <= 100_000, "{late:?}");
}

/// Starts processes, and suspends, resumes and kills them at random times. Returns the lines that the processes have
/// printed, and the times during which each process was suspended.
fn run(server: &RedisServer, limit: u64, random: &mut Random) -> (Vec<Line>, Suspended) {
    let (sender, lines) = channel();
    let begin = || Process::start(server, &limit.to_string(), sender.clone());
    let mut processes: Vec<_> = (0..4).map(|_| begin()).collect();
    let mut suspended = Suspended::new();
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(random.within(20..=150)));
        let index = random.below(4) as usize;
        if random.one_in(3) {
            processes[index] = begin();
            continue;
        }
        let process = &processes[index];
        let from = now();
        process.signal("STOP");
        std::thread::sleep(Duration::from_millis(random.below(2 * LEASE.as_millis() as u64)));
        process.signal("CONT");
        suspended.entry(process.0.id()).or_default().push((from, now()));
    }
    drop(processes);
    drop(sender);
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|line| line.at);
    (lines, suspended)
}

/// Runs a schedule and verifies what the processes have printed. Returns the number of writes that were refused.
fn refused_in(schedule: u64) -> u64 {
    let (server, limit) = (RedisServer::start(), 1 + schedule % 3);
    let (lines, suspended) = run(&server, limit, &mut Random::new(schedule));
    let mut held = BTreeMap::<u64, Span>::new();
    let (mut seen, mut refused) = (BTreeSet::new(), 0);
    for Line { process, action, token, at } in &lines {
        let was_suspended = |since| {
            suspended
                .get(process)
                .is_some_and(|times| times.iter().any(|(from, to)| from <= at && since <= *to))
        };
        // A token is the server's time at the grant. The process may be suspended before it prints the first line.
        let span =
            held.entry(*token).or_insert(Span { process: *process, from: *token, to: *at, is_sure: true });
        assert_eq!(span.process, *process, "schedule {schedule}: two processes have the token {token}");
        (span.to, span.is_sure) = (*at, !was_suspended(span.from));
        if action != "write" {
            continue;
        }
        // The resource rejects a token if it has seen larger tokens, and as many of them as there are permits.
        if seen.range(token + 1..).count() as u64 >= limit {
            refused += 1;
            // With only one permit, a token is rejected only if its process was suspended and has lost the permit.
            assert!(limit > 1 || !span.is_sure, "schedule {schedule}: {token} is refused at {at}");
        } else {
            seen.insert(*token);
        }
    }
    assert!(held.len() > 20, "schedule {schedule}: {} permits", held.len());
    // Keeps the permits of processes that were not suspended between the grant and the return.
    held.retain(|_, span| span.is_sure);
    for (token, Span { from, .. }) in &held {
        let at_once = held.values().filter(|span| span.from <= *from && *from < span.to).count() as u64;
        assert!(at_once <= limit, "schedule {schedule}: {at_once} holders of {limit} when {token} begins");
    }
    refused
}

/// A schedule mostly sleeps, so three of them run at once.
#[test]
fn a_resource_that_checks_tokens_sees_no_more_holders_than_the_limit_however_processes_fail() {
    let mut refused = 0;
    for first in (0..scaled(30)).step_by(3) {
        let runs = [0, 1, 2].map(|next| std::thread::spawn(move || refused_in(first + next)));
        refused += runs.into_iter().map(|run| run.join().unwrap()).sum::<u64>();
    }
    println!("{refused} writes refused");
}
