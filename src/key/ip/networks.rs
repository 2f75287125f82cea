//! Sets of networks, which can be replaced while they are in use: [`Networks`] of callers, and [`TrustedProxies`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::nat64::{self, canonical};
use super::peer_source::Peer;
use crate::clock::{AnyClock, Nanos};
use crate::error::ConfigError;
use crate::sys::lock::{PoisonError, RwLock};

const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];
const PRIVATE: [&str; 8] = [
    LOOPBACK[0],
    LOOPBACK[1],
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "fc00::/7",
    "fe80::/10",
];

/// A set of networks. [`allow`](super::PeerIp::allow) takes the networks of callers that are not limited,
/// [`deny`](super::PeerIp::deny) the networks of callers that are denied service, and
/// [`only_from`](super::ClientIp::only_from) the networks of proxies.
///
/// Clones share the set: [`insert`](Networks::insert), [`insert_for`](Networks::insert_for),
/// [`remove`](Networks::remove) and [`replace`](Networks::replace) change the set of all clones, even while requests
/// are being served. A lookup takes logarithmic time in the number of networks.
///
/// Spaces around an entry are ignored.
///
/// | entry | meaning |
/// |---|---|
/// | `10.0.0.0/8`, `2001:db8::/32` | a network; an entry with a bit that is set after the prefix is an error |
/// | `192.0.2.1`, `2001:db8::1` | one address |
/// | `::ffff:10.0.0.0/104` | the IPv4 network `10.0.0.0/8`, since IPv4 addresses mapped into IPv6 are treated as IPv4 addresses |
/// | `64:ff9b::192.0.2.0/120` | the IPv4 network `192.0.2.0/24`, since [addresses of a NAT64](super::PeerIp) are treated as the global IPv4 addresses within; the whole prefix `64:ff9b::/96` is an error |
/// | `loopback` | `127.0.0.0/8`, `::1` |
/// | `private` | loopback, `10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16`, `fc00::/7`, and the link-local `169.254.0.0/16`, `fe80::/10` |
/// | `unix` | peers without an address, as over a unix socket |
///
/// ```
/// use tower_throttle::RateLimitLayer;
/// use tower_throttle::key::{Networks, PeerIp};
///
/// let office = Networks::new(["192.0.2.0/24", "2001:db8:7::/48"])?;
/// let by_ip = PeerIp::new().allow(office.clone());
/// // later, when the office has moved: replace the list by the entries of a string
/// office.replace(Networks::new("198.51.100.0/24, 2001:db8:8::/48".split(','))?);
/// # Ok::<(), tower_throttle::error::ConfigError>(())
/// ```
///
/// The set compares whole addresses: an entry `2001:db8::1` is one address, although the limits by address count all
/// callers of its /64 together. To deny an IPv6 caller service, add its /64: [`insert_for`](Networks::insert_for) shows
/// how.
#[derive(Clone)]
pub struct Networks {
    set: Swappable<TimedSet>,
}

impl Networks {
    /// Creates the set of the listed networks. If the list is empty, so is the set.
    ///
    /// # Errors
    ///
    /// Returns an error if an entry is not valid. The error names the entry, and says what to write.
    pub fn new<I>(entries: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        NetworkSet::new(entries).map(Self::of)
    }

    /// Creates the set of loopback networks: `127.0.0.0/8` and `::1`.
    #[must_use]
    pub fn loopback() -> Self {
        Self::of(NetworkSet::loopback())
    }

    /// Creates the set of networks that are not routed on the internet: RFC 1918, RFC 4193, loopback and link-local.
    #[must_use]
    pub fn private() -> Self {
        Self::of(NetworkSet::private())
    }

    fn of(set: NetworkSet) -> Self {
        Self { set: Swappable::new(TimedSet { lasting: set, temporary: Temporary::default() }) }
    }

