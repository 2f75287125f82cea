//! The methods for the operator of a service: counts, rejections and shadow mode.

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
    /// Sets shadow mode. While `shadow` is on, this limit decides and counts calls, but neither denies nor delays any
    /// call. The counts show what the limit would do. nginx calls this mode dry run.
    ///
    /// A call that would be denied or queued is admitted at once, and charges nothing. Such a call is
    /// [counted](Shadow::denied), and an event of level `debug` is emitted (feature `tracing`). An
    /// [`HttpResponder`](crate::middleware::HttpResponder) adds the extension
    /// [`ShadowDenied`](crate::middleware::ShadowDenied) to the request. Callers see nothing of this limit. When shadow
    /// mode is turned [off](Shadow::set), the limit is enforced, and the units that were charged in shadow mode count.
    ///
    /// If the layer is joined with others, this limit decides only the calls that the limits outside of shadow mode
    /// admit. Shadow mode does not change how requests without a valid key and requests of forbidden callers are
    /// treated: by default, they are rejected. If the store fails, this limit admits the call.
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

    /// Sets a timeline. For each of the last 60 seconds, by default, the timeline counts what this policy does, and
    /// records the response times of the inner service. If several policies have the same timeline, their counts are
    /// added up.
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
    /// Sets a function that is called with each rejection and the rejected request, before the response is made. The
    /// function cannot change the response. Use the function for a counter, a log line or an alert of your own. The
    /// function is called for HTTP, gRPC and all other services. Call `on_reject` after
    /// [`responder`](RateLimitLayer::responder).
    ///
    /// The function runs in the task that calls the service or polls its future, so the function must not block.
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

    /// Returns the counts of this policy: the requests by outcome, the requests without a valid key or from forbidden
    /// callers, and the events of the store. All clones of this layer share these counts. Reading the counts blocks no
    /// request.
    ///
    /// A [joined](RateLimitLayer::and) layer [returns](crate::middleware::Layers::stats) the counts of all its
    /// policies. Clones of the layers that were joined share these counts.
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

    /// Passes the counts of this policy to the recorder of the `metrics` facade, if a recorder is installed. Call this
    /// method before each scrape, or every few seconds. The chapter [In production](crate::guide::production) lists the
    /// names and the labels of the metrics.
    ///
    /// The method sets the recorder's counters to the counts of the layer, and does not add to the counters. The clones
    /// of a layer share these counts, so call this method for one of them, and give each policy a
    /// [name](RateLimitLayer::name) of its own. When a queued request is admitted, the service records its wait in a
    /// histogram. For all other requests, the service itself records nothing.
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        metrics::record(&self.stats(), S::CAN_FAIL);
    }
}
