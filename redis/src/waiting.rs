//! Calls that wait: either until a time that the server has determined, or in a queue of this process.
//!
//! The state of a bucket determines when the units of a call will be available. So the call is charged at once for that
//! time, and sleeps in this process until that time. The calls of all processes are released in the order of these
//! times. The state of a window does not show which other calls wait. So calls that wait for a window are queued in
//! their own process once they were denied, and the first call of each queue asks the server again when its units may
//! be available.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::error::RedisError;
use super::limit::{Request, Shared};
use super::operation::{Action, Operation};
use super::wait_queue::Waiting;
use tower_throttle::Decision;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;
use tower_throttle::store::Reservation;

/// A guard that gives back the charge of a call if the call is dropped while it sleeps.
struct Sleeper<'a, A: StoredAlgorithm> {
    shared: &'a Arc<Shared<A>>,
    key: &'a Arc<str>,
    give_back: Option<Operation<A>>,
    runtime: Option<Handle>,
}

impl<A: StoredAlgorithm> Drop for Sleeper<'_, A> {
    fn drop(&mut self) {
        if let (Some(operation), Some(runtime)) = (self.give_back.take(), &self.runtime) {
            self.shared.tell(self.key, operation, runtime);
        }
    }
}

impl<A: StoredAlgorithm> Shared<A> {
    /// Decides a call that may wait.
    pub(super) async fn wait(
        self: &Arc<Self>,
        key: &Arc<str>,
        request: &Request<A>,
    ) -> Result<(Decision, Reservation), RedisError> {
        // A call of cost 0 is always allowed, so it waits neither for units nor behind other calls.
        if request.operation.cost == 0 {
            return self.check(key, request).await;
        }
        match self.plan().hands_out_times && request.operation.tier.is_none() {
            true => self.sleep_until_given_time(key, request).await,
            false => self.queue(key, request).await,
        }
    }

    async fn sleep_until_given_time(
        self: &Arc<Self>,
        key: &Arc<str>,
        request: &Request<A>,
    ) -> Result<(Decision, Reservation), RedisError> {
        let operation = Operation { action: Action::Reserve(request.max_wait), ..request.operation.clone() };
        let outcome = self.ask(key, operation).await?;
        if !outcome.decision.is_allowed() {
            return Ok((outcome.decision, Reservation::default()));
        }
        let delay = Nanos::from(outcome.decision.delay()).0;
        if delay > 0 {
            let give_back = outcome
                .mark
                .map(|mark| Operation { action: Action::GiveBack(mark), ..request.operation.clone() });
            let runtime = Handle::try_current().ok();
            let mut sleeper = Sleeper { shared: self, key, give_back, runtime };
            self.links.any().sleep_until(self.links.any().now().saturating_add(delay)).await;
            sleeper.give_back = None;
        }
        Ok((outcome.decision, self.reservation(key, request, outcome.charged_at)))
    }

    async fn queue(
        self: &Arc<Self>,
        key: &Arc<str>,
        request: &Request<A>,
    ) -> Result<(Decision, Reservation), RedisError> {
        let plan = self.plan();
        let algorithm = request.operation.tier.as_ref().unwrap_or(&plan.algorithm);
        let Some(config) = algorithm.queue_config() else { return self.check(key, request).await };
        if config.places() == 0 {
            return self.check(key, request).await;
        }
        let waiting = Waiting {
            queues: &self.queues,
            link: self.links.any(),
            key,
            places: config.places(),
            max_wait: request.max_wait.min(config.max_wait()),
            unknown_wait: None,
        };
        waiting.decide(|| self.check(key, request), || self.peek(key, request)).await
    }

    async fn peek(self: &Arc<Self>, key: &Arc<str>, request: &Request<A>) -> Result<Decision, RedisError> {
        let peek = Operation { action: Action::Peek, ..request.operation.clone() };
        Ok(self.ask(key, peek).await?.decision)
    }
}
