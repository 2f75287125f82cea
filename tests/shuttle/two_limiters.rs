//! Two limits that are decided together, as the models use them.

use shuttle::future::block_on;
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{Algorithm, FixedWindow, TokenBucket};
use tower_throttle::key::from_fn;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::clock::{Mute, Time};

/// Two budgets that are charged together. The first has three units, and the second has two.
pub(crate) trait Pair: Clone + Send + 'static {
    /// Takes one unit of each budget, or none. The budgets are used in this order or in the reverse order.
    fn take(&self, crossed: bool) -> bool;
    fn left(&self) -> [u64; 2];
}

pub(crate) const BUDGETS: [u64; 2] = [3, 2];

/// Two limiters, each with a key. Both may be the same limiter.
#[derive(Clone)]
pub(crate) struct Joined<A: Algorithm, B: Algorithm> {
    first: (RateLimiter<A>, u64),
    second: (RateLimiter<B>, u64),
}

pub(crate) type Keys = [u64; 2];
pub(crate) type Key = fn(&Keys) -> Option<u64>;

/// Starts a call of `first.and(second)`, with a key for each. The call is decided or queued before the first poll.
pub(crate) fn call<A: Algorithm, B: Algorithm>(
    first: &RateLimiter<A>,
    second: &RateLimiter<B>,
    keys: Keys,
) -> impl Future<Output = bool> + use<A, B> {
    let first = RateLimitLayer::with_limiter(from_fn((|keys| Some(keys[0])) as Key), first.clone());
    let second = RateLimitLayer::with_limiter(from_fn((|keys| Some(keys[1])) as Key), second.clone());
    let layers = first.and(second).responder(ErrorResponder);
    let call = layers.layer(service_fn(async |_: Keys| Ok::<_, ()>(()))).call(keys);
    async move { call.await.is_ok() }
}

impl<A: Algorithm, B: Algorithm> Pair for Joined<A, B> {
    fn take(&self, crossed: bool) -> bool {
        let ((first, one), (second, other)) = (&self.first, &self.second);
        match crossed {
            false => block_on(call(first, second, [*one, *other])),
            true => block_on(call(second, first, [*other, *one])),
        }
    }

    fn left(&self) -> [u64; 2] {
        let ((first, one), (second, other)) = (&self.first, &self.second);
        [first.peek(one).remaining(), second.peek(other).remaining()]
    }
}

pub(crate) fn hourly(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_hour(limit))
}

pub(crate) fn limiter<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(Mute::new()).build()
}

pub(crate) fn two_limiters() -> impl Pair {
    let first = limiter(TokenBucket::new(Quota::per_hour(BUDGETS[0])));
    Joined { first: (first, 0), second: (limiter(hourly(BUDGETS[1])), 0) }
}

pub(crate) fn two_keys(one: u64, other: u64) -> impl Pair {
    let limiter = limiter(hourly(BUDGETS[0]));
    assert!(limiter.check_n(&other, BUDGETS[0] - BUDGETS[1]).is_allowed());
    Joined { first: (limiter.clone(), one), second: (limiter, other) }
}
