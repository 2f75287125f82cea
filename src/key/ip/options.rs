//! The options of address extractors: prefixes, and the networks that are allowed or denied.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::nat64;
use super::networks::Networks;
use super::peer_source::Peer;
use crate::error::ConfigError;
use crate::key::KeyError;

/// The prefixes by which addresses are grouped, as masks, and the networks that are allowed or denied.
#[derive(Clone)]
pub(super) struct IpOptions {
    v4_mask: u32,
    v6_mask: u128,
    /// The first 96 bits of the addresses of the operator's own NAT64.
    nat64: Option<u128>,
    allow: Vec<Networks>,
    deny: Vec<Networks>,
}

impl IpOptions {
    pub(super) const fn new() -> Self {
        let mut options = Self { v4_mask: 0, v6_mask: 0, nat64: None, allow: Vec::new(), deny: Vec::new() };
        options.set_v4_prefix(32);
        options.set_v6_prefix(64);
        options
    }

    /// Groups IPv4 addresses by their first `bits` bits. `bits` is at most 32.
    pub(super) const fn set_v4_prefix(&mut self, bits: u8) {
        self.v4_mask = match u32::MAX.checked_shl(32 - bits as u32) {
            Some(mask) => mask,
            None => 0,
        };
    }

    /// Groups IPv6 addresses by their first `bits` bits. `bits` is at most 128.
    pub(super) const fn set_v6_prefix(&mut self, bits: u8) {
        self.v6_mask = match u128::MAX.checked_shl(128 - bits as u32) {
            Some(mask) => mask,
            None => 0,
        };
    }

    pub(super) fn set_nat64_prefix(&mut self, prefix: &str) -> Result<(), ConfigError> {
        let error =
            || ConfigError::of_input(prefix, "is no prefix of 96 bits: write one such as `2001:db8:64::/96`");
        self.nat64 = Some(nat64::prefix(prefix).ok_or_else(error)?);
        Ok(())
    }

    /// Returns the canonical form of an address, which may be one of the operator's own NAT64.
    #[inline]
    pub(super) fn canonical(&self, address: IpAddr) -> IpAddr {
        let canonical = nat64::canonical(address);
        match (self.nat64, canonical) {
            (Some(prefix), IpAddr::V6(v6)) => nat64::within(prefix, v6).map_or(canonical, IpAddr::V4),
            _ => canonical,
        }
    }

    /// Returns the peer, whose address may be one of the operator's own NAT64.
    #[inline]
    pub(super) fn canonical_peer(&self, peer: Peer) -> Peer {
        match peer {
            Peer::Ip(address) if self.nat64.is_some() => Peer::Ip(self.canonical(address)),
            peer => peer,
        }
    }

    /// Returns the canonical form of the address in an entry of a header. Returns `None` if there is no address, or if
    /// it is unspecified (`0.0.0.0`, `::`), which no client has.
    pub(super) fn entry(&self, address: Option<IpAddr>) -> Option<IpAddr> {
        address.map(|address| self.canonical(address)).filter(|address| !address.is_unspecified())
    }

    pub(super) fn allow(&mut self, networks: Networks) {
        self.allow.push(networks);
    }

    pub(super) fn deny(&mut self, networks: Networks) {
        self.deny.push(networks);
    }

    /// Returns the key of a caller, or `None` if the caller is not limited. Returns an error if the caller is denied
    /// service, or has no address.
    #[inline]
    pub(super) fn key_of_peer(&self, caller: Peer) -> Result<Option<IpAddr>, KeyError> {
        let is_in = |lists: &[Networks]| !lists.is_empty() && is_in_one(lists, caller);
        if is_in(&self.deny) {
            return Err(KeyError::forbidden("this address is not served"));
        }
        if is_in(&self.allow) {
            return Ok(None);
        }
        caller.address().map(|address| Some(self.network(address)))
    }

