//! Reports to callers: header fields, deadlines, and the decision in the extensions of the request.

use super::*;

fn grpc(timeout: &str, content_type: &str) -> Asks {
    let request = Request::builder().header("grpc-timeout", timeout).header("content-type", content_type);
    request.body((0, 1)).unwrap()
}

#[test]
fn a_grpc_call_waits_no_longer_than_its_timeout() {
    let clock = ManualClock::new();
    let queue = limiter(LeakyBucket::new(Quota::per_second(10)).queue(50), &clock);
    let mut service = RateLimitLayer::with_limiter(Global, queue.clone()).layer(service_fn(answers));
    let mut call = |request| {
        let mut call = PolledByHand::new(service.call(request));
        call.poll();
        call
    };
    assert!(!call(grpc("250m", "application/grpc")).is_pending());
    let _line = [(); 2].map(|()| {
        let call = call(grpc("250m", "application/grpc"));
        assert!(call.is_pending());
        call
    });
    // The scheduled time of the call would be 300 ms.
    for (timeout, content_type) in
        [("250m", "application/grpc"), ("299999u", "application/grpc+proto"), ("0S", "application/grpc-web")]
    {
        let rejected = call(grpc(timeout, content_type)).output.expect("rejected at once").unwrap();
        let headers = rejected.headers();
        assert_eq!((rejected.status().as_u16(), &headers["grpc-status"]), (200, &"8".parse().unwrap()));
        assert_eq!(headers["retry-after"], "1");
    }
    assert_eq!(queue.queued(), 2);
    // The reported time is exact. At 50 ms, the same call is queued, and a nanosecond earlier it is denied.
    clock.advance(MS * 50 - Duration::from_nanos(1));
    assert!(!call(grpc("250m", "application/grpc")).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert!(call(grpc("250m", "application/grpc")).is_pending());
    // A value that is not a gRPC timeout does not bound the wait of a call.
    for (timeout, content_type) in [
        ("1m", "application/json"),
        ("1m", "application/grpcx"),
        ("1", "application/grpc"),
        ("m", "application/grpc"),
        ("-1m", "application/grpc"),
        ("123456789n", "application/grpc"),
        ("1 m", "application/grpc"),
        ("99999999H", "application/grpc"),
    ] {
        assert!(call(grpc(timeout, content_type)).is_pending(), "{timeout} {content_type}");
    }
}

/// The length of the wait is unknown, so the call waits as long as its timeout allows.
#[test]
fn a_grpc_call_that_waits_for_a_permit_is_denied_at_its_timeout() {
    let clock = ManualClock::new();
    let one = limiter(Concurrency::per_key(1).queue(5), &clock);
    let rate = limiter(TokenBucket::new(Quota::per_hour(9)), &clock);
    let mut services: [Box<dyn FnMut(Asks) -> Call>; 2] = [
        {
            let mut service = RateLimitLayer::with_limiter(Global, one.clone()).layer(service_fn(answers));
            Box::new(move |request| {
                let call = service.call(request);
                Box::pin(async move { kept_grpc(call.await) })
            })
        },
        {
            let layer = RateLimitLayer::with_limiter(Global, rate.clone())
                .and(RateLimitLayer::with_limiter(Global, one.clone()));
            let mut service = layer.layer(service_fn(answers));
            Box::new(move |request| {
                let call = service.call(request);
                Box::pin(async move { kept_grpc(call.await) })
            })
        },
    ];
    for service in &mut services {
        let held = one.try_acquire_permit(&()).unwrap();
        let mut call = PolledByHand::new(service(grpc("250m", "application/grpc")));
        let mut patient = PolledByHand::new(service(grpc("250m", "text/plain")));
        assert!(!call.poll() && !patient.poll());
        clock.advance(MS * 250 - Duration::from_nanos(1));
        assert!(!call.run());
        clock.advance(Duration::from_nanos(1));
        assert!(call.run() && call.output.take().unwrap().is_err());
        assert!(!patient.run());
        drop(held);
        assert!(patient.run() && patient.output.take().unwrap().is_ok());
        assert!(one.try_acquire_permit(&()).is_ok());
    }
    assert_eq!(rate.peek(&()).remaining(), 8, "the one rejected was given its unit back");
}

fn kept_grpc<B: 'static>(answer: Result<Response<B>, Infallible>) -> Result<Holder, ()> {
    let Ok(response) = answer;
    if response.headers().contains_key("grpc-status") { Err(()) } else { Ok(Box::new(response)) }
}

#[test]
fn the_decision_in_a_requests_extensions_is_the_one_that_held_it_longest() {
    let clock = ManualClock::new();
    let fast = limiter(LeakyBucket::new(Quota::per_second(10)).queue(9), &clock);
    let slow = limiter(LeakyBucket::new(Quota::per_second(4)).queue(7), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_hour(3)), &clock);
    let reported = |request: Asks| {
        let decision = *request.extensions().get::<Decision>().expect("it was limited");
        ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())).map(|mut response| {
            response.extensions_mut().insert(decision);
            response
        }))
    };
    let layer = RateLimitLayer::with_limiter(Global, fast)
        .and(RateLimitLayer::with_limiter(Global, slow.clone()))
        .and(RateLimitLayer::with_limiter(Global, bucket));
    let mut service = layer.layer(service_fn(reported));
    let first = service.call(Request::new((0, 1))).now().unwrap();
    let decision = first.extensions().get::<Decision>().unwrap();
    // No policy delayed the call, so the decision is that of a policy with the fewest remaining units.
    assert_eq!((decision.delay(), decision.limit(), decision.remaining()), (Duration::ZERO, 1, 0));
    let mut second = PolledByHand::new(service.call(Request::new((0, 1))));
    assert!(!second.poll());
    for _ in 0..25 {
        clock.advance(MS * 10);
        second.run();
    }
    let second = second.output.expect("it was admitted").unwrap();
    let decision = second.extensions().get::<Decision>().unwrap();
    assert_eq!((decision.delay(), decision.limit()), (MS * 250, 1));
}
