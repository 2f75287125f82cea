//! Calls of several limiters in Redis that are decided together: all of them are admitted, or none is.
//!
//! A joint call is decided like a call of a tuple of algorithms, except that each algorithm has its own key. One script
//! reads the states of all keys, and writes all of them if the call is admitted. If an algorithm has no script, the
//! states are read in one trip, and written in a second trip. If another call has changed one of the states in between,
//! the call is decided again. Each joint call makes its own trips.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::calls::Calls;
use super::connection::BoxFuture;
use super::error::{RedisError, RedisErrorKind};
use super::flight::{Awaited, PolledFlight};
use super::frame::{Frame, shown};
use super::link::{Answer, Route, Swap};
use super::links::{Attempted, Links};
use super::script::{Packed, Script, ScriptPart, pack};
use super::states::Outcome;
use super::wait::TotalPlace;
use tower_throttle::Decision;
use tower_throttle::clock::Nanos;
use tower_throttle::limiter::{Decided, Reservation};
use tower_throttle::store_support::{
    AllDecisions, AnyAlgorithm, CallOutcome, Few, JointDecided, JointKind, JointOutcome, JointRequest,
    JointWait, Report, decide_in_memory,
};

/// The [`JointKind`] of a [`RedisLimiter`](super::RedisLimiter).
#[derive(Debug)]
pub struct InRedis;

/// The part of one limiter in a joint call. It is empty once the call is decided.
pub struct RedisPart(Option<Box<dyn Member>>);

/// The part of one limiter in a joint call, with the type of the algorithm erased.
pub(super) trait Member: Send + Sync {
    fn links(&self) -> &Links;
    fn key(&self) -> &Arc<str>;
    fn cost(&self) -> u64;
    fn is_in_shadow(&self) -> bool;
    fn calls(&self) -> &Arc<Calls>;

    /// Returns an error if the call may have to wait in a queue of this process.
    fn check_supported(&self) -> Result<(), RedisError>;

    /// Returns the denial of the call if its limiter was closed, or if this process remembers a state that denies the
    /// call.
    fn known_denial(&self) -> Option<Decision>;

    /// Returns the denial of the call if its limiter was closed.
    fn closed_denial(&self) -> Option<Decision>;

    /// Returns the part of this limiter in a script, and the frame of the values that the limiter writes. Returns
    /// `None` if no script can decide the call at this cost.
    fn script_part(&self, cost: u64) -> Option<(&ScriptPart, &Frame)>;

    /// Adds to an error of a key whose value is not one of the limiter which limiter it is.
    fn describe(&self, error: RedisError) -> RedisError;

    /// Reads the state of the key from its value.
    fn read(&mut self, value: &[u8], now: Nanos) -> Result<(), RedisError>;

    /// Returns whether the state must be written even if nothing is charged, because it was made from those of other
    /// quotas.
    fn is_converted(&self) -> bool;

    /// Returns the outcome that the call would have, without a charge.
    fn preview(&self, cost: u64, now: Nanos) -> Outcome;

    /// Decides and charges the call. Returns the outcome, and whether the state must be written.
    fn apply(&mut self, cost: u64, now: Nanos) -> (Outcome, bool);

    /// Returns the new value of the key, which is empty if the state is fresh, and its time to live in milliseconds.
    fn write(&mut self, now: Nanos) -> (Vec<u8>, u64);

    /// Remembers the state, which was read at `now` by a request that was sent at `sent`.
    fn remember(&mut self, now: Nanos, sent: Nanos);

    /// Undoes the charge of the call, which had this outcome.
    fn undo(&self, cost: u64, outcome: &Outcome, runtime: &Handle);

    /// Takes a place among the calls of the limiter that wait, if the call may wait for a bucket. If none is free, the
    /// call is decided as one that does not wait.
    fn take_place(&mut self) -> Option<TotalPlace>;

    /// Returns the reservation of the call, which was charged with this outcome. `runtime` is the runtime that settles
    /// the call.
    fn reservation(&self, outcome: Outcome, runtime: &Handle) -> Reservation;

