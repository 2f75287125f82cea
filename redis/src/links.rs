//! The links of a store: the link to its server, or a link to each node of its cluster. So a node that fails affects
//! only its keys.
//!
//! The `redis` crate has a cluster connection of its own. After each failure of a node, that connection asks again
//! which node has which slots (`CLUSTER SLOTS`). Until the reply arrives, it holds back all requests, including those
//! to other nodes.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ::redis::{ConnectionAddr, ConnectionInfo, Value};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

use super::client::{Client, Server};
use super::connection::{Connection, at_address};
use super::error::{RedisError, RedisErrorKind, convert};
use super::link::{Admission, Link, Route, Trial};
use super::script::TimeSource;
use super::url;
use tower_throttle::clock::{AnyClock, Nanos};
use tower_throttle::limiter::KeyText;
use tower_throttle::stats::StoreStats;

/// The maximum number of nodes to which `CLUSTER SLOTS` is sent at the same time.
const ASKED_AT_ONCE: usize = 4;
/// The pause, in nanoseconds, before the trip of a joint call is made again because the keys of the call are being
/// moved.
const MOVING_PAUSE: u64 = 2_000_000;
/// The minimum pause between two rounds of `CLUSTER SLOTS`, in nanoseconds.
const PAUSE: u64 = 100_000_000;
/// The number of slots of each cluster.
const SLOTS: usize = 16_384;

/// The links of a store.
#[derive(Clone, Debug)]
pub(super) enum Links {
    /// One server.
    One(Arc<Link>),
    Cluster(Arc<Cluster>),
}

/// The result of an attempt to make a trip.
pub(super) enum Attempted<T> {
    Over(Result<T, RedisError>),
    /// The trip has changed nothing, and must be made again on this route.
    Again(Route),
}

/// The nodes of a cluster.
pub(super) struct Cluster {
    /// The servers that the user has named.
    named: Vec<ConnectionInfo>,
    settings: NodeSettings,
    /// A link of which only the settings that all links share are used, such as the clock and the deadline.
    any: Arc<Link>,
    nodes: RwLock<Nodes>,
    /// The earliest time, in nanoseconds, at which the nodes may be asked again which node has which slots.
    next_question: AtomicU64,
}

#[derive(Debug, Default)]
struct Nodes {
    nodes: Vec<Node>,
    /// The index of each slot's node in `nodes`.
    of_slots: Vec<u16>,
    /// The sum of the statistics of all nodes whose links were dropped because the nodes have no slots any more.
    former: StoreStats,
}

/// A round of `CLUSTER SLOTS`. While this value exists, and for [`PAUSE`] after it was dropped, no other round begins.
/// There is one exception: a round that takes longer than ten times the time limit of an attempt to connect no longer
/// prevents others.
struct Question(Arc<Cluster>);

/// The address of a node, and the link to the node.
#[derive(Clone)]
struct Node {
    address: Address,
    /// The [name](url::name) of the server.
    name: Arc<str>,
    client: Client,
    link: Arc<Link>,
}

/// The settings that all nodes of a cluster have in common.
#[derive(Clone, Debug)]
struct NodeSettings {
    /// The time limit of an attempt to connect.
    timeout: Duration,
    deadline: Duration,
    clock: AnyClock,
}

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    host: String,
    port: u16,
}

/// A range of slots, and the master that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    master: Address,
}

/// The node that has a key, according to an error reply of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Redirect {
    /// `true` if the reply is `ASK`: the slot is still being migrated to that node.
    is_asking: bool,
    slot: u16,
    /// The address of that node. An empty host stands for the host of the node that replied.
    address: Address,
}

impl Links {
    /// Creates the links to a cluster. `named` are the servers that the user has named, and `timeout` is the time limit
    /// of an attempt to connect.
    pub(super) fn to_cluster(
        named: Vec<ConnectionInfo>,
        timeout: Duration,
        deadline: Duration,
    ) -> Result<Self, RedisError> {
        Ok(Self::Cluster(Arc::new(Cluster::new(named, timeout, deadline)?)))
    }

    /// Executes a script on the server or, after the slots of the nodes were asked for, on the masters of the cluster.
    pub(super) async fn verify(&self, keys: &KeyText) -> Result<(), RedisError> {
        match self {
            Self::One(link) => link.verify(&keys.of(&()), &[], Duration::from_secs(2)).await,
            Self::Cluster(cluster) => {
                cluster.ask_for_slots().await?;
                cluster.verify(keys).await
            }
        }
    }

