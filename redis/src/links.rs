//! The link to the server of a store, or the cluster with a link to each node.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::cluster::Cluster;
use super::error::{RedisError, RedisErrorKind};
use super::link::Link;
use super::route::Route;
use super::slots::slot;
use tower_throttle::clock::Nanos;
use tower_throttle::stats::StoreStats;

#[derive(Clone, Debug)]
pub(super) enum Links {
    /// One server.
    One(Arc<Link>),
    Cluster(Arc<Cluster>),
}

/// If a trip ends more than this time after its deadline, its caller was not polled in time. The unit is nanoseconds.
const POLLED_LATE: u64 = 10_000_000;

/// The result of an attempt to make a trip.
pub(super) enum Attempted<T> {
    Over(Result<T, RedisError>),
    /// The trip has changed nothing, and must be made again on this route.
    Again(Route),
}

/// The pause, in nanoseconds, before the trip of a joint call is made again because the keys of the call are being
/// moved.
const MOVING_PAUSE: u64 = 2_000_000;

impl Links {
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
        Route::new(link)
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
        let link = &*route.link;
        let connection = link.connection();
        let result = match link.until(deadline, trip).await {
            Some(Ok(Some(decided))) => return Attempted::Over(Ok(decided)),
            Some(Ok(None)) => {
                tokio::task::yield_now().await;
                return Attempted::Again(route.clone());
            }
            // Some of the keys of a joint call have been moved to another node, and some have not.
            Some(Err(error)) if error.detail().starts_with("TRYAGAIN") => {
                link.sleep_until(link.now().saturating_add(MOVING_PAUSE)).await;
                return Attempted::Again(route.clone());
            }
            Some(Err(error)) => match self.redirect(route, &error) {
                // The node that replied has changed nothing, so the node that it named decides all calls.
                Some(next) => {
                    let now = link.now();
                    match next.link.breaker.admit(now) {
                        Ok(()) => {
                            link.sleep_until(now.saturating_add(next.pause())).await;
                            return Attempted::Again(next);
                        }
                        Err(open) => Err(open),
                    }
                }
                None => Err(error),
            },
            None => {
                link.end_silent(connection);
                match link.now() > deadline.saturating_add(POLLED_LATE) {
                    // The caller was not polled in time, which says nothing about the server.
                    true => Err(link.deadline_error()),
                    false => Err(link.failed_late(connection)),
                }
            }
        };
        if let Err(error) = &result {
            self.find_masters_after(error);
        }
        Attempted::Over(result)
    }

    /// Returns whether both are the links of one store.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(own), Self::One(other)) => Arc::ptr_eq(own, other),
            (Self::Cluster(own), Self::Cluster(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// Returns whether processes that change one key take turns. In a cluster, processes take no turns: while a slot is
    /// being moved, a script cannot use a second key that does not exist.
    pub(super) fn has_turns(&self) -> bool {
        matches!(self, Self::One(_))
    }

    /// Returns whether one script can change both keys.
    pub(super) fn has_one_slot(&self, key: &str, other: &str) -> bool {
        matches!(self, Self::One(_)) || slot(key) == slot(other)
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