    /// Adds the networks of an entry to the set, in all clones. `entry` is an address, a network, or a text that
    /// [`new`](Networks::new) accepts. Takes time in proportion to the number of networks: many networks are better
    /// added by one [`replace`](Networks::replace).
    ///
    /// # Errors
    ///
    /// Returns an error if the entry is not valid. The set is then unchanged.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tower_throttle::key::{Networks, PeerIp};
    ///
    /// let blocked = Networks::new(["203.0.113.0/24"])?;
    /// let by_peer = PeerIp::new().deny(blocked.clone());
    /// // later, in a handler of the administrators
    /// let address = IpAddr::from([198, 51, 100, 7]);
    /// blocked.insert(address)?;
    /// assert!(blocked.contains(address));
    /// blocked.remove(address)?;
    /// assert!(!blocked.contains(address));
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    pub fn insert(&self, entry: impl fmt::Display) -> Result<(), ConfigError> {
        let new = NetworkSet::new([entry.to_string()])?;
        self.set.change(|set| {
            set.lasting.extend(new);
            set.lasting.aggregate();
        });
        Ok(())
    }

    /// Adds the networks of an entry to the set for a time, in all clones. `entry` is as for
    /// [`insert`](Networks::insert). The time is measured by tokio's monotonic clock, so in tests it can be paused. It
    /// has a resolution of one nanosecond, and at most 584 years are used. If an entry is added again, the later of its
    /// two ends counts.
    ///
    /// A network whose time has ended takes memory until further entries are added. All such networks are forgotten
    /// whenever more than 64 networks are kept for a time, and more than twice as many as the last time. So at most
    /// about twice as many are kept as were in the set at once. Lookups go on meanwhile. A lookup takes time in
    /// proportion to the number of different prefix lengths of kept networks, which is 1 if all are addresses of one
    /// family, and to the logarithm of the number of networks.
    ///
    /// # Errors
    ///
    /// Returns an error if the entry is not valid. The set is then unchanged.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use std::time::Duration;
    /// use tower_throttle::key::{Networks, PeerIp};
    ///
    /// let blocked = Networks::default();
    /// let by_peer = PeerIp::new().deny(blocked.clone());
    /// // later, when an address has sent something bad:
    /// // its requests are answered with 403 for an hour
    /// blocked.insert_for(IpAddr::from([198, 51, 100, 7]), Duration::from_secs(3_600))?;
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    ///
    /// An IPv6 address is one address, and its caller can use any other of its /64. So for an IPv6 caller, add the
    /// network, which is the caller's key:
    ///
    /// ```
    /// # use std::net::IpAddr;
    /// # use std::time::Duration;
    /// # use tower_throttle::key::{Networks, PeerIp};
    /// # let (blocked, address) = (Networks::default(), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7]));
    /// let entry = match PeerIp::new().key(address) {
    ///     IpAddr::V4(address) => address.to_string(),
    ///     IpAddr::V6(network) => format!("{network}/64"),
    /// };
    /// blocked.insert_for(entry, Duration::from_secs(3_600))?;
    /// # assert!(blocked.contains(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 8])));
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    pub fn insert_for(&self, entry: impl fmt::Display, duration: Duration) -> Result<(), ConfigError> {
        let new = NetworkSet::new([entry.to_string()])?;
        let mut next = self.set.change(|set| set.temporary.insert(new, Nanos::from(duration).0));
        while let Some(from) = next {
            next = self.set.change(|set| set.temporary.forget(from));
        }
        Ok(())
    }

    /// Removes all addresses of an entry from the set, in all clones, whether they were added for ever or for a time.
    /// `entry` is as for [`insert`](Networks::insert). If only a part of a network is removed, the rest of the network
    /// stays in the set. If many networks that were added for a time are inside a removed one, they leave the set a
    /// thousand at a time, so that lookups do not wait for all of them.
    ///
    /// # Errors
    ///
    /// Returns an error if the entry is not valid. The set is then unchanged.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tower_throttle::key::Networks;
    ///
    /// let blocked = Networks::new(["203.0.113.0/24"])?;
    /// blocked.remove("203.0.113.64/26")?;
    /// assert!(!blocked.contains(IpAddr::from([203, 0, 113, 65])));
    /// assert!(blocked.contains(IpAddr::from([203, 0, 113, 128])));
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    pub fn remove(&self, entry: impl fmt::Display) -> Result<(), ConfigError> {
        let removed = NetworkSet::new([entry.to_string()])?;
        self.set.change(|set| {
            set.lasting.remove(&removed);
            if removed.unix {
                set.temporary.unix = None;
            }
        });
        for network in removed.networks() {
            while self.set.change(|set| set.temporary.remove(network)) {}
        }
        Ok(())
    }

