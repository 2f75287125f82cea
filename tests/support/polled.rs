//! Futures that are polled by hand, and wakers that count how often they were woken.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A waker that counts how often it was woken, and knows whether it was woken since the last poll.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    woken: AtomicBool,
    times: AtomicU64,
}

impl Alarm {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Creates a waker that counts as woken, because a new task is polled once.
    pub(crate) fn ringing() -> Arc<Self> {
        let alarm = Self::new();
        alarm.woken.store(true, Ordering::SeqCst);
        alarm
    }

    pub(crate) fn rang(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }

    /// Returns whether the waker was woken since the last poll, and does not reset this state.
    pub(crate) fn is_set(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    pub(crate) fn times(&self) -> u64 {
        self.times.load(Ordering::SeqCst)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.times.fetch_add(1, Ordering::SeqCst);
        self.woken.store(true, Ordering::SeqCst);
    }
}

/// A future that is polled by hand, in the same way as by an executor: only if its waker was woken.
pub(crate) struct PolledByHand<F: Future> {
    future: Option<Pin<Box<F>>>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) output: Option<F::Output>,
    pub(crate) polls: usize,
}

impl<F: Future> PolledByHand<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Some(Box::pin(future)), alarm: Alarm::ringing(), output: None, polls: 0 }
    }

    /// Polls the future, even if it was not woken. Returns whether the future is ready.
    pub(crate) fn poll(&mut self) -> bool {
        let waker = Waker::from(self.alarm.clone());
        let Some(future) = &mut self.future else { return true };
        self.alarm.rang();
        self.polls += 1;
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.output = Some(output);
            self.future = None;
        }
        self.future.is_none()
    }

    /// Polls the future if it was woken. Returns whether the future is ready.
    pub(crate) fn run(&mut self) -> bool {
        while self.alarm.rang() {
            if self.poll() {
                return true;
            }
        }
        self.future.is_none()
    }

    /// Moves the future to another task, which has another waker.
    pub(crate) fn moves(&mut self) -> Arc<Alarm> {
        std::mem::replace(&mut self.alarm, Alarm::new())
    }

    pub(crate) fn abandon(&mut self) {
        self.future = None;
    }

    /// Returns whether an executor would poll the future now.
    pub(crate) fn is_woken(&self) -> bool {
        self.is_pending() && self.alarm.is_set()
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.future.is_some()
    }
}

/// Starts a call that must wait.
#[track_caller]
pub(crate) fn waits<F: Future>(call: F) -> PolledByHand<F> {
    let mut call = PolledByHand::new(call);
    assert!(!call.poll(), "it must wait");
    call
}

pub(crate) trait Now: Future + Sized {
    /// Polls the future once, and returns its output. The future must be ready then.
    #[track_caller]
    fn now(self) -> Self::Output {
        let mut call = PolledByHand::new(self);
        assert!(call.poll(), "it must not wait");
        call.output.unwrap()
    }
}

impl<F: Future> Now for F {}

/// Polls the future, and fails if the future is polled again and again. With paused time, no other task would then run.
pub(crate) async fn patient<F: Future>(future: F) -> F::Output {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        polls += 1;
        assert!(polls < 1_000, "it spins");
        future.as_mut().poll(cx)
    })
    .await
}
