//! A cancelled call leaks no permit.

use super::*;

/// Runs a service that becomes ready after a given number of polls.
fn slow(polls: usize) -> impl Future<Output = ()> {
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// The calls of one kind, and the limiters that they are charged to.
struct Kind {
    name: &'static str,
    clock: ManualClock,
    call: Box<dyn Fn() -> Call>,
    /// Returns the number of units that were charged, if this number can be determined.
    charged: Box<dyn Fn() -> u64>,
    /// Returns whether nothing is in progress.
    is_free: Box<dyn Fn() -> bool>,
    /// `true` if the call is made to a service. Then the units stay charged once the service has been called, even
    /// before there is a response.
    has_service: bool,
}

macro_rules! service {
    ($layer:expr) => {{
        let layer = $layer;
        move || -> Call {
            let service = service_fn(|_: Asks| async {
                slow(2).await;
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            });
            let call = layer.layer(service).call(Request::new((0, 1)));
            Box::pin(async move { kept(call.await) })
        }
    }};
}

fn one_at_a_time() -> Concurrency {
    Concurrency::per_key(1).total(3).queue(9)
}

fn tokens() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(9)).queue(9)
}

fn line() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(9)
}

fn idle(limiter: &RateLimiter<Concurrency>) -> Box<dyn Fn() -> bool> {
    let limiter = limiter.clone();
    Box::new(move || {
        let all: Vec<_> = (0..9_u64).filter_map(|key| limiter.try_acquire_permit(&key).ok()).collect();
        all.len() == 3 && limiter.queued() == 0
    })
}

fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    let none = || Box::new(|| 0_u64) as Box<dyn Fn() -> u64>;
    {
        let clock = ManualClock::new();
        let limiter = limiter(one_at_a_time(), &clock);
        let is_free = idle(&limiter);
        let call = Box::new(move || acquired(&limiter, 0));
        kinds.push(Kind { name: "engine", clock, call, charged: none(), is_free, has_service: false });
    }
    {
        let clock = ManualClock::new();
        let limiter = limiter(one_at_a_time(), &clock);
        let is_free = idle(&limiter);
        let by_key = from_fn(|request: &Asks| Some(request.body().0));
        let call = Box::new(service!(RateLimitLayer::with_limiter(by_key, limiter.clone())));
        kinds.push(Kind { name: "layer", clock, call, charged: none(), is_free, has_service: true });
    }
    macro_rules! tuple {
        ($name:literal, $rule:expr, $charged:expr) => {
            for layered in [false, true] {
                let clock = ManualClock::new();
                let limiter = limiter($rule, &clock);
                let (free, counted) = (limiter.clone(), limiter.clone());
                let by_key = from_fn(|request: &Asks| Some(request.body().0));
                let call: Box<dyn Fn() -> Call> = match layered {
                    true => Box::new(service!(RateLimitLayer::with_limiter(by_key, limiter.clone()))),
                    false => Box::new(move || acquired(&limiter, 0)),
                };
                // So much later, the queue has no effect any more.
                let later = clock.clone();
                let is_free = Box::new(move || {
                    later.advance(Duration::from_secs(36_000));
                    let one = free.try_acquire_permit(&0_u64);
                    let two = free.try_acquire_permit(&0_u64);
                    one.is_ok() && two.is_err() && free.queued() == 0
                });
                let charged = Box::new(move || $charged(&counted));
                kinds.push(Kind { name: $name, clock, call, charged, is_free, has_service: layered });
            }
        };
    }
    tuple!("(tokens, one)", (tokens(), one_at_a_time()), |counted: &RateLimiter<(
        TokenBucket,
        Concurrency
    )>| {
        // No call is in progress when this function is called.
        let rule = counted.algorithm();
        counted.replace((tokens(), Concurrency::per_key(1_000)));
        let left = counted.peek(&0_u64).remaining();
        counted.replace(rule);
        9 - left
    });
    tuple!("(one, line)", (one_at_a_time(), line()), |_: &RateLimiter<(Concurrency, LeakyBucket)>| 0_u64);
    tuple!("(line, one)", (line(), one_at_a_time()), |_: &RateLimiter<(LeakyBucket, Concurrency)>| 0_u64);
    macro_rules! joined {
        ($name:literal, $first:expr, $second:expr, $one:ident, $charged:expr) => {{
            let clock = ManualClock::new();
            let (first, second) = (limiter($first, &clock), limiter($second, &clock));
            let by_key = from_fn(|request: &Asks| Some(request.body().0));
            let layer = RateLimitLayer::with_limiter(by_key, first.clone())
                .and(RateLimitLayer::with_limiter(by_key, second.clone()));
            let is_free = idle(&$one!(first, second));
            let call = Box::new(service!(layer));
            let charged = Box::new(move || $charged(&first, &second));
            kinds.push(Kind { name: $name, clock, call, charged, is_free, has_service: true });
        }};
    }
    macro_rules! first {
        ($first:ident, $second:ident) => {
            $first
        };
    }
    macro_rules! second {
        ($first:ident, $second:ident) => {
            $second
        };
    }
    joined!("one and line", one_at_a_time(), line(), first, |_: &_, _: &_| 0_u64);
    joined!("line and one", line(), one_at_a_time(), second, |_: &_, _: &_| 0_u64);
    joined!(
        "one and tokens",
        one_at_a_time(),
        tokens(),
        first,
        |_: &_, tokens: &RateLimiter<TokenBucket>| { 9 - tokens.peek(&0_u64).remaining() }
    );
    joined!(
        "tokens and one",
        tokens(),
        one_at_a_time(),
        second,
        |tokens: &RateLimiter<TokenBucket>, _: &_| { 9 - tokens.peek(&0_u64).remaining() }
    );
    kinds
}

