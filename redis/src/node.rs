//! A node of a cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{ConnectionAddr, ConnectionInfo};

use super::client::Client;
use super::client::Server;
use super::connection::at_address;
use super::error::{RedisError, convert};
use super::link::Link;
use super::scripts::TimeSource;
use super::slots::Address;
use tower_throttle::clock::AnyClock;
use tower_throttle::stats::StoreStats;

/// The address of a node, and the link to the node.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) client: Client,
    pub(super) link: Arc<Link>,
}

/// The settings that all nodes of a cluster have in common.
#[derive(Clone, Debug)]
pub(super) struct NodeSettings {
    /// The time limit of an attempt to connect.
    pub(super) timeout: Duration,
    pub(super) deadline: Duration,
    pub(super) clock: AnyClock,
}

impl NodeSettings {
    /// Returns the time limit of a request to a node. The client may have to connect before it sends the request.
    pub(super) fn max_time(&self) -> Duration {
        self.timeout.max(self.deadline)
    }
}

impl Node {
    /// Creates a node at `address` with the other settings of `like`. The node connects when it is first used.
    pub(super) fn new(
        like: &ConnectionInfo,
        address: Address,
        settings: &NodeSettings,
    ) -> Result<Self, RedisError> {
        let NodeSettings { timeout, deadline, clock } = settings.clone();
        let client = ::redis::Client::open(address.apply_to(like)).map_err(|error| convert(&error))?;
        let client = Client::new(Server::At(client), timeout);
        let link = Link::new(Box::new(client.clone()), clock, deadline, TimeSource::Server).into();
        Ok(Self { address, client, link })
    }

    /// Returns the sum of `stats` and the counts of this node.
    pub(super) fn add_stats(&self, mut stats: StoreStats) -> StoreStats {
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
    pub(super) fn apply_to(&self, like: &ConnectionInfo) -> ConnectionInfo {
        at_address(like, self.host.clone(), self.port)
    }

    /// Returns the address of a server, if it has a port.
    pub(super) fn of(info: &ConnectionInfo) -> Option<Self> {
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
