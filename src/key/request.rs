//! Keys from the target of a request: the method, the host, the gRPC service. The module `route` has the route.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use http::Request;
use http::header::HOST;
use http::uri::Authority;

use super::error::HeaderProblem;
use super::header::{single_value, trimmed};
use super::{KeyError, KeyExtractor};
use crate::limiter::{KeyWriter, SharedKey};

/// The HTTP method: one key per method, or one per class of methods.
///
/// `HEAD` has the key of `GET`, because in axum the handlers of `GET` also answer `HEAD`. With [`new`](Method::new),
/// `GET`, `QUERY`, `POST`, `PUT`, `PATCH`, `DELETE`, `OPTIONS`, `CONNECT` and `TRACE` have a key each. All other
/// methods share one key, because callers can invent methods. A layer that takes the method from a header
/// (`X-HTTP-Method-Override`) belongs outside the rate-limit layer.
///
/// ```
/// use tower_throttle::key::{self, PeerIp};
///
/// // reading and writing have a budget each
/// let by_peer_and_class = (PeerIp::new(), key::Method::by_safety());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Method {
    classes: bool,
}

/// A method, or a class of methods.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MethodKey {
    /// One of the methods that have keys of their own.
    Known(http::Method),
    /// Any other method.
    Unknown,
    /// A method that only reads: `GET`, `HEAD`, `OPTIONS`, `TRACE` (RFC 9110, section 9.2.1) or `QUERY`.
    Safe,
    /// Any method that is not [safe](MethodKey::Safe).
    Unsafe,
}

impl Method {
    /// Creates an extractor with one key per method. Uncommon methods share a key.
    #[must_use]
    pub const fn new() -> Self {
        Self { classes: false }
    }

    /// Creates an extractor with two keys: one for the methods that only read, which are `GET`, `HEAD`, `OPTIONS`,
    /// `TRACE` and `QUERY`, and one for all others.
    #[must_use]
    pub const fn by_safety() -> Self {
        Self { classes: true }
    }
}

impl Method {
    /// Returns the key of requests with `method`, to peek at, refund or reset their usage.
    #[must_use]
    pub fn key(&self, method: &http::Method) -> MethodKey {
        // By text, because only some versions of the crate `http` know `QUERY`, and its `is_safe` depends on that: two
        // builds must not give a request two keys.
        match method.as_str() {
            "GET" | "HEAD" | "OPTIONS" | "TRACE" | "QUERY" if self.classes => MethodKey::Safe,
            _ if self.classes => MethodKey::Unsafe,
            "HEAD" => MethodKey::Known(http::Method::GET),
            "GET" | "QUERY" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" | "CONNECT" | "TRACE" => {
                MethodKey::Known(method.clone())
            }
            _ => MethodKey::Unknown,
        }
    }
}

impl SharedKey for MethodKey {
    fn write_to(&self, text: &mut KeyWriter) {
        match self {
            Self::Known(method) => text.variant("method", method),
            Self::Unknown => text.variant("method", &()),
            Self::Safe => text.variant("safe", &()),
            Self::Unsafe => text.variant("unsafe", &()),
        };
    }
}

/// The same text as that of the method's name. The impl is here because the limiter knows nothing of HTTP.
impl SharedKey for http::Method {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self.as_str());
    }
}

impl Default for Method {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> KeyExtractor<Request<B>> for Method {
    type Key = MethodKey;

