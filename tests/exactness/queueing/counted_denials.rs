//! A call is judged once. So a lockout counts each denied call once, also if the call was queued or displaced before,
//! and counts no other call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_throttle::algorithm::*;
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::limiter::Attempt;
use tower_throttle::{Decision, Quota, RateLimiter};

use super::{SECOND, ns, quota};
use crate::support::calls::{Calls, InProgress, OfUnits, acquire};
use crate::support::{PolledByHand, Random, scaled};

/// The numbers of events that occurred, so that a test that tests nothing is noticed.
#[derive(Debug, Default)]
struct Seen {
    queued: u64,
    denied: u64,
    denied_later: u64,
    locked_out: u64,
}

/// Makes random calls until the key is locked out, and checks each step that the denied calls, and only these, were
/// counted. No counted denial expires in this time.
fn counts_denied_calls<C: Calls>(algorithm: impl Algorithm, random: &mut Random, seen: &mut Seen) {
    let denials = random.within(1..=12);
    let clock = ManualClock::new();
    let most = random.one_of(&[10_000, 10_000, 2]);
    let lockout = algorithm.block_for(ns(86_400 * SECOND)).after(denials);
    let limiter = RateLimiter::builder(lockout).clock(clock.clone()).max_queued(most).build();
    let mut calls = Vec::new();
    let (mut counted, mut held) = (0, Vec::new());
    let mut log = Vec::new();
    for _ in 0..60 {
        let cost = random.within(1..=2);
        let mut outputs = Vec::new();
        let op = random.below(16);
        match op {
            0..7 => {
                let max_wait = random.one_of(&[None, None, Some(0), Some(SECOND), Some(3 * SECOND)]);
                let attempt = Attempt::new(cost).with_max_wait(max_wait.map_or(Duration::MAX, ns));
                let mut call = PolledByHand::new(acquire(&limiter, "key", attempt));
                log.push(format!("acquire {cost} within {max_wait:?}"));
                match call.poll() {
                    true => outputs.push(call.output.unwrap()),
                    false => {
                        seen.queued += 1;
                        calls.push(call);
                    }
                }
            }
            7 | 8 => {
                log.push(format!("check {cost}"));
                outputs.push(C::check(&limiter, "key", cost));
            }
            9 => {
                log.push("peek".into());
                let peek = limiter.peek_n("key", cost);
                assert!(!peek.is_locked_out() || !peek.is_allowed() && counted + 1 == denials, "{log:?}");
            }
            10 if !calls.is_empty() => {
                let at = random.below(calls.len() as u64) as usize;
                log.push(format!("drop {at}"));
                drop(calls.remove(at));
            }
            11 if !held.is_empty() => {
                log.push("end".into());
                drop(held.pop());
            }
            _ => {
                let by = random.below(2 * SECOND);
                log.push(format!("advance {by}"));
                clock.advance(ns(by));
            }
        }
        let at_once = outputs.len();
        while calls.iter().any(PolledByHand::is_woken) {
            calls.iter_mut().for_each(|call| _ = call.run());
        }
        calls.retain_mut(|call| match call.output.take() {
            Some(output) => {
                outputs.push(output);
                false
            }
            None => true,
        });
        let (outputs, reservations): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
        log.push(format!("{outputs:?}"));
        held.extend(reservations.into_iter().filter(|reservation| !reservation.is_empty()));
        let denied =
            |outputs: &[Decision]| outputs.iter().filter(|decision| !decision.is_allowed()).count() as u64;
        counted += denied(&outputs);
        (seen.denied, seen.denied_later) =
            (seen.denied + denied(&outputs), seen.denied_later + denied(&outputs[at_once..]));
        let locked_out = outputs.iter().filter(|decision| decision.is_locked_out()).count() as u64;
        assert_eq!(locked_out, (counted + 1).saturating_sub(denials), "{denials} denials, {log:#?}");
        if counted >= denials {
            seen.locked_out += 1;
            return;
        }
    }
}

