//! A queue and two budgets. They are correct, or broken on purpose.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::sync::Mutex;
use tower_throttle::clock::Nanos;

use super::clock::Time;
use super::queue_model::{INTERVAL, Line};
use super::two_limiters::{BUDGETS, Pair};

/// A small and plain queue of one key.
pub(crate) struct Mutant<C, const FLAW: u8> {
    clock: C,
    plain: Arc<Mutex<Plain>>,
}

/// The correct version. It shows that the checks accept a queue like this one.
pub(crate) const SOUND: u8 = 0;
/// The queue checks whether the call can be admitted, is unlocked, and only then registers the waker.
pub(crate) const LATE: u8 = 1;
/// A cancelled call does not wake the next waiter.
pub(crate) const FORGETFUL: u8 = 2;
/// An admission that is not used loses its slot.
pub(crate) const GREEDY: u8 = 3;
/// The last waiter is admitted first.
pub(crate) const UNFAIR: u8 = 4;

#[derive(Default)]
pub(crate) struct Plain {
    next: Nanos,
    tickets: u64,
    waiting: VecDeque<Waits>,
    admitted: BTreeMap<u64, Duration>,
    latest: Option<(u64, Nanos)>,
}

pub(crate) struct Waits {
    ticket: u64,
    arrived: Nanos,
    alarm: Nanos,
    waker: Option<Waker>,
}

impl Plain {
    /// Admits every waiter whose scheduled time has come. Returns the wakers to call.
    fn admit(&mut self, now: Nanos) -> Vec<Waker> {
        let mut wake = Vec::new();
        while let Some(first) = self.waiting.front() {
            if self.next > now {
                wake.extend((first.alarm > self.next).then(|| first.waker.clone()).flatten());
                break;
            }
            let first = self.waiting.pop_front().unwrap();
            self.latest = Some((first.ticket, self.next));
            self.leave(first.arrived);
            self.admitted.insert(first.ticket, Duration::from_nanos(now.saturating_since(first.arrived)));
            wake.extend(first.waker);
        }
        wake
    }

    fn leave(&mut self, arrived: Nanos) {
        self.next = self.next.max(arrived).saturating_add(Nanos::from(INTERVAL).0);
    }

    fn pass(&mut self, now: Nanos) -> bool {
        let passes = self.waiting.is_empty() && self.next <= now;
        if passes {
            self.leave(now);
            self.latest = None;
        }
        passes
    }
}

impl<C: Time, const FLAW: u8> Mutant<C, FLAW> {
    pub(crate) fn new(clock: C) -> Self {
        Self { clock, plain: Arc::default() }
    }

    /// Runs a function while the queue is locked, and wakes the waiters when it is unlocked.
    fn with<R>(&self, change: impl FnOnce(&mut Plain, Nanos) -> R) -> R {
        let mut plain = self.plain.lock().unwrap();
        let now = self.clock.now();
        let mut wake = plain.admit(now);
        let result = change(&mut plain, now);
        wake.extend(plain.admit(now));
        drop(plain);
        wake.into_iter().for_each(Waker::wake);
        result
    }
}

impl<C: Time, const FLAW: u8> Clone for Mutant<C, FLAW> {
    fn clone(&self) -> Self {
        Self { clock: self.clock.clone(), plain: self.plain.clone() }
    }
}

impl<C: Time, const FLAW: u8> Line for Mutant<C, FLAW> {
    type Call = TwinCall<C, FLAW>;

    fn join(&self, _: u64) -> Self::Call {
        TwinCall { line: self.clone(), ticket: None, sleep: None }
    }

    fn check(&self, _: u64) -> bool {
        self.with(Plain::pass)
    }

    fn touch(&self, _: u64) {
        self.with(|_, _| {});
    }
}

pub(crate) type Sleep = (Nanos, Pin<Box<dyn Future<Output = ()> + Send>>);

pub(crate) struct TwinCall<C: Time, const FLAW: u8> {
    line: Mutant<C, FLAW>,
    ticket: Option<u64>,
    sleep: Option<Sleep>,
}