    /// Returns the networks of the set, each as a text that [`new`](Networks::new) accepts, and the time until the
    /// network leaves the set. The time is `None` for networks that were not added [for a time](Networks::insert_for).
    ///
    /// First come the networks without an end, where two halves of a network are listed as that network, and a network
    /// inside another one is not listed. All others follow. Both lists are in the order of the addresses. Takes time
    /// in proportion to the number of networks. Networks that are added or removed meanwhile may be listed or not.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_throttle::key::Networks;
    ///
    /// let blocked = Networks::new(["203.0.113.0/24", "unix"])?;
    /// blocked.insert_for("198.51.100.7", Duration::from_secs(3_600))?;
    /// for (network, rest) in blocked.list() {
    ///     println!(
    ///         "{network}: {}",
    ///         rest.map_or("for ever".into(), |rest| format!("for {rest:?}"))
    ///     );
    /// }
    /// # let networks: Vec<_> = blocked.list().into_iter().map(|(network, rest)| (network, rest.is_some())).collect();
    /// # let listed = [("203.0.113.0/24", false), ("unix", false), ("198.51.100.7", true)];
    /// # assert_eq!(networks, listed.map(|(network, ends)| (network.to_owned(), ends)));
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    #[must_use]
    pub fn list(&self) -> Vec<(String, Option<Duration>)> {
        let lasting = self.set.with(|set| set.lasting.clone());
        let unix = lasting.unix.then(|| "unix".to_owned());
        let mut all: Vec<_> = lasting.networks().map(text).chain(unix).map(|entry| (entry, None)).collect();
        let mut next = Some(Bound::Unbounded);
        while let Some(from) = next {
            next = self.set.with(|set| set.temporary.list(from, &mut all));
        }
        all
    }

    /// Returns whether the address is in one of the networks.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.contains_peer(Peer::Ip(canonical(address)))
    }

    /// Replaces the networks by those of `other`, in all clones. Networks that were added
    /// [for a time](Networks::insert_for) are replaced, too. So if a list is read again and again, networks that are
    /// added for a time belong into a set of their own: `deny` and `allow` can be called with both.
    ///
    /// ```
    /// use tower_throttle::key::{Networks, PeerIp};
    ///
    /// let blocked = Networks::new(["203.0.113.0/24"])?;
    /// let by_peer = PeerIp::new().deny(blocked.clone());
    /// // later, when the list is reloaded
    /// blocked.replace(Networks::new(["203.0.113.0/24", "2001:db8::/32"])?);
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    pub fn replace(&self, other: Self) {
        self.set.replace(&other.set);
    }

    pub(super) fn contains_peer(&self, peer: Peer) -> bool {
        self.set.with(|set| set.lasting.contains_peer(peer) || set.temporary.contains_peer(peer))
    }
}

/// The empty set, to which networks are added later.
///
/// ```
/// use tower_throttle::key::Networks;
///
/// let blocked = Networks::default();
/// blocked.insert("203.0.113.0/24")?;
/// # Ok::<(), tower_throttle::error::ConfigError>(())
/// ```
impl Default for Networks {
    fn default() -> Self {
        Self::of(NetworkSet::default())
    }
}

impl fmt::Debug for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.set.with(|set| {
            let Temporary { networks, unix, .. } = &set.temporary;
            if networks.is_empty() && unix.is_none() {
                set.lasting.fmt(f)
            } else {
                write!(f, "{:?} and {} for a time", set.lasting, networks.len() + usize::from(unix.is_some()))
            }
        })
    }
}

/// The value of [`Networks`].
#[derive(Clone)]
struct TimedSet {
    lasting: NetworkSet,
    temporary: Temporary,
}

/// Networks that are in a set until a time.
#[derive(Clone, Default)]
struct Temporary {
    /// The networks, and the readings of `clock` at which their times end. They are in the order of their addresses, a
    /// network before those inside it.
    networks: BTreeMap<IpNet, Nanos>,
    unix: Option<Nanos>,
    /// The number of networks of each prefix length, of IPv4 (`false`) and of IPv6 (`true`).
    lengths: BTreeMap<(bool, u8), usize>,
    /// The number of networks at which those whose time has ended are removed.
    full: usize,
    /// The clock, once a network was added.
    clock: Option<AnyClock>,
}

