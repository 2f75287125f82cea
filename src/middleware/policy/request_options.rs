use crate::algorithm::{Algorithm, Tiered};

/// The cost, the tier and the priority of a request: [`UnitCost`], [`CostFn`], [`TierFn`], [`PriorityFn`] or [`SettleFn`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot choose the cost, the tier or the priority of a request of type `{Req}`",
    note = "the functions given to `cost`, `tier` and `priority` must take the service's requests: `|request: &{Req}| ..`"
)]
pub trait RequestOptions<Req, Key, A> {
    /// Returns the cost of `request`, in units of the quota. A cost of 0 is always allowed.
    fn cost(&self, request: &Req) -> u64;

    /// Returns the algorithm for the request, or `None` for the limiter's own.
    fn algorithm(&self, request: &Req, key: &Key) -> Option<A>;

    /// Returns whether the request has priority.
    fn has_priority(&self, _request: &Req) -> bool {
        false
    }

    /// Returns whether the cost of calls is settled by their response.
    #[inline]
    fn is_settled(&self) -> bool {
        false
    }
}

/// The actual cost of a call, by its response.
pub trait SettleResponse<Res> {
    /// Returns whether responses are used to settle the cost.
    #[inline]
    fn settles(&self) -> bool {
        false
    }

    /// Returns the actual cost of the call, in units of the quota, or `None` to leave it at what it was charged.
    #[inline]
    fn actual(&self, _response: &Res) -> Option<u64> {
        None
    }
}

impl<Res> SettleResponse<Res> for UnitCost {}

/// A cost of one unit for every request.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitCost;

impl<Req, Key, A> RequestOptions<Req, Key, A> for UnitCost {
    #[inline]
    fn cost(&self, _: &Req) -> u64 {
        1
    }

    #[inline]
    fn algorithm(&self, _: &Req, _: &Key) -> Option<A> {
        None
    }
}

/// A cost that a function returns. Created by [`cost`](crate::middleware::RateLimitLayer::cost).
#[derive(Clone, Copy, Debug)]
pub struct CostFn<F>(F);

impl<F> CostFn<F> {
    pub(in crate::middleware) fn new(cost: F) -> Self {
        Self(cost)
    }
}

impl<Res, F> SettleResponse<Res> for CostFn<F> {}

impl<Req, Key, A, F: Fn(&Req) -> u64> RequestOptions<Req, Key, A> for CostFn<F> {
    #[inline]
    fn cost(&self, request: &Req) -> u64 {
        (self.0)(request)
    }

    #[inline]
    fn algorithm(&self, _: &Req, _: &Key) -> Option<A> {
        None
    }
}

/// An algorithm that a function chooses for each request. Created by [`tier`](crate::middleware::RateLimitLayer::tier).
#[derive(Clone, Copy, Debug)]
pub struct TierFn<C, F> {
    cost: C,
    choose: F,
}

impl<Res, C: SettleResponse<Res>, F> SettleResponse<Res> for TierFn<C, F> {
    fn settles(&self) -> bool {
        self.cost.settles()
    }

    fn actual(&self, response: &Res) -> Option<u64> {
        self.cost.actual(response)
    }
}

impl<C, F> TierFn<C, F> {
    pub(in crate::middleware) fn new(cost: C, choose: F) -> Self {
        Self { cost, choose }
    }
}

impl<Req, Key, A, C, F> RequestOptions<Req, Key, Tiered<A>> for TierFn<C, F>
where
    A: Algorithm + PartialEq,
    C: RequestOptions<Req, Key, Tiered<A>>,
    F: Fn(&Req, &Key) -> A,
{
    fn cost(&self, request: &Req) -> u64 {
        self.cost.cost(request)
    }

    fn algorithm(&self, request: &Req, key: &Key) -> Option<Tiered<A>> {
        Some(Tiered::new((self.choose)(request, key)))
    }

    fn has_priority(&self, request: &Req) -> bool {
        self.cost.has_priority(request)
    }

    fn is_settled(&self) -> bool {
        self.cost.is_settled()
    }
}

/// A function that returns whether a request has priority. Created by
/// [`priority`](crate::middleware::RateLimitLayer::priority).
#[derive(Clone, Copy, Debug)]
pub struct PriorityFn<C, F> {
    options: C,
    has_priority: F,
}

impl<Res, C: SettleResponse<Res>, F> SettleResponse<Res> for PriorityFn<C, F> {
    fn settles(&self) -> bool {
        self.options.settles()
    }

    fn actual(&self, response: &Res) -> Option<u64> {
        self.options.actual(response)
    }
}

impl<C, F> PriorityFn<C, F> {
    pub(in crate::middleware) fn new(options: C, has_priority: F) -> Self {
        Self { options, has_priority }
    }
}

impl<Req, Key, A, C, F> RequestOptions<Req, Key, A> for PriorityFn<C, F>
where
    C: RequestOptions<Req, Key, A>,
    F: Fn(&Req) -> bool,
{
    fn cost(&self, request: &Req) -> u64 {
        self.options.cost(request)
    }

    fn algorithm(&self, request: &Req, key: &Key) -> Option<A> {
        self.options.algorithm(request, key)
    }

    fn has_priority(&self, request: &Req) -> bool {
        (self.has_priority)(request)
    }

    fn is_settled(&self) -> bool {
        self.options.is_settled()
    }
}

/// A function that returns the actual cost of a call from its response. Created by
/// [`settle`](crate::middleware::RateLimitLayer::settle).
#[derive(Clone, Copy, Debug)]
pub struct SettleFn<C, F> {
    options: C,
    actual: F,
}

impl<C, F> SettleFn<C, F> {
    pub(in crate::middleware) fn new(options: C, actual: F) -> Self {
        Self { options, actual }
    }
}

impl<Res, C, F, Actual> SettleResponse<Res> for SettleFn<C, F>
where
    F: Fn(&Res) -> Actual,
    Actual: Into<Option<u64>>,
{
    fn settles(&self) -> bool {
        true
    }

    fn actual(&self, response: &Res) -> Option<u64> {
        (self.actual)(response).into()
    }
}

impl<Req, Key, A, C, F> RequestOptions<Req, Key, A> for SettleFn<C, F>
where
    C: RequestOptions<Req, Key, A>,
{
    fn cost(&self, request: &Req) -> u64 {
        self.options.cost(request)
    }

    fn algorithm(&self, request: &Req, key: &Key) -> Option<A> {
        self.options.algorithm(request, key)
    }

    fn has_priority(&self, request: &Req) -> bool {
        self.options.has_priority(request)
    }

    fn is_settled(&self) -> bool {
        true
    }
}
