//! The checks of a schedule: no wakeup is lost, and each response is correct.

use tokio::time::Instant;
use tower::BoxError;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower_throttle::Error;

use super::Call;
use super::callers::{Caller, Readiness};
use super::schedule::Schedule;
use crate::support::PolledByHand;

impl<'a> Schedule<'a> {
    /// Polls every woken task until none is woken.
    pub(super) fn settle(&mut self) {
        let awake = |caller: &Caller| caller.state == Readiness::Asked && caller.alarm.is_set();
        loop {
            for worker in &mut self.parts.workers {
                worker.run();
            }
            self.callers.iter_mut().for_each(Caller::run);
            for (_, call) in &mut self.calls {
                call.run();
            }
            self.reap();
            let workers = self.parts.workers.iter().any(PolledByHand::is_woken);
            if !workers
                && !self.callers.iter().any(awake)
                && !self.calls.iter().any(|(_, call)| call.is_woken())
            {
                break;
            }
        }
        self.world.lock().assert_no_call_is_late();
    }

    /// When every woken task has run, asserts that polling the other tasks changes nothing. Otherwise, these tasks
    /// should have been woken. The task of a buffer is an exception, because it is not woken when a call that it holds
    /// is cancelled.
    pub(super) fn assert_no_lost_wakeup(&mut self) {
        let before = self.world.lock().progress();
        for caller in self.callers.iter_mut().filter(|caller| caller.state == Readiness::Asked) {
            caller.ask();
            assert_eq!(caller.state, Readiness::Asked, "a caller missed its wakeup");
        }
        for (job, call) in &mut self.calls {
            assert!(!call.poll(), "{job} missed its wakeup");
            let now = self.world.lock().progress();
            assert_eq!(now, before, "{job} missed its wakeup");
        }
    }

    /// Removes the calls that have a response, and checks the responses.
    pub(super) fn reap(&mut self) {
        let world = self.world.lock();
        self.calls.retain_mut(|(job, call)| {
            let Some(output) = call.output.take() else { return true };
            let Call { made, came, left, rejected } = world.calls[*job];
            let now = Instant::now();
            match output.map_err(failure) {
                Ok(answer) => {
                    assert_eq!(answer, *job, "an answer that is another's");
                    self.tally.answered += 1;
                    self.tally.waited += usize::from(left.expect("it was called") > came.unwrap());
                }
                Err(Failure::Limited) => {
                    assert_eq!(left, None, "{job} is rejected, and called all the same");
                    assert!(rejected || !world.exact, "{job} is rejected though there is a place");
                    self.tally.rejected += 1;
                }
                Err(Failure::Shed) => {
                    assert!(self.parts.sheds);
                    self.tally.shed += 1;
                }
                Err(Failure::TimedOut) => {
                    let behind = self.parts.behind.zip(left).is_some_and(|(time, left)| now >= left + time);
                    let in_all = self.parts.in_all.is_some_and(|time| now >= made + time);
                    assert!(behind || in_all, "{job} has more time");
                    self.tally.timed_out += 1;
                }
            }
            false
        });
    }
}

enum Failure {
    Limited,
    Shed,
    TimedOut,
}

fn failure(error: BoxError) -> Failure {
    match error.downcast::<Error<BoxError>>().map(|error| *error) {
        Ok(Error::Limited(_)) => Failure::Limited,
        Ok(Error::Inner(error)) => failure(error),
        Err(error) if error.is::<Overloaded>() => Failure::Shed,
        Err(error) if error.is::<Elapsed>() => Failure::TimedOut,
        other => panic!("{other:?}"),
    }
}