    /// Returns the algorithm of the call, if it is not the limiter's own.
    fn algorithm(&self) -> Option<AnyAlgorithm>;

    /// Returns the part of the fallback in a joint call. Returns `None` if there is no fallback.
    fn fallback_part(&self) -> Option<JointRequest<'_>>;
}

/// A limiter from which a joint call is not exempt.
struct Joined {
    /// The index of the limiter's part in the call.
    place: usize,
    member: Box<dyn Member>,
    /// The denial of the part, if the part is denied without a trip.
    denial: Option<Decision>,
    /// The index of the part's group, if the part is not denied without a trip.
    group: Option<usize>,
}

/// A joint call that needs a trip, whose parts are grouped by key. Parts that were denied without a trip have no share
/// in it: their limiters are in shadow mode and were closed.
struct JointCall {
    members: Few<Joined>,
    groups: Few<Group>,
    /// The script that decides the call in one trip, with its arguments. `None` if no script can decide the call.
    script: Option<Planned>,
}

/// A script, and what its argument contains after the deadline.
type Planned = (Arc<Script>, Packed);

/// The parts of a joint call that have the same key. If some of these parts are not in shadow mode, the parts in shadow
/// mode are not charged. The total cost of the other parts is charged to the limiter of the first of these other parts.
struct Group {
    first: usize,
    key: Arc<str>,
    /// The total cost of the parts that are charged.
    cost: u64,
    /// `true` if all parts are in shadow mode, so that the group does not decide whether the call is admitted.
    is_in_shadow: bool,
}

/// The outcome of each group. An outcome is `None` if the group is in shadow mode and another group denies the call.
type Outcomes = Few<Option<Outcome>>;

/// The place of each group among the calls of its limiter that wait, unless the group does not wait.
type Places = Few<Option<TotalPlace>>;

/// The reply to a joint call: the call, and its outcomes.
type Reply = (JointCall, Result<Outcomes, RedisError>);

/// The values of the keys of a joint call, as a trip has found them.
struct Found {
    /// The lengths of all values but the last, and the values.
    bytes: Vec<u8>,
    /// The server's time at which the values were read.
    now: Nanos,
    /// The time at which the request was sent, by this process's clock. The server read the values later.
    sent: Nanos,
    /// `true` if the script has decided and charged the call.
    is_decided: bool,
}

/// A guard that counts the parts of a joint call as cancelled if the call is dropped before it is decided.
struct Undecided(Few<Arc<Calls>>);

/// A joint call that was decided. If this value is dropped while the call sleeps, its charges are undone.
struct Charged {
    call: Option<(JointCall, Outcomes)>,
    runtime: Handle,
}

impl RedisPart {
    pub(super) fn new(member: Box<dyn Member>) -> Self {
        Self(Some(member))
    }
}

impl JointKind for InRedis {
    type Part<'a> = RedisPart;
    type Error = RedisError;
    type Wait = BoxFuture<Result<AllDecisions, RedisError>>;

    const DECIDES_SHADOWS: bool = true;

    fn decide(parts: &mut [Option<RedisPart>], _report: &mut Report<'_>) -> JointOutcome<Self::Wait> {
        let count = parts.len();
        let joined = |(place, part): (usize, &mut Option<RedisPart>)| {
            let member = part.as_mut()?.0.take()?;
            Some(Joined { place, denial: member.known_denial(), group: None, member })
        };
        let members: Few<Joined> = parts.iter_mut().enumerate().filter_map(joined).collect();
        let known = members.iter().map(|joined| joined.denied(joined.denial)).collect();
        if denies(&known) || members.iter().all(|joined| joined.denial.is_some()) {
            JointOutcome::Ready(conclude(members, known, count))
        } else {
            JointOutcome::Pending(Box::pin(decide_joint(members, count)), Few::new())
        }
    }
}

