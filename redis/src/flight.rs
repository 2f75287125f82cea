//! The caller's side of a trip: the reply that a call awaits, and a flight that the call polls meanwhile.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::error::RedisError;
use super::link::Link;
use tower_throttle::clock::Nanos;

/// A flight that is polled by the call that began it. The only call for a key then needs no task, if one trip decides
/// the call. The flight moves to a task when a second call arrives, or when the first call has its result or is
/// dropped. So no call for a key depends on another call being polled.
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

/// The reply that a call awaits. If this value is dropped after the reply was sent, but before it was received, `undo`
/// gets the reply, and undoes the charge of the call.
pub(super) struct Awaited<T, U: FnMut(T)> {
    answer: oneshot::Receiver<T>,
    /// The flight of the call, if the call polls it.
    flight: Option<PolledFlight>,
    undo: U,
}

impl PolledFlight {
    pub(super) fn new(flight: impl Future<Output = ()> + Send + 'static, runtime: &Handle) -> Self {
        let polled = Polled { flight: Box::pin(flight), waker: None };
        Self(Arc::new(PolledState { flight: Mutex::new(Some(polled)), runtime: runtime.clone() }))
    }

    /// Waits for the answer of the flight, and polls the flight meanwhile, unless the flight is in a task.
    async fn drive<T>(&self, answer: &mut oneshot::Receiver<T>) -> Result<T, RecvError> {
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
    fn abandon(&self) {
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

impl<T, U: FnMut(T)> Awaited<T, U> {
    pub(super) fn new(answer: oneshot::Receiver<T>, flight: Option<PolledFlight>, undo: U) -> Self {
        Self { answer, flight, undo }
    }

    /// Waits for the reply. Returns `None` if none was sent before the deadline. A flight that the call polls ends by
    /// itself at the deadline.
    pub(super) async fn receive(&mut self, link: &Link, deadline: Nanos) -> Option<Result<T, RecvError>> {
        match &self.flight {
            Some(flight) => Some(flight.drive(&mut self.answer).await),
            None => link.until(deadline, &mut self.answer).await,
        }
    }
}

impl<T, U: FnMut(Result<T, RedisError>)> Awaited<Result<T, RedisError>, U> {
    /// Waits for the result of the call. Returns an error if there is none by the deadline.
    pub(super) async fn result(&mut self, link: &Link, deadline: Nanos) -> Result<T, RedisError> {
        let received = self.receive(link, deadline).await;
        link.result_of(deadline, received, &mut self.answer)
    }
}

impl<T, U: FnMut(T)> Drop for Awaited<T, U> {
    fn drop(&mut self) {
        // If no reply was sent yet, the trip detects from now on that the call was dropped.
        self.answer.close();
        if let Ok(reply) = self.answer.try_recv() {
            (self.undo)(reply);
        }
        if let Some(flight) = &self.flight {
            flight.abandon();
        }
    }
}
