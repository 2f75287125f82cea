//! The model of joint calls. It is written from the promises, as plainly as possible, and shares no code with the engine:
//!
//! - A call is admitted by all of its limits, or charged by none. The model tries a call on a copy, and keeps the copy
//!   only if every limit agrees.
//! - A denial charges nothing. Only a limit that itself denies the call may count the denial, once for each key.
//! - A call that uses one key several times costs the sum there, and the key admits the sum or nothing. If no limit denies
//!   the call, the first policy of the key charges or queues the sum, and reports it if this fails after all.
//! - A call that waits is charged by the other limits when it is queued, and by the limit with the queue when that queue
//!   admits it. With several queues, it is admitted when all of them have admitted it.
//! - The waiters of a key are admitted in the order of their arrival, each as soon as the algorithm admits it.
//! - A call that is dropped or denied while it waits leaves its queues. The charges of the other limits are undone, as
//!   far as they still count. An admission that the call has not observed yet is undone unless another call was admitted
//!   since, or the key was changed in another way.
//! - A limit in shadow mode decides the calls that all other limits admit, neither denies nor delays any, and charges
//!   those that it would have admitted.
//! - A permit is held until the call ends. A settled call costs what it really cost.
//! - No call passes while its key is paused, and no waiter is admitted. Time goes on for the key, a waiter that is
//!   delayed is denied at its deadline, and no denial of a pause is counted. A later pause replaces an earlier one, a
//!   reset ends it, and a replacement keeps it. A paused key is not evicted.
//!
//! The arithmetic of the algorithms is not the point here, and has models of its own. So a limit of this model keeps one
//! state per key, and passes it to the algorithm. Keys are never removed, so the removal of fresh keys must not be
//! noticed.

use std::collections::{BTreeMap, VecDeque};

use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, MAX_DEBT};
use tower_throttle::clock::Nanos;
use tower_throttle::stats::CallStats;

use super::subjects::{Kind, Params, Settings};

pub(crate) type Id = u64;
pub(crate) type Key = u8;

/// The mistakes of a broken model. The tests must detect each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slip {
    None,
    /// The limits that admit a call are charged even if another limit denies it.
    DenialCharges,
    /// A limit that admits a call counts a denial if another limit denies the call.
    DenialIsCountedByAll,
    /// The other limits are charged for a queued call only when the queue admits it.
    OthersChargeAtAdmission,
    /// A dropped call stays charged by the limits that have charged it.
    DropKeepsCharges,
    /// The charges of a dropped call are given back in full, even if they no longer count.
    DropGivesBackAll,
    /// A call that uses a key twice is charged once.
    SameKeyIsChargedOnce,
    /// If a call uses a key twice, the key is asked for each cost alone.
    SameKeyIsAskedSeparately,
    /// The shadow limits are charged even if the call is denied.
    ShadowChargesDenied,
    /// A limit in shadow mode denies calls.
    ShadowDenies,
    /// A waiter that fits is admitted before an earlier one.
    LighterOvertake,
    /// A call in several queues is admitted when one of them admits it.
    OneQueueIsEnough,
    /// If one queue denies a waiting call, the call stays in the other queues.
    StaysInOtherQueues,
    /// A dropped call stays charged if its queue has admitted it, and the call has not observed that.
    AdmissionIsFinal,
    /// A permit is released when the call is admitted.
    PermitEndsAtOnce,
    /// The permit of a call that is dropped in a queue is not released.
    DropKeepsPermit,
    /// A settled call keeps its charge.
    NotSettled,
    /// The policies that admit a call that another policy denies count it as admitted.
    OthersCountAdmitted,
    /// A new call passes during a pause if its key has no waiters.
    NewCallsPassInPause,
    /// Waiters are admitted during a pause.
    WaitersPassInPause,
    /// The denials of a pause are counted.
    PauseIsCounted,
    /// A shorter pause does not end a longer one.
    LongestPauseLasts,
    ReplacementEndsPause,
    ResetKeepsPause,
}

impl Slip {
    pub(crate) const ALL: [Self; 23] = [
        Self::DenialCharges,
        Self::DenialIsCountedByAll,
        Self::OthersChargeAtAdmission,
        Self::DropKeepsCharges,
        Self::DropGivesBackAll,
        Self::SameKeyIsChargedOnce,
        Self::SameKeyIsAskedSeparately,
        Self::ShadowChargesDenied,
        Self::ShadowDenies,
        Self::LighterOvertake,
        Self::OneQueueIsEnough,
        Self::StaysInOtherQueues,
        Self::AdmissionIsFinal,
        Self::PermitEndsAtOnce,
        Self::DropKeepsPermit,
        Self::NotSettled,
        Self::OthersCountAdmitted,
        Self::NewCallsPassInPause,
        Self::WaitersPassInPause,
        Self::PauseIsCounted,
        Self::LongestPauseLasts,
        Self::ReplacementEndsPause,
        Self::ResetKeepsPause,
    ];
}

/// What one policy asks of its limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) policy: usize,
    pub(crate) limiter: usize,
    pub(crate) key: Key,
    pub(crate) cost: u64,
    pub(crate) tier: Option<usize>,
    pub(crate) priority: bool,
    pub(crate) is_shadow: bool,
    /// `true` if the cost is settled when the response is known.
    pub(crate) settles: bool,
}

/// The way in which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the layer with this number. The call waits at most this long, in nanoseconds.
    Layer(usize, u64),
    /// By `acquire` of one limiter.
    Acquire,
    /// By `check` of one limiter.
    Check,
}

/// The reason of a denial, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    Limit,
    QueueFull,
    TableFull,
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Waiting,
    /// The decision of each policy that is not in shadow mode.
    Denied(Vec<PolicyDecision>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyDecision {
    Allowed,
    Denied(Denial),
    /// The call was still in the queue of this policy when another policy denied it.
    Undecided,
}

/// The end of an admitted call.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    /// The response, with the actual cost for each policy.
    Answer(Vec<Option<u64>>),
    Error,
    Dropped,
}

/// The calls of one policy, by the name of their outcome. Outcomes without calls are left out.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// Adds some counts to others.
pub(crate) fn add(to: &mut Counts, counts: &Counts) {
    counts.iter().for_each(|(name, count)| *to.entry(name).or_default() += count);
}

/// Returns the counts of an outcome each, except those of 0.
pub(crate) fn counts_of(stats: CallStats) -> Counts {
    let all = [
        ("admitted", stats.admitted),
        ("denied", stats.denied),
        ("queue_full", stats.queue_full),
        ("table_full", stats.table_full),
        ("closed", stats.closed),
        ("denied_by_others", stats.denied_by_others),
        ("cancelled", stats.cancelled),
        ("shadow_denied", stats.shadow_denied),
        ("queued", stats.queued),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

impl PolicyDecision {
    /// Returns the name under which a policy counts a call that was denied, by this policy or by another.
    fn outcome(self) -> &'static str {
        match self {
            Self::Allowed | Self::Undecided => "denied_by_others",
            Self::Denied(Denial::Limit) => "denied",
            Self::Denied(Denial::QueueFull) => "queue_full",
            Self::Denied(Denial::TableFull) => "table_full",
            Self::Denied(Denial::Closed) => "closed",
        }
    }
}

/// A call on one key, as a limit is asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) key: Key,
    pub(crate) cost: u64,
    pub(crate) tier: Option<usize>,
    pub(crate) priority: bool,
    /// The maximum wait of the call in nanoseconds. `None` if the call may not wait.
    pub(crate) max_wait: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Wait,
    /// The call waits, and the oldest waiter is denied.
    Displace,
    Deny(Denial),
}

