//! What an operator sees of a layer: its counts, its rejections, and what it would deny in shadow mode.

use super::RateLimitLayer;
use crate::algorithm::Algorithm;
#[cfg(feature = "metrics")]
use crate::metrics;
use crate::middleware::policy::shadow::Shadow;
use crate::middleware::response::Rejection;
use crate::middleware::response::on_reject::OnReject;
use crate::stats::{PolicyStats, Timeline};
use crate::store::Store;

impl<K: Clone, A: Algorithm, C: Clone, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    /// Decides and counts, but admits every call, to show what the limit would do. nginx calls this mode dry run.
    ///
    /// A call that would be denied or queued is admitted at once. It is [counted](Shadow::denied), its request has the
    /// extension [`ShadowDenied`](crate::middleware::ShadowDenied), and an event of level `debug` is emitted (feature
    /// `tracing`). Such a call charges nothing, like a denied call. Nothing is reported to callers. When shadow mode is
    /// turned [off](Shadow::set), the limit is enforced, and the units used until then count. If the layer is joined
    /// with others, this layer neither denies nor delays a call, and decides after the others have admitted the call.
    /// Requests without a valid key, and requests of forbidden callers, are still rejected. If the store fails, the
    /// call is admitted.
    ///
    /// ```
    /// use tower_throttle::middleware::Shadow;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let shadow = Shadow::new();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).shadow(&shadow);
    /// // a day later, if no legitimate caller would have been denied
    /// println!("{} calls would have been denied", shadow.denied());
    /// shadow.set(false);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn shadow(self, shadow: &Shadow) -> Self {
        self.with_info(|info| info.shadow = Some(shadow.clone()))
    }

    /// Counts what this policy does, second by second, in `timeline`, including the response times of the inner
    /// service. One timeline may be given to several policies, whose counts are then added up.
    ///
    /// ```
    /// use tower_throttle::stats::Timeline;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let last_minute = Timeline::new();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).timeline(&last_minute);
    /// for (start, second) in last_minute.recent() {
    ///     println!("{start:?}: {} admitted, {} denied", second.admitted, second.denied);
    /// }
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn timeline(self, timeline: &Timeline) -> Self {
        self.with_info(|info| info.timeline = Some(timeline.clone()))
    }
}

impl<K, A: Algorithm, C, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    /// Sets a function that is called with each rejection and its request, before the response is made. The function
    /// cannot change the response: use it for a counter, a log line or an alert of your own. It works for HTTP, gRPC
    /// and all other services. Call `on_reject` after [`responder`](RateLimitLayer::responder).
    ///
    /// The function runs in the task that calls the service, so it must not block.
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::middleware::Rejection;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).on_reject(
    ///     |rejection: &Rejection<'_>, request: &Request<axum::body::Body>| {
    ///         for report in rejection.policies().iter().filter(|report| !report.decision().is_allowed()) {
    ///             eprintln!("{} denied {}: {}", report.name(), request.uri().path(), report.decision());
    ///         }
    ///     },
    /// );
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn on_reject<F, Req>(self, observe: F) -> RateLimitLayer<K, A, C, OnReject<R, F>, S>
    where
        F: Fn(&Rejection<'_>, &Req),
    {
        RateLimitLayer { policies: self.policies, responder: OnReject::new(self.responder, observe) }
    }

    /// Returns what this policy has counted, over all clones of this layer: its requests by outcome, its requests
    /// without a valid key, and the events of its store. Reading the counts blocks no request.
    ///
    /// A [joined](RateLimitLayer::and) layer [returns](crate::middleware::Layers::stats) the counts of all its
    /// policies, and shares these counts with the layers from which it was made.
    ///
    /// ```
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).name("per-ip");
    /// let app: axum::Router = axum::Router::new().layer(layer.clone());
    /// let stats = layer.stats();
    /// println!("{}: {} admitted, {} denied", stats.name, stats.calls.admitted, stats.calls.denied);
    /// assert_eq!(stats.keys.rejected, 0, "requests without a peer address");
    /// ```
    #[must_use]
    pub fn stats(&self) -> PolicyStats {
        self.policies.infos[0].stats(self.limiter().store().stats())
    }

    /// Gives what this policy has counted to the recorder of the `metrics` facade, if a recorder is installed. Call
    /// this before each scrape, or every few seconds. [In production](crate::guide::production) lists the names and the
    /// labels.
    ///
    /// The recorder's counters are set to the counts of the layer, and not added to. So call this for one clone of a
    /// layer only, and give each policy a [name](RateLimitLayer::name) of its own. The wait of a queued request is
    /// recorded in a histogram when the request is admitted; for all other requests, the service records nothing.
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        metrics::record(&self.stats());
    }
}
