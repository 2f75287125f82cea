use std::sync::Arc;

use http::Request;
use http::header::HOST;
use http::uri::Authority;

use super::known_names::KnownNames;
use crate::key::error::HeaderProblem;
use crate::key::single_header::single_value;
use crate::key::{KeyError, KeyExtractor};

/// The host of the request: one key for each known host, and one for all others.
///
/// Callers can invent hosts, so a name that is not in the list has no budget of its own. The host is read from the
/// request's target (HTTP/2's `:authority`) or, if the target has none, from the `Host` header. Case, port and a
/// trailing dot are ignored. It is an error of the client (400) if there are several `Host` headers, or if the `Host`
/// header names another host than the target. A `Host` header whose value is not a valid host is ignored.
/// `X-Forwarded-Host` is not read. If the inner service uses that header, take the host from an
/// [`Extension`](crate::key::Extension).
///
/// ```
/// use tower_throttle::key::{Host, PeerIp};
///
/// let by_peer_and_site = (PeerIp::new(), Host::known(["www.example.com", "api.example.com"]));
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
        let header = header.and_then(|value| Authority::try_from(value.as_bytes()).ok());
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
