//! Calls of several limiters in Redis that are decided together: all of them are admitted, or none is.
//!
//! A joint call is decided like a call of a tuple of algorithms, except that each algorithm has its own key. One script
//! reads the states of all keys, and writes all of them if the call is admitted. If an algorithm has no script, the
//! states are read in one trip, and written in a second trip. If another call has changed one of the states in between,
//! the call is decided again. Each joint call makes its own trips.

mod call;
mod member;

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use self::call::{JointCall, Outcomes};
use self::member::Member;
use super::error::RedisError;
use super::limit::{RedisKey, RedisLimit, RedisReply};
use super::next_trip::PolledFlight;
use super::operation::Outcome;
use tower_throttle::Decision;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;
use tower_throttle::store::SharedKey;
use tower_throttle::store::{Attempt, KeyedStore, Reservation};
use tower_throttle::store_support::{AllDecisions, Decided, Few, JointKind, JointOutcome, JointStore};
use tower_throttle::store_support::{CallCounts, CallOutcome};
use tower_throttle::store_support::{JointWait, decide_in_memory};

/// The [`JointKind`] of the store [`RedisLimit`].
#[derive(Debug)]
pub struct InRedis;

/// The part of one limiter in a joint call.
pub struct RedisPart(Box<dyn Member>);

impl fmt::Debug for RedisPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPart").field("key", self.0.key()).finish_non_exhaustive()
    }
}

impl<A: StoredAlgorithm, K: SharedKey + ?Sized> JointStore<A, K> for RedisLimit<A> {
    type Kind = InRedis;

    fn joint_part<'a>(&'a self, key: &K, attempt: Attempt<'_, A>, counts: &'a Arc<CallCounts>) -> RedisPart {
        let RedisKey(key) = self.key(key);
        RedisPart(self.member(key, &attempt, counts))
    }
}

impl JointKind for InRedis {
    type Part<'a> = RedisPart;
    type Error = RedisError;
    type Wait = RedisReply<AllDecisions>;

    const DECIDES_SHADOWS: bool = true;

    fn decide(parts: Few<Option<RedisPart>>) -> JointOutcome<Self::Wait> {
        let members: Few<Option<Box<dyn Member>>> =
            parts.into_iter().map(|part| part.map(|part| part.0)).collect();
        let known =
            |member: &Option<Box<dyn Member>>| member.as_ref().and_then(|member| member.known_denial());
        let known: Few<Option<Decision>> = members.iter().map(known).collect();
        match known.iter().all(Option::is_none) {
            true => JointOutcome::Pending(Box::pin(decide(members))),
            false => JointOutcome::Ready(members.into_iter().zip(known).map(denied).collect()),
        }
    }
}

/// Counts a part of a call that is denied without a trip. Returns the decision of the part if it is known.
fn denied((member, known): (Option<Box<dyn Member>>, Option<Decision>)) -> Option<Decided> {
    let member = member?;
    if !member.is_in_shadow() {
        let outcome = known.map(|denial| CallOutcome::of(&denial, false));
        member.count(outcome.unwrap_or(CallOutcome::DeniedByOthers));
    }
    let (decision, algorithm) = (known?, member.algorithm());
    Some(Decided { decision, algorithm, reservation: Reservation::default(), borrowed: 0, is_shadow: false })
}

/// Decides a joint call. `None` stands for a limiter from which the call is exempt.
async fn decide(members: Few<Option<Box<dyn Member>>>) -> Result<AllDecisions, RedisError> {
    let is_limited: Few<bool> = members.iter().map(Option::is_some).collect();
    let call = JointCall::new(members.into_iter().flatten().collect());
    call.check_supported()?;
    let mut undecided = Undecided(call.members.iter().map(|member| member.counts()).collect());
    let (call, decided) = match ask(call).await {
        Ok(mut charged) => {
            charged.sleep().await;
            charged.decided().ok_or_else(no_runtime)?
        }
        Err((Some(call), error)) => match fall_back(&call) {
            Some(outcome) => (call, in_memory(outcome).await),
            None => {
                undecided.0.clear();
                return Err(error);
            }
        },
        Err((None, error)) => return Err(error),
    };
    undecided.0.clear();
    let is_denied = decided.iter().flatten().any(|one| !one.is_shadow && !one.decision.is_allowed());
    for (member, Decided { decision, is_shadow, .. }) in
        call.members.iter().zip(&decided).filter_map(|(member, one)| Some((member, one.as_ref()?)))
    {
        if !is_denied && !is_shadow && !decision.delay().is_zero() {
            member.count(CallOutcome::Queued);
        }
        member.count(match is_denied && decision.is_allowed() {
            true => CallOutcome::DeniedByOthers,
            false => CallOutcome::of(decision, *is_shadow),
        });
    }
    let mut decided = decided.into_iter();
    let all = is_limited.into_iter().map(|is_limited| if is_limited { decided.next()? } else { None });
    Ok(all.collect())
}

/// A guard that counts the parts of a joint call as cancelled if the call is dropped before it is decided.
struct Undecided(Few<Arc<CallCounts>>);

