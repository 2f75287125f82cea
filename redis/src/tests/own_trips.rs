//! Calls that make their trips themselves. A store whose scripts decide checks does so for the only call for a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::time::timeout;

use super::flights::{begun, settle};
use super::staged::{Mode, Staged};
use super::{limiter, settings, store};
use crate::error::RedisError;
use crate::limiter::RedisLimiter;
use tower_throttle::Quota;
use tower_throttle::algorithm::FixedWindow;

/// Counts how often a call is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Window = RedisLimiter<FixedWindow>;

/// Returns a server that holds its replies, and a limiter of five calls.
fn held() -> (Staged, Window) {
    let server = Staged::new();
    server.set(Mode::Hold);
    let store = store(server.clone(), settings(true, Duration::ZERO));
    (server, limiter(&store, FixedWindow::new(Quota::per_hour(5))))
}

#[tokio::test(start_paused = true)]
async fn a_call_alone_is_woken_only_by_its_reply() {
    let (server, window) = held();
    server.set(Mode::Answer(server.done()));
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut call = Box::pin(window.check("a"));
    assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    settle().await;
    assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    settle().await;
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_is_not_woken() {
    let (server, window) = held();
    let wakes = Arc::new(Wakes::default());
    let mut call = Box::pin(window.check("a"));
    assert!(call.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&wakes)))).is_pending());
    settle().await;
    drop(call);
    settle().await;
    server.resume();
    settle().await;
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
}

/// A time after which a call has been lost. The clock is paused, so it passes at once.
const HANGS: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn a_call_whose_trip_moves_to_a_task_gets_its_result() -> Result<(), RedisError> {
    for changes_its_waker in [false, true] {
        let (server, window) = held();
        let first = if changes_its_waker {
            tokio::spawn(begun(window.check("a")))
        } else {
            tokio::spawn(window.check("a"))
        };
        settle().await;
        let second = tokio::spawn(window.check("a"));
        settle().await;
        assert_eq!(server.commands().len(), 1, "one trip at a time");
        server.resume();
        assert_eq!(timeout(HANGS, first).await.expect("the call is woken").unwrap()?.remaining(), 4);
        assert_eq!(timeout(HANGS, second).await.expect("the call is woken").unwrap()?.remaining(), 3);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_on_its_own_trip_charges_nothing() -> Result<(), RedisError> {
    for has_other in [false, true] {
        let (server, window) = held();
        let call = begun(window.check_n("a", 2));
        let other = has_other.then(|| tokio::spawn(window.check("a")));
        settle().await;
        drop(call);
        server.resume();
        if let Some(other) = other {
            assert!(other.await.unwrap()?.is_allowed());
        }
        settle().await;
        assert_eq!(window.peek("a").await?.remaining(), 5 - u64::from(has_other));
    }
    Ok(())
}
