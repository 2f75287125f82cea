//! Settlement and tiers in Redis, compared with the store in memory: random calls at times that the tests set, on a
//! real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use tower_throttle::store_support::next;

use super::Random;
use super::redis_connection::Connection;
use super::redis_server::{RedisServer, Reply};
use crate::call::{Callee, Request};
use crate::client::{Client, Server};
use crate::error::RedisError;
use crate::limiter::RedisLimiter;
use crate::script::TimeSource;
use crate::store::RedisStoreBuilder;
use tower_throttle::Decision;
use tower_throttle::Quota;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{
    FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, StoredAlgorithm, Tiered,
    TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::{Acquired, Attempt, Decided, LimiterFor, Reservation};
use tower_throttle::stats::UnitStats;

const START: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

/// What is compared: the calls that a test makes.
struct Calls<A> {
    algorithm: A,
    /// The algorithms that calls may choose.
    tiers: Vec<A>,
    settles: bool,
    scripts: bool,
    /// The length of the usual steps of the clock, in microseconds, which is about the time in which a key refills.
    period: u64,
    max_cost: u64,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Acquire {
        tier: Option<usize>,
        cost: u64,
    },
    Check {
        tier: Option<usize>,
        cost: u64,
    },
    Peek {
        tier: Option<usize>,
        cost: u64,
    },
    /// Settles one of the calls that are not settled yet.
    Settle {
        place: usize,
        actual: u64,
    },
    /// Drops the reservation of such a call.
    Keep {
        place: usize,
    },
    Refund {
        cost: u64,
    },
    Charge {
        cost: u64,
    },
    Reset,
}

/// A limiter in memory and a limiter in Redis, which get the same calls for one key.
struct Both<'a, A: StoredAlgorithm> {
    calls: &'a Calls<A>,
    memory: RateLimiter<A>,
    clock: ManualClock,
    redis: RedisLimiter<A>,
    /// The time that the tests set, in microseconds.
    time: &'static AtomicU64,
    runtime: &'a Runtime,
    key: String,
    /// The reservations of the calls that can be settled: in memory, and in Redis.
    unsettled: Vec<(Reservation, Reservation)>,
    micros: u64,
    /// The latest time that was set.
    latest: u64,
    kept: Option<Kept>,
    /// The units that the limiter in Redis had counted before the run.
    units_before: UnitStats,
}

/// The value of the key in Redis, and the times at which it was written and at which it expires, in microseconds.
struct Kept {
    value: Vec<u8>,
    written_at: u64,
    expires_at: u64,
}

/// The result of a call in Redis, which may be pending.
type Task = JoinHandle<Result<(Option<Decision>, Reservation), RedisError>>;

