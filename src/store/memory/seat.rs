//! One key, held exclusively: all that can be asked of it.

use std::task::Waker;

use super::fingerprint::Fingerprint;
use super::home::Home;
use super::house::{House, WhenClosed};
use super::shard::Lines;
use crate::algorithm::{Algorithm, Line};
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::queue::{Comer, Entered, Fate, Outlook, Queue, Turn};

pub(super) struct Seat<'a, A: Algorithm> {
    pub(super) key: Fingerprint,
    pub(super) rule: &'a A,
    /// What holds for all keys.
    pub(super) house: &'a House,
    pub(super) closed: bool,
    pub(super) state: &'a mut A::State,
    /// `None` in a shared bucket: there, nobody waits.
    pub(super) lines: Option<&'a mut Lines<A>>,
    /// Whom to wake once nothing is held: a waker may run anything.
    pub(super) wake: &'a mut Vec<Waker>,
}

/// What would become of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Foretold {
    Passes(Decision),
    /// It would wait in line.
    Waits(Decision),
    Refused(Decision),
}

impl Foretold {
    pub(super) fn decision(self) -> Decision {
        let (Self::Passes(decision) | Self::Waits(decision) | Self::Refused(decision)) = self;
        decision
    }

    fn of(decision: Decision) -> Self {
        match decision.is_allowed() {
            true => Self::Passes(decision),
            false => Self::Refused(decision),
        }
    }
}

/// A line at which somebody stands, beside the state it draws on.
struct Standing<'a, A: Algorithm> {
    line: &'a dyn Line<A::State>,
    queue: &'a mut Queue<A::State>,
    state: &'a mut A::State,
    wake: &'a mut Vec<Waker>,
}

impl<A: Algorithm> Standing<'_, A> {
    fn release(&mut self, now: Nanos) {
        self.queue.release(self.line, self.state, now, self.wake);
    }
}

