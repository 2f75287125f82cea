use std::sync::Arc;

use http::Request;

use super::predicate::RequestPredicate;

/// Requests for one of these paths: health checks, metrics.
///
/// A path must be the same, letter by letter, as it was sent: nothing is decoded, and no slash is added or taken away.
/// Anybody can ask for them: what answers should be cheap.
///
/// In axum (feature `axum`), `/login` stands for that path and no other wherever the layer is, inside of
/// `Router::nest("/api", ..)` as well: axum keeps the path as it was sent in its `OriginalUri`. There are two exceptions: of
/// a path that is changed before the outermost router is called, and of one that another router takes a prefix off, what
/// is left is compared.
#[derive(Clone, Debug)]
pub struct Paths {
    paths: Arc<[Box<str>]>,
}

impl Paths {
    /// These paths, each with the slash that it begins with.
    ///
    /// # Panics
    ///
    /// If one does not begin with a slash: no request would ever ask for it.
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

/// The path as it was sent, before routers took prefixes off it.
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
    fn a_path_must_be_the_same() {
        let paths = Paths::new(["/health", "/ready"]);
        let holds = |uri: &str| paths.matches(&Request::builder().uri(uri).body(()).unwrap());
        for uri in ["/health", "/ready?verbose", "http://host/health"] {
            assert!(holds(uri), "{uri}");
        }
        for uri in ["/health/", "//health", "/Health", "/%68ealth", "/healthy", "/", "/x/health", "/health;x"]
        {
            assert!(!holds(uri), "{uri}");
        }
    }

    #[test]
    #[should_panic(expected = "must begin with a slash")]
    fn an_impossible_path_panics() {
        let _ = Paths::new(["health"]);
    }
}
