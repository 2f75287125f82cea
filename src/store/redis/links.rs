//! The link to the server of a store, or the cluster with a link to each node.

use std::sync::Arc;

use super::cluster::Cluster;
use super::error::{RedisError, RedisErrorKind};
use super::link::Link;
use super::route::Route;
use super::stats::RedisStats;

#[derive(Clone, Debug)]
pub(super) enum Links {
    /// One server.
    One(Arc<Link>),
    Cluster(Arc<Cluster>),
}

impl Links {
    /// Returns a link, for the settings that all links share: the clock, the deadline and the source of the time.
    pub(super) fn any(&self) -> &Link {
        match self {
            Self::One(link) => link,
            Self::Cluster(cluster) => cluster.any(),
        }
    }

    /// Returns the route to the server that has the key. In a cluster, this may be wrong, because the slot of the key
    /// may have moved to another node.
    pub(super) fn route(&self, key: &str) -> Route {
        let link = match self {
            Self::One(link) => Arc::clone(link),
            Self::Cluster(cluster) => cluster.link_of(key),
        };
        Route::new(link)
    }

    /// If `error` says that another node of the cluster has the key, returns the route to that node.
    pub(super) fn redirect(&self, from: &Route, error: &RedisError) -> Option<Route> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => cluster.redirect(from, error),
        }
    }

    /// Asks the nodes of a cluster again which node has which slots, if `error` is an outage or says that no node has
    /// the slot. Another node may have become a master.
    pub(super) fn find_masters_after(&self, error: &RedisError) {
        if let Self::Cluster(cluster) = self
            && (error.kind().is_outage() || error.kind() == RedisErrorKind::Unserved)
        {
            cluster.find_masters();
        }
    }

    pub(super) fn stats(&self) -> RedisStats {
        match self {
            Self::One(link) => link.stats(),
            Self::Cluster(cluster) => cluster.stats(),
        }
    }
}
