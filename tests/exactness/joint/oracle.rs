//! The oracle, which makes each operation on the limiters and on the model, and compares all that can be seen: the outcome
//! of each call, the decision of each policy, the state of each key, the waiters that are admitted, and all counts.
//!
//! A case has a few limiters, which are called through several layers and directly. Calls are polled only when they were
//! woken, and sometimes late. At the end, each call has ended, and nothing may be left of it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tower_throttle::middleware::Shadow;
use tower_throttle::{Decision, Error};

use super::model::{
    Ask, Counts, Denial, Ending, Fixed, Id, Key, Model, Outcome, Peek, PolicyDecision, Room, Slip, Verdict,
    Way, add,
};
use super::subjects::{
    ALL_FULL, ALL_PLAIN, CALLS, Inner, Job, JobPart, KINDS, LIMITER_OF, Limiters, Live, Params, Reports,
    SERVICES, SMOOTH, Scale, Settings, Subject, TIERED, TableParams, WINDOW, Watch, holds_units, models,
    policies_of, settings_of, subject,
};
use crate::support::{PolledByHand, Random};

/// How the clock of a case moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// Only when it is set.
    InSteps,
    /// Not at all.
    Never,
    /// Also at each reading.
    AtEachReading,
    /// Sometimes back, by at most one period.
    AlsoBack,
}

/// The key tables of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// The keys are in many shards.
    ManyShards,
    /// All keys are in one shard.
    OneShard,
    /// There is less room than there are keys. New keys are denied, or evict others.
    Full { evicts: bool },
}

/// The manner of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) seed: u64,
    pub(crate) time: Time,
    pub(crate) table: Table,
    /// The number of keys of each limiter.
    pub(crate) keys: Key,
    pub(crate) slip: Slip,
}

/// The numbers of events that occurred, by name, so that a test that tests nothing is noticed.
pub(crate) type Seen = Counts;

/// What a call has yielded.
enum Yield {
    Answer,
    InnerError,
    Denied(Decision),
    Decided(Decision),
}

type Running = PolledByHand<Pin<Box<dyn Future<Output = Yield>>>>;

struct CallInfo {
    running: Running,
    way: Way,
    asks: Vec<Ask>,
    was_queued: bool,
    is_admitted: bool,
}

pub(crate) struct World {
    manner: Manner,
    random: Random,
    scale: Scale,
    clock: Watch,
    /// The time of the model. If each reading advances the clock, it is in the middle of the times that can be read until
    /// the clock is set again, so that it is on the same side as they of all times on the grid.
    now: u64,
    /// The time of the model when the present operation began, and the number of charges that had been undone.
    began: (u64, u64),
    /// The latest time of the model.
    latest: u64,
    params: Vec<Params>,
    settings: Vec<Settings>,
    /// The limiters that the calls of the case use.
    focus: Vec<usize>,
    live: Vec<Box<dyn Live>>,
    /// The services that are called, by number.
    subjects: BTreeMap<usize, Subject>,
    shadows: Vec<Shadow>,
    inner: Inner,
    reports: Reports,
    model: Model,
    max_queued: usize,
    calls: BTreeMap<Id, CallInfo>,
    next_id: Id,
    /// The keys that the present operation has used, by limiter.
    touched: BTreeMap<usize, BTreeSet<Key>>,
    /// The limiters whose keys may have evicted keys of the same call: in shadow mode, or when several keys are settled.
    one_by_one: BTreeSet<usize>,
    evicted: BTreeMap<usize, u64>,
    /// The number of keys that were removed for a step back.
    removed: Key,
    last_wait: u64,
    /// `true` once the case has met a fault of the engine that is known, or times that the model does not know exactly.
    is_over: bool,
    seen: Seen,
    log: Vec<String>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() && self.manner.slip == Slip::None {
            eprintln!("{:?}, {} queued calls at most", self.manner, self.max_queued);
            for limiter in &self.focus {
                eprintln!("limiter {limiter}: {:?}", self.params[*limiter]);
            }
            eprintln!("  {}", self.log.join("\n  "));
        }
    }
}

/// Runs a case. Panics if the limiters do not agree with the model.
pub(crate) fn run(manner: Manner, steps: usize) -> Seen {
    let mut world = World::new(manner);
    for _ in 0..steps {
        world.step();
        if world.is_over() {
            return std::mem::take(&mut world.seen);
        }
    }
    world.end();
    std::mem::take(&mut world.seen)
}