/// What a limit has charged for a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    at: u64,
    /// The number of resets and replacements of the limit before. After another one of the key, nothing is given back.
    resets: u64,
    /// `true` if the units are held until the call ends.
    holds: bool,
    settles: bool,
}

/// The turn of a call in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    NotYet,
    /// Charged at this time, after this number of resets.
    Admitted(u64, u64),
    Denied(Denial),
}

/// What a peek at a key must report.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peek {
    Exactly(Decision),
    /// Only these two are known: whether the call is allowed, and the remaining units.
    Roughly(bool, u64),
    /// A denial by a pause, with its wait in nanoseconds.
    Paused(Option<u64>),
    Closed,
}

/// A limit with its keys.
pub(crate) trait Limit {
    fn copy(&self) -> Box<dyn Limit>;
    /// Returns what happens to a call. Admits the waiters of the key that are due, and charges nothing.
    fn verdict(&mut self, at: u64, question: &Question) -> Verdict;
    /// Charges a call that passes.
    fn charge(&mut self, at: u64, question: &Question) -> Charge;
    /// Queues a call that waits. If the queue is full, denies the oldest waiter.
    fn enqueue(&mut self, at: u64, id: Id, question: &Question) -> Charge;
    /// Denies a call, which its key may count.
    fn deny(&mut self, at: u64, question: &Question, is_counted: bool);
    /// Asks for the turn of a queued call. Unless it is `NotYet`, the call has left the queue.
    fn turn(&mut self, at: u64, key: Key, id: Id) -> Turn;
    /// Returns whether `turn` would return another value than `NotYet`.
    fn has_turn(&self, at: u64, key: Key, id: Id) -> bool;
    /// Takes a call out of the queue. If the queue has admitted the call, undoes the admission.
    fn leave(&mut self, at: u64, key: Key, id: Id);
    /// Returns whether a charge still counts. `resets` is the number of resets before it.
    fn counts(&self, key: Key, resets: u64) -> bool;
    fn undo(&mut self, at: u64, question: &Question, charged_at: Option<u64>);
    /// Ends a call that holds units.
    fn end(&mut self, at: u64, question: &Question);
    fn settle(&mut self, at: u64, question: &Question, charged_at: u64, actual: u64);
    fn refund(&mut self, at: u64, key: Key, cost: u64);
    fn reset(&mut self, at: u64, key: Key);
    /// Pauses the key, or ends its pause if `duration` is 0. Returns whether the key is paused.
    fn pause(&mut self, at: u64, key: Key, duration: u64) -> bool;
    fn is_paused(&self, at: u64, key: Key) -> bool;
    fn replace(&mut self, at: u64, params: &Params);
    fn close(&mut self, at: u64);
    /// Advances the key to this reading, as a call of cost 0 does.
    fn observe(&mut self, at: u64, key: Key);
    /// Looks at a key. Only a pause follows the clock then.
    fn peek(&mut self, at: u64, key: Key, cost: u64) -> Peek;
    /// Returns the number of calls of cost 1 like this one that would pass now, one after another. Also counts those
    /// that would wait, if the limit reports them.
    fn remaining(&self, at: u64, question: &Question) -> u64;
    /// Returns when the first waiter of the key is admitted, if that is known.
    fn next_admission(&self, at: u64, key: Key) -> Option<u64>;
    /// Returns the number of queued calls.
    fn queued(&self) -> usize;
    /// Returns for each key of a call whether the table has room for it.
    fn has_room(&self, at: u64, keys: &[Key]) -> Vec<bool>;
    /// Returns the keys that must be in the table: those that are not fresh, are paused, or have waiters or calls in
    /// progress.
    fn used(&self, at: u64) -> Vec<Key>;
    /// Returns whether the key may be evicted.
    fn may_evict(&self, at: u64, key: Key) -> bool;
    fn forget(&mut self, key: Key);
    /// Lets all keys observe this reading, also those that are not in the table.
    fn observe_all(&mut self, at: u64);
    /// Returns whether a new key is fresh, so that it need not be kept. A bucket may start empty, and the stored permits
    /// of `Smooth` grow from the beginning.
    fn starts_fresh(&self, at: u64) -> bool;
    fn is_closed(&self) -> bool;
}

/// The room of a key table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) max_keys: usize,
    pub(crate) evicts: bool,
}

/// The settings of a limiter that are never replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed {
    pub(crate) created_at: u64,
    pub(crate) max_queued: usize,
    pub(crate) admits_when_closed: bool,
    /// `None` if the table is never full.
    pub(crate) room: Option<Room>,
    pub(crate) slip: Slip,
}

/// A limit whose algorithm is of one kind.
#[derive(Clone)]
pub(crate) struct Single<A: Kind> {
    algorithm: A,
    settings: Settings,
    /// The algorithms that calls can choose.
    tiers: Vec<A>,
    fixed: Fixed,
    keys: BTreeMap<Key, KeyState<A>>,
    /// The state with which new keys begin, once the algorithm was replaced.
    first: Option<A::State>,
    /// The units of all keys that calls in progress hold, or waiters will hold.
    in_total: u64,
    /// A new key has observed this reading, because a key that was removed may have.
    observed: u64,
    is_closed: bool,
    /// The number of resets and replacements, and of those up to the latest replacement and the latest reset of a key.
    resets: u64,
    replaced: u64,
    reset: BTreeMap<Key, u64>,
}

#[derive(Clone)]
struct KeyState<A: Algorithm> {
    state: A::State,
    waiting: VecDeque<Waiter>,
    /// The calls that were admitted or denied, and have not observed it.
    unseen: Vec<(Waiter, Turn)>,
    /// The latest admission, with the state before it, while nothing else has changed the key since.
    latest: Option<(Id, A::State)>,
    /// No waiter is charged before this time: the latest reset, or the end of the latest pause.
    since: u64,
    /// `true` from the beginning of a pause until a look at the key after its end.
    is_paused: bool,
    /// The key's time when its waiters were last looked at.
    seen: u64,
    /// `true` once a settlement or a pause has delayed the waiters. From then on, they are denied at their deadlines.
    is_delayed: bool,
    /// `true` if a call was charged or counted, so that the key is no longer like a new one.
    is_used: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: Id,
    cost: u64,
    tier: Option<usize>,
    arrived: u64,
    /// The time from which the call is denied, if it is unknown when it will be admitted, or if it was delayed.
    deadline: u64,
}

impl<A: Algorithm> KeyState<A> {
    fn is_paused(&self, at: u64) -> bool {
        self.is_paused && at < self.since
    }

    /// Records the key's time. If it goes on from an earlier reading, the waiters have waited as long as before, and as
    /// much of the pause is left.
    fn observe_time(&mut self, seen: u64) {
        let (back, left) = (self.seen.saturating_sub(seen), self.since.saturating_sub(self.seen));
        self.seen = seen;
        if back > 0 {
            for waiter in &mut self.waiting {
                waiter.arrived = waiter.arrived.min(seen);
                waiter.deadline -= if waiter.deadline < u64::MAX { back } else { 0 };
            }
            self.since = self.since.min(seen + left);
        }
    }
}

