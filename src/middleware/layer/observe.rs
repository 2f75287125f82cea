//! The methods of a layer that show what it does.

use super::RateLimitLayer;
use crate::algorithm::Algorithm;
use crate::key::{HashLabel, LabelFn, Watched};
#[cfg(feature = "metrics")]
use crate::metrics;
use crate::middleware::policy::Policy;
use crate::middleware::response::Rejection;
use crate::middleware::response::on_reject::OnReject;
use crate::stats::{PolicyStats, Timeline, TopKeys};
use crate::store::Store;

impl<K, A: Algorithm, C, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    /// Returns what this policy has counted, over all clones of this layer: its requests by what became of them, those
    /// without a valid key, and the events of its store. Reading it stops no request.
    ///
    /// A [joined](RateLimitLayer::and) layer [has](crate::middleware::Layers::stats) the counts of all its policies, and
    /// shares those of the layers it was made of.
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

    /// Gives what this policy has counted to the recorder of the `metrics` facade, if one is installed. Call it before each
    /// scrape, or every few seconds. [In production](crate::guide::production) has the names and the labels.
    ///
    /// Counters are set and not added to, so call it for one clone of a layer only, and give each policy a
    /// [name](RateLimitLayer::name) of its own. A call of the service does no work for it, but one that was queued, whose
    /// wait is recorded in a histogram.
    #[cfg(feature = "metrics")]
    pub fn record_metrics(&self) {
        metrics::record(&self.stats());
    }

    /// Sets a function that is called with each rejection and its request, before the response is made. It only observes:
    /// use it for a counter, a log line or an alert of your own. It works for HTTP, gRPC and all other services. Call it
    /// after [`responder`](RateLimitLayer::responder).
    ///
    /// It is called where the request is decided, so it must not block.
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
}

impl<K: Clone, A: Algorithm, C: Clone, R, S: Store<A>> RateLimitLayer<K, A, C, R, S> {
    /// Counts what this policy does, second by second, in `timeline`: also the response times of the inner service. One
    /// timeline may be given to several policies, which are then counted together.
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

    /// Counts the keys that this policy denies most often in `top`, each labelled by a random number. See [`TopKeys`].
    ///
    /// Call it before [`tier`](RateLimitLayer::tier). Denials in shadow mode count.
    #[must_use]
    pub fn top_keys(self, top: &TopKeys) -> RateLimitLayer<Watched<K, HashLabel>, A, C, R, S> {
        self.watched(top, HashLabel)
    }

    /// Counts the keys that this policy denies most often in `top`, each with the label that the function returns.
    ///
    /// A label is shown as it is: leave out what must not be seen by those who read it, such as an API key.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tower_throttle::stats::TopKeys;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let top = TopKeys::new();
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).top_keys_by(&top, |ip: &IpAddr| ip.to_string());
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    #[must_use]
    pub fn top_keys_by<F, Key, T>(
        self,
        top: &TopKeys,
        label: F,
    ) -> RateLimitLayer<Watched<K, LabelFn<F>>, A, C, R, S>
    where
        F: Fn(&Key) -> T,
        T: Into<String>,
    {
        self.watched(top, LabelFn(label))
    }

    fn watched<L>(self, top: &TopKeys, label: L) -> RateLimitLayer<Watched<K, L>, A, C, R, S> {
        self.with_info(|info| info.watches_keys = true).map_policy(|Policy { key, limiter, options }| {
            Policy { key: Watched::new(key, top, label), limiter, options }
        })
    }
}