impl World {
    fn new(manner: Manner) -> Self {
        let mut random = Random::new(manner.seed);
        let ticks = manner.time == Time::AtEachReading;
        let is_full = matches!(manner.table, Table::Full { .. });
        let scale = Scale {
            grid: if ticks { 1_000_000 } else { 1 },
            is_fine: !ticks,
            queues: !random.one_in(4),
            starts_empty: !is_full && random.one_in(4),
        };
        let params: Vec<_> = (0..KINDS).map(|_| Params::any(&mut random, scale)).collect();
        let settings: Vec<_> =
            params.iter().enumerate().map(|(at, params)| settings_of(at, params)).collect();
        let is_monotonic = manner.time != Time::AlsoBack && random.one_in(2);
        let clock = Watch::new(scale.grid, u64::from(ticks), is_monotonic);
        let start = random.one_of(&[0, 1_000, 1_007]) * scale.grid;
        clock.set(start);
        let now = start + scale.grid / 2;
        let (max_keys, room) = match manner.table {
            Table::ManyShards => (20_000, None),
            Table::OneShard => (127, None),
            Table::Full { evicts } => {
                let max_keys = random.within(1..=4) as usize;
                (max_keys, Some(Room { max_keys, evicts }))
            }
        };
        let max_queued = random.one_of(&[10_000, 10_000, 3, 2, 1]);
        let (admits_when_closed, slip) = (random.one_in(2), manner.slip);
        let fixed = Fixed { created_at: now, max_queued, admits_when_closed, room, slip };
        let limiters = Limiters::new(&params, TableParams { max_keys, fixed }, &clock);
        let shadows: Vec<_> = LIMITER_OF
            .iter()
            .map(|_| {
                let shadow = Shadow::on();
                shadow.set(random.one_in(8));
                shadow
            })
            .collect();
        let (inner, reports) = (Inner::default(), Reports::default());
        let (focus, used) = loop {
            let (focus, used) = Self::focus(&mut random);
            let is_known = match manner.time {
                // The slices of a window end with an instant that can be read again, after the clock has advanced. A
                // refund of `Smooth` is rounded to the nanosecond. A new tier stretches the time that has passed.
                Time::AtEachReading => [WINDOW, SMOOTH, TIERED].iter().all(|other| !focus.contains(other)),
                // While the clock is behind, no tier is fresh. So it shows whether a key was removed before.
                Time::AlsoBack => !focus.contains(&TIERED),
                // New keys of `Smooth` are not fresh for a second, and so take room even if they charge nothing.
                Time::InSteps | Time::Never => !is_full || !focus.contains(&SMOOTH),
            };
            if is_known {
                break (focus, used);
            }
        };
        let subject = |nth: &usize| (*nth, subject(*nth, &limiters, &shadows, &inner, &reports));
        let subjects = used.iter().map(subject).collect();
        Self {
            manner,
            random,
            scale,
            clock,
            now,
            began: (now, 0),
            latest: now,
            settings,
            focus,
            live: limiters.live(),
            subjects,
            shadows,
            inner,
            reports,
            model: Model::new(models(&params, fixed), slip),
            params,
            max_queued,
            calls: BTreeMap::new(),
            next_id: 0,
            touched: BTreeMap::new(),
            one_by_one: BTreeSet::new(),
            evicted: BTreeMap::new(),
            removed: 0,
            last_wait: 0,
            is_over: false,
            seen: Seen::default(),
            log: Vec::new(),
        }
    }

    /// Chooses the limiters of a case, and the services that can be called: one of all policies, and those of few policies
    /// that have no other limiters.
    fn focus(random: &mut Random) -> (Vec<usize>, Vec<usize>) {
        let limiters = |service: usize| -> BTreeSet<usize> {
            policies_of(service).iter().map(|policy| LIMITER_OF[*policy]).collect()
        };
        let mut focus = BTreeSet::new();
        if random.one_in(2) {
            focus = limiters(random.within(2..=SERVICES as u64 - 1) as usize);
        }
        let count = random.within(2..=5) as usize;
        while focus.len() < count {
            focus.insert(random.below(KINDS as u64) as usize);
        }
        let few = (2..SERVICES).filter(|service| limiters(*service).is_subset(&focus));
        let all = random.one_of(&[ALL_PLAIN, ALL_FULL]);
        let services = [all].into_iter().chain(few).collect();
        (focus.into_iter().collect(), services)
    }

    fn saw(&mut self, event: &'static str, times: u64) {
        *self.seen.entry(event).or_default() += times;
    }

    fn note(&mut self, text: impl FnOnce(&Self) -> String) {
        let line = format!("at {}: {}", self.now, text(self));
        self.log.push(line);
    }

    fn step(&mut self) {
        self.began = (self.now, self.model.undone);
        self.touched.clear();
        self.one_by_one.clear();
        let (before, is_lazy) = (self.tables(), self.random.one_in(5));
        let operation = self.random.below(66);
        match operation {
            0..34 => self.call(),
            34..44 => self.move_clock(),
            44..48 => self.drop_one(),
            48..54 => self.end_one(),
            54..56 => self.direct(Way::Check),
            56..58 => self.direct(Way::Acquire),
            58 => self.refund(),
            59 => self.reset(),
            60 => self.replace(),
            61 if self.random.one_in(8) => self.close(),
            62 if self.calls.is_empty() => self.toggle_shadow(),
            63 | 64 => self.pause(),
            _ => self.poll_any(),
        }
        if self.is_over() {
            return;
        }
        if !is_lazy {
            self.settle();
        }
        if self.is_over() {
            return;
        }
        self.compare();
        for ((limiter, (len, used)), (new_len, new_used)) in self.focus.iter().zip(before).zip(self.tables())
        {
            let new = new_used.iter().filter(|key| !used.contains(key)).count();
            // A key whose charges are undone is fresh again, and removed later.
            let is_undone = operation >= 34
                || self.model.is_denied_by_itself
                || self.began != (self.now, self.model.undone);
            let keeps_all = !self.model.limit_ref(*limiter).starts_fresh(self.now);
            let is_tidy = new_len <= len + new || keeps_all || is_undone;
            assert!(is_tidy, "limiter {limiter} keeps a key that was not charged");
        }
    }

    /// Returns whether nothing more can be compared.
    fn is_over(&self) -> bool {
        // What was refilled since a charge is not undone, and a reading of the clock is enough to refill something.
        self.is_over || self.manner.time == Time::AtEachReading && self.model.undone > 0
    }

    /// Returns for each limiter how many keys are in the table, and which must be there.
    fn tables(&self) -> Vec<(usize, Vec<Key>)> {
        let table =
            |limiter: &usize| (self.live[*limiter].len(), self.model.limit_ref(*limiter).used(self.now));
        self.focus.iter().map(table).collect()
    }

    fn holds(&self) -> impl Fn(usize) -> bool + use<> {
        let holds: Vec<_> = self.settings.iter().map(|settings| settings.holds_requests).collect();
        move |limiter| holds[limiter]
    }