impl<A: Kind> Single<A> {
    pub(crate) fn new(params: &Params, fixed: Fixed) -> Self {
        Self {
            algorithm: A::in_model(params),
            settings: A::settings(params),
            tiers: A::tiers(params),
            fixed,
            keys: BTreeMap::new(),
            first: None,
            in_total: 0,
            observed: 0,
            resets: 0,
            replaced: 0,
            reset: BTreeMap::new(),
            is_closed: false,
        }
    }

    fn algorithm(&self, tier: Option<usize>) -> &A {
        tier.map_or(&self.algorithm, |tier| &self.tiers[tier])
    }

    fn new_state(&self, at: u64) -> A::State {
        let at = at.max(self.observed);
        match &self.first {
            None => self.algorithm.new_state(Nanos(self.fixed.created_at), Nanos(at)),
            Some(first) => {
                let mut first = first.clone();
                let _ = self.algorithm.peek(&mut first, Nanos(at), 0);
                first
            }
        }
    }

    fn new_key(&self, at: u64) -> KeyState<A> {
        let (waiting, unseen) = (VecDeque::new(), Vec::new());
        KeyState {
            state: self.new_state(at),
            waiting,
            unseen,
            latest: None,
            since: 0,
            is_paused: false,
            seen: 0,
            is_delayed: false,
            is_used: false,
        }
    }

    /// Changes a key. The key is taken out of the table meanwhile, so that the algorithms can be read. A key that is not
    /// used is not put back.
    fn with<R>(&mut self, at: u64, key: Key, change: impl FnOnce(&mut Self, &mut KeyState<A>) -> R) -> R {
        let mut found = self.keys.remove(&key).unwrap_or_else(|| self.new_key(at));
        let result = change(self, &mut found);
        found.is_delayed &= !found.waiting.is_empty();
        if found.is_used {
            self.keys.insert(key, found);
        }
        result
    }

    fn is_too_late(&self, at: u64, key: &KeyState<A>, waiter: &Waiter) -> bool {
        let has_deadline = key.is_delayed || !self.settings.is_timed;
        has_deadline && waiter.deadline < u64::MAX && waiter.deadline <= at
    }

    /// Returns the state of the key before its first waiter is admitted, and the earliest time for that: `at`, or the
    /// end of the pause.
    fn start(&self, at: u64, key: &KeyState<A>) -> (A::State, Nanos) {
        let mut state = key.state.clone();
        if !key.is_paused(at) {
            return (state, Nanos(at));
        }
        let _ = self.algorithm.peek(&mut state, Nanos(key.since), 0);
        (state, Nanos(key.since))
    }

    /// Returns the wait of a call that a pause denies, if it is not denied for ever: what is left of the pause, or
    /// longer by the algorithm. This call does not count as denied.
    fn wait_in_pause(&self, at: u64, key: &KeyState<A>, cost: u64) -> Option<u64> {
        let (mut state, end) = self.start(at, key);
        if self.algorithm.peek(&mut state, end, cost).never_fits() {
            return None;
        }
        let ready_at = if A::is_locked_out(&self.algorithm, &state, end.0) {
            let denied = self.algorithm.peek(&mut state, end, cost);
            denied.retry_after().map(|wait| end.saturating_add(wait.as_nanos() as u64))
        } else {
            self.algorithm.ready_at(&mut state, end, cost)
        };
        ready_at.map(|ready_at| ready_at.max(end).0 - at)
    }

    /// Lets the key's time go on in a pause, up to its end.
    fn observe_pause(&self, at: u64, key: &mut KeyState<A>) {
        if key.is_paused {
            key.seen = key.seen.max(self.algorithm.last_update(&key.state).0);
            let until = at.min(key.since.max(key.seen));
            let _ = self.algorithm.peek(&mut key.state, Nanos(until), 0);
            key.observe_time(self.algorithm.last_update(&key.state).0);
            key.is_paused = at < key.since;
        }
    }

    /// Admits the waiters that are due.
    fn admit_due(&self, at: u64, key: &mut KeyState<A>) {
        self.observe_pause(at, key);
        if key.is_paused && self.fixed.slip != Slip::WaitersPassInPause {
            return;
        }
        while !key.waiting.is_empty() {
            let fits = |waiter: &Waiter, state: &mut A::State| {
                let arrived = waiter.arrived.max(key.since);
                self.algorithm(waiter.tier).admit_queued(state, Nanos(at), Nanos(arrived), waiter.cost)
            };
            let last = match self.fixed.slip {
                Slip::LighterOvertake => key.waiting.len(),
                _ => key.waiting.len().min(1),
            };
            let before = key.state.clone();
            let due = (0..last).find_map(|nth| Some((nth, fits(&key.waiting[nth], &mut key.state)?)));
            key.observe_time(self.algorithm.last_update(&key.state).0);
            let Some((nth, scheduled)) = due else { return };
            let Some(waiter) = key.waiting.remove(nth) else { return };
            key.latest = Some((waiter.id, before));
            let last = self.algorithm.last_update(&key.state).0;
            let charged_at = if last <= at { scheduled.0.min(at) } else { last };
            key.unseen.push((waiter, Turn::Admitted(charged_at, self.resets)));
        }
    }

    /// Makes a change between two admissions, after which the latest admission is final.
    fn commit(&self, at: u64, key: &mut KeyState<A>, change: impl FnOnce(&mut A::State)) {
        self.admit_due(at, key);
        key.latest = None;
        change(&mut key.state);
        self.admit_due(at, key);
    }

    /// Returns whether a call would be admitted within its maximum wait, behind all waiters but the first `gone`.
    fn is_in_time(&self, at: u64, key: &KeyState<A>, gone: usize, question: &Question) -> bool {
        let max_wait = question.max_wait.unwrap_or(0).min(self.settings.max_wait);
        if max_wait == u64::MAX || !self.settings.is_timed {
            return true;
        }
        let (mut state, mut now) = self.start(at, key);
        for waiter in key.waiting.iter().skip(gone) {
            let algorithm = self.algorithm(waiter.tier);
            now = algorithm.ready_at(&mut state, now, waiter.cost).map_or(now, |ready_at| ready_at.max(now));
            let arrived = Nanos(waiter.arrived.max(key.since));
            assert!(algorithm.admit_queued(&mut state, now, arrived, waiter.cost).is_some(), "it is ready");
        }
        let (algorithm, latest) = (self.algorithm(question.tier), at.saturating_add(max_wait));
        let ready_at = algorithm.ready_at(&mut state, now, question.cost);
        ready_at.is_some_and(|ready_at| ready_at.max(now).0 <= latest.min(u64::MAX - 1))
    }

    fn fits_in_total(&self, cost: u64, freed: u64) -> bool {
        let fits = |total| (self.in_total - freed).checked_add(cost).is_some_and(|sum| sum <= total);
        cost == 0 || self.settings.total.is_none_or(fits)
    }