/// All methods examine at most [`STEP`] networks, because the set is locked meanwhile. If there are more, their results
/// tell where to go on.
impl Temporary {
    /// Adds networks. Returns where to begin to forget networks, if there are many.
    fn insert(&mut self, new: NetworkSet, duration: u64) -> Option<Bound<IpNet>> {
        let now = self.clock.get_or_insert_default().now();
        let end = now.saturating_add(duration);
        if new.unix {
            self.unix = self.unix.max(Some(end));
        }
        for network in new.networks() {
            self.insert_until(network, end);
        }
        let is_full = self.networks.len() > self.full;
        if is_full {
            self.full = 2 * self.networks.len().max(MIN_TEMPORARY);
        }
        is_full.then_some(Bound::Unbounded)
    }

    /// Forgets networks whose time has ended, of those that come after `from`. Returns after which to go on.
    fn forget(&mut self, from: Bound<IpNet>) -> Option<Bound<IpNet>> {
        let now = self.clock.as_ref().map(AnyClock::now)?;
        let (examined, next) = self.step((from, Bound::Unbounded));
        for (network, _) in examined.into_iter().filter(|(_, end)| *end <= now) {
            self.forget_one(network);
        }
        if next.is_none() {
            self.full = 2 * self.networks.len().max(MIN_TEMPORARY);
        }
        next
    }

    /// Removes the addresses of a network. Returns whether there are more of them.
    fn remove(&mut self, removed: IpNet) -> bool {
        let Some(now) = self.clock.as_ref().map(AnyClock::now) else { return false };
        for around in self.around(removed.addr(), removed.prefix_len()) {
            // A network whose time has ended is not divided into up to 128 others.
            let end = self.forget_one(around).filter(|end| *end > now);
            for (rest, end) in difference(around, removed).into_iter().zip(end.into_iter().cycle()) {
                // The rest of a network may be a network that has an end of its own.
                self.insert_until(rest, end);
            }
        }
        let Ok(last) = IpNet::new(removed.broadcast(), removed.max_prefix_len()) else { return false };
        let (inside, next) = self.step((Bound::Included(removed), Bound::Included(last)));
        for (network, _) in inside {
            self.forget_one(network);
        }
        next.is_some()
    }

    /// Adds the networks after `from` whose time has not ended to `all`, with the rest of their time. The entry `unix`
    /// is the last one. Returns after which network to go on.
    fn list(&self, from: Bound<IpNet>, all: &mut Vec<(String, Option<Duration>)>) -> Option<Bound<IpNet>> {
        let now = self.clock.as_ref().map(AnyClock::now)?;
        let (networks, next) = self.step((from, Bound::Unbounded));
        let unix = self.unix.filter(|_| next.is_none()).map(|end| ("unix".to_owned(), end));
        let entries = networks.into_iter().map(|(network, end)| (text(network), end)).chain(unix);
        let entries = entries.filter(|(_, end)| *end > now);
        all.extend(
            entries.map(|(entry, end)| (entry, Some(Duration::from_nanos(end.saturating_since(now))))),
        );
        next
    }

    /// Returns the first networks of a range, and after which of them to go on if there are more.
    fn step(&self, range: (Bound<IpNet>, Bound<IpNet>)) -> (Vec<(IpNet, Nanos)>, Option<Bound<IpNet>>) {
        let first = self.networks.range(range).take(STEP).map(|(network, end)| (*network, *end));
        let first: Vec<_> = first.collect();
        let next = first.get(STEP - 1).map(|(last, _)| Bound::Excluded(*last));
        (first, next)
    }

    /// Returns the networks of prefix lengths below `length` that may be in the set and contain an address.
    fn around(&self, address: IpAddr, length: u8) -> Vec<IpNet> {
        let shorter = self.lengths.range((address.is_ipv6(), 0)..(address.is_ipv6(), length));
        shorter.filter_map(|((_, length), _)| Some(IpNet::new(address, *length).ok()?.trunc())).collect()
    }

    fn insert_until(&mut self, network: IpNet, end: Nanos) {
        if let Some(known) = self.networks.get_mut(&network) {
            *known = end.max(*known);
        } else {
            self.networks.insert(network, end);
            *self.lengths.entry(family_and_length(network)).or_default() += 1;
        }
    }

