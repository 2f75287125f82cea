use super::*;
use crate::frame::NEWER;
use crate::tests::{value, values_of_others};
use std::time::Duration;
use tower_throttle::Quota;
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, QueueOverflow, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};

const MINUTE: u64 = 60_000_000_000;
const NOW: Nanos = Nanos(30_000_000 * MINUTE);

fn plan<A: StoredAlgorithm>(algorithm: A) -> Arc<Plan<A>> {
    Plan::new(algorithm, TimeSource::Server, true).unwrap()
}

fn encode<A: StoredAlgorithm>(plan: &Plan<A>, state: &A::State, now: Nanos) -> Vec<u8> {
    States::new(state.clone()).write(plan, now).unwrap_or_default()
}

/// Writes and reads the state after each of several calls, and compares the decisions of both states.
fn survives<A: StoredAlgorithm>(algorithm: A) {
    let plan = plan(algorithm.clone());
    let mut state = algorithm.new_state(Nanos::ZERO, NOW);
    for (step, cost) in [3, 1, 2, 5, 1, 1, 1, 2, 100, 1].into_iter().enumerate() {
        let now = Nanos(NOW.0 + (step as u64).pow(3) * 77_777_000);
        let _ = algorithm.check(&mut state, now, cost);
        let value = encode(&plan, &state, now);
        let mut read = plan.decode(&value, now).unwrap().own;
        for later in [0, 1_000, MINUTE / 7 / 1_000 * 1_000, MINUTE, 3 * MINUTE] {
            for cost in [0, 1, 3] {
                let at = Nanos(now.0 + later);
                let (a, b) =
                    (algorithm.peek(&mut state.clone(), at, cost), algorithm.peek(&mut read, at, cost));
                assert_eq!(format!("{a:?}"), format!("{b:?}"), "{}", value.escape_ascii());
                read = plan.decode(&value, now).unwrap().own;
            }
        }
        assert_eq!(encode(&plan, &read, now), value);
    }
}

#[test]
fn every_state_survives_as_bytes() {
    let quota = Quota::per_minute(7);
    survives(TokenBucket::new(quota.burst(4)));
    survives(LeakyBucket::new(quota));
    survives(FixedWindow::new(quota));
    survives(FixedWindow::new(quota).aligned());
    survives(SlidingWindow::new(quota));
    survives(SlidingWindow::new(quota).slices(7));
    survives(SlidingCounter::new(quota));
    survives(SlidingLog::new(quota));
    survives(Smooth::bursty(quota));
    survives(Smooth::warming_up(quota, Duration::from_secs(3)));
    survives((TokenBucket::new(quota), (FixedWindow::new(quota), SlidingLog::new(quota))));
    survives(TokenBucket::new(quota).block_for(Duration::from_secs(90)).after(2));
    survives(Tiered::new(TokenBucket::new(quota)));
    survives(
        Tiered::new((FixedWindow::new(quota), SlidingCounter::new(quota)))
            .block_for(Duration::from_secs(1))
            .after(1),
    );
}

#[test]
fn tiers_survive_with_their_units() {
    let (free, paid) =
        (TokenBucket::new(Quota::per_minute(10)), TokenBucket::new(Quota::per_minute(100)).queue(3));
    let (free, paid) = (Tiered::new(free), Tiered::new(paid));
    let plan = plan(free.clone());
    let mut value = Vec::new();
    for (tier, remaining) in [(&free, 9), (&paid, 98), (&free, 7), (&paid, 96), (&paid, 95)] {
        let mut state = plan.decode(&value, NOW).unwrap().own;
        tier.adopt(&mut state);
        assert_eq!(tier.check(&mut state, NOW, 1).remaining(), remaining, "{}", value.escape_ascii());
        value = encode(&plan, &state, NOW);
    }
    let shown = value.escape_ascii().to_string();
    assert_eq!(shown.matches("t:").count(), 3, "one in the unit, and two tiers: {shown}");
}

