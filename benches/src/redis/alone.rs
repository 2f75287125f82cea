//! The time of single calls, made by one caller.
//!
//! The contestants make their calls alternately: one call each, then the next call each. So a change of the machine's
//! speed affects all of them alike.
//!
//! If the server has a core of its own, most of the time of a call passes until an idle core wakes up. If the server
//! and the client are on one core, that time is short, and the ratios show the work of both.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use tower_throttle::algorithm::TokenBucket;

use super::peers::{PEERS, Peers, THROTTLE_KIT};
use super::{BARE, KEYS, PING, PLENTY, Place, Setting, bare, check, ping, run_bare};
use crate::interleave::{median, quartiles};
use crate::random::Random;
use crate::redis_server::{RedisServer, Reply};
use crate::table;

/// The number of calls of each contestant in a round.
pub(super) const CALLS: usize = 500;
/// The limiter's own command, sent without the limiter. What the limiter takes beyond this is the work of this crate
/// in the client.
const COMMAND: &str = "the token bucket's command, sent without the limiter";
const BUCKET: &str = "token bucket";

type Call<'a> = Box<dyn Fn(usize) -> Pin<Box<dyn Future<Output = ()>>> + 'a>;

/// Prints the medians of the times of single calls, and the ratios of these medians, which are computed within each
/// round.
pub(super) fn run(
    setting: &Setting,
    server: &RedisServer,
    place: Place,
    peers: Option<&Peers>,
    rounds: usize,
) {
    let limiter = setting.build("alone", TokenBucket::new(PLENTY));
    let throttle_kit = setting.throttle_kit_limiter(&server.url());
    let script = std::rc::Rc::new(bare());
    let key = |number: usize| setting.keys[number % KEYS].clone();
    setting.runtime.block_on(check(limiter.check("first")));
    let command = command_of_limiter(server, || setting.runtime.block_on(check(limiter.check("shown"))));
    let contestants: [(&str, Call<'_>); 5] = [
        (PING, Box::new(|_| Box::pin(ping(setting.connection.clone())))),
        (
            BARE,
            Box::new(|number| {
                Box::pin(run_bare(
                    setting.connection.clone(),
                    script.clone(),
                    format!("bare:{}", key(number)),
                ))
            }),
        ),
        (
            COMMAND,
            Box::new(|number| {
                Box::pin(resent(setting.connection.clone(), command.clone(), format!("sent:{}", key(number))))
            }),
        ),
        (BUCKET, Box::new(|number| Box::pin(check(limiter.check(&*key(number)))))),
        (
            THROTTLE_KIT,
            Box::new(|number| {
                let (limiter, key) = (throttle_kit.clone(), key(number));
                Box::pin(async move { assert!(limiter.check(&key).await.allowed) })
            }),
        ),
    ];
    let mut peers_medians = PEERS.map(|_| Vec::new());
    let mut random = Random::new(1);
    let mut medians = vec![Vec::new(); contestants.len()];
    for round in 0..=rounds {
        let times = setting.runtime.block_on(times(&contestants, &mut random));
        let peers_times = PEERS.map(|(peer, _)| peers.map(|peers| peers.ask(peer, "alone")));
        // The first round is not counted.
        if round > 0 {
            for (medians, times) in medians.iter_mut().zip(times) {
                medians.push(median(times.into_iter()));
            }
            for (medians, times) in peers_medians.iter_mut().zip(peers_times) {
                medians.extend(times);
            }
        }
    }
    let ratio = |times: &[f64], to: usize| spread(times.iter().zip(&medians[to]).map(|(time, to)| time / to));
    let row = |((name, _), times): (&(&str, Call<'_>), &Vec<f64>)| {
        let micros = median(times.iter().copied());
        let ratios = (0..3).map(|to| ratio(times, to));
        [(*name).to_owned(), format!("{micros:.1}")].into_iter().chain(ratios).collect()
    };
    let mut rows: Vec<Vec<_>> = contestants.iter().zip(&medians).map(row).collect();
    for ((_, name), medians) in PEERS.iter().zip(peers_medians).filter(|(_, medians)| !medians.is_empty()) {
        let micros = median(medians.iter().map(|times| times[1] * 1e6));
        let ratio = spread(medians.iter().map(|times| times[1] / times[0]));
        rows.push(vec![(*name).to_owned(), format!("{micros:.1}"), ratio, String::new(), String::new()]);
    }
    let place = match place {
        Place::OwnCore => "a core of its own",
        Place::ClientsCore => "the core of the client",
    };
    table::print(
        &format!(
            "one caller, server on {place}: the median of the time of a call in microseconds, and ratios (quartiles)"
        ),
        &["", "p50", "to PING", "to a bare script", "to its command"],
        &rows,
    );
}

/// Returns the median, and the quartiles in brackets.
fn spread(ratios: impl Iterator<Item = f64> + Clone) -> String {
    let (low, high) = quartiles(ratios.clone());
    format!("{:.2} ({low:.2}-{high:.2})", median(ratios))
}

/// Makes all calls, alternately, and returns the times of each contestant, in microseconds.
async fn times(contestants: &[(&str, Call<'_>)], random: &mut Random) -> Vec<Vec<f64>> {
    let mut order: Vec<_> = (0..contestants.len()).collect();
    let mut times = vec![Vec::with_capacity(CALLS); contestants.len()];
    for number in 0..CALLS {
        for position in 0..contestants.len() {
            // In a random order, since a call may depend on the call before it.
            let rest = (contestants.len() - position) as u64;
            order.swap(position, position + random.below(rest) as usize);
            let which = order[position];
            let start = Instant::now();
            contestants[which].1(number).await;
            times[which].push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    times
}

/// Returns the words of the command that `call` sends. The server records it in its slow log.
fn command_of_limiter(server: &RedisServer, call: impl FnOnce()) -> Vec<Vec<u8>> {
    server.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    call();
    server.call(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    let Reply::List(entries) = server.call(&["SLOWLOG", "GET", "10"]) else { panic!("a list of commands") };
    let words = |entry: &Reply| {
        let Reply::List(parts) = entry else { panic!("an entry") };
        let Reply::List(words) = &parts[3] else { panic!("a command") };
        words.iter().map(word).collect::<Vec<_>>()
    };
    entries.iter().map(words).find(|words| is_script(words)).expect("the limiter calls a script")
}

/// Returns whether a command of the slow log calls a script. Panics if the slow log has shortened it.
pub(super) fn is_script(words: &[Vec<u8>]) -> bool {
    let is_short = |word: &Vec<u8>| word.windows(5).any(|part| part == b"... (");
    let is_script = words[0] == b"EVALSHA";
    assert!(!is_script || !words.iter().any(is_short), "the slow log has the whole command");
    is_script
}

fn word(reply: &Reply) -> Vec<u8> {
    let Reply::Text(word) = reply else { panic!("a word") };
    word.clone()
}

/// Sends a command of the limiter with another key, and without a time after which the server ignores it.
async fn resent(mut connection: MultiplexedConnection, words: Vec<Vec<u8>>, key: String) {
    let mut command = redis::Cmd::with_capacity(words.len(), 320);
    let last = words.len() - 1;
    for (at, word) in words.iter().enumerate() {
        match at {
            3 => command.arg(&*key),
            // The last argument begins with the time in eight bytes.
            at if at == last => {
                let never = ((1_u64 << 53) as f64).to_le_bytes();
                command.arg([&never, &word[8..]].concat())
            }
            _ => command.arg(word.as_slice()),
        };
    }
    let replied = connection.send_packed_command(&command).await;
    let is_decided = matches!(&replied, Ok(redis::Value::BulkString(text)) if text.starts_with(b"D"));
    assert!(is_decided, "{replied:?}");
}
