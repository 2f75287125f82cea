use crate::algorithm::{Algorithm, Tiered};

/// What a request costs, and by which rule it goes: [`One`] unit, a function of the request, or a [`Choice`].
pub trait Terms<Req, Key, A> {
    /// The cost of `request`, in units of the quota. A cost of 0 is always allowed.
    fn cost(&self, request: &Req) -> u64;

    /// The rule it goes by; `None`: the limiter's.
    fn rule(&self, request: &Req, key: &Key) -> Option<A>;
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
}
