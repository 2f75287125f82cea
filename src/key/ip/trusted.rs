use std::fmt;

use super::networks::NetworkSet;
use super::swappable::Swappable;
use crate::error::ConfigError;

/// The proxies that are trusted to report the address of the client.
///
/// Each trusted proxy must append the address of its peer to the header, on every route. A proxy that passes the header
/// on unchanged lets callers choose their address.
///
/// If possible, trust proxies by their networks. The peer's address is then checked as well, so a caller that reaches
/// the server without going through the proxies is limited by its own address. If the addresses of the proxies are
/// unknown, trust a number of hops. This is correct only if every request comes through exactly this number of proxies.
///
/// Clones share the list: [`replace`](TrustedProxies::replace) changes the list of all clones, also while requests are
/// being served.
///
/// ```
/// use tower_throttle::key::{ClientIp, TrustedProxies};
///
/// let proxies = TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"])?;
/// let by_client = ClientIp::x_forwarded_for(proxies.clone());
/// // later, when the load balancer has moved
/// proxies.replace(TrustedProxies::cidrs(["10.7.0.0/16"])?);
/// # Ok::<(), tower_throttle::error::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct TrustedProxies {
    trust: Swappable<Trust>,
}

/// The proxies that are trusted, identified by their networks or by their number.
#[derive(Clone, Debug)]
pub(super) enum Trust {
    Networks(NetworkSet),
    Hops(usize),
}

impl TrustedProxies {
    /// Trusts proxies in these networks. [`Networks`](super::Networks) lists the forms of an entry. An empty list
    /// trusts no proxy, so the peer is the client.
    ///
    /// Do not trust a network that contains callers: a trusted caller can claim any address.
    ///
    /// # Errors
    ///
    /// Returns an error if an entry is not a network. The error names the entry, and says what to write. Also returns
    /// an error if the entries together contain all IPv4 addresses or all IPv6 addresses, because every caller could
    /// then claim any address.
    pub fn cidrs<I>(networks: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let set = NetworkSet::new(networks)?;
        match set.whole_family() {
            Some(network) => Err(ConfigError::trusts_all(&network)),
            None => Ok(Self::of(Trust::Networks(set))),
        }
    }

    /// Trusts the last `count` proxies, without checking their addresses. Each request must come through exactly
    /// `count` proxies.
    ///
    /// # Errors
    ///
    /// Returns an error if `count` is 0.
    pub fn hops(count: usize) -> Result<Self, ConfigError> {
        if count == 0 { Err(ConfigError::no_hops()) } else { Ok(Self::of(Trust::Hops(count))) }
    }

    /// Trusts proxies on this machine: `127.0.0.0/8` and `::1`.
    #[must_use]
    pub fn loopback() -> Self {
        Self::of(Trust::Networks(NetworkSet::loopback()))
    }

    /// Trusts proxies in networks that are not routed on the internet; see
    /// [`Networks::private`](super::Networks::private). Do not use this method if callers are in such a network.
    #[must_use]
    pub fn private() -> Self {
        Self::of(Trust::Networks(NetworkSet::private()))
    }

    fn of(trust: Trust) -> Self {
        Self { trust: Swappable::new(trust) }
    }

    /// Replaces the trusted proxies by those of `other`, in all clones.
    pub fn replace(&self, other: Self) {
        self.trust.replace(&other.trust);
    }

    pub(super) fn with<T>(&self, read: impl FnOnce(&Trust) -> T) -> T {
        self.trust.with(read)
    }
}

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trust.fmt(f)
    }
}
