use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Request;

use super::{KeyError, KeyExtractor, peer};

/// The address of the TCP peer, grouped by prefix.
///
/// Read from axum's `ConnectInfo<SocketAddr>` (feature `axum`), tonic's `TcpConnectInfo` (feature `tonic`), or a bare
/// `SocketAddr` in the request's extensions. No header is read, so it cannot be forged.
///
/// IPv4 addresses mapped into IPv6 (`::ffff:1.2.3.4`, as dual-stack listeners report them) are IPv4 addresses. A
/// subscriber has at least a /64 of IPv6, so that is one key by default; of IPv4, each address is.
///
/// # Deployment caveat
///
/// Behind a reverse proxy the peer is the proxy, and all clients share one key.
///
/// # Errors
///
/// [`resolve`](PeerIp::resolve) and the extraction, if the extensions hold no peer address. With axum, serve the app
/// with `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// ```
/// use tower_throttle::key::PeerIp;
///
/// let by_site = PeerIp::new().ipv6_prefix(48).ipv4_prefix(24);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    prefixes: Prefixes,
}

impl PeerIp {
    /// IPv6 by /64, IPv4 by the address.
    #[must_use]
    pub const fn new() -> Self {
        Self { prefixes: Prefixes { v4: 32, v6: 64 } }
    }

    /// Groups IPv6 addresses by their first `bits`.
    ///
    /// # Panics
    ///
    /// Above 128.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(bits <= 128, "an IPv6 prefix has at most 128 bits");
        self.prefixes.v6 = bits;
        self
    }

    /// Groups IPv4 addresses by their first `bits`.
    ///
    /// # Panics
    ///
    /// Above 32.
    #[must_use]
    pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
        assert!(bits <= 32, "an IPv4 prefix has at most 32 bits");
        self.prefixes.v4 = bits;
        self
    }

    /// The peer's address, before grouping.
    ///
    /// # Errors
    ///
    /// If the extensions hold none.
    pub fn resolve<B>(&self, request: &Request<B>) -> Result<IpAddr, KeyError> {
        peer::address(request.extensions()).map(|address| address.ip().to_canonical())
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> KeyExtractor<Request<B>> for PeerIp {
    type Key = IpAddr;

    fn extract(&self, request: &Request<B>) -> Result<Option<IpAddr>, KeyError> {
        self.resolve(request).map(|address| Some(self.prefixes.group(address)))
    }
}

/// How many leading bits tell callers apart.
#[derive(Clone, Copy, Debug)]
struct Prefixes {
    v4: u8,
    v6: u8,
}

impl Prefixes {
    /// The network of a canonical address.
    fn group(self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.v4)).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.v6)).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn key(extractor: PeerIp, address: &str) -> String {
        let mut request = Request::new(());
        request.extensions_mut().insert(SocketAddr::new(address.parse().unwrap(), 4711));
        extractor.extract(&request).unwrap().unwrap().to_string()
    }

    #[test]
    fn addresses_are_canonical_and_grouped() {
        let default = PeerIp::new();
        for (address, group) in [
            ("1.2.3.4", "1.2.3.4"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("::ffff:5.6.7.8", "5.6.7.8"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("::1", "::"),
        ] {
            assert_eq!(key(default, address), group, "{address}");
        }
        for (bits, group) in
            [(0, "::"), (48, "2001:db8:1::"), (56, "2001:db8:1::"), (128, "2001:db8:1:2:3:4:5:6")]
        {
            assert_eq!(key(default.ipv6_prefix(bits), "2001:db8:1:2:3:4:5:6"), group);
        }
        for (bits, group) in [(0, "0.0.0.0"), (24, "1.2.3.0"), (32, "1.2.3.4")] {
            assert_eq!(key(default.ipv4_prefix(bits), "::ffff:1.2.3.4"), group);
        }
    }

    #[test]
    fn a_missing_peer_names_the_fix() {
        let error = PeerIp::new().resolve(&Request::new(())).unwrap_err().to_string();
        assert!(error.contains("into_make_service_with_connect_info::<SocketAddr>()"), "{error}");
    }

    #[test]
    #[should_panic(expected = "at most 32 bits")]
    fn a_prefix_that_is_too_long_panics() {
        let _ = PeerIp::new().ipv4_prefix(33);
    }
}
