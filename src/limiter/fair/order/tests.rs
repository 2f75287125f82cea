//! The order against a naive model: linear scans of the rules, on random events. The same comparison finds each
//! [fault](Fault) of the model.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;

/// A way in which the model breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    TiesByArrival,
    NoService,
    NoStartAtU,
    NoStartAtV,
    DebtsAreForgotten,
    LargestDebtsGoFirst,
    TagsSurviveACrowd,
    ChargeFromOwnService,
    ChargeFromAdmission,
    FreeAfterAStepBack,
    StepBackIsForEver,
    PlainAverage,
    NoTimeIsAverage,
    PassesWithoutAMark,
    CancelAdmitsNobody,
    LargeIsOvertaken,
    FullCallerHoldsUp,
    EqualsOvertake,
    OldestPays,
    OneLongerPays,
    FirstOfTheLongestPays,
    OthersPayForDropOldest,
    NewestOfACallerFirst,
    RemainingIgnoresTheFirst,
    HeldInOneTierOnly,
    CallAboveTheTotalWaits,
}

const FAULTS: [Fault; 26] = [
    Fault::TiesByArrival,
    Fault::NoService,
    Fault::NoStartAtU,
    Fault::NoStartAtV,
    Fault::DebtsAreForgotten,
    Fault::LargestDebtsGoFirst,
    Fault::TagsSurviveACrowd,
    Fault::ChargeFromOwnService,
    Fault::ChargeFromAdmission,
    Fault::FreeAfterAStepBack,
    Fault::StepBackIsForEver,
    Fault::PlainAverage,
    Fault::NoTimeIsAverage,
    Fault::PassesWithoutAMark,
    Fault::CancelAdmitsNobody,
    Fault::LargeIsOvertaken,
    Fault::FullCallerHoldsUp,
    Fault::EqualsOvertake,
    Fault::OldestPays,
    Fault::OneLongerPays,
    Fault::FirstOfTheLongestPays,
    Fault::OthersPayForDropOldest,
    Fault::NewestOfACallerFirst,
    Fault::RemainingIgnoresTheFirst,
    Fault::HeldInOneTierOnly,
    Fault::CallAboveTheTotalWaits,
];

/// A call as the tests make it.
#[derive(Clone, Copy, Debug)]
struct Ask {
    number: u64,
    caller: u64,
    cost: u64,
    per_key: Option<u64>,
    may_wait: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct NaiveCaller {
    held: u64,
    service: u128,
    turn: u64,
    began: u64,
}

/// A call in progress.
#[derive(Clone, Copy, Debug)]
struct Progress {
    caller: u64,
    cost: u64,
    since: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Passed,
    Waits,
    Denied,
}

/// The end of a call that waited.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Admitted(u64),
    Displaced(u64),
    Closed(u64),
}

/// The rules, by linear scans.
#[derive(Clone, Debug)]
struct Model {
    fault: Fault,
    limits: Limits,
    callers: BTreeMap<u64, NaiveCaller>,
    /// In the order of arrival.
    waiting: Vec<Ask>,
    /// The calls that were admitted from the queue.
    admitted: BTreeMap<u64, Progress>,
    turn: u64,
    served: u128,
    began: (u128, Nanos),
    /// The readings at which calls ended since the clock was set back behind `began`.
    behind: Vec<Nanos>,
    largest: u128,
    usual: u128,
    told: Vec<Told>,
}