#[test]
fn another_quota_reads_the_units_and_gives_nothing_back() {
    let (large, small) = (Quota::per_minute(1_000).burst(100), Quota::per_minute(1).burst(100));
    let (from, to) = (plan(TokenBucket::new(large)), plan(TokenBucket::new(small)));
    let mut state = from.decode(b"", NOW).unwrap();
    assert!(from.algorithm.check(&mut state.own, NOW, 100).is_allowed());
    let value = state.write(&from, NOW).unwrap();
    let mut state = to.decode(&value, NOW).unwrap();
    assert_eq!(to.algorithm.peek(&mut state.own, NOW, 1).remaining(), 0);
    let back = from.decode(&state.write(&to, NOW).unwrap(), NOW);
    assert_eq!(from.algorithm.peek(&mut back.unwrap().own, NOW, 1).remaining(), 0);
}

#[test]
fn what_is_no_state_is_foreign() {
    let plan = plan(FixedWindow::new(Quota::per_minute(5)));
    let unit = "f:5/60000000000";
    // A key in debt counts above the limit, by up to 2^53 units.
    for count in [3, (1 << 53) + 5] {
        assert!(plan.decode(&value(unit, &[1_700_000_000_000_000, 1_000, count]), NOW).is_ok());
    }
    for bad in values_of_others(MINUTE) {
        let error = plan.decode(&bad, NOW).unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Foreign, "{}", bad.escape_ascii());
        let is_newer = bad[0] == 2;
        assert_eq!(error.to_string().contains("newer release"), is_newer, "{error}");
    }
}

#[test]
fn the_error_of_a_newer_version_says_what_to_do() {
    let plan = plan(FixedWindow::new(Quota::per_minute(5)));
    // A later release may change everything after the version.
    for newer in [&[2][..], &[2, 0, 0, 0, 0, 0, 0, 0, b'\n'], &[31; 100]] {
        let text = plan.decode(newer, NOW).unwrap_err().to_string();
        let version = format!("(the value has version {})", newer[0]);
        assert!(text.starts_with(NEWER) && text.ends_with(&version), "{text}");
    }
}

#[test]
fn long_logs_cannot_be_kept() {
    let log = SlidingLog::new(Quota::per_minute(101));
    let error =
        Plan::new((log, FixedWindow::new(Quota::per_minute(1))), TimeSource::Server, true).unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Algorithm);
    assert!(error.to_string().contains("SlidingWindow"), "{error}");
}

/// What the table on the front page has as "no": `build` says why, and what to take.
#[tokio::test]
async fn what_redis_cannot_keep_is_not_built_and_the_error_says_what_to_change() {
    let store = crate::store::RedisStore::builder("redis://127.0.0.1:1").connect_lazily().unwrap();
    let quota = Quota::per_minute(101);
    let bucket = || TokenBucket::new(quota).queue(5);
    let errors = [
        store.limiter("a", SlidingLog::new(quota)).build().map(drop),
        store.limiter("b", SlidingWindow::new(quota).priority(20)).build().map(drop),
        store
            .limiter("c", TokenBucket::new(Quota::per(u64::MAX, Duration::from_secs(1)).unwrap()))
            .build()
            .map(drop),
        store.limiter("d", LeakyBucket::new(quota).overflow(QueueOverflow::DropOldest)).build().map(drop),
        store.limiter("e", bucket().overflow(QueueOverflow::DropOldest)).lease(2).build().map(drop),
    ];
    let texts = errors.map(|error| error.unwrap_err().to_string());
    let changes = [
        "take a SlidingWindow",
        "remove `.priority(..)`",
        "give a lower rate",
        "remove `.overflow(..)`",
        "remove `.overflow(..)`",
    ];
    for (text, change) in texts.iter().zip(changes) {
        assert!(text.contains(change), "{text}");
    }
    let limiter = store.limiter("f", bucket()).build().unwrap();
    limiter.replace(bucket().overflow(QueueOverflow::DropOldest));
    assert_eq!(limiter.algorithm(), bucket());
    assert!(store.limiter("a", SlidingLog::new(Quota::per_minute(100))).build().is_ok());
}

#[test]
fn a_window_with_priority_is_refused_wherever_it_is() {
    fn refused<A: StoredAlgorithm>(algorithm: A) {
        let Err(error) = Plan::new(algorithm, TimeSource::Server, true) else { panic!("it was planned") };
        assert_eq!(error.kind(), RedisErrorKind::Algorithm);
        assert!(error.to_string().contains("remove `.priority(..)`"), "{error}");
    }
    let quota = Quota::per_minute(10);
    refused(FixedWindow::new(quota).priority(20));
    refused(SlidingWindow::new(quota).priority(20));
    refused(SlidingCounter::new(quota).priority(0));
    refused(SlidingLog::new(quota).priority(100));
    refused((TokenBucket::new(quota), FixedWindow::new(quota).priority(20)));
    refused(Tiered::new(FixedWindow::new(quota).priority(20)));
    refused(FixedWindow::new(quota).priority(20).block_for(Duration::from_secs(1)).after(1));
    let _ = plan(FixedWindow::new(quota).queue(20));
}