    /// Returns what happens to a call that cannot pass now, and may wait.
    fn verdict_of_queue(&self, at: u64, key: &KeyState<A>, question: &Question) -> Verdict {
        let Question { cost, priority, .. } = *question;
        let Settings { places, drops_oldest, priority_units, is_timed, .. } = self.settings;
        let ahead = key.waiting.len() as u64;
        if !is_timed && question.max_wait.unwrap_or(0).min(self.settings.max_wait) == 0 {
            return Verdict::Deny(Denial::Limit);
        }
        let is_full = places > 0 && ahead >= places;
        if let Some(oldest) = key.waiting.front().filter(|_| drops_oldest && is_full) {
            let fits = self.is_in_time(at, key, 1, question) && self.fits_in_total(cost, oldest.cost);
            return if fits { Verdict::Displace } else { Verdict::Deny(Denial::QueueFull) };
        }
        if !self.is_in_time(at, key, 0, question) {
            return Verdict::Deny(Denial::Limit);
        }
        let has_place = match priority_units {
            None => ahead < places,
            Some(units) => {
                priority && key.waiting.iter().map(|waiter| waiter.cost).sum::<u64>() + cost <= units
            }
        };
        match has_place {
            false if places > 0 && priority_units.is_none() => Verdict::Deny(Denial::QueueFull),
            false => Verdict::Deny(Denial::Limit),
            true if self.queued() + key.waiting.len() >= self.fixed.max_queued => {
                Verdict::Deny(Denial::QueueFull)
            }
            true if !self.fits_in_total(cost, 0) => Verdict::Deny(Denial::QueueFull),
            true => Verdict::Wait,
        }
    }

    fn count(&self, at: u64, key: &mut KeyState<A>, cost: u64, tier: Option<usize>) {
        key.is_used = true;
        if !key.is_paused(at) || self.fixed.slip == Slip::PauseIsCounted {
            let denial = Decision::deny(1, 0, None, 0);
            let _ = self.algorithm(tier).report(&mut key.state, Nanos(at), cost, true, denial);
        }
    }

    /// Returns whether something holds the key in the table, whatever its algorithm says.
    fn is_held(&self, at: u64, key: &KeyState<A>) -> bool {
        key.is_paused(at) || !key.waiting.is_empty() || !key.unseen.is_empty()
    }

    fn is_fresh(&self, at: u64, key: &KeyState<A>) -> bool {
        !self.is_held(at, key) && self.algorithm.is_fresh(&key.state, Nanos(at))
    }
}

impl<A: Kind> Limit for Single<A> {
    fn copy(&self) -> Box<dyn Limit> {
        Box::new(self.clone())
    }

    fn verdict(&mut self, at: u64, question: &Question) -> Verdict {
        let Question { key, cost, tier, .. } = *question;
        if self.is_closed && cost > 0 {
            return match self.fixed.admits_when_closed {
                true => Verdict::Pass,
                false => Verdict::Deny(Denial::Closed),
            };
        }
        self.with(at, key, |this, key| {
            this.admit_due(at, key);
            let algorithm = this.algorithm(tier);
            let alone = algorithm.peek(&mut key.state, Nanos(at), cost);
            let is_open = !key.is_paused(at) || this.fixed.slip == Slip::NewCallsPassInPause;
            let passes = alone.is_allowed() && is_open && key.waiting.is_empty();
            if cost == 0 || passes && this.fits_in_total(cost, 0) {
                return Verdict::Pass;
            }
            let bars = A::is_locked_out(algorithm, &key.state, at);
            match question.max_wait {
                Some(_) if !alone.never_fits() && !bars => this.verdict_of_queue(at, key, question),
                _ => Verdict::Deny(Denial::Limit),
            }
        })
    }

    fn charge(&mut self, at: u64, question: &Question) -> Charge {
        let Question { key, cost, tier, .. } = *question;
        if self.is_closed {
            return Charge { at, resets: self.resets, holds: false, settles: false };
        }
        let charged_at = self.with(at, key, |this, key| {
            this.admit_due(at, key);
            let decision = this.algorithm(tier).check(&mut key.state, Nanos(at), cost);
            assert!(decision.is_allowed(), "it passes");
            if cost > 0 {
                (key.latest, key.is_used) = (None, true);
            }
            this.admit_due(at, key);
            this.algorithm(tier).last_update(&key.state).0
        });
        self.in_total += cost;
        let (holds, settles) = (A::NEEDS_RELEASE && cost > 0, !A::NEEDS_RELEASE);
        Charge { at: charged_at, resets: self.resets, holds, settles }
    }

    fn enqueue(&mut self, at: u64, id: Id, question: &Question) -> Charge {
        let Question { key, cost, tier, max_wait, .. } = *question;
        let displaces = self.verdict(at, question) == Verdict::Displace;
        let deadline = at.saturating_add(max_wait.unwrap_or(0).min(self.settings.max_wait));
        self.with(at, key, |this, key| {
            if displaces && let Some(oldest) = key.waiting.pop_front() {
                this.in_total -= oldest.cost;
                this.count(at, key, oldest.cost, oldest.tier);
                key.unseen.push((oldest, Turn::Denied(Denial::QueueFull)));
            }
            this.in_total += cost;
            key.is_used = true;
            // A tier that is new to the key begins when a call that chose it is queued, or is the first waiter.
            if tier.is_some() || key.waiting.is_empty() {
                let _ = this.algorithm(tier).ready_at(&mut key.state, Nanos(at), cost);
            }
            if key.waiting.is_empty() {
                key.seen = this.algorithm.last_update(&key.state).0;
            }
            key.waiting.push_back(Waiter { id, cost, tier, arrived: at, deadline });
            this.admit_due(at, key);
        });
        Charge { at, resets: self.resets, holds: A::NEEDS_RELEASE, settles: !A::NEEDS_RELEASE }
    }

    fn deny(&mut self, at: u64, question: &Question, is_counted: bool) {
        let Question { key, cost, tier, .. } = *question;
        self.with(at, key, |this, key| {
            if is_counted {
                this.count(at, key, cost, tier);
            }
            // A denied call adds its tier, so that its wait stays true.
            let algorithm = this.algorithm(tier);
            let fits = !algorithm.peek(&mut key.state, Nanos(at), cost).never_fits();
            if fits && key.waiting.is_empty() && !key.is_paused(at) {
                let _ = algorithm.ready_at(&mut key.state, Nanos(at), cost);
            }
        });
    }

    fn turn(&mut self, at: u64, key: Key, id: Id) -> Turn {
        self.with(at, key, |this, key| {
            this.admit_due(at, key);
            let turn = match key.unseen.iter().position(|(waiter, _)| waiter.id == id) {
                Some(nth) => {
                    key.latest.take_if(|(latest, _)| *latest == id);
                    key.unseen.remove(nth).1
                }
                None => {
                    let nth = key.waiting.iter().position(|waiter| waiter.id == id).expect("it waits");
                    let Waiter { cost, tier, .. } = key.waiting[nth];
                    if !this.is_too_late(at, key, &key.waiting[nth]) {
                        return Turn::NotYet;
                    }
                    key.waiting.remove(nth);
                    this.in_total -= cost;
                    this.count(at, key, cost, tier);
                    Turn::Denied(Denial::Limit)
                }
            };
            this.admit_due(at, key);
            turn
        })
    }

