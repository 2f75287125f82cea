//! A full key table: floods of invented keys, more honest callers than the table has room for, and the effect of each
//! treatment of a full table.

use std::collections::VecDeque;
use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::store::{OnFull, Permit};
use tower_throttle::{Decision, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{PolledByHand, Random, scaled};

const MAX_KEYS: usize = 10_000;
/// The number of keys per place in the table, as in the attack that was measured, with 370,000 keys and 100,000 places.
const INVENTED: u64 = 37_000;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

fn daily() -> Quota {
    Quota::per_day(1_000)
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_minute(100).burst(20))
}

/// A limiter, a clock, and the calls in progress.
struct Scene<A: Algorithm> {
    limiter: RateLimiter<A>,
    clock: ManualClock,
    now: Duration,
    in_progress: VecDeque<(Duration, Permit)>,
}

impl<A: Algorithm> Scene<A> {
    fn new(algorithm: &A, on_full: Option<OnFull>) -> Self {
        let clock = ManualClock::new();
        let builder = RateLimiter::builder(algorithm.clone()).clock(clock.clone()).max_keys(MAX_KEYS);
        let limiter = match on_full {
            Some(on_full) => builder.on_full(on_full).build(),
            None => builder.build(),
        };
        Self { limiter, clock, now: Duration::ZERO, in_progress: VecDeque::new() }
    }

    /// Ends the calls in progress that were admitted a second ago.
    fn advance(&mut self, duration: Duration) {
        self.now += duration;
        self.clock.advance(duration);
        while self.in_progress.front().is_some_and(|(end, _)| *end <= self.now) {
            self.in_progress.pop_front();
        }
    }

    /// Makes a call that lasts a second. Returns whether the call is admitted.
    fn call(&mut self, key: u64) -> bool {
        assert!(self.limiter.len() <= MAX_KEYS);
        if !A::NEEDS_RELEASE {
            return self.limiter.check(&key).is_allowed();
        }
        match self.limiter.try_acquire_permit(&key) {
            Ok(permit) => {
                self.in_progress.push_back((self.now + SECOND, permit));
                true
            }
            Err(_) => false,
        }
    }
}

/// The number of calls, and the number of denied calls.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    calls: u64,
    refused: u64,
}

impl Count {
    fn add(&mut self, admitted: bool) {
        self.calls += 1;
        self.refused += u64::from(!admitted);
    }

    fn percent(self) -> f64 {
        100.0 * self.refused as f64 / self.calls as f64
    }

    fn assert_below(self, percent: u64, what: &str) {
        assert!(self.refused * 100 <= self.calls * percent, "{what}: {self:?}");
    }
}

/// The effect of a flood on callers.
#[derive(Clone, Copy, Debug, Default)]
struct Flooded {
    newcomers: Count,
    half_an_hour_later: Count,
    /// The number of admitted calls of a caller that calls at ten times its limit, and this number without the flood.
    abuser: (u64, u64),
}

const ABUSER: u64 = 1;
const NEWCOMERS: u64 = 1_000_000;
const LATER: u64 = 2_000_000;
const INVENTED_KEYS: u64 = 10_000_000;

