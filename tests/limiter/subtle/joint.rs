//! Joint calls that are denied, cancelled or decided by tiers.

use super::*;

#[derive(Clone, Copy, Debug)]
pub(super) struct Req(pub(super) &'static str, pub(super) bool);

pub(super) type ByName = FromFn<fn(&Req) -> Option<&'static str>>;

pub(super) fn layer<A: Algorithm>(limiter: &RateLimiter<A>) -> RateLimitLayer<ByName, A> {
    let key: fn(&Req) -> Option<&'static str> = |request| Some(request.0);
    RateLimitLayer::with_limiter(from_fn(key), limiter.clone())
}

pub(super) fn answer<S, F>(service: &mut S, request: Req) -> Pin<Box<S::Future>>
where
    S: Service<Req, Future = F>,
    F: Future,
{
    assert!(service.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready());
    Box::pin(service.call(request))
}

pub(super) async fn ok(_: Req) -> Result<(), Infallible> {
    Ok(())
}

/// Asserts that a joint call of the tier `slow`, which is denied, delays no waiter of the default tier. The other limit
/// is `other`.
fn a_denied_joint_call_delays_no_waiter(slow: LeakyBucket, other: &RateLimiter<TokenBucket>) {
    let fast = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let (clock, limiter) = on(Tiered::new(fast));
    let stack = layer(&limiter)
        .tier(move |_: &Req, _: &&'static str| slow.clone())
        .and(layer(other))
        .responder(ErrorResponder);
    let mut service = stack.layer(service_fn(ok));
    assert!(now(limiter.acquire("k")).is_allowed());
    let mut line: Vec<_> = (0..3).map(|_| waits(limiter.acquire("k"))).collect();
    assert!(poll(&mut answer(&mut service, Req("k", true))).unwrap().is_err());
    clock.advance(ms(100));
    assert_eq!(line.iter_mut().filter_map(poll).count(), 1, "one slot has passed");
}

#[test]
fn a_joint_call_that_its_own_tier_denies_delays_no_waiter() {
    let (_c, other) = on(TokenBucket::new(Quota::per_second(100)));
    a_denied_joint_call_delays_no_waiter(LeakyBucket::new(Quota::per_second(1)).queue(0), &other);
}

#[test]
fn a_joint_call_that_another_limit_denies_delays_no_waiter() {
    let (_c, other) = on(TokenBucket::new(Quota::per_second(1)));
    assert!(other.check("k").is_allowed());
    a_denied_joint_call_delays_no_waiter(LeakyBucket::new(Quota::per_second(1)).queue(9), &other);
}

#[test]
fn a_cancelled_call_in_two_queues_undoes_the_charge_of_the_queue_that_released_it() {
    let (clock, windows) = on(FixedWindow::new(Quota::per_second(4)).priority(50));
    let slow =
        RateLimiter::builder(LeakyBucket::new(Quota::per_hour(1)).queue(5)).clock(clock.clone()).build();
    assert!(windows.check_n("k", 4).is_allowed());
    assert!(slow.check("k").is_allowed());
    let stack = layer(&windows).priority(|_: &Req| true).and(layer(&slow)).responder(ErrorResponder);
    let mut service = stack.layer(service_fn(ok));
    let mut call = answer(&mut service, Req("k", true));
    assert!(poll(&mut call).is_none());
    clock.advance(secs(1));
    assert!(poll(&mut call).is_none());
    assert_eq!(windows.peek("k").remaining(), 3);
    drop(call);
    assert_eq!(windows.peek("k").remaining(), 4, "the request was given up");
}

#[test]
fn a_joint_call_on_one_lockout_twice_counts_as_one_denial() {
    let (_c, limiter) = on(FixedWindow::new(Quota::per_second(1)).block_for(secs(9)).after(2));
    assert!(limiter.check("k").is_allowed());
    let stack = layer(&limiter).and(layer(&limiter)).responder(ErrorResponder);
    let mut service = stack.layer(service_fn(ok));
    assert!(poll(&mut answer(&mut service, Req("k", true))).unwrap().is_err());
    assert_eq!(limiter.peek("k").retry_after(), Some(secs(9)), "the second would begin it");
    assert_eq!(limiter.peek_n("k", 0).remaining(), 0);
    assert!(
        limiter.peek_n("k", 0).reset_after() <= secs(1),
        "one refusal is no block: {:?}",
        limiter.peek_n("k", 0)
    );
}

/// A joint call that is denied, or cancelled at once, changes nothing.
#[test]
fn joint_denials_and_drops_change_nothing() {
    fn of<A, B, F: Fn(&mut Random) -> (A, B)>(make: F) -> F {
        make
    }
    macro_rules! run { ($name:literal, $make:expr $(, $priority:ident)?) => {{
        let (name, make) = ($name, of($make));
        let (mut denied, mut waited) = (0, 0);
        let brief = |(a, b, c, d): (Decision, Decision, Decision, Decision)| {
            [a, b, c, d].map(|reported| (reported.is_allowed(), reported.remaining()))
        };
        for seed in 0..scaled(N) {
            let r = &mut Random::new(seed);
            let (a, b) = make(r);
            let clock = ManualClock::new();
            let a = RateLimiter::builder(a).clock(clock.clone()).max_keys(r.one_of(&[1, 2, 100])).build();
            let b = RateLimiter::builder(b).clock(clock.clone()).max_keys(100).build();
            let (c1, c2) = (r.within(0..=3), r.within(0..=3));
            let stack = layer(&a)
                .cost(move |_: &Req| c1)
                .and(layer(&b).cost(move |_: &Req| c2)$(.$priority(|q: &Req| q.1))?)
                .responder(ErrorResponder);
            let mut service = stack.layer(service_fn(ok));
            let mut held = Vec::new();
            for _ in 0..25 {
                clock.advance(Duration::from_nanos(r.one_of(&[0, 0, 1, 5, 30])));
                held.retain_mut(|call| poll(call).is_none() && !r.one_in(8));
                let key = r.one_of(&["x", "y", "z"]);
                let look = || (a.peek(key), b.peek(key), a.peek_n(key, 3), b.peek_n(key, 3));
                let before = look();
                let mut call = answer(&mut service, Req(key, r.one_in(2)));
                match poll(&mut call) {
                    Some(Ok(())) => {}
                    Some(Err(_)) => {
                        denied += 1;
                        assert_eq!(before, look(), "{name} {seed} denied {a:?} {b:?} {c1} {c2}");
                    }
                    None => {
                        waited += 1;
                        if r.one_in(2) {
                            drop(call);
                            assert_eq!(
                                brief(before),
                                brief(look()),
                                "{name} {seed} dropped {a:?} {b:?} {c1} {c2}"
                            );
                        } else {
                            held.push(call);
                        }
                    }
                }
            }
        }
        println!("{name}: {denied} denied, {waited} waited");
    }} }
    run!("bucket, leaky", |r| (TokenBucket::new(quota(r)), LeakyBucket::new(quota(r)).queue(2)));
    run!("log, priority", |r| (SlidingLog::new(quota(r)), FixedWindow::new(quota(r)).priority(50)), priority);
    run!(
        "counter, priority",
        |r| (SlidingCounter::new(quota(r)), SlidingLog::new(quota(r)).priority(50)),
        priority
    );
    run!("window, leaky", |r| (SlidingWindow::new(quota(r)), LeakyBucket::new(quota(r)).queue(2)));
    run!("tuple, leaky", |r| {
        ((FixedWindow::new(quota(r)), TokenBucket::new(quota(r))), LeakyBucket::new(quota(r)).queue(2))
    });
    run!("leaky, leaky", |r| (LeakyBucket::new(quota(r)).queue(2), LeakyBucket::new(quota(r)).queue(1)));
    run!(
        "leaky, priority",
        |r| { (LeakyBucket::new(quota(r)).queue(2), SlidingWindow::new(quota(r)).priority(50)) },
        priority
    );
    // What `Smooth` takes from its store is not refunded, so `Smooth` is not tested here.
    run!("fixed, leaky", |r| (FixedWindow::new(quota(r)).aligned(), LeakyBucket::new(quota(r)).queue(1)));
}
