//! The calls for a key that arrive while a [trip](super::flight) to the server is under way for the key. The next trip
//! decides up to 256 of them.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::operation::Pending;
use crate::clock::Nanos;

/// The maximum number of calls that one trip decides. The number is bounded because the server executes nothing else
/// while a script runs.
const MAX_BATCH: usize = 256;

/// A [`Flight`](super::flight::Flight) that is polled by the call that began it. The only call for a key then needs no
/// task, if one trip decides the call. The flight moves to a task when a second call arrives, or when the first call
/// has its result or is dropped. So no call for a key depends on another call being polled.
#[derive(Clone)]
pub(super) struct PolledFlight(Arc<Place>);

struct Place {
    /// `None` if the flight has ended, or has moved to a task.
    flight: Mutex<Option<BoxedFlight>>,
    runtime: Handle,
}

type BoxedFlight = Pin<Box<dyn Future<Output = ()> + Send>>;

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
        let flight: BoxedFlight = Box::pin(flight);
        Self(Arc::new(Place { flight: Mutex::new(Some(flight)), runtime: runtime.clone() }))
    }

    /// Waits for the answer of the flight, and polls the flight meanwhile, unless the flight is in a task.
    pub(super) async fn drive<T>(&self, answer: &mut oneshot::Receiver<T>) -> Result<T, RecvError> {
        poll_fn(|cx| {
            self.poll(cx);
            Pin::new(&mut *answer).poll(cx)
        })
        .await
    }

    fn poll(&self, cx: &mut Context<'_>) {
        // The caller may be polled outside a runtime.
        let _entered = self.0.runtime.enter();
        let mut place = self.lock();
        // If the flight panics, it is not put back.
        let Some(mut flight) = place.take() else { return };
        if flight.as_mut().poll(cx).is_pending() {
            *place = Some(flight);
        }
    }

    /// Moves the flight to a task. If the runtime has ended, the runtime drops the task at once, and the flight with
    /// the task.
    pub(super) fn spawn(&self) {
        let flight = self.lock().take();
        if let Some(flight) = flight {
            self.0.runtime.spawn(flight);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<BoxedFlight>> {
        self.0.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