/// Makes calls for invented keys, `requests` calls for each key, within 5.6 s. At the same time, a thousand new callers
/// make five calls each, one a second, and another caller calls at ten times its limit.
fn flood<A: Algorithm>(algorithm: &A, on_full: Option<OnFull>, requests: u64) -> Flooded {
    // The pause is a little longer than a second, so that the last call of a new caller has ended when the next one is
    // made.
    const PAUSE: u64 = 7_000;
    const EVERY: u64 = INVENTED / 1_000;
    let (mut scene, mut quiet) = (Scene::new(algorithm, on_full), Scene::new(algorithm, None));
    let (mut seen, step) = (Flooded::default(), Duration::from_millis(5_600) / INVENTED as u32);
    let abuse = 10 * algorithm.policy().quota;
    let mut abused = 0;
    for at in 0..INVENTED + 5 * PAUSE {
        scene.advance(step);
        quiet.advance(step);
        if at < INVENTED {
            for _ in 0..requests {
                let _ = scene.call(INVENTED_KEYS + at);
            }
            while abused * INVENTED < abuse * (at + 1) {
                abused += 1;
                seen.abuser.0 += u64::from(scene.call(ABUSER));
                seen.abuser.1 += u64::from(quiet.call(ABUSER));
            }
        }
        for pause in 0..5 {
            let start = at.checked_sub(pause * PAUSE);
            if let Some(start) = start.filter(|start| *start < INVENTED && start % EVERY == 0) {
                seen.newcomers.add(scene.call(NEWCOMERS + start));
            }
        }
    }
    scene.advance(30 * MINUTE);
    for _ in 0..5 {
        for newcomer in 0..1_000 {
            seen.half_an_hour_later.add(scene.call(LATER + newcomer));
        }
        scene.advance(2 * SECOND);
    }
    seen
}

fn assert_withstands_a_flood<A: Algorithm>(algorithm: &A, requests: u64) {
    let seen = flood(algorithm, None, requests);
    let what = format!("{algorithm:?}, {requests} requests for each key");
    seen.newcomers.assert_below(2, &format!("during the flood, {what}"));
    seen.half_an_hour_later.assert_below(1, &format!("half an hour later, {what}"));
    let (admitted, quota) = seen.abuser;
    assert!(quota > 0 && admitted * 10 <= quota * 11, "{admitted} of {quota}: {what}");
}

#[test]
fn a_flood_of_keys_locks_no_new_caller_out() {
    assert_withstands_a_flood(&bucket(), 1);
    assert_withstands_a_flood(&LeakyBucket::new(Quota::per_minute(100)), 1);
    assert_withstands_a_flood(&Concurrency::per_key(2), 1);
}

#[test]
fn a_flood_of_keys_locks_no_new_caller_out_of_a_window() {
    for quota in [daily(), Quota::per_minute(100)] {
        assert_withstands_a_flood(&FixedWindow::new(quota), 1);
        assert_withstands_a_flood(&SlidingWindow::new(quota), 1);
        assert_withstands_a_flood(&SlidingCounter::new(quota), 1);
        assert_withstands_a_flood(&SlidingLog::new(quota), 1);
    }
}

#[test]
fn a_flood_of_keys_that_are_used_up_locks_no_new_caller_out() {
    assert_withstands_a_flood(&bucket(), 21);
    assert_withstands_a_flood(&FixedWindow::new(Quota::per_day(5)), 6);
    assert_withstands_a_flood(&SlidingCounter::new(Quota::per_minute(5)), 6);
    assert_withstands_a_flood(&SlidingWindow::new(Quota::per_day(5)), 6);
}

#[test]
fn a_flood_of_keys_locks_no_new_caller_out_where_denials_lock_out() {
    let hour = 60 * MINUTE;
    let logins = FixedWindow::new(Quota::per_minute(5)).block_for(hour).after(10);
    assert_withstands_a_flood(&logins, 1);
    // Each invented key is locked out.
    assert_withstands_a_flood(&logins, 15);
    assert_withstands_a_flood(&bucket().block_for(hour).after(10), 1);
    assert_withstands_a_flood(&SlidingLog::new(daily()).block_for(hour).after(1), 1);
    assert_withstands_a_flood(&Concurrency::per_key(2).block_for(hour).after(10), 1);
    assert_withstands_a_flood(&(bucket(), FixedWindow::new(daily())), 1);
}

/// Simulates several callers per place in the table. Each caller makes 50 calls in `time` (at full size), and each
/// round has another order.
fn honest_callers<A: Algorithm>(
    algorithm: &A,
    on_full: Option<OnFull>,
    callers: u64,
    time: Duration,
) -> Count {
    let mut scene = Scene::new(algorithm, on_full);
    let mut random = Random::new(callers);
    let mut order: Vec<u64> = (0..callers).collect();
    let step = time / (50 * callers) as u32;
    let mut count = Count::default();
    for _ in 0..scaled(50) {
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        for key in &order {
            scene.advance(step);
            count.add(scene.call(*key));
        }
    }
    count
}

