//! Runtimes that end, or that are not driven, while a call uses them.

use tokio::time::Instant;

use super::faults::swaps;
use super::limiter;
use super::staged::{Mode, Staged};
use crate::error::RedisErrorKind;
use tower_throttle::Quota;
use tower_throttle::algorithm::FixedWindow;

#[test]
fn a_runtime_that_ended_is_an_error_and_another_goes_on() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime().block_on(async { Staged::new() });
    let limiter = {
        let first = runtime();
        let limiter =
            first.block_on(async { limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(5))) });
        server.set(Mode::Hang);
        first.block_on(async {
            let call = tokio::spawn(limiter.check("a"));
            tokio::task::yield_now().await;
            call.abort();
        });
        limiter
    };
    let mut call = std::pin::pin!(limiter.check("a"));
    let polled = call.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    match polled {
        std::task::Poll::Ready(Err(error)) => assert_eq!(error.kind(), RedisErrorKind::NoRuntime),
        other => panic!("{other:?}"),
    }
    server.set(Mode::Serve);
    let second = runtime();
    assert!(second.block_on(limiter.check("a")).is_ok(), "the trip of the first runtime blocks no other");
}

#[test]
fn a_runtime_that_is_not_driven_holds_a_key_no_longer_than_two_deadlines() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (server, limiter) = first.block_on(async {
        let server = Staged::new();
        let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(5)));
        (server, limiter)
    });
    server.set(Mode::Hang);
    // The trip begins, and then its runtime is no longer driven.
    let call = first.spawn(limiter.check("a"));
    first.block_on(async {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    });
    assert_eq!(server.commands().len(), 1);
    server.set(Mode::Serve);
    second.block_on(async {
        let start = Instant::now();
        let mut late = 0;
        while let Err(error) = limiter.check("a").await {
            assert_eq!(error.kind(), RedisErrorKind::Late);
            late += 1;
            assert!(late <= 2, "{late} calls failed, in {:?}", start.elapsed());
        }
        assert!(limiter.check("b").await.is_ok());
        assert_eq!(limiter.check_n("a", 2).await.unwrap().remaining(), 2);
    });
    // When the first runtime is driven again, its trip ends, and changes nothing.
    assert_eq!(first.block_on(call).unwrap().unwrap_err().kind(), RedisErrorKind::Late);
    assert_eq!(first.block_on(limiter.peek("a")).unwrap().remaining(), 2);
}
