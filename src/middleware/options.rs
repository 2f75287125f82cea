//! The options of a request: its cost, its tier, its priority, and its actual cost.

use std::time::Duration;

use http::Request;

use super::meter::{Meter, Unmetered};
use crate::algorithm::info::knows_priority;
use crate::algorithm::{Algorithm, AlgorithmInfo, Tiered};
use crate::limiter::Attempt;

/// Returns the options of each request. [`UnitCost`] is the default. The layer's method `cost` replaces the default,
/// and `tier`, `settle` and `priority` wrap the options that are already set.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot choose the cost, the tier or the priority of a request of type `{Req}`",
    note = "the functions given to `cost`, `tier` and `priority` must take the service's requests: \
            `|request: &{Req}| ..`",
    note = "a `metered` layer limits HTTP requests only: for others, call `limiter.call(&key).cost(estimate).reserve()`"
)]
pub trait RequestOptions<Req, Key, A> {
    /// Returns the options of `request`. `key` is `None` if the request has no key.
    fn options(&self, request: &Req, key: Option<&Key>) -> Options<A>;

    /// Returns the meter that settles the call, and what happens if it is not used. The meter is that of an outer
    /// layer, or else a new one, which is put into the request. Returns `None` if no meter settles the call.
    #[inline]
    fn meter(&self, _request: &mut Req) -> Option<(Meter, Unmetered)> {
        None
    }
}

/// The options of one request.
#[derive(Clone, Copy, Debug)]
pub struct Options<A> {
    /// The cost, in units of the quota.
    cost: u64,
    /// The algorithm for the request. `None` for the limiter's own algorithm.
    algorithm: Option<A>,
    has_priority: bool,
    /// `true` if the cost is settled when the response is known.
    is_settled: bool,
}

impl<A: Algorithm> Options<A> {
    /// Returns the [`Attempt`] that is passed to the limiter for the request. If the algorithm queues the request, the
    /// request waits at most `max_wait`. With `None`, only the algorithm's own maximum applies.
    #[inline]
    pub(super) fn attempt(&self, in_shadow: bool, max_wait: Option<Duration>) -> Attempt<'_, A> {
        let mut attempt = Attempt::new(self.cost);
        if in_shadow {
            attempt = attempt.with_shadow();
        }
        if let Some(algorithm) = &self.algorithm {
            attempt = attempt.with_algorithm(algorithm);
        }
        if self.has_priority {
            attempt = attempt.with_priority();
        }
        if let Some(max_wait) = max_wait {
            attempt = attempt.with_max_wait(max_wait);
        }
        if self.is_settled { attempt.with_reservation() } else { attempt }
    }

    /// Returns the algorithm for the request, or `None` for the limiter's own algorithm.
    #[inline]
    pub(super) fn algorithm(&self) -> Option<&A> {
        self.algorithm.as_ref()
    }

    /// Returns the algorithm for the request, and the number of units that the request borrows if it is delayed: the
    /// cost of a request with priority, and 0 for any other request. `limiter` is the algorithm of the limiter.
    pub(super) fn of_wait(self, limiter: &AlgorithmInfo) -> (Option<A>, u64) {
        let knows_priority =
            || self.algorithm.as_ref().map_or_else(|| limiter.knows_priority(), knows_priority);
        let borrows = if self.has_priority && knows_priority() { self.cost } else { 0 };
        (self.algorithm, borrows)
    }
}

/// Options that can determine the actual cost of a request from its response.
pub trait SettleResponse<Res> {
    /// Returns the actual cost of the request, in units of the quota. If the method returns `None`, the charge stays as
    /// it is.
    #[inline]
    fn actual(&self, _response: &Res) -> Option<u64> {
        None
    }
}

/// A cost of one unit for every request.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitCost;

impl<Req, Key, A> RequestOptions<Req, Key, A> for UnitCost {
    #[inline]
    fn options(&self, _: &Req, _: Option<&Key>) -> Options<A> {
        Options { cost: 1, algorithm: None, has_priority: false, is_settled: false }
    }
}

impl<Res> SettleResponse<Res> for UnitCost {}

/// The cost that a function returns for each request. Created by [`cost`](crate::middleware::RateLimitLayer::cost).
#[derive(Clone, Copy, Debug)]
pub struct CostFn<F>(F);

impl<F> CostFn<F> {
    pub(super) fn new(cost: F) -> Self {
        Self(cost)
    }
}

impl<Req, Key, A, F: Fn(&Req) -> u64> RequestOptions<Req, Key, A> for CostFn<F> {
    #[inline]
    fn options(&self, request: &Req, key: Option<&Key>) -> Options<A> {
        Options { cost: (self.0)(request), ..UnitCost.options(request, key) }
    }
}