impl Joined {
    /// Returns the result of this part.
    fn decided(&self, decision: Decision, reservation: Reservation) -> JointDecided {
        JointDecided {
            decided: Decided::new(decision, reservation),
            algorithm: self.member.algorithm(),
            borrowed: 0,
            is_shadow: self.member.is_in_shadow(),
        }
    }

    /// Returns the result of this part if it has a denial.
    fn denied(&self, denial: Option<Decision>) -> Option<JointDecided> {
        Some(self.decided(denial?, Reservation::default()))
    }
}

/// Decides a joint call, of which at least one part is not denied yet. `count` is the number of its parts.
async fn decide_joint(members: Few<Joined>, count: usize) -> Result<AllDecisions, RedisError> {
    let (call, places) = JointCall::new(members);
    call.check_supported()?;
    let mut undecided = Undecided(call.asked().map(|member| Arc::clone(member.calls())).collect());
    let (call, decided) = match ask(call).await {
        Ok(mut charged) => {
            if charged.sleep(places).await {
                charged.decided().ok_or_else(no_runtime)?
            } else {
                (charged.undo().ok_or_else(no_runtime)?, None)
            }
        }
        Err((Some(call), error)) => match fall_back(&call) {
            Some(outcome) => {
                drop(places);
                let decided = unless_closed(&call.members, in_memory(outcome)).await;
                (call, decided)
            }
            None => {
                undecided.0.clear();
                return Err(call.asked().fold(error, |error, member| member.describe(error)));
            }
        },
        Err((None, error)) => return Err(error),
    };
    undecided.0.clear();
    // If there is no decision, a limiter was closed meanwhile.
    let closed = |joined: &Joined| joined.denied(joined.member.closed_denial());
    let decided = decided.unwrap_or_else(|| call.members.iter().map(closed).collect());
    Ok(conclude(call.members, decided, count))
}

/// Counts the parts of a call, whose decisions are those of `decided`. Returns the decisions by the places of the
/// parts.
///
/// If the call is denied, a part in shadow mode has no share in the denial, and no decision.
fn conclude(members: Few<Joined>, decided: AllDecisions, count: usize) -> AllDecisions {
    let is_denied = denies(&decided);
    let mut all: AllDecisions = (0..count).map(|_| None).collect();
    for (joined, one) in members.into_iter().zip(decided) {
        let is_in_shadow = joined.member.is_in_shadow();
        let one = one.or_else(|| joined.denied(joined.denial)).filter(|_| !is_denied || !is_in_shadow);
        let decision = one.as_ref().map(|one| *one.decided.decision());
        let calls = joined.member.calls();
        if is_in_shadow {
            if let Some(decision) = decision {
                calls.add(CallOutcome::of(&decision, true));
            }
        } else {
            if !is_denied && decision.is_some_and(|decision| !decision.delay().is_zero()) {
                calls.add(CallOutcome::Queued);
            }
            let outcome = |decision: Decision| CallOutcome::of_joint(&decision, !is_denied);
            calls.add(decision.map_or(CallOutcome::DeniedByOthers, outcome));
        }
        all[joined.place] = one;
    }
    all
}

/// Returns whether a limiter that is not in shadow mode denies the call.
fn denies(decided: &AllDecisions) -> bool {
    decided.iter().flatten().any(|one| !one.is_shadow && !one.decided.decision().is_allowed())
}

/// Awaits `future` until a limiter that is not in shadow mode is closed. Returns `None` if one is closed first.
async fn unless_closed<T>(members: &[Joined], future: impl Future<Output = T>) -> Option<T> {
    let members = members.iter().map(|joined| &joined.member);
    let enforced = members.filter(|member| member.cost() > 0 && !member.is_in_shadow());
    let mut closed = Few::<BoxFuture<()>>::new();
    for calls in enforced.map(|member| Arc::clone(member.calls())) {
        closed.push(Box::pin(async move { calls.closed().await }));
    }
    let mut future = pin!(future);
    poll_fn(|cx| {
        if closed.iter_mut().any(|closed| closed.as_mut().poll(cx).is_ready()) {
            Poll::Ready(None)
        } else {
            future.as_mut().poll(cx).map(Some)
        }
    })
    .await
}

