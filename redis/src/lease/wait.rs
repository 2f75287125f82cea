//! Calls that wait for units, in a queue of this process. The first call of a queue asks again when its units may be
//! available.

use std::sync::Arc;

use super::held::Action;
use super::trips::Shared;
use crate::error::RedisError;
use crate::wait_queue::Waiting;
use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;

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
        let config = self.algorithm.queue_config().filter(|config| cost > 0 && config.places() > 0);
        let Some(config) = config else { return self.check(key, cost).await };
        let waiting = Waiting {
            queues: &self.queues,
            link: self.links.any(),
            key,
            places: config.places(),
            max_wait: max_wait.min(config.max_wait()),
            unknown_wait: Some(UNKNOWN_WAIT),
        };
        let check = || async { Ok((self.check(key, cost).await?, ())) };
        let (decision, ()) = waiting.decide(check, || self.ask(key, Action::Peek, cost)).await?;
        Ok(decision)
    }
}
