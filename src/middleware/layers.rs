use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::layer::RateLimitLayer;
use super::policy::Policy;
use super::policy::and::And;
use super::policy::set::{Deduplicate, sealed};
use super::service::RateLimit;
use crate::algorithm::Algorithm;

/// Several policies in one layer, charged all or none. Made by [`and`](RateLimitLayer::and).
pub struct Layers<P, R> {
    policies: Arc<P>,
    responder: R,
}

/// The policies of two layers, and who makes the answers.
type Joined<L, O, R> = Layers<And<<L as IntoPolicySet>::PolicySet, <O as IntoPolicySet>::PolicySet>, R>;

/// A layer whose policies can be joined with those of another.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no layer whose policies can be joined with those of another",
    note = "join `RateLimitLayer`s: `layer.and(RateLimitLayer::with_limiter(key, limiter))`"
)]
pub trait IntoPolicySet: sealed::Sealed {
    #[doc(hidden)]
    type PolicySet: Deduplicate;

    #[doc(hidden)]
    fn into_policy_set(self) -> Self::PolicySet;
}

impl<K: Clone, A: Algorithm, C: Clone, R, S> IntoPolicySet for RateLimitLayer<K, A, C, R, S> {
    type PolicySet = Policy<K, A, C, S>;

    fn into_policy_set(self) -> Policy<K, A, C, S> {
        Arc::unwrap_or_clone(self.into_parts().0)
    }
}

impl<K, A: Algorithm, C, R, S> sealed::Sealed for RateLimitLayer<K, A, C, R, S> {}
impl<P, R> sealed::Sealed for Layers<P, R> {}

impl<P: Deduplicate + Clone, R> IntoPolicySet for Layers<P, R> {
    type PolicySet = P;

    fn into_policy_set(self) -> P {
        Arc::unwrap_or_clone(self.policies)
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, S> RateLimitLayer<K, A, C, R, S> {
    /// Both must allow: a request that either denies is charged by neither.
    ///
    /// They are decided together while both keys are held, so nobody comes in between. The answers are made by this
    /// layer's responder. A policy whose name is taken is numbered: `default`, `default-2`.
    ///
    /// If one lets the request wait in line, the other is charged when the request joins the line: its budget is for
    /// arrivals. Given up while it waits, what still counts of that is given back (to the tier that was asked last,
    /// where there are [tiers](crate::algorithm::Tiered)). If both let it wait, it leaves when its turn has come in
    /// both lines: what is behind sees at most what each line lets out, but not as evenly as one line alone would.
    /// The state must be in memory. What each layer is told by itself, as [`unless`](RateLimitLayer::unless) and
    /// [`missing_key`](RateLimitLayer::missing_key), it is told before; a clone kept from before tells its
    /// [`key_stats`](RateLimitLayer::key_stats).
    ///
    /// ```
    /// use tower_throttle::algorithm::SlidingWindow;
    /// use tower_throttle::key::{Global, PeerIp};
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(5))
    ///     .and(RateLimitLayer::new(Global, SlidingWindow::new(Quota::per_second(1_000))).name("all"));
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn and<O: IntoPolicySet>(self, other: O) -> Joined<Self, O, R> {
        let (policy, responder) = self.into_parts();
        let policies = And::new(Arc::unwrap_or_clone(policy), other.into_policy_set());
        Layers { policies: Arc::new(policies), responder }
    }
}

impl<P: Deduplicate + Clone, R> Layers<P, R> {
    /// All must allow. See [`RateLimitLayer::and`].
    #[must_use]
    pub fn and<O: IntoPolicySet>(self, other: O) -> Joined<Self, O, R> {
        let policies = And::new(Arc::unwrap_or_clone(self.policies), other.into_policy_set());
        Layers { policies: Arc::new(policies), responder: self.responder }
    }
}

impl<P, R> Layers<P, R> {
    /// Who makes the answers. See [`RateLimitLayer::responder`].
    #[must_use]
    pub fn responder<T>(self, responder: T) -> Layers<P, T> {
        Layers { policies: self.policies, responder }
    }
}

impl<Svc, P, R: Clone> Layer<Svc> for Layers<P, R> {
    type Service = RateLimit<Svc, P, R>;

    fn layer(&self, inner: Svc) -> Self::Service {
        RateLimit::new(inner, Arc::clone(&self.policies), self.responder.clone())
    }
}

impl<P, R: Clone> Clone for Layers<P, R> {
    fn clone(&self) -> Self {
        Self { policies: Arc::clone(&self.policies), responder: self.responder.clone() }
    }
}

impl<P: fmt::Debug, R> fmt::Debug for Layers<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers").field("policies", &self.policies).finish_non_exhaustive()
    }
}