impl<A: StoredAlgorithm> Both<'_, A> {
    fn attempt(&self, tier: Option<usize>, cost: u64) -> Attempt<'_, A> {
        let attempt = Attempt::new(cost);
        tier.map_or(attempt, |tier| attempt.with_algorithm(&self.calls.tiers[tier]))
    }

    fn random_tier(&self, random: &mut Random) -> Option<usize> {
        (random.below(self.calls.tiers.len() as u64 + 1) as usize).checked_sub(1)
    }

    fn random_call(&self, random: &mut Random) -> Call {
        let tier = self.random_tier(random);
        let most = if random.below(3) == 0 { self.calls.max_cost + 2 } else { 3 };
        let cost = random.below(most);
        let place = random.below(self.unsettled.len().max(1) as u64) as usize;
        match random.below(40) {
            0..10 if !self.unsettled.is_empty() => Call::Settle {
                place,
                actual: if random.below(20) == 0 { 10_000_000 } else { random.below(most) },
            },
            10..12 if !self.unsettled.is_empty() => Call::Keep { place },
            12..15 => Call::Peek { tier, cost },
            15..17 => Call::Refund { cost },
            // The store in memory has one time for all keys that it has removed, which Redis does not have.
            17 if self.micros == self.latest => Call::Reset,
            22..24 if self.calls.settles => Call::Charge { cost },
            18..22 => Call::Check { tier, cost },
            _ => Call::Acquire { tier, cost },
        }
    }

    /// Makes a call in memory, and begins the same call in Redis.
    fn begin(&mut self, call: Call) -> (Option<Decision>, Reservation, Task) {
        let (local, remote, key) = (self.memory.clone(), self.redis.clone(), self.key.as_str());
        let none = || (None, Reservation::default());
        let (now, task) = match call {
            Call::Acquire { tier, cost } => {
                let attempt = self.attempt(tier, cost);
                let attempt = if self.calls.settles { attempt.with_reservation() } else { attempt };
                let Acquired::Ready(decision, reservation) = LimiterFor::acquire(&local, key, attempt) else {
                    panic!("no call waits")
                };
                let acquired = LimiterFor::acquire(&remote, key, attempt);
                let task = async {
                    match acquired {
                        Acquired::Ready(decision, reservation) => Ok((Some(decision), reservation)),
                        Acquired::Pending(wait) => wait.await.map(shown),
                    }
                };
                ((Some(decision), reservation), self.runtime.spawn(task))
            }
            Call::Check { tier, cost } => {
                let attempt = self.attempt(tier, cost);
                let (shared, request) = (Arc::clone(remote.shared()), Request::of(&attempt).never_waiting());
                let checked = RedisLimiter::count(shared, self.name().into(), request, shown);
                let task = checked;
                (
                    (Some(local.reserve_attempt(key, attempt).0), Reservation::default()),
                    self.runtime.spawn(task),
                )
            }
            Call::Peek { tier, cost } => {
                let attempt = self.attempt(tier, cost);
                let (shared, request) = (Arc::clone(remote.shared()), Request::of(&attempt));
                let peeked = RedisLimiter::<A>::look(shared, self.name().into(), request);
                let task = async { peeked.await.map(|decision| (Some(decision), Reservation::default())) };
                ((Some(local.peek_attempt(key, attempt)), Reservation::default()), self.runtime.spawn(task))
            }
            Call::Settle { place, actual } => {
                let (here, there) = self.unsettled.swap_remove(place);
                let _ = here.settle(actual);
                let task = async move {
                    assert!(there.settle(actual).is_none(), "the reply comes later");
                    Ok((None, Reservation::default()))
                };
                (none(), self.runtime.spawn(task))
            }
            Call::Keep { place } => {
                drop(self.unsettled.swap_remove(place));
                (none(), self.runtime.spawn(async { Ok((None, Reservation::default())) }))
            }
            Call::Refund { cost } => {
                local.refund(key, cost);
                let refunded = remote.refund(key, cost);
                let task = async { refunded.await.map(|()| (None, Reservation::default())) };
                (none(), self.runtime.spawn(task))
            }
            Call::Charge { cost } => {
                local.charge(key, cost);
                let charged = remote.charge(key, cost);
                let task = async { charged.await.map(|()| (None, Reservation::default())) };
                (none(), self.runtime.spawn(task))
            }
            Call::Reset => {
                let (was_used, reset) = (local.reset(key), remote.reset(key));
                let task = async move {
                    assert_eq!(reset.await?, was_used, "whether the key had used anything");
                    Ok((None, Reservation::default()))
                };
                (none(), self.runtime.spawn(task))
            }
        };
        (now.0, now.1, task)
    }

    /// Makes calls at the present time, which are decided together in Redis except for the first. Returns a
    /// description of the first difference.
    fn compare(&mut self, calls: &[Call], random: &mut Random) -> Option<String> {
        let begun: Vec<_> = calls.iter().map(|call| (*call, self.begin(*call))).collect();
        let mut difference = None;
        let mut compare = |call: Call, memory: Option<Decision>, redis: Option<Decision>| {
            if memory != redis && difference.is_none() {
                let shown = |decision: Option<Decision>| {
                    format!("{decision:?}, next unit in {:?}", decision.map(next))
                };
                difference =
                    Some(format!("{call:?}\n  memory: {}\n  Redis:  {}", shown(memory), shown(redis)));
            }
        };
        for (call, (memory, here, task)) in begun {
            let (redis, there) = self.runtime.block_on(task).unwrap().unwrap();
            compare(call, memory, redis);
            if here.is_empty() != there.is_empty() {
                compare(call, None, redis);
            }
            if !here.is_empty() {
                self.unsettled.push((here, there));
            }
            // In memory, a call from before a reset gives nothing back. Redis does not know of the reset.
            if matches!(call, Call::Reset) {
                self.unsettled.clear();
            }
        }
        // A peek is decided after the settlements before it.
        let last = Call::Peek { tier: self.random_tier(random), cost: 1 };
        let (memory, _, task) = self.begin(last);
        compare(last, memory, self.runtime.block_on(task).unwrap().unwrap().0);
        difference.or_else(|| self.units_difference())
    }

    /// Describes the difference between the units that both have counted, if there is one. In memory, a refund is not
    /// counted if the table has removed the key, because the key was fresh.
    fn units_difference(&self) -> Option<String> {
        let (memory, redis, before) =
            (self.memory.stats().units, self.redis.stats().units, self.units_before);
        let is_same = redis.charged - before.charged == memory.charged
            && redis.uncharged - before.uncharged == memory.uncharged
            && redis.refunded - before.refunded >= memory.refunded;
        (!is_same).then(|| format!("memory: {memory:?}, Redis: {redis:?}, before: {before:?}"))
    }

    /// Sets the clocks. The key expires as it would on a server whose clock shows these times. The clock is set back only
    /// if Redis has written the key's time, which it does not do for calls that charge nothing.
    fn advance(&mut self, random: &mut Random, side: &mut Connection) {
        let period = self.calls.period;
        let mut scaled = |limit: u64| {
            let bits = random.below(u64::from(limit.ilog2()) + 1) as u32;
            random.below(limit.min(2 << bits)).min(limit - 1)
        };
        let (small, large, back) =
            (scaled(period / self.calls.max_cost.max(8) * 4 + 2), scaled(4 * period), scaled(period));
        let is_time_written = self.kept.as_ref().is_some_and(|kept| kept.written_at >= self.micros);
        self.micros = match random.below(20) {
            0..2 if is_time_written => self.micros - back,
            2 if is_time_written => self.micros - period - 9 * back,
            0..5 => self.micros + large,
            5..8 => self.micros,
            _ => self.micros + small,
        };
        self.latest = self.latest.max(self.micros);
        if self.kept.take_if(|kept| self.micros >= kept.expires_at).is_some() {
            side.call(&["DEL", &self.name()]);
        }
        self.time.store(self.micros, Ordering::SeqCst);
        self.clock.set(Duration::from_micros(self.micros));
    }

    fn name(&self) -> String {
        format!("throttle:{{{}}}:test:{}", self.key, A::kind())
    }

    /// Looks at what Redis keeps.
    fn observe(&mut self, side: &mut Connection) {
        let name = self.name();
        let Reply::Text(value) = side.call(&["GET", &name]) else {
            self.kept = None;
            return;
        };
        if self.kept.as_ref().is_none_or(|kept| kept.value != value) {
            let ttl: u64 = side.call(&["GET", &format!("ttl:{name}")]).text().parse().unwrap();
            let (written_at, expires_at) = (self.micros, self.micros + ttl * 1_000);
            self.kept = Some(Kept { value, written_at, expires_at });
        }
    }
}