    fn has_turn(&self, at: u64, key: Key, id: Id) -> bool {
        let mut found = self.keys[&key].clone();
        self.admit_due(at, &mut found);
        found.waiting.iter().all(|waiter| waiter.id != id || self.is_too_late(at, &found, waiter))
    }

    fn leave(&mut self, at: u64, key: Key, id: Id) {
        self.with(at, key, |this, key| {
            this.admit_due(at, key);
            if let Some(nth) = key.waiting.iter().position(|waiter| waiter.id == id) {
                this.in_total -= key.waiting[nth].cost;
                key.waiting.remove(nth);
            } else if let Some(nth) = key.unseen.iter().position(|(waiter, _)| waiter.id == id) {
                let (Waiter { cost, tier, .. }, turn) = key.unseen.remove(nth);
                let algorithm = this.algorithm(tier).clone();
                let undoes = this.fixed.slip != Slip::AdmissionIsFinal;
                if let Some((_, before)) = key.latest.take_if(|(latest, _)| *latest == id && undoes) {
                    algorithm.restore(&mut key.state, before);
                }
                if let Turn::Admitted(..) = turn {
                    let now = algorithm.last_update(&key.state);
                    algorithm.release(&mut key.state, now, cost);
                    this.in_total -= cost;
                }
            }
            this.admit_due(at, key);
        });
    }

    fn counts(&self, key: Key, resets: u64) -> bool {
        resets >= self.reset.get(&key).copied().unwrap_or(0).max(self.replaced)
    }

    fn undo(&mut self, at: u64, question: &Question, charged_at: Option<u64>) {
        let Question { key, cost, tier, .. } = *question;
        if self.keys.contains_key(&key) {
            self.with(at, key, |this, key| {
                let algorithm = this.algorithm(tier).clone();
                this.commit(at, key, |state| {
                    algorithm.refund(state, Nanos(at), cost, charged_at.map(Nanos));
                });
            });
        }
    }

    fn end(&mut self, at: u64, question: &Question) {
        let Question { key, cost, tier, .. } = *question;
        self.in_total -= cost;
        self.with(at, key, |this, key| {
            this.algorithm(tier).release(&mut key.state, Nanos(at), cost);
            this.admit_due(at, key);
        });
    }

    fn settle(&mut self, at: u64, question: &Question, charged_at: u64, actual: u64) {
        let Question { key, cost, tier, .. } = *question;
        if actual < cost {
            if self.keys.contains_key(&key) {
                self.with(at, key, |this, key| {
                    let algorithm = this.algorithm(tier).clone();
                    this.commit(at, key, |state| {
                        algorithm.refund_settled(state, Nanos(at), cost, actual, Nanos(charged_at));
                    });
                });
            }
        } else if actual > cost && !self.is_closed {
            self.with(at, key, |this, key| {
                let algorithm = this.algorithm(tier).clone();
                this.admit_due(at, key);
                key.is_delayed |= !key.waiting.is_empty();
                this.commit(at, key, |state| {
                    let _ = algorithm.charge(state, Nanos(at), actual - cost, MAX_DEBT);
                });
                key.is_used = true;
            });
        }
        self.observe(at, key);
    }

    fn refund(&mut self, at: u64, key: Key, cost: u64) {
        let (algorithm, starts_fresh) = (self.algorithm.clone(), self.starts_fresh(at));
        self.with(at, key, |this, key| {
            // A key that starts with used units can be given back units that no call has taken.
            key.is_used |= !starts_fresh;
            this.commit(at, key, |state| algorithm.refund(state, Nanos(at), cost, None));
        });
    }

    fn reset(&mut self, at: u64, key: Key) {
        self.resets += 1;
        self.reset.insert(key, self.resets);
        if !self.keys.contains_key(&key) {
            return;
        }
        let new = self.new_state(at);
        self.with(at, key, |this, key| {
            // Calls in progress stay counted, and nothing else does.
            let held = this.algorithm.in_flight(&key.state);
            key.state = new.clone();
            if held > 0 {
                let _ = this.algorithm.charge(&mut key.state, Nanos(at), held, 0);
                this.algorithm.restore(&mut key.state, new);
            }
            key.latest = None;
            if !key.is_paused || this.fixed.slip != Slip::ResetKeepsPause {
                (key.since, key.is_paused) = (at, false);
            }
            // Without waiters and calls in progress, the key is a new key.
            key.is_used = held > 0 || this.is_held(at, key);
            this.admit_due(at, key);
        });
    }

    fn pause(&mut self, at: u64, key: Key, duration: u64) -> bool {
        if self.is_closed || duration > 0 && !self.has_room(at, &[key])[0] {
            return false;
        }
        self.with(at, key, |this, key| {
            this.admit_due(at, key);
            if duration == 0 && !key.is_paused {
                return;
            }
            let _ = this.algorithm.peek(&mut key.state, Nanos(at), 0);
            key.seen = this.algorithm.last_update(&key.state).0;
            let end = key.seen.max(at) + duration;
            let lasts = key.is_paused && this.fixed.slip == Slip::LongestPauseLasts;
            key.since = if lasts { key.since.max(end) } else { end };
            key.is_paused = (lasts || duration > 0) && at < key.since;
            key.is_delayed |= !key.waiting.is_empty();
            key.is_used = true;
            this.admit_due(at, key);
        });
        duration > 0
    }

    fn is_paused(&self, at: u64, key: Key) -> bool {
        self.keys.get(&key).is_some_and(|key| key.is_paused(at))
    }

    fn replace(&mut self, at: u64, params: &Params) {
        let mut first = self.new_state(at);
        for key in self.keys.keys().copied().collect::<Vec<_>>() {
            self.with(at, key, |this, key| this.admit_due(at, key));
        }
        self.resets += 1;
        self.replaced = self.resets;
        let new = A::in_model(params);
        new.migrate(&mut first, &self.algorithm, Nanos(at));
        let old = std::mem::replace(&mut self.algorithm, new);
        (self.first, self.settings) = (Some(first), A::settings(params));
        for key in self.keys.keys().copied().collect::<Vec<_>>() {
            self.with(at, key, |this, key| {
                this.algorithm.migrate(&mut key.state, &old, Nanos(at));
                key.latest = None;
                if this.fixed.slip == Slip::ReplacementEndsPause {
                    key.is_paused = false;
                }
                this.admit_due(at, key);
            });
        }
    }

    fn close(&mut self, at: u64) {
        self.is_closed = true;
        for key in self.keys.keys().copied().collect::<Vec<_>>() {
            self.with(at, key, |this, key| {
                this.admit_due(at, key);
                key.is_paused = false;
                for waiter in std::mem::take(&mut key.waiting) {
                    this.in_total -= waiter.cost;
                    key.unseen.push((waiter, Turn::Denied(Denial::Closed)));
                }
            });
        }
    }

    fn observe(&mut self, at: u64, key: Key) {
        self.with(at, key, |this, key| {
            this.admit_due(at, key);
            let _ = this.algorithm.peek(&mut key.state, Nanos(at), 0);
        });
    }