fn assert_serves_honest_callers<A: Algorithm>(algorithm: &A, time: Duration) {
    for callers in [MAX_KEYS as u64 * 3 / 2, MAX_KEYS as u64 * 3] {
        let count = honest_callers(algorithm, None, callers, time);
        count.assert_below(1, &format!("{callers} callers, {algorithm:?}"));
    }
}

#[test]
fn more_honest_callers_than_slots_are_served_by_a_daily_window() {
    assert_serves_honest_callers(&FixedWindow::new(daily()), DAY);
}

#[test]
fn more_honest_callers_than_slots_are_served_by_a_sliding_counter() {
    assert_serves_honest_callers(&SlidingCounter::new(Quota::per_minute(100)), MINUTE);
}

#[test]
fn more_honest_callers_than_slots_are_served_by_a_bucket() {
    assert_serves_honest_callers(&bucket(), MINUTE);
}

#[test]
fn more_honest_callers_than_slots_are_served_where_calls_in_progress_are_limited() {
    assert_serves_honest_callers(&Concurrency::per_key(2), 10 * MINUTE);
}

#[test]
fn more_honest_callers_than_slots_are_served_where_denials_lock_out() {
    assert_serves_honest_callers(&FixedWindow::new(daily()).block_for(60 * MINUTE).after(10), DAY);
}

/// All keys are equally used. A key that keeps calling stays limited, and a key that makes no calls gets its quota once
/// more.
#[test]
fn under_a_limit_of_one_a_key_is_admitted_at_most_twice_in_a_flood() {
    let clock = ManualClock::new();
    let limiter = |on_full| {
        let builder = RateLimiter::builder(FixedWindow::new(Quota::per_hour(1))).clock(clock.clone());
        builder.max_keys(MAX_KEYS).on_full(on_full).build()
    };
    for seed in 0..3 {
        let table = limiter(OnFull::EvictLeastUsed);
        let (mut calling, mut silent) = (0, u64::from(table.check(&2_u64).is_allowed()));
        for key in 0..INVENTED {
            clock.advance(SECOND / 10_000);
            if key % (MAX_KEYS as u64 / 4) == 0 {
                calling += u64::from(table.check(&1_u64).is_allowed());
            }
            assert!(table.check(&(INVENTED_KEYS * (seed + 1) + key)).is_allowed(), "no key is locked out");
        }
        silent += u64::from(table.check(&2_u64).is_allowed());
        assert!(calling <= 2 && silent <= 2, "{calling} and {silent}");
        assert!(table.stats().store.evicted_at_limit >= INVENTED - MAX_KEYS as u64, "{:?}", table.stats());
    }
    // This treatment is for limits where one more quota is too much.
    let table = limiter(OnFull::Reject);
    assert!(table.check(&1_u64).is_allowed());
    let admitted = (0..INVENTED).filter(|key| table.check(&(INVENTED_KEYS + key)).is_allowed()).count();
    assert_eq!(admitted, MAX_KEYS - 1);
    assert!(!table.check(&1_u64).is_allowed() && !table.check(&1_u64).is_table_full());
    assert_eq!(table.stats().calls.table_full, INVENTED - MAX_KEYS as u64 + 1);
}