    fn any_limiter(&mut self) -> usize {
        self.random.one_of(&self.focus)
    }

    fn any_key(&mut self) -> Key {
        self.random.below(self.manner.keys.into()) as Key
    }

    fn any_cost(&mut self) -> u64 {
        self.random.one_of(&[0, 1, 1, 1, 1, 1, 2, 2, 3, 7])
    }

    fn is_paused(&self, limiter: usize, key: Key) -> bool {
        self.model.limit_ref(limiter).is_paused(self.now, key)
    }

    fn touch(&mut self, limiter: usize, key: Key) {
        self.touched.entry(limiter).or_default().insert(key);
    }

    /// Makes a joint call.
    fn call(&mut self) {
        let services: Vec<_> = self.subjects.keys().copied().collect();
        let nth = self.random.one_of(&services);
        let policies = self.subjects[&nth].policies.clone();
        let mut parts = [None; LIMITER_OF.len()];
        let candidates: Vec<_> =
            policies.iter().copied().filter(|policy| self.focus.contains(&LIMITER_OF[*policy])).collect();
        let most = self.random.within(1..=5) as usize;
        while parts.iter().flatten().count() < most.min(candidates.len()) {
            let policy = self.random.one_of(&candidates);
            parts[policy] = Some(self.any_part(policy, &parts, self.subjects[&nth].is_full));
        }
        let id = self.next_id;
        self.next_id += 1;
        let longest = self.params[self.focus[0]].period / self.scale.grid * 2;
        let has_tiers = candidates.iter().any(|policy| LIMITER_OF[*policy] == TIERED)
            && self.settings[TIERED].holds_requests;
        let max_wait =
            (!has_tiers && self.random.one_in(5)).then(|| self.random.below(longest) * self.scale.grid);
        let way = Way::Layer(nth, max_wait.unwrap_or(u64::MAX));
        let is_full = self.subjects[&nth].is_full;
        let mut asks = Vec::new();
        for policy in policies {
            let Some(part) = parts[policy].filter(|part| !part.is_exempt) else { continue };
            let limiter = LIMITER_OF[policy];
            asks.push(Ask {
                policy,
                limiter,
                key: part.key,
                cost: part.cost,
                tier: (limiter == TIERED && is_full).then_some(part.tier),
                priority: part.priority && is_full && self.settings[limiter].priority_units.is_some(),
                is_shadow: self.shadows[policy].is_on(),
                settles: is_full,
            });
        }
        self.note(|_| format!("call {id} of service {nth}, within {max_wait:?}: {asks:?}"));
        self.admit_due(&asks);
        let subject = self.subjects.get_mut(&nth).expect("it is one of the services");
        let response = subject.service.call(Job { id, parts, max_wait });
        let running = PolledByHand::new(Box::pin(async move {
            match response.await {
                Ok(_) => Yield::Answer,
                Err(Error::Limited(decision)) => Yield::Denied(decision),
                Err(Error::Inner(())) => Yield::InnerError,
                Err(other) => panic!("{other:?}"),
            }
        }) as Pin<Box<dyn Future<Output = Yield>>>);
        self.saw("joint_calls", u64::from(asks.len() > 1));
        let mut keys: Vec<_> =
            asks.iter().filter(|ask| !ask.is_shadow).map(|ask| (ask.limiter, ask.key)).collect();
        keys.sort_unstable();
        self.saw("same_key", u64::from(keys.windows(2).any(|pair| pair[0] == pair[1])));
        let is_paused = |(limiter, key): &&(usize, Key)| self.is_paused(*limiter, *key);
        let (all, paused) = (keys.len(), keys.iter().filter(is_paused).count());
        self.saw("one_is_paused", u64::from(all > 1 && paused == 1));
        self.start(id, CallInfo { running, way, asks, was_queued: false, is_admitted: false });
    }

    /// Admits the due waiters of keys that share the places of all keys with another key of the call. Otherwise it is not
    /// known which of the keys is looked at first, and whether the other one finds the places free.
    fn admit_due(&mut self, asks: &[Ask]) {
        if self.max_queued >= 1_000 {
            return;
        }
        for ask in asks {
            if asks.iter().any(|other| other.limiter == ask.limiter && other.key != ask.key) {
                self.check(ask.limiter, ask.key, 0);
            }
        }
    }

    fn any_part(&mut self, policy: usize, parts: &[Option<JobPart>], is_full: bool) -> JobPart {
        let mut part = JobPart {
            key: self.any_key(),
            cost: self.any_cost(),
            tier: self.random.below(3) as usize,
            priority: self.random.one_in(2),
            is_exempt: self.random.one_in(12),
        };
        // In shadow mode, such a call takes the place of a waiter: `faults` has such calls.
        part.is_exempt |= self.shadows[policy].is_on() && self.settings[LIMITER_OF[policy]].drops_oldest;
        let same = |other: &usize| *other != policy && LIMITER_OF[*other] == LIMITER_OF[policy];
        let same_limiter = (0..LIMITER_OF.len()).find(|other| same(other) && parts[*other].is_some());
        let other = same_limiter.and_then(|other| parts[other]);
        if let Some(other) = other
            && self.random.one_in(2)
        {
            part.key = other.key;
        }
        if self.waits_in_tiers(LIMITER_OF[policy]) {
            part.tier = 1;
            part.is_exempt |= !is_full;
        }
        if let (Table::Full { .. }, Some(nth), Some(other)) = (self.manner.table, same_limiter, other) {
            // A call of cost 0 takes the room of another key: `faults` has such calls. In shadow mode, a key may evict
            // another key of the call, and be evicted by it.
            let takes_room = part.key != other.key && part.cost.min(other.cost) == 0;
            let in_shadow = [policy, nth].iter().any(|policy| self.shadows[*policy].is_on());
            part.is_exempt |= takes_room || in_shadow;
        }
        part
    }

