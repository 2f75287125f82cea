//! Limiters in Redis, compared with those in memory: random calls at times that the tests set, on a real server,
//! which decides them by scripts or by compare-and-set. Half of the runs settle calls.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use tower_throttle::store_support::next;

use super::Random;
use super::redis_connection::Connection;
use super::redis_server::{RedisServer, Reply};
use super::scripted::START;
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
    FixedWindow, LeakyBucket, Lockout, SlidingCounter, SlidingLog, SlidingWindow, Smooth, StoredAlgorithm,
    Tiered, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::{Acquired, Attempt, Decided, LimiterFor, Reservation};

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

/// What is compared: the calls that a test makes.
struct Calls<A> {
    algorithm: A,
    /// The algorithms that calls may choose.
    tiers: Vec<A>,
    scripts: bool,
    /// The length of the usual steps of the clock, in microseconds, which is about the time in which a key refills.
    period: u64,
    max_cost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Acquire,
    Check,
    Peek,
    /// Settles one of the calls that are not settled yet at `cost`.
    Settle,
    /// Drops the reservation of such a call.
    Keep,
    Refund,
    Charge,
    Reset,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    kind: Kind,
    tier: Option<usize>,
    cost: u64,
    /// The place of the call that is settled or kept.
    place: usize,
}

impl Call {
    /// Returns whether the places of unsettled calls are others after this call.
    fn moves_places(&self) -> bool {
        matches!(self.kind, Kind::Settle | Kind::Keep | Kind::Reset)
    }
}

/// A limiter in memory and a limiter in Redis, which get the same calls for one key.
struct Both<'a, A: StoredAlgorithm> {
    calls: &'a Calls<A>,
    settles: bool,
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
}

/// The value of the key in Redis, and the times at which it was written and at which it expires, in microseconds.
struct Kept {
    value: Vec<u8>,
    written_at: u64,
    expires_at: u64,
}

/// What a call has returned.
type Made = (Option<Decision>, Reservation);
/// The result of a call in Redis, which may be pending.
type Task = JoinHandle<Result<Made, RedisError>>;

fn decided(decision: Decision) -> Made {
    (Some(decision), Reservation::default())
}

fn shown(decided: Decided) -> Made {
    let (decision, reservation) = decided.into_parts();
    (Some(decision), reservation)
}