/// The least used keys are evicted first. Keys that are at their limits or locked out are not evicted.
#[test]
fn a_key_at_its_limit_is_not_evicted_while_less_used_ones_could_go() {
    let clock = ManualClock::new();
    let rule = FixedWindow::new(Quota::per_day(5)).block_for(DAY).after(3);
    let limiter = RateLimiter::builder(rule).clock(clock.clone()).max_keys(MAX_KEYS).build();
    let locked_out = |key: &u64| !limiter.peek(key).is_allowed();
    for key in 0..1_000_u64 {
        for _ in 0..5 + key % 2 * 3 {
            let _ = limiter.check(&key);
        }
    }
    clock.advance(SECOND);
    for key in 0..INVENTED {
        assert!(limiter.check(&(INVENTED_KEYS + key)).is_allowed());
    }
    assert_eq!((0..1_000_u64).filter(locked_out).count(), 1_000);
    assert_eq!(limiter.len(), MAX_KEYS);
    let stats = limiter.stats();
    assert_eq!(stats.store.evicted, INVENTED - (MAX_KEYS as u64 - 1_000));
    assert_eq!((stats.store.evicted_at_limit, stats.store.shared, stats.calls.table_full), (0, 0, 0));
}

#[test]
fn calls_in_progress_and_queued_calls_are_never_evicted() {
    let limiter =
        RateLimiter::builder(Concurrency::per_key(1).queue(9)).clock(ManualClock::new()).max_keys(10).build();
    let permits: Vec<_> = (0..10_u64).map(|key| limiter.try_acquire_permit(&key).unwrap()).collect();
    let mut queued = PolledByHand::new(limiter.acquire(&3_u64));
    assert!(!queued.poll());
    for key in 10..522_u64 {
        let denial = limiter.try_acquire_permit(&key).unwrap_err();
        assert_full(denial.decision());
        assert_full(&limiter.check(&key));
        assert!(limiter.check_n(&key, 0).is_allowed(), "a cost of 0 needs no room");
    }
    assert_eq!(limiter.stats().calls.table_full, 2 * 512);
    assert_eq!((limiter.stats().store.evicted, limiter.len()), (0, 10));
    drop(permits);
    assert!(queued.poll(), "the queued call has its permit");
    // Key 3 is in use. The 512 calls that were made while the table was full have no effect any more.
    let permits: Vec<_> = (10..19_u64).map(|key| limiter.try_acquire_permit(&key).unwrap()).collect();
    assert_full(limiter.try_acquire_permit(&19_u64).unwrap_err().decision());
    drop(permits);
    assert!((1_000..2_000_u64).all(|key| limiter.try_acquire_permit(&key).is_ok()));
}

fn assert_full(denial: &Decision) {
    assert!(!denial.is_allowed() && denial.is_table_full() && !denial.is_closed(), "{denial:?}");
    assert_eq!((denial.retry_after(), denial.remaining()), (None, denial.limit()), "it has used nothing");
}

/// A flood from one /48 is stopped by the limit of the /48, and takes no room from other keys.
#[test]
fn joined_limits_of_a_64_and_a_48_withstand_a_flood_from_one_48() {
    type Address = (u64, u64);
    let clock = ManualClock::new();
    let subnets = RateLimiter::builder(FixedWindow::new(daily())).clock(clock.clone()).max_keys(MAX_KEYS);
    let sites = RateLimiter::builder(FixedWindow::new(Quota::per_day(20_000))).clock(clock.clone());
    let (subnets, sites) = (subnets.build(), sites.max_keys(MAX_KEYS).build());
    let layer = RateLimitLayer::with_limiter(from_fn(|address: &Address| Some(*address)), subnets.clone())
        .and(RateLimitLayer::with_limiter(from_fn(|address: &Address| Some(address.0)), sites.clone()))
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(async |_: Address| Ok::<_, std::convert::Infallible>(())));
    let admitted = |address: Address| {
        let mut call = PolledByHand::new(service.clone().call(address));
        assert!(call.poll());
        call.output.unwrap().is_ok()
    };
    let mut honest = Count::default();
    for subnet in 0..65_536_u64 {
        let _ = admitted((1, subnet));
        if subnet % 65 == 0 {
            honest.add(admitted((1_000 + subnet, 0)));
        }
        assert!(subnets.len() <= MAX_KEYS && sites.len() <= MAX_KEYS);
    }
    honest.assert_below(0, "during the flood");
    let mut later = Count::default();
    (0..1_000).for_each(|site| later.add(admitted((100_000 + site, 0))));
    later.assert_below(0, "after the flood");
    // A call that the limit of the /48 denies evicts no key.
    assert!(subnets.stats().store.evicted <= 20_000 + honest.calls + later.calls - MAX_KEYS as u64 + 1);
    assert!(!admitted((1, 7)), "the limit of the /48 holds");
}