    /// Returns whether calls of several tiers could wait for one key. The state of a tier depends on when the tier was
    /// added to the key, which is not the point here. So if calls wait, all of them choose the same tier.
    fn waits_in_tiers(&self, limiter: usize) -> bool {
        limiter == TIERED && self.settings[TIERED].holds_requests
    }

    /// Makes a call of one limiter, without a layer.
    fn direct(&mut self, way: Way) {
        let (limiter, key, cost) = (self.any_limiter(), self.any_key(), self.any_cost());
        if holds_units(limiter) || limiter == TIERED && way == Way::Acquire || self.waits_in_tiers(limiter) {
            return;
        }
        let (tier, priority, is_shadow, settles) = (None, false, false, false);
        let ask = Ask { policy: usize::MAX, limiter, key, cost, tier, priority, is_shadow, settles };
        let id = self.next_id;
        self.next_id += 1;
        self.note(|_| format!("{way:?} {id}: {cost} of {key} of limiter {limiter}"));
        let future: Pin<Box<dyn Future<Output = Yield>>> = match way {
            Way::Acquire => {
                let acquire = self.live[limiter].acquire(key, cost);
                Box::pin(async move { Yield::Decided(acquire.await) })
            }
            _ => {
                let decision = self.live[limiter].check(key, cost);
                Box::pin(async move { Yield::Decided(decision) })
            }
        };
        let (running, asks) = (PolledByHand::new(future), vec![ask]);
        self.start(id, CallInfo { running, way, asks, was_queued: false, is_admitted: false });
    }

    /// Makes a call that was just created on the model as well.
    fn start(&mut self, id: Id, mut info: CallInfo) {
        for ask in &info.asks {
            self.touched.entry(ask.limiter).or_default().insert(ask.key);
        }
        let is_polled = !matches!(info.way, Way::Layer(..)) || !self.random.one_in(8);
        if is_polled {
            info.running.poll();
        }
        let holds = self.holds();
        let mut outcome = self.model.call(self.now, id, info.way, info.asks.clone(), &holds);
        if self.lacks_room(&info, &outcome) {
            self.is_over = true;
            return;
        }
        if self.model.is_denied_by_itself {
            self.saw("denied_by_itself", 1);
            // A key whose queue is full drops its oldest waiter before another key of the same call finds that the call
            // itself has taken the last place or the last units of all keys. That waiter stays denied.
            if self.model.latest.contains(&Some(Verdict::Displace)) {
                self.saw("displaced_in_vain", 1);
                self.is_over = true;
                return;
            }
        }
        let is_queued = outcome == Outcome::Waiting;
        info.was_queued = is_queued;
        if is_queued {
            self.saw("waited", 1);
            let queues = self.model.queues_of(id);
            self.saw("in_two_queues", u64::from(queues > 1));
            if is_polled {
                outcome = self.model.poll(self.now, id);
            }
        }
        if !is_polled && matches!(outcome, Outcome::Denied(_)) {
            info.running.poll();
        }
        let is_denied = matches!(outcome, Outcome::Denied(_));
        if is_denied && !is_queued && matches!(info.way, Way::Layer(..)) {
            self.wait_is_true(&info);
        }
        let at_once = !is_queued;
        if at_once {
            self.remaining_is_true(id, &info);
        }
        self.calls.insert(id, info);
        self.has_outcome(id, outcome);
    }

    /// Returns whether a call has found room for only some of its keys. It is not known for which: for a key that is in
    /// the table although it is fresh, or for another one.
    fn lacks_room(&self, info: &CallInfo, outcome: &Outcome) -> bool {
        let Outcome::Denied(decisions) = outcome else { return false };
        let enforced = || info.asks.iter().filter(|ask| !ask.is_shadow);
        let is_full =
            |(_, decision): &(&Ask, &PolicyDecision)| **decision == PolicyDecision::Denied(Denial::TableFull);
        enforced()
            .zip(decisions)
            .filter(is_full)
            .any(|(ask, _)| enforced().any(|other| other.limiter == ask.limiter && other.key != ask.key))
    }

    /// Asserts that a call has this outcome.
    fn has_outcome(&mut self, id: Id, outcome: Outcome) {
        let mut info = self.calls.remove(&id).expect("it was made");
        let is_layer = matches!(info.way, Way::Layer(..));
        let got = match &info.running.output {
            None if self.inner.has_arrived(id) => "admitted",
            None => "waiting",
            Some(Yield::Denied(_)) => "denied",
            Some(Yield::Decided(decision)) if !decision.is_allowed() => "denied",
            Some(_) => "admitted",
        };
        match outcome {
            Outcome::Waiting => {
                let reports = self.reports.peek(id);
                assert_eq!(got, "waiting", "call {id} should wait: {reports:?}");
                self.calls.insert(id, info);
            }
            Outcome::Admitted => {
                assert_eq!(got, "admitted", "call {id} should be admitted");
                self.saw("admitted", 1);
                for ask in info.asks.iter().filter(|ask| ask.is_shadow) {
                    self.touch(ask.limiter, ask.key);
                    self.one_by_one.insert(ask.limiter);
                }
                let reports = self.reports.take(id);
                assert!(reports.iter().all(Decision::is_allowed), "{reports:?}");
                if is_layer {
                    info.is_admitted = true;
                    let held = info.asks.iter().any(|ask| holds_units(ask.limiter) && ask.cost > 0);
                    self.saw("held", u64::from(held));
                    self.calls.insert(id, info);
                }
            }
            Outcome::Denied(decisions) => {
                assert_eq!(got, "denied", "call {id} should be denied: {decisions:?}");
                self.saw("denied", 1);
                let table_full = PolicyDecision::Denied(Denial::TableFull);
                self.saw("table_full", u64::from(decisions.contains(&table_full)));
                self.saw("denied_later", u64::from(info.was_queued));
                let (reports, decision) = match info.running.output {
                    Some(Yield::Denied(decision)) => (self.reports.take(id), decision),
                    Some(Yield::Decided(decision)) => (vec![decision], decision),
                    _ => unreachable!("it was denied"),
                };
                let due: Vec<_> =
                    decisions.into_iter().filter(|due| *due != PolicyDecision::Undecided).collect();
                let got: Vec<_> = reports.iter().map(decision_of).collect();
                assert_eq!(got, due, "call {id}: {reports:?}");
                is_the_denial(&decision, &reports);
            }
        }
    }

