//! Joined layers on several keys charge each limit as it would be charged alone, or not at all.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::from_fn;
use tower_throttle::{Decision, Error, ErrorResponder, RateLimitLayer, RateLimiter};

use super::{CALLS, CASES, Kind, LONG, SECOND, limiter, next_cost, next_time, with_each_pair};
use crate::support::{Item, PolledByHand, Random};

/// A call on up to three keys, with a cost for each key. The call is not limited where a key is `None`.
#[derive(Clone, Copy, Debug)]
struct Job {
    keys: [Option<u8>; 3],
    costs: [u64; 3],
}

impl Job {
    fn any(random: &mut Random) -> Self {
        let mut key = || (!random.one_in(8)).then(|| random.below(3) as u8);
        let keys = [key(), key(), key()];
        Self { keys, costs: [(); 3].map(|()| next_cost(random)) }
    }
}

/// Returns the decision of a rejection.
fn refused<S>(service: &mut S, job: Job) -> Option<Decision>
where
    S: Service<Job, Error = Error<()>>,
{
    let mut call = PolledByHand::new(service.call(job));
    assert!(call.poll(), "no call is queued");
    match call.output.unwrap() {
        Ok(_) => None,
        Err(Error::Limited(decision)) => Some(decision),
        Err(other) => panic!("{other:?}"),
    }
}

/// A limit that is called on its own. It has the units that a call takes there, for each key.
trait Alone {
    fn look(&self, key: u8, cost: u64) -> Decision;
    fn take(&self, key: u8, cost: u64);
}

impl<A: Algorithm> Alone for RateLimiter<A> {
    fn look(&self, key: u8, cost: u64) -> Decision {
        self.peek_n(&key, cost)
    }

    fn take(&self, key: u8, cost: u64) {
        assert!(self.check_n(&key, cost).is_allowed(), "it was looked at");
    }
}

/// Peeks at each limit, and then charges all or none. If any limit denies the call, returns the longest wait.
fn one_by_one(wanted: &[(&dyn Alone, u8, u64)]) -> Option<Option<Duration>> {
    let looks: Vec<_> = wanted.iter().map(|(limit, key, cost)| limit.look(*key, *cost)).collect();
    if looks.iter().all(Decision::is_allowed) {
        wanted.iter().for_each(|(limit, key, cost)| limit.take(*key, *cost));
        return None;
    }
    let waits = looks.iter().filter(|look| !look.is_allowed()).map(Decision::retry_after);
    let longest = waits.max_by_key(|wait| wait.unwrap_or(Duration::MAX)).unwrap();
    Some(longest.map(|wait| wait.min(LONG)))
}

/// Compares joined layers with limits that are called one by one. There are two limiters in three layers. Two layers
/// share one limiter, and may share one key.
fn as_each_alone<A: Kind, B: Kind>(seed: u64) {
    let mut random = Random::new(seed);
    let (a, b) = (A::any(&mut random), B::any(&mut random));
    let case = format!("seed {seed:#x}: {a:?} and {b:?}");
    let clock = ManualClock::new();
    let (first, second) = (limiter(a.clone(), &clock), limiter(b.clone(), &clock));
    let (alone, other) = (limiter(a, &clock), limiter(b, &clock));
    let key = |at: usize| from_fn(move |job: &Job| job.keys[at]);
    let cost = |at: usize| move |job: &Job| job.costs[at];
    let layers = RateLimitLayer::with_limiter(key(0), first.clone())
        .cost(cost(0))
        .and(RateLimitLayer::with_limiter(key(1), second.clone()).cost(cost(1)))
        .and(RateLimitLayer::with_limiter(key(2), first.clone()).cost(cost(2)))
        .responder(ErrorResponder);
    let mut service = layers.layer(service_fn(async |_: Job| Ok::<_, ()>(())));
    let (mut now, mut reported) = (0, None);
    for _ in 0..CALLS {
        // After a step back of more than a period, other keys are evicted. The test of tuples covers such steps.
        now = next_time(&mut random, now, reported.as_ref()).max(now);
        clock.set(Duration::from_nanos(now));
        let job = Job::any(&mut random);
        let mut wanted: Vec<(&dyn Alone, u8, u64)> = Vec::new();
        match (job.keys[0], job.keys[2]) {
            (Some(key), Some(same)) if key == same => {
                wanted.push((&alone, key, job.costs[0].saturating_add(job.costs[2])));
            }
            (one, two) => {
                wanted.extend(one.map(|key| (&alone as &dyn Alone, key, job.costs[0])));
                wanted.extend(two.map(|key| (&alone as &dyn Alone, key, job.costs[2])));
            }
        }
        wanted.extend(job.keys[1].map(|key| (&other as &dyn Alone, key, job.costs[1])));
        let expected = one_by_one(&wanted);
        let got = refused(&mut service, job);
        let wait = got.map(|reported| reported.retry_after().map(|wait| wait.min(LONG)));
        assert_eq!(wait, expected, "{case}: {job:?}");
        for key in 0..3 {
            for cost in [1, 3] {
                assert_eq!(first.peek_n(&key, cost), alone.peek_n(&key, cost), "{case}: {job:?}");
                assert_eq!(second.peek_n(&key, cost), other.peek_n(&key, cost), "{case}: {job:?}");
            }
        }
        reported = got;
    }
}