const MICRO: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
const START: Nanos = Nanos(1_700_000_000 * SECOND);

/// A key in Redis, and one machine for each quota.
struct Machines<A: StoredAlgorithm> {
    plans: Vec<Arc<Plan<A>>>,
    value: Vec<u8>,
    now: Nanos,
}

impl<A: StoredAlgorithm> Machines<A> {
    fn new(algorithms: impl IntoIterator<Item = A>) -> Self {
        let plan = |algorithm| Plan::new(algorithm, TimeSource::Server, true).unwrap();
        let plans = algorithms.into_iter().map(plan).collect();
        Self { plans, value: Vec::new(), now: START }
    }

    /// Makes a call at one machine, by compare-and-set.
    fn call(&mut self, machine: usize, action: Action, cost: u64) -> Outcome {
        let plan = &self.plans[machine];
        let mut states = plan.decode(&self.value, self.now).unwrap();
        let call = Operation::new(action, cost, None);
        let (outcome, changed) = states.apply(plan, &call, self.now);
        if changed {
            self.value = states.write(plan, self.now).unwrap_or_default();
        }
        outcome
    }

    fn shown(&self) -> String {
        self.value.escape_ascii().to_string()
    }

    fn admits(&mut self, machine: usize, cost: u64) -> bool {
        self.call(machine, Action::Check, cost).decision.is_allowed()
    }
}

#[test]
fn what_the_smaller_quota_cannot_hold_is_not_lost() {
    let bucket = |burst| TokenBucket::new(Quota::per_hour(3_600).burst(burst)).queue(5);
    for action in [Action::Refund, Action::ChargeMore(0), Action::Reserve(u64::MAX)] {
        let mut machines = Machines::new([bucket(100), bucket(10)]);
        assert!(machines.admits(0, 100));
        machines.call(1, action, 1);
        let left = machines.call(0, Action::Peek, 1).decision.remaining();
        assert_eq!(left, 0, "{action:?}: {left} of 100");
    }
}

/// The smaller quota could not be charged all units of the call, and is not given back what others were charged.
#[test]
fn what_is_given_back_is_given_back_to_the_quota_of_the_machine_only() {
    let bucket = |burst| TokenBucket::new(Quota::per_hour(1).burst(burst)).queue(5);
    for charge in [Action::Check, Action::Reserve(0)] {
        let mut machines = Machines::new([bucket(100), bucket(10)]);
        assert!(machines.admits(1, 1));
        let charged = machines.call(0, charge, 50);
        let undo = match charged.mark {
            Some(mark) => vec![Action::GiveBack(mark)],
            None => vec![
                Action::Refund,
                Action::Undo(charged.charged_at),
                Action::RefundSettled(charged.charged_at, 50),
            ],
        };
        let value = machines.value.clone();
        for action in undo {
            machines.value.clone_from(&value);
            machines.call(0, action, 50);
            let [own, other] = [0, 1].map(|machine| machines.call(machine, Action::Peek, 1).decision);
            assert_eq!((own.remaining(), other.remaining()), (99, 0), "{action:?}");
        }
    }
}

#[test]
fn a_window_that_ends_sooner_does_not_end_the_other() {
    let window = |limit, seconds| FixedWindow::new(Quota::per(limit, Duration::from_secs(seconds)).unwrap());
    let mut machines = Machines::new([window(100, 3_600), window(10, 60)]);
    assert!(machines.admits(0, 95));
    machines.now.0 += 61 * SECOND;
    assert!(machines.admits(1, 3));
    assert!(!machines.admits(0, 3) && machines.admits(0, 2), "{}", machines.shown());
}