    /// Asserts that a denied call would be denied at every instant before the reported wait, and not after it.
    fn wait_is_true(&mut self, info: &CallInfo) {
        let Some(Yield::Denied(decision)) = &info.running.output else { return };
        let (asks, now, grid) = (&info.asks, self.now, self.scale.grid);
        let limits = || asks.iter().filter(|ask| !ask.is_shadow).map(|ask| ask.limiter);
        let Some(wait) = decision.retry_after() else {
            let is_known = decision.is_closed() || decision.is_table_full() || decision.never_fits();
            assert!(is_known || limits().any(holds_units), "{decision:?}");
            return;
        };
        let wait = (wait.as_nanos() as u64).next_multiple_of(grid);
        self.last_wait = wait;
        // The wait of a call is computed before it adds its tier to a key with waiters, or that is paused.
        let queues = self.model.queues();
        let is_held =
            |ask: &&Ask| queues.contains(&(ask.limiter, ask.key)) || self.is_paused(ask.limiter, ask.key);
        let adds_tier = asks.iter().filter(is_held).any(|ask| ask.tier.is_some());
        // The call may displace the oldest waiter now, but not find the units later that the waiter has taken.
        let displaces = limits().any(|limiter| self.settings[limiter].drops_oldest);
        // The places of all keys together are taken by calls of other keys.
        if wait > 1 << 50 || self.max_queued < 1_000 || adds_tier || displaces {
            return;
        }
        assert!(wait > 0, "{decision:?}");
        let holds = self.holds();
        let denies = |after: u64| self.model.denies_at(now, now + after, info.way, asks, &holds);
        // The end of a pause is told even if it is unknown when calls of other keys free a part of the total.
        let is_paused = |ask: &&Ask| self.is_paused(ask.limiter, ask.key);
        let is_lower_bound =
            asks.iter().filter(is_paused).any(|ask| self.settings[ask.limiter].total.is_some());
        assert!(is_lower_bound || !denies(wait), "denied after {wait}, {decision:?}");
        assert!(denies(wait - grid), "allowed before {wait}, {decision:?}");
        let early = self.random.below(wait / grid) * grid;
        assert!(denies(early), "allowed after {early}, before {wait}, {decision:?}");
        self.saw("waits_reported", 1);
    }

    /// Asserts that each policy reports how many further calls it would admit.
    fn remaining_is_true(&mut self, id: Id, info: &CallInfo) {
        let reports = match &info.running.output {
            Some(Yield::Decided(decision)) => vec![*decision],
            _ => self.reports.peek(id),
        };
        let asks: Vec<_> = info.asks.iter().filter(|ask| !ask.is_shadow).collect();
        // The engine then reports the units without charges that it has undone.
        if self.model.is_denied_by_itself && !info.was_queued {
            return;
        }
        // A policy whose queue has not decided the call, when another one denies it, reports nothing. An eviction of
        // this step is not known yet.
        let may_be_evicted = matches!(self.manner.table, Table::Full { evicts: true });
        if info.was_queued && (reports.len() < asks.len() || may_be_evicted || self.is_over()) {
            return;
        }
        let verdicts = info.asks.iter().zip(&self.model.latest).filter(|(ask, _)| !ask.is_shadow);
        for ((ask, report), (_, verdict)) in asks.iter().zip(&reports).zip(verdicts) {
            let other_keys = asks.iter().any(|other| (other.limiter, other.key) != (ask.limiter, ask.key));
            let shares_total = ask.limiter == CALLS || self.max_queued < 1_000;
            // A call of cost 0 needs no room, so it is reported what a key without room could do.
            let has_no_room = matches!(self.manner.table, Table::Full { .. }) && ask.cost == 0;
            // Limits in shadow mode decide after the reports were made.
            let in_shadow = info.asks.iter().any(|other| other.is_shadow && other.limiter == ask.limiter);
            if report.is_closed()
                || report.is_table_full()
                || report.remaining() >= 1_000
                || other_keys && shares_total
                || in_shadow
                || has_no_room
                // A call that was displaced learns later what was left then.
                || info.was_queued && !report.is_allowed()
            {
                continue;
            }
            let limit = self.model.limit_ref(ask.limiter);
            if limit.is_closed() || report.remaining() >= 1_000 {
                continue;
            }
            let settings = &self.settings[ask.limiter];
            let question = self.model.question(info.way, ask, settings.holds_requests);
            // A window counts calls with priority that would have to wait longer than they may. `Smooth` rounds several
            // waits together.
            let longest = question.max_wait.map_or(0, |max_wait| max_wait.min(settings.max_wait));
            if (question.priority || ask.limiter == SMOOTH) && longest < u64::MAX {
                continue;
            }
            // A limit that would queue a call ignores the maximum wait of the call if another limit denies it.
            let would_wait = !info.was_queued && matches!(verdict, Some(Verdict::Wait | Verdict::Displace));
            if would_wait && question.max_wait.is_some_and(|max_wait| max_wait < u64::MAX) {
                continue;
            }
            assert_eq!(
                report.remaining(),
                limit.remaining(self.now, &question),
                "call {id}, policy {}: {report:?}",
                ask.policy
            );
        }
    }

