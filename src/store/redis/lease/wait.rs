//! Calls that wait for units, in a queue of this process. The first call of a queue asks again when its units may be
//! available.

use std::sync::Arc;

use super::held::Action;
use super::trips::Shared;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::store::redis::error::RedisError;
use crate::store::redis::wait_queue::{denied_behind, denied_by_full_queue};

/// The time after which a call asks again if it waits for the end of the leases of other processes, in nanoseconds.
const UNKNOWN_WAIT: u64 = 50_000_000;

impl Shared {
    /// Decides a call that does not wait.
    pub(super) async fn check(self: &Arc<Self>, key: &Arc<str>, cost: u64) -> Result<Decision, RedisError> {
        match self.decide(key, cost) {
            Some(decision) => Ok(decision),
            // The script accepts no cost above the burst. A call with such a cost is always denied.
            None if cost > self.rules.bucket.burst() => self.ask(key, Action::Peek, cost).await,
            None => self.ask(key, Action::Check, cost).await,
        }
    }

    /// Decides a call that may wait for up to `max_wait` nanoseconds.
    pub(super) async fn wait(
        self: &Arc<Self>,
        key: &Arc<str>,
        cost: u64,
        max_wait: u64,
    ) -> Result<Decision, RedisError> {
        let Some(config) = self.algorithm.queue_config().filter(|_| cost > 0) else {
            return self.check(key, cost).await;
        };
        let link = self.links.any();
        let arrived = link.now();
        let latest = arrived.saturating_add(max_wait.min(config.max_wait()));
        let place = self.queues.join(key);
        // The call at the front of the queue does not count towards the capacity of the queue, because it may not have
        // to wait.
        if place.ahead > config.places() {
            let peeked = self.ask(key, Action::Peek, cost).await?;
            return Ok(match config.places() {
                0 => denied_behind(peeked),
                _ => denied_by_full_queue(peeked),
            });
        }
        let Some(_first) = link.until(latest, place.queue.first.lock()).await else {
            return Ok(denied_behind(self.ask(key, Action::Peek, cost).await?));
        };
        let mut has_waited = place.ahead > 0;
        loop {
            let decision = self.check(key, cost).await?;
            let now = link.now();
            if decision.is_allowed() {
                let waited = now.saturating_since(arrived);
                return Ok(decision.with_delay(if has_waited { waited } else { 0 }));
            }
            let wait = match decision.retry_after() {
                Some(wait) => Nanos::from(wait).0,
                None if decision.never_fits() => return Ok(decision),
                None => UNKNOWN_WAIT,
            };
            let retry = now.saturating_add(wait);
            if retry > latest || config.places() == 0 {
                return Ok(decision);
            }
            link.sleep_until(retry).await;
            has_waited = true;
        }
    }
}