    fn forget_one(&mut self, network: IpNet) -> Option<Nanos> {
        let end = self.networks.remove(&network)?;
        if let Entry::Occupied(mut count) = self.lengths.entry(family_and_length(network)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(end)
    }

    fn contains_peer(&self, peer: Peer) -> bool {
        let Some(clock) = &self.clock else { return false };
        let mut ends = match peer {
            Peer::NoAddress => return self.unix.is_some_and(|end| end > clock.now()),
            Peer::Ip(address) => {
                let of_family = self.lengths.range((address.is_ipv6(), 0)..=(address.is_ipv6(), u8::MAX));
                of_family.filter_map(move |((_, length), _)| {
                    self.networks.get(&IpNet::new(address, *length).ok()?.trunc())
                })
            }
        };
        let latest = ends.by_ref().max();
        latest.is_some_and(|end| *end > clock.now())
    }
}

/// Returns the entry for a network, without the prefix if the network is one address.
fn text(network: IpNet) -> String {
    if network.prefix_len() == network.max_prefix_len() {
        network.addr().to_string()
    } else {
        network.to_string()
    }
}

/// The number of networks up to which [`Temporary`] does not look for those whose time has ended.
const MIN_TEMPORARY: usize = 32;

/// The maximum number of networks of a [`Temporary`] that are examined while the set is locked.
const STEP: usize = 1_000;

fn family_and_length(network: IpNet) -> (bool, u8) {
    (matches!(network, IpNet::V6(_)), network.prefix_len())
}

/// The proxies that are trusted to report the address of the client.
///
/// Each trusted proxy must append the address of its peer to the header, on every route. A proxy that passes the header
/// on unchanged lets callers choose their address.
///
/// If possible, trust proxies by their networks. The peer's address is then checked as well, so a caller that reaches
/// the server without going through the proxies is limited by its own address. If the addresses of the proxies are
/// unknown, trust a number of hops. This is correct only if every request comes through exactly this number of proxies.
///
/// Clones share the list: [`replace`](TrustedProxies::replace) changes the list of all clones, even while requests are
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
            Some(network) => Err(ConfigError::new(format!(
                "these proxies make up `{network}`, so every caller would be trusted and could choose its address: \
                 list the networks that the proxies are in, or count them with `TrustedProxies::hops`"
            ))),
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
        match count {
            0 => Err(ConfigError::new(
                "to trust 0 proxies is to read no header: take `PeerIp`, or trust at least 1",
            )),
            _ => Ok(Self::of(Trust::Hops(count))),
        }
    }

    /// Trusts proxies on this machine: `127.0.0.0/8` and `::1`. Any program on this machine is then trusted to report
    /// the address of a client, even of a client in a test, unless its address is outside these networks.
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

/// The networks of a set. The networks of each family do not overlap, and are in ascending order.
#[derive(Clone, Default)]
pub(super) struct NetworkSet {
    v4: Vec<Ipv4Net>,
    v6: Vec<Ipv6Net>,
    unix: bool,
}