/// Makes the trips of a call. Returns an error if the server did not decide the call. The error contains the call,
/// unless the call is lost because its runtime has ended.
async fn ask(call: JointCall) -> Result<Charged, (Option<JointCall>, RedisError)> {
    let Ok(runtime) = Handle::try_current() else { return Err((Some(call), no_runtime())) };
    let route = call.route();
    let link = Arc::clone(&route.link);
    let deadline = link.deadline();
    let admitted = call.links().admit(&route, &call.groups[0].key, deadline, &runtime).await;
    if let Err(open) = admitted {
        return Err((Some(call), open));
    }
    let is_one_trip = call.has_script();
    let (reply, answer) = oneshot::channel();
    let flight = PolledFlight::new(fly(call, route, deadline, reply, runtime.clone()), &runtime);
    // A call that needs several trips is made in a task, since the caller may not be polled between the trips. So is a
    // trial, for which other calls wait.
    if !is_one_trip || link.is_open() {
        flight.spawn();
    }
    let undo = |(call, decided): Reply| {
        if let Ok(outcomes) = decided {
            call.undo(&outcomes, &runtime);
        }
    };
    match Awaited::new(answer, Some(flight), undo).receive(&link, deadline).await {
        Some(Ok((call, Ok(outcomes)))) => {
            Ok(Charged { call: Some((call, outcomes)), runtime: runtime.clone() })
        }
        Some(Ok((call, Err(error)))) => {
            link.count_if_late(deadline);
            Err((Some(call), error))
        }
        Some(Err(_)) | None => Err((None, no_runtime())),
    }
}

async fn fly(
    mut call: JointCall,
    route: Route,
    deadline: Nanos,
    reply: oneshot::Sender<Reply>,
    runtime: Handle,
) {
    let decided = call.make_trips(route, deadline).await;
    if let Err((call, Ok(outcomes))) = reply.send((call, decided)) {
        call.undo(&outcomes, &runtime);
    }
}

fn no_runtime() -> RedisError {
    let detail = "there is none, or the runtime that had the call has ended";
    RedisError::new(RedisErrorKind::NoRuntime, detail)
}

/// Lets the fallbacks of all limiters that are not in shadow mode decide a call. Returns `None` if one of these
/// limiters has no fallback.
fn fall_back(call: &JointCall) -> Option<JointOutcome<Box<JointWait>>> {
    let mut parts = Few::new();
    for Joined { member, .. } in &call.members {
        parts.push(if member.is_in_shadow() { None } else { Some(member.fallback_part()?) });
    }
    Some(decide_in_memory(parts))
}

/// Awaits the decision of the fallbacks. The layer goes on reporting the quotas of the limiters in Redis.
async fn in_memory(outcome: JointOutcome<Box<JointWait>>) -> AllDecisions {
    match outcome {
        JointOutcome::Reported(_) => unreachable!("`decide_in_memory` returns the decisions"),
        JointOutcome::Ready(decided) => decided,
        JointOutcome::Pending(wait, _) => match wait.await {
            Ok(decided) => decided,
            Err(never) => match never {},
        },
    }
}

impl JointCall {
    /// Creates the call, which has the places for its waits before any group is charged.
    fn new(mut members: Few<Joined>) -> (Self, Places) {
        let mut groups = Few::<Group>::new();
        let asked = members.iter_mut().enumerate().filter(|(_, joined)| joined.denial.is_none());
        for (index, Joined { member, group: group_of, .. }) in asked {
            let (key, cost, is_in_shadow) = (member.key(), member.cost(), member.is_in_shadow());
            let place = groups.iter().position(|group| group.key == *key).unwrap_or_else(|| {
                groups.push(Group { first: index, key: Arc::clone(key), cost: 0, is_in_shadow });
                groups.len() - 1
            });
            let group = &mut groups[place];
            if group.is_in_shadow && !is_in_shadow {
                group.first = index;
                group.cost = 0;
                group.is_in_shadow = false;
            }
            if group.is_in_shadow == is_in_shadow {
                group.cost = group.cost.saturating_add(cost);
            }
            *group_of = Some(place);
        }
        let mut call = Self { members, groups, script: None };
        let places = (0..call.groups.len()).map(|group| call.first(group).take_place()).collect();
        call.script = call.plan();
        (call, places)
    }

