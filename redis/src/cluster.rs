//! The nodes of a cluster. Each node has a link of its own, so a node that fails affects only its keys.
//!
//! The `redis` crate has a cluster connection of its own. After each failure of a node, that connection asks again
//! which node has which slots (`CLUSTER SLOTS`). Until the reply arrives, it holds back all requests, including those
//! to other nodes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ::redis::ConnectionInfo;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::connection::Connection;
use super::error::{RedisError, RedisErrorKind};
use super::link::Link;
use super::node::{Node, NodeSettings};
use super::route::Route;
use super::slots::{Address, Range, Redirect, SLOTS, parse_slots, slot};
use tower_throttle::clock::{AnyClock, Nanos};
use tower_throttle::stats::StoreStats;
use tower_throttle::store::KeyText;

/// The maximum number of nodes to which `CLUSTER SLOTS` is sent at the same time.
const ASKED_AT_ONCE: usize = 4;
/// The minimum pause between two rounds of `CLUSTER SLOTS`, in nanoseconds.
const PAUSE: u64 = 100_000_000;

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

impl Cluster {
    pub(super) fn new(
        named: Vec<ConnectionInfo>,
        timeout: Duration,
        deadline: Duration,
    ) -> Result<Self, RedisError> {
        let config = |detail: String| RedisError::new(RedisErrorKind::Config, detail);
        let settings = NodeSettings { timeout, deadline, clock: AnyClock::default() };
        let mut first = Vec::new();
        for info in &named {
            if info.redis_settings().db() != 0 {
                return Err(config("a cluster has only the database 0".to_owned()));
            }
            let address = Address::of(info)
                .ok_or_else(|| config(format!("a node of a cluster is not reached at {}", info.addr())))?;
            first.push(Node::new(info, address, &settings)?);
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

    pub(super) fn any(&self) -> &Link {
        &self.any
    }

    pub(super) fn link_of(&self, key: &str) -> Arc<Link> {
        let nodes = self.read();
        Arc::clone(&nodes.nodes[usize::from(nodes.of_slots[usize::from(slot(key))])].link)
    }

    /// If `error` says that another node has the key, returns the route to that node. Also records that node for the
    /// key's slot, unless the slot is still being migrated to that node (`ASK`).
    pub(super) fn redirect(self: &Arc<Self>, from: &Route, error: &RedisError) -> Option<Route> {
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
    /// outside of a runtime, or if such a task is running or has ended less than 100 ms ago.
    pub(super) fn find_masters(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (now, next) = (self.any.now().0, self.next_question.load(Ordering::Relaxed));
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
    pub(super) async fn ask_for_slots(&self) -> Result<(), RedisError> {
        let mut known = self.read().nodes.clone();
        // Nodes with a closed circuit breaker are asked first. Servers that the user has named are asked last if they
        // are not among the known nodes.
        known.sort_by_key(|node| node.link.breaker.is_open());
        for info in &self.named {
            if let Some(address) = Address::of(info)
                && !known.iter().any(|node| node.address == address)
            {
                known.push(Node::new(info, address, &self.settings)?);
            }
        }
        let mut failed = None;
        for some in known.chunks(ASKED_AT_ONCE) {
            let mut replies = JoinSet::new();
            for Node { client, address, .. } in some.iter().cloned() {
                let timeout = self.settings.max_time();
                replies.spawn(async move {
                    let reply = tokio::time::timeout(timeout, client.slots()).await;
                    let late =
                        |_| RedisError::new(RedisErrorKind::Unreachable, format!("within {timeout:?}"));
                    let reply = reply.map_err(|error| client.problem().unwrap_or_else(|| late(error)))??;
                    parse_slots(&reply, &address.host)
                });
            }
            while let Some(reply) = replies.join_next().await {
                match reply {
                    Ok(Ok(ranges)) if !ranges.is_empty() => return self.take_over(&ranges),
                    Ok(Ok(_)) => {
                        failed = Some(RedisError::new(RedisErrorKind::Loading, "no node of it has slots"));
                    }
                    Ok(Err(error)) => failed = Some(name_no_cluster(error)),
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
            let (index, node) = (&mut kept[usize::from(*old)], &nodes.nodes[usize::from(*old)]);
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
    pub(super) async fn verify(&self, keys: &KeyText) -> Result<(), RedisError> {
        let links: Vec<_> = self.read().nodes.iter().map(|node| Arc::clone(&node.link)).collect();
        let timeout = self.settings.max_time();
        let mut replies = JoinSet::new();
        for link in &links {
            // There are 16 test keys per node, so each node very probably has at least one, unless the node has few
            // slots.
            let mut keys = (0..16 * links.len() as u64).map(|number| keys.of(&number));
            let Some(key) = keys.find(|key| Arc::ptr_eq(&self.link_of(key), link)) else { continue };
            let link = Arc::clone(link);
            replies.spawn(async move { link.verify(&key, timeout).await });
        }
        let (mut verified, mut failed) = (false, None);
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

    pub(super) fn stats(&self) -> StoreStats {
        let nodes = self.read();
        let mut former = nodes.former;
        former.is_circuit_open = false;
        nodes.nodes.iter().fold(former, |sum, node| node.add_stats(sum))
    }

    /// Creates a node at `address`, with the settings of the first server that the user has named.
    fn node(&self, address: Address) -> Result<Node, RedisError> {
        Node::new(&self.named[0], address, &self.settings)
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

/// Replaces the error of a server without cluster support by one that says to use `RedisStore::connect`. Returns any
/// other error unchanged.
fn name_no_cluster(error: RedisError) -> RedisError {
    match error.detail().contains("cluster support disabled") {
        true => RedisError::new(
            RedisErrorKind::Config,
            "the server is no node of a cluster: create the store with `RedisStore::connect`",
        ),
        false => error,
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.read().nodes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ::redis::IntoConnectionInfo;

    use super::*;

    fn cluster(urls: &[&str]) -> Result<Arc<Cluster>, RedisError> {
        let named = urls.iter().map(|url| url.into_connection_info().unwrap()).collect();
        let time = Duration::from_millis(50);
        Cluster::new(named, time, time).map(Arc::new)
    }

    fn range(first: u16, last: u16, port: u16) -> Range {
        Range { first, last, master: Address { host: "127.0.0.1".to_owned(), port } }
    }

    /// Returns the port of the node that the store asks for a key.
    fn port_of(cluster: &Cluster, key: &str) -> u16 {
        let link = cluster.link_of(key);
        let nodes = cluster.read();
        nodes.nodes.iter().find(|node| Arc::ptr_eq(&node.link, &link)).unwrap().address.port
    }

    fn route(cluster: &Cluster, key: &str) -> Route {
        Route::new(cluster.link_of(key))
    }

    fn counts(late: u64, circuit_openings: u64, is_circuit_open: bool) -> StoreStats {
        let mut stats = StoreStats::default();
        (stats.late, stats.circuit_openings, stats.is_circuit_open) =
            (late, circuit_openings, is_circuit_open);
        stats
    }

    // The key `foo` is in slot 12182, and `bar` in 5061.
    #[test]
    fn a_key_is_asked_of_the_master_that_has_its_slot() {
        let cluster = cluster(&["redis://127.0.0.1:1"]).unwrap();
        assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (1, 1));
        cluster.take_over(&[range(0, 5_999, 1), range(6_000, 12_181, 2), range(12_182, 16_383, 3)]).unwrap();
        assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (3, 1));
        let kept = cluster.link_of("foo");
        cluster.take_over(&[range(0, 5_999, 4), range(6_000, 16_383, 3)]).unwrap();
        assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (3, 4));
        assert!(Arc::ptr_eq(&kept, &cluster.link_of("foo")), "a master that stays keeps its link");
        assert_eq!(cluster.read().nodes.len(), 2, "the others are given up");
        // The keys of a slot without a master are sent to the node that had the slot.
        cluster.take_over(&[range(0, 5_999, 1)]).unwrap();
        assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (3, 1));
        assert_eq!(cluster.read().nodes.len(), 2);
    }

    #[test]
    fn a_slot_that_has_moved_is_remembered_and_one_on_its_way_is_not() {
        let cluster = cluster(&["redis://127.0.0.1:1"]).unwrap();
        let from = route(&cluster, "foo");
        let error = |text: &str| RedisError::from_reply(text);
        let asked = cluster.redirect(&from, &error("ASK 12182 127.0.0.1:2")).unwrap();
        assert!(asked.is_asking && !Arc::ptr_eq(&asked.link, &from.link));
        assert_eq!(port_of(&cluster, "foo"), 1);
        let moved = cluster.redirect(&from, &error("MOVED 12182 127.0.0.1:2")).unwrap();
        assert!(!moved.is_asking && Arc::ptr_eq(&moved.link, &asked.link));
        assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (2, 1));
        // An empty host stands for the host of the node that replied.
        let back = cluster.redirect(&moved, &error("MOVED 12182 :1")).unwrap();
        assert!(Arc::ptr_eq(&back.link, &from.link));
        assert_eq!((moved.redirects, back.redirects), (1, 2));
        assert!(cluster.redirect(&from, &error("OOM")).is_none());
        assert!(cluster.redirect(&from, &error("MOVED 16384 127.0.0.1:2")).is_none());
    }

    #[test]
    fn what_former_masters_have_counted_is_kept() {
        let cluster = cluster(&["redis://127.0.0.1:1"]).unwrap();
        let link = cluster.link_of("foo");
        let error = RedisError::new(RedisErrorKind::Busy, "");
        link.count_late();
        link.failed(error, 0);
        assert_eq!(cluster.stats(), counts(1, 1, true));
        cluster.take_over(&[range(0, 16_383, 2)]).unwrap();
        assert_eq!(cluster.stats(), counts(1, 1, false));
        cluster.take_over(&[range(0, 16_383, 3)]).unwrap();
        assert_eq!(cluster.stats().late, 1);
    }

    #[test]
    fn addresses_that_no_node_can_have_are_errors() {
        for urls in [&[][..], &["redis://127.0.0.1:1/3"], &["redis://127.0.0.1:1", "unix:///tmp/redis.sock"]]
        {
            assert_eq!(cluster(urls).unwrap_err().kind(), RedisErrorKind::Config, "{urls:?}");
        }
    }
}