#[test]
fn joined_layers_charge_each_limit_as_alone_or_not_at_all() {
    with_each_pair!(as_each_alone, CASES);
}

/// Makes the same comparison over HTTP, and checks the header fields of each policy.
fn as_each_alone_over_http<A: Kind, B: Kind>(seed: u64) {
    let mut random = Random::new(seed);
    let (a, b) = (A::any(&mut random), B::any(&mut random));
    let case = format!("seed {seed:#x}: {a:?} and {b:?}");
    let clock = ManualClock::new();
    let (alone, other) = (limiter(a.clone(), &clock), limiter(b.clone(), &clock));
    let key = |at: usize| {
        from_fn(move |request: &Request<Empty<&'static [u8]>>| {
            request.extensions().get::<Job>().unwrap().keys[at]
        })
    };
    let cost = |at: usize| {
        move |request: &Request<Empty<&'static [u8]>>| request.extensions().get::<Job>().unwrap().costs[at]
    };
    let layers = RateLimitLayer::with_limiter(key(0), limiter(a, &clock))
        .cost(cost(0))
        .and(RateLimitLayer::with_limiter(key(1), limiter(b, &clock)).cost(cost(1)).name("other"));
    let mut service =
        layers.layer(service_fn(async |_| Ok::<_, ()>(Response::new(Empty::<&'static [u8]>::new()))));
    let (mut now, mut longest) = (0, None);
    for _ in 0..CALLS {
        now = next_time(&mut random, now, longest.as_ref()).max(now);
        clock.set(Duration::from_nanos(now));
        let job = Job::any(&mut random);
        let mut request = Request::new(Empty::new());
        request.extensions_mut().insert(job);
        let mut call = PolledByHand::new(service.call(request));
        assert!(call.poll());
        let answer = call.output.unwrap().unwrap();
        let mut wanted: Vec<(&dyn Alone, u8, u64)> = Vec::new();
        wanted.extend(job.keys[0].map(|key| (&alone as &dyn Alone, key, job.costs[0])));
        wanted.extend(job.keys[1].map(|key| (&other as &dyn Alone, key, job.costs[1])));
        longest =
            wanted.iter().map(|(limit, key, cost)| limit.look(*key, *cost)).find(|look| !look.is_allowed());
        let denied = one_by_one(&wanted);
        assert_eq!(answer.status(), if denied.is_some() { 429 } else { 200 }, "{case}: {job:?}");
        let seconds = |wait: Duration| (wait.as_nanos().div_ceil(u128::from(SECOND)) as u64).max(1);
        let retry = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
        let retry = retry.map(|retry: u64| retry.min(seconds(LONG)));
        // The reported wait is at most the longest one that recipients should be able to represent.
        let reported = |wait| seconds(wait).min(0x7fff_ffff);
        assert_eq!(retry, denied.flatten().map(reported), "{case}: {job:?}");
        let names = ["default", "other"].into_iter().zip(job.keys).filter(|(_, key)| key.is_some());
        let items = |field: &str| -> Vec<Item> {
            answer.headers().get_all(field).iter().map(|line| Item::read(line.to_str().unwrap())).collect()
        };
        let named: Vec<_> = items("ratelimit").into_iter().map(|item| (item.get("r"), item.name)).collect();
        // The remaining units are those after the call.
        let left =
            wanted.iter().map(|(limit, key, _)| limit.look(*key, 0).remaining().min(999_999_999_999_999));
        let expected: Vec<_> = left.zip(names.map(|(name, _)| name.to_owned())).collect();
        assert_eq!(named, expected, "{case}: {job:?}");
    }
}

#[test]
fn joined_layers_report_over_http_what_each_limit_would_alone() {
    with_each_pair!(as_each_alone_over_http, 20);
}
