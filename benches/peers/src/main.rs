//! Limiters of other crates on a Redis server. The benchmarks of tower-throttle start this program, and ask it to make
//! calls while none of their own contestants runs.
//!
//! The arguments are the URL of the server and the numbers of callers, of calls in a run, of keys, and of calls of one
//! caller. Each line of the standard input is the name of a peer and a run, such as `limitador keys`. The reply is one
//! line:
//!
//! - to `keys` and `one`: the time in seconds in which several callers have made all calls, on all keys or on one key,
//! - to `alone`: the medians of the times of single `PING` commands and of single calls, in seconds. One caller makes
//!   them alternately.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, Write, stdin, stdout};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use limitador::AsyncRateLimiter;
use limitador::limit::{Limit, Namespace};
use limitador::storage::redis::AsyncRedisStorage;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tower_rate_limiter::{RedisStore, Store};

/// A quota that admits all calls, for each window.
const PLENTY: i64 = 1_000_000_000;
const WINDOW: Duration = Duration::from_secs(60);

type Call = Pin<Box<dyn Future<Output = ()>>>;

/// Makes a call for a key, which must be admitted.
type Peer = Rc<dyn Fn(&str) -> Call>;

fn main() {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().expect("the URL of a server");
    let mut number = || arguments.next().and_then(|number| number.parse::<usize>().ok()).expect("a number");
    let (callers, calls, keys, calls_alone) = (number(), number(), number(), number());
    let keys: Rc<[String]> = (0..keys).map(|number| format!("user-{number}")).collect();
    let one: Rc<[String]> = ["one".to_owned()].into();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ping = runtime.block_on(ping(&url));
    let limitador = runtime.block_on(limitador(&url));
    let tower_rate_limiter = runtime.block_on(tower_rate_limiter(&url));
    for line in stdin().lock().lines() {
        let line = line.expect("a line");
        let (peer, run) = line.split_once(' ').expect("a peer and a run");
        let peer = match peer {
            "limitador" => &limitador,
            "tower-rate-limiter" => &tower_rate_limiter,
            other => panic!("no peer is called {other}"),
        };
        let reply = match run {
            "keys" => time(&runtime, peer, &keys, callers, calls).to_string(),
            "one" => time(&runtime, peer, &one, callers, calls).to_string(),
            "alone" => {
                let [ping, call] = runtime.block_on(alternately([&ping, peer], &keys, calls_alone));
                format!("{ping} {call}")
            }
            other => panic!("no run is called {other}"),
        };
        println!("{reply}");
        stdout().flush().expect("the benchmarks read the reply");
    }
}

/// Makes all calls, by several callers at the same time, and returns the seconds until the last call ends.
fn time(runtime: &Runtime, peer: &Peer, keys: &Rc<[String]>, callers: usize, calls: usize) -> f64 {
    let tasks = LocalSet::new();
    for caller in 0..callers {
        let (peer, keys) = (Rc::clone(peer), Rc::clone(keys));
        tasks.spawn_local(async move {
            for number in (caller..calls).step_by(callers) {
                peer(&keys[number % keys.len()]).await;
            }
        });
    }
    let start = Instant::now();
    runtime.block_on(tasks);
    start.elapsed().as_secs_f64()
}

/// Lets both make all calls, alternately, and returns the medians of their times, in seconds. Which of them calls first
/// changes irregularly, because a call may depend on the call before it.
async fn alternately(peers: [&Peer; 2], keys: &[String], calls: usize) -> [f64; 2] {
    let mut times = [Vec::with_capacity(calls), Vec::with_capacity(calls)];
    for number in 0..calls {
        let first = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63;
        for which in [first as usize, 1 - first as usize] {
            let start = Instant::now();
            peers[which](&keys[number % keys.len()]).await;
            times[which].push(start.elapsed().as_secs_f64());
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}

async fn ping(url: &str) -> Peer {
    let client = redis::Client::open(url).expect("the URL is valid");
    let connection = client.get_multiplexed_async_connection().await.expect("the server answers");
    Rc::new(move |_| {
        let mut connection = connection.clone();
        Box::pin(async move {
            let answered = redis::cmd("PING").query_async::<String>(&mut connection).await;
            assert_eq!(answered.as_deref(), Ok("PONG"));
        })
    })
}

/// A fixed window: a call reads the count, and then adds to the count by a script.
async fn limitador(url: &str) -> Peer {
    let storage = AsyncRedisStorage::new(url).await.expect("the server answers");
    let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
    limiter.add_limit(Limit::new("bench", PLENTY, WINDOW.as_secs(), Vec::<String>::new(), ["user"]));
    let (limiter, namespace) = (Rc::new(limiter), Rc::new(Namespace::from("bench")));
    Rc::new(move |key| {
        let (limiter, namespace) = (Rc::clone(&limiter), Rc::clone(&namespace));
        let values = HashMap::from([("user".to_owned(), key.to_owned())]);
        Box::pin(async move {
            let decided = limiter.check_rate_limited_and_update(&namespace, &values, 1, false).await;
            assert!(!decided.expect("the server answers").limited);
        })
    })
}

/// The store of a fixed window: a script adds to the count.
async fn tower_rate_limiter(url: &str) -> Peer {
    let client = redis::Client::open(url).expect("the URL is valid");
    let connection = client.get_multiplexed_async_connection().await.expect("the server answers");
    let store = RedisStore::new(connection);
    Rc::new(move |key| {
        let increment = store.increment(key, WINDOW);
        Box::pin(async move { assert!(increment.await.expect("the server answers").used > 0) })
    })
}
