//! A comparison of `check` with governor's `check_key`.
//!
//! Both libraries get the same keys and quotas and return the same results, and no part of a result can be optimized
//! away. The index of the next key depends on the previous result. Otherwise the processor would overlap consecutive
//! calls, and would hide the cost of cache misses.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use governor::DefaultKeyedRateLimiter;
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_throttle::{Quota, RateLimiter};

use crate::interleave::{Contestant, Rounds};
use crate::table;

/// A limit that is never used up.
pub const PLENTY: u32 = 3_500_000_000;
/// A limit that is used up at once. The interval between calls of such a quota per minute or per hour is not a whole
/// number of nanoseconds, which is the harder case.
pub const FEW: u32 = 7;

/// The number of keys in the columns with many keys.
const MANY: usize = 100_000;
/// The number of calls in a run. A run is short, so that most runs are not interrupted.
const CALLS: usize = 10_000;

/// A rate limiter that is measured.
pub trait Subject {
    /// Makes a call with `key`. Returns whether the call is admitted.
    fn check(&self, key: &IpAddr) -> bool;
}

impl<A: Algorithm> Subject for RateLimiter<A> {
    #[inline]
    fn check(&self, key: &IpAddr) -> bool {
        black_box(&RateLimiter::check(self, key)).is_allowed()
    }
}

impl Subject for DefaultKeyedRateLimiter<IpAddr> {
    #[inline]
    fn check(&self, key: &IpAddr) -> bool {
        black_box(&self.check_key(key)).is_ok()
    }
}

/// Makes `calls` calls with the keys in turn, starting with the key at index `from`. Returns the number of admitted
/// calls.
#[inline(never)]
pub fn walk(subject: &impl Subject, keys: &[IpAddr], from: usize, calls: usize) -> usize {
    let (mut at, mut admitted, mut carried) = (from % keys.len(), 0, 0);
    for _ in 0..calls {
        let result = usize::from(subject.check(&keys[at + carried]));
        admitted += result;
        // This is always 0. But the compiler does not know that, and the processor has to wait for the result.
        carried = black_box(result) >> 1;
        at = if at + 1 < keys.len() { at + 1 } else { 0 };
    }
    admitted
}

pub fn ours<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).max_keys(2 * MANY).build()
}

pub fn governor(quotas: Quotas) -> DefaultKeyedRateLimiter<IpAddr> {
    governor::RateLimiter::keyed(quotas.governors)
}

/// One quota, in the types of both libraries.
#[derive(Clone, Copy)]
pub struct Quotas {
    pub ours: Quota,
    pub governors: governor::Quota,
}

impl Quotas {
    pub fn per_hour(limit: u32) -> Self {
        Self { ours: Quota::per_hour(limit.into()), governors: governor::Quota::per_hour(nonzero(limit)) }
    }

    /// Creates a quota for a bucket that is never used up, and that does not become full again between two calls of a
    /// key.
    pub fn deep() -> Self {
        Self {
            ours: Quota::per_minute(70).burst(PLENTY.into()),
            governors: governor::Quota::per_minute(nonzero(70)).allow_burst(nonzero(PLENTY)),
        }
    }

    /// Creates a quota for a leaky bucket that is never used up. It admits one call per nanosecond.
    pub fn fast() -> Self {
        const FAST: u32 = 1_000_000_000;
        Self { ours: Quota::per_second(FAST.into()), governors: governor::Quota::per_second(nonzero(FAST)) }
    }
}

fn nonzero(limit: u32) -> NonZeroU32 {
    NonZeroU32::new(limit).expect("a limit is not 0")
}

/// Returns `count` distinct addresses, in no particular order.
pub fn keys(count: usize) -> Vec<IpAddr> {
    // An odd factor makes this a permutation of all addresses.
    let address = |n: usize| Ipv4Addr::from_bits((n as u32).wrapping_mul(2_654_435_761).rotate_left(16));
    (0..count).map(|n| address(n).into()).collect()
}

/// The names of the rows, and of their peers.
const ROWS: [(&str, &str); 5] = [
    ("FixedWindow", "windows' peer"),
    ("SlidingWindow", "windows' peer"),
    ("TokenBucket", "deep bucket's peer"),
    ("TokenBucket, always full", "windows' peer"),
    ("LeakyBucket", "leaky bucket's peer"),
];

pub fn run(rounds: usize) {
    let columns = [(1, true), (1, false), (MANY, true), (MANY, false)];
    let measured = columns.map(|(count, admitted)| column(count, admitted, rounds));
    let rows = ROWS.map(|(name, peer)| {
        let cells = measured.iter().map(|rounds| match rounds.has(name) {
            true => table::ratio(rounds.ratio(name, peer)),
            false => String::new(),
        });
        [name.to_owned()].into_iter().chain(cells).collect()
    });
    table::print(
        "check: time to that of governor's check_key with the same quota",
        &["", "one key, admitted", "denied", "100,000 keys, admitted", "denied"],
        &rows,
    );
}

fn column(count: usize, admitted: bool, rounds: usize) -> Rounds {
    let keys = &keys(count);
    let (plenty, deep, fast) = match admitted {
        true => (Quotas::per_hour(PLENTY), Quotas::deep(), Quotas::fast()),
        false => (Quotas::per_hour(FEW), Quotas::per_hour(FEW), Quotas::per_hour(FEW)),
    };
    let mut contestants = vec![
        contestant("windows' peer", governor(plenty), keys, admitted),
        contestant("FixedWindow", ours(FixedWindow::new(plenty.ours)), keys, admitted),
        contestant("SlidingWindow", ours(SlidingWindow::new(plenty.ours)), keys, admitted),
        contestant("deep bucket's peer", governor(deep), keys, admitted),
        contestant("TokenBucket", ours(TokenBucket::new(deep.ours)), keys, admitted),
        contestant("leaky bucket's peer", governor(fast), keys, admitted),
        contestant("LeakyBucket", ours(LeakyBucket::new(fast.ours)), keys, admitted),
    ];
    if admitted {
        // This bucket is full again before each call, so its key may be removed between two calls.
        let bucket = TokenBucket::new(plenty.ours);
        contestants.push(contestant("TokenBucket, always full", ours(bucket), keys, admitted));
    }
    Rounds::of(contestants, rounds)
}

fn contestant<'a>(
    name: &str,
    subject: impl Subject + 'a,
    keys: &'a [IpAddr],
    admitted: bool,
) -> Contestant<'a> {
    // Every key gets a state before the measurement. This also uses up the units of a low limit.
    walk(&subject, keys, 0, keys.len() * (FEW as usize + 1));
    let mut from = 0;
    Contestant::new(name, move || {
        from += CALLS;
        timed(&subject, keys, from, admitted)
    })
}

fn timed(subject: &impl Subject, keys: &[IpAddr], from: usize, admitted: bool) -> Duration {
    let started = Instant::now();
    let passed = walk(subject, keys, from, CALLS);
    let took = started.elapsed();
    assert_eq!(passed, if admitted { CALLS } else { 0 }, "all contestants return the same results");
    took
}