    /// Returns a link, for the settings that all links share: the clock, the deadline and the source of the time.
    pub(super) fn any(&self) -> &Link {
        match self {
            Self::One(link) => link,
            Self::Cluster(cluster) => cluster.any(),
        }
    }

    /// Returns the route to the server that has the key. In a cluster, the route may be wrong, because the slot of the
    /// key may have moved to another node.
    pub(super) fn route(&self, key: &str) -> Route {
        let link = match self {
            Self::One(link) => Arc::clone(link),
            Self::Cluster(cluster) => cluster.link_of(key),
        };
        Route { link, is_asking: false, redirects: 0 }
    }

    /// Begins a call for a key. Returns the caller's runtime, the route to the server, and the deadline of the call.
    /// Returns an error if there is no runtime, or if the circuit breaker is open and stays open.
    pub(super) async fn begin(&self, key: &str) -> Result<(Handle, Route, Nanos), RedisError> {
        let runtime = RedisError::current_runtime()?;
        let route = self.route(key);
        let deadline = route.link.deadline();
        self.admit(&route, key, deadline, &runtime).await?;
        Ok((runtime, route, deadline))
    }

    /// Returns an error if the circuit breaker is open, so that a call is not sent. When the pause of the breaker is
    /// over, the call first waits for a trial, which it begins if there is none.
    pub(super) async fn admit(
        &self,
        route: &Route,
        key: &str,
        deadline: Nanos,
        runtime: &Handle,
    ) -> Result<(), RedisError> {
        if route.link.is_open() {
            // A large future, which is seldom needed.
            Box::pin(self.admit_to_open(route, key, deadline, runtime)).await
        } else {
            Ok(())
        }
    }

    async fn admit_to_open(
        &self,
        route: &Route,
        key: &str,
        deadline: Nanos,
        runtime: &Handle,
    ) -> Result<(), RedisError> {
        let link = &route.link;
        let mut task = None::<JoinHandle<()>>;
        loop {
            let mut ended = pin!(link.trial_ended());
            // From here on, the end of the trial is not missed.
            ended.as_mut().enable();
            let until = match link.admission(link.now()) {
                Admission::Closed | Admission::Trial(_, true) => return Ok(()),
                Admission::Fails(error) => return Err(error),
                Admission::Waits(until) => until,
                Admission::Trial(number, false) => {
                    let trial = Trial::new(link, number);
                    if let Some(task) = task.take_if(|task| task.is_finished())
                        && task.await.is_err()
                    {
                        // The runtime has dropped the task of the trial. The next call that waits begins another.
                        return Err(RedisError::new(RedisErrorKind::NoRuntime, "the runtime has ended"));
                    }
                    task = Some(runtime.spawn(self.clone().try_server(route.clone(), key.to_owned(), trial)));
                    deadline
                }
            };
            link.until(deadline.min(until), ended).await;
            if link.now() >= deadline {
                link.count_if_late(deadline);
                return Err(link.deadline_error());
            }
        }
    }

    /// Tries the server of `route`, whose circuit breaker records the result.
    async fn try_server(self, route: Route, key: String, trial: Trial) {
        let deadline = route.link.deadline();
        let _ = self.attempt(&route, deadline, pin!(route.ping(&key, deadline))).await;
        trial.end();
    }

    /// Makes an attempt on `route`. The attempt ends at `deadline`. `trip` yields `None` if the server has changed
    /// nothing, because the deadline of a call had passed by the server's clock. `trip` is pinned by the caller: an
    /// asynchronous function that takes a future and passes it on needs room for the future twice.
    pub(super) async fn attempt<T>(
        &self,
        route: &Route,
        deadline: Nanos,
        trip: Pin<&mut impl Future<Output = Result<Option<T>, RedisError>>>,
    ) -> Attempted<T> {
        let error = match route.link.attempt(deadline, trip).await {
            Ok(Some(decided)) => return Attempted::Over(Ok(decided)),
            Ok(None) => {
                tokio::task::yield_now().await;
                return Attempted::Again(route.clone());
            }
            // Some of the keys of a joint call have been moved to another node, and some have not.
            Err(error) if error.detail().starts_with("TRYAGAIN") => {
                route.link.sleep_until(route.link.now().saturating_add(MOVING_PAUSE)).await;
                return Attempted::Again(route.clone());
            }
            Err(error) => match self.redirect(route, &error) {
                // The node that replied has changed nothing, so the node that it named decides all calls.
                Some(next) => match follow(&next).await {
                    Ok(()) => return Attempted::Again(next),
                    Err(open) => open,
                },
                None => error,
            },
        };
        self.find_masters_after(&error);
        Attempted::Over(Err(error))
    }

