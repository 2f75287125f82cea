//! Callers of a limiter in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::*;

/// The calls of one caller.
#[derive(Clone, Debug)]
pub(super) struct Load {
    key: String,
    cost: u64,
    length: Duration,
    from: Duration,
    /// The number of calls at a time. When one has ended, the next is made at once. With 0, there is a single call.
    connections: usize,
}

/// What a caller has got.
#[derive(Clone, Debug)]
pub(super) struct Got {
    cost: u64,
    /// The beginning of each call that passed, and of its wait, up to the end of the simulation.
    calls: Vec<(Duration, Duration)>,
    /// The ends of the calls that ended in time.
    ends: Vec<Duration>,
    /// Units times milliseconds.
    used: u64,
}

impl Load {
    /// Returns a caller with `connections` calls at a time.
    pub(super) fn closed(key: &str, connections: usize, length: Duration) -> Self {
        Self { key: key.to_owned(), cost: 1, length, from: Duration::ZERO, connections }
    }

    /// Returns a caller that makes one call.
    pub(super) fn once(key: &str, at: Duration, length: Duration) -> Self {
        Self { key: key.to_owned(), cost: 1, length, from: at, connections: 0 }
    }

    pub(super) fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    pub(super) fn from(self, from: Duration) -> Self {
        Self { from, ..self }
    }
}

impl Got {
    pub(super) fn done(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(super) fn done_after(&self, time: Duration) -> u64 {
        self.ends.iter().filter(|end| **end > time).count() as u64
    }

    /// Returns the units times the milliseconds for which they were held.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn waits(&self) -> impl Iterator<Item = Duration> {
        self.calls.iter().map(|(made, began)| *began - *made)
    }
}

/// Who is admitted, and when.
trait Places {
    fn arrive(&mut self, call: usize, load: &Load);
    fn end(&mut self, call: usize, load: &Load);
    /// Returns the calls that were admitted since.
    fn admitted(&mut self) -> Vec<usize>;
}

/// The limiter, whose futures are polled when they are woken.
struct Real {
    limiter: FairLimiter,
    waiting: HashMap<usize, Pin<Box<FairAcquire>>>,
    held: HashMap<usize, Permit>,
    woken: Arc<Mutex<Vec<usize>>>,
}

struct Alarm(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

impl Places for Real {
    fn arrive(&mut self, call: usize, load: &Load) {
        let future = self.limiter.call(load.key.as_str()).cost(load.cost).acquire_permit();
        self.waiting.insert(call, Box::pin(future));
        self.woken.lock().unwrap().push(call);
    }

    fn end(&mut self, call: usize, _: &Load) {
        drop(self.held.remove(&call).unwrap());
    }

    fn admitted(&mut self) -> Vec<usize> {
        let mut admitted = Vec::new();
        for call in std::mem::take(&mut *self.woken.lock().unwrap()) {
            let waker = Waker::from(Arc::new(Alarm(call, self.woken.clone())));
            let waiting = self.waiting.get_mut(&call).unwrap();
            if let Poll::Ready(permit) = waiting.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.held.insert(call, permit.unwrap());
                self.waiting.remove(&call);
                admitted.push(call);
            }
        }
        admitted
    }
}

/// The fewest units first, and equals in turn, for comparison. Calls cost 1.
#[derive(Default)]
struct Turns {
    total: u64,
    used: u64,
    turn: u64,
    /// The units, the turn and the waiting calls of each caller.
    callers: BTreeMap<String, (u64, u64, VecDeque<usize>)>,
}

impl Places for Turns {
    fn arrive(&mut self, call: usize, load: &Load) {
        self.turn += 1;
        let caller = self.callers.entry(load.key.clone()).or_default();
        if caller.2.is_empty() {
            caller.1 = self.turn;
        }
        caller.2.push_back(call);
    }

    fn end(&mut self, _: usize, load: &Load) {
        self.used -= 1;
        self.callers.get_mut(&load.key).unwrap().0 -= 1;
    }

    fn admitted(&mut self) -> Vec<usize> {
        let mut admitted = Vec::new();
        while self.used < self.total {
            self.callers.retain(|_, (held, _, calls)| *held > 0 || !calls.is_empty());
            let waiting = self.callers.values_mut().filter(|(.., calls)| !calls.is_empty());
            let Some(next) = waiting.min_by_key(|(held, turn, _)| (*held, *turn)) else { break };
            self.turn += 1;
            self.used += 1;
            next.0 += 1;
            next.1 = self.turn;
            admitted.extend(next.2.pop_front());
        }
        admitted
    }
}

/// Makes the calls of all loads until the time `until`. Returns what each has got.
pub(super) fn simulate(algorithm: Concurrency, loads: &[Load], until: Duration) -> Vec<Got> {
    let (limiter, clock) = fair(algorithm);
    let mut places = Real { limiter, waiting: HashMap::new(), held: HashMap::new(), woken: Arc::default() };
    run(&mut places, &clock, loads, until)
}

/// Like [`simulate`], with the fewest units first, and equals in turn.
pub(super) fn simulate_turns(total: u64, loads: &[Load], until: Duration) -> Vec<Got> {
    run(&mut Turns { total, ..Turns::default() }, &ManualClock::new(), loads, until)
}

fn run(places: &mut impl Places, clock: &ManualClock, loads: &[Load], until: Duration) -> Vec<Got> {
    let mut got: Vec<_> = loads
        .iter()
        .map(|load| Got { cost: load.cost, calls: Vec::new(), ends: Vec::new(), used: 0 })
        .collect();
    // The time, the number of the call, whether it ends then, and its load.
    let mut events = BinaryHeap::new();
    let mut calls: Vec<(usize, Duration)> = Vec::new();
    for (at, load) in loads.iter().enumerate() {
        for _ in 0..load.connections.max(1) {
            events.push(Reverse((load.from, calls.len(), false)));
            calls.push((at, load.from));
        }
    }
    while let Some(Reverse((now, call, ends))) = events.pop() {
        if now >= until {
            break;
        }
        clock.set(now);
        let load = &loads[calls[call].0];
        if ends {
            places.end(call, load);
            got[calls[call].0].ends.push(now);
            if load.connections > 0 {
                calls.push((calls[call].0, now));
                places.arrive(calls.len() - 1, load);
            }
        } else {
            places.arrive(call, load);
        }
        for call in places.admitted() {
            let (at, made) = calls[call];
            let end = now + loads[at].length;
            events.push(Reverse((end, call, true)));
            let got = &mut got[at];
            got.calls.push((made, now));
            got.used += got.cost * (end.min(until) - now).as_millis() as u64;
        }
    }
    got
}