    fn peek(&mut self, at: u64, key: Key, cost: u64) -> Peek {
        // If a closed limiter admits calls, it charges nothing.
        let cost = match (self.is_closed, self.fixed.admits_when_closed) {
            (true, false) if cost > 0 => return Peek::Closed,
            (true, _) => 0,
            _ => cost,
        };
        let mut found = self.with(at, key, |this, key| {
            this.observe_pause(at, key);
            key.clone()
        });
        self.admit_due(at, &mut found);
        if cost > 0 && found.is_paused(at) && found.waiting.is_empty() && self.settings.is_timed {
            return Peek::Paused(self.wait_in_pause(at, &found, cost));
        }
        let is_held = found.is_paused(at) || !found.waiting.is_empty();
        let decision = self.algorithm.peek(&mut found.state, Nanos(at), cost);
        match self.settings.total {
            _ if is_held => Peek::Roughly(cost == 0, 0),
            None => Peek::Exactly(decision),
            Some(total) => {
                let left = decision.remaining().min(total.saturating_sub(self.in_total));
                Peek::Roughly(cost == 0 || decision.is_allowed() && self.fits_in_total(cost, 0), left)
            }
        }
    }

    fn remaining(&self, at: u64, question: &Question) -> u64 {
        let mut copy = self.clone();
        let one = Question { cost: 1, ..*question };
        (0..1_000)
            .take_while(|_| {
                let passes = matches!(copy.verdict(at, &one), Verdict::Pass);
                if passes {
                    copy.charge(at, &one);
                }
                passes
            })
            .count() as u64
    }

    fn next_admission(&self, at: u64, key: Key) -> Option<u64> {
        let found = self.keys.get(&key)?;
        let first = found.waiting.front()?;
        let (mut state, start) = self.start(at, found);
        let ready_at = self.algorithm(first.tier).ready_at(&mut state, start, first.cost);
        ready_at.map(|ready_at| ready_at.max(start).0)
    }

    fn queued(&self) -> usize {
        self.keys.values().map(|key| key.waiting.len()).sum()
    }

    fn has_room(&self, at: u64, keys: &[Key]) -> Vec<bool> {
        let Some(Room { max_keys, .. }) = self.fixed.room.filter(|_| !self.is_closed) else {
            return vec![true; keys.len()];
        };
        let used = self.used(at);
        let stays = |key: &&Key| !keys.contains(key) && !self.may_evict(at, **key);
        let mut taken = used.iter().filter(stays).count();
        taken += keys.iter().filter(|key| used.contains(key)).count();
        let has_room = |key: &Key| {
            let (is_known, has_place) = (used.contains(key), taken < max_keys);
            taken += usize::from(!is_known && has_place);
            is_known || has_place
        };
        keys.iter().map(has_room).collect()
    }

    fn used(&self, at: u64) -> Vec<Key> {
        self.keys.iter().filter(|(_, found)| !self.is_fresh(at, found)).map(|(key, _)| *key).collect()
    }

    fn may_evict(&self, at: u64, key: Key) -> bool {
        let evicts = self.fixed.room.is_some_and(|room| room.evicts);
        let is_free = |key: &KeyState<A>| !self.is_held(at, key) && self.algorithm.in_flight(&key.state) == 0;
        evicts && self.keys.get(&key).is_none_or(is_free)
    }

    fn forget(&mut self, key: Key) {
        self.keys.remove(&key);
    }

    fn observe_all(&mut self, at: u64) {
        self.observed = self.observed.max(at);
        for key in self.keys.keys().copied().collect::<Vec<_>>() {
            self.observe(at, key);
        }
    }

    fn starts_fresh(&self, at: u64) -> bool {
        self.is_fresh(at, &self.new_key(at))
    }

    fn is_closed(&self) -> bool {
        self.is_closed
    }
}

/// All limits, and the calls that wait or are in progress.
pub(crate) struct Model {
    limits: Vec<Box<dyn Limit>>,
    calls: BTreeMap<Id, Call>,
    /// The counts of each policy of each layer.
    pub(crate) counts: BTreeMap<(usize, usize), Counts>,
    /// The counts of each limiter's calls that are made without a layer.
    pub(crate) direct: BTreeMap<usize, Counts>,
    /// The verdict of each policy on the latest call.
    pub(crate) latest: Vec<Option<Verdict>>,
    /// `true` if the latest call was denied because of its own charges, which left too little for its other keys.
    pub(crate) is_denied_by_itself: bool,
    /// The number of charges that were undone.
    pub(crate) undone: u64,
    slip: Slip,
}

#[derive(Clone, Debug)]
struct Call {
    way: Way,
    asks: Vec<Ask>,
    /// The charges of the call, each of one key.
    shares: Vec<Share>,
}

/// What a call takes of one key.
#[derive(Clone, Debug)]
struct Share {
    limiter: usize,
    question: Question,
    /// The questions of the policies that ask for this key, whose costs add up.
    parts: Vec<(usize, Question)>,
    charge: Charge,
    is_waiting: bool,
    is_shadow: bool,
    /// `true` if nothing was charged yet because of a mistake of the model.
    is_owed: bool,
}