#[test]
fn a_denied_call_is_counted_once() {
    let mut seen = Seen::default();
    // No call is denied by this window. The lockout counts denials within its period.
    let day = FixedWindow::new(Quota::per_day(1_000_000));
    for seed in 0..scaled(8_000) {
        let random = &mut Random::new(seed);
        let (places, drops) = (random.below(4), random.one_in(2));
        let overflow = if drops { QueueOverflow::DropOldest } else { QueueOverflow::RejectNew };
        let max_wait = ns(random.one_of(&[SECOND, 4 * SECOND, 86_400 * SECOND]));
        macro_rules! with_queue {
            ($algorithm:expr) => {
                $algorithm.queue(places).overflow(overflow).max_wait(max_wait)
            };
        }
        let a_second = quota(1, SECOND).burst(2);
        match seed % 6 {
            0 => counts_denied_calls::<OfUnits>(
                (with_queue!(TokenBucket::new(a_second)), with_queue!(day.clone())),
                random,
                &mut seen,
            ),
            1 => counts_denied_calls::<OfUnits>(
                (with_queue!(LeakyBucket::new(a_second)), with_queue!(day.clone())),
                random,
                &mut seen,
            ),
            2 => counts_denied_calls::<OfUnits>(
                (with_queue!(FixedWindow::new(quota(3, 4 * SECOND))), with_queue!(day.clone())),
                random,
                &mut seen,
            ),
            3 => counts_denied_calls::<OfUnits>(
                with_queue!(FixedWindow::new(quota(5, 1_000 * SECOND))),
                random,
                &mut seen,
            ),
            4 => counts_denied_calls::<InProgress>(with_queue!(Concurrency::per_key(3)), random, &mut seen),
            _ => counts_denied_calls::<OfUnits>(
                Tiered::new((with_queue!(TokenBucket::new(a_second)), with_queue!(day.clone()))),
                random,
                &mut seen,
            ),
        }
    }
    let Seen { queued, denied, denied_later, locked_out } = seen;
    assert!(
        queued > scaled(10_000)
            && denied > scaled(10_000)
            && denied_later > scaled(500)
            && locked_out > scaled(3_000),
        "{queued}, {denied}, {denied_later}, {locked_out}"
    );
}

/// A window that counts how often it is asked.
#[derive(Clone, Debug)]
struct Asked {
    window: FixedWindow,
    checks: Arc<AtomicU64>,
    peeks: Arc<AtomicU64>,
}

impl Asked {
    fn new(window: FixedWindow) -> Self {
        Self { window, checks: Arc::default(), peeks: Arc::default() }
    }

    /// Returns the numbers of calls of `check` and `peek` since the last use of this method.
    fn take(&self) -> (u64, u64) {
        (self.checks.swap(0, Ordering::Relaxed), self.peeks.swap(0, Ordering::Relaxed))
    }
}

impl Algorithm for Asked {
    type State = <FixedWindow as Algorithm>::State;

    fn new_state(&self, created_at: Nanos, now: Nanos) -> Self::State {
        self.window.new_state(created_at, now)
    }

    fn last_update(&self, state: &Self::State) -> Nanos {
        self.window.last_update(state)
    }

    fn check(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        self.checks.fetch_add(1, Ordering::Relaxed);
        self.window.check(state, now, cost)
    }

    fn peek(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Decision {
        self.peeks.fetch_add(1, Ordering::Relaxed);
        self.window.peek(state, now, cost)
    }

    fn refund(&self, state: &mut Self::State, now: Nanos, cost: u64, charged_at: Option<Nanos>) {
        self.window.refund(state, now, cost, charged_at);
    }

    fn migrate(&self, state: &mut Self::State, old: &Self, now: Nanos) {
        self.window.migrate(state, &old.window, now);
    }

    fn is_fresh(&self, state: &Self::State, now: Nanos) -> bool {
        self.window.is_fresh(state, now)
    }

    fn policy(&self) -> QuotaPolicy {
        self.window.policy()
    }

    fn queue_config(&self) -> Option<QueueConfig> {
        self.window.queue_config()
    }

    fn ready_at(&self, state: &mut Self::State, now: Nanos, cost: u64) -> Option<Nanos> {
        self.window.ready_at(state, now, cost)
    }
}

#[test]
fn a_call_that_waits_or_finds_a_full_queue_is_judged_once() {
    let asked = Asked::new(FixedWindow::new(quota(1, SECOND)).queue(2));
    let limiter = RateLimiter::builder(asked.clone()).clock(ManualClock::new()).build();
    let acquire = || {
        let mut call = PolledByHand::new(limiter.acquire("key"));
        call.poll();
        call
    };
    assert!(limiter.check("key").is_allowed());
    asked.take();
    let _first = acquire();
    assert_eq!(asked.take(), (1, 0), "it is queued as it was judged");
    let _second = acquire();
    // Both queued calls are charged to a copy of the state, which is the projection.
    assert_eq!(asked.take(), (2, 1), "behind another call, it is judged by `peek`");
    let denied = acquire();
    assert!(denied.output.unwrap().is_queue_full());
    // One judgement, and the time until the key is fresh.
    assert_eq!(asked.take(), (0, 2), "it is denied as it was judged");
}