#[test]
fn a_quota_that_is_no_longer_used_is_dropped() {
    let window = |limit| FixedWindow::new(Quota::per_minute(limit));
    let mut machines = Machines::new([window(100), window(10)]);
    assert!(machines.admits(0, 1));
    machines.now.0 += 30 * SECOND;
    assert!(machines.admits(1, 1));
    assert!(machines.shown().contains("f:100/60000000000\\x00"), "{}", machines.shown());
    let plan = Arc::clone(&machines.plans[1]);
    let mut states = plan.decode(&machines.value, machines.now).unwrap();
    assert!((30_000..=30_002).contains(&states.time_to_live(&plan.algorithm, machines.now)));
    machines.now.0 += 30 * SECOND;
    assert!(machines.admits(1, 1));
    assert!(!machines.shown().contains("f:100/60000000000"), "{}", machines.shown());
}

/// Makes random calls at two machines. Neither machine may admit a call that the larger quota would deny if it
/// decided all calls alone.
fn never_above_the_larger_quota<A: StoredAlgorithm>(larger: A, smaller: A, max_cost: u64) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % limit
    };
    let mut machines = Machines::new([larger.clone(), smaller]);
    let mut exact = larger.new_state(Nanos::ZERO, START);
    let mut admitted = [0_u64; 2];
    for call in 0..20_000 {
        // At times, only one of the machines makes calls.
        let machine = match call / 500 % 4 {
            0 => 0,
            1 => 1,
            _ => below(2) as usize,
        };
        let step = match below(12) {
            0..2 => 0,
            2..8 => below(100_000),
            8..11 => below(2_000_000),
            _ => below(70_000_000),
        };
        machines.now.0 += MICRO * step;
        let cost = 1 + below(max_cost);
        if machines.admits(machine, cost) {
            let is_allowed = larger.check(&mut exact, machines.now, cost).is_allowed();
            assert!(is_allowed, "call {call} of {larger:?} at machine {machine}: {}", machines.shown());
            admitted[machine] += 1;
        }
    }
    assert!(admitted.iter().all(|admitted| *admitted > 500), "{admitted:?}");
}

#[test]
fn machines_with_two_quotas_admit_no_more_than_the_larger() {
    let (large, small) = (Quota::per_minute(100), Quota::per_minute(10));
    never_above_the_larger_quota(TokenBucket::new(large), TokenBucket::new(small), 3);
    never_above_the_larger_quota(TokenBucket::new(large), TokenBucket::new(large.burst(10)), 3);
    never_above_the_larger_quota(FixedWindow::new(large), FixedWindow::new(small), 3);
    never_above_the_larger_quota(SlidingWindow::new(large), SlidingWindow::new(small), 3);
    never_above_the_larger_quota(SlidingCounter::new(large), SlidingCounter::new(small), 3);
    never_above_the_larger_quota(SlidingLog::new(large), SlidingLog::new(small), 3);
    never_above_the_larger_quota(LeakyBucket::new(large), LeakyBucket::new(small), 1);
}

/// A call of ten has its slot after 10 ms. The process asks 5 ms later.
fn gives_back_what_was_not_refilled_since_the_slot<A: StoredAlgorithm>(algorithm: A) {
    let plan = plan(algorithm);
    for is_settled in [false, true] {
        let mut states = plan.decode(b"", NOW).unwrap();
        let mut apply = |operation: &Operation<A>, millis: u64| {
            states.apply(&plan, operation, Nanos(NOW.0 + millis * 1_000_000)).0
        };
        let check = Operation::new(Action::Check, 10, None);
        let queued = check.clone().queueing(&plan, 1_000_000_000, Some(15_000_000));
        assert!(apply(&check, 0).decision().is_allowed());
        let outcome = apply(&queued, 15);
        // All ten are refilled, and taken again.
        for call in [outcome, apply(&check, 20)] {
            assert!(call.decision().is_allowed());
        }
        let back = if is_settled { queued.settled(&outcome, 0, 1) } else { queued.undone(&outcome) };
        assert_eq!(apply(&back.unwrap(), 20).decision().remaining(), 0, "{plan:?}");
    }
}

#[test]
fn a_call_that_was_queued_gives_back_no_units_that_were_refilled_since_its_slot() {
    let bucket = TokenBucket::new(Quota::per_second(1_000).burst(10)).queue(5);
    gives_back_what_was_not_refilled_since_the_slot(Tiered::new(bucket.clone()));
    gives_back_what_was_not_refilled_since_the_slot(bucket.block_for(Duration::from_secs(1)).after(1_000));
}