    /// Returns whether processes that change one key take turns. In a cluster, processes take no turns: while a slot is
    /// being moved, a script cannot use a second key that does not exist.
    pub(super) fn has_turns(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// Returns an error if one script cannot change both keys: `own`, which is on these links, and `key`, which is on
    /// `others`.
    pub(super) fn check_joined(&self, own: &str, others: &Self, key: &str) -> Result<(), RedisError> {
        let config = |detail: &str| Err(RedisError::new(RedisErrorKind::Config, detail));
        if !self.is_same(others) {
            return config("the limiters of joined layers need clones of one `RedisStore`");
        }
        if matches!(self, Self::Cluster(_)) && slot(own) != slot(key) {
            return config(
                "the keys of joined layers are in different slots of the cluster: set `one_slot(\"app\")` on the \
                 builder of the store",
            );
        }
        Ok(())
    }

    /// Returns whether both are the links of one store.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(own), Self::One(other)) => Arc::ptr_eq(own, other),
            (Self::Cluster(own), Self::Cluster(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// If `error` says that another node of the cluster has the key, returns the route to that node.
    fn redirect(&self, from: &Route, error: &RedisError) -> Option<Route> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => cluster.redirect(from, error),
        }
    }

    /// Asks the nodes of a cluster again which node has which slots, if `error` is an outage or says that no node has
    /// the slot. Another node may have become a master.
    fn find_masters_after(&self, error: &RedisError) {
        if let Self::Cluster(cluster) = self
            && (error.kind().is_outage() || error.kind() == RedisErrorKind::Unserved)
        {
            cluster.find_masters();
        }
    }

    pub(super) fn stats(&self) -> StoreStats {
        match self {
            Self::One(link) => link.stats(),
            Self::Cluster(cluster) => cluster.stats(),
        }
    }
}

impl Cluster {
    fn new(named: Vec<ConnectionInfo>, timeout: Duration, deadline: Duration) -> Result<Self, RedisError> {
        let config = |detail: String| RedisError::new(RedisErrorKind::Config, detail);
        let settings = NodeSettings { timeout, deadline, clock: AnyClock::default() };
        let mut first = Vec::new();
        for info in &named {
            if info.redis_settings().db() != 0 {
                return Err(config("a cluster has only the database 0".to_owned()));
            }
            let address = Address::of(info)
                .ok_or_else(|| config(format!("a node of a cluster is not reached at {}", info.addr())))?;
            first.push(Node::new(info, address, "", &settings)?);
        }
        let Some(node) = first.first() else {
            return Err(config("a cluster needs the URL of at least one node".to_owned()));
        };
        let any = Arc::clone(&node.link);
        // Until it is known which node has which slots, the call for a key is sent to any of the named nodes. If that
        // node does not have the key, it replies which node has the key.
        let of_slots = (0..SLOTS).map(|slot| (slot % first.len()) as u16).collect();
        let nodes = Nodes { nodes: first, of_slots, former: StoreStats::default() };
        Ok(Self { named, settings, any, nodes: RwLock::new(nodes), next_question: AtomicU64::new(0) })
    }

    fn any(&self) -> &Link {
        &self.any
    }

    fn link_of(&self, key: &str) -> Arc<Link> {
        let nodes = self.read();
        Arc::clone(&nodes.nodes[usize::from(nodes.of_slots[usize::from(slot(key))])].link)
    }

