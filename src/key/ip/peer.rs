//! [`PeerIp`], which finds the address of the peer.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderMap, Request};

use super::networks::Networks;
use super::options::{IpOptions, ip_extractor};
use super::peer_source::{Peer, PeerSource};
use super::proxy_warning::ProxyWarning;
use crate::key::{KeyError, KeyExtractor};

/// The address of the TCP peer, grouped by prefix.
///
/// The address is read from the first of these extensions that the request has:
///
/// - axum's `ConnectInfo<SocketAddr>` or, in tests, `MockConnectInfo<SocketAddr>` (feature `axum`);
/// - tonic's `TcpConnectInfo`, which tonic also inserts for its own TLS, or `UdsConnectInfo`, whose peer has no address
///   (feature `tonic`);
/// - a `SocketAddr`;
/// - an `IpAddr`.
///
/// With [`peer_from`](PeerIp::peer_from), the address is read from another extension instead, for example from the
/// `TlsConnectInfo<TcpConnectInfo>` that tonic inserts if your code accepts the TLS connections and passes the streams
/// to tonic. The key is not read from a header. So callers cannot forge the key, unless an outer layer copies a value
/// that callers send into one of these extensions.
///
/// IPv4 addresses mapped into IPv6 (`::ffff:1.2.3.4`, as dual-stack listeners report them) are treated as IPv4
/// addresses. So are those of clients behind a NAT64 or a stateless translator with the well-known prefix
/// (`64:ff9b::1.2.3.4`, RFC 6052), if the IPv4 address is global: private addresses there are forbidden, and stay IPv6
/// addresses. [`nat64_prefix`](PeerIp::nat64_prefix) sets a prefix of your own. By default, each IPv4 address has its
/// own key, and all IPv6 addresses of a /64 share a key, because a subscriber has at least a /64.
///
/// # Deployment caveat
///
/// Behind a reverse proxy, the peer is the proxy, and all clients share one key or, if an [`allow`](PeerIp::allow) list
/// has the proxy's address, are not limited. Use [`ClientIp`](super::ClientIp) instead. See the guide, [behind a
/// proxy](crate::guide::proxy). The extraction logs a warning (feature `tracing`), at most once a minute for all clones
/// of an extractor, when a peer whose address is loopback, link-local or private sends one of these headers:
/// `X-Forwarded-For`, `Forwarded`, `X-Real-IP`, `CF-Connecting-IP`, `True-Client-IP`, `Fly-Client-IP`. A peer that a
/// [`deny`](PeerIp::deny) list has is no warning, and with [`peer_from`](PeerIp::peer_from), no warning is logged.
/// Create an extractor once, and not for each request.
///
/// # Errors
///
/// [`resolve`](PeerIp::resolve) and the extraction return an error if the request has none of the extensions. With
/// axum, serve the app with `into_make_service_with_connect_info::<SocketAddr>()`. Both also return an error if the
/// peer has no address, as over a unix socket. For the extraction, the entry `unix` in an [`allow`](PeerIp::allow) list
/// exempts such peers.
///
/// ```
/// use tower_throttle::key::PeerIp;
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let by_site = PeerIp::new().ipv6_prefix(48).ipv4_prefix(24);
///
/// // two prefixes at once are two layers: 10 a second for a subscriber, 100 for a whole site
/// # use tower_throttle::algorithm::TokenBucket;
/// let sites = RateLimitLayer::new(by_site, TokenBucket::new(Quota::per_second(100)));
/// let layer = RateLimitLayer::per_ip(Quota::per_second(10)).and(sites.name("site"));
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// ```
#[derive(Clone, Debug)]
pub struct PeerIp {
    peer_source: PeerSource,
    options: IpOptions,
    warning: ProxyWarning,
}

impl PeerIp {
    /// Creates an extractor that groups IPv6 addresses by /64, and gives each IPv4 address its own key.
    #[must_use]
    pub const fn new() -> Self {
        Self { peer_source: PeerSource::of_server(), options: IpOptions::new(), warning: ProxyWarning::new() }
    }

    /// Returns the key of callers from `address`, to peek at, refund or reset their usage.
    ///
    /// If this extractor is a part of an [`Or`](crate::key::Or), the layer has the key that
    /// [`first_key`](crate::key::Or::first_key) or [`second_key`](crate::key::Or::second_key) returns.
    ///
    /// ```
    /// use tower_throttle::algorithm::TokenBucket;
    /// use tower_throttle::key::PeerIp;
    /// use tower_throttle::{Quota, RateLimitLayer};
    ///
    /// let by_ip = PeerIp::new();
    /// let layer = RateLimitLayer::new(by_ip.clone(), TokenBucket::new(Quota::per_minute(100)));
    /// layer.limiter().reset(&by_ip.key([192, 0, 2, 1].into()));
    /// ```
    #[must_use]
    pub fn key(&self, address: IpAddr) -> IpAddr {
        self.options.network(self.options.canonical(address))
    }

