//! The route of a trip: the node, and how the node is asked.

use std::sync::Arc;

use super::link::Link;

/// The node of a trip, and how the trip came to that node.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) link: Arc<Link>,
    /// `true` if the trip came to the node because of the reply `ASK`: the slot of the key is still being migrated to
    /// the node.
    pub(super) is_asking: bool,
    /// The number of replies in this trip that said that another node has the key.
    pub(super) redirects: u32,
}

impl Route {
    /// Creates the first route of a trip, before any node has replied that another node has the key.
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, is_asking: false, redirects: 0 }
    }

    /// Returns the pause before the trip, in nanoseconds. After several redirects there is a pause, because nodes that
    /// redirect to each other do not agree yet which of them has the slot.
    pub(super) fn pause(&self) -> u64 {
        if self.redirects > 3 { 2_000_000 } else { 0 }
    }
}