impl<A: StoredAlgorithm> Both<'_, A> {
    fn random_call(&self, random: &mut Random) -> Call {
        let (can_settle, most) = (!self.unsettled.is_empty(), self.calls.max_cost + 2);
        let tier = (random.below(self.calls.tiers.len() as u64 + 1) as usize).checked_sub(1);
        let cost = if random.below(4) == 0 { random.below(most) } else { random.scaled_below(most) };
        let place = random.below(self.unsettled.len().max(1) as u64) as usize;
        let kind = match random.below(40) {
            0..10 if can_settle => Kind::Settle,
            10..12 if can_settle => Kind::Keep,
            12..15 => Kind::Peek,
            15..17 => Kind::Refund,
            // The limiter in memory has one time for all keys that it has removed, which Redis does not have.
            17 if self.micros == self.latest => Kind::Reset,
            22..24 if self.settles => Kind::Charge,
            18..22 => Kind::Check,
            _ => Kind::Acquire,
        };
        let cost = if kind == Kind::Settle && random.below(20) == 0 { 10_000_000 } else { cost };
        Call { kind, tier, cost, place }
    }

    /// Makes a call in memory, and begins the same call in Redis.
    fn begin(&mut self, call: Call) -> (Made, Task) {
        let Call { kind, tier, cost, place } = call;
        let attempt = Attempt::new(cost);
        let attempt = tier.map_or(attempt, |tier| attempt.with_algorithm(&self.calls.tiers[tier]));
        let request = Request::of(&attempt);
        let (name, shared) = (self.name().into(), Arc::clone(self.redis.shared()));
        let (memory, redis, key) = (&self.memory, &self.redis, self.key.as_str());
        let nothing = |()| Made::default();
        let (made, task): (Made, Pin<Box<dyn Future<Output = _> + Send>>) = match kind {
            Kind::Acquire => {
                let attempt = if self.settles { attempt.with_reservation() } else { attempt };
                let Acquired::Ready(decision, reservation) = LimiterFor::acquire(memory, key, attempt) else {
                    panic!("no call waits")
                };
                let task: Pin<Box<dyn Future<Output = _> + Send>> =
                    match LimiterFor::acquire(redis, key, attempt) {
                        Acquired::Ready(decision, reservation) => {
                            Box::pin(ready(Ok((Some(decision), reservation))))
                        }
                        Acquired::Pending(wait) => Box::pin(async { wait.await.map(shown) }),
                    };
                ((Some(decision), reservation), task)
            }
            Kind::Check => {
                let task = RedisLimiter::count(shared, name, request.never_waiting(), shown);
                (decided(memory.reserve_attempt(key, attempt).0), Box::pin(task))
            }
            Kind::Peek => {
                let task = RedisLimiter::<A>::look(shared, name, request);
                (decided(memory.peek_attempt(key, attempt)), Box::pin(async { task.await.map(decided) }))
            }
            Kind::Settle => {
                let (here, there) = self.unsettled.swap_remove(place);
                let _ = here.settle(cost);
                let task = async move {
                    assert!(there.settle(cost).is_none(), "the reply comes later");
                    Ok(Made::default())
                };
                (Made::default(), Box::pin(task))
            }
            Kind::Keep => {
                drop(self.unsettled.swap_remove(place));
                (Made::default(), Box::pin(ready(Ok(Made::default()))))
            }
            Kind::Refund => {
                memory.refund(key, cost);
                let task = redis.refund(key, cost);
                (Made::default(), Box::pin(async move { task.await.map(nothing) }))
            }
            Kind::Charge => {
                memory.charge(key, cost);
                let task = redis.charge(key, cost);
                (Made::default(), Box::pin(async move { task.await.map(nothing) }))
            }
            Kind::Reset => {
                let (was_used, task) = (memory.reset(key), redis.reset(key));
                let task = async move {
                    assert_eq!(task.await?, was_used, "whether the key had used anything");
                    Ok(Made::default())
                };
                (Made::default(), Box::pin(task))
            }
        };
        (made, self.runtime.spawn(task))
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
        for (call, ((memory, here), task)) in begun {
            let (redis, there) = self.runtime.block_on(task).unwrap().unwrap();
            compare(call, memory, redis);
            if here.is_empty() != there.is_empty() {
                compare(call, None, redis);
            }
            if !here.is_empty() {
                self.unsettled.push((here, there));
            }
            // In memory, a call from before a reset gives nothing back. Redis does not know of the reset.
            if call.kind == Kind::Reset {
                self.unsettled.clear();
            }
        }
        // A peek is decided after the settlements before it.
        let last = Call { kind: Kind::Peek, cost: 1, ..self.random_call(random) };
        let ((memory, _), task) = self.begin(last);
        compare(last, memory, self.runtime.block_on(task).unwrap().unwrap().0);
        difference.or_else(|| self.units_difference())
    }

    /// Describes the difference between the units that both have counted, if there is one. In memory, a refund is not
    /// counted if the table has removed the key, because the key was fresh.
    fn units_difference(&self) -> Option<String> {
        let (memory, redis) = (self.memory.stats().units, self.redis.stats().units);
        let is_same = (redis.charged, redis.uncharged) == (memory.charged, memory.uncharged)
            && redis.refunded >= memory.refunded;
        (!is_same).then(|| format!("memory: {memory:?}, Redis: {redis:?}"))
    }

    /// Sets the clocks. The key expires as it would on a server whose clock shows these times. The clock is set back
    /// only if Redis has written the key's time, which it does not do for calls that charge nothing.
    fn advance(&mut self, random: &mut Random, side: &mut Connection) {
        let Calls { period, max_cost, .. } = *self.calls;
        let next = random.reading_after(self.micros, period, period / max_cost.max(8) * 4 + 2);
        let is_time_written = self.kept.as_ref().is_some_and(|kept| kept.written_at >= self.micros);
        self.micros = if is_time_written { next } else { next.max(self.micros) };
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

    /// Looks at what Redis keeps, and for how long. The states of several tiers end at different times.
    fn observe(&mut self, side: &mut Connection) {
        let name = self.name();
        let Reply::Text(value) = side.call(&["GET", &name]) else {
            self.kept = None;
            return;
        };
        if self.kept.as_ref().is_none_or(|kept| kept.value != value) {
            let ttl: u64 = side.call(&["GET", &format!("ttl:{name}")]).text().parse().unwrap();
            let reset = self.memory.peek_n(&*self.key, 0).reset_after();
            let least = (reset.as_nanos() as u64).div_ceil(1_000_000);
            assert!(
                !self.calls.tiers.is_empty() || (least..=least + 3).contains(&ttl),
                "{:?}: {ttl} ms for {reset:?}, {}",
                self.calls.algorithm,
                value.escape_ascii()
            );
            let (written_at, expires_at) = (self.micros, self.micros + ttl * 1_000);
            self.kept = Some(Kept { value, written_at, expires_at });
        }
    }
}