impl<Res, F> SettleResponse<Res> for CostFn<F> {}

/// Defines a type that wraps other options and changes one of them.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<C, F> {
            options: C,
            function: F,
        }

        impl<C, F> $name<C, F> {
            pub(super) fn new(options: C, function: F) -> Self {
                Self { options, function }
            }
        }
    };
}

options! {
    /// Options whose algorithm a function chooses from the request and its key. A request without a key keeps the
    /// limiter's own algorithm. Created by [`tier`](crate::middleware::RateLimitLayer::tier).
    TierFn
}

impl<Req, Key, A, C, F> RequestOptions<Req, Key, Tiered<A>> for TierFn<C, F>
where
    A: Algorithm + PartialEq,
    C: RequestOptions<Req, Key, Tiered<A>>,
    F: Fn(&Req, &Key) -> A,
{
    fn options(&self, request: &Req, key: Option<&Key>) -> Options<Tiered<A>> {
        let algorithm = key.map(|key| Tiered::new((self.function)(request, key)));
        Options { algorithm, ..self.options.options(request, key) }
    }

    fn meter(&self, request: &mut Req) -> Option<(Meter, Unmetered)> {
        self.options.meter(request)
    }
}

impl<Res, C: SettleResponse<Res>, F> SettleResponse<Res> for TierFn<C, F> {
    fn actual(&self, response: &Res) -> Option<u64> {
        self.options.actual(response)
    }
}

options! {
    /// A function that returns whether a request has priority. Created by
    /// [`priority`](crate::middleware::RateLimitLayer::priority).
    PriorityFn
}

impl<Req, Key, A, C, F> RequestOptions<Req, Key, A> for PriorityFn<C, F>
where
    C: RequestOptions<Req, Key, A>,
    F: Fn(&Req) -> bool,
{
    fn options(&self, request: &Req, key: Option<&Key>) -> Options<A> {
        Options { has_priority: (self.function)(request), ..self.options.options(request, key) }
    }

    fn meter(&self, request: &mut Req) -> Option<(Meter, Unmetered)> {
        self.options.meter(request)
    }
}

impl<Res, C: SettleResponse<Res>, F> SettleResponse<Res> for PriorityFn<C, F> {
    fn actual(&self, response: &Res) -> Option<u64> {
        self.options.actual(response)
    }
}

options! {
    /// A function that returns the actual cost of a request from its response. Created by
    /// [`settle`](crate::middleware::RateLimitLayer::settle).
    SettleFn
}

impl<Req, Key, A, C, F> RequestOptions<Req, Key, A> for SettleFn<C, F>
where
    C: RequestOptions<Req, Key, A>,
{
    fn options(&self, request: &Req, key: Option<&Key>) -> Options<A> {
        Options { is_settled: true, ..self.options.options(request, key) }
    }

    fn meter(&self, request: &mut Req) -> Option<(Meter, Unmetered)> {
        self.options.meter(request)
    }
}

impl<Res, C, F, Actual> SettleResponse<Res> for SettleFn<C, F>
where
    F: Fn(&Res) -> Actual,
    Actual: Into<Option<u64>>,
{
    fn actual(&self, response: &Res) -> Option<u64> {
        (self.function)(response).into()
    }
}

/// Options of calls that a [meter](crate::Meter) settles when they have ended. Created by
/// [`metered`](crate::middleware::RateLimitLayer::metered).
#[derive(Clone, Copy, Debug)]
pub struct Metered<C> {
    options: C,
    /// `None` if it is not set, or if an inner `Metered` has it.
    unmetered: Option<Unmetered>,
}

impl<C> Metered<C> {
    pub(super) fn new(options: C) -> Self {
        Self { options, unmetered: None }
    }

    pub(super) fn unmetered(self, unmetered: Unmetered) -> Self {
        Self { unmetered: Some(unmetered), ..self }
    }
}

impl<B, Key, A, C> RequestOptions<Request<B>, Key, A> for Metered<C>
where
    C: RequestOptions<Request<B>, Key, A>,
{
    fn options(&self, request: &Request<B>, key: Option<&Key>) -> Options<A> {
        Options { is_settled: true, ..self.options.options(request, key) }
    }

    fn meter(&self, request: &mut Request<B>) -> Option<(Meter, Unmetered)> {
        let inner = self.options.meter(request).map(|(_, unmetered)| unmetered);
        let meter = request.extensions_mut().get_or_insert_default::<Meter>();
        Some((meter.clone(), self.unmetered.or(inner).unwrap_or_default()))
    }
}

impl<Res, C: SettleResponse<Res>> SettleResponse<Res> for Metered<C> {
    fn actual(&self, response: &Res) -> Option<u64> {
        self.options.actual(response)
    }
}