impl<A: Algorithm> Seat<'_, A> {
    /// Takes `cost` units if they are there and nobody waits for them.
    pub(super) fn check(&mut self, now: Nanos, cost: u64) -> Decision {
        if let Some(decision) = self.when_closed(now, cost) {
            return decision;
        }
        let comer = Comer { waits: false, ..Comer::new(now, cost) };
        let check = |seat: &mut Self| match seat.standing() {
            Some(standing) if standing.queue.is_waited_in() && cost > 0 => {
                let blocked = standing.queue.outlook(standing.line, standing.state, now).blocked(comer);
                standing.line.answer(standing.state, now, cost, true, blocked)
            }
            _ => {
                let decision = seat.rule.check(seat.state, now, cost);
                if cost > 0 && decision.is_allowed() {
                    seat.seal();
                }
                let waits = seat.standing().is_some_and(|standing| standing.queue.is_waited_in());
                if waits { decision.with_nothing_left() } else { decision }
            }
        };
        self.asked(now, check, Decision::is_allowed)
    }

    /// What [`check`](Seat::check) would say. Nobody is released by a look.
    pub(super) fn peek(mut self, now: Nanos, cost: u64) -> Decision {
        if let Some(decision) = self.when_closed(now, cost) {
            return decision;
        }
        let queue = self.lines.and_then(|lines| lines.get_mut(&self.key));
        let (Some(line), Some(queue)) = (self.rule.line(), queue) else {
            return self.rule.peek(self.state, now, cost);
        };
        let mut state = self.state.clone();
        // Those who wait leave by the rule that they came by.
        let gone = queue.foresee(line, &mut state, now);
        let waited_in = gone < queue.waiting();
        if let Some(_before) = self.rule.claim(&mut state, now) {
            queue.unsettle();
        }
        match (waited_in, cost) {
            (false, _) => self.rule.peek(&mut state, now, cost),
            (true, 0) => self.rule.peek(&mut state, now, 0).with_nothing_left(),
            (true, _) => {
                let comer = Comer { waits: false, ..Comer::new(now, cost) };
                let blocked = queue.outlook_without(line, &mut state, now, gone).blocked(comer);
                line.answer(&mut state, now, cost, false, blocked)
            }
        }
    }

    /// Takes `cost` units, or joins the line.
    pub(super) fn enter(&mut self, comer: Comer) -> Entered {
        let Comer { now, cost, .. } = comer;
        if let Some(decision) = self.when_closed(now, cost) {
            return Entered::Decided(decision);
        }
        let enter = |seat: &mut Self| {
            let Some(line) = seat.rule.line() else {
                return Entered::Decided(seat.rule.check(seat.state, now, cost));
            };
            let Some(lines) = &mut seat.lines else {
                // Nobody waits here: those who share a bucket have no order.
                let comer = Comer { waits: false, ..comer };
                return Entered::Decided(
                    match Outlook::alone(line, seat.state, &seat.house.crowd).decide(comer) {
                        Fate::Decided(decision) => decision,
                        Fate::Waits | Fate::Full => unreachable!("it does not wait"),
                    },
                );
            };
            let crowd = &seat.house.crowd;
            match lines.get_mut(&seat.key) {
                Some(queue) => queue.enter(line, seat.state, comer, seat.wake),
                None => match Outlook::alone(line, seat.state, crowd).decide(comer) {
                    Fate::Decided(decision) => Entered::Decided(decision),
                    _ => {
                        let queue = lines.entry(seat.key).or_insert_with(|| Queue::new(crowd.clone()));
                        queue.enter(line, seat.state, comer, seat.wake)
                    }
                },
            }
        };
        self.asked(now, enter, |entered| match entered {
            Entered::Decided(decision) => decision.is_allowed(),
            Entered::Waits(_) => true,
        })
    }

    /// What [`enter`](Seat::enter) would say, taking nothing.
    pub(super) fn foretell(&mut self, comer: Comer) -> Foretold {
        let Comer { now, cost, .. } = comer;
        if let Some(decision) = self.when_closed(now, cost) {
            return Foretold::of(decision);
        }
        let foretell = |seat: &mut Self| {
            let Some(line) = seat.rule.line() else {
                return Foretold::of(seat.rule.peek(seat.state, now, cost));
            };
            let waits = comer.waits && seat.lines.is_some();
            let comer = Comer { waits, ..comer };
            let mut outlook = match seat.standing() {
                Some(standing) => standing.queue.outlook(standing.line, standing.state, now),
                None => Outlook::alone(line, seat.state, &seat.house.crowd),
            };
            match outlook.foretell(comer) {
                Fate::Decided(decision) => Foretold::of(decision),
                Fate::Waits => Foretold::Waits(outlook.admitted(now, comer.priority)),
                // The oldest would be refused in its stead.
                Fate::Full if outlook.drops_oldest() => {
                    Foretold::Waits(outlook.admitted(now, comer.priority))
                }
                Fate::Full => Foretold::of(outlook.would_refuse(comer)),
            }
        };
        self.asked(now, foretell, |_| false)
    }

    /// Where it is.
    pub(super) fn home(&self) -> Home {
        match self.lines {
            Some(_) => Home::Own(self.key),
            None => Home::Shared(self.house.bucket(self.key)),
        }
    }

    /// The rule, if a call of `cost` that is let in holds something until it is over.
    pub(super) fn holds(&self, cost: u64) -> Option<A> {
        let holds = cost > 0 && self.rule.holds() && !self.closed;
        holds.then(|| self.rule.clone())
    }

    /// What a call is told once the limiter is closed.
    fn when_closed(&mut self, now: Nanos, cost: u64) -> Option<Decision> {
        match self.house.when_closed {
            _ if !self.closed || cost == 0 => None,
            WhenClosed::Refuse => Some(Decision::closed(self.rule.policy().quota)),
            WhenClosed::Pass => Some(self.rule.peek(self.state, now, 0)),
        }
    }

    /// Asks by the rule of the call. Those whose turn has come leave first, by the rule that they came by; and if the
    /// call is not let in, they go on by that one.
    fn asked<R>(
        &mut self,
        now: Nanos,
        ask: impl FnOnce(&mut Self) -> R,
        is_let_in: impl FnOnce(&R) -> bool,
    ) -> R {
        self.release(now);
        let before = self.rule.claim(self.state, now);
        if before.is_some() {
            self.unsettle();
        }
        let result = ask(self);
        if let Some(before) = before {
            self.unsettle();
            match is_let_in(&result) {
                // What was released before was released by another rule.
                true => self.seal(),
                false => self.rule.unclaim(self.state, now, before),
            }
        }
        self.release(now);
        result
    }

    /// The state goes by another rule.
    fn unsettle(&mut self) {
        if let Some(standing) = self.standing() {
            standing.queue.unsettle();
        }
    }

    /// What was released before can no longer be taken back.
    fn seal(&mut self) {
        if let Some(standing) = self.standing() {
            standing.queue.seal();
        }
    }

    /// A waiter asks for its turn. Gives back a waker that is no longer needed, to be dropped when nothing is held.
    pub(super) fn ask(mut self, now: Nanos, ticket: u64, waker: &Waker) -> (Turn, Option<Waker>) {
        self.in_line(now, |standing| standing.queue.ask(standing.line, standing.state, now, ticket, waker))
    }

    /// A waiter gives up. Gives back its waker, to be dropped when nothing is held.
    pub(super) fn abandon(mut self, now: Nanos, ticket: u64) -> Option<Waker> {
        self.in_line(now, |standing| {
            standing.queue.abandon(standing.line, standing.state, ticket, standing.wake)
        })
    }

    pub(super) fn refund(mut self, now: Nanos, cost: u64) {
        let rule = self.rule;
        if cost == 0 {
            return;
        }
        self.take_back(now, |state| rule.refund(state, now, cost));
    }

    /// Gives back what still counts of a call that took `cost` at `taken`.
    pub(super) fn give_back(&mut self, now: Nanos, cost: u64, taken: Nanos) {
        let rule = self.rule;
        self.take_back(now, |state| rule.give_back(state, now, cost, taken));
    }

    /// Takes up to `cost` units, as far as they are there. Where somebody waits, none is.
    pub(super) fn absorb(&mut self, now: Nanos, cost: u64) {
        if !self.is_waited_for() {
            let room = self.rule.peek(self.state, now, 0).remaining();
            let _ = self.check(now, cost.min(room));
        }
    }

    fn take_back(&mut self, now: Nanos, take_back: impl FnOnce(&mut A::State)) {
        if !self.is_waited_for() {
            return take_back(self.state);
        }
        self.in_line(now, |standing| {
            standing.queue.seal();
            take_back(standing.state);
        });
    }

    /// A call of `cost` is over.
    pub(super) fn end(self, now: Nanos, cost: u64) {
        self.rule.release(self.state, now, cost);
        self.ended(now, cost);
    }

    /// A call of `cost` was over, by whatever rule: whoever has waited for that leaves.
    pub(super) fn ended(mut self, now: Nanos, cost: u64) {
        if let Some(standing) = self.standing() {
            standing.queue.end(standing.line, cost);
        }
        self.release(now);
    }

    /// Refuses everyone who waits.
    pub(super) fn close(mut self, now: Nanos) {
        self.release(now);
        let refusal = Decision::closed(self.rule.policy().quota);
        if let Some(standing) = self.standing() {
            standing.queue.close(now, refusal, standing.wake);
        }
        self.tidy();
    }

    /// Releases everyone whose turn has come.
    pub(super) fn release(&mut self, now: Nanos) {
        if let Some(mut standing) = self.standing() {
            standing.release(now);
            self.tidy();
        }
    }

    /// The state was made new or is another rule's: what was released before cannot be taken back, and the first may
    /// leave.
    pub(super) fn change(mut self, now: Nanos, change: impl FnOnce(&mut A::State)) {
        if !self.is_waited_for() {
            return change(self.state);
        }
        // Not `in_line`: nobody is released by the old state.
        if let Some(standing) = self.standing() {
            change(standing.state);
            standing.queue.seal();
        }
        self.release(now);
    }

    #[inline]
    fn is_waited_for(&self) -> bool {
        self.lines.as_ref().is_some_and(|lines| lines.contains_key(&self.key))
    }

    fn standing(&mut self) -> Option<Standing<'_, A>> {
        let queue = self.lines.as_mut()?.get_mut(&self.key)?;
        Some(Standing { line: self.rule.line()?, queue, state: self.state, wake: self.wake })
    }

    /// Releases whose turn has come, and again after `change`.
    #[cold]
    fn in_line<R>(&mut self, now: Nanos, change: impl FnOnce(&mut Standing<'_, A>) -> R) -> R {
        let Some(mut standing) = self.standing() else {
            unreachable!("a key for which somebody waits is kept, and so is its line")
        };
        standing.release(now);
        let result = change(&mut standing);
        standing.release(now);
        self.tidy();
        result
    }

    /// A line at which nobody stands is no line.
    fn tidy(&mut self) {
        if let Some(lines) = &mut self.lines
            && lines.get(&self.key).is_some_and(|queue| queue.len() == 0)
        {
            lines.remove(&self.key);
        }
    }
}
