//! The methods of a limiter whose store is in Redis.

use std::sync::Arc;

use super::error::RedisError;
use super::limit::{RedisKey, RedisLimit, RedisReply, Request, Shared};
use super::operation::{Action, Operation};
use tower_throttle::Decision;
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::store::{Acquired, Attempt, CheckStore, Denied, KeyedStore, Permit, Reservation, Store};

impl<A: StoredAlgorithm> CheckStore<A> for RedisLimit<A> {
    type Reply<T: Send + 'static> = RedisReply<T>;
    type Output<T> = Result<T, RedisError>;

    fn output<T>(result: Result<T, RedisError>) -> Result<T, RedisError> {
        result
    }

    fn check(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, A>) -> RedisReply<Decision> {
        let (shared, request) = (Arc::clone(&self.shared), self.request(&attempt));
        Box::pin(async move {
            match (shared.check(&key, &request).await, &shared.fallback) {
                (Err(_), Some(local)) => Ok(local.store().check(local.store().key(&*key), request.attempt())),
                (decided, _) => decided.map(|(decision, _)| decision),
            }
        })
    }

    /// Returns an empty permit for an admitted call, because no algorithm of this crate that works with a
    /// [`RedisLimit`] limits calls in progress.
    fn try_acquire_permit(
        &self,
        key: RedisKey,
        attempt: Attempt<'_, A>,
    ) -> RedisReply<Result<Permit, Denied>> {
        let decision = self.check(key, attempt);
        Box::pin(async move { Ok(Permit::decided(decision.await?, Reservation::default())) })
    }

    fn peek(&self, RedisKey(key): RedisKey, attempt: Attempt<'_, A>) -> RedisReply<Decision> {
        let (shared, mut request) = (Arc::clone(&self.shared), self.request(&attempt));
        request.operation.action = Action::Peek;
        Box::pin(async move {
            match shared.ask(&key, request.operation.clone()).await {
                Ok(outcome) => Ok(outcome.decision),
                Err(error) => match &shared.fallback {
                    Some(local) => Ok(local.store().peek(local.store().key(&*key), request.attempt())),
                    None => Err(error),
                },
            }
        })
    }

    fn refund(&self, RedisKey(key): RedisKey, cost: u64) -> RedisReply<()> {
        self.change(key, Operation::new(Action::Refund, cost))
    }

    fn reset(&self, RedisKey(key): RedisKey) -> RedisReply<()> {
        self.change(key, Operation::new(Action::Reset, 0))
    }
}

impl<A: StoredAlgorithm> RedisLimit<A> {
    /// Refunds or resets the key. A reset is also made in the fallback. A refund is made in the fallback only if Redis
    /// fails. As with all methods, a failure of Redis is no error if there is a fallback.
    fn change(&self, key: Arc<str>, operation: Operation<A>) -> RedisReply<()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            shared.denials.forget(&key);
            let (action, cost) = (operation.action, operation.cost);
            let changed = shared.ask(&key, operation).await.map(|_| ());
            let Some(local) = &shared.fallback else { return changed };
            match action {
                Action::Reset => local.reset(&*key),
                // If Redis fails now, the call whose units are refunded was probably charged by the fallback.
                _ if changed.is_err() => local.refund(&*key, cost),
                _ => {}
            }
            Ok(())
        })
    }
}

impl<A> Request<A> {
    /// Returns the attempt with which the call is passed to the fallback.
    pub(super) fn attempt(&self) -> Attempt<'_, A>
    where
        A: StoredAlgorithm,
    {
        let mut attempt = Attempt::new(self.operation.cost);
        if let Some(tier) = &self.operation.tier {
            attempt = attempt.with_algorithm(tier);
        }
        if self.settles {
            attempt = attempt.with_reservation();
        }
        if self.max_wait < u64::MAX {
            attempt = attempt.with_max_wait(std::time::Duration::from_nanos(self.max_wait));
        }
        if self.may_wait { attempt.wait() } else { attempt }
    }
}

impl<A: StoredAlgorithm> Shared<A> {
    /// Returns `decided`, or the decision of the fallback if `decided` is an error.
    pub(super) async fn or_fallback(
        &self,
        key: &Arc<str>,
        request: &Request<A>,
        decided: Result<(Decision, Reservation), RedisError>,
    ) -> Result<(Decision, Reservation), RedisError> {
        let (Err(_), Some(local)) = (&decided, &self.fallback) else { return decided };
        match local.store().acquire(local.store().key(&**key), request.attempt()) {
            Acquired::Ready(decision, reservation) => Ok((decision, reservation)),
            Acquired::Pending(wait) => match wait.await {
                Ok(waited) => Ok(waited),
                Err(never) => match never {},
            },
        }
    }
}
