use std::hash::{Hash, Hasher};
use std::sync::Arc;

use axum::extract::MatchedPath;
use http::Request;

use crate::key::{KeyError, KeyExtractor};
use crate::limiter::{KeyWriter, SharedKey};

/// The route that axum matched, as it is written in the router: `/users/{id}`.
///
/// The requested path is never the key, because callers can write a path in any number of ways (`//login`, `/login/`,
/// `/%6cogin`). Requests that matched no route share one key. Such requests are those to fallbacks and to services in
/// `nest_service`. If the layer wraps a whole router, instead of being passed to `Router::layer`, no request has
/// matched a route when the layer receives it, so all requests share that key. If several routes have one handler, each
/// route has its own key.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::key::{PeerIp, Route};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// // a budget for each address and route
/// let layer = RateLimitLayer::new(
///     (PeerIp::new(), Route::new()),
///     TokenBucket::new(Quota::per_second(5)),
/// );
/// let app: Router =
///     Router::new().route("/users/{id}", get(|| async { "hello" })).layer(layer);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Route;

impl Route {
    /// Creates an extractor for the matched route.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }

    /// Returns the key of requests for `route`, to peek at, refund or reset their usage. Write the route as it is
    /// written in the router.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::{PeerIp, Route};
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let (by_peer, by_route) = (PeerIp::new(), Route::new());
    /// let key = (by_peer.clone(), by_route);
    /// let layer = RateLimitLayer::new(key, TokenBucket::new(Quota::per_second(5)));
    /// // the key of a tuple is the tuple of the keys
    /// layer.limiter().reset(&(by_peer.key([192, 0, 2, 1].into()), by_route.key("/users/{id}")));
    /// ```
    #[must_use]
    pub fn key(&self, route: &str) -> RouteKey {
        RouteKey(Matched::Written(route.into()))
    }
}

/// A route as it is written in the router, or the absence of a matching route.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct RouteKey(Matched);

#[derive(Clone, Debug)]
enum Matched {
    None,
    ByAxum(MatchedPath),
    Written(Arc<str>),
}

impl RouteKey {
    /// Returns the route, if one matched.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Matched::None => None,
            Matched::ByAxum(path) => Some(path.as_str()),
            Matched::Written(route) => Some(route),
        }
    }
}

impl PartialEq for RouteKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RouteKey {}

impl Hash for RouteKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl SharedKey for RouteKey {
    fn write_to(&self, text: &mut KeyWriter) {
        match self.as_str() {
            Some(route) => text.variant("route", route),
            None => text.variant("route", &()),
        };
    }
}

impl<B> KeyExtractor<Request<B>> for Route {
    type Key = RouteKey;

    fn extract(&self, request: &Request<B>) -> Result<Option<RouteKey>, KeyError> {
        let matched = request.extensions().get::<MatchedPath>().cloned();
        Ok(Some(RouteKey(matched.map_or(Matched::None, Matched::ByAxum))))
    }
}
