use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::layer::RateLimitLayer;
use super::policy::Policy;
use super::policy::and::And;
use super::policy::set::{Policies, PolicyCount};
use super::response::Rejection;
use super::response::on_reject::OnReject;
use super::service::RateLimit;
use crate::algorithm::Algorithm;
#[cfg(feature = "metrics")]
use crate::metrics;
use crate::stats::PolicyStats;
use crate::store::Store;

/// A layer with several policies. If one policy denies a call, no policy charges the call. Created by
/// [`and`](RateLimitLayer::and).
pub struct Layers<P, R> {
    policies: Arc<Policies<P>>,
    responder: R,
}

/// The layer that results from joining two layers, with the responder `R`.
type Joined<L, O, R> = Layers<And<<L as IntoPolicySet>::PolicySet, <O as IntoPolicySet>::PolicySet>, R>;

/// A layer whose policies can be joined with those of another layer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no layer whose policies can be joined with those of another",
    note = "join `RateLimitLayer`s: `layer.and(RateLimitLayer::with_limiter(key, limiter))`"
)]
pub trait IntoPolicySet {
    #[doc(hidden)]
    type PolicySet;

    #[doc(hidden)]
    fn into_policy_set(self) -> Policies<Self::PolicySet>;
}

impl<K: Clone, A: Algorithm, C: Clone, R, S: Store<A>> IntoPolicySet for RateLimitLayer<K, A, C, R, S> {
    type PolicySet = Policy<K, A, C, S>;

    fn into_policy_set(self) -> Policies<Policy<K, A, C, S>> {
        Arc::unwrap_or_clone(self.policies)
    }
}

impl<P: Clone, R> IntoPolicySet for Layers<P, R> {
    type PolicySet = P;

    fn into_policy_set(self) -> Policies<P> {
        Arc::unwrap_or_clone(self.policies)
    }
}

impl<K: Clone, A: Algorithm, C: Clone, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    /// Joins two layers: a request is admitted only if both layers allow the request. If one layer denies the request,
    /// neither layer charges it.
    ///
    /// Both policies decide the request in one step, so no other call for one of the two keys is decided in between.
    /// The responder of this layer makes the responses. If both policies have the same name, the name of the second
    /// gets a number: `default`, `default-2`.
    ///
    /// If one policy queues the request, the other policy charges the request as soon as the request joins the queue.
    /// If the request is cancelled while it is queued, as much of this charge as still counts is refunded. With
    /// [tiers](crate::algorithm::Tiered), the refund goes to the tier that the key used last. If both policies queue
    /// the request, the request is admitted as soon as both queues can release it. On average, the inner service then
    /// receives no more requests than either queue alone would release, but the intervals between the requests are less
    /// even than with a single queue.
    ///
    /// Both layers must have their state in memory, or both in one `RedisStore` of the crate `tower-throttle-redis`:
    /// see [many machines]. Call [`unless`](RateLimitLayer::unless) and [`missing_key`](RateLimitLayer::missing_key) on
    /// each layer before you join the layers.
    ///
    /// [many machines]: https://docs.rs/tower-throttle-redis/latest/tower_throttle_redis/guide/many_machines/index.html#several-limits
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
        let policies = Arc::unwrap_or_clone(self.policies).joined(other.into_policy_set(), And::new);
        Layers { policies: Arc::new(policies), responder: self.responder }
    }
}

impl<P: Clone, R> Layers<P, R> {
    /// Joins another layer: a request is admitted only if all policies allow the request. See [`RateLimitLayer::and`].
    #[must_use]
    pub fn and<O: IntoPolicySet>(self, other: O) -> Joined<Self, O, R> {
        let policies = Arc::unwrap_or_clone(self.policies).joined(other.into_policy_set(), And::new);
        Layers { policies: Arc::new(policies), responder: self.responder }
    }
}

impl<P: PolicyCount, R> Layers<P, R> {
    /// Returns the counts of each policy, in the order in which the policies were joined. If a clone of a layer was
    /// joined, the joined policy and the original layer share their counters.
    ///
    /// ```
    /// use tower_throttle::algorithm::SlidingWindow;
    /// use tower_throttle::key::{Global, PeerIp};
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_second(5)).name("per-ip")
    ///     .and(RateLimitLayer::new(Global, SlidingWindow::new(Quota::per_second(1_000))).name("all"));
    /// for policy in layer.stats() {
    ///     println!("{}: {} admitted, {} denied", policy.name, policy.calls.admitted, policy.calls.denied);
    /// }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Vec<PolicyStats> {
        self.policies.stats()
    }

    /// Passes the counts of each policy to the recorder of the `metrics` facade. See
    /// [`RateLimitLayer::record_metrics`].
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        self.stats().iter().for_each(|stats| metrics::record(stats, P::CAN_FAIL));
    }
}

impl<P, R> Layers<P, R> {
    /// Sets the responder, which makes the responses. See [`RateLimitLayer::responder`].
    #[must_use]
    pub fn responder<T>(self, responder: T) -> Layers<P, T> {
        Layers { policies: self.policies, responder }
    }

    /// Sets a function that is called with each rejection and the rejected request. See [`RateLimitLayer::on_reject`].
    #[must_use]
    pub fn on_reject<F, Req>(self, observe: F) -> Layers<P, OnReject<R, F>>
    where
        F: Fn(&Rejection<'_>, &Req),
    {
        Layers { policies: self.policies, responder: OnReject::new(self.responder, observe) }
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