    /// Returns the peer's address, without grouping it by prefix. Lists of [allowed](PeerIp::allow) or
    /// [denied](PeerIp::deny) networks do not affect the result. Logs nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the request has none of the [extensions](PeerIp) with a peer, or if the peer has no address,
    /// as over a unix socket.
    pub fn resolve<B>(&self, request: &Request<B>) -> Result<IpAddr, KeyError> {
        self.options.canonical_peer(self.peer_source.peer(request.extensions())?).address()
    }

    /// Returns the key of any request. `socket` is the address in axum's extensions.
    fn extract_from(
        &self,
        socket: Option<&SocketAddr>,
        extensions: &Extensions,
        headers: &HeaderMap,
    ) -> Result<Option<IpAddr>, KeyError> {
        let peer = self.options.canonical_peer(self.peer_source.peer_of(socket, extensions)?);
        let key = self.options.key_of_peer(peer)?;
        // With `peer_from`, no warning is logged, because an outer layer may have found the address of the client.
        if self.peer_source.is_server() {
            self.warning.warn_if_forwarded(peer, key.is_some(), headers);
        }
        Ok(key)
    }
}

impl<B> KeyExtractor<Request<B>> for PeerIp {
    type Key = IpAddr;

    // This function is inlined, so that the address of the usual request stays in registers.
    #[inline(always)]
    fn extract(&self, request: &Request<B>) -> Result<Option<IpAddr>, KeyError> {
        let socket = self.peer_source.socket(request.extensions());
        // Most requests come from an IPv4 address, and most extractors have no lists of networks. For such a request,
        // the result is that of `extract_from`.
        if let (Some(SocketAddr::V4(socket)), true) = (socket, self.options.has_no_lists()) {
            let address = IpAddr::V4(*socket.ip());
            self.warning.warn_if_forwarded(Peer::Ip(address), true, request.headers());
            return Ok(Some(self.options.network(address)));
        }
        self.extract_from(socket, request.extensions(), request.headers())
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

ip_extractor!(PeerIp);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the extractor returns for a request from `address`. Asserts that this does not depend on the
    /// extension that contains the address.
    fn extracted(extractor: &PeerIp, address: IpAddr) -> Result<Option<IpAddr>, KeyError> {
        let socket = SocketAddr::new(address, 4711);
        let [mut request, mut by_address] = [Request::new(()), Request::new(())];
        request.extensions_mut().insert(socket);
        by_address.extensions_mut().insert(address);
        let result = extractor.extract(&request);
        assert_eq!(extractor.extract(&by_address), result);
        #[cfg(feature = "axum")]
        {
            use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

            let [mut by_axum, mut mocked] = [Request::new(()), Request::new(())];
            by_axum.extensions_mut().insert(ConnectInfo(socket));
            mocked.extensions_mut().insert(MockConnectInfo(socket));
            assert_eq!(
                [&by_axum, &mocked].map(|request| extractor.extract(request)),
                [result.clone(), result.clone()]
            );
        }
        result
    }

    fn key(extractor: &PeerIp, address: &str) -> String {
        extracted(extractor, address.parse().unwrap()).unwrap().unwrap().to_string()
    }

    #[test]
    fn addresses_are_canonical_and_grouped() {
        let default = PeerIp::new();
        for (address, expected) in [
            ("1.2.3.4", "1.2.3.4"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("::ffff:5.6.7.8", "5.6.7.8"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("::1", "::"),
        ] {
            assert_eq!(key(&default, address), expected, "{address}");
        }
        for (bits, expected) in
            [(0, "::"), (48, "2001:db8:1::"), (56, "2001:db8:1::"), (128, "2001:db8:1:2:3:4:5:6")]
        {
            assert_eq!(key(&PeerIp::new().ipv6_prefix(bits), "2001:db8:1:2:3:4:5:6"), expected);
        }
        for (bits, expected) in [(0, "0.0.0.0"), (24, "1.2.3.0"), (32, "1.2.3.4")] {
            assert_eq!(key(&PeerIp::new().ipv4_prefix(bits), "::ffff:1.2.3.4"), expected);
        }
    }

    #[test]
    fn a_missing_peer_names_the_fix() {
        let error = PeerIp::new().resolve(&Request::new(())).unwrap_err().to_string();
        assert!(error.contains("into_make_service_with_connect_info::<SocketAddr>()"), "{error}");
    }

    #[test]
    fn a_peer_is_read_from_the_configured_extension() {
        #[derive(Clone)]
        struct Info(Option<IpAddr>);
        let extractor = PeerIp::new().peer_from(|info: &Info| info.0);
        let mut request = Request::new(());
        request.extensions_mut().insert(IpAddr::from([9, 9, 9, 9]));
        assert_eq!(PeerIp::new().resolve(&request), Ok([9, 9, 9, 9].into()));
        let error = extractor.resolve(&request).unwrap_err().to_string();
        assert!(error.contains("peer_from"), "{error}");
        request.extensions_mut().insert(Info(Some([1, 2, 3, 4].into())));
        assert_eq!(extractor.resolve(&request), Ok([1, 2, 3, 4].into()));
        request.extensions_mut().insert(Info(None));
        let error = extractor.resolve(&request).unwrap_err().to_string();
        assert!(error.contains("unix"), "{error}");
    }

    /// The extension that is found first has precedence.
    #[cfg(feature = "axum")]
    #[test]
    fn the_configured_extension_precedes_those_of_axum_and_those_precede_bare_addresses() {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

        #[derive(Clone)]
        struct Info(Option<IpAddr>);
        let socket = |last: u8| SocketAddr::from(([9, 9, 9, last], 4711));
        let key = |last: u8| Ok(Some(IpAddr::from([9, 9, 9, last])));
        let mut request = Request::new(());
        let extensions = request.extensions_mut();
        extensions.insert(Info(Some([9, 9, 9, 0].into())));
        extensions.insert(ConnectInfo(socket(1)));
        extensions.insert(MockConnectInfo(socket(2)));
        extensions.insert(socket(3));
        extensions.insert(socket(4).ip());
        let configured = PeerIp::new().peer_from(|info: &Info| info.0);
        assert_eq!(configured.extract(&request), key(0));
        assert_eq!(PeerIp::new().extract(&request), key(1));
        request.extensions_mut().insert(Info(None));
        assert!(configured.extract(&request).unwrap_err().to_string().contains("unix"));
        request.extensions_mut().remove::<Info>();
        assert!(configured.extract(&request).unwrap_err().to_string().contains("peer_from"));
        request.extensions_mut().remove::<ConnectInfo<SocketAddr>>();
        assert_eq!(PeerIp::new().extract(&request), key(2));
        request.extensions_mut().remove::<MockConnectInfo<SocketAddr>>();
        assert_eq!(PeerIp::new().extract(&request), key(3));
        request.extensions_mut().remove::<SocketAddr>();
        assert_eq!(PeerIp::new().extract(&request), key(4));
    }

    #[test]
    fn allowed_callers_are_not_limited_and_denied_ones_not_served() {
        let networks = |list: &[&str]| Networks::new(list).unwrap();
        let office = networks(&["10.0.0.0/8"]);
        let extractor = PeerIp::new().allow(office.clone()).deny(networks(&["10.6.0.0/16", "::/0"]));
        let of = |address: [u8; 4]| extracted(&extractor, address.into());
        assert_eq!(of([10, 1, 2, 3]), Ok(None));
        assert_eq!(of([1, 2, 3, 4]), Ok(Some([1, 2, 3, 4].into())));
        assert!(of([10, 6, 6, 6]).unwrap_err().is_forbidden());
        let sockets = |extractor: PeerIp| {
            let mut request = Request::new(());
            request.extensions_mut().insert(());
            extractor.peer_from(|(): &()| None).extract(&request)
        };
        assert_eq!(sockets(PeerIp::new().allow(networks(&["unix"]))), Ok(None));
        assert!(sockets(PeerIp::new().deny(networks(&["unix"]))).unwrap_err().is_forbidden());
        assert!(!sockets(PeerIp::new().deny(networks(&["::/0"]))).unwrap_err().is_forbidden());
        office.replace(networks(&["1.0.0.0/8"]));
        assert_eq!(of([1, 2, 3, 4]), Ok(None));
        assert_eq!(of([10, 1, 2, 3]), Ok(Some([10, 1, 2, 3].into())));
    }

    #[test]
    #[should_panic(expected = "at most 32 bits")]
    fn a_prefix_that_is_too_long_panics() {
        let _ = PeerIp::new().ipv4_prefix(33);
    }
}
