//! The nodes of a cluster. Each has a link of its own, so a node that fails concerns only its keys.
//!
//! The `redis` crate has a connection to a cluster, too. It asks for the slots again after each failure of a node, and holds
//! back all requests meanwhile, also those to other nodes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::RedisStats;
use super::client::{Client, convert};
use super::connection::Connection;
use super::error::{RedisError, RedisErrorKind};
use super::link::Link;
use super::links::Route;
use super::scripts::TimeSource;
use super::slots::{Address, Range, Redirect, SLOTS, parse_slots, slot};
use crate::clock::Nanos;
use crate::store::shared_key::KeyText;

/// The number of nodes that are asked at once which node has which slots.
const ASKED_AT_ONCE: usize = 4;
/// The shortest time between two times at which nodes are asked that, in nanoseconds.
const PAUSE: u64 = 100_000_000;

pub(super) struct Cluster {
    /// The servers that the user has named.
    named: Vec<ConnectionInfo>,
    /// The time limit of an attempt to connect, and of the question for the slots.
    timeout: Duration,
    deadline: Duration,
    /// A link that is used for its clock and deadline alone.
    any: Arc<Link>,
    nodes: RwLock<Nodes>,
    /// The time from which the nodes may be asked for the slots again.
    next_question: AtomicU64,
}

#[derive(Debug, Default)]
struct Nodes {
    nodes: Vec<Node>,
    /// The index of the node of each slot.
    of_slots: Vec<u16>,
    /// What nodes have counted that are no longer among the masters.
    former: RedisStats,
}

#[derive(Clone)]
struct Node {
    address: Address,
    client: Client,
    link: Arc<Link>,
}

/// Ends the time in which no other question for the slots begins.
struct Question(Arc<Cluster>);

impl Cluster {
    pub(super) fn new(
        named: Vec<ConnectionInfo>,
        timeout: Duration,
        deadline: Duration,
    ) -> Result<Self, RedisError> {
        let config = |detail: String| RedisError::new(RedisErrorKind::Config, detail);
        let mut first = Vec::new();
        for info in &named {
            if info.redis_settings().db() != 0 {
                return Err(config("a cluster has only the database 0".to_owned()));
            }
            let address = address_of(info)
                .ok_or_else(|| config(format!("a node of a cluster is not reached at {}", info.addr())))?;
            first.push(Node::new(info, address, timeout, deadline)?);
        }
        let Some(node) = first.first() else {
            return Err(config("a cluster needs the URL of at least one node".to_owned()));
        };
        let any = Arc::clone(&node.link);
        // Until the slots are known, a node that does not have a key says which one does.
        let of_slots = (0..SLOTS).map(|slot| (slot % first.len()) as u16).collect();
        let nodes = Nodes { nodes: first, of_slots, former: RedisStats::default() };
        Ok(Self {
            named,
            timeout,
            deadline,
            any,
            nodes: RwLock::new(nodes),
            next_question: AtomicU64::new(0),
        })
    }

    pub(super) fn any(&self) -> &Link {
        &self.any
    }

    pub(super) fn link_of(&self, key: &str) -> Arc<Link> {
        let nodes = self.read();
        Arc::clone(&nodes.nodes[usize::from(nodes.of_slots[usize::from(slot(key))])].link)
    }

    /// Takes over that another node has a key, if `error` says so. Returns the way there.
    pub(super) fn redirect(self: &Arc<Self>, from: &Route, error: &RedisError) -> Option<Route> {
        let Redirect { is_asking, slot, mut address } = Redirect::parse(error)?;
        let link = {
            let mut nodes = self.write();
            if address.host.is_empty() {
                let replied = nodes.nodes.iter().find(|node| Arc::ptr_eq(&node.link, &from.link))?;
                address.host.clone_from(&replied.address.host);
            }
            let index = match nodes.nodes.iter().position(|node| node.address == address) {
                Some(index) => index,
                None => {
                    nodes.nodes.push(self.node(address).ok()?);
                    nodes.nodes.len() - 1
                }
            };
            if !is_asking {
                nodes.of_slots[usize::from(slot)] = u16::try_from(index).ok()?;
            }
            Arc::clone(&nodes.nodes[index].link)
        };
        if !is_asking {
            // Other slots may have moved, too.
            self.find_masters();
        }
        Some(Route { link, is_asking, redirects: from.redirects + 1 })
    }