fn shown(decided: Decided) -> (Option<Decision>, Reservation) {
    let (decision, reservation) = decided.into_parts();
    (Some(decision), reservation)
}

/// Makes `runs` random runs of calls. Panics if a decision in Redis differs from that in memory.
fn compare<A: StoredAlgorithm>(calls: &Calls<A>, runs: u64) {
    let server = RedisServer::start();
    let mut side = server.connect();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(
        Server::At(::redis::Client::open(server.url()).unwrap().into(), ""),
        Duration::from_secs(10),
    );
    let time: &AtomicU64 = Box::leak(Box::default());
    let store = RedisStoreBuilder::over(client, TimeSource::Passed(time)).deadline(Duration::from_secs(60));
    let store = super::settings(calls.scripts, Duration::ZERO)(store).connect_lazily().unwrap();
    let redis = super::limiter(&store, calls.algorithm.clone());
    let (mut allowed, mut denied, mut settled) = (0, 0, 0);
    let mut differences = Vec::new();
    for run in 0..runs {
        let random = &mut Random(0x9e37_79b9_7f4a_7c15 ^ (run << 17));
        let clock = ManualClock::new();
        let memory = RateLimiter::builder(calls.algorithm.clone()).clock(clock.clone()).build();
        let mut both = Both {
            calls,
            memory,
            clock,
            redis: redis.clone(),
            time,
            runtime: &runtime,
            key: format!("run-{run}"),
            unsettled: Vec::new(),
            micros: START,
            latest: START,
            kept: None,
            units_before: redis.stats().units,
        };
        let mut log = String::new();
        for _ in 0..60 {
            both.advance(random, &mut side);
            let count = if random.below(4) == 0 { random.below(6) + 1 } else { 1 };
            let mut batch = Vec::new();
            for _ in 0..count {
                let call = both.random_call(random);
                // A batch changes only once which calls are unsettled, because the places of others would change.
                let changes =
                    |call: &Call| matches!(call, Call::Settle { .. } | Call::Keep { .. } | Call::Reset);
                if !(changes(&call) && batch.iter().any(changes)) {
                    batch.push(call);
                }
            }
            settled += batch.iter().filter(|call| matches!(call, Call::Settle { .. })).count();
            log.push_str(&format!("{} {batch:?}\n", both.micros as i64 - START as i64));
            if let Some(difference) = both.compare(&batch, random) {
                let value = match side.call(&["GET", &both.name()]) {
                    Reply::Text(value) => value.escape_ascii().to_string(),
                    other => format!("{other:?}"),
                };
                differences.push(format!("run {run}:\n{log}{difference}\n  value:  {value}"));
                break;
            }
            both.observe(&mut side);
        }
        let stats = both.memory.stats().calls;
        (allowed, denied) = (allowed + stats.admitted, denied + stats.denied);
    }
    let found = differences.len();
    assert!(found == 0, "{found} of {runs} runs differ: {:?}, {}", calls.algorithm, differences[0]);
    println!("{runs} runs: {allowed} calls allowed, {denied} denied, {settled} settled");
    assert!(allowed > 10 * runs && denied > 2 * runs, "{allowed} allowed, {denied} denied");
    assert!(settled as u64 > 2 * runs || !calls.settles, "{settled} settled");
}