    /// Returns the limiters that are asked.
    fn asked(&self) -> impl Iterator<Item = &dyn Member> {
        let asked = self.members.iter().filter(|joined| joined.denial.is_none());
        asked.map(|joined| &*joined.member)
    }

    /// Returns the limiter that decides a group.
    fn of(&self, group: &Group) -> &dyn Member {
        &*self.members[group.first].member
    }

    fn first(&mut self, group: usize) -> &mut dyn Member {
        &mut *self.members[self.groups[group].first].member
    }

    fn has_script(&self) -> bool {
        self.script.is_some()
    }

    fn route(&self) -> Route {
        self.links().route(&self.groups[0].key)
    }

    fn links(&self) -> &Links {
        self.of(&self.groups[0]).links()
    }

    /// Returns an error if the parts of this call cannot be decided together.
    fn check_supported(&self) -> Result<(), RedisError> {
        for member in self.asked() {
            member.check_supported()?;
            self.links().check_joined(&self.groups[0].key, member.links(), member.key())?;
        }
        Ok(())
    }

    fn plan(&self) -> Option<Planned> {
        let part = |group: &Group| self.of(group).script_part(group.cost);
        let parts = self.groups.iter().map(part).collect::<Option<Few<_>>>()?;
        // A script can decide the call only if each part is a check without a tier and with a cost above 0.
        if !self.asked().all(|member| member.script_part(0).is_some()) {
            return None;
        }
        let steps =
            self.groups.iter().zip(&parts).map(|(group, (part, _))| part.steps(group.is_in_shadow)).collect();
        let mut packed = Packed::default();
        pack(&parts, self.groups.iter().map(|group| group.cost), &mut packed);
        Some((self.links().any().joint_script(steps)?, packed))
    }

    /// Makes the trips of the call.
    async fn make_trips(&mut self, mut route: Route, deadline: Nanos) -> Result<Outcomes, RedisError> {
        let links = self.links().clone();
        loop {
            if route.link.now() >= deadline {
                return Err(route.link.deadline_error());
            }
            let keys: Few<Arc<str>> = self.groups.iter().map(|group| Arc::clone(&group.key)).collect();
            let keys: Few<&str> = keys.iter().map(|key| &**key).collect();
            let attempted =
                links.attempt(&route, deadline, pin!(self.attempt(&route, &keys, deadline))).await;
            match attempted {
                Attempted::Over(outcomes) => return outcomes,
                Attempted::Again(next) => route = next,
            }
        }
    }