    /// Asks the nodes for the slots and takes over the reply, in the background and not more often than every 100 ms.
    pub(super) fn find_masters(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (now, next) = (self.any.now().0, self.next_question.load(Ordering::Relaxed));
        // A runtime that is not driven must not hold back the others for ever.
        let later = now.saturating_add(Nanos::from(self.timeout).0.saturating_mul(10)).max(1);
        let ours = || self.next_question.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed);
        if now >= next && ours().is_ok() {
            let question = Question(Arc::clone(self));
            runtime.spawn(async move {
                // If no node answers, the next call that fails asks again.
                let _ = question.0.ask_for_slots().await;
            });
        }
    }

    /// Asks the nodes for the slots, a few at a time, and takes over the first reply.
    pub(super) async fn ask_for_slots(&self) -> Result<(), RedisError> {
        let mut known = self.read().nodes.clone();
        // Those that answer come first, and those that the user has named and that are no masters last.
        known.sort_by_key(|node| node.link.breaker.is_open());
        for info in &self.named {
            if let Some(address) = address_of(info)
                && !known.iter().any(|node| node.address == address)
            {
                known.push(Node::new(info, address, self.timeout, self.deadline)?);
            }
        }
        let mut failed = None;
        for some in known.chunks(ASKED_AT_ONCE) {
            let mut replies = JoinSet::new();
            for Node { client, address, .. } in some.iter().cloned() {
                let timeout = self.timeout.max(self.deadline);
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

    /// Takes over which master has which slots. Links to servers that are no masters any more are given up.
    fn take_over(&self, ranges: &[Range]) -> Result<(), RedisError> {
        let mut nodes = self.write();
        let mut masters: Vec<Node> = Vec::new();
        let mut of_slots = vec![None; SLOTS];
        for Range { first, last, master } in ranges {
            let index = match masters.iter().position(|node| node.address == *master) {
                Some(index) => index,
                None => {
                    let known = nodes.nodes.iter().find(|node| node.address == *master).cloned();
                    masters.push(known.map_or_else(|| self.node(master.clone()), Ok)?);
                    masters.len() - 1
                }
            };
            of_slots[usize::from(*first)..=usize::from(*last)].fill(Some(index as u16));
        }
        let is_gone = |node: &&Node| !masters.iter().any(|master| Arc::ptr_eq(&master.link, &node.link));
        let former =
            nodes.nodes.iter().filter(is_gone).fold(nodes.former, |sum, node| sum.and(node.link.stats()));
        // A slot that no master has is asked of any; it replies that the cluster is down, or who has it.
        let of_slots = of_slots.into_iter().map(|index| index.unwrap_or(0)).collect();
        *nodes = Nodes { nodes: masters, of_slots, former };
        Ok(())
    }

    /// Executes a script on each master. Returns an error if none can be reached, or one cannot decide calls for another reason.
    pub(super) async fn verify(&self, keys: &KeyText) -> Result<(), RedisError> {
        let links: Vec<_> = self.read().nodes.iter().map(|node| Arc::clone(&node.link)).collect();
        let timeout = self.timeout.max(self.deadline);
        let mut replies = JoinSet::new();
        for link in &links {
            // Among some keys for each node, it has one, unless it has few slots.
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
                    // The slot has moved.
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

    pub(super) fn stats(&self) -> RedisStats {
        let nodes = self.read();
        let former = RedisStats { is_open: false, ..nodes.former };
        nodes.nodes.iter().fold(former, |sum, node| sum.and(node.link.stats()))
    }

    /// Creates a node that is reached like the first of the named servers, at another address.
    fn node(&self, address: Address) -> Result<Node, RedisError> {
        Node::new(&self.named[0], address, self.timeout, self.deadline)
    }

    fn read(&self) -> RwLockReadGuard<'_, Nodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Nodes> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    fn new(
        like: &ConnectionInfo,
        address: Address,
        timeout: Duration,
        deadline: Duration,
    ) -> Result<Self, RedisError> {
        let (host, port) = (address.host.clone(), address.port);
        let addr = match like.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let info = like.clone().set_addr(addr).into_connection_info().map_err(|error| convert(&error))?;
        let client = Client::new(::redis::Client::open(info).map_err(|error| convert(&error))?, timeout);
        let link = Link::new(Box::new(client.clone()), deadline, TimeSource::Server).into();
        Ok(Self { address, client, link })
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let now = self.0.any.now().0;
        self.0.next_question.store(now.saturating_add(PAUSE), Ordering::Relaxed);
    }
}

fn address_of(info: &ConnectionInfo) -> Option<Address> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Address { host: host.clone(), port: *port })
        }
        _ => None,
    }
}

/// Names the error of a server that is no node of a cluster.
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

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}