    /// If `error` says that another node has the key, returns the route to that node. Also records that node for the
    /// key's slot, unless the slot is still being migrated to that node (`ASK`).
    fn redirect(self: &Arc<Self>, from: &Route, error: &RedisError) -> Option<Route> {
        let Redirect { is_asking, slot, mut address } = Redirect::parse(error)?;
        let link = {
            let mut nodes = self.write();
            if address.host.is_empty() {
                let replied = nodes.nodes.iter().find(|node| Arc::ptr_eq(&node.link, &from.link))?;
                address.host.clone_from(&replied.address.host);
            }
            let index = index_of(&mut nodes.nodes, &address, || self.node(address.clone())).ok()?;
            if !is_asking {
                nodes.of_slots[usize::from(slot)] = index;
            }
            Arc::clone(&nodes.nodes[usize::from(index)].link)
        };
        if !is_asking {
            // Other slots may have moved together with this slot.
            self.find_masters();
        }
        Some(Route { link, is_asking, redirects: from.redirects + 1 })
    }

    /// Starts a background task that asks the nodes which node has which slots, and stores the reply. Does nothing
    /// outside a runtime, or if such a task is running or has ended less than 100 ms ago.
    fn find_masters(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let now = self.any.now().0;
        let next = self.next_question.load(Ordering::Relaxed);
        // If the runtime of this task is not driven, another task may begin after ten times the time limit of an
        // attempt to connect.
        let later = now.saturating_add(Nanos::from(self.settings.timeout).0.saturating_mul(10)).max(1);
        let ours = || self.next_question.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed);
        if now >= next && ours().is_ok() {
            let question = Question(Arc::clone(self));
            runtime.spawn(async move {
                // If no node answers, the next failed call starts another task.
                let _ = question.0.ask_for_slots().await;
            });
        }
    }

    /// Asks the nodes which node has which slots, a few nodes at a time. Stores the first reply that lists slots.
    async fn ask_for_slots(&self) -> Result<(), RedisError> {
        let mut known = self.read().nodes.clone();
        // Nodes with a closed circuit breaker are asked first. Servers that the user has named are asked last if they
        // are not among the known nodes.
        known.sort_by_key(|node| node.link.stats().is_circuit_open);
        for info in &self.named {
            if let Some(address) = Address::of(info)
                && !known.iter().any(|node| node.address == address)
            {
                known.push(Node::new(info, address, "", &self.settings)?);
            }
        }
        let mut failed = None;
        for some in known.chunks(ASKED_AT_ONCE) {
            let mut replies = JoinSet::new();
            for Node { client, address, name, .. } in some.iter().cloned() {
                let timeout = self.settings.max_time();
                replies.spawn(async move {
                    let late = || {
                        let detail = format!("no reply within {timeout:?}");
                        RedisError::new(RedisErrorKind::Unreachable, detail)
                    };
                    let reply = match tokio::time::timeout(timeout, client.slots()).await {
                        Ok(reply) => reply,
                        Err(_) => Err(client.problem().unwrap_or_else(late)),
                    };
                    let reply = reply.map_err(|error| name_no_cluster(error, &name))?;
                    parse_slots(&reply, &address.host)
                });
            }
            while let Some(reply) = replies.join_next().await {
                match reply {
                    Ok(Ok(ranges)) if !ranges.is_empty() => return self.take_over(&ranges),
                    Ok(Ok(_)) => {
                        failed = Some(RedisError::new(RedisErrorKind::Loading, "no node of it has slots"));
                    }
                    Ok(Err(error)) => failed = Some(error),
                    Err(_) => {}
                }
            }
        }
        Err(failed.unwrap_or_else(|| RedisError::new(RedisErrorKind::NoRuntime, "")))
    }

    /// Stores which master has which slots. Drops the links to nodes that have no slots any more.
    fn take_over(&self, ranges: &[Range]) -> Result<(), RedisError> {
        let mut nodes = self.write();
        let mut masters: Vec<Node> = Vec::new();
        let mut of_slots = vec![None; SLOTS];
        for Range { first, last, master } in ranges {
            let index = index_of(&mut masters, master, || {
                let known = nodes.nodes.iter().find(|node| node.address == *master).cloned();
                known.map_or_else(|| self.node(master.clone()), Ok)
            })?;
            of_slots[usize::from(*first)..=usize::from(*last)].fill(Some(index));
        }
        // According to the reply, some slots may have no master. Their keys are still sent to the node that had the
        // slot.
        let mut kept: Vec<Option<u16>> = vec![None; nodes.nodes.len()];
        for (new, old) in of_slots.iter_mut().zip(&nodes.of_slots).filter(|(new, _)| new.is_none()) {
            let index = &mut kept[usize::from(*old)];
            let node = &nodes.nodes[usize::from(*old)];
            if index.is_none() {
                *index = Some(index_of(&mut masters, &node.address, || Ok(node.clone()))?);
            }
            *new = *index;
        }
        let is_gone = |node: &&Node| !masters.iter().any(|master| Arc::ptr_eq(&master.link, &node.link));
        let former = nodes.nodes.iter().filter(is_gone).fold(nodes.former, |sum, node| node.add_stats(sum));
        let of_slots = of_slots.into_iter().flatten().collect();
        *nodes = Nodes { nodes: masters, of_slots, former };
        Ok(())
    }

