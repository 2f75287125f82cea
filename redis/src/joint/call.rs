//! A joint call and its trip.

use std::pin::pin;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::member::Member;
use crate::answer::{Answer, Verdict};
use crate::error::{RedisError, RedisErrorKind};
use crate::flight::At;
use crate::link::{Keys, Swap};
use crate::links::{Attempted, Links};
use crate::operation::Outcome;
use crate::packed::Packed;
use crate::plan::pack;
use crate::route::Route;
use crate::scripts::Script;
use tower_throttle::Decision;
use tower_throttle::clock::Nanos;
use tower_throttle::store_support::Few;

/// The parts of a joint call, grouped by key.
pub(super) struct JointCall {
    pub(super) members: Few<Box<dyn Member>>,
    /// For each member, the index of its group.
    pub(super) group_of: Few<usize>,
    pub(super) groups: Few<Group>,
    /// The script that decides the call in one trip, with its arguments. `None` if no script can decide the call.
    script: Option<Planned>,
}

/// A script, and what its argument contains after the deadline.
type Planned = (Arc<Script>, Packed);

/// The parts of a joint call that have the same key. If some of these parts are not in shadow mode, the parts in shadow
/// mode are not charged. The total cost of the other parts is charged to the limiter of the first of these other parts.
pub(super) struct Group {
    first: usize,
    key: Arc<str>,
    /// The total cost of the parts that are charged.
    cost: u64,
    /// `true` if all parts are in shadow mode, so that the group does not decide whether the call is admitted.
    pub(super) is_in_shadow: bool,
}

/// The outcome of each group. An outcome is `None` if the group is in shadow mode and another group denies the call.
pub(super) type Outcomes = Few<Option<Outcome>>;

impl JointCall {
    pub(super) fn new(members: Few<Box<dyn Member>>) -> Self {
        let (mut groups, mut group_of): (Few<Group>, Few<usize>) = Default::default();
        for (index, member) in members.iter().enumerate() {
            let (key, cost, is_in_shadow) = (member.key(), member.cost(), member.is_in_shadow());
            let place = groups.iter().position(|group| group.key == *key).unwrap_or_else(|| {
                groups.push(Group { first: index, key: Arc::clone(key), cost: 0, is_in_shadow });
                groups.len() - 1
            });
            let group = &mut groups[place];
            if group.is_in_shadow && !is_in_shadow {
                (group.first, group.cost, group.is_in_shadow) = (index, 0, false);
            }
            if group.is_in_shadow == is_in_shadow {
                group.cost = group.cost.saturating_add(cost);
            }
            group_of.push(place);
        }
        let mut call = Self { members, group_of, groups, script: None };
        call.script = call.plan();
        call
    }

    fn first(&mut self, group: usize) -> &mut dyn Member {
        &mut *self.members[self.groups[group].first]
    }

    pub(super) fn has_script(&self) -> bool {
        self.script.is_some()
    }

    pub(super) fn route(&self) -> Route {
        self.links().route(&self.groups[0].key)
    }

    pub(super) fn links(&self) -> &Links {
        self.members[0].links()
    }

    /// Returns an error if the parts of this call cannot be decided together.
    pub(super) fn check_supported(&self) -> Result<(), RedisError> {
        let config = |detail: &str| Err(RedisError::new(RedisErrorKind::Config, detail));
        let (links, key) = (self.links(), self.members[0].key());
        for member in &self.members {
            member.check_supported()?;
            if !links.is_same(member.links()) {
                return config("the limiters of joined layers need clones of one `RedisStore`");
            }
            if !links.has_one_slot(key, member.key()) {
                return config(
                    "the keys of joined layers are in different slots of the cluster: set `one_slot(\"app\")` on the \
                     builder of the store",
                );
            }
        }
        Ok(())
    }

    fn plan(&self) -> Option<Planned> {
        let part = |group: &Group| self.members[group.first].script_part(group.cost);
        let parts = self.groups.iter().map(part).collect::<Option<Few<_>>>()?;
        // A script can decide the call only if each part is a check without a tier and with a cost above 0.
        if !self.members.iter().all(|member| member.script_part(0).is_some()) {
            return None;
        }
        let steps =
            self.groups.iter().zip(&parts).map(|(group, (part, _))| part.steps(group.is_in_shadow)).collect();
        let mut packed = Packed::default();
        pack(&parts, self.groups.iter().map(|group| group.cost), &mut packed);
        Some((self.links().any().joint_script(steps)?, packed))
    }

    /// Makes the trips of the call.
    pub(super) async fn decide(&mut self, deadline: Nanos) -> Result<Outcomes, RedisError> {
        let links = self.links().clone();
        let mut route = self.route();
        loop {
            let link = Arc::clone(&route.link);
            if link.now() >= deadline {
                return Err(link.deadline_error());
            }
            let is_asking = route.is_asking;
            let keys: Few<Arc<str>> = self.groups.iter().map(|group| Arc::clone(&group.key)).collect();
            let texts: Few<&str> = keys.iter().map(|key| &**key).collect();
            let at = At { link: &link, keys: Keys { texts: &texts, is_asking } };
            let attempted = links.attempt(&route, deadline, pin!(self.attempt(at, deadline))).await;
            match attempted {
                Attempted::Over(outcomes) => return outcomes,
                Attempted::Again(next) => route = next,
            }
        }
    }

