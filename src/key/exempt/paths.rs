use std::sync::Arc;

use http::Request;

use super::predicate::RequestPredicate;

/// A predicate for requests of some paths, such as health checks and metrics.
///
/// The path is compared byte by byte, as the client sent it: nothing is decoded, and no slash is added or removed.
/// Anyone can request these paths, so their handlers should be cheap.
///
/// In axum (feature `axum`), the predicate reads the path that the client sent from axum's `OriginalUri`. So inside
/// `Router::nest("/api", ..)`, write each path with the prefix: `/api/login`. In two cases, the predicate compares a
/// path that the client did not send: if the path is rewritten before the outermost router is called, or if a router
/// other than axum's strips a prefix.
#[derive(Clone, Debug)]
pub struct Paths {
    paths: Arc<[Box<str>]>,
}

impl Paths {
    /// Creates a predicate for these paths, each with its leading slash.
    ///
    /// # Panics
    ///
    /// Panics if a path does not begin with a slash. Only unusual requests, such as `OPTIONS *`, have such a path.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::key::Paths;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).unless(Paths::new(["/health", "/metrics"]));
    /// ```
    #[must_use]
    #[track_caller]
    pub fn new<I>(paths: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let path = |path: I::Item| {
            let path = path.as_ref();
            assert!(path.starts_with('/'), "the path {path:?} must begin with a slash");
            path.into()
        };
        Self { paths: paths.into_iter().map(path).collect() }
    }
}

impl<B> RequestPredicate<Request<B>> for Paths {
    fn matches(&self, request: &Request<B>) -> bool {
        let sent = sent_path(request);
        self.paths.iter().any(|path| **path == *sent)
    }
}

/// Returns the path that the client sent, including the prefixes that routers have stripped.
fn sent_path<B>(request: &Request<B>) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = request.extensions().get::<axum::extract::OriginalUri>() {
        return original.0.path();
    }
    request.uri().path()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_compared_exactly() {
        let paths = Paths::new(["/health", "/ready"]);
        let matches = |uri: &str| paths.matches(&Request::builder().uri(uri).body(()).unwrap());
        for uri in ["/health", "/ready?verbose", "http://host/health"] {
            assert!(matches(uri), "{uri}");
        }
        for uri in ["/health/", "//health", "/Health", "/%68ealth", "/healthy", "/", "/x/health", "/health;x"]
        {
            assert!(!matches(uri), "{uri}");
        }
    }

    #[test]
    #[should_panic(expected = "must begin with a slash")]
    fn an_impossible_path_panics() {
        let _ = Paths::new(["health"]);
    }
}