    /// Polls a call that was not woken.
    fn poll_any(&mut self) {
        let waiting: Vec<_> =
            self.calls.iter().filter(|(_, info)| !info.is_admitted).map(|(id, _)| *id).collect();
        if !waiting.is_empty() {
            let id = self.random.one_of(&waiting);
            self.poll(id);
        }
    }

    fn poll(&mut self, id: Id) {
        let info = self.calls.get_mut(&id).expect("it waits");
        info.running.poll();
        let outcome = self.model.poll(self.now, id);
        if outcome != Outcome::Waiting {
            self.note(|_| format!("call {id} is {outcome:?}"));
            let info = self.calls.remove(&id).expect("it has waited");
            if info.was_queued && matches!(info.way, Way::Layer(..)) {
                self.remaining_is_true(id, &info);
            }
            self.calls.insert(id, info);
        }
        self.has_outcome(id, outcome);
    }

    /// Polls all calls that were woken, until none is.
    fn settle(&mut self) {
        loop {
            let woken: Vec<_> = self
                .calls
                .iter()
                .filter(|(_, info)| !info.is_admitted && info.running.is_woken())
                .map(|(id, _)| *id)
                .collect();
            if woken.is_empty() {
                break;
            }
            let id = self.random.one_of(&woken);
            self.poll(id);
        }
        for (id, _) in self.calls.iter().filter(|(_, info)| !info.is_admitted) {
            assert!(!self.model.has_turn(self.now, *id), "call {id} was not woken");
        }
    }

    /// Drops a call that waits.
    fn drop_one(&mut self) {
        let waiting: Vec<_> =
            self.calls.iter().filter(|(_, info)| !info.is_admitted).map(|(id, _)| *id).collect();
        if waiting.is_empty() {
            return;
        }
        let id = self.random.one_of(&waiting);
        self.note(|_| format!("call {id} is dropped"));
        drop(self.calls.remove(&id));
        self.model.cancel(self.now, id);
        self.saw("dropped", 1);
    }

    /// Ends a call that is in progress.
    fn end_one(&mut self) {
        let admitted: Vec<_> =
            self.calls.iter().filter(|(_, info)| info.is_admitted).map(|(id, _)| *id).collect();
        if admitted.is_empty() {
            return;
        }
        let id = self.random.one_of(&admitted);
        let ending = match self.random.below(6) {
            0 => Ending::Error,
            1 => Ending::Dropped,
            _ => {
                let actual = |_| self.random.one_in(2).then(|| self.random.below(7));
                Ending::Answer(LIMITER_OF.iter().map(actual).collect())
            }
        };
        self.note(|_| format!("call {id} ends: {ending:?}"));
        self.end_with(id, &ending);
    }

    fn end_with(&mut self, id: Id, ending: &Ending) {
        let mut info = self.calls.remove(&id).expect("it is in progress");
        for ask in &info.asks {
            self.touch(ask.limiter, ask.key);
            self.one_by_one.insert(ask.limiter);
        }
        match self.inner.end(id, ending) {
            true => {
                assert!(info.running.poll(), "call {id} has ended");
                match info.running.output {
                    Some(Yield::Answer) => assert!(matches!(ending, Ending::Answer(_))),
                    Some(Yield::InnerError) => assert!(matches!(ending, Ending::Error)),
                    _ => panic!("call {id} was admitted"),
                }
            }
            false => drop(info),
        }
        self.model.end(self.now, id, ending);
        self.saw("settled", u64::from(matches!(ending, Ending::Answer(_))));
    }

    fn refund(&mut self) {
        let (limiter, key, cost) = (self.any_limiter(), self.any_key(), self.random.within(1..=3));
        // A refund to a bucket that started empty could give back units that no call has taken.
        self.note(|_| format!("refund {cost} to {key} of limiter {limiter}"));
        self.touch(limiter, key);
        self.live[limiter].refund(key, cost);
        self.model.limit(limiter).refund(self.now, key, cost);
    }

    fn reset(&mut self) {
        // A charge may be undone after a reset. It is known that it was made before the reset if the clock has advanced.
        if self.manner.time == Time::AtEachReading {
            return;
        }
        let (limiter, key) = (self.any_limiter(), self.any_key());
        self.note(|_| format!("reset {key} of limiter {limiter}"));
        let was_paused = self.is_paused(limiter, key);
        let was_used = self.live[limiter].reset(key);
        assert!(was_used || !was_paused, "a paused key is not as a new key");
        self.model.limit(limiter).reset(self.now, key);
    }

    /// Pauses a key, if possible one with waiters, or ends its pause.
    fn pause(&mut self) {
        let queues = self.model.queues();
        let (limiter, key) = if queues.is_empty() || self.random.one_in(2) {
            (self.any_limiter(), self.any_key())
        } else {
            self.random.one_of(&queues)
        };
        let grid = self.scale.grid;
        let duration = match self.random.below(5) {
            0 => 0,
            1 => grid,
            _ => self.random.below(self.params[limiter].period / grid * 2) * grid,
        };
        self.note(|_| format!("pause {key} of limiter {limiter} for {duration}"));
        self.touch(limiter, key);
        let is_paused = self.model.limit(limiter).pause(self.now, key, duration);
        assert_eq!(self.live[limiter].pause(key, duration), is_paused);
        self.last_wait = duration;
        self.saw("paused", u64::from(is_paused));
        self.saw("paused_waiters", u64::from(is_paused && queues.contains(&(limiter, key))));
    }

