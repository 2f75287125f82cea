//! Calls that get a permit, wait for one, or are denied.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::permit::{HeldPermit, Place};
use super::record::{Acquired, Call, Peek};
use super::trips::Shared;
use crate::asked::result_of;
use crate::error::{RedisError, RedisErrorKind};
use crate::link::Link;
use tower_throttle::Decision;

impl Shared {
    /// Decides a call. If `max_wait` is given, the call waits for up to `max_wait` nanoseconds. Returns the permit of
    /// an admitted call, if the call has units.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        key: &Arc<str>,
        units: u64,
        max_wait: Option<u64>,
    ) -> Result<(Decision, Option<HeldPermit>), RedisError> {
        // A call without units is always admitted, and a call of too many units is always denied.
        if units == 0 || units > self.rules.limit {
            return Ok((self.peek(key, units).await?, None));
        }
        let (runtime, route) = (RedisError::current_runtime()?, self.links.route(key));
        let link = &*route.link;
        let arrived = link.now();
        link.breaker.admit(arrived)?;
        let (deadline, latest) = (link.deadline(), max_wait.map(|wait| arrived.saturating_add(wait)));
        let (reply, mut answer) = oneshot::channel();
        let place = Place::new(self, key, units, Call { arrived, deadline, latest, reply }, runtime);
        let latest = latest.unwrap_or(deadline);
        let mut received = link.until(deadline.min(latest), &mut answer).await;
        if received.is_none() && !place.is_waiting() {
            received = link.until(deadline, &mut answer).await;
        }
        while received.is_none() && place.is_waiting() && link.now() < latest {
            place.tend();
            let soon = link.now().saturating_add(self.rules.lease / 8);
            received = link.until(latest.min(soon), &mut answer).await;
        }
        if received.is_none() && place.is_waiting() {
            answer.close();
            let Ok(result) = answer.try_recv() else {
                return Ok((self.rules.deny(units, self.rules.limit, 1), None));
            };
            received = Some(Ok(result));
        }
        let Acquired { decision, permit } = result_of(link, deadline, received, &mut answer)?;
        if permit.as_ref().is_some_and(|grant| *grant.valid_until.borrow() <= link.now()) {
            // The process was suspended meanwhile.
            return Err(RedisError::new(RedisErrorKind::Late, "the permit was lost before the call got it"));
        }
        Ok((decision, permit.map(|grant| place.hold(grant))))
    }

    /// Returns the decision on a call of `units`, without a charge.
    pub(super) async fn peek(self: &Arc<Self>, key: &Arc<str>, units: u64) -> Result<Decision, RedisError> {
        let (runtime, route) = (RedisError::current_runtime()?, self.links.route(key));
        let link: &Link = &route.link;
        link.breaker.admit(link.now())?;
        let deadline = link.deadline();
        let (reply, mut answer) = oneshot::channel();
        self.change(key, &runtime, |_, state| state.peek(Peek { deadline, reply }));
        let received = link.until(deadline, &mut answer).await;
        let (held, waiting) = result_of(link, deadline, received, &mut answer)?;
        let left = self.rules.left(held, waiting);
        Ok(match units <= left {
            true => Decision::allow(self.rules.limit, left, 0),
            false => self.rules.deny(units, held, waiting),
        })
    }

    /// Releases units of forgotten permits.
    pub(super) fn release(self: &Arc<Self>, key: &Arc<str>, units: u64) -> Result<(), RedisError> {
        let runtime = RedisError::current_runtime()?;
        let expires = self.links.any().now().saturating_add(self.rules.lease);
        self.change(key, &runtime, |_, state| state.release(units, expires));
        Ok(())
    }
}