    /// Decides the call on one server. Returns `None` if the server's clock was already past `not_after`, so that
    /// nothing was changed.
    async fn attempt(&mut self, at: At<'_>, not_after: Nanos) -> Result<Option<Outcomes>, RedisError> {
        let At { link, keys } = at;
        let mut sent = link.now();
        let mut found = match &self.script {
            Some((script, packed)) => {
                let evaluated = link.eval(script, keys, not_after, |_, last| last.bytes(packed.as_ref()));
                evaluated.await?
            }
            None => link.read(keys, not_after).await?.into_other(),
        };
        loop {
            if found.is_late() {
                return Ok(None);
            }
            let (outcomes, must_write) = self.apply(&found)?;
            if !must_write {
                self.probe(at, &found, not_after).await;
            } else if found.verdict == Verdict::Done {
                // The script has decided and charged the call with the same result as the algorithms.
                link.breaker.wrote();
            } else {
                let (asked, groups) = (link.now(), 0..self.groups.len());
                let written: Few<(String, u64)> =
                    groups.map(|group| self.first(group).write(found.now)).collect();
                let swapped = {
                    let before = self.values(&found)?;
                    let both = before.iter().zip(&written);
                    let swaps: Few<Swap<'_>> =
                        both.map(|(before, (after, ttl))| Swap { before, after, ttl: *ttl }).collect();
                    let swapped = link.until(not_after, link.swap(keys, not_after, &swaps)).await;
                    // The server has replied to this call before, so a passed deadline is no outage: many calls may
                    // have changed these keys at once.
                    swapped.unwrap_or_else(|| Err(link.deadline_error()))?
                };
                match swapped.verdict {
                    Verdict::Done if written.iter().all(|(after, _)| after.is_empty()) => {}
                    Verdict::Done => link.breaker.wrote(),
                    // Another call has changed a state since it was read.
                    Verdict::Other => {
                        (found, sent) = (swapped, asked);
                        continue;
                    }
                    Verdict::Late => return Ok(None),
                }
            }
            for (group, outcome) in outcomes.iter().enumerate() {
                if outcome.is_some_and(|outcome| !outcome.decision.is_allowed()) {
                    self.first(group).remember(found.now, sent);
                }
            }
            return Ok(Some(outcomes));
        }
    }

    /// Writes the states unchanged, if only a trip that writes can close the circuit breaker. The call is decided
    /// already, so a failure of this write affects only the breaker.
    async fn probe(&mut self, At { link, keys }: At<'_>, found: &Answer, not_after: Nanos) {
        if !link.breaker.needs_write() {
            return;
        }
        let groups = 0..self.groups.len();
        let times: Few<u64> = groups.map(|group| self.first(group).write(found.now).1).collect();
        let Ok(values) = self.values(found) else { return };
        if values.iter().all(|value| value.is_empty()) {
            return;
        }
        let both = values.into_iter().zip(times);
        let swaps: Few<Swap<'_>> =
            both.map(|(value, ttl)| Swap { before: value, after: value, ttl }).collect();
        let written = link.swap(keys, not_after, &swaps).await;
        if written.is_ok_and(|answer| answer.verdict == Verdict::Done) {
            link.breaker.wrote();
        }
    }

    fn values<'a>(&self, found: &'a Answer) -> Result<Few<&'a str>, RedisError> {
        found.values(self.groups.len()).ok_or_else(|| {
            let shown: String = found.text.chars().take(60).collect();
            RedisError::new(RedisErrorKind::Foreign, format!("the values are {shown:?}"))
        })
    }

    /// Applies the call to the states in `found`. Returns the outcome of each group, and whether states must be
    /// written.
    fn apply(&mut self, found: &Answer) -> Result<(Outcomes, bool), RedisError> {
        let now = found.now;
        for (group, value) in self.values(found)?.into_iter().enumerate() {
            self.first(group).read(value, now)?;
        }
        let preview = |group: &Group| self.members[group.first].preview(group.cost, now);
        let previews: Few<Decision> = self.groups.iter().map(preview).collect();
        let is_denied = self
            .groups
            .iter()
            .zip(&previews)
            .any(|(group, preview)| !group.is_in_shadow && !preview.is_allowed());
        let mut must_write = false;
        let mut outcomes = Few::new();
        for (at, decision) in previews.into_iter().enumerate() {
            let Group { cost, is_in_shadow, .. } = self.groups[at];
            outcomes.push(match (is_denied, is_in_shadow) {
                (true, true) => None,
                (true, false) if decision.is_allowed() => {
                    Some(Outcome { decision, now, charged_at: now, mark: None })
                }
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
    pub(super) fn is_denied(&self, outcomes: &Outcomes) -> bool {
        let denies =
            |outcome: &Option<Outcome>| outcome.is_some_and(|outcome| !outcome.decision.is_allowed());
        self.groups.iter().zip(outcomes).any(|(group, outcome)| !group.is_in_shadow && denies(outcome))
    }

    /// Returns whether the part at `index` is charged if its group admits the call.
    pub(super) fn is_charged(&self, index: usize) -> bool {
        self.members[index].is_in_shadow() == self.groups[self.group_of[index]].is_in_shadow
    }

    /// Undoes the charges of all groups, if the call was admitted.
    pub(super) fn undo(&self, outcomes: &Outcomes, runtime: &Handle) {
        if self.is_denied(outcomes) {
            return;
        }
        for (group, outcome) in self.groups.iter().zip(outcomes) {
            if let Some(outcome) = outcome {
                self.members[group.first].undo(group.cost, outcome, runtime);
            }
        }
    }
}