    fn replace(&mut self) {
        // A replacement stretches the time by which readings have advanced the clock.
        if self.now < self.latest || self.manner.time == Time::AtEachReading {
            return;
        }
        let limiter = self.any_limiter();
        let params = self.params[limiter].another(limiter, &mut self.random, self.scale);
        self.note(|_| format!("replace limiter {limiter}: {params:?}"));
        self.live[limiter].replace(&params);
        self.model.limit(limiter).replace(self.now, &params);
        self.settings[limiter] = settings_of(limiter, &params);
        self.params[limiter] = params;
    }

    fn close(&mut self) {
        let limiter = self.any_limiter();
        self.note(|_| format!("close limiter {limiter}"));
        self.live[limiter].close();
        self.model.limit(limiter).close(self.now);
    }

    fn toggle_shadow(&mut self) {
        let policy = self.random.below(LIMITER_OF.len() as u64) as usize;
        let is_on = !self.shadows[policy].is_on() && self.random.one_in(2);
        self.note(|_| format!("shadow of policy {policy}: {is_on}"));
        self.shadows[policy].set(is_on);
    }

    /// Returns to which time the clock must be set for the next waiter to be admitted.
    fn next_admission(&self) -> Option<u64> {
        let queues = self.model.queues();
        let next = queues
            .iter()
            .filter_map(|(limiter, key)| self.model.limit_ref(*limiter).next_admission(self.now, *key));
        let grid = self.scale.grid;
        next.min().map(|next| (next.max(self.now) - grid / 2).next_multiple_of(grid))
    }

    fn move_clock(&mut self) {
        let grid = self.scale.grid;
        if self.manner.time == Time::Never {
            return;
        }
        if self.manner.time == Time::AlsoBack && self.random.one_in(4) {
            return self.step_back();
        }
        let limiter = self.any_limiter();
        let Params { period, limit, .. } = self.params[limiter];
        let now = self.now - grid / 2;
        let next = self.next_admission().unwrap_or(now);
        let to = match self.random.below(9) {
            0 | 1 => next,
            2 => next.saturating_sub(grid),
            3 => now + self.last_wait.min(period * 10),
            4 => now + period / limit,
            5 => now + period,
            6 => now + self.random.below(period * 2),
            _ => now + self.random.below(12) * grid,
        };
        let to = to.max(now).next_multiple_of(grid);
        // Late waiters are admitted by whatever uses their key next.
        while let Some(next) = self.next_admission().filter(|next| *next < to)
            && next > self.now - grid / 2
            && !self.random.one_in(5)
        {
            self.set_clock(next);
            self.settle();
        }
        self.set_clock(to);
    }

    fn set_clock(&mut self, to: u64) {
        self.now = to + self.scale.grid / 2;
        self.latest = self.latest.max(self.now);
        self.note(|_| "the clock is set".to_owned());
        self.clock.set(to);
    }

    /// Sets the clock back, after all keys have observed the present reading: it is not known which readings a key has
    /// observed that was removed.
    fn step_back(&mut self) {
        for limiter in self.focus.clone() {
            for key in 0..self.manner.keys {
                self.check(limiter, key, 0);
            }
            // This key is removed at once, so that each new key begins at the present reading or later.
            let removed = Key::MAX - self.removed;
            self.check(limiter, removed, 1_000);
            self.live[limiter].reset(removed);
            self.model.limit(limiter).forget(removed);
            self.model.limit(limiter).observe_all(self.now);
        }
        self.removed += 1;
        self.settle();
        let shortest = self.focus.iter().map(|limiter| self.params[*limiter].period).min().unwrap_or(0);
        let earliest = self.latest.saturating_sub(shortest);
        // The clock does not advance at readings, so this is the clock's time as well.
        let to = self.now.saturating_sub(self.random.below(shortest + 1)).max(earliest);
        self.saw("steps_back", u64::from(to < self.now));
        self.set_clock(to);
    }

    /// Checks a call that is decided at once, and then forgotten.
    fn check(&mut self, limiter: usize, key: Key, cost: u64) {
        let (policy, tier, priority, is_shadow, settles) = (usize::MAX, None, false, false, false);
        let ask = Ask { policy, limiter, key, cost, tier, priority, is_shadow, settles };
        let holds = self.holds();
        let outcome = self.model.call(self.now, Id::MAX, Way::Check, vec![ask], &holds);
        let is_allowed = self.live[limiter].check(key, cost).is_allowed();
        assert_eq!(is_allowed, outcome == Outcome::Admitted);
    }

    /// Compares all keys of all limiters.
    fn compare(&mut self) {
        for limiter in self.focus.clone() {
            self.find_evicted(limiter);
            // It is not known which keys a closed limiter evicts, because it admits all calls or none.
            let evicts = matches!(self.manner.table, Table::Full { evicts: true });
            if evicts && self.model.limit_ref(limiter).is_closed() {
                continue;
            }
            for key in 0..self.manner.keys {
                for cost in [1, 3] {
                    let got = self.live[limiter].peek(key, cost);
                    let due = self.model.limit(limiter).peek(self.now, key, cost);
                    let grid = self.scale.grid;
                    assert!(
                        agrees(&got, &due, grid),
                        "limiter {limiter}, key {key}, cost {cost}: {got:?} should be {due:?}"
                    );
                }
            }
            let limit = self.model.limit_ref(limiter);
            assert_eq!(self.live[limiter].queued(), limit.queued(), "queued calls of limiter {limiter}");
            let (used, len) = (limit.used(self.now), self.live[limiter].len());
            // No key is fresh while the clock is behind, so a key that was removed before may be missing.
            let is_behind = self.now < self.latest;
            assert!(used.len() <= len || is_behind, "limiter {limiter} has lost a key: {len} of {used:?}");
        }
    }