    /// Decides the call on one server. Returns `None` if the server's clock was already past `not_after`, so that
    /// nothing was changed.
    async fn attempt(
        &mut self,
        route: &Route,
        keys: &[&str],
        not_after: Nanos,
    ) -> Result<Option<Outcomes>, RedisError> {
        let link = &*route.link;
        let sent = link.now();
        let found = match &self.script {
            Some((script, packed)) => {
                let evaluated = route.eval(script, keys, not_after, |_, last| last.bytes(packed.as_ref()));
                Found::of(evaluated.await?, sent)
            }
            None => {
                let read = route.read(keys, not_after).await?;
                read.map(|(now, bytes)| Found { bytes, now, sent, is_decided: false })
            }
        };
        let Some(mut found) = found else { return Ok(None) };
        loop {
            let (outcomes, must_write) = self.apply(&found)?;
            if !must_write {
                self.probe(route, keys, &found, not_after).await;
            } else if found.is_decided {
                // The script has decided and charged the call with the same result as the algorithms.
                link.wrote();
            } else {
                let sent = link.now();
                let written: Few<(Vec<u8>, u64)> =
                    (0..self.groups.len()).map(|group| self.first(group).write(found.now)).collect();
                let swapped = {
                    let before = self.values(&found)?;
                    let both = before.iter().zip(&written);
                    let swaps: Few<Swap<'_>> =
                        both.map(|(before, (after, ttl))| Swap::new(before, after, *ttl)).collect();
                    let swapped = link.until(not_after, route.swap(keys, not_after, &swaps)).await;
                    // The server has replied to this call before, so a passed deadline is no outage: many calls may
                    // have changed these keys at once.
                    swapped.unwrap_or_else(|| Err(link.deadline_error()))?
                };
                match swapped {
                    Answer::Done(..) => {}
                    // Another call has changed a state since it was read.
                    Answer::Other(now, bytes) => {
                        found = Found { bytes, now, sent, is_decided: false };
                        continue;
                    }
                    Answer::Late => return Ok(None),
                }
            }
            for (group, outcome) in outcomes.iter().enumerate() {
                if outcome.is_some_and(|outcome| !outcome.decision().is_allowed()) {
                    self.first(group).remember(found.now, found.sent);
                }
            }
            return Ok(Some(outcomes));
        }
    }

    /// Writes the states unchanged, if only a trip that writes can close the circuit breaker. The call is decided
    /// already, so a failure of this write affects only the breaker.
    async fn probe(&mut self, route: &Route, keys: &[&str], found: &Found, not_after: Nanos) {
        if !route.link.needs_write() {
            return;
        }
        let groups = 0..self.groups.len();
        let times: Few<u64> = groups.map(|group| self.first(group).write(found.now).1).collect();
        let Ok(values) = self.values(found) else { return };
        if values.iter().all(|value| value.is_empty()) {
            return;
        }
        let both = values.into_iter().zip(times);
        let swaps: Few<Swap<'_>> = both.map(|(value, ttl)| Swap::new(value, value, ttl)).collect();
        let _ = route.swap(keys, not_after, &swaps).await;
    }

    fn values<'a>(&self, found: &'a Found) -> Result<Few<&'a [u8]>, RedisError> {
        found.values(self.groups.len()).ok_or_else(|| {
            RedisError::new(RedisErrorKind::Foreign, format!("the values are {}", shown(&found.bytes)))
        })
    }

    /// Applies the call to the states in `found`. Returns the outcome of each group, and whether states must be
    /// written.
    fn apply(&mut self, found: &Found) -> Result<(Outcomes, bool), RedisError> {
        let now = found.now;
        for (group, value) in self.values(found)?.into_iter().enumerate() {
            self.first(group).read(value, now)?;
        }
        let preview = |group: &Group| self.of(group).preview(group.cost, now);
        let previews: Few<Outcome> = self.groups.iter().map(preview).collect();
        let is_denied = self
            .groups
            .iter()
            .zip(&previews)
            .any(|(group, preview)| !group.is_in_shadow && !preview.decision().is_allowed());
        let mut must_write = self.groups.iter().any(|group| self.of(group).is_converted());
        let mut outcomes = Few::new();
        for (at, preview) in previews.into_iter().enumerate() {
            let Group { cost, is_in_shadow, .. } = self.groups[at];
            outcomes.push(match (is_denied, is_in_shadow) {
                (true, true) => None,
                (true, false) if preview.decision().is_allowed() => Some(preview),
                // A denial may be counted in the state.
                _ => {
                    let (outcome, changed) = self.first(at).apply(cost, now);
                    must_write |= changed;
                    Some(outcome)
                }
            });
        }
        Ok((outcomes, must_write))
    }

    /// Returns whether a group that is not in shadow mode denies the call.
    fn is_denied(&self, outcomes: &Outcomes) -> bool {
        let denies =
            |outcome: &Option<Outcome>| outcome.is_some_and(|outcome| !outcome.decision().is_allowed());
        self.groups.iter().zip(outcomes).any(|(group, outcome)| !group.is_in_shadow && denies(outcome))
    }

    /// Undoes the charges of all groups, if the call was admitted.
    fn undo(&self, outcomes: &Outcomes, runtime: &Handle) {
        if self.is_denied(outcomes) {
            return;
        }
        for (group, outcome) in self.groups.iter().zip(outcomes) {
            if let Some(outcome) = outcome {
                self.of(group).undo(group.cost, outcome, runtime);
            }
        }
    }
}

