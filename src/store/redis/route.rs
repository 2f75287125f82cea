//! The way of one trip.

use std::sync::Arc;

use super::link::Link;

/// Where a trip goes.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) link: Arc<Link>,
    /// `true` if the slot of the key is on its way to that node, and the key is there already.
    pub(super) is_asking: bool,
    /// The number of nodes that said that another one has the key.
    pub(super) redirects: u32,
}

impl Route {
    /// Returns how long to wait before the trip, in nanoseconds: nodes that send a key to each other do not agree yet.
    pub(super) fn pause(&self) -> u64 {
        if self.redirects > 3 { 2_000_000 } else { 0 }
    }
}