fn settled<A: StoredAlgorithm>(algorithm: A, period: u64, max_cost: u64) -> Calls<A> {
    Calls { algorithm, tiers: Vec::new(), settles: true, scripts: true, period, max_cost }
}

/// Returns calls that choose between six tiers, which differ in their limits, bursts and periods.
fn tiered<A: StoredAlgorithm + PartialEq>(settles: bool, make: impl Fn(Quota) -> A) -> Calls<Tiered<A>> {
    let quota = |limit, seconds, burst| Quota::per(limit, Duration::from_secs(seconds)).unwrap().burst(burst);
    let quotas =
        [quota(7, 60, 4), quota(100, 60, 30), quota(5, 1, 5), quota(10, 3_600, 10), quota(13, 77, 13)];
    let tiers = quotas.map(|quota| Tiered::new(make(quota))).to_vec();
    Calls {
        algorithm: Tiered::new(make(quota(20, 600, 15))),
        tiers,
        settles,
        scripts: true,
        period: MINUTE,
        max_cost: 12,
    }
}

macro_rules! compared {
    ($($name:ident, $calls:expr;)+) => {
        $(
            #[test]
            fn $name() {
                compare(&$calls, 20);
            }
        )+

        /// The same tests in full size, for `.ci/nightly`.
        mod in_full {
            use super::*;

            $(
                #[test]
                #[ignore = "takes a minute: .ci/nightly runs it"]
                fn $name() {
                    compare(&$calls, 400);
                }
            )+
        }
    };
}

fn pair(quota: Quota) -> (TokenBucket, FixedWindow) {
    (TokenBucket::new(quota), FixedWindow::new(Quota::per_minute(quota.limit() + 3)))
}

fn lockout(quota: Quota) -> tower_throttle::algorithm::Lockout<FixedWindow> {
    FixedWindow::new(quota).block_for(Duration::from_secs(20)).after(3)
}