impl Model {
    fn new(limits: Limits, fault: Fault) -> Self {
        Self {
            fault,
            limits,
            callers: BTreeMap::new(),
            waiting: Vec::new(),
            admitted: BTreeMap::new(),
            turn: 0,
            served: 0,
            began: (0, Nanos::ZERO),
            behind: Vec::new(),
            largest: 0,
            usual: 0,
            told: Vec::new(),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn caller(&self, id: u64) -> NaiveCaller {
        self.callers.get(&id).copied().unwrap_or_default()
    }

    fn used(&self) -> u64 {
        self.callers.values().map(|caller| caller.held).sum()
    }

    fn waits(&self, id: u64) -> usize {
        self.waiting.iter().filter(|call| call.caller == id).count()
    }

    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    fn raise(&mut self, id: u64, service: u128) {
        let caller = self.callers.entry(id).or_default();
        caller.service = caller.service.max(service);
        self.largest = self.largest.max(caller.service);
    }

    fn limit(&self, per_key: Option<u64>) -> u64 {
        per_key.unwrap_or(self.limits.per_key).min(self.limits.total)
    }

    fn fits_own(&self, call: &Ask) -> bool {
        let held = self.caller(call.caller).held;
        if self.has(Fault::HeldInOneTierOnly) && call.per_key.is_some() {
            return true;
        }
        held == 0 || held + call.cost <= self.limit(call.per_key)
    }

    fn fits_total(&self, call: &Ask) -> bool {
        let used = self.used();
        let is_empty = used == 0 && !self.has(Fault::CallAboveTheTotalWaits);
        is_empty || used + call.cost <= self.limits.total
    }

    /// Returns the calls that take part, in order: the first one of each caller.
    fn line(&self) -> Vec<Ask> {
        let mut firsts: Vec<Ask> = Vec::new();
        for call in &self.waiting {
            if self.has(Fault::NewestOfACallerFirst) {
                firsts.retain(|other| other.caller != call.caller);
                firsts.push(*call);
            } else if firsts.iter().all(|other| other.caller != call.caller) {
                firsts.push(*call);
            }
        }
        if !self.has(Fault::FullCallerHoldsUp) {
            firsts.retain(|call| self.fits_own(call));
        }
        firsts.sort_by_key(|call| {
            let NaiveCaller { held, service, turn, .. } = self.caller(call.caller);
            (held, if self.has(Fault::NoService) { 0 } else { service }, turn)
        });
        firsts
    }

    /// Returns the next call that is admitted now.
    fn next(&self) -> Option<Ask> {
        let line = self.line();
        if self.has(Fault::LargeIsOvertaken) {
            return line.into_iter().find(|call| self.fits_own(call) && self.fits_total(call));
        }
        line.into_iter().next().filter(|call| self.fits_own(call) && self.fits_total(call))
    }

    fn admit(&mut self, now: Nanos) {
        while let Some(call) = self.next() {
            self.waiting.retain(|other| other.number != call.number);
            self.take_place(&call, now);
            self.told.push(Told::Admitted(call.number));
        }
    }

    fn take_place(&mut self, call: &Ask, now: Nanos) {
        self.served = self.served.max(self.caller(call.caller).service);
        let turn = self.next_turn();
        let is_renewed = !self.has(Fault::TiesByArrival);
        let caller = self.callers.entry(call.caller).or_default();
        caller.held += call.cost;
        if is_renewed {
            caller.turn = turn;
        }
        let progress = Progress { caller: call.caller, cost: call.cost, since: now };
        self.admitted.insert(call.number, progress);
    }

    /// Lets a call wait, whatever the bounds are.
    fn begin(&mut self, call: &Ask, now: Nanos) {
        if self.waiting.is_empty() {
            if !self.has(Fault::TagsSurviveACrowd) {
                self.served = self.largest;
            }
            self.began = (self.served, now);
            self.behind.clear();
        }
        if self.waits(call.caller) == 0 {
            let usual = if self.has(Fault::NoStartAtU) { 0 } else { self.usual };
            let start = self.served + if self.caller(call.caller).held == 0 { usual } else { 0 };
            self.raise(call.caller, if self.has(Fault::NoStartAtV) { 0 } else { start });
            let turn = self.next_turn();
            let caller = self.callers.entry(call.caller).or_default();
            (caller.turn, caller.began) = (turn, turn);
        }
        self.waiting.push(*call);
    }

    /// Returns whether a call that does not wait passes.
    fn passes(&self, call: &Ask) -> bool {
        let held = self.caller(call.caller).held;
        let is_first = self.line().first().is_none_or(|first| {
            let first = self.caller(first.caller).held;
            if self.has(Fault::EqualsOvertake) { held <= first } else { held < first }
        });
        self.waits(call.caller) == 0 && is_first && self.fits_own(call) && self.fits_total(call)
    }

    fn arrive(&mut self, call: &Ask, now: Nanos) -> Answer {
        if self.passes(call) {
            if !self.waiting.is_empty() && !self.has(Fault::PassesWithoutAMark) {
                self.raise(call.caller, self.served);
            }
            let turn = self.next_turn();
            let caller = self.callers.entry(call.caller).or_default();
            caller.held += call.cost;
            caller.turn = turn;
            self.forget();
            return Answer::Passed;
        }
        if !call.may_wait {
            return Answer::Denied;
        }
        if self.waits(call.caller) == 0 {
            let mut after = self.clone();
            after.begin(call, now);
            if after.next().is_some_and(|next| next.number == call.number) {
                *self = after;
                self.waiting.pop();
                self.take_place(call, now);
                self.forget();
                return Answer::Passed;
            }
        }
        let Limits { queue, max_queued, .. } = self.limits;
        let (places, drops_oldest) = (queue.places(), queue.overflow() == QueueOverflow::DropOldest);
        let own = self.waits(call.caller);
        let mut displaced = None;
        let is_full = self.waiting.len() >= max_queued;
        let asks_own =
            drops_oldest && own > 0 && !(self.has(Fault::OthersPayForDropOldest) && (own as u64) < places);
        if own as u64 >= places || is_full {
            if asks_own {
                displaced = self.waiting.iter().find(|other| other.caller == call.caller).copied();
            } else if (own as u64) < places {
                let sign = if self.has(Fault::FirstOfTheLongestPays) { -1 } else { 1 };
                let longest = |id: &u64| (self.waits(*id), sign * self.caller(*id).began as i64);
                let Some(most) = self.callers.keys().copied().max_by_key(longest) else {
                    return Answer::Denied;
                };
                let more = if self.has(Fault::OneLongerPays) { 1 } else { 2 };
                if self.waits(most) >= own + more {
                    let mut of_most = self.waiting.iter().filter(|other| other.caller == most);
                    let oldest = self.has(Fault::OldestPays);
                    displaced = if oldest { of_most.next() } else { of_most.next_back() }.copied();
                }
            }
            if displaced.is_none() {
                return Answer::Denied;
            }
        }
        self.begin(call, now);
        if let Some(displaced) = displaced {
            self.waiting.retain(|other| other.number != displaced.number);
            self.told.push(Told::Displaced(displaced.number));
            self.admit(now);
        }
        self.forget();
        Answer::Waits
    }

    fn end(&mut self, progress: Progress, now: Nanos) {
        let Progress { caller: id, cost, since } = progress;
        if !self.waiting.is_empty() {
            if now < self.began.1 {
                self.behind.push(now);
            } else if !self.has(Fault::StepBackIsForEver) {
                self.behind.clear();
            }
            let mut began = self.began.1;
            if !self.has(Fault::FreeAfterAStepBack) {
                began = self.behind.iter().copied().min().unwrap_or(began);
            }
            let since = if self.has(Fault::ChargeFromAdmission) { since } else { since.max(began) };
            let charge = u128::from(cost) * u128::from(now.saturating_since(since));
            let floor = if self.has(Fault::ChargeFromOwnService) { 0 } else { self.began.0 };
            self.raise(id, self.caller(id).service.max(floor) + charge);
            let most = if self.has(Fault::PlainAverage) { u128::MAX } else { 2 * self.usual };
            self.usual = match self.usual {
                usual if charge == 0 && !self.has(Fault::NoTimeIsAverage) => usual,
                0..=15 => charge,
                usual => usual - usual / 16 + charge.min(most) / 16,
            };
        }
        if let Some(caller) = self.callers.get_mut(&id) {
            caller.held -= cost;
        }
        self.admit(now);
        self.rest(id);
        self.forget();
    }

    fn cancel(&mut self, number: u64, now: Nanos) {
        let at = self.waiting.iter().position(|call| call.number == number).unwrap();
        let call = self.waiting.remove(at);
        if !self.has(Fault::CancelAdmitsNobody) {
            self.admit(now);
        }
        self.rest(call.caller);
        self.forget();
    }

    fn is_idle(&self, id: u64) -> bool {
        self.caller(id).held == 0 && self.waits(id) == 0
    }

    fn is_paid(&self, id: u64) -> bool {
        let paid = self.waiting.is_empty() || self.caller(id).service <= self.served;
        paid || self.has(Fault::DebtsAreForgotten)
    }

    fn rest(&mut self, id: u64) {
        if self.is_idle(id) && self.is_paid(id) {
            self.callers.remove(&id);
        }
    }

    fn forget(&mut self) {
        for _ in 0..2 {
            let idle: Vec<u64> = self.callers.keys().copied().filter(|id| self.is_idle(*id)).collect();
            let debt = |id: &u64| (self.caller(*id).service, self.caller(*id).turn);
            let Some(mut least) = idle.iter().copied().min_by_key(debt) else { return };
            let waiting = self.callers.keys().filter(|id| self.waits(**id) > 0).count();
            if !self.is_paid(least) {
                if idle.len() <= waiting + 16 {
                    return;
                }
                if self.has(Fault::LargestDebtsGoFirst) {
                    least = idle.iter().copied().max_by_key(debt).unwrap();
                }
            }
            self.callers.remove(&least);
        }
    }

    fn close(&mut self) {
        let ids: Vec<u64> = self.callers.keys().copied().collect();
        self.told.extend(self.waiting.drain(..).map(|call| Told::Closed(call.number)));
        for id in ids {
            self.rest(id);
        }
    }

    /// Returns how many calls of cost 1 pass, one after another.
    fn remaining(&self, caller: u64, per_key: Option<u64>) -> u64 {
        let mut after = self.clone();
        let call = Ask { number: u64::MAX, caller, cost: 1, per_key, may_wait: false };
        if self.has(Fault::RemainingIgnoresTheFirst) {
            after.waiting.retain(|other| other.caller == caller);
        }
        let mut count = 0;
        while after.passes(&call) {
            after.callers.entry(caller).or_default().held += 1;
            count += 1;
        }
        count
    }
}

/// An order, and a model that sees the same events.
struct Pair {
    random: Rng,
    order: Order<u64>,
    model: Model,
    now: Nanos,
    next: u64,
    /// The calls that wait or were not taken since, with their slots.
    waiters: BTreeMap<u64, usize>,
    held: Vec<(Progress, Held)>,
}

/// A difference between the order and the model.
type Difference = String;

fn id(caller: u64) -> Fingerprint {
    Fingerprint::of_slot(caller, 0)
}

impl Pair {
    fn new(random: Rng, limits: Limits, fault: Fault) -> Self {
        Self {
            random,
            order: Order::new(limits),
            model: Model::new(limits, fault),
            now: Nanos(1_000),
            next: 0,
            waiters: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    /// Makes a call. Returns whether it passed at once.
    fn arrive(&mut self, call: Ask) -> Result<Answer, Difference> {
        let Ask { number, caller, cost, per_key, may_wait } = call;
        let arrival = Arrival { id: id(caller), cost, per_key, may_wait };
        let would_pass = self.order.would_pass(&arrival);
        let expected = self.model.passes(&call);
        if would_pass != expected {
            return Err(format!("{call:?} would pass: {would_pass}"));
        }
        let mut told = Vec::new();
        let is_crowd = self.order.waiting() > 0;
        let answer = match self.order.pass(&arrival, self.now) {
            Some(held) => {
                let since = if is_crowd { self.now } else { Nanos::ZERO };
                self.held.push((Progress { caller, cost, since }, held));
                Answer::Passed
            }
            None if !may_wait => Answer::Denied,
            None => match self.order.join(&arrival, self.now, &mut told) {
                Some(waiter) => {
                    *self.order.wakes(waiter) = Some(number);
                    self.waiters.insert(number, waiter);
                    Answer::Waits
                }
                None => Answer::Denied,
            },
        };
        let expected = self.model.arrive(&call, self.now);
        // A call that passed as the first is in the list of those that were admitted.
        if expected == Answer::Passed {
            self.model.admitted.remove(&number);
        }
        if answer != expected {
            return Err(format!("{call:?}: {answer:?}, by the model {expected:?}"));
        }
        // A call that waits may be admitted at once, if it has displaced another one. Then nobody was told.
        self.compare(told, Some(number))?;
        Ok(answer)
    }

    fn compare(&mut self, told: Vec<u64>, newest: Option<u64>) -> Result<(), Difference> {
        let mut expected = std::mem::take(&mut self.model.told);
        expected.retain(|told| !matches!(told, Told::Admitted(number) if Some(*number) == newest));
        let numbers: Vec<u64> = expected
            .iter()
            .map(|(Told::Admitted(number) | Told::Displaced(number) | Told::Closed(number))| *number)
            .collect();
        if let Some(Told::Closed(_)) = expected.first() {
            // The order in which they are told is not a rule.
            let (mut told, mut numbers) = (told, numbers);
            told.sort_unstable();
            numbers.sort_unstable();
            if told != numbers {
                return Err(format!("closed: {told:?}, by the model {numbers:?}"));
            }
        } else if told != numbers {
            return Err(format!("told: {told:?}, by the model {expected:?}"));
        }
        // Denied calls are taken at once, admitted ones later.
        for told in expected {
            if let Told::Displaced(number) | Told::Closed(number) = told {
                let waiter = self.waiters.remove(&number).unwrap();
                match (told, self.order.take(waiter)) {
                    (Told::Displaced(_), Some(Outcome::Displaced(_)))
                    | (Told::Closed(_), Some(Outcome::Closed(_))) => {}
                    (_, outcome) => return Err(format!("{told:?}: {outcome:?}")),
                }
            }
        }
        let counts = (self.order.waiting(), self.order.used);
        let expected = (self.model.waiting.len(), self.model.used());
        if counts != expected {
            return Err(format!("{counts:?} wait and are used, by the model {expected:?}"));
        }
        self.order.check();
        if self.model.fault != Fault::None {
            // A fault must change a decision.
            return Ok(());
        }
        if self.order.len() != self.model.callers.len() {
            return Err(format!("{} are known, by the model {}", self.order.len(), self.model.callers.len()));
        }
        for (caller, naive) in &self.model.callers {
            let known = self.order.known.get(&id(*caller)).map(|at| self.order.callers.at(*at).held);
            if known != Some(naive.held) {
                return Err(format!("caller {caller} holds {known:?}, by the model {}", naive.held));
            }
        }
        Ok(())
    }

    fn remaining(&mut self, caller: u64, per_key: Option<u64>) -> Result<(), Difference> {
        let left = self.order.remaining(id(caller), per_key);
        let expected = self.model.remaining(caller, per_key);
        if left != expected { Err(format!("{left} remain, by the model {expected}")) } else { Ok(()) }
    }

    fn end(&mut self, at: usize) -> Result<(), Difference> {
        let (progress, held) = self.held.swap_remove(at);
        let mut told = Vec::new();
        self.order.end(held, self.now, &mut told);
        self.model.end(progress, self.now);
        self.compare(told, None)
    }

    /// Polls a call: takes its outcome, if it has one.
    fn poll(&mut self, number: u64) -> Result<(), Difference> {
        let expected = self.model.admitted.get(&number).copied();
        match (self.order.take(self.waiters[&number]), expected) {
            (None, None) => {}
            (Some(Outcome::Admitted(held)), Some(progress)) if held.since == progress.since => {
                self.waiters.remove(&number);
                self.model.admitted.remove(&number);
                self.held.push((progress, held));
            }
            (outcome, expected) => return Err(format!("{number}: {outcome:?}, by the model {expected:?}")),
        }
        Ok(())
    }

    fn cancel(&mut self, number: u64) -> Result<(), Difference> {
        let mut told = Vec::new();
        let waiter = self.waiters.remove(&number).unwrap();
        self.order.cancel(waiter, self.now, &mut told);
        match self.model.admitted.remove(&number) {
            Some(progress) => self.model.end(progress, self.now),
            None => self.model.cancel(number, self.now),
        }
        self.compare(told, None)
    }

    fn replace(&mut self, limits: Limits) -> Result<(), Difference> {
        let mut told = Vec::new();
        self.order.replace(limits, self.now, &mut told);
        self.model.limits = Limits { max_queued: self.model.limits.max_queued, ..limits };
        self.model.admit(self.now);
        self.compare(told, None)
    }

    fn close(&mut self) -> Result<(), Difference> {
        let mut told = Vec::new();
        self.order.close(self.now, &mut told);
        self.model.close();
        self.compare(told, None)
    }

    /// Ends everything. Nothing may be left.
    fn finish(&mut self) -> Result<(), Difference> {
        while !self.held.is_empty() || !self.waiters.is_empty() {
            while !self.held.is_empty() {
                self.end(0)?;
            }
            let Some(number) = self.waiters.keys().next().copied() else { break };
            match self.random.bool() {
                true => self.cancel(number)?,
                false => {
                    self.poll(number)?;
                    if self.waiters.contains_key(&number) {
                        self.cancel(number)?;
                    }
                }
            }
        }
        for _ in 0..self.order.len() {
            self.arrive(Ask { number: self.next, caller: 0, cost: 1, per_key: None, may_wait: false })?;
            self.next += 1;
            self.end(0)?;
        }
        let left =
            (self.order.used, self.order.waiting(), self.order.len(), self.order.waiters.occupied().len());
        if left != (0, 0, 0, 0) { Err(format!("left: {left:?}")) } else { Ok(()) }
    }
}

impl<W> Order<W> {
    /// Asserts that the sets say what the callers say, and that the first call does not fit.
    fn check(&self) {
        let waiting: usize = self.callers.occupied().iter().map(|at| self.callers.at(*at).waiting).sum();
        assert_eq!(waiting, self.waiting);
        let line: BTreeSet<_> = self.callers.occupied().iter().filter_map(|at| self.place(*at)).collect();
        assert_eq!(line, self.line);
        let longest: BTreeSet<_> = self.callers.occupied().iter().filter_map(|at| self.length(*at)).collect();
        assert_eq!(longest, self.longest);
        let callers = self.callers.occupied().into_iter().filter(|at| self.callers.at(*at).waiting > 0);
        assert_eq!(callers.count(), self.waiting_callers);
        let debts: BTreeSet<_> = self.callers.occupied().iter().filter_map(|at| self.debt(*at)).collect();
        assert_eq!(debts, self.debts);
        if let Some((.., at)) = self.line.first() {
            let cost = self.waiters.at(self.callers.at(*at).ends[0]).cost;
            assert!(!self.fits_total(cost), "the first call fits");
        }
    }
}

fn queue(places: u64, drops_oldest: bool) -> QueueConfig {
    let overflow = if drops_oldest { QueueOverflow::DropOldest } else { QueueOverflow::RejectNew };
    QueueConfig::enabled(places).with_overflow(overflow)
}

fn limits(random: &mut Rng) -> Limits {
    let total = if random.u8(..4) == 0 { 40 } else { random.u64(1..=8) };
    Limits {
        total,
        per_key: if random.bool() { total } else { random.u64(1..=total + 1) },
        queue: queue(*random.choice(&[1, 2, 3, u64::MAX]).unwrap(), random.u8(..3) == 0),
        max_queued: *random.choice(&[2, 3, 5, 8, 40]).unwrap(),
    }
}

/// Runs random events. Returns the first difference. Some runs are long, with a crowd in which most calls end at once
/// and some are long, so that many callers are remembered.
fn run(seed: u64, events: usize, fault: Fault) -> Result<(), Difference> {
    let mut random = Rng::with_seed(seed);
    let mut limits_at_first = limits(&mut random);
    let mut callers = *random.choice(&[2, 3, 5, 12, 40]).unwrap();
    let mut is_new = random.u8(..4) == 0;
    let is_crowd = seed.is_multiple_of(16);
    let events = if is_crowd { 8 * events } else { events };
    if is_crowd {
        let queue = limits_at_first.queue.queue(2);
        limits_at_first = Limits { total: 4, per_key: 4, queue, max_queued: 6 };
        (callers, is_new) = (60, false);
    }
    let (costs, load, has_tiers) = (random.u64(1..=4), random.u8(30..70), random.u8(..4) == 0);
    let longest = if is_crowd { 14 } else { random.u8(1..=14) };
    let mut pair = Pair::new(random.fork(), limits_at_first, fault);
    for _ in 0..events {
        let number = pair.next;
        let caller = if is_new && random.bool() { 100 + number } else { random.u64(..callers) };
        let per_key = if has_tiers && random.bool() { Some(random.u64(1..=4)) } else { None };
        match random.u8(..100) {
            share if share < load => {
                let limit = pair.order.limits().limit(per_key);
                let cost = random.u64(1..=costs).min(limit);
                let may_wait = random.u8(..8) > 0;
                pair.next += 1;
                pair.arrive(Ask { number, caller, cost, per_key, may_wait })?;
            }
            70..85 if !pair.held.is_empty() => {
                let at = random.usize(..pair.held.len());
                pair.end(at)?;
            }
            85..88 if !pair.waiters.is_empty() => {
                let number = *pair.waiters.keys().nth(random.usize(..pair.waiters.len())).unwrap();
                pair.cancel(number)?;
            }
            88..97 if !pair.waiters.is_empty() => {
                let number = *pair.waiters.keys().nth(random.usize(..pair.waiters.len())).unwrap();
                pair.poll(number)?;
            }
            98 if !is_crowd && random.u8(..10) == 0 => pair.replace(limits(&mut random))?,
            99 if !is_crowd && random.u8(..40) == 0 => pair.close()?,
            share if share < 70 => pair.now = pair.now.saturating_add(1 << random.u8(..longest)),
            97 => pair.now = Nanos(random.u64(pair.now.0 / 2..=pair.now.0)),
            _ => pair.now = pair.now.saturating_add(random.u64(..50)),
        }
        pair.remaining(caller, per_key)?;
    }
    pair.finish()
}

#[test]
fn the_order_is_that_of_the_model() {
    for seed in 0..400 {
        if let Err(difference) = run(seed, 250, Fault::None) {
            panic!("seed {seed}: {difference}");
        }
    }
}

#[test]
#[ignore = "2,000,000 events take two minutes: .ci/nightly runs it"]
fn the_order_is_that_of_the_model_for_long() {
    for seed in 1_000..5_000 {
        if let Err(difference) = run(seed, 500, Fault::None) {
            panic!("seed {seed}: {difference}");
        }
    }
}

#[test]
fn each_fault_of_the_model_is_found() {
    for fault in FAULTS {
        // What a passing call misses shows only once its caller is charged for a long call, and comes back.
        let first = if fault == Fault::PassesWithoutAMark { 2_700 } else { 0 };
        let found = (first..first + 400).find_map(|seed| Some((seed, run(seed, 250, fault).err()?)));
        let Some((seed, difference)) = found else { panic!("{fault:?} is not found") };
        println!("{fault:?}: seed {seed}: {difference}");
    }
}
