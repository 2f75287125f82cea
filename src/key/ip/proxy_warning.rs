//! The warning about peers that are probably proxies whose header is not read.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName, header};

use super::peer_source::Peer;
use crate::observe::Recurrence;

/// The header fields in which proxies report the client of a request.
static FORWARDING: [HeaderName; 6] = [
    HeaderName::from_static("x-forwarded-for"),
    header::FORWARDED,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("fly-client-ip"),
];

/// A warning about peers that are probably proxies. If a peer is a proxy, a limit by the peer's address gives all
/// clients of that proxy one budget or, if the address is in an `allow` list, none of them has a limit.
///
/// An extractor and its clones share the warning, so that they log it at most once a minute together: a handler of axum
/// is cloned for each request, with the extractor in it.
#[derive(Debug, Default)]
pub(super) struct ProxyWarning(OnceLock<Arc<Recurrence>>);

impl ProxyWarning {
    pub(super) const fn new() -> Self {
        Self(OnceLock::new())
    }

    fn recurrence(&self) -> &Arc<Recurrence> {
        self.0.get_or_init(Arc::default)
    }

    /// Logs the warning of `PeerIp` if the peer is on this machine or in a private network, and the request has a
    /// header field of a proxy. `is_limited` is `false` if an `allow` list exempts the peer.
    ///
    /// If the peer is on the internet, the check costs a few comparisons and reads no header fields.
    #[inline]
    pub(super) fn warn_if_forwarded(&self, peer: Peer, is_limited: bool, headers: &HeaderMap) {
        if Self::may_be_proxy(peer) {
            self.warn_of_peer(is_limited, headers);
        }
    }

    fn warn_of_peer(&self, is_limited: bool, headers: &HeaderMap) {
        let advice = "`PeerIp` takes a proxy for the client; take `ClientIp`";
        self.warn_if_any(is_limited, headers, advice);
    }

    fn warn_if_any(&self, is_limited: bool, headers: &HeaderMap, advice: &'static str) {
        if FORWARDING.iter().any(|name| headers.contains_key(name)) {
            self.recurrence().proxy_as_client(is_limited, advice);
        }
    }

    /// Logs the warning of `ClientIp`, which does not read the header `name` of this peer, if the peer is on this
    /// machine or in a private network, and the request has that header. `is_limited` is `false` if an `allow` list
    /// exempts the peer.
    #[inline]
    pub(super) fn warn_if_unread(
        &self,
        peer: Peer,
        is_limited: bool,
        name: &HeaderName,
        headers: &HeaderMap,
    ) {
        if Self::may_be_proxy(peer) && headers.contains_key(name) {
            self.recurrence().proxy_as_client(
                is_limited,
                "`ClientIp` takes a proxy for the client if its network is neither in `only_from` nor in \
                 `TrustedProxies`; add it, if the proxy overwrites or appends to the header",
            );
        }
    }

    /// Logs the warning of `ClientIp` about a trusted peer without the header that is read, if the peer is on this
    /// machine or in a private network, and the request has another header field of a proxy. `is_limited` is `false` if
    /// an `allow` list exempts the peer.
    #[inline]
    pub(super) fn warn_if_other(&self, peer: Peer, is_limited: bool, headers: &HeaderMap) {
        if Self::may_be_proxy(peer) {
            let advice = "a trusted proxy sends another header, and not the one that `ClientIp` reads; let the proxy \
                          write the latter, or take the `ClientIp` for the former, if the proxy overwrites or appends \
                          to it";
            self.warn_if_any(is_limited, headers, advice);
        }
    }

    #[inline]
    fn may_be_proxy(peer: Peer) -> bool {
        cfg!(feature = "tracing") && matches!(peer, Peer::Ip(address) if is_internal(address))
    }
}

impl Clone for ProxyWarning {
    fn clone(&self) -> Self {
        Self(OnceLock::from(Arc::clone(self.recurrence())))
    }
}

/// Returns whether a canonical address is loopback, private or link-local.
fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}
