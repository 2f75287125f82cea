//! The warning about peers that are probably proxies whose header is not read.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderName, header};

use super::peer_source::Peer;

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
/// clients of that proxy one budget.
///
/// The warning is logged once. A layer has one extractor for all its services, so each layer logs the warning at most
/// once.
#[derive(Debug, Default)]
pub(super) struct ProxyWarning {
    is_logged: AtomicBool,
}

impl ProxyWarning {
    pub(super) const fn new() -> Self {
        Self { is_logged: AtomicBool::new(false) }
    }

    /// Logs the warning of `PeerIp` if the peer is on this machine or in a private network, and the request has a
    /// header field of a proxy.
    ///
    /// If the peer is on the internet, the check costs a few comparisons and reads no header fields.
    #[inline]
    pub(super) fn warn_if_forwarded(&self, peer: Peer, headers: &HeaderMap) {
        if self.is_due(peer) {
            self.warn_of_peer(headers);
        }
    }

    fn warn_of_peer(&self, headers: &HeaderMap) {
        if FORWARDING.iter().any(|name| headers.contains_key(name)) {
            self.warn_once("`PeerIp` counts all of its clients as one; take `ClientIp`");
        }
    }

    /// Logs the warning of `ClientIp`, which does not read the header `name` of this peer, if the peer is on this
    /// machine or in a private network, and the request has that header.
    #[inline]
    pub(super) fn warn_if_unread(&self, peer: Peer, name: &HeaderName, headers: &HeaderMap) {
        if self.is_due(peer) && headers.contains_key(name) {
            self.warn_once(
                "`ClientIp` counts all of its clients as one, since its network is neither in `only_from` nor in \
                 `TrustedProxies`; add it, if the proxy overwrites or appends to the header",
            );
        }
    }

    #[inline]
    fn is_due(&self, peer: Peer) -> bool {
        cfg!(feature = "tracing")
            && matches!(peer, Peer::Ip(address) if is_internal(address))
            && !self.is_logged.load(Ordering::Relaxed)
    }

    #[cold]
    fn warn_once(&self, advice: &str) {
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            warn(advice);
        }
    }
}

impl Clone for ProxyWarning {
    fn clone(&self) -> Self {
        Self { is_logged: AtomicBool::new(self.is_logged.load(Ordering::Relaxed)) }
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

#[cold]
fn warn(_advice: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        "tower-throttle: the peer is on this machine or in a private network, and its request has been forwarded: if it \
         is a proxy, {_advice} (said once)"
    );
}