impl Model {
    pub(crate) fn new(limits: Vec<Box<dyn Limit>>, slip: Slip) -> Self {
        let (calls, counts, direct) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            limits,
            calls,
            counts,
            direct,
            latest: Vec::new(),
            is_denied_by_itself: false,
            undone: 0,
            slip,
        }
    }

    pub(crate) fn limit(&mut self, limiter: usize) -> &mut dyn Limit {
        &mut *self.limits[limiter]
    }

    pub(crate) fn limit_ref(&self, limiter: usize) -> &dyn Limit {
        &*self.limits[limiter]
    }

    fn count(&mut self, way: Way, ask: &Ask, outcome: &'static str) {
        let counts = match way {
            Way::Layer(layer, _) => self.counts.entry((layer, ask.policy)).or_default(),
            Way::Acquire | Way::Check => self.direct.entry(ask.limiter).or_default(),
        };
        *counts.entry(outcome).or_default() += 1;
    }

    /// Returns the question of one policy.
    pub(crate) fn question(&self, way: Way, ask: &Ask, holds_requests: bool) -> Question {
        let max_wait = match way {
            Way::Layer(_, max_wait) => Some(max_wait).filter(|_| holds_requests && !ask.is_shadow),
            Way::Acquire => Some(u64::MAX),
            Way::Check => None,
        };
        let Ask { key, cost, tier, priority, .. } = *ask;
        Question { key, cost, tier, priority, max_wait }
    }

    /// Returns what a call takes of each key, if it is admitted.
    fn shares(&self, way: Way, asks: &[Ask], holds: &dyn Fn(usize) -> bool) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        for (nth, ask) in asks.iter().enumerate().filter(|(_, ask)| !ask.is_shadow) {
            let question = self.question(way, ask, holds(ask.limiter));
            let same = |share: &&mut Share| (share.limiter, share.question.key) == (ask.limiter, ask.key);
            match shares.iter_mut().find(same) {
                Some(share) => {
                    if self.slip != Slip::SameKeyIsChargedOnce {
                        share.question.cost = share.question.cost.saturating_add(ask.cost);
                    }
                    share.parts.push((nth, question));
                }
                None => shares.push(Share::new(ask.limiter, question, nth)),
            }
        }
        if self.slip != Slip::SameKeyIsAskedSeparately {
            for share in &mut shares {
                share.parts.iter_mut().for_each(|(_, part)| part.cost = share.question.cost);
            }
        }
        shares
    }

    /// Returns the verdict of each policy on a call.
    fn verdicts(&mut self, at: u64, count: usize, shares: &[Share]) -> Vec<Option<Verdict>> {
        let mut verdicts = vec![None; count];
        for share in shares {
            for (nth, question) in &share.parts {
                verdicts[*nth] = Some(self.limits[share.limiter].verdict(at, question));
            }
        }
        // A call of cost 0 needs no room.
        let mut rooms: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (nth, share) in shares.iter().enumerate().filter(|(_, share)| share.question.cost > 0) {
            rooms.entry(share.limiter).or_default().push(nth);
        }
        for (limiter, of_limiter) in rooms {
            let keys: Vec<_> = of_limiter.iter().map(|nth| shares[*nth].question.key).collect();
            let room = self.limits[limiter].has_room(at, &keys);
            for (nth, _) in of_limiter.iter().zip(room).filter(|(_, has_room)| !has_room) {
                for (nth, _) in &shares[*nth].parts {
                    verdicts[*nth] = Some(Verdict::Deny(Denial::TableFull));
                }
            }
        }
        verdicts
    }

    /// Makes a call. `holds` says which limiters queue the requests of a layer.
    pub(crate) fn call(
        &mut self,
        at: u64,
        id: Id,
        way: Way,
        asks: Vec<Ask>,
        holds: &dyn Fn(usize) -> bool,
    ) -> Outcome {
        let mut shares = self.shares(way, &asks, holds);
        let mut verdicts = self.verdicts(at, asks.len(), &shares);
        let is_denied = |verdicts: &[Option<Verdict>]| {
            verdicts.iter().flatten().any(|verdict| matches!(verdict, Verdict::Deny(_)))
        };
        self.is_denied_by_itself = false;
        let before: Vec<_> =
            shares.iter().map(|share| (share.limiter, self.limits[share.limiter].copy())).collect();
        if !is_denied(&verdicts) || self.slip == Slip::DenialCharges {
            let waits = verdicts.iter().flatten().any(|verdict| *verdict != Verdict::Pass);
            for share in &mut shares {
                // The charges of the call itself may leave too little, of a total of all keys or of the places.
                let again = share.parts.iter().map(|(_, part)| self.limits[share.limiter].verdict(at, part));
                let again = again.max_by_key(|verdict| verdict.rank()).expect("a share has parts");
                let limit = &mut self.limits[share.limiter];
                match again {
                    Verdict::Pass if waits && self.slip == Slip::OthersChargeAtAdmission => {
                        share.is_owed = true;
                    }
                    Verdict::Pass => {
                        share.charge = limit.charge(at, &share.question);
                    }
                    Verdict::Wait | Verdict::Displace => {
                        share.charge = limit.enqueue(at, id, &share.question);
                        share.is_waiting = true;
                    }
                    Verdict::Deny(_) => {
                        self.is_denied_by_itself = true;
                        verdicts[share.parts[0].0] = Some(again);
                        if self.slip != Slip::DenialCharges {
                            break;
                        }
                    }
                }
            }
        }
        self.latest.clone_from(&verdicts);
        if is_denied(&verdicts) {
            if self.slip != Slip::DenialCharges {
                for (limiter, limit) in before.into_iter().rev() {
                    self.limits[limiter] = limit;
                }
            }
            return self.deny(at, way, &asks, &shares, &verdicts);
        }
        for share in shares.iter().filter(|share| share.is_waiting) {
            // A key that is used twice has one waiter, which the first policy counts.
            self.count(way, &asks[share.parts[0].0], "queued");
        }
        let is_waiting = shares.iter().any(|share| share.is_waiting);
        self.calls.insert(id, Call { way, asks, shares });
        match is_waiting {
            true => Outcome::Waiting,
            false => self.admit(at, id),
        }
    }

    fn deny(
        &mut self,
        at: u64,
        way: Way,
        asks: &[Ask],
        shares: &[Share],
        verdicts: &[Option<Verdict>],
    ) -> Outcome {
        for share in shares {
            let denies = |(nth, _): &&(usize, Question)| match verdicts[*nth] {
                Some(Verdict::Deny(denial)) => matches!(denial, Denial::Limit | Denial::QueueFull),
                _ => self.slip == Slip::DenialIsCountedByAll,
            };
            // A key counts the denial once, also if several policies ask for it.
            for (nth, (_, question)) in share.parts.iter().filter(denies).enumerate() {
                self.limits[share.limiter].deny(at, question, nth == 0);
            }
        }
        let mut decisions = Vec::new();
        for (ask, verdict) in asks.iter().zip(verdicts) {
            let Some(verdict) = verdict else {
                if self.slip == Slip::ShadowChargesDenied {
                    self.decide_shadow(at, way, ask);
                }
                continue;
            };
            let decision = match verdict {
                Verdict::Deny(denial) => PolicyDecision::Denied(*denial),
                _ => PolicyDecision::Allowed,
            };
            let slips = decision == PolicyDecision::Allowed && self.slip == Slip::OthersCountAdmitted;
            self.count(way, ask, if slips { "admitted" } else { decision.outcome() });
            decisions.push(decision);
        }
        Outcome::Denied(decisions)
    }

    /// Lets a limit in shadow mode decide a call. Returns its share if it has charged the call.
    fn decide_shadow(&mut self, at: u64, way: Way, ask: &Ask) -> Option<Share> {
        let question = self.question(way, ask, false);
        let limit = &mut self.limits[ask.limiter];
        let has_room = ask.cost == 0 || limit.has_room(at, &[ask.key])[0];
        match limit.verdict(at, &question) {
            Verdict::Pass if has_room => {
                let mut share = Share::new(ask.limiter, question, 0);
                (share.charge, share.is_shadow) = (limit.charge(at, &question), true);
                self.count(way, ask, "admitted");
                Some(share)
            }
            verdict => {
                if has_room && verdict != Verdict::Deny(Denial::Closed) {
                    limit.deny(at, &question, true);
                }
                self.count(way, ask, "shadow_denied");
                None
            }
        }
    }

    /// Admits a call that all limits outside of shadow mode have admitted.
    fn admit(&mut self, at: u64, id: Id) -> Outcome {
        let mut call = self.calls.remove(&id).expect("it was made");
        for share in call.shares.iter_mut().filter(|share| share.is_owed) {
            let limit = &mut self.limits[share.limiter];
            if limit.verdict(at, &share.question) == Verdict::Pass {
                share.charge = limit.charge(at, &share.question);
            }
        }
        let mut is_denied = false;
        for (nth, ask) in call.asks.iter().enumerate() {
            if !ask.is_shadow {
                self.count(call.way, ask, "admitted");
            } else if let Some(mut share) = self.decide_shadow(at, call.way, ask) {
                share.parts[0].0 = nth;
                call.shares.push(share);
            } else {
                is_denied = self.slip == Slip::ShadowDenies;
            }
        }
        if self.slip == Slip::PermitEndsAtOnce {
            for share in call.shares.iter_mut().filter(|share| share.charge.holds) {
                self.limits[share.limiter].end(at, &share.question);
                share.charge.holds = false;
            }
        }
        if is_denied {
            return Outcome::Denied(Vec::new());
        }
        if matches!(call.way, Way::Layer(..)) {
            self.calls.insert(id, call);
        }
        Outcome::Admitted
    }

    /// Polls a call that waits.
    pub(crate) fn poll(&mut self, at: u64, id: Id) -> Outcome {
        let mut call = self.calls.remove(&id).expect("it waits");
        let mut decisions = vec![PolicyDecision::Allowed; call.asks.len()];
        for share in call.shares.iter_mut().filter(|share| share.is_waiting) {
            let decision = match self.limits[share.limiter].turn(at, share.question.key, id) {
                Turn::NotYet => PolicyDecision::Undecided,
                Turn::Admitted(charged_at, resets) => {
                    (share.charge.at, share.charge.resets) = (charged_at, resets);
                    PolicyDecision::Allowed
                }
                Turn::Denied(denial) => PolicyDecision::Denied(denial),
            };
            share.parts.iter().for_each(|(nth, _)| decisions[*nth] = decision);
            share.is_waiting = decision == PolicyDecision::Undecided;
        }
        let is_denied = |nth: &usize| matches!(decisions[*nth], PolicyDecision::Denied(_));
        if (0..decisions.len()).any(|nth| is_denied(&nth)) {
            call.shares.retain(|share| !share.parts.iter().any(|(nth, _)| is_denied(nth)));
            if self.slip == Slip::StaysInOtherQueues {
                call.shares.retain(|share| !share.is_waiting);
            }
            self.give_back(at, id, &call.shares);
            let mut of_policies = Vec::new();
            for (ask, decision) in call.asks.iter().zip(decisions).filter(|(ask, _)| !ask.is_shadow) {
                self.count(call.way, ask, decision.outcome());
                of_policies.push(decision);
            }
            return Outcome::Denied(of_policies);
        }
        let waits = match self.slip {
            Slip::OneQueueIsEnough => call.shares.iter().all(|share| share.is_waiting),
            _ => call.shares.iter().any(|share| share.is_waiting),
        };
        self.calls.insert(id, call);
        if waits { Outcome::Waiting } else { self.admit(at, id) }
    }

    /// Drops a call that waits.
    pub(crate) fn cancel(&mut self, at: u64, id: Id) {
        let call = self.calls.remove(&id).expect("it waits");
        self.give_back(at, id, &call.shares);
        for ask in call.asks.iter().filter(|ask| !ask.is_shadow) {
            self.count(call.way, ask, "cancelled");
        }
    }

    /// Gives back all that a waiting call has taken, and takes the call out of its queues.
    fn give_back(&mut self, at: u64, id: Id, shares: &[Share]) {
        for share in shares.iter().filter(|share| share.is_waiting) {
            self.limits[share.limiter].leave(at, share.question.key, id);
        }
        let is_charged = |share: &&Share| !share.is_waiting && !share.is_owed;
        for share in shares.iter().filter(is_charged) {
            let charged_at = Some(share.charge.at).filter(|_| self.slip != Slip::DropGivesBackAll);
            if self.slip != Slip::DropKeepsCharges && share.is_charged() {
                self.undone += 1;
                let limit = &mut self.limits[share.limiter];
                if limit.counts(share.question.key, share.charge.resets) {
                    limit.undo(at, &share.question, charged_at);
                }
            }
        }
        for share in shares.iter().filter(is_charged).filter(|share| share.charge.holds) {
            if self.slip != Slip::DropKeepsPermit {
                self.limits[share.limiter].end(at, &share.question);
            }
        }
    }

    /// Ends an admitted call.
    pub(crate) fn end(&mut self, at: u64, id: Id, ending: &Ending) {
        let call = self.calls.remove(&id).expect("it is in progress");
        if let Ending::Answer(actual) = ending {
            for (nth, ask) in call.asks.iter().enumerate() {
                let of_ask = |share: &&Share| {
                    (share.limiter, share.question.key, share.is_shadow)
                        == (ask.limiter, ask.key, ask.is_shadow)
                        && share.parts.iter().any(|(part, _)| *part == nth)
                };
                let share = call.shares.iter().find(of_ask).filter(|share| share.charge.settles);
                if let (Some(share), Some(actual), true) = (share, actual[ask.policy], ask.settles)
                    && self.slip != Slip::NotSettled
                {
                    let Ask { cost, tier, .. } = *ask;
                    let question = Question { cost, tier, ..share.question };
                    let limit = &mut self.limits[ask.limiter];
                    let counts = limit.counts(ask.key, share.charge.resets);
                    let actual = if counts { actual } else { actual.max(cost) };
                    if actual <= cost || limit.has_room(at, &[ask.key])[0] {
                        limit.settle(at, &question, share.charge.at, actual);
                    }
                }
            }
        }
        for share in call.shares.iter().filter(|share| share.charge.holds) {
            self.limits[share.limiter].end(at, &share.question);
        }
    }

    /// Returns whether a queue has admitted or denied a waiting call, which has not observed that.
    pub(crate) fn has_turn(&self, at: u64, id: Id) -> bool {
        let mut waiting = self.calls[&id].shares.iter().filter(|share| share.is_waiting);
        waiting.any(|share| self.limits[share.limiter].has_turn(at, share.question.key, id))
    }

    /// Returns in how many queues a call waits.
    pub(crate) fn queues_of(&self, id: Id) -> usize {
        self.calls[&id].shares.iter().filter(|share| share.is_waiting).count()
    }

    /// Returns the keys in whose queues calls wait, each with its limiter.
    pub(crate) fn queues(&self) -> Vec<(usize, Key)> {
        let shares = self.calls.values().flat_map(|call| &call.shares);
        shares.filter(|share| share.is_waiting).map(|share| (share.limiter, share.question.key)).collect()
    }

    /// Returns whether the call would be denied at `then`, if no other call is made until then and all waiters are
    /// admitted on time.
    pub(crate) fn denies_at(
        &self,
        at: u64,
        then: u64,
        way: Way,
        asks: &[Ask],
        holds: &dyn Fn(usize) -> bool,
    ) -> bool {
        let shares = self.shares(way, asks, holds);
        shares.iter().any(|share| {
            let (mut limit, mut now) = (self.limits[share.limiter].copy(), at);
            let key = share.question.key;
            while let Some(next) = limit.next_admission(now, key).filter(|next| *next <= then) {
                let queued = limit.queued();
                now = next.max(now);
                limit.observe(now, key);
                assert!(limit.queued() < queued, "a waiter is admitted when it is ready");
            }
            let mut verdicts = share.parts.iter().map(|(_, part)| limit.verdict(then, part));
            verdicts.any(|verdict| matches!(verdict, Verdict::Deny(_)))
        })
    }
}

impl Verdict {
    /// Returns how far the verdict is from an admission at once.
    fn rank(&self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Wait => 1,
            Self::Displace => 2,
            Self::Deny(_) => 3,
        }
    }
}

impl Share {
    fn new(limiter: usize, question: Question, nth: usize) -> Self {
        let charge = Charge { at: 0, resets: 0, holds: false, settles: false };
        let parts = vec![(nth, question)];
        Self { limiter, question, parts, charge, is_waiting: false, is_shadow: false, is_owed: false }
    }

    /// Returns whether the limit has charged the call. A closed limiter charges nothing.
    fn is_charged(&self) -> bool {
        self.charge.holds || self.charge.settles
    }
}
