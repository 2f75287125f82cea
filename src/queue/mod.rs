//! Who waits for one key, in what order, and who may go.
//!
//! A line is a list of waiters beside the key's state. It reads no clock and sleeps nowhere: whoever touches it brings the
//! time, and takes away the wakers to wake once the locks are released.
//!
//! Turns are computed from the schedule each time, not handed out. So a waiter that leaves takes nothing with it: those behind
//! stand further forward. Any touch releases everyone whose turn has come; so a line moves on though its first waiter's
//! task is not polled, and a newcomer never sees a place as taken that is free by the schedule.
//!
//! Each waiter has one alarm. The first one's is its turn. The others' is their turn as it stood when they came, which is
//! never too early; a waiter that becomes the first, or whose neighbour in front gives up, is woken once, to set its alarm again.

mod outlook;

use std::collections::VecDeque;
use std::task::Waker;

use crate::algorithm::Line;
use crate::clock::Nanos;
use crate::decision::Decision;

pub(crate) use outlook::{Comer, Outlook};

/// The waiters of one key, and those released but not yet told.
#[derive(Debug)]
pub(crate) struct Queue<S> {
    waiting: VecDeque<Waiter>,
    /// The cost of all who wait.
    ahead: u128,
    /// In the order of their tickets.
    released: VecDeque<Released>,
    /// The latest release, as long as nothing was admitted after it.
    undo: Option<Undo<S>>,
    tickets: u64,
    /// When the schedule began anew: no slot before it is owed to anyone.
    since: Nanos,
    /// The key's time, when somebody last looked.
    seen: Nanos,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    cost: u64,
    arrived: Nanos,
    alarm: Nanos,
    waker: Option<Waker>,
}

impl Waiter {
    /// From when on it is owed a slot: since it came or the schedule began anew, and not later than now, should the clock have been set back.
    fn owed_from(&self, since: Nanos, seen: Nanos) -> Nanos {
        self.arrived.max(since).min(seen)
    }
}

#[derive(Debug)]
struct Released {
    ticket: u64,
    decision: Decision,
}

#[derive(Debug)]
struct Undo<S> {
    ticket: u64,
    cost: u64,
    at: Nanos,
    /// The state before, if it is kept.
    before: Option<S>,
}

/// What became of a call that came to the line.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It may pass at once, or is refused at once.
    Decided(Decision),
    /// It waits, under this ticket.
    Waits(u64),
}

/// What a waiter is told that asks for its turn.
#[derive(Debug)]
pub(crate) enum Turn {
    Now(Decision),
    /// Not yet: ask again then, or when woken.
    At(Nanos),
}

impl<S> Default for Queue<S> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            ahead: 0,
            released: VecDeque::new(),
            undo: None,
            tickets: 0,
            since: Nanos::ZERO,
            seen: Nanos::ZERO,
        }
    }
}

impl<S: Clone> Queue<S> {
    /// How the line looks to one who comes now.
    pub(crate) fn outlook(&self) -> Outlook {
        Outlook { waiting: self.waiting.len() as u64, ahead: self.ahead, lead: 0 }
    }

    /// How it looks to a call of `cost`: with the units that must leave before there is a place for it.
    pub(crate) fn outlook_of(&self, line: &dyn Line<S>, state: &S, cost: u64) -> Outlook {
        let mut outlook = self.outlook();
        let mut costs = self.waiting.iter().map(|waiter| u128::from(waiter.cost));
        match line.lends(state) {
            Some(units) => {
                let too_many = (self.ahead + u128::from(cost)).saturating_sub(units.into());
                while outlook.lead < too_many
                    && let Some(cost) = costs.next()
                {
                    outlook.lead += cost;
                }
            }
            // More than there are places for, if the rule was another when they came.
            None => {
                let too_many = outlook.waiting.saturating_sub(line.places(state));
                outlook.lead = costs.take(usize::try_from(too_many).unwrap_or(usize::MAX)).sum();
            }
        }
        outlook
    }

