//! Several processes with one limit. A process is this test program, which is started again for a single test.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, SlidingWindow, StoredAlgorithm, TokenBucket};
use tower_throttle_redis::RedisStore;

use crate::support::redis_server::{RedisServer, Reply};

const URL: &str = "TOWER_THROTTLE_TEST_REDIS";
const KIND: &str = "TOWER_THROTTLE_TEST_KIND";
const TASKS: usize = 4;
const LIMIT: u64 = 1_000;

async fn hammer<A: StoredAlgorithm>(url: &str, algorithm: A, calls: usize) -> u64 {
    let store = RedisStore::builder(url).deadline(Duration::from_secs(20)).connect().await.unwrap();
    let limiter = store.limiter("shared", algorithm).build().unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..calls {
                    admitted += u64::from(limiter.check("key").await.unwrap().is_allowed());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    admitted
}

/// Makes calls from 64 tasks, with compare-and-set and the default deadline. Prints how long the calls took.
async fn hammer_one_key_by_swaps(url: &str) {
    let store = RedisStore::builder(url).without_scripts().connect().await.unwrap();
    let bucket = TokenBucket::new(Quota::per_day(1).burst(10_000_000));
    let limiter = store.limiter("shared", bucket).build().unwrap();
    let start = Instant::now();
    let task = |_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut took = Vec::new();
            while start.elapsed() < Duration::from_secs(3) {
                let start = Instant::now();
                took.push((limiter.check("key").await.is_err(), start.elapsed()));
            }
            took
        })
    };
    let mut took = Vec::new();
    for task in (0..64).map(task).collect::<Vec<_>>() {
        took.extend(task.await.unwrap());
    }
    took.sort_unstable_by_key(|(_, took)| *took);
    let failed = took.iter().filter(|(is_failed, _)| *is_failed).count();
    let (p99, max) = (took[took.len() * 99 / 100].1, took[took.len() - 1].1);
    let trips = store.stats().trips as f64 / took.len() as f64;
    println!("{} calls, {trips:.3} trips each, p99 {p99:?}, max {max:?}", took.len());
    println!("admitted={failed};");
}

/// What a started process does. In the test run itself, the function does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let (Ok(url), Ok(kind)) = (std::env::var(URL), std::env::var(KIND)) else { return };
    // No unit becomes available again within half an hour.
    let days = |limit| Quota::per(limit, Duration::from_secs(20 * 86_400)).unwrap();
    let quota = days(LIMIT);
    let admitted = match kind.as_str() {
        "bucket" => hammer(&url, TokenBucket::new(quota), 1_500).await,
        "window" => hammer(&url, SlidingWindow::new(quota), 1_500).await,
        "pair" => hammer(&url, (TokenBucket::new(days(LIMIT + 50)), FixedWindow::new(quota)), 1_500).await,
        "lockout" => {
            let lockout = FixedWindow::new(quota).block_for(Duration::from_secs(60)).after(1_000_000);
            hammer(&url, lockout, 100).await
        }
        "swaps" => return hammer_one_key_by_swaps(&url).await,
        other => panic!("{other}"),
    };
    println!("admitted={admitted};");
}

fn start(url: &str, kind: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["processes::child", "--exact", "--nocapture"]).env(URL, url).env(KIND, kind);
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

fn admits_exactly_the_limit(kind: &str) {
    assert_eq!(sum([kind; 4]), LIMIT, "{kind}");
}

/// Returns the sum of the numbers that four processes print.
fn sum(kinds: [&str; 4]) -> u64 {
    let server = RedisServer::start();
    let children = kinds.map(|kind| start(&server.url(), kind));
    let mut admitted = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let (_, rest) = text.split_once("admitted=").unwrap();
        admitted += rest.split_once(';').unwrap().0.parse::<u64>().unwrap();
        println!("{text}");
    }
    admitted
}

#[test]
#[ignore = "it measures time: .ci/nightly runs an optimized build of it, which needs an idle machine"]
fn no_call_of_four_processes_times_64_is_late_by_compare_and_set() {
    assert_eq!(sum(["swaps"; 4]), 0, "calls failed");
}

#[tokio::test]
async fn a_call_waits_for_the_turn_of_another_process_until_it_expires() {
    let server = RedisServer::start();
    let store = crate::patient(&server).without_scripts().connect().await.unwrap();
    let window = FixedWindow::new(Quota::per_day(5));
    let limiter = store.limiter("api", window).build().unwrap();
    server.call(&["PSETEX", "throttle:{a}:api:f:turn:", "200", "other"]).ok();
    let start = Instant::now();
    assert!(limiter.check("a").await.unwrap().is_allowed());
    assert!(start.elapsed() >= Duration::from_millis(190), "{:?}", start.elapsed());
    assert_eq!(
        server.call(&["EXISTS", "throttle:{a}:api:f:turn:"]),
        Reply::Integer(0),
        "its own turn has ended"
    );
}

#[tokio::test]
async fn a_limiter_whose_name_is_turn_takes_no_turns_of_others() {
    let server = RedisServer::start();
    let store = crate::patient(&server).without_scripts().one_slot("app").connect().await.unwrap();
    let build = |name| {
        let window = FixedWindow::new(Quota::per_day(5));
        store.limiter(name, window).build().unwrap()
    };
    assert!(build("turn").check("a:api").await.unwrap().is_allowed());
    assert!(build("api").check("a").await.unwrap().is_allowed());
    assert_eq!(build("turn").peek("a:api").await.unwrap().remaining(), 4);
}

#[tokio::test]
async fn a_process_that_need_not_write_any_more_ends_its_turn() {
    let server = RedisServer::start();
    let mut limiters = Vec::new();
    for _ in 0..2 {
        let store = crate::patient(&server).without_scripts().remember_denials(Duration::ZERO);
        let window = FixedWindow::new(Quota::per_day(5));
        let builder = store.connect().await.unwrap().limiter("api", window);
        limiters.push(builder.build().unwrap());
    }
    for key in 0..200 {
        let key = format!("key-{key}");
        // Both calls read the same state. One of them takes all units, so the other has nothing to write.
        let (first, second) = tokio::join!(limiters[0].check_n(&*key, 5), limiters[1].check_n(&*key, 5));
        assert!(first.unwrap().is_allowed() != second.unwrap().is_allowed());
        let turn = format!("throttle:{{{key}}}:api:f:turn:");
        assert_eq!(server.call(&["EXISTS", &turn]), Reply::Integer(0), "{key}");
    }
}

#[test]
fn four_processes_share_a_bucket() {
    admits_exactly_the_limit("bucket");
}

#[test]
fn four_processes_share_a_window() {
    admits_exactly_the_limit("window");
}

#[test]
fn four_processes_share_a_pair() {
    admits_exactly_the_limit("pair");
}

/// A lockout counts denials, so each call of each process is written, with compare-and-set.
#[test]
fn four_processes_share_a_lockout() {
    admits_exactly_the_limit("lockout");
}

/// As during a rolling deployment that changes the algorithm.
#[test]
fn processes_with_other_algorithms_under_one_name_have_a_limit_each_and_fail_no_call() {
    assert_eq!(sum(["bucket", "pair", "bucket", "pair"]), 2 * LIMIT);
}