fn warming_up(quota: Quota) -> Smooth {
    Smooth::warming_up(quota, Duration::from_secs(30)).queue(0)
}

/// Returns a bursty limiter, or one that warms up.
fn either(quota: Quota) -> Smooth {
    if quota.limit().is_multiple_of(2) { Smooth::bursty(quota).queue(0) } else { warming_up(quota) }
}

const QUOTA: Quota = Quota::per_minute(7);

compared! {
    settlement_of_a_token_bucket, settled(TokenBucket::new(QUOTA.burst(4)), MINUTE, 4);
    settlement_of_a_token_bucket_without_scripts, Calls { scripts: false, ..settled(TokenBucket::new(QUOTA), MINUTE, 4) };
    settlement_of_a_bucket_of_odd_nanoseconds, settled(TokenBucket::new(Quota::per(3, Duration::from_nanos(7_777_777)).unwrap()), 7_777, 3);
    settlement_of_a_leaky_bucket, settled(LeakyBucket::new(QUOTA).queue(0), MINUTE, 3);
    settlement_of_a_fixed_window, settled(FixedWindow::new(Quota::per_minute(10)), MINUTE, 10);
    settlement_of_an_aligned_window, settled(FixedWindow::new(Quota::per_minute(10)).aligned(), MINUTE, 10);
    settlement_of_a_sliding_counter, settled(SlidingCounter::new(Quota::per_minute(10)), MINUTE, 10);
    settlement_of_a_sliding_window, settled(SlidingWindow::new(Quota::per_minute(10)), MINUTE, 10);
    settlement_of_a_sliding_log, settled(SlidingLog::new(Quota::per_minute(10)), MINUTE, 10);
    settlement_of_a_bursty_limiter, settled(Smooth::bursty(QUOTA).queue(0), MINUTE, 3);
    settlement_of_a_limiter_that_warms_up, settled(warming_up(QUOTA), MINUTE, 3);
    settlement_of_a_pair, settled(pair(QUOTA), MINUTE, 7);
    settlement_of_a_lockout, settled(lockout(QUOTA), MINUTE, 7);

    tiers_of_a_token_bucket, tiered(false, TokenBucket::new);
    tiers_of_a_leaky_bucket, tiered(false, |quota| LeakyBucket::new(quota).queue(0));
    tiers_of_a_fixed_window, tiered(false, FixedWindow::new);
    tiers_of_an_aligned_window, tiered(false, |quota| FixedWindow::new(quota).aligned());
    tiers_of_a_sliding_counter, tiered(false, SlidingCounter::new);
    tiers_of_a_sliding_window, tiered(false, SlidingWindow::new);
    tiers_of_a_sliding_log, tiered(false, SlidingLog::new);
    tiers_of_a_bursty_limiter, tiered(false, |quota| Smooth::bursty(quota).queue(0));
    tiers_of_a_limiter_that_warms_up, tiered(false, warming_up);
    tiers_of_both_kinds_of_smooth_limiters, tiered(false, either);
    tiers_of_a_pair, tiered(false, pair);
    tiers_of_a_lockout, tiered(false, lockout);

    settled_tiers_of_a_token_bucket, tiered(true, TokenBucket::new);
    settled_tiers_of_a_leaky_bucket, tiered(true, |quota| LeakyBucket::new(quota).queue(0));
    settled_tiers_of_a_fixed_window, tiered(true, FixedWindow::new);
    settled_tiers_of_an_aligned_window, tiered(true, |quota| FixedWindow::new(quota).aligned());
    settled_tiers_of_a_sliding_counter, tiered(true, SlidingCounter::new);
    settled_tiers_of_a_sliding_window, tiered(true, SlidingWindow::new);
    settled_tiers_of_a_sliding_log, tiered(true, SlidingLog::new);
    settled_tiers_of_a_bursty_limiter, tiered(true, |quota| Smooth::bursty(quota).queue(0));
    settled_tiers_of_a_limiter_that_warms_up, tiered(true, warming_up);
    settled_tiers_of_both_kinds_of_smooth_limiters, tiered(true, either);
    settled_tiers_of_a_pair, tiered(true, pair);
    settled_tiers_of_a_lockout, tiered(true, lockout);
}
