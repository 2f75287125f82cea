use std::fmt;

use super::networks::NetworkSet;
use super::swappable::Swappable;
use crate::error::NetworkError;

/// The proxies whose word is taken for who asked them.
///
/// Each of them must add its peer to the header, on every route: one that passes the header on as it came lets callers
/// choose their address.
///
/// By their networks, if possible: then the peer is checked, too, and who reaches the server past the proxies is
/// limited by its own address. A number of hops is for proxies whose addresses nobody knows; it holds only if every
/// request comes through exactly that many.
///
/// Clones are the same: [`replace`](TrustedProxies::replace) changes all of them, while requests go on.
///
/// ```
/// use tower_throttle::key::{ClientIp, TrustedProxies};
///
/// let proxies = TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"])?;
/// let by_client = ClientIp::x_forwarded_for(proxies.clone());
/// // later, when the load balancer has moved
/// proxies.replace(TrustedProxies::cidrs(["10.7.0.0/16"])?);
/// # Ok::<(), tower_throttle::error::NetworkError>(())
/// ```
#[derive(Clone)]
pub struct TrustedProxies {
    trust: Swappable<Trust>,
}

/// Whom to trust.
#[derive(Clone, Debug)]
pub(super) enum Trust {
    Networks(NetworkSet),
    Hops(usize),
}

impl TrustedProxies {
    /// Proxies in these networks; what an entry may be is said at [`Networks`](super::Networks). An empty list trusts
    /// nobody: the peer is the client.
    ///
    /// Trust no network that callers are in: a caller that is trusted is believed.
    ///
    /// # Errors
    ///
    /// If an entry is no network; the error names it, and says what to write. If the entries together hold all of IPv4
    /// or all of IPv6: every caller would be believed, whatever address it claims. So nothing that trusts everybody
    /// reaches [`replace`](TrustedProxies::replace), either.
    pub fn cidrs<I>(networks: I) -> Result<Self, NetworkError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let set = NetworkSet::new(networks)?;
        match set.whole_family() {
            Some(network) => Err(NetworkError::trusts_all(&network)),
            None => Ok(Self::of(Trust::Networks(set))),
        }
    }

    /// The last `count` proxies, whoever they are: each request comes through exactly so many.
    ///
    /// # Errors
    ///
    /// If `count` is 0.
    pub fn hops(count: usize) -> Result<Self, NetworkError> {
        if count == 0 { Err(NetworkError::no_hops()) } else { Ok(Self::of(Trust::Hops(count))) }
    }

    /// Proxies on this machine: `127.0.0.0/8` and `::1`.
    #[must_use]
    pub fn loopback() -> Self {
        Self::of(Trust::Networks(NetworkSet::loopback()))
    }

    /// Proxies in networks that are not routed on the internet; see [`Networks::private`](super::Networks::private).
    /// Not if callers are in such a network, too.
    #[must_use]
    pub fn private() -> Self {
        Self::of(Trust::Networks(NetworkSet::private()))
    }

    fn of(trust: Trust) -> Self {
        Self { trust: Swappable::new(trust) }
    }

    /// Trusts others in the place of these, in all clones.
    pub fn replace(&self, other: Self) {
        self.trust.replace(&other.trust);
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&Trust) -> T) -> T {
        self.trust.with(look)
    }
}

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.trust.fmt(f)
    }
}