    /// Executes a script on each master that has the slot of a test key. The error of a master that is late,
    /// unreachable or still loading is returned only if no other master answers. The error that the slot of the test
    /// key has moved counts as an answer. Any other error is returned at once.
    async fn verify(&self, keys: &KeyText) -> Result<(), RedisError> {
        let nodes = self.read().nodes.clone();
        let timeout = self.settings.max_time();
        let mut replies = JoinSet::new();
        for Node { link, name, .. } in &nodes {
            // There are 16 test keys per node, so each node very probably has at least one, unless the node has few
            // slots.
            let mut keys = (0..16 * nodes.len() as u64).map(|number| keys.of(&number));
            let Some(key) = keys.find(|key| Arc::ptr_eq(&self.link_of(key), link)) else { continue };
            let (link, name) = (Arc::clone(link), Arc::clone(name));
            replies.spawn(async move {
                link.verify(&key, &["ASKING"], timeout).await.map_err(|error| error.at(&name))
            });
        }
        let mut verified = false;
        let mut failed = None;
        while let Some(reply) = replies.join_next().await {
            match reply {
                Ok(Ok(())) => verified = true,
                Ok(Err(error)) => match error.kind() {
                    RedisErrorKind::Late | RedisErrorKind::Unreachable | RedisErrorKind::Loading => {
                        failed = Some(error);
                    }
                    // The node has answered: the slot of the test key has moved since the node was chosen.
                    RedisErrorKind::Moved => verified = true,
                    _ => return Err(error),
                },
                Err(_) => {}
            }
        }
        match failed {
            Some(error) if !verified => Err(error),
            _ => Ok(()),
        }
    }

    fn stats(&self) -> StoreStats {
        let nodes = self.read();
        let mut former = nodes.former;
        former.is_circuit_open = false;
        nodes.nodes.iter().fold(former, |sum, node| node.add_stats(sum))
    }

    /// Creates a node at `address`, with the settings of the first server that the user has named.
    fn node(&self, address: Address) -> Result<Node, RedisError> {
        Node::new(&self.named[0], address, url::FROM_CLUSTER, &self.settings)
    }

    fn read(&self) -> RwLockReadGuard<'_, Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Nodes> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let now = self.0.any.now().0;
        self.0.next_question.store(now.saturating_add(PAUSE), Ordering::Relaxed);
    }
}

/// Returns the index of the node at `address`. If there is none, adds the node that `make` returns.
fn index_of(
    nodes: &mut Vec<Node>,
    address: &Address,
    make: impl FnOnce() -> Result<Node, RedisError>,
) -> Result<u16, RedisError> {
    let known = nodes.iter().position(|node| node.address == *address);
    if known.is_none() {
        nodes.push(make()?);
    }
    let index = u16::try_from(known.unwrap_or(nodes.len() - 1));
    index.map_err(|_| RedisError::new(RedisErrorKind::Server, "more nodes than slots"))
}

/// Adds the name of the server to an error. The error of a server without cluster support is replaced by one that says
/// to use `RedisStore::connect`.
fn name_no_cluster(error: RedisError, name: &str) -> RedisError {
    if error.detail().contains("cluster support disabled") {
        RedisError::new(
            RedisErrorKind::Config,
            format!("{name} is no node of a cluster: create the store with `RedisStore::connect`"),
        )
    } else {
        error.at(name)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.read().nodes).finish_non_exhaustive()
    }
}

impl NodeSettings {
    /// Returns the time limit of a request to a node. The client may have to connect before it sends the request.
    fn max_time(&self) -> Duration {
        self.timeout.max(self.deadline)
    }
}