impl NetworkSet {
    fn new<I>(entries: I) -> Result<Self, ConfigError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let mut set = Self::default();
        for entry in entries {
            let entry = entry.as_ref();
            set.add(entry.trim())
                .map_err(|reason| ConfigError::of_input(entry, format_args!("is no network: {reason}")))?;
        }
        set.aggregate();
        Ok(set)
    }

    /// Restores the order of the networks after some were added.
    fn aggregate(&mut self) {
        self.v4 = Ipv4Net::aggregate(&self.v4);
        self.v6 = Ipv6Net::aggregate(&self.v6);
    }

    /// Removes all addresses of `removed` from the set.
    fn remove(&mut self, removed: &Self) {
        self.unix &= !removed.unix;
        for network in &removed.v4 {
            remove_from(&mut self.v4, IpNet::V4(*network), |rest| match rest {
                IpNet::V4(rest) => Some(rest),
                IpNet::V6(_) => None,
            });
        }
        for network in &removed.v6 {
            remove_from(&mut self.v6, IpNet::V6(*network), |rest| match rest {
                IpNet::V6(rest) => Some(rest),
                IpNet::V4(_) => None,
            });
        }
    }

    fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.v4.iter().copied().map(IpNet::V4).chain(self.v6.iter().copied().map(IpNet::V6))
    }

    fn loopback() -> Self {
        Self::known(&LOOPBACK)
    }

    fn private() -> Self {
        Self::known(&PRIVATE)
    }

    fn known(entries: &[&str]) -> Self {
        Self::new(entries).unwrap_or_default()
    }

    fn add(&mut self, entry: &str) -> Result<(), String> {
        match entry {
            "unix" => self.unix = true,
            "loopback" => self.extend(Self::loopback()),
            "private" => self.extend(Self::private()),
            _ => match network(entry)? {
                Network::V4(network) => self.v4.push(network),
                Network::V6(network) => self.v6.push(network),
            },
        }
        Ok(())
    }

    fn extend(&mut self, other: Self) {
        self.v4.extend(other.v4);
        self.v6.extend(other.v6);
        self.unix |= other.unix;
    }

    /// Returns whether the canonical address is in one of the networks.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                let after = self.v4.partition_point(|network| network.network() <= address);
                after.checked_sub(1).is_some_and(|at| self.v4[at].contains(&address))
            }
            IpAddr::V6(address) => {
                let after = self.v6.partition_point(|network| network.network() <= address);
                after.checked_sub(1).is_some_and(|at| self.v6[at].contains(&address))
            }
        }
    }

    /// Returns `0.0.0.0/0` or `::/0`, if one of these is in the set.
    fn whole_family(&self) -> Option<IpNet> {
        // Adjacent networks are merged, so two halves of the address space are one network here.
        let v4 = self.v4.iter().copied().find(|network| network.prefix_len() == 0).map(IpNet::V4);
        v4.or_else(|| self.v6.iter().copied().find(|network| network.prefix_len() == 0).map(IpNet::V6))
    }

    pub(super) fn contains_peer(&self, peer: Peer) -> bool {
        match peer {
            Peer::Ip(address) => self.contains(address),
            Peer::NoAddress => self.unix,
        }
    }
}

impl fmt::Debug for NetworkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unix = self.unix.then_some("unix");
        f.debug_set().entries(&self.v4).entries(&self.v6).entries(unix).finish()
    }
}

