//! The link of a store, or those to the nodes of a cluster.

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
    /// Returns a link for what all have in common: the clock, the deadline and the source of the time.
    pub(super) fn any(&self) -> &Link {
        match self {
            Self::One(link) => link,
            Self::Cluster(cluster) => cluster.any(),
        }
    }

    /// Returns the link to the server that has the key, as it seems.
    pub(super) fn route(&self, key: &str) -> Route {
        let link = match self {
            Self::One(link) => Arc::clone(link),
            Self::Cluster(cluster) => cluster.link_of(key),
        };
        Route { link, is_asking: false, redirects: 0 }
    }

    /// Returns where the key is if a node of a cluster replied that another one has it.
    pub(super) fn redirect(&self, from: &Route, error: &RedisError) -> Option<Route> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => cluster.redirect(from, error),
        }
    }

    /// Has the masters of a cluster found out anew after a call failed, since another node may have taken over.
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
