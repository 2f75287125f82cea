//! A call gives its permit back wherever it ends: on another thread, in a panic, with an error, or with its body.

use super::*;
use crate::support::ends_within;

#[test]
fn an_algorithm_that_panics_beside_others_leaves_their_permits_free() {
    ends_within(Duration::from_secs(10), || {
        let one = RateLimiter::new(Concurrency::per_key(1).total(1));
        let panics = OwnAlgorithm::new(FixedWindow::new(Quota::per_hour(1)), |method| {
            assert!(method != "check", "an algorithm of one's own");
        });
        let mut service = RateLimitLayer::with_limiter(Global, one.clone())
            .and(RateLimitLayer::with_limiter(Global, RateLimiter::new(panics)))
            .responder(ErrorResponder)
            .layer(service_fn(|()| ready(Ok::<(), Infallible>(()))));
        assert!(catch_unwind(AssertUnwindSafe(|| drop(service.call(())))).is_err());
        assert!(one.try_acquire_permit(&()).is_ok());
    });
}

/// A permit may be dropped at any place.
#[test]
fn a_permit_ends_on_another_thread_in_a_panic_and_after_its_limiter() {
    let limiter = limiter(Concurrency::per_key(1), &ManualClock::new());
    let permit = limiter.try_acquire_permit("a").unwrap();
    thread::spawn(move || drop(permit)).join().unwrap();
    let permit = limiter.try_acquire_permit("a").unwrap();
    let panicked = thread::spawn(move || {
        let _permit = permit;
        panic!("as handlers do");
    });
    assert!(panicked.join().is_err());
    let permit = limiter.try_acquire_permit("a").unwrap();
    let mut waits = PolledByHand::new(limiter.acquire_permit("a"));
    assert!(!waits.poll());
    drop(limiter);
    drop(permit);
    assert!(waits.run() && waits.output.unwrap().is_ok());
    // If an algorithm does not limit calls in progress, its permits hold nothing.
    assert!(
        RateLimiter::new(FixedWindow::new(Quota::per_hour(1))).try_acquire_permit("a").unwrap().is_empty()
    );
}

#[test]
fn a_service_that_fails_or_panics_or_is_no_http_gives_the_permit_back() {
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
    let mut fails = layer.layer(service_fn(|ok: bool| ready(if ok { Ok("yes") } else { Err("no") })));
    for ok in [true, false, true] {
        let mut call = PolledByHand::new(fails.call(ok));
        assert!(limiter.try_acquire_permit(&()).is_err(), "it is in progress from the call on");
        assert!(matches!(fails.call(true).now(), Err(Error::Limited(denied)) if !denied.is_allowed()));
        assert!(call.poll());
        assert!(matches!((ok, call.output.unwrap()), (true, Ok("yes")) | (false, Err(Error::Inner("no")))));
        assert!(limiter.try_acquire_permit(&()).is_ok());
    }
    let mut panics = layer.clone().layer(service_fn(|early: bool| {
        assert!(!early, "as services do");
        async { panic!("as handlers do") as Result<(), Infallible> }
    }));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(panics.call(true)))).is_err());
    assert!(limiter.try_acquire_permit(&()).is_ok());
    let mut call = Box::pin(panics.call(false));
    let polled = AssertUnwindSafe(|| {
        call.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    });
    assert!(catch_unwind(polled).is_err());
    drop(call);
    assert!(limiter.try_acquire_permit(&()).is_ok());
}

