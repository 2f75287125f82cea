use std::sync::Arc;

use http::Request;

use super::known_names::KnownNames;
use crate::key::{KeyError, KeyExtractor};

/// The gRPC service that is called: one key for each known service, and one for all others.
///
/// Callers can invent services, so a name that is not in the list has no budget of its own. The service is read from
/// the path that the layer receives, which lacks the prefix inside axum's `nest`. The name of a generated service is
/// `GreeterServer::<Greeter>::NAME`, from tonic's trait `NamedService`.
///
/// ```
/// use tower_throttle::key::{GrpcService, PeerIp};
///
/// let by_peer_and_service = (PeerIp::new(), GrpcService::known(["helloworld.Greeter"]));
/// ```
#[derive(Clone, Debug)]
pub struct GrpcService {
    known: KnownNames,
}

impl GrpcService {
    /// Creates an extractor that knows these services. Write each of them as `package.Service`.
    ///
    /// # Panics
    ///
    /// Panics if a name is empty or contains a slash, because no call has such a service.
    #[must_use]
    #[track_caller]
    pub fn known<I>(services: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let service = |name: I::Item| {
            let name = name.as_ref();
            assert!(
                !name.is_empty() && !name.contains('/'),
                "{name:?} is no service: give `package.Service`"
            );
            name.to_owned()
        };
        Self { known: KnownNames::new(services.into_iter().map(service)) }
    }

    /// Returns the key of calls to `service`, to peek at, refund or reset their usage. All unknown services share the
    /// key `None`.
    #[must_use]
    pub fn key(&self, service: &str) -> Option<Arc<str>> {
        self.known.name(service)
    }
}

impl<B> KeyExtractor<Request<B>> for GrpcService {
    type Key = Option<Arc<str>>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Self::Key>, KeyError> {
        let service = path(request).and_then(|path| path.split_once('/')).map(|(service, _)| service);
        Ok(Some(service.and_then(|service| self.known.name(service))))
    }
}

/// The gRPC method that is called: one key for each known method, and one for all others. The path is read in the same
/// way as by [`GrpcService`].
///
/// ```
/// use tower_throttle::key::{GrpcMethod, PeerIp};
///
/// let logins = (PeerIp::new(), GrpcMethod::known(["/accounts.Accounts/Login"]));
/// ```
#[derive(Clone, Debug)]
pub struct GrpcMethod {
    known: KnownNames,
}

impl GrpcMethod {
    /// Creates an extractor that knows these methods. Write each of them as `/package.Service/Method`.
    ///
    /// # Panics
    ///
    /// Panics if a name has any other form, because no call has such a method.
    #[must_use]
    #[track_caller]
    pub fn known<I>(methods: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let method = |name: I::Item| {
            let name = name.as_ref();
            let parts = name.strip_prefix('/').and_then(|path| path.split_once('/'));
            let is_method = parts.is_some_and(|(service, method)| {
                !service.is_empty() && !method.is_empty() && !method.contains('/')
            });
            assert!(is_method, "{name:?} is no method: give `/package.Service/Method`");
            name[1..].to_owned()
        };
        Self { known: KnownNames::new(methods.into_iter().map(method)) }
    }

    /// Returns the key of calls to `method`, such as `/package.Service/Method`, to peek at, refund or reset their
    /// usage. All unknown methods share the key `None`.
    #[must_use]
    pub fn key(&self, method: &str) -> Option<Arc<str>> {
        method.strip_prefix('/').and_then(|method| self.known.name(method))
    }
}

impl<B> KeyExtractor<Request<B>> for GrpcMethod {
    type Key = Option<Arc<str>>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Self::Key>, KeyError> {
        Ok(Some(path(request).and_then(|path| self.known.name(path))))
    }
}

fn path<B>(request: &Request<B>) -> Option<&str> {
    request.uri().path().strip_prefix('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str) -> Request<()> {
        Request::builder().uri(path).body(()).unwrap()
    }

    #[test]
    fn known_names_have_a_key_each_and_others_share_one() {
        let service = GrpcService::known(["a.A", "b.B"]);
        let key = |path: &str| service.extract(&request(path)).unwrap().unwrap();
        assert_eq!(key("/a.A/X").as_deref(), Some("a.A"));
        assert_eq!(key("http://host/b.B/Y").as_deref(), Some("b.B"));
        for path in ["/c.C/X", "/a.A", "/", "//a.A/X", "/A.a/X", "/a.A%2fX", "/a.AA/X"] {
            assert_eq!(key(path), None, "{path}");
        }
        let method = GrpcMethod::known(["/a.A/X", "/b.B/Y"]);
        let key = |path: &str| method.extract(&request(path)).unwrap().unwrap();
        assert_eq!(key("/a.A/X").as_deref(), Some("a.A/X"));
        assert_eq!(key("/b.B/Y?z").as_deref(), Some("b.B/Y"));
        for path in ["/a.A/Y", "/a.A/X/", "/a.A/x", "/"] {
            assert_eq!(key(path), None, "{path}");
        }
    }

    #[test]
    #[should_panic(expected = "is no service")]
    fn an_impossible_service_name_panics() {
        let _ = GrpcService::known(["/a.A"]);
    }

    #[test]
    #[should_panic(expected = "is no method")]
    fn an_impossible_method_name_panics() {
        let _ = GrpcMethod::known(["a.A/X"]);
    }
}