    /// How the line will look once everyone whose turn has come has left; `state`, a copy, goes along.
    pub(crate) fn foresee(&self, line: &dyn Line<S>, state: &mut S, now: Nanos) -> Outlook {
        let seen = line.observe(state, now);
        let mut outlook = self.outlook();
        for waiter in &self.waiting {
            if !line.is_due(state, waiter.cost) {
                break;
            }
            line.leave(state, waiter.owed_from(self.since, seen), waiter.cost);
            outlook.waiting -= 1;
            outlook.ahead -= u128::from(waiter.cost);
        }
        outlook
    }

    /// How many calls this line still has to do with.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.released.len()
    }

    /// Something was admitted past the line: the latest release can no longer be taken back.
    pub(crate) fn seal(&mut self) {
        self.undo = None;
    }

    /// The state was made new: the first may leave now, and the others after it.
    pub(crate) fn restart(&mut self, now: Nanos) {
        self.seal();
        self.since = now;
    }

    /// Releases everyone whose turn has come.
    pub(crate) fn release(&mut self, line: &dyn Line<S>, state: &mut S, now: Nanos, wake: &mut Vec<Waker>) {
        let seen = line.observe(state, now);
        if seen < self.seen {
            // The clock was set back: nobody came later than now.
            self.waiting.iter_mut().for_each(|waiter| waiter.arrived = waiter.arrived.min(seen));
            self.since = self.since.min(seen);
        }
        self.seen = seen;
        while let Some(first) = self.waiting.front() {
            if !line.is_due(state, first.cost) {
                if first.alarm > line.turn(state, 0, first.cost) {
                    // It has become the first, or its turn has moved up.
                    wake.extend(first.waker.clone());
                }
                break;
            }
            let Some(waiter) = self.waiting.pop_front() else { break };
            self.ahead -= u128::from(waiter.cost);
            let Waiter { ticket, cost, .. } = waiter;
            self.undo = Some(Undo { ticket, cost, at: seen, before: line.keep(state) });
            line.leave(state, waiter.owed_from(self.since, seen), waiter.cost);
            let delay = now.since(waiter.arrived);
            let admitted = self.outlook().admitted(line, state, Comer { now, cost: 1, priority: false });
            // As one that costs nothing more: it passes, whatever is barred meanwhile.
            let decision = line.answer(state, now, 0, false, admitted).with_delay(delay);
            self.released.push_back(Released { ticket: waiter.ticket, decision });
            wake.extend(waiter.waker);
        }
    }

    /// A call comes. Those whose turn has come must have been [released](Queue::release).
    pub(crate) fn enter(&mut self, line: &dyn Line<S>, state: &mut S, comer: Comer) -> Entered {
        let Comer { now, cost, .. } = comer;
        if let Some(decision) = self.outlook_of(line, state, cost).decide(line, state, comer) {
            if decision.is_allowed() && cost > 0 {
                self.seal();
            }
            return Entered::Decided(decision);
        }
        self.tickets += 1;
        let ticket = self.tickets;
        let alarm = line.turn(state, self.ahead, cost);
        self.ahead += u128::from(cost);
        self.waiting.push_back(Waiter { ticket, cost, arrived: now, alarm, waker: None });
        Entered::Waits(ticket)
    }

    /// A waiter asks for its turn. Those whose turn has come must have been [released](Queue::release).
    ///
    /// Gives back a waker that is no longer needed, to be dropped when no lock is held: dropping one may run anything.
    pub(crate) fn ask(
        &mut self,
        line: &dyn Line<S>,
        state: &mut S,
        now: Nanos,
        ticket: u64,
        waker: &Waker,
    ) -> (Turn, Option<Waker>) {
        if let Some(released) = self.take_released(ticket) {
            self.undo.take_if(|undo| undo.ticket == ticket);
            return (Turn::Now(released.decision), None);
        }
        let seen = line.observe(state, now);
        let Ok(at) = self.find(ticket) else { unreachable!("a waiter is in its line until it is released") };
        // The others keep theirs, unless it has rung too early: the rule was replaced.
        if at == 0 || self.waiting[at].alarm <= seen {
            let ahead = self.waiting.iter().take(at).map(|before| u128::from(before.cost)).sum();
            self.waiting[at].alarm = line.turn(state, ahead, self.waiting[at].cost);
        }
        let waiter = &mut self.waiting[at];
        let spare = match &waiter.waker {
            Some(known) if known.will_wake(waker) => None,
            _ => waiter.waker.replace(waker.clone()),
        };
        (Turn::At(waiter.alarm), spare)
    }

    /// A waiter gives up, or one that was released and never told. Its units go back if nothing was admitted after it.
    ///
    /// Gives back its waker, to be dropped when no lock is held.
    pub(crate) fn abandon(
        &mut self,
        line: &dyn Line<S>,
        state: &mut S,
        ticket: u64,
        wake: &mut Vec<Waker>,
    ) -> Option<Waker> {
        if let Ok(at) = self.find(ticket) {
            let waiter = self.waiting.remove(at)?;
            self.ahead -= u128::from(waiter.cost);
            let ahead = self.waiting.iter().take(at).map(|before| u128::from(before.cost)).sum();
            if let Some(behind) = self.waiting.get_mut(at) {
                behind.alarm = line.turn(state, ahead, behind.cost);
                wake.extend(behind.waker.clone());
            }
            return waiter.waker;
        }
        let _ = self.take_released(ticket);
        if let Some(undo) = self.undo.take_if(|undo| undo.ticket == ticket) {
            match undo.before {
                Some(before) => line.restore(state, before),
                None => line.take_back(state, undo.cost, undo.at),
            }
        }
        None
    }

    fn take_released(&mut self, ticket: u64) -> Option<Released> {
        let at = self.released.binary_search_by_key(&ticket, |released| released.ticket).ok()?;
        self.released.remove(at)
    }

    fn find(&self, ticket: u64) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, LeakyBucket, LeakyBucketState};
    use crate::quota::Quota;
    use std::time::Duration;

    const MS: u64 = 1_000_000;

    struct Bench {
        bucket: LeakyBucket,
        state: LeakyBucketState,
        queue: Queue<LeakyBucketState>,
    }

    impl Bench {
        fn new(bucket: LeakyBucket) -> Self {
            let state = bucket.fresh(Nanos::ZERO, Nanos::ZERO);
            Self { bucket, state, queue: Queue::default() }
        }

        fn release(&mut self, at: u64) {
            self.queue.release(&self.bucket, &mut self.state, Nanos(at), &mut Vec::new());
        }

        fn enter(&mut self, at: u64, cost: u64) -> Entered {
            self.release(at);
            let comer = Comer { now: Nanos(at), cost, priority: false };
            self.queue.enter(&self.bucket, &mut self.state, comer)
        }

        fn ticket(&mut self, at: u64, cost: u64) -> u64 {
            match self.enter(at, cost) {
                Entered::Waits(ticket) => ticket,
                other => panic!("{other:?}"),
            }
        }

        fn decided(&mut self, at: u64) -> Decision {
            match self.enter(at, 1) {
                Entered::Decided(decision) => decision,
                other => panic!("{other:?}"),
            }
        }

        fn ask(&mut self, at: u64, ticket: u64) -> Turn {
            self.release(at);
            self.queue.ask(&self.bucket, &mut self.state, Nanos(at), ticket, Waker::noop()).0
        }

        fn abandon(&mut self, ticket: u64) {
            self.queue.abandon(&self.bucket, &mut self.state, ticket, &mut Vec::new());
        }

        fn passes(&mut self, at: u64, ticket: u64) -> bool {
            matches!(self.ask(at, ticket), Turn::Now(_))
        }
    }

    fn ten_a_second() -> LeakyBucket {
        LeakyBucket::new(Quota::per_second(10)).queue(3)
    }

    #[test]
    fn five_at_one_instant() {
        let mut bench = Bench::new(ten_a_second());
        let first = bench.decided(0);
        assert!(first.is_allowed());
        assert_eq!((first.limit(), first.remaining()), (4, 3));
        let tickets = [(); 3].map(|()| bench.ticket(0, 1));
        let fifth = bench.decided(0);
        assert!(!fifth.is_allowed());
        assert_eq!(fifth.retry_after(), Some(Duration::from_millis(100)));
        for (n, ticket) in (1..).zip(tickets) {
            assert!(!bench.passes(n * 100 * MS - 1, ticket));
            assert!(bench.passes(n * 100 * MS, ticket));
        }
        assert_eq!(bench.queue.len(), 0);
    }

    #[test]
    fn those_behind_one_who_leaves_move_up() {
        let mut bench = Bench::new(ten_a_second());
        assert!(bench.decided(0).is_allowed());
        let [first, second, third] = [(); 3].map(|()| bench.ticket(0, 1));
        bench.abandon(second);
        assert!(bench.passes(100 * MS, first));
        assert!(bench.passes(200 * MS, third));
    }

    #[test]
    fn a_release_that_nobody_took_gives_its_slot_back() {
        let mut bench = Bench::new(ten_a_second());
        assert!(bench.decided(0).is_allowed());
        let [first, second] = [(); 2].map(|()| bench.ticket(0, 1));
        bench.release(100 * MS);
        bench.abandon(first);
        assert!(bench.passes(100 * MS, second));
    }

    #[test]
    fn a_slot_is_not_given_back_once_another_has_followed() {
        let mut bench = Bench::new(ten_a_second());
        assert!(bench.decided(0).is_allowed());
        let [first, second, third] = [(); 3].map(|()| bench.ticket(0, 1));
        bench.release(200 * MS);
        bench.abandon(first);
        assert!(bench.passes(200 * MS, second));
        assert!(!bench.passes(300 * MS - 1, third));
        assert!(bench.passes(300 * MS, third));
    }

    #[test]
    fn a_line_moves_on_though_its_first_waiter_is_never_polled() {
        let mut bench = Bench::new(ten_a_second());
        assert!(bench.decided(0).is_allowed());
        let [_asleep, second] = [(); 2].map(|()| bench.ticket(0, 1));
        assert!(bench.passes(200 * MS, second));
    }

    #[test]
    fn overdue_slots_are_released_at_once() {
        let mut bench = Bench::new(LeakyBucket::new(Quota::per_second(5_000)).queue(10));
        assert!(bench.decided(0).is_allowed());
        let tickets = [(); 10].map(|()| bench.ticket(0, 1));
        // The timer ticks in milliseconds: five slots have passed.
        bench.release(MS);
        assert_eq!(bench.queue.released.len(), 5);
        assert!(bench.passes(2 * MS, tickets[9]));
    }

    #[test]
    fn a_cost_holds_back_the_next() {
        let mut bench = Bench::new(ten_a_second());
        assert!(bench.decided(0).is_allowed());
        let heavy = bench.ticket(0, 5);
        let next = bench.ticket(0, 1);
        assert!(bench.passes(100 * MS, heavy));
        assert!(!bench.passes(600 * MS - 1, next));
        assert!(bench.passes(600 * MS, next));
    }

    #[test]
    fn whoever_would_wait_too_long_is_refused_at_once() {
        let bucket = LeakyBucket::new(Quota::per_second(10)).queue(9).max_wait(Duration::from_millis(150));
        let mut bench = Bench::new(bucket);
        let first = bench.decided(0);
        assert_eq!((first.limit(), first.remaining()), (2, 1));
        let _second = bench.ticket(0, 1);
        let third = bench.decided(0);
        assert_eq!(third.retry_after(), Some(Duration::from_millis(50)));
        assert!(!bench.decided(50 * MS - 1).is_allowed());
        bench.ticket(50 * MS, 1);
    }

    #[test]
    fn a_clock_set_back_does_not_hold_those_who_came_before() {
        let mut bench = Bench::new(ten_a_second());
        let hour = 3_600_000 * MS;
        assert!(bench.decided(hour).is_allowed());
        let [first, second] = [(); 2].map(|()| bench.ticket(hour + 10 * MS, 1));
        // An hour back: 90 ms of the interval were left, and are left.
        assert!(!bench.passes(0, first));
        assert!(bench.passes(90 * MS, first));
        assert!(bench.passes(190 * MS, second));
    }

    #[test]
    fn without_a_queue_nobody_waits() {
        for bucket in [ten_a_second().queue(0), ten_a_second().max_wait(Duration::ZERO)] {
            let mut bench = Bench::new(bucket);
            assert!(bench.decided(0).is_allowed());
            assert_eq!(bench.decided(30 * MS).retry_after(), Some(Duration::from_millis(70)));
            assert!(!bench.decided(100 * MS - 1).is_allowed());
            assert!(bench.decided(100 * MS).is_allowed());
        }
    }
}