#[test]
fn the_units_of_a_call_that_has_waited_too_long_are_free_for_the_next() {
    let clock = ManualClock::new();
    let waits = Concurrency::per_key(10).total(12).queue(5).max_wait(Duration::from_secs(1));
    let limiter = limiter(waits, &clock);
    let _held = limiter.call(&()).cost(8).permit().unwrap();
    let mut service = RateLimitLayer::with_limiter(Global, limiter)
        .cost(|request: &Request<u64>| *request.body())
        .layer(service_fn(|_: Request<u64>| ready(Ok::<_, Infallible>(Response::new(())))));
    let mut calls = [3, 1].map(|cost| {
        let mut call = PolledByHand::new(service.call(Request::new(cost)));
        assert!(!call.poll());
        clock.advance(Duration::from_millis(500));
        call
    });
    assert!(calls.iter_mut().all(PolledByHand::poll));
    let [denied, admitted] = calls.map(|call| call.output.unwrap().unwrap());
    assert_eq!([denied.status(), admitted.status()].map(|status| status.as_u16()), [429, 200]);
    // The key has nine of ten units, and all keys together have nine of twelve.
    assert_eq!(admitted.headers()["ratelimit"], "\"default\";r=1");
}

#[test]
fn a_service_that_panics_when_it_is_called_gives_the_permit_back() {
    let limiter = limiter(Concurrency::per_key(1).queue(3), &ManualClock::new());
    let mut panics = RateLimitLayer::with_limiter(Global, limiter.clone())
        .responder(ErrorResponder)
        .layer(service_fn(|()| -> std::future::Ready<Result<(), Infallible>> { panic!("as services do") }));
    let held = limiter.try_acquire_permit(&()).unwrap();
    let mut call = Box::pin(panics.call(()));
    let mut poll = || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut context).is_ready()))
    };
    assert!(matches!(poll(), Ok(false)));
    drop(held);
    assert!(poll().is_err());
    assert!(limiter.try_acquire_permit(&()).is_ok());
}

/// A body may be moved and end in another place. A frame that is an error also ends the body.
#[test]
fn a_body_that_is_moved_or_fails_gives_the_permit_back_at_its_end() {
    use http_body_util::BodyExt;
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let gone = Arc::new(AtomicBool::new(false));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
    let mut service = layer.layer(service_fn(|frames: Request<Vec<Result<&'static str, &'static str>>>| {
        let frames = frames.into_body().into_iter().map(|frame| {
            frame.map(|data| match data {
                "trailers" => http_body::Frame::trailers(http::HeaderMap::new()),
                data => http_body::Frame::data(Bytes::from_static(data.as_bytes())),
            })
        });
        let body = Frames(frames.collect::<Vec<_>>().into_iter());
        ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let mut call = |frames: Vec<_>| service.call(Request::new(frames)).now().unwrap().into_body();

    let mut body = call(vec![Ok("a"), Ok("b"), Ok("trailers")]);
    for _ in 0..3 {
        assert!(limiter.try_acquire_permit(&()).is_err());
        assert!(body.frame().now().unwrap().is_ok());
    }
    assert!(limiter.try_acquire_permit(&()).is_err(), "trailers are not the end");
    assert!(body.frame().now().is_none());
    assert!(limiter.try_acquire_permit(&()).is_ok(), "though the body is still there");
    drop(body);

    let mut body = call(vec![Ok("a"), Err("broken"), Ok("b")]);
    assert!(body.frame().now().unwrap().is_ok() && limiter.try_acquire_permit(&()).is_err());
    assert!(body.frame().now().unwrap().is_err() && limiter.try_acquire_permit(&()).is_ok());
    drop(body);

    let body = call(vec![Ok("a")]);
    let mark = gone.clone();
    thread::spawn(move || {
        drop(body);
        mark.store(true, Ordering::SeqCst);
    })
    .join()
    .unwrap();
    assert!(gone.load(Ordering::SeqCst) && limiter.try_acquire_permit(&()).is_ok());

    // The body is never polled.
    drop(call(vec![]));
    assert!(limiter.try_acquire_permit(&()).is_ok());
}

struct Frames<I>(I);

impl<I> http_body::Body for Frames<I>
where
    I: Iterator<Item = Result<http_body::Frame<Bytes>, &'static str>> + Unpin,
{
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}
