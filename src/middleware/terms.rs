use crate::algorithm::{Algorithm, Tiered};

/// What a request costs, and by which rule it goes: [`One`] unit, a function of the request, a [`Choice`], or
/// [`Ranked`].
pub trait Terms<Req, Key, A> {
    /// The cost of `request`, in units of the quota. A cost of 0 is always allowed.
    fn cost(&self, request: &Req) -> u64;

    /// The rule it goes by; `None`: the limiter's.
    fn rule(&self, request: &Req, key: &Key) -> Option<A>;

    /// Whether it has priority.
    fn has_priority(&self, _request: &Req) -> bool {
        false
    }
}

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

impl<Req, Key, A, F: Fn(&Req) -> u64> Terms<Req, Key, A> for F {
    #[inline]
    fn cost(&self, request: &Req) -> u64 {
        self(request)
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
}

/// Requests of which some have priority. Made by [`priority`](super::RateLimitLayer::priority).
#[derive(Clone, Copy, Debug)]
pub struct Ranked<C, F> {
    terms: C,
    has_priority: F,
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
}
