//! A call that awaits its result.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::error::RedisError;
use super::limit::Shared;
use super::link::Link;
use super::next_trip::PolledFlight;
use super::operation::{Operation, Outcome};
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;

/// A call that awaits its result. If the call is dropped after its flight has sent the result, but before the call has
/// received the result, the charge of the call is undone.
pub(super) struct Asked<'a, A: StoredAlgorithm> {
    pub(super) shared: &'a Arc<Shared<A>>,
    pub(super) key: &'a Arc<str>,
    pub(super) operation: Operation<A>,
    pub(super) answer: oneshot::Receiver<Result<Outcome, RedisError>>,
    /// The flight of the call, if the call has begun one.
    pub(super) flight: Option<PolledFlight>,
    pub(super) runtime: &'a Handle,
}

impl<A: StoredAlgorithm> Asked<'_, A> {
    /// Returns the result, or `None` if no result was sent before the deadline. A flight that the call has begun ends
    /// by itself at the deadline.
    pub(super) async fn answer(
        &mut self,
        link: &Link,
        deadline: Nanos,
    ) -> Option<Result<Result<Outcome, RedisError>, RecvError>> {
        let Self { flight: Some(flight), answer, .. } = self else {
            return link.until(deadline, &mut self.answer).await;
        };
        Some(flight.drive(answer).await)
    }
}

impl<A: StoredAlgorithm> Drop for Asked<'_, A> {
    fn drop(&mut self) {
        // If no result was sent yet, the trip detects from now on that the call was dropped.
        self.answer.close();
        if let Ok(Ok(outcome)) = self.answer.try_recv()
            && let Some(undo) = self.operation.clone().undone(&outcome)
        {
            self.shared.tell(self.key, undo, self.runtime);
        }
        if let Some(flight) = &self.flight {
            flight.abandon();
        }
    }
}

/// Returns the result of a call. `received` is what was received from `answer`, or `None` if nothing was received
/// before the deadline.
pub(super) fn result_of<T>(
    link: &Link,
    deadline: Nanos,
    received: Option<Result<Result<T, RedisError>, RecvError>>,
    answer: &mut oneshot::Receiver<Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let result = match received {
        Some(Ok(result)) => result,
        Some(Err(_)) => Err(RedisError::no_runtime("the runtime that had the call has ended")),
        None => {
            // The call may have been decided just at the deadline.
            answer.close();
            answer.try_recv().unwrap_or_else(|_| Err(link.deadline_error()))
        }
    };
    if result.is_err() && link.now() >= deadline {
        link.count_late();
    }
    result
}
