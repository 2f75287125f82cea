//! Measurements of whole tables: the insertion of keys, the memory, and the replacement of the algorithm.

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, SlidingCounter, SlidingWindow, TokenBucket};

use super::peers::{Bare, fast_governor};
use super::{PEER, busy_window, by_tsc, ours};
use crate::check::{PLENTY, Quotas, Subject, governor};
use crate::interleave::{Contestant, Rounds};
use crate::{alloc, table};

/// Measures the insertion of all keys into a limiter with room for `max` keys. Each key is called `calls` times. If
/// there is room for all keys, each round has a new limiter. Otherwise, the limiter is full of other keys before each
/// round.
pub fn first_seen(keys: &[IpAddr], max: usize, calls: usize, rounds: usize) -> Rounds {
    fn contestant<'a, S: Subject + 'a>(
        name: &str,
        keys: &'a [IpAddr],
        max: usize,
        calls: usize,
        create: impl Fn() -> S + 'a,
    ) -> Contestant<'a> {
        let insert = move |subject: &S| {
            let started = Instant::now();
            keys.iter().for_each(|key| (0..calls).for_each(|_| assert!(subject.check(key))));
            started.elapsed()
        };
        if max >= keys.len() {
            return Contestant::new(name, move || insert(&create()));
        }
        // At the start of a round, the limiter has only the last keys of the previous round. These keys are evicted
        // before their turn.
        let full = create();
        Contestant::new(name, move || insert(&full))
    }
    let (deep, window) = (Quotas::deep(), Quotas::per_hour(PLENTY));
    let contestants = vec![
        // The tables of the peers are not bounded, so each round has a new one.
        contestant(PEER, keys, keys.len(), calls, || governor(deep)),
        contestant("governor, foldhash", keys, keys.len(), calls, || fast_governor(deep)),
        contestant("bare table", keys, keys.len(), calls, || Bare::new(keys.len(), PLENTY.into())),
        contestant("TokenBucket", keys, max, calls, move || ours(TokenBucket::new(deep.ours), max)),
        contestant("TokenBucket, time stamp counter", keys, max, calls, move || {
            by_tsc(TokenBucket::new(deep.ours), max)
        }),
        contestant("FixedWindow", keys, max, calls, move || ours(FixedWindow::new(window.ours), max)),
        contestant("SlidingWindow", keys, max, calls, move || ours(SlidingWindow::new(window.ours), max)),
    ];
    Rounds::of(contestants, rounds.min(9))
}

/// Prints the time that a replacement of the algorithm of a full table takes, and the time of the longest call that
/// another thread makes meanwhile.
pub fn replace(keys: &[IpAddr]) {
    let deep = Quotas::deep().ours;
    let limiter = ours(TokenBucket::new(deep), keys.len());
    keys.iter().for_each(|key| _ = limiter.check(key));
    let mut rows = Vec::new();
    for per_hour in [1_000_000, 2_000_000, 3_000_000] {
        let replaced = AtomicBool::new(false);
        let longest_call = || {
            let mut longest = Duration::ZERO;
            for key in keys.iter().cycle().take_while(|_| !replaced.load(Ordering::Relaxed)) {
                let started = Instant::now();
                let _ = black_box(limiter.peek(key));
                longest = longest.max(started.elapsed());
            }
            longest
        };
        let (took, longest) = thread::scope(|scope| {
            let calls = scope.spawn(longest_call);
            let started = Instant::now();
            limiter.replace(TokenBucket::new(Quota::per_hour(per_hour)));
            let took = started.elapsed();
            replaced.store(true, Ordering::Relaxed);
            (took, calls.join().expect("it does not panic"))
        });
        rows.push(vec![format!("{per_hour} per hour"), format!("{took:.1?}"), format!("{longest:.1?}")]);
    }
    let head = ["", "whole", "longest call of another thread"];
    table::print("replacing the algorithm of a million keys", &head, &rows);
}

/// Prints the live bytes per key of a full table.
pub fn bytes(keys: &[IpAddr]) {
    let (deep, window, max) = (Quotas::deep(), Quotas::per_hour(PLENTY), keys.len());
    fn held<S: Subject>(create: impl FnOnce() -> S, keys: &[IpAddr]) -> String {
        let before = alloc::live();
        let subject = create();
        keys.iter().for_each(|key| assert!(subject.check(key)));
        format!("{:.1}", (alloc::live() - before) as f64 / keys.len() as f64)
    }
    let rows = [
        (PEER, held(|| governor(deep), keys)),
        ("TokenBucket", held(|| ours(TokenBucket::new(deep.ours), max), keys)),
        ("FixedWindow", held(|| ours(FixedWindow::new(window.ours), max), keys)),
        ("SlidingCounter", held(|| ours(SlidingCounter::new(window.ours), max), keys)),
        ("SlidingWindow", held(|| ours(SlidingWindow::new(window.ours), max), keys)),
        ("SlidingWindow, busy keys", held(|| busy_window(keys), keys)),
    ];
    let rows = rows.map(|(name, bytes)| vec![name.to_owned(), bytes]);
    table::print("live bytes per key, of a million keys in a table for a million", &["", "bytes"], &rows);
}
