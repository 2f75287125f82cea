use crate::algorithm::{Algorithm, Tiered};

/// What a request costs, and by which rule it goes: [`One`] unit, [`Cost`], a [`Choice`], [`Ranked`], or [`Settled`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell what a request of type `{Req}` costs, by which rule it goes, or whether it has priority",
    note = "the functions given to `cost`, `choose` and `priority` must take the service's requests: `|request: &{Req}| ..`"
)]
pub trait Terms<Req, Key, A> {
    /// The cost of `request`, in units of the quota. A cost of 0 is always allowed.
    fn cost(&self, request: &Req) -> u64;

    /// The rule it goes by; `None`: the limiter's.
    fn rule(&self, request: &Req, key: &Key) -> Option<A>;

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
pub trait Settles<Res> {
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

impl<Res> Settles<Res> for One {}

/// Every request costs one unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct One;

impl<Req, Key, A> Terms<Req, Key, A> for One {
    #[inline]
    fn cost(&self, _: &Req) -> u64 {
        1
    }

    #[inline]
    fn rule(&self, _: &Req, _: &Key) -> Option<A> {
        None
    }
}

/// A request costs what a function says. Made by [`cost`](super::RateLimitLayer::cost).
#[derive(Clone, Copy, Debug)]
pub struct Cost<F>(F);

impl<F> Cost<F> {
    pub(super) fn new(cost: F) -> Self {
        Self(cost)
    }
}

impl<Res, F> Settles<Res> for Cost<F> {}

impl<Req, Key, A, F: Fn(&Req) -> u64> Terms<Req, Key, A> for Cost<F> {
    #[inline]
    fn cost(&self, request: &Req) -> u64 {
        (self.0)(request)
    }

    #[inline]
    fn rule(&self, _: &Req, _: &Key) -> Option<A> {
        None
    }
}

/// A rule that is chosen for each request. Made by [`choose`](super::RateLimitLayer::choose).
#[derive(Clone, Copy, Debug)]
pub struct Choice<C, F> {
    cost: C,
    choose: F,
}

impl<Res, C: Settles<Res>, F> Settles<Res> for Choice<C, F> {
    fn settles(&self) -> bool {
        self.cost.settles()
    }

    fn actual(&self, response: &Res) -> Option<u64> {
        self.cost.actual(response)
    }
}

impl<C, F> Choice<C, F> {
    pub(super) fn new(cost: C, choose: F) -> Self {
        Self { cost, choose }
    }
}

impl<Req, Key, A, C, F> Terms<Req, Key, Tiered<A>> for Choice<C, F>
where
    A: Algorithm + PartialEq,
    C: Terms<Req, Key, Tiered<A>>,
    F: Fn(&Req, &Key) -> A,
{
    fn cost(&self, request: &Req) -> u64 {
        self.cost.cost(request)
    }

    fn rule(&self, request: &Req, key: &Key) -> Option<Tiered<A>> {
        Some(Tiered::new((self.choose)(request, key)))
    }

    fn has_priority(&self, request: &Req) -> bool {
        self.cost.has_priority(request)
    }

    fn is_settled(&self) -> bool {
        self.cost.is_settled()
    }
}

/// Requests of which some have priority. Made by [`priority`](super::RateLimitLayer::priority).
#[derive(Clone, Copy, Debug)]
pub struct Ranked<C, F> {
    terms: C,
    has_priority: F,
}

impl<Res, C: Settles<Res>, F> Settles<Res> for Ranked<C, F> {
    fn settles(&self) -> bool {
        self.terms.settles()
    }

    fn actual(&self, response: &Res) -> Option<u64> {
        self.terms.actual(response)
    }
}

impl<C, F> Ranked<C, F> {
    pub(super) fn new(terms: C, has_priority: F) -> Self {
        Self { terms, has_priority }
    }
}

impl<Req, Key, A, C, F> Terms<Req, Key, A> for Ranked<C, F>
where
    C: Terms<Req, Key, A>,
    F: Fn(&Req) -> bool,
{
    fn cost(&self, request: &Req) -> u64 {
        self.terms.cost(request)
    }

    fn rule(&self, request: &Req, key: &Key) -> Option<A> {
        self.terms.rule(request, key)
    }

    fn has_priority(&self, request: &Req) -> bool {
        (self.has_priority)(request)
    }

    fn is_settled(&self) -> bool {
        self.terms.is_settled()
    }
}

/// Calls of which a function of the response says what they cost in the end. Made by
/// [`settle`](super::RateLimitLayer::settle).
#[derive(Clone, Copy, Debug)]
pub struct Settled<C, F> {
    terms: C,
    actual: F,
}

impl<C, F> Settled<C, F> {
    pub(super) fn new(terms: C, actual: F) -> Self {
        Self { terms, actual }
    }
}

impl<Res, C, F, Actual> Settles<Res> for Settled<C, F>
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

impl<Req, Key, A, C, F> Terms<Req, Key, A> for Settled<C, F>
where
    C: Terms<Req, Key, A>,
{
    fn cost(&self, request: &Req) -> u64 {
        self.terms.cost(request)
    }

    fn rule(&self, request: &Req, key: &Key) -> Option<A> {
        self.terms.rule(request, key)
    }

    fn has_priority(&self, request: &Req) -> bool {
        self.terms.has_priority(request)
    }

    fn is_settled(&self) -> bool {
        true
    }
}