impl Drop for Undecided {
    fn drop(&mut self) {
        self.0.iter().for_each(|counts| counts.add(CallOutcome::Cancelled));
    }
}

/// A joint call that awaits the result of its trips. If the call is dropped, its charge, if any, is undone.
struct Asked {
    answer: oneshot::Receiver<(JointCall, Result<Outcomes, RedisError>)>,
    flight: PolledFlight,
    runtime: Handle,
}

impl Drop for Asked {
    fn drop(&mut self) {
        // If no result was sent yet, the trip detects from now on that the call was dropped.
        self.answer.close();
        if let Ok((call, Ok(outcomes))) = self.answer.try_recv() {
            call.undo(&outcomes, &self.runtime);
        }
        self.flight.abandon();
    }
}

/// Makes the trips of a call. Returns an error if the server did not decide the call. The error contains the call,
/// unless the call is lost because its runtime has ended.
async fn ask(call: JointCall) -> Result<Charged, (Option<JointCall>, RedisError)> {
    let Ok(runtime) = Handle::try_current() else { return Err((Some(call), no_runtime())) };
    let link = call.route().link;
    if let Err(open) = link.breaker.admit(link.now()) {
        return Err((Some(call), open));
    }
    let (deadline, is_one_trip) = (link.deadline(), call.has_script());
    let (reply, answer) = oneshot::channel();
    let flight = PolledFlight::new(fly(call, deadline, reply, runtime.clone()), &runtime);
    // A call that needs several trips is made in a task, since the caller may not be polled between the trips.
    if !is_one_trip {
        flight.spawn();
    }
    let mut asked = Asked { answer, flight, runtime };
    let Asked { answer, flight, .. } = &mut asked;
    match flight.drive(answer).await {
        Ok((call, Ok(outcomes))) => {
            Ok(Charged { call: Some((call, outcomes)), runtime: asked.runtime.clone() })
        }
        Ok((call, Err(error))) => {
            if link.now() >= deadline {
                link.count_late();
            }
            Err((Some(call), error))
        }
        Err(_) => Err((None, no_runtime())),
    }
}

async fn fly(
    mut call: JointCall,
    deadline: Nanos,
    reply: oneshot::Sender<(JointCall, Result<Outcomes, RedisError>)>,
    runtime: Handle,
) {
    let decided = call.decide(deadline).await;
    if let Err((call, Ok(outcomes))) = reply.send((call, decided)) {
        call.undo(&outcomes, &runtime);
    }
}

fn no_runtime() -> RedisError {
    RedisError::no_runtime("there is none, or the runtime that had the call has ended")
}

/// A joint call that was decided. If this value is dropped while the call sleeps, its charges are undone.
struct Charged {
    call: Option<(JointCall, Outcomes)>,
    runtime: Handle,
}

impl Charged {
    /// Waits until all buckets release the call.
    async fn sleep(&self) {
        let Some((call, outcomes)) = &self.call else { return };
        let delay = outcomes.iter().flatten().map(|outcome| Nanos::from(outcome.decision.delay()).0).max();
        if let Some(delay @ 1..) = delay
            && !call.is_denied(outcomes)
        {
            let link = call.links().any();
            link.sleep_until(link.now().saturating_add(delay)).await;
        }
    }

    /// Returns the call, and the decision of each of its parts. Returns `None` when called again.
    fn decided(&mut self) -> Option<(JointCall, Few<Option<Decided>>)> {
        let (call, outcomes) = self.call.take()?;
        let is_denied = call.is_denied(&outcomes);
        let decided = call.members.iter().zip(&call.group_of).enumerate().map(|(index, (member, group))| {
            let Outcome { decision, charged_at, .. } = outcomes[*group]?;
            // A part in shadow mode has no decision if the call is denied.
            if is_denied && member.is_in_shadow() {
                return None;
            }
            let is_charged = decision.is_allowed() && !is_denied && call.is_charged(index);
            Some(Decided {
                decision,
                algorithm: member.algorithm(),
                reservation: match is_charged {
                    true => member.reservation(charged_at),
                    false => Reservation::default(),
                },
                borrowed: 0,
                is_shadow: member.is_in_shadow(),
            })
        });
        let decided = decided.collect();
        Some((call, decided))
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        if let Some((call, outcomes)) = self.call.take() {
            call.undo(&outcomes, &self.runtime);
        }
    }
}

/// Lets the fallbacks of all limiters that are not in shadow mode decide a call. Returns `None` if one of these
/// limiters has no fallback.
fn fall_back(call: &JointCall) -> Option<JointOutcome<Box<JointWait>>> {
    let mut parts = Few::new();
    for member in &call.members {
        parts.push(if member.is_in_shadow() { None } else { Some(member.fallback_part()?) });
    }
    Some(decide_in_memory(parts))
}

async fn in_memory(outcome: JointOutcome<Box<JointWait>>) -> Few<Option<Decided>> {
    match outcome {
        JointOutcome::Ready(decided) => decided,
        JointOutcome::Pending(wait) => match wait.await {
            Ok(decided) => decided,
            Err(never) => match never {},
        },
    }
}