    fn extract(&self, request: &Request<B>) -> Result<Option<MethodKey>, KeyError> {
        Ok(Some(self.key(request.method())))
    }
}

/// The host of the request: one key for each known host, and one for all others.
///
/// Callers can invent hosts, so a name that is not in the list has no budget of its own. The host is read from the
/// request's target (HTTP/2's `:authority`) or, if the target has none, from the `Host` header. Case, port, white space
/// around the host and a trailing dot are ignored. It is an error of the client (400) if there are several `Host`
/// headers, or if the `Host` header names another host than the target. A `Host` header whose value is not a valid host
/// is ignored. `X-Forwarded-Host` is not read. If the inner service uses that header, take the host from an
/// [`Extension`](crate::key::Extension).
///
/// ```
/// use tower_throttle::key::{self, PeerIp};
///
/// let by_peer_and_site =
///     (PeerIp::new(), key::Host::known(["www.example.com", "api.example.com"]));
/// ```
#[derive(Clone, Debug)]
pub struct Host {
    known: KnownNames,
}

impl Host {
    /// Creates an extractor that knows these hosts. Write them without ports.
    ///
    /// # Panics
    ///
    /// Panics if a name is not a host, or has a port, because no request would ever match such a name.
    #[must_use]
    #[track_caller]
    pub fn known<I>(hosts: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let host = |host: I::Item| {
            let host = host.as_ref();
            let is_host = host.parse::<Authority>().is_ok_and(|authority| authority.host() == host);
            assert!(is_host, "{host:?} is no host: give one such as `www.example.com`, without a port");
            canonical(host)
        };
        Self { known: KnownNames::new(hosts.into_iter().map(host)) }
    }
}

impl Host {
    /// Returns the key of requests for `host`, to peek at, refund or reset their usage. Write the host without a port.
    /// All unknown hosts share the key `None`.
    #[must_use]
    pub fn key(&self, host: &str) -> Option<Arc<str>> {
        self.known.name(&canonical(host))
    }
}

fn canonical(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

impl<B> KeyExtractor<Request<B>> for Host {
    type Key = Option<Arc<str>>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Self::Key>, KeyError> {
        let header = single_value(&HOST, request.headers())?;
        let header = header.and_then(|value| Authority::try_from(trimmed(value.as_bytes())).ok());
        let header = header.map(|authority| canonical(authority.host()));
        let target = request.uri().authority().map(|authority| canonical(authority.host()));
        let host = match (target, header) {
            (Some(target), Some(header)) if target != header => {
                return Err(KeyError::header(HeaderProblem::OtherHost, &HOST));
            }
            (target, header) => target.or(header),
        };
        Ok(Some(host.and_then(|host| self.known.name(&host))))
    }
}

/// The gRPC service that is called: one key for each known service, and one for all others.
///
/// Callers can invent services, so a name that is not in the list has no budget of its own. The service is read from
/// the path that the layer receives. Inside axum's `nest`, this path lacks the prefix. The name of a generated service
/// is `GreeterServer::<Greeter>::NAME`, from tonic's trait `NamedService`.
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

/// The names that each have a budget of their own. All other names share one budget, because callers can invent names.
#[derive(Clone)]
struct KnownNames {
    names: Arc<HashSet<Arc<str>>>,
}

impl KnownNames {
    fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self { names: Arc::new(names.into_iter().map(Arc::from).collect()) }
    }

    /// Returns the name, or `None` if the name is not known.
    fn name(&self, name: &str) -> Option<Arc<str>> {
        self.names.get(name).cloned()
    }
}

impl fmt::Debug for KnownNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_counts_as_get_and_unknown_methods_share_one_class() {
        let key = |extractor: Method, method: &str| {
            extractor.extract(&Request::builder().method(method).body(()).unwrap()).unwrap().unwrap()
        };
        let (each, classes) = (Method::new(), Method::by_safety());
        assert_eq!(key(each, "HEAD"), key(each, "GET"));
        assert_ne!(key(each, "POST"), key(each, "GET"));
        assert_ne!(key(each, "QUERY"), key(each, "GET"), "it has a body");
        assert_ne!(key(each, "QUERY"), key(each, "FOO"));
        assert_eq!(key(each, "FOO"), key(each, "BAR"));
        assert_eq!(key(each, "get"), MethodKey::Unknown, "methods differ by case");
        for (method, class) in [
            ("GET", MethodKey::Safe),
            ("HEAD", MethodKey::Safe),
            ("OPTIONS", MethodKey::Safe),
            ("TRACE", MethodKey::Safe),
            ("QUERY", MethodKey::Safe),
            ("CONNECT", MethodKey::Unsafe),
            ("POST", MethodKey::Unsafe),
            ("DELETE", MethodKey::Unsafe),
            ("FOO", MethodKey::Unsafe),
        ] {
            assert_eq!(key(classes, method), class, "{method}");
        }
    }

    #[test]
    fn known_hosts_have_a_key_each_and_others_share_one() {
        let host = Host::known(["A.example", "[::1]"]);
        let key = |target: &str, lines: &[&[u8]]| {
            let mut request = Request::builder().uri(target).body(()).unwrap();
            for line in lines {
                request.headers_mut().append(HOST, http::HeaderValue::from_bytes(line).unwrap());
            }
            host.extract(&request).map(Option::unwrap)
        };
        for (target, lines) in [
            ("/", &[&b"a.example"[..]][..]),
            ("/", &[b"a.EXAMPLE:8080"]),
            ("/", &[b"a.example."]),
            // HTTP/2 passes on white space that is no part of the value (RFC 9110, section 5.5).
            ("/", &[b"\ta.example "]),
            ("/", &[b"a.example:"]),
            ("/", &[b"x@a.example"]),
            ("http://a.example/", &[]),
            ("http://a.example:80/", &[b"A.example:8080"]),
        ] {
            assert_eq!(key(target, lines).unwrap().as_deref(), Some("a.example"), "{target} {lines:?}");
        }
        assert_eq!(key("/", &[b"[::1]:80"]).unwrap().as_deref(), Some("[::1]"));
        for (target, lines) in [
            ("/", &[][..]),
            ("/", &[&b""[..]]),
            ("/", &[b"b.example"]),
            ("/", &[b"a.example, b"]),
            ("/", &[b"a.example\xff"]),
            ("http://b.example/", &[]),
        ] {
            assert_eq!(key(target, lines), Ok(None), "{target} {lines:?}");
        }
        assert!(key("/", &[b"a.example", b"a.example"]).is_err());
        assert!(key("http://b.example/", &[b"a.example"]).is_err());
        assert!(key("http://a.example/", &[b"b.example"]).is_err());
    }

    #[test]
    #[should_panic(expected = "without a port")]
    fn an_impossible_host_name_panics() {
        let _ = Host::known(["a.example:8080"]);
    }

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
