//! The functions for `on_reject` that list the keys of rejected requests.

use super::{PolicyReport, Rejection};
use crate::key::KeyExtractor;
use crate::limiter::{SharedKey, text_of};
use crate::stats::TopKeys;

impl TopKeys {
    /// Returns a function for [`on_reject`](crate::RateLimitLayer::on_reject), which records the key of each request
    /// that a limit denied. Pass the extractor of the layer.
    ///
    /// The key is extracted once more, so only a denied request does work for the list. The label of the key is a hash,
    /// as by [`record`](Self::record). What no limit denied is not recorded: a request without a valid key (400, 403,
    /// 500), a closed limiter, a full key table, and a store that failed (503).
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::stats::TopKeys;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let (peer, top) = (PeerIp::new(), TopKeys::new());
    /// let layer = RateLimitLayer::new(peer.clone(), TokenBucket::new(Quota::per_minute(100)))
    ///     .on_reject(top.watch(&peer));
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    ///
    /// On a joined layer, the key is recorded whichever policy has denied the request. To list the keys that one policy
    /// denies, use [`watch_policy`](Self::watch_policy).
    ///
    /// # Shadow mode
    ///
    /// A layer in [shadow mode](crate::RateLimitLayer::shadow) rejects nothing, so it does not call the function.
    /// There, a service inside of the layer records the key of a request that has the extension
    /// [`ShadowDenied`](crate::middleware::ShadowDenied):
    ///
    /// ```
    /// use axum::extract::Request;
    /// use axum::middleware::map_request;
    /// use tower_throttle::key::{KeyExtractor, PeerIp};
    /// use tower_throttle::middleware::{Shadow, ShadowDenied};
    /// use tower_throttle::stats::TopKeys;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let (peer, shadow, top) = (PeerIp::new(), Shadow::on(), TopKeys::new());
    /// let record = move |request: Request| {
    ///     if request.extensions().get::<ShadowDenied>().is_some()
    ///         && let Ok(Some(key)) = peer.extract(&request)
    ///     {
    ///         top.record(&key);
    ///     }
    ///     std::future::ready(request)
    /// };
    /// // The last layer is the outermost one.
    /// let app: axum::Router = axum::Router::new()
    ///     .layer(map_request(record))
    ///     .layer(RateLimitLayer::per_ip(Quota::per_minute(100)).shadow(&shadow));
    /// ```
    pub fn watch<Req, K>(&self, key: &K) -> impl Fn(&Rejection<'_>, &Req) + use<Req, K>
    where
        K: KeyExtractor<Req> + Clone,
    {
        self.watch_if(key, |_| true, Self::record)
    }

    /// Returns a function as [`watch`](Self::watch) does, but the label of a key is the text that a
    /// [`KeyText`](crate::limiter::KeyText) writes for it, as it stands in the names of keys in Redis: an address as
    /// `ip~203.0.113.7`, the value of a header as `header~4711`, that of the second extractor of
    /// [`first_of`](crate::key::first_of()) with a `2~` before it.
    ///
    /// The list then shows the values of the keys, even if they are API keys or session ids: the hash of a token or a
    /// session only with [`keyed_by`](crate::key::Bearer::keyed_by), and the value of a [`Header`](crate::key::Header)
    /// or a [`Query`](crate::key::Query) as the caller sent it. It also keeps them, in each slice of a
    /// [window](Self::window), but at most 256 bytes of each.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::{Extension, PeerIp, first_of};
    /// use tower_throttle::stats::TopKeys;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct User(u64);
    ///
    /// let by_user = first_of((Extension::<User, _>::new(|user| user.0), PeerIp::new()));
    /// let last_hour = TopKeys::new().window(Duration::from_secs(3_600));
    /// let layer = RateLimitLayer::new(by_user.clone(), TokenBucket::new(Quota::per_minute(100)))
    ///     .on_reject(last_hour.watch_text(&by_user));
    /// // "1~#42" is the user with the id 42, "2~ip~203.0.113.7" an address
    /// let ten = last_hour.top(10);
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    pub fn watch_text<Req, K>(&self, key: &K) -> impl Fn(&Rejection<'_>, &Req) + use<Req, K>
    where
        K: KeyExtractor<Req, Key: SharedKey> + Clone,
    {
        self.watch_if(key, |_| true, |top, key| top.record_as(key, || text_of(key)))
    }

    /// Returns a function as [`watch`](Self::watch) does, which records only what the policy with the name `policy` has
    /// denied. It is for [joined](crate::RateLimitLayer::and) layers, whose policies have a key each.
    ///
    /// The name is that of [`PolicyStats`](crate::stats::PolicyStats). Of an algorithm with several limits, all limits
    /// count.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::{Global, PeerIp};
    /// use tower_throttle::stats::TopKeys;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let top = TopKeys::new();
    /// let all = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_second(1_000)));
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100))
    ///     .name("address")
    ///     .and(all.name("all"))
    ///     .on_reject(top.watch_policy("address", &PeerIp::new()));
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    pub fn watch_policy<Req, K>(&self, policy: &str, key: &K) -> impl Fn(&Rejection<'_>, &Req) + use<Req, K>
    where
        K: KeyExtractor<Req> + Clone,
    {
        let policy = policy.to_owned();
        self.watch_if(key, move |report| report.info.name() == policy, Self::record)
    }

    fn watch_if<Req, K, F>(
        &self,
        key: &K,
        is_watched: F,
        record: fn(&Self, &K::Key),
    ) -> impl Fn(&Rejection<'_>, &Req) + use<Req, K, F>
    where
        K: KeyExtractor<Req> + Clone,
        F: Fn(&PolicyReport<'_>) -> bool,
    {
        let (top, key) = (self.clone(), key.clone());
        move |rejection, request| {
            if rejection.policies().iter().any(|report| report.is_limited() && is_watched(report))
                && let Ok(Some(key)) = key.extract(request)
            {
                record(&top, &key);
            }
        }
    }
}

impl PolicyReport<'_> {
    /// Returns whether the limit denied the call, and not a limiter that is closed or has no room for another key.
    fn is_limited(&self) -> bool {
        let decision = self.decision();
        !decision.is_allowed() && !decision.is_unavailable()
    }
}
