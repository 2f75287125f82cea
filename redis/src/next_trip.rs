//! The calls for a key that arrive while a [trip](super::flight) to the server is under way for the key. The next trip
//! decides up to 256 of them.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::operation::Pending;
use tower_throttle::clock::Nanos;

/// The maximum number of calls that one trip decides. The number is bounded because the server executes nothing else
/// while a script runs.
const MAX_BATCH: usize = 256;

/// A [`Flight`](super::flight::Flight) that is polled by the call that began it. The only call for a key then needs no
/// task, if one trip decides the call. The flight moves to a task when a second call arrives, or when the first call
/// has its result or is dropped. So no call for a key depends on another call being polled.
#[derive(Clone)]
pub(super) struct PolledFlight(Arc<PolledState>);

struct PolledState {
    /// `None` if the flight has ended, or has moved to a task.
    flight: Mutex<Option<Polled>>,
    runtime: Handle,
}

struct Polled {
    flight: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The waker of the call that polls the flight, once that call was polled.
    waker: Option<Waker>,
}

/// The calls that wait for the next trip of a key.
pub(super) struct Waiting<A> {
    /// The number of the [`Flight`](super::flight::Flight) that makes the next trip.
    pub(super) flight: u64,
    /// The time at which the present trip ends at the latest, if the runtime of the flight is driven.
    pub(super) ends: Nanos,
    pub(super) calls: Vec<Pending<A>>,
    pub(super) present: PolledFlight,
}

impl<A> Waiting<A> {
    /// Adds the calls of the next trip to `batch`, and sets the time at which that trip ends at the latest.
    pub(super) fn take_batch(&mut self, mut batch: Vec<Pending<A>>) -> Vec<Pending<A>> {
        let later = self.calls.split_off(self.calls.len().min(MAX_BATCH));
        batch.extend(mem::replace(&mut self.calls, later));
        self.ends = batch.iter().map(|call| call.deadline).max().unwrap_or(self.ends);
        batch
    }
}

impl PolledFlight {
    pub(super) fn new(flight: impl Future<Output = ()> + Send + 'static, runtime: &Handle) -> Self {
        let polled = Polled { flight: Box::pin(flight), waker: None };
        Self(Arc::new(PolledState { flight: Mutex::new(Some(polled)), runtime: runtime.clone() }))
    }

    /// Waits for the answer of the flight, and polls the flight meanwhile, unless the flight is in a task.
    pub(super) async fn drive<T>(&self, answer: &mut oneshot::Receiver<T>) -> Result<T, RecvError> {
        poll_fn(|cx| {
            // While this call polls the flight, it does not register for the answer. Otherwise the answer, which is
            // sent while the call is polled, would wake the call once more.
            if self.poll(cx).is_pending() && answer.is_empty() {
                return Poll::Pending;
            }
            Pin::new(&mut *answer).poll(cx)
        })
        .await
    }

    /// Polls the flight. The result is ready if the flight has ended, or is in a task.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        // The caller may be polled outside a runtime.
        let _entered = self.0.runtime.enter();
        let mut state = self.lock();
        // If the flight panics, it is not put back.
        let Some(mut polled) = state.take() else { return Poll::Ready(()) };
        if polled.flight.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match &mut polled.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => polled.waker = Some(cx.waker().clone()),
        }
        *state = Some(polled);
        Poll::Pending
    }

    /// Moves the flight to a task, and wakes the call that has polled it, so that this call registers for its answer.
    /// If the runtime has ended, the runtime drops the task at once, and the flight with the task.
    pub(super) fn spawn(&self) {
        self.move_to_task(Waker::wake);
    }

    /// Moves the flight to a task, like [`spawn`](Self::spawn), because the call that polls it is dropped. Wakes
    /// nothing.
    pub(super) fn abandon(&self) {
        self.move_to_task(drop);
    }

    fn move_to_task(&self, consume: fn(Waker)) {
        let polled = self.lock().take();
        if let Some(Polled { flight, waker }) = polled {
            // The call is woken first, so that it is woken even if `spawn` panics.
            waker.into_iter().for_each(consume);
            self.0.runtime.spawn(flight);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Polled>> {
        self.0.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
