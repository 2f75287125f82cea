//! A queue of calls, as the models use it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::{Quota, RateLimiter};

use super::clock::Time;

/// The interval is short, so that no slot is overdue for so long that the schedule moves.
pub(crate) const INTERVAL: Duration = Duration::from_micros(1);

/// A queue that admits one call each [`INTERVAL`].
pub(crate) trait Line: Clone + Send + 'static {
    /// Admits a call. Returns the call's delay.
    type Call: Future<Output = Duration> + Send + 'static;

    fn join(&self, key: u64) -> Self::Call;
    fn check(&self, key: u64) -> bool;
    fn touch(&self, key: u64);
}

#[derive(Clone)]
pub(crate) struct Real(pub(crate) RateLimiter<LeakyBucket>);

impl Real {
    pub(crate) fn new<C: Time>(clock: C) -> Self {
        Self(RateLimiter::builder(one_per_interval()).clock(clock).build())
    }
}

pub(crate) fn one_per_interval() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(1_000_000)).queue(8)
}

impl Line for Real {
    type Call = Pin<Box<dyn Future<Output = Duration> + Send>>;

    fn join(&self, key: u64) -> Self::Call {
        let call = self.0.acquire(&key);
        Box::pin(async move {
            let decision = call.await;
            assert!(decision.is_allowed(), "there is room for every call");
            decision.delay()
        })
    }

    fn check(&self, key: u64) -> bool {
        self.0.check(&key).is_allowed()
    }

    fn touch(&self, key: u64) {
        assert!(self.0.check_n(&key, 0).is_allowed());
    }
}