impl<C: Time, const FLAW: u8> TwinCall<C, FLAW> {
    /// Admits the call, or returns the time of the next try.
    fn ask(&mut self, waker: &Waker) -> Result<Duration, Nanos> {
        let ticket = &mut self.ticket;
        let answer = self.line.with(|plain, now| {
            if ticket.is_none() {
                if plain.pass(now) {
                    return Ok(Duration::ZERO);
                }
                plain.tickets += 1;
                *ticket = Some(plain.tickets);
                let alarm = plain.next.saturating_add(plain.waiting.len() as u64 * Nanos::from(INTERVAL).0);
                let waits = Waits { ticket: plain.tickets, arrived: now, alarm, waker: None };
                match FLAW {
                    UNFAIR => plain.waiting.push_front(waits),
                    _ => plain.waiting.push_back(waits),
                }
            }
            let number = ticket.unwrap();
            if let Some(delay) = plain.admitted.remove(&number) {
                plain.latest.take_if(|(latest, _)| *latest == number);
                *ticket = None;
                return Ok(delay);
            }
            let next = plain.next;
            let at = plain.waiting.iter().position(|waits| waits.ticket == number).unwrap();
            let waits = &mut plain.waiting[at];
            if at == 0 || waits.alarm <= now {
                waits.alarm = next.saturating_add(at as u64 * Nanos::from(INTERVAL).0);
            }
            if FLAW != LATE {
                waits.waker = Some(waker.clone());
            }
            Err(waits.alarm)
        });
        if FLAW == LATE && answer.is_err() {
            let mut plain = self.line.plain.lock().unwrap();
            plain
                .waiting
                .iter_mut()
                .filter(|waits| Some(waits.ticket) == self.ticket)
                .for_each(|waits| waits.waker = Some(waker.clone()));
        }
        answer
    }
}

impl<C: Time, const FLAW: u8> Future for TwinCall<C, FLAW> {
    type Output = Duration;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Duration> {
        loop {
            let alarm = match self.ask(cx.waker()) {
                Ok(delay) => return Poll::Ready(delay),
                Err(alarm) => alarm,
            };
            if self.sleep.as_ref().is_none_or(|(at, _)| *at != alarm) {
                self.sleep = Some((alarm, self.line.clock.sleep_until(alarm)));
            }
            let (_, sleep) = self.sleep.as_mut().unwrap();
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
        }
    }
}

impl<C: Time, const FLAW: u8> Drop for TwinCall<C, FLAW> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let behind = self.line.with(|plain, _| {
            if plain.admitted.remove(&ticket).is_some() {
                if let Some((_, before)) =
                    plain.latest.take_if(|(latest, _)| *latest == ticket && FLAW != GREEDY)
                {
                    plain.next = before;
                }
                return None;
            }
            let at = plain.waiting.iter().position(|waits| waits.ticket == ticket)?;
            plain.waiting.remove(at);
            let (next, ahead) = (plain.next, at as u64 * Nanos::from(INTERVAL).0);
            let behind = plain.waiting.get_mut(at)?;
            if FLAW == FORGETFUL {
                // The waker is not woken later either.
                behind.alarm = behind.alarm.min(next);
                return None;
            }
            behind.alarm = next.saturating_add(ahead);
            behind.waker.clone()
        });
        behind.into_iter().for_each(Waker::wake);
    }
}

#[derive(Clone)]
pub(crate) struct Budgets<const FLAW: u8>([Arc<Mutex<u64>>; 2]);

/// The budgets are locked in the order of the call's arguments.
pub(crate) const CROSSED: u8 = 1;
/// The budgets are locked one after another. If the second budget denies the call, the charge of the first is kept.
pub(crate) const HALF: u8 = 2;
/// The budgets are checked, then unlocked, and only then charged.
pub(crate) const TORN: u8 = 3;

impl<const FLAW: u8> Budgets<FLAW> {
    pub(crate) fn new() -> Self {
        Self(BUDGETS.map(|budget| Arc::new(Mutex::new(budget))))
    }
}

impl<const FLAW: u8> Pair for Budgets<FLAW> {
    fn take(&self, crossed: bool) -> bool {
        let [first, second] = &self.0;
        let named = if crossed { [second, first] } else { [first, second] };
        match FLAW {
            HALF => named.into_iter().all(|budget| {
                let mut left = budget.lock().unwrap();
                let passes = *left > 0;
                *left -= u64::from(passes);
                passes
            }),
            TORN => {
                let passes = named.into_iter().all(|budget| *budget.lock().unwrap() > 0);
                if passes {
                    named.into_iter().for_each(|budget| {
                        let mut left = budget.lock().unwrap();
                        *left = left.saturating_sub(1);
                    });
                }
                passes
            }
            _ => {
                let [one, other] = if FLAW == CROSSED { named } else { [first, second] };
                let (mut one, mut other) = (one.lock().unwrap(), other.lock().unwrap());
                let passes = *one > 0 && *other > 0;
                if passes {
                    *one -= 1;
                    *other -= 1;
                }
                passes
            }
        }
    }

    fn left(&self) -> [u64; 2] {
        self.0.each_ref().map(|budget| *budget.lock().unwrap())
    }
}