    /// Returns whether no networks are allowed or denied.
    #[inline]
    pub(super) fn has_no_lists(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Returns the canonical address `address` with all bits after the prefix set to zero.
    #[inline]
    pub(super) fn network(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & self.v4_mask).into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & self.v6_mask).into(),
        }
    }
}

impl fmt::Debug for IpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpOptions")
            .field("v4", &self.v4_mask.leading_ones())
            .field("v6", &self.v6_mask.leading_ones())
            .field("nat64", &self.nat64.map(|prefix| Ipv6Addr::from_bits(prefix << 32)))
            .field("allow", &self.allow)
            .field("deny", &self.deny)
            .finish()
    }
}

/// Returns whether one of the lists contains a caller. This function is not called if there are no lists, as in most
/// extractors.
fn is_in_one(lists: &[Networks], caller: Peer) -> bool {
    lists.iter().any(|networks| networks.contains_peer(caller))
}

/// Implements the methods that all address extractors have.
macro_rules! ip_extractor {
    ($extractor:ident) => {
        impl $extractor {
            /// Groups IPv6 addresses by their first `bits` bits. The default is 64, because a /64 is the smallest
            /// network that a subscriber gets.
            ///
            /// # Panics
            ///
            /// Panics if `bits` is above 128.
            ///
            /// # Examples
            ///
            /// ```
            /// use tower_throttle::key::PeerIp;
            ///
            /// // many providers give a customer a /56
            /// let by_customer = PeerIp::new().ipv6_prefix(56);
            /// ```
            #[must_use]
            #[track_caller]
            pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
                assert!(bits <= 128, "an IPv6 prefix has at most 128 bits");
                self.options.set_v6_prefix(bits);
                self
            }

            /// Groups IPv4 addresses by their first `bits` bits. The default is 32, so each address has its own key.
            ///
            /// # Panics
            ///
            /// Panics if `bits` is above 32.
            #[must_use]
            #[track_caller]
            pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
                assert!(bits <= 32, "an IPv4 prefix has at most 32 bits");
                self.options.set_v4_prefix(bits);
                self
            }

            /// Sets the prefix of a NAT64 or a stateless translator (SIIT) that is operated for this server. Addresses
            /// of this prefix are then the IPv4 addresses within, even in headers of proxies: `2001:db8:64::10.0.0.1`
            /// is `10.0.0.1`, which may be a trusted proxy. No other host may be able to send from such addresses. The
            /// [well-known prefix](crate::key::PeerIp) `64:ff9b::/96` needs no setting, unless private addresses within
            /// it should be converted as well.
            ///
            /// [`Networks`] does not know this prefix. So the entries of lists must be IPv4 networks: an entry within
            /// this prefix matches no caller. To add a caller to a list, add the address that
            /// [`resolve`](Self::resolve) returns, and not the one of the socket.
            ///
            /// # Errors
            ///
            /// Returns an error if `prefix` is not an IPv6 prefix of 96 bits.
            ///
            /// # Examples
            ///
            /// ```
            /// use tower_throttle::key::PeerIp;
            ///
            /// let by_peer = PeerIp::new().nat64_prefix("2001:db8:64::/96")?;
            /// # Ok::<(), tower_throttle::error::ConfigError>(())
            /// ```
            pub fn nat64_prefix(mut self, prefix: &str) -> Result<Self, crate::error::ConfigError> {
                self.options.set_nat64_prefix(prefix)?;
                Ok(self)
            }

            /// Exempts callers in these networks from the limit. In a tuple of extractors, such callers are exempt from
            /// the limit of the whole tuple. If the method is called twice, callers in either list are exempt.
            ///
            /// # Deployment caveat
            ///
            /// The caller is whom the extractor takes for it. If this is a proxy whose address is in the list, as in
            /// [`Networks::private`], **none of its clients is limited**. A [`PeerIp`](crate::key::PeerIp) takes each
            /// proxy for a caller. A [`ClientIp`](crate::key::ClientIp) with trusted networks takes a trusted proxy for
            /// the caller of a request without the header, which can be a health check or a call of the proxy's own
            /// machine, and is also each request that the proxy forwards without writing the header. So list the
            /// addresses of callers only, and exempt health checks by their path
            /// ([`unless`](crate::RateLimitLayer::unless)).
            #[must_use]
            pub fn allow(mut self, networks: Networks) -> Self {
                self.options.allow(networks);
                self
            }

            /// Denies service to callers in these networks: HTTP 403, gRPC `PERMISSION_DENIED`. Neither this layer nor
            /// a layer [joined](crate::RateLimitLayer::and) with it charges such a request. If the method is called
            /// twice, callers in either list are denied. A deny list takes precedence over [`allow`](Self::allow).
            /// An IPv6 address in the list is one address, and not its /64: see [`Networks::insert_for`].
            ///
            /// A layer in [shadow mode](crate::RateLimitLayer::shadow) rejects nobody, and a layer that is not
            /// [enabled](crate::RateLimitLayer::enabled) looks at no list. So a deny list that must always hold is a
            /// layer of its own.
            ///
            /// ```
            /// use tower_throttle::key::{Networks, PeerIp};
            ///
            /// let by_peer =
            ///     PeerIp::new().allow(Networks::private()).deny(Networks::new(["203.0.113.0/24"])?);
            /// # Ok::<(), tower_throttle::error::ConfigError>(())
            /// ```
            #[must_use]
            pub fn deny(mut self, networks: Networks) -> Self {
                self.options.deny(networks);
                self
            }

            /// Reads the peer's address only from the extension of type `T`: for example from your own `Connected`
            /// type, or from an extension that an outer layer has inserted. A request without the extension has no key
            /// if the extractor needs the peer. A [`ClientIp`](crate::key::ClientIp) needs the peer only with trusted
            /// networks or with [`only_from`](crate::key::ClientIp::only_from).
            ///
            /// If `address` returns `None`, the peer has no address, as over a unix socket. In any list of networks,
            /// the entry `unix` stands for such peers. With this entry, an [`allow`](Self::allow) list exempts them, a
            /// [`deny`](Self::deny) list denies them service, and a list of trusted proxies trusts them. If such a peer
            /// is the client, and neither an `allow` list nor a `deny` list has the entry `unix`, the request has no
            /// key.
            ///
            /// ```
            /// use std::net::{IpAddr, SocketAddr};
            #[doc = concat!("use tower_throttle::key::{", stringify!($extractor), ", TrustedProxies};")]
            ///
            /// // a connection of a server with TCP and unix sockets
            /// #[derive(Clone)]
            /// enum Peer {
            ///     Tcp(SocketAddr),
            ///     Unix,
            /// }
            ///
            /// fn address(peer: &Peer) -> Option<IpAddr> {
            ///     match peer {
            ///         Peer::Tcp(address) => Some(address.ip()),
            ///         Peer::Unix => None,
            ///     }
            /// }
            ///
            #[doc = ip_extractor!(@example $extractor)]
            /// ```
            #[must_use]
            pub fn peer_from<T, F, Address>(mut self, address: F) -> Self
            where
                T: Send + Sync + 'static,
                F: Fn(&T) -> Address + Send + Sync + 'static,
                Address: Into<Option<std::net::IpAddr>>,
            {
                self.peer_source = PeerSource::from_extension(address);
                self
            }
        }
    };
    (@example PeerIp) => {
        "let by_peer = PeerIp::new().peer_from(address);\n# let _ = TrustedProxies::loopback();"
    };
    (@example ClientIp) => {
        "let proxies = TrustedProxies::cidrs([\"10.0.0.0/8\", \"unix\"])?;\n\
         let by_client = ClientIp::x_forwarded_for(proxies).peer_from(address);\n\
         # Ok::<(), tower_throttle::error::ConfigError>(())"
    };
}

pub(super) use ip_extractor;