/// Makes `runs` random runs of calls. Panics if a decision in Redis differs from that in memory.
fn compare<A: StoredAlgorithm>(calls: &Calls<A>, runs: u64) {
    let server = RedisServer::start();
    let mut side = server.connect();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let time: &AtomicU64 = Box::leak(Box::default());
    let (mut allowed, mut denied, mut settled) = (0, 0, 0);
    let mut differences = Vec::new();
    for run in 0..runs {
        let random = &mut Random(0x9e37_79b9_7f4a_7c15 ^ (run << 17));
        let clock = ManualClock::new();
        let max_debt = [u64::MAX, 5, 0][run as usize / 2 % 3];
        let memory = RateLimiter::builder(calls.algorithm.clone()).max_debt(max_debt).clock(clock.clone());
        let url = ::redis::Client::open(server.url()).unwrap();
        let client = Client::new(Server::At(url.into(), ""), Duration::from_secs(10));
        let store =
            RedisStoreBuilder::over(client, TimeSource::Passed(time)).deadline(Duration::from_secs(60));
        let store = super::settings(calls.scripts, Duration::ZERO)(store).connect_lazily().unwrap();
        let redis = store.limiter("test", calls.algorithm.clone()).max_debt(max_debt);
        let mut both = Both {
            calls,
            settles: run % 2 == 1,
            memory: memory.build(),
            clock,
            redis: redis.build().unwrap(),
            time,
            runtime: &runtime,
            key: format!("run-{run}"),
            unsettled: Vec::new(),
            micros: START,
            latest: START,
            kept: None,
        };
        let mut log = String::new();
        for _ in 0..60 {
            both.advance(random, &mut side);
            let count = if random.below(4) == 0 { random.below(6) + 1 } else { 1 };
            let mut batch = Vec::new();
            for _ in 0..count {
                let call = both.random_call(random);
                // A batch changes only once which calls are unsettled, because the places of others would change.
                if !(call.moves_places() && batch.iter().any(Call::moves_places)) {
                    batch.push(call);
                }
            }
            settled += batch.iter().filter(|call| call.kind == Kind::Settle).count();
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
    assert!(settled as u64 > runs, "{settled} settled");
}

fn one<A: StoredAlgorithm>(algorithm: A, period: u64, max_cost: u64) -> Calls<A> {
    Calls { algorithm, tiers: Vec::new(), scripts: true, period, max_cost }
}

fn by_swaps<A: StoredAlgorithm>(algorithm: A, period: u64, max_cost: u64) -> Calls<A> {
    Calls { scripts: false, ..one(algorithm, period, max_cost) }
}

/// Returns calls that choose between six tiers, which differ in their limits, bursts and periods.
fn tiered<A: StoredAlgorithm + PartialEq>(make: impl Fn(Quota) -> A) -> Calls<Tiered<A>> {
    let quota = |limit, seconds, burst| Quota::per(limit, Duration::from_secs(seconds)).unwrap().burst(burst);
    let quotas =
        [quota(7, 60, 4), quota(100, 60, 30), quota(5, 1, 5), quota(10, 3_600, 10), quota(13, 77, 13)];
    let tiers = quotas.map(|quota| Tiered::new(make(quota))).to_vec();
    Calls { tiers, ..one(Tiered::new(make(quota(20, 600, 15))), MINUTE, 12) }
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

fn bucket(quota: Quota) -> TokenBucket {
    TokenBucket::new(quota)
}

fn leaky(quota: Quota) -> LeakyBucket {
    LeakyBucket::new(quota).queue(0)
}

fn aligned(quota: Quota) -> FixedWindow {
    FixedWindow::new(quota).aligned()
}

fn pair(quota: Quota) -> (TokenBucket, FixedWindow) {
    (bucket(quota), FixedWindow::new(Quota::per_minute(quota.limit() + 3)))
}

fn lockout(quota: Quota) -> Lockout<FixedWindow> {
    FixedWindow::new(quota).block_for(Duration::from_secs(20)).after(3)
}

fn bursty(quota: Quota) -> Smooth {
    Smooth::bursty(quota).queue(0)
}

fn warming_up(quota: Quota) -> Smooth {
    Smooth::warming_up(quota, Duration::from_secs(30)).queue(0)
}

/// Returns a bursty limiter, or one that warms up.
fn either(quota: Quota) -> Smooth {
    if quota.limit().is_multiple_of(2) { bursty(quota) } else { warming_up(quota) }
}

fn nanos(limit: u64, nanos: u64) -> Quota {
    Quota::per(limit, Duration::from_nanos(nanos)).unwrap()
}

const SEVEN: Quota = Quota::per_minute(7);
const TEN: Quota = Quota::per_minute(10);

compared! {
    scripts_of_a_token_bucket, one(bucket(SEVEN.burst(4)), MINUTE, 4);
    scripts_of_a_leaky_bucket, one(leaky(SEVEN), MINUTE, 3);
    scripts_of_a_fixed_window, one(FixedWindow::new(TEN), MINUTE, 10);
    scripts_of_an_aligned_window, one(aligned(Quota::per_second(10)), SECOND, 10);
    scripts_of_a_sliding_counter, one(SlidingCounter::new(TEN), MINUTE, 10);
    scripts_of_a_sliding_window, one(SlidingWindow::new(TEN), MINUTE, 10);
    scripts_of_a_pair, one(pair(Quota::per_second(10)), 5 * SECOND, 12);

    swaps_of_a_token_bucket, by_swaps(bucket(SEVEN.burst(4)), MINUTE, 4);
    swaps_of_a_token_bucket_of_odd_nanoseconds, one(bucket(nanos(3, 7_777_777)), 7_777, 3);
    swaps_of_a_leaky_bucket, by_swaps(leaky(SEVEN), MINUTE, 3);
    swaps_of_a_fixed_window, by_swaps(FixedWindow::new(TEN), MINUTE, 10);
    swaps_of_a_window_of_odd_nanoseconds, one(FixedWindow::new(nanos(5, 9_999_999)), 9_999, 5);
    swaps_of_a_sliding_counter, by_swaps(SlidingCounter::new(TEN), MINUTE, 10);
    swaps_of_a_sliding_window, by_swaps(SlidingWindow::new(TEN).slices(4), MINUTE, 10);
    swaps_of_a_sliding_log, one(SlidingLog::new(TEN), MINUTE, 10);
    swaps_of_a_bursty_limiter, one(bursty(SEVEN), MINUTE, 3);
    swaps_of_a_limiter_that_warms_up, one(warming_up(SEVEN), MINUTE, 3);
    swaps_of_a_pair, by_swaps(pair(SEVEN), MINUTE, 7);
    swaps_of_a_lockout, one(lockout(SEVEN), MINUTE, 7);
    swaps_of_a_lockout_of_a_bucket, one(bucket(SEVEN).block_for(Duration::from_secs(20)).after(3), MINUTE, 4);

    tiers_of_a_token_bucket, tiered(bucket);
    tiers_of_a_leaky_bucket, tiered(leaky);
    tiers_of_a_fixed_window, tiered(FixedWindow::new);
    tiers_of_an_aligned_window, tiered(aligned);
    tiers_of_a_sliding_counter, tiered(SlidingCounter::new);
    tiers_of_a_sliding_window, tiered(SlidingWindow::new);
    tiers_of_a_sliding_log, tiered(SlidingLog::new);
    tiers_of_a_bursty_limiter, tiered(bursty);
    tiers_of_a_limiter_that_warms_up, tiered(warming_up);
    tiers_of_both_kinds_of_smooth_limiters, tiered(either);
    tiers_of_a_pair, tiered(pair);
    tiers_of_a_lockout, tiered(lockout);
}