    /// Finds the keys that the table has evicted. A key may be evicted only if the table is full, for a new key of the
    /// present operation.
    fn find_evicted(&mut self, limiter: usize) {
        let Table::Full { evicts: true } = self.manner.table else { return };
        let count = self.live[limiter].evicted();
        let new = count - self.evicted.insert(limiter, count).unwrap_or(0);
        let touched = self.touched.get(&limiter).cloned().unwrap_or_default();
        if self.model.limit_ref(limiter).is_closed() {
            return;
        }
        assert!(new <= touched.len() as u64, "{new} keys of limiter {limiter} were evicted");
        let mut found = 0;
        for key in self.model.limit_ref(limiter).used(self.now) {
            let limit = self.model.limit(limiter);
            let is_evicted = [1, 3].into_iter().any(|cost| {
                let got = self.live[limiter].peek(key, cost);
                !agrees(&got, &limit.peek(self.now, key, cost), self.scale.grid)
            });
            if is_evicted {
                assert!(limit.may_evict(self.now, key), "key {key} of limiter {limiter} is in use");
                let is_kept = touched.contains(&key) && !self.one_by_one.contains(&limiter);
                assert!(!is_kept, "key {key} of limiter {limiter} was just used");
                self.model.limit(limiter).forget(key);
                found += 1;
            }
        }
        // Since its eviction, a key may have become fresh, also by a settlement of its own.
        let is_settled = self.one_by_one.contains(&limiter);
        let may_be_fresh = is_settled || self.began != (self.now, self.model.undone);
        assert!(found == new || found < new && may_be_fresh, "keys of limiter {limiter} were evicted");
        self.saw("evicted", found);
    }

    /// Ends all calls, and compares what was counted.
    fn end(&mut self) {
        self.touched.clear();
        self.settle();
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let Some(info) = self.calls.get(&id) else { continue };
            if info.is_admitted {
                self.end_with(id, &Ending::Dropped);
            } else {
                self.note(|_| format!("at the end, call {id} is dropped"));
                drop(self.calls.remove(&id));
                self.model.cancel(self.now, id);
            }
            self.settle();
            if self.is_over() {
                return;
            }
            self.compare();
        }
        // A call that was admitted when another one was dropped is in progress.
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            self.end_with(id, &Ending::Dropped);
        }
        self.compare();
        let mut all: BTreeMap<usize, Counts> = self.model.direct.clone();
        for (nth, subject) in &self.subjects {
            for (policy, got) in subject.policies.iter().zip(subject.service.counts()) {
                let due = self.model.counts.get(&(*nth, *policy)).cloned().unwrap_or_default();
                assert_eq!(got, due, "policy {policy} of service {nth}");
                add(all.entry(LIMITER_OF[*policy]).or_default(), &due);
                add(&mut self.seen, &due);
            }
        }
        for limiter in &self.focus {
            let due = all.get(limiter).cloned().unwrap_or_default();
            assert_eq!(self.live[*limiter].calls(), due, "limiter {limiter}");
            assert_eq!(self.live[*limiter].queued(), 0);
        }
        for (policy, shadow) in self.shadows.iter().enumerate() {
            let denied = |((_, of), counts): (&(usize, usize), &Counts)| match *of == policy {
                true => counts.get("shadow_denied").copied().unwrap_or_default(),
                false => 0,
            };
            assert_eq!(shadow.denied(), self.model.counts.iter().map(denied).sum::<u64>());
        }
    }
}

fn decision_of(report: &Decision) -> PolicyDecision {
    match report {
        report if report.is_allowed() => PolicyDecision::Allowed,
        report if report.is_closed() => PolicyDecision::Denied(Denial::Closed),
        report if report.is_table_full() => PolicyDecision::Denied(Denial::TableFull),
        report if report.is_queue_full() => PolicyDecision::Denied(Denial::QueueFull),
        _ => PolicyDecision::Denied(Denial::Limit),
    }
}

/// Asserts that a call is rejected with the denial of a closed limiter, or of a full table, or else with the longest wait.
fn is_the_denial(decision: &Decision, reports: &[Decision]) {
    let urgency = |denial: &Decision| {
        let wait = denial.retry_after().unwrap_or(Duration::MAX);
        (denial.is_closed(), denial.is_table_full(), wait)
    };
    let most = reports.iter().filter(|report| !report.is_allowed()).map(urgency).max();
    assert_eq!(Some(urgency(decision)), most, "{decision:?} of {reports:?}");
}

/// Returns whether a peek agrees with the model. Times are compared on the grid of the clock.
fn agrees(got: &Decision, due: &Peek, grid: u64) -> bool {
    let up = |span: Option<Duration>| span.map(|span| span.as_nanos().next_multiple_of(grid.into()));
    match due {
        Peek::Closed => got.is_closed(),
        Peek::Roughly(is_allowed, remaining) => {
            (got.is_allowed(), got.remaining()) == (*is_allowed, *remaining)
        }
        Peek::Paused(retry) => {
            let wait = retry.map(Duration::from_nanos);
            !got.is_allowed() && got.remaining() == 0 && up(got.retry_after()) == up(wait)
        }
        Peek::Exactly(due) if grid == 1 => got == due,
        Peek::Exactly(due) => {
            let seen = |decision: &Decision| {
                let (retry, reset) = (up(decision.retry_after()), up(Some(decision.reset_after())));
                (decision.is_allowed(), decision.remaining(), retry, reset)
            };
            seen(got) == seen(due)
        }
    }
}