/// The keys of one call do not evict one another. If a call finds room for only some of its keys, no key is charged.
#[test]
fn joint_calls_find_room_for_all_their_keys_or_charge_none() {
    type Pair = (u64, u64);
    let clock = ManualClock::new();
    let rates = RateLimiter::builder(FixedWindow::new(Quota::per_day(5))).clock(clock.clone()).max_keys(2);
    let calls = RateLimiter::builder(Concurrency::per_key(1)).clock(clock.clone()).max_keys(1);
    let (rates, calls) = (rates.build(), calls.build());
    let rate = |which: fn(&Pair) -> u64| {
        RateLimitLayer::with_limiter(from_fn(move |pair: &Pair| Some(which(pair))), rates.clone())
    };
    let both = rate(|pair| pair.0).and(rate(|pair| pair.1)).responder(ErrorResponder);
    let service = both.layer(service_fn(async |_: Pair| Ok::<_, std::convert::Infallible>(())));
    let ask = |pair: Pair| {
        let mut call = PolledByHand::new(service.clone().call(pair));
        assert!(call.poll());
        call.output.unwrap()
    };
    for pair in [(1, 2), (3, 4), (3, 5), (6, 3), (3, 3)] {
        assert!(ask(pair).is_ok(), "{pair:?}");
        assert!(rates.len() <= 2);
    }
    assert_eq!(rates.peek(&3_u64).remaining(), 0, "it stayed in the table, and was charged five times");

    let limited = rate(|pair| pair.0)
        .and(RateLimitLayer::with_limiter(from_fn(|pair: &Pair| Some(pair.1)), calls.clone()))
        .responder(ErrorResponder);
    let service = limited.layer(service_fn(async |_: Pair| Ok::<_, std::convert::Infallible>(())));
    let permit = calls.try_acquire_permit(&7_u64).unwrap();
    let mut call = PolledByHand::new(service.clone().call((8, 9)));
    assert!(call.poll());
    match call.output.unwrap() {
        Err(tower_throttle::Error::Limited(denial)) => assert_full(&denial),
        other => panic!("{other:?}"),
    }
    assert_eq!(rates.peek(&8_u64).remaining(), 5, "nothing was charged");
    assert_eq!(calls.stats().calls.table_full, 1);
    drop(permit);
    let mut call = PolledByHand::new(service.clone().call((8, 9)));
    assert!(call.poll() && call.output.unwrap().is_ok());
}

/// Shared buckets are dropped when they are fresh. A lockout stays with the caller that caused it.
#[test]
fn shared_buckets_are_dropped_when_they_are_fresh_and_lock_no_key_out() {
    let clock = ManualClock::new();
    let rule = FixedWindow::new(Quota::per_minute(1)).block_for(60 * MINUTE).after(2);
    let builder = RateLimiter::builder(rule).clock(clock.clone()).max_keys(1);
    let limiter = builder.on_full(OnFull::ShareBuckets).build();
    for _ in 0..9 {
        let _ = limiter.check(&0_u64);
    }
    for key in 1..3_000_u64 {
        let _ = limiter.check(&key);
    }
    assert_eq!(limiter.stats().store.shared, 2_999);
    // The first key is locked out, and keeps its place in the table. The shared buckets are used up, but no other key
    // is locked out.
    assert_eq!(limiter.check(&0_u64).retry_after(), Some(60 * MINUTE));
    let denials = (1..3_000_u64).map(|key| limiter.check(&key));
    assert!(denials.into_iter().all(|denial| denial.retry_after() == Some(MINUTE)));
    clock.advance(MINUTE);
    let admitted = (3_000..3_010_u64).filter(|key| limiter.check(key).is_allowed()).count();
    assert!(admitted > 0, "the window has ended, and no key is locked out");
    // Key 0 and the shared buckets are fresh, so new keys get places of their own, and full budgets.
    clock.advance(120 * MINUTE);
    for key in 4_000..4_200_u64 {
        let _ = limiter.check_n(&key, 0);
    }
    let shared = limiter.stats().store.shared;
    assert!(limiter.check(&5_000_u64).is_allowed());
    assert_eq!(limiter.stats().store.shared, shared);
}

