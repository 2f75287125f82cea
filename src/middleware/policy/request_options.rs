use crate::algorithm::{Algorithm, Tiered};

/// What a request costs, and by which rule it goes: [`UnitCost`] unit, [`CostFn`], a [`TierFn`], [`PriorityFn`], or [`SettleFn`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell what a request of type `{Req}` costs, by which rule it goes, or whether it has priority",
    note = "the functions given to `cost`, `choose` and `priority` must take the service's requests: `|request: &{Req}| ..`"
)]
pub trait RequestOptions<Req, Key, A> {
    /// The cost of `request`, in units of the quota. A cost of 0 is always allowed.
    fn cost(&self, request: &Req) -> u64;

    /// The rule it goes by; `None`: the limiter's.
    fn algorithm(&self, request: &Req, key: &Key) -> Option<A>;

    /// Whether it has priority.
    fn has_priority(&self, _request: &Req) -> bool {
        false
    }

    /// Whether calls are settled when they are over.
    #[inline]
    fn is_settled(&self) -> bool {
        false
    }
}

/// What a call cost in the end, by its response.
pub trait SettleResponse<Res> {
    /// Whether any response is looked at.
    #[inline]
    fn settles(&self) -> bool {
        false
    }

    /// What the call cost, in units of the quota; `None`: what it was charged.
    #[inline]
    fn actual(&self, _response: &Res) -> Option<u64> {
        None
    }
}

impl<Res> SettleResponse<Res> for UnitCost {}

/// Every request costs one unit.
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

/// A request costs what a function says. Made by [`cost`](crate::middleware::RateLimitLayer::cost).
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

/// A rule that is chosen for each request. Made by [`tier`](crate::middleware::RateLimitLayer::tier).
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

/// Requests of which some have priority. Made by [`priority`](crate::middleware::RateLimitLayer::priority).
#[derive(Clone, Copy, Debug)]
pub struct PriorityFn<C, F> {
    terms: C,
    has_priority: F,
}

impl<Res, C: SettleResponse<Res>, F> SettleResponse<Res> for PriorityFn<C, F> {
    fn settles(&self) -> bool {
        self.terms.settles()
    }

    fn actual(&self, response: &Res) -> Option<u64> {
        self.terms.actual(response)
    }
}

impl<C, F> PriorityFn<C, F> {
    pub(in crate::middleware) fn new(terms: C, has_priority: F) -> Self {
        Self { terms, has_priority }
    }
}

impl<Req, Key, A, C, F> RequestOptions<Req, Key, A> for PriorityFn<C, F>
where
    C: RequestOptions<Req, Key, A>,
    F: Fn(&Req) -> bool,
{
    fn cost(&self, request: &Req) -> u64 {
        self.terms.cost(request)
    }

    fn algorithm(&self, request: &Req, key: &Key) -> Option<A> {
        self.terms.algorithm(request, key)
    }

    fn has_priority(&self, request: &Req) -> bool {
        (self.has_priority)(request)
    }

    fn is_settled(&self) -> bool {
        self.terms.is_settled()
    }
}

/// Calls of which a function of the response says what they cost in the end. Made by
/// [`settle`](crate::middleware::RateLimitLayer::settle).
#[derive(Clone, Copy, Debug)]
pub struct SettleFn<C, F> {
    terms: C,
    actual: F,
}

impl<C, F> SettleFn<C, F> {
    pub(in crate::middleware) fn new(terms: C, actual: F) -> Self {
        Self { terms, actual }
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
        self.terms.cost(request)
    }

    fn algorithm(&self, request: &Req, key: &Key) -> Option<A> {
        self.terms.algorithm(request, key)
    }

    fn has_priority(&self, request: &Req) -> bool {
        self.terms.has_priority(request)
    }

    fn is_settled(&self) -> bool {
        true
    }
}