/// Returns whether a network has only IPv4 addresses that are mapped into IPv6.
fn is_mapped(network: IpNet) -> bool {
    network.prefix_len() >= 96
        && matches!(network.addr(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// Removes the addresses of a network from a list of networks of its family, which do not overlap, and are in ascending
/// order. So only neighbours change: a network that contains the removed one, or those inside it.
fn remove_from<N: Copy + Ord + Into<IpNet>>(
    list: &mut Vec<N>,
    removed: IpNet,
    of_family: impl Fn(IpNet) -> Option<N>,
) {
    let from = list.partition_point(|other| (*other).into().broadcast() < removed.network());
    let to = list.partition_point(|other| (*other).into().network() <= removed.broadcast());
    let rest = list[from..to].iter().flat_map(|other| difference((*other).into(), removed));
    let mut rest: Vec<_> = rest.filter_map(of_family).collect();
    rest.sort_unstable();
    list.splice(from..to, rest);
}

/// Returns the networks that make up `network` without the addresses of `removed`: those that branch off on the way
/// from `network` to `removed`. Leaves out IPv6 addresses that are treated as IPv4 addresses: no peer has such an
/// address, and as an entry, they would be IPv4 networks.
fn difference(network: IpNet, removed: IpNet) -> Vec<IpNet> {
    if removed.contains(&network) {
        return Vec::new();
    }
    let (mut left, mut whole) = (Vec::new(), network);
    while whole.contains(&removed) && whole != removed {
        let Ok(halves) = whole.subnets(whole.prefix_len() + 1) else { break };
        for half in halves {
            if half.contains(&removed) { whole = half } else { left.push(half) }
        }
    }
    if left.is_empty() { vec![network] } else { left.into_iter().flat_map(as_ipv6).collect() }
}

/// Returns the networks of those addresses of an IPv6 network that are not treated as IPv4 addresses. Returns an IPv4
/// network as it is.
fn as_ipv6(network: IpNet) -> Vec<IpNet> {
    match network {
        IpNet::V6(_) if is_mapped(network) => Vec::new(),
        IpNet::V6(v6) => match nat64::not_converted(v6) {
            Some(networks) => networks.into_iter().map(IpNet::V6).collect(),
            None => vec![network],
        },
        IpNet::V4(_) => vec![network],
    }
}

enum Network {
    V4(Ipv4Net),
    V6(Ipv6Net),
}

/// Parses an entry of a configuration: a network or a single address.
fn network(entry: &str) -> Result<Network, String> {
    let (address, length) = match entry.split_once('/') {
        Some((address, length)) => (address, Some(prefix(length)?)),
        None => (entry, None),
    };
    let address = address.parse().map_err(|_| {
        "write a network as `10.0.0.0/8`, an address as `192.0.2.1`, or one of `loopback`, `private`, `unix`"
            .to_owned()
    })?;
    match address {
        IpAddr::V4(address) => v4(address, length.unwrap_or(32)),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => match length.unwrap_or(128).checked_sub(96) {
                Some(length) => v4(mapped, length),
                None => Err("a network of mapped addresses has a prefix of at least 96 bits".to_owned()),
            },
            None => translated(address, length.unwrap_or(128)),
        },
    }
}

fn prefix(length: &str) -> Result<u8, String> {
    let digits = length.bytes().all(|byte| byte.is_ascii_digit());
    let plain = length == "0" || digits && !length.starts_with('0');
    let length = if plain { length.parse().ok() } else { None };
    length.ok_or_else(|| "behind the `/` stands the number of leading bits, as in `10.0.0.0/8`".to_owned())
}

fn v4(address: Ipv4Addr, length: u8) -> Result<Network, String> {
    let network =
        Ipv4Net::new(address, length).map_err(|_| "an IPv4 prefix has at most 32 bits".to_owned())?;
    if network.network() != address {
        return Err(host_bits_error(&network.trunc(), &address));
    }
    Ok(Network::V4(network))
}

fn v6(address: Ipv6Addr, length: u8) -> Result<Network, String> {
    let network =
        Ipv6Net::new(address, length).map_err(|_| "an IPv6 prefix has at most 128 bits".to_owned())?;
    if network.network() != address {
        return Err(host_bits_error(&network.trunc(), &address));
    }
    Ok(Network::V6(network))
}

/// Returns the network of an IPv6 entry, whose addresses may be those of a NAT64.
fn translated(address: Ipv6Addr, length: u8) -> Result<Network, String> {
    let network = v6(address, length)?;
    let Network::V6(whole) = network else { return Ok(network) };
    match nat64::not_converted(whole).as_deref() {
        Some([]) => v4(Ipv4Addr::from_bits(address.to_bits() as u32), length - 96),
        Some([one]) if *one == whole => Ok(network),
        Some(_) => {
            Err("addresses in `64:ff9b::/96` are treated as the IPv4 addresses within, if these are global: \
                        write the IPv4 networks"
                .to_owned())
        }
        None => Ok(network),
    }
}

/// Returns the error for an entry with bits that are set after its prefix. If such bits were ignored, `10.0.0.1/8`
/// would mean 16 million addresses, although the author probably meant a single address.
fn host_bits_error(network: &dyn fmt::Display, address: &dyn fmt::Display) -> String {
    format!(
        "it has bits beyond its prefix: write `{network}` for the network, or `{address}` for the address"
    )
}

/// A value that all clones share, and that can be replaced while it is in use.
#[derive(Clone)]
struct Swappable<T> {
    value: Arc<RwLock<T>>,
}

impl<T: Clone> Swappable<T> {
    fn new(value: T) -> Self {
        Self { value: Arc::new(RwLock::new(value)) }
    }

    /// Calls `read` with the value while the value is locked. So `read` must not call a function that a user of the
    /// crate wrote, because such a function might replace the value.
    fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.value.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the value by the value of `other`. The locks of the two values are never held at the same time, because
    /// they may be the same lock.
    fn replace(&self, other: &Self) {
        let other = other.with(T::clone);
        *self.value.write().unwrap_or_else(PoisonError::into_inner) = other;
    }
}

impl<T: Clone + fmt::Debug> fmt::Debug for Swappable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|value| value.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_set_is_empty_until_something_is_added_and_its_clones_share_what_is_added() {
        let addresses = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0]), IpAddr::from([0; 16])];
        let set = Networks::default();
        assert!(
            !addresses.iter().any(|address| set.contains(*address)) && !set.contains_peer(Peer::NoAddress)
        );
        assert_eq!(format!("{set:?}"), format!("{:?}", Networks::new([""; 0]).unwrap()));
        let clone = set.clone();
        set.insert("127.0.0.0/8").unwrap();
        assert!(clone.contains(addresses[0]) && !Networks::default().contains(addresses[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_network_of_an_ipv6_address_is_added_for_a_time_and_removed_from_one_set_only() {
        let (always, by_hand) = (Networks::new(["2001:db8::/32"]).unwrap(), Networks::default());
        let [caller, neighbour] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse::<IpAddr>().unwrap());
        by_hand.insert_for(caller, Duration::from_secs(60)).unwrap();
        assert!(by_hand.contains(caller) && !by_hand.contains(neighbour), "an address is one address");
        by_hand.insert_for("2001:db8::/64", Duration::from_secs(60)).unwrap();
        assert!(by_hand.contains(neighbour));
        by_hand.remove("2001:db8::/64").unwrap();
        assert!(![caller, neighbour].iter().any(|address| by_hand.contains(*address)));
        assert!(always.contains(caller));
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    /// A set of 2,500 addresses that were added for a time.
    fn many() -> Temporary {
        let mut set = Temporary::default();
        for number in 0..2_500_u32 {
            let address = NetworkSet::new([Ipv4Addr::from_bits(0x0a00_0000 + number).to_string()]).unwrap();
            let _ = set.insert(address, 1_000);
        }
        set
    }

    #[tokio::test(start_paused = true)]
    async fn many_networks_leave_a_set_a_thousand_at_a_time() {
        let mut set = many();
        assert!(
            !set.remove(net("10.0.0.7/32")) && set.networks.len() == 2_499,
            "one address is removed at once"
        );
        for (is_more, left) in [(true, 1_499), (true, 499), (false, 0)] {
            assert_eq!((set.remove(net("10.0.0.0/8")), set.networks.len()), (is_more, left));
        }
        assert!(set.lengths.is_empty());
        let mut set = many();
        tokio::time::advance(Duration::from_millis(1)).await;
        let mut next = Some(Bound::Unbounded);
        for left in [1_500, 500, 0] {
            next = set.forget(next.unwrap());
            assert_eq!(set.networks.len(), left);
        }
        assert!(next.is_none() && set.lengths.is_empty() && set.full == 2 * MIN_TEMPORARY);
    }

    /// Networks of 16 addresses are added for ever or for a time, and removed. Each address is in the set as long as it
    /// would be if all addresses were added and removed one by one.
    #[tokio::test(start_paused = true)]
    async fn a_set_contains_what_its_addresses_one_by_one_would() {
        for mut seed in 1..300_u64 {
            let mut below = |end: u64| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) % end
            };
            let (set, mut now) = (Networks::default(), Duration::ZERO);
            let mut ends = [None::<Duration>; 16];
            for _ in 0..30 {
                let length = 28 + below(5) as u32;
                let size = 1_u64 << (32 - length);
                let first = below(16 / size) * size;
                let entry = format!("10.0.0.{first}/{length}");
                let of_entry = &mut ends[first as usize..(first + size) as usize];
                match below(4) {
                    0 => {
                        set.insert(&entry).unwrap();
                        of_entry.fill(Some(Duration::MAX));
                    }
                    1 => {
                        let duration = Duration::from_secs(1 + below(9));
                        set.insert_for(&entry, duration).unwrap();
                        of_entry.iter_mut().for_each(|end| *end = (*end).max(Some(now + duration)));
                    }
                    2 => {
                        set.remove(&entry).unwrap();
                        of_entry.fill(None);
                    }
                    _ => {
                        let step = Duration::from_secs(below(4));
                        tokio::time::advance(step).await;
                        now += step;
                    }
                }
                for (at, end) in ends.iter().enumerate() {
                    let contains = set.contains(IpAddr::from([10, 0, 0, at as u8]));
                    assert_eq!(contains, *end > Some(now), "{at} after {entry}");
                }
                let listed = Networks::new(set.list().into_iter().map(|(entry, _)| entry)).unwrap();
                for at in 0..16 {
                    let address = IpAddr::from([10, 0, 0, at]);
                    assert_eq!(listed.contains(address), set.contains(address), "{address}");
                }
            }
        }
    }
}