#[test]
fn a_table_that_was_never_full_counts_nothing() {
    let limiter = RateLimiter::builder(bucket()).clock(ManualClock::new()).max_keys(MAX_KEYS).build();
    assert!((0..MAX_KEYS).all(|key| limiter.check(&key).is_allowed()));
    let (store, calls) = (limiter.stats().store, limiter.stats().calls);
    assert_eq!((store.evicted, store.evicted_at_limit, store.shared, calls.table_full), (0, 0, 0, 0));
    assert_eq!((store.keys, calls.admitted), (MAX_KEYS as u64, MAX_KEYS as u64));
    let _ = limiter.check("one more");
    assert_eq!((limiter.stats().store.evicted, limiter.stats().store.evicted_at_limit), (1, 0));
}

/// Eight threads make calls for new keys with a full table. The table does not exceed its maximum, and no call is
/// denied for lack of room.
#[test]
fn the_bound_holds_under_eight_threads() {
    let limiter = RateLimiter::builder(FixedWindow::new(daily())).max_keys(100).build();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let limiter = &limiter;
            scope.spawn(move || {
                for key in 0..5_000 {
                    let decision = limiter.check(&(thread * 5_000 + key));
                    assert!(decision.is_allowed(), "{decision:?}");
                    assert!(limiter.len() <= 100);
                }
            });
        }
    });
    assert_eq!(limiter.len(), 100);
    assert_eq!(limiter.stats().store.evicted, 40_000 - 100);
}

/// Prints the table of figures in the guide. The command is `cargo test --test limiter -- --ignored --nocapture
/// figures_for_each_policy`.
#[test]
#[ignore = "prints the figures of the guide, on demand: see its comment"]
fn figures_for_each_policy() {
    fn print<A: Algorithm>(what: &str, algorithm: &A, requests: u64, time: Duration) {
        for on_full in [OnFull::EvictLeastUsed, OnFull::ShareBuckets, OnFull::Reject] {
            let seen = flood(algorithm, Some(on_full), requests);
            let honest = [3, 6]
                .map(|half| honest_callers(algorithm, Some(on_full), MAX_KEYS as u64 * half / 2, time))
                .map(Count::percent);
            println!(
                "| {what} | {requests} | {on_full:?} | {:.1} % | {:.1} % | {:.2} x | {:.1} % | {:.1} % |",
                seen.newcomers.percent(),
                seen.half_an_hour_later.percent(),
                seen.abuser.0 as f64 / seen.abuser.1 as f64,
                honest[0],
                honest[1],
            );
        }
    }
    print("TokenBucket 100/min, burst 20", &bucket(), 1, MINUTE);
    print("FixedWindow 1,000/day", &FixedWindow::new(daily()), 1, DAY);
    print("SlidingCounter 100/min", &SlidingCounter::new(Quota::per_minute(100)), 1, MINUTE);
    let logins = FixedWindow::new(Quota::per_minute(5)).block_for(60 * MINUTE).after(10);
    print("FixedWindow 5/min, block_for 1 h after 10", &logins, 1, 60 * MINUTE);
    print("FixedWindow 5/min, block_for 1 h after 10", &logins, 15, 60 * MINUTE);
    print("FixedWindow 5/day", &FixedWindow::new(Quota::per_day(5)), 6, 15 * DAY);
    print("Concurrency 2", &Concurrency::per_key(2), 1, 10 * MINUTE);
}