const TICK: Duration = Duration::from_millis(10);

/// One call is admitted, and ends at 45 ms. A second call arrives, and is dropped after `polls` polls, which are 10 ms
/// apart. A third call is queued behind the second. Returns when the third call is admitted, whether the second call
/// was admitted, whether it got its response, and the number of units that were charged.
fn dropped_after(kind: &Kind, polls: Option<usize>) -> (usize, bool, bool, u64) {
    let mut first = PolledByHand::new((kind.call)());
    while !first.poll() {}
    let mut first = Some(first.output.take().unwrap().unwrap());
    let mut second = polls.map(|_| PolledByHand::new((kind.call)()));
    let mut third = PolledByHand::new((kind.call)());
    // An `acquire` joins the queue at its first poll.
    if let (Some(second), false) = (&mut second, kind.has_service) {
        second.poll();
    }
    third.poll();
    let (mut passed, mut ended) = (false, false);
    for tick in 0..200 {
        if tick == 5 {
            first = None;
        }
        if let Some(call) = &mut second {
            let polls = polls.unwrap();
            if tick >= polls {
                ended = call.output.is_some();
                second = None;
            } else {
                call.poll();
                // The call is ready some polls after it was admitted.
                passed |= call.polls > 0 && call.output.is_some();
            }
        }
        if third.run() {
            let got = third.output.take().unwrap();
            assert!(got.is_ok(), "{}: the third is refused", kind.name);
            assert!(second.as_ref().is_none_or(|call| call.output.is_none()), "{}: two at a time", kind.name);
            drop(got);
            let charged = (kind.charged)();
            drop(first);
            return (tick, passed, ended, charged);
        }
        kind.clock.advance(TICK);
    }
    panic!("{}: after {polls:?} polls, the third never passes", kind.name);
}

#[test]
fn a_call_dropped_at_any_poll_leaks_no_permit() {
    let count = kinds().len();
    for at in 0..count {
        let alone = {
            let kind = kinds().swap_remove(at);
            dropped_after(&kind, None).0
        };
        let (mut lost, mut kept) = (0, 0);
        for polls in 0..=40 {
            let kind = kinds().swap_remove(at);
            let (name, queued) = (kind.name, kind.name.contains("line"));
            let (tick, _, ended, charged) = dropped_after(&kind, Some(polls));
            assert!((kind.is_free)(), "{name} after {polls} polls: not all is free");
            // The scheduled time of the second call is 50 ms or, with a queue, 100 ms.
            let turn = if queued { 10 } else { 5 };
            if polls <= turn {
                assert!(!ended, "{name} after {polls} polls");
                // It is as if the second call had never arrived. But if the third call waits for a permit, it is
                // admitted only when it is woken.
                assert_eq!(tick, alone.max(polls), "{name} after {polls} polls");
                lost += 1;
            } else {
                kept += u64::from(ended);
                let last = if queued { 20 } else { polls };
                assert!(tick <= last.max(polls), "{name} after {polls} polls: at {tick}");
            }
            if name.contains("tokens") {
                // The first and the third call were charged, and so was the second if it was admitted.
                let all = if polls <= turn { 2 } else { 3 };
                assert_eq!(charged, all, "{name} after {polls} polls");
            }
        }
        assert!(lost > 4 && kept > 4);
    }
}
