//! A call without a key, or a cancelled call, leaves nothing behind in any limit.

use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, KeyError, KeyExtractor, from_fn};
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer};

use super::{ask, hourly, limiter, served};
use crate::support::PolledByHand;

#[derive(Clone)]
struct NoKey;

impl KeyExtractor<u8> for NoKey {
    type Key = ();

    fn extract(&self, at: &u8) -> Result<Option<()>, KeyError> {
        if *at == 1 { Err(KeyError::new("say who you are")) } else { Ok(Some(())) }
    }
}

#[test]
fn a_call_without_a_key_for_one_is_charged_by_none() {
    let clock = ManualClock::new();
    let window = || limiter(FixedWindow::new(hourly(3)), &clock);
    let limiters = [window(), window(), window()];
    let layer = |at: usize| RateLimitLayer::with_limiter(Global, limiters[at].clone());
    let mut service =
        served!(layer(0).and(RateLimitLayer::with_limiter(NoKey, limiters[1].clone())).and(layer(2)));
    assert!(ask(&mut service, 0).is_ok());
    assert!(matches!(ask(&mut service, 1), Err(Error::Key(_))));
    assert_eq!(limiters.each_ref().map(|limiter| limiter.peek(&()).remaining()), [2, 2, 2]);
}

/// Calls are dropped while other calls of the same kind continue. They leave nothing behind.
#[test]
fn a_thousand_cancelled_calls_leave_an_empty_table() {
    let clock = ManualClock::new();
    let (line, bucket) = (
        limiter(LeakyBucket::new(Quota::per_second(10)).queue(2_000), &clock),
        limiter(TokenBucket::new(hourly(5_000)), &clock),
    );
    let by_key = from_fn(|key: &u64| Some(*key));
    let mut service = served!(
        RateLimitLayer::with_limiter(by_key, line.clone())
            .and(RateLimitLayer::with_limiter(by_key, bucket.clone()))
    );
    for key in 0..50_u64 {
        let mut calls: Vec<_> = (0..20).map(|_| PolledByHand::new(service.call(key))).collect();
        for call in &mut calls {
            call.poll();
        }
        assert!(calls[0].output.is_some() && calls[1..].iter().all(PolledByHand::is_pending));
        drop(calls);
        assert_eq!(bucket.peek(&key).remaining(), 4_999);
        assert_eq!(line.peek(&key).retry_after(), Some(Duration::from_millis(100)));
    }
    clock.advance(Duration::from_secs(7_200));
    // Each shard is swept by its own new keys, so the number of keys is large enough for all shards.
    for key in 1_000..4_000_u64 {
        let _ = (line.check_n(&key, 0), bucket.check_n(&key, 0));
    }
    assert_eq!((line.len(), bucket.len()), (0, 0));
}
