//! Calls for few keys on several threads. Some of the calls are dropped, and some are passed to another task.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::yield_now;

use super::staged::Staged;
use super::{Random, limiter, settings};
use crate::error::RedisError;
use crate::limiter::RedisLimiter;
use crate::script::TimeSource;
use crate::store::RedisStoreBuilder;
use tower_throttle::Decision;
use tower_throttle::Quota;
use tower_throttle::algorithm::FixedWindow;

const KEYS: usize = 3;
const LIMIT: u64 = 1_000_000;
const THREADS: u64 = 4;
const CALLS: usize = 2_000;

type Result = std::result::Result<Decision, RedisError>;

/// Makes calls for random keys. Returns, for each key, the number of calls whose result was received.
async fn call(limiter: RedisLimiter<FixedWindow>, seed: u64) -> [u64; KEYS] {
    let (mut random, mut received) = (Random(seed), [0; KEYS]);
    for _ in 0..CALLS {
        let key = random.below(KEYS as u64) as usize;
        let mut call = Box::pin(limiter.check(&*key.to_string()));
        let mut result = polled(call.as_mut(), random.below(4)).await;
        if result.is_none() {
            result = match random.below(3) {
                0 => Some(call.await),
                1 => Some(tokio::spawn(call).await.unwrap()),
                _ => None,
            };
        }
        if let Some(result) = result {
            assert!(result.unwrap().is_allowed());
            received[key] += 1;
        }
    }
    received
}

/// Polls a call several times. Other tasks run between the polls.
async fn polled(mut call: Pin<&mut (impl Future<Output = Result> + Send)>, polls: u64) -> Option<Result> {
    for _ in 0..polls {
        let result = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        if let Poll::Ready(result) = result {
            return Some(result);
        }
        yield_now().await;
    }
    None
}

#[test]
fn calls_on_several_threads_are_charged_once_unless_they_are_dropped() {
    let runtime = Builder::new_multi_thread().worker_threads(THREADS as usize).enable_time().build().unwrap();
    let calls = async {
        // No call is late, so each call is either dropped or admitted.
        let store =
            RedisStoreBuilder::over(Staged::new(), TimeSource::Server).deadline(Duration::from_secs(300));
        let store = settings(true, Duration::ZERO)(store).connect_lazily().unwrap();
        let limiter = limiter(&store, FixedWindow::new(Quota::per_hour(LIMIT)));
        let tasks: Vec<_> = (1..=THREADS).map(|seed| tokio::spawn(call(limiter.clone(), seed))).collect();
        let mut received = [0; KEYS];
        for task in tasks {
            let more = task.await.unwrap();
            (0..KEYS).for_each(|key| received[key] += more[key]);
        }
        for (key, received) in received.into_iter().enumerate() {
            assert!(received > 100, "{received}");
            let (key, mut charged) = (key.to_string(), 0);
            // A call that is dropped during its trip was charged. A later trip undoes the charge.
            for _ in 0..10_000 {
                charged = LIMIT - limiter.peek(&*key).await.unwrap().remaining();
                if charged == received {
                    break;
                }
                yield_now().await;
            }
            assert_eq!(charged, received);
        }
    };
    let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), calls).await });
    assert!(ended.is_ok(), "a call hangs");
}
