//! A caller has a clone of a stack, and is polled as its task would be.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tower::Service;

use super::stack::Stack;
use crate::support::Alarm;

/// A caller, which has a clone of the stack.
pub(super) struct Caller {
    pub(super) stack: Stack,
    pub(super) alarm: Arc<Alarm>,
    pub(super) state: Readiness,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Readiness {
    Idle,
    Asked,
    Ready,
}

impl Caller {
    pub(super) fn new(stack: Stack) -> Self {
        Self { stack, alarm: Alarm::new(), state: Readiness::Idle }
    }

    pub(super) fn ask(&mut self) {
        let waker = Waker::from(self.alarm.clone());
        self.alarm.rang();
        self.state = match self.stack.poll_ready(&mut Context::from_waker(&waker)) {
            Poll::Ready(ready) => {
                ready.expect("none of them fails");
                Readiness::Ready
            }
            Poll::Pending => Readiness::Asked,
        };
    }

    /// Polls the caller as its task would: only if the waker was woken.
    pub(super) fn run(&mut self) {
        while self.state == Readiness::Asked && self.alarm.rang() {
            self.ask();
        }
    }
}