impl Node {
    /// Creates a node at `address`, which has this [origin](url::name), with the other settings of `like`. The node
    /// connects when it is first used.
    fn new(
        like: &ConnectionInfo,
        address: Address,
        origin: &'static str,
        settings: &NodeSettings,
    ) -> Result<Self, RedisError> {
        let NodeSettings { timeout, deadline, clock } = settings.clone();
        let client = ::redis::Client::open(address.apply_to(like)).map_err(|error| convert(&error))?;
        let name = url::name(client.get_connection_info().addr(), origin).into();
        let client = Client::new(Server::At(client.into(), origin), timeout);
        let link = Link::new(Box::new(client.clone()), clock, deadline, TimeSource::Server).into();
        Ok(Self { address, name, client, link })
    }

    /// Returns the sum of `stats` and the counts of this node.
    fn add_stats(&self, mut stats: StoreStats) -> StoreStats {
        let own = self.link.stats();
        stats.trips += own.trips;
        stats.late += own.late;
        stats.circuit_openings += own.circuit_openings;
        stats.is_circuit_open |= own.is_circuit_open;
        stats
    }
}

impl Address {
    /// Returns the settings of `like` for a server at this address, whose connections are kept alive.
    fn apply_to(&self, like: &ConnectionInfo) -> ConnectionInfo {
        at_address(like, self.host.clone(), self.port)
    }

    /// Returns the address of a server, if it has a port.
    fn of(info: &ConnectionInfo) -> Option<Self> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Self { host: host.clone(), port: *port })
            }
            _ => None,
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// Prepares a trip after a redirect. Returns an error if the circuit breaker of the new node is open. After several
/// redirects there is a pause, because nodes that redirect to each other do not agree yet which of them has the slot.
async fn follow(Route { link, redirects, .. }: &Route) -> Result<(), RedisError> {
    let now = link.now();
    link.admit(now)?;
    let pause = if *redirects > 3 { 2_000_000 } else { 0 };
    link.sleep_until(now.saturating_add(pause)).await;
    Ok(())
}

/// Returns the slot of a key: the slot of the text in the first pair of braces, or of the whole key if there is no such
/// text.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key)) % SLOTS as u16
}

/// Returns the checksum that the cluster specification defines, CRC-16/XMODEM.
fn crc16(text: &str) -> u16 {
    text.bytes().fold(0, |sum, byte| (sum << 8) ^ TABLE[usize::from((sum >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut sum, mut bit) = ((index as u16) << 8, 0);
        while bit < 8 {
            sum = if sum & 0x8000 > 0 { (sum << 1) ^ 0x1021 } else { sum << 1 };
            bit += 1;
        }
        table[index] = sum;
        index += 1;
    }
    table
};

impl Redirect {
    /// Parses an error such as `MOVED 3999 127.0.0.1:6381`.
    fn parse(error: &RedisError) -> Option<Self> {
        if error.kind() != RedisErrorKind::Moved {
            return None;
        }
        let mut words = error.detail().split(' ');
        let (code, slot, address) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        let (host, port) = address.rsplit_once(':')?;
        let address = Address { host: host.to_owned(), port: port.parse().ok()? };
        (usize::from(slot) < SLOTS).then_some(Self { is_asking: code == "ASK", slot, address })
    }
}

/// Parses the reply to `CLUSTER SLOTS`. `own`, the host of the server that replied, replaces an empty host in the
/// reply.
fn parse_slots(reply: &Value, own: &str) -> Result<Vec<Range>, RedisError> {
    let error = || {
        let reply: String = format!("{reply:?}").chars().take(200).collect();
        RedisError::new(RedisErrorKind::Server, format!("reply to CLUSTER SLOTS: {reply}"))
    };
    let Value::Array(ranges) = reply else { return Err(error()) };
    let mut found = Vec::new();
    for range in ranges {
        let range = Range::parse(range, own).ok_or_else(error)?;
        // A node that knows a master's slots, but not the master's address, replies with the host `?`.
        if range.master.host != "?" {
            found.push(range);
        }
    }
    Ok(found)
}

impl Range {
    fn parse(value: &Value, own: &str) -> Option<Self> {
        let Value::Array(parts) = value else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else { return None };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            Value::Nil => String::new(),
            _ => return None,
        };
        let slot = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
        let host = if host.is_empty() { own.to_owned() } else { host };
        let master = Address { host, port: (*port).try_into().ok()? };
        let (first, last) = (slot(first)?, slot(last)?);
        (first <= last).then_some(Self { first, last, master })
    }
}

#[cfg(test)]
mod tests;
