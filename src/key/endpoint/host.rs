use std::sync::Arc;

use http::Request;
use http::header::HOST;
use http::uri::Authority;

use super::known::Known;
use crate::key::credential::only_line;
use crate::key::{KeyError, KeyExtractor};

/// The host that is asked: those that are known by name, and all others together.
///
/// Callers can invent hosts, so a name that is not in the list gets no budget of its own. Read from the request's
/// target (HTTP/2's `:authority`), else from the `Host` header; in any case, without its port and a dot at its end.
/// Two `Host` lines are an error.
///
/// ```
/// use tower_throttle::key::{Host, PeerIp};
///
/// let by_peer_and_site = (PeerIp::new(), Host::known(["www.example.com", "api.example.com"]));
/// ```
#[derive(Clone, Debug)]
pub struct Host {
    known: Known,
}

impl Host {
    /// These hosts, without ports.
    #[must_use]
    pub fn known<I>(hosts: I) -> Self
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        Self { known: Known::new(hosts.into_iter().map(|host| canonical(host.as_ref()))) }
    }
}

fn canonical(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

impl<B> KeyExtractor<Request<B>> for Host {
    type Key = Option<Arc<str>>;

    fn extract(&self, request: &Request<B>) -> Result<Option<Self::Key>, KeyError> {
        let line = only_line(&HOST, request.headers())?;
        let from_line = || line.and_then(|value| Authority::try_from(value.as_bytes()).ok());
        let host = match request.uri().authority() {
            Some(authority) => Some(canonical(authority.host())),
            None => from_line().map(|authority| canonical(authority.host())),
        };
        Ok(Some(host.and_then(|host| self.known.name(&host))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ones_are_told_apart_and_others_are_one() {
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
            ("http://a.example:80/", &[b"other.example"]),
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
            ("http://b.example/", &[b"a.example"]),
        ] {
            assert_eq!(key(target, lines), Ok(None), "{target} {lines:?}");
        }
        assert!(key("/", &[b"a.example", b"a.example"]).is_err());
    }
}