impl Found {
    /// Returns what a script has found when it was to decide the call, by a request that was sent at `sent`. Returns
    /// `None` if the script has changed nothing, because it was late.
    fn of(answer: Answer, sent: Nanos) -> Option<Self> {
        let is_decided = matches!(answer, Answer::Done(..));
        match answer {
            Answer::Done(now, bytes) | Answer::Other(now, bytes) => {
                Some(Self { bytes, now, sent, is_decided })
            }
            Answer::Late => None,
        }
    }

    /// Returns the values of `count` keys. Returns `None` if the reply has another form.
    fn values(&self, count: usize) -> Option<Few<&[u8]>> {
        let (lengths, mut rest) = self.bytes.split_at_checked(8 * (count - 1))?;
        let mut values = Few::new();
        for length in lengths.as_chunks().0 {
            let (value, after) = rest.split_at_checked(f64::from_le_bytes(*length) as usize)?;
            values.push(value);
            rest = after;
        }
        values.push(rest);
        Some(values)
    }
}

impl Charged {
    /// Waits until all buckets admit the call. Returns `false` if one of its limiters is closed first. The groups that
    /// do not wait give their places back at once.
    async fn sleep(&self, places: Places) -> bool {
        let Some((call, outcomes)) = &self.call else { return true };
        let delay = outcomes.iter().flatten().map(|outcome| Nanos::from(outcome.decision().delay()).0).max();
        if let Some(delay @ 1..) = delay
            && !call.is_denied(outcomes)
        {
            let waits = |outcome: &Outcome| !outcome.decision().delay().is_zero();
            let places = places.into_iter().zip(outcomes);
            let _places: Places = places
                .map(|(place, outcome)| place.filter(|_| outcome.as_ref().is_some_and(waits)))
                .collect();
            let link = call.links().any();
            let admitted = link.sleep_until(link.now().saturating_add(delay));
            return unless_closed(&call.members, admitted).await.is_some();
        }
        true
    }

    /// Undoes the charges of the call, and returns the call. Returns `None` when called again.
    fn undo(&mut self) -> Option<JointCall> {
        let (call, outcomes) = self.call.take()?;
        call.undo(&outcomes, &self.runtime);
        Some(call)
    }

    /// Returns the call, and the decision of each of its parts. Returns `None` when called again.
    fn decided(&mut self) -> Option<(JointCall, Option<AllDecisions>)> {
        let (call, outcomes) = self.call.take()?;
        let is_denied = call.is_denied(&outcomes);
        let decided = call.members.iter().map(|joined| {
            let group = joined.group?;
            let outcome = outcomes[group]?;
            // A call that is denied does not wait.
            let decision = if is_denied { outcome.decision().with_delay(0) } else { outcome.decision() };
            // In a group that decides, a part in shadow mode is not charged.
            let has_share = joined.member.is_in_shadow() == call.groups[group].is_in_shadow;
            let reservation = if decision.is_allowed() && !is_denied && has_share {
                joined.member.reservation(outcome, &self.runtime)
            } else {
                Reservation::default()
            };
            Some(joined.decided(decision, reservation))
        });
        let decided = decided.collect();
        Some((call, Some(decided)))
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.undo();
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        self.0.iter().for_each(|calls| calls.add(CallOutcome::Cancelled));
    }
}

impl fmt::Debug for RedisPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPart")
            .field("key", &self.0.as_ref().map(|member| member.key()))
            .finish_non_exhaustive()
    }
}
