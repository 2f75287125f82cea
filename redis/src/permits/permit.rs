//! The place of a call among the records of its key, and the permit that the call may get.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::record::{Call, Grant};
use super::records::Records;
use super::trips::Shared;
use crate::link::Link;
use tower_throttle::Decision;
use tower_throttle::clock::Nanos;
use tower_throttle::store_support::Charge;

/// The record of a call. When this value is dropped, a trip removes the record from the server, and its permit is
/// handed over.
pub(super) struct Place {
    shared: Arc<Shared>,
    records: Arc<Records>,
    number: u64,
    runtime: Handle,
    /// `true` if the permit was forgotten, so that the record stays when this value is dropped.
    is_kept: bool,
}

/// The permit of an admitted call.
pub(super) struct HeldPermit {
    place: Place,
    grant: Grant,
}

impl Place {
    /// Adds a call to the next trip of its key.
    pub(super) fn new(shared: &Arc<Shared>, key: &Arc<str>, units: u64, call: Call, runtime: Handle) -> Self {
        let (number, may_wait) = (shared.listener.next_number(), call.latest.is_some());
        let records = shared.change(key, &runtime, |records, state| {
            if may_wait {
                shared.listener.expect(number, records);
            }
            state.enter(number, units, call);
        });
        Self { shared: Arc::clone(shared), records, number, runtime, is_kept: false }
    }

    /// Starts another task if the task of the records has ended or is not driven.
    pub(super) fn tend(&self) {
        self.start(self.records.tend(self.shared.links.any().now()));
    }

    fn start(&self, task: Option<u64>) {
        let Self { shared, records, runtime, .. } = self;
        // The runtime in which the call was made may have ended.
        let present = Handle::try_current();
        shared.start(task, records, present.as_ref().unwrap_or(runtime));
    }

    /// Returns whether the call waits in the queue of the server.
    pub(super) fn is_waiting(&self) -> bool {
        self.records.lock().is_waiting(self.number)
    }

    /// Returns the permit of the call, which was admitted.
    pub(super) fn hold(self, grant: Grant) -> HeldPermit {
        self.shared.listener.forget(self.number);
        HeldPermit { place: self, grant }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.listener.forget(self.number);
        if !self.is_kept {
            let now = self.shared.links.any().now();
            let expires = now.saturating_add(self.shared.rules.lease);
            self.start(self.records.change(now, |state| state.leave(self.number, expires)));
        }
    }
}

impl Charge for HeldPermit {
    fn settle(self: Box<Self>, _: u64) -> Option<Decision> {
        None
    }

    fn release(self: Box<Self>) {}

    /// Keeps the record until the call is released by `release` of the limiter.
    fn forget(mut self: Box<Self>) {
        self.place.records.lock().forget(self.place.number);
        self.place.is_kept = true;
    }

    fn is_permit(&self) -> bool {
        true
    }

    fn fencing_token(&self) -> Option<u64> {
        Some(self.grant.fence)
    }

    fn lost(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let (shared, valid_until) = (Arc::clone(&self.place.shared), self.grant.valid_until.clone());
        Some(Box::pin(async move { lost(shared.links.any(), valid_until).await }))
    }
}

/// Waits until a permit is no longer valid. This does not need the task that renews the permit, which may have ended.
async fn lost(link: &Link, mut valid_until: watch::Receiver<Nanos>) {
    loop {
        let until = *valid_until.borrow_and_update();
        if until <= link.now() {
            return;
        }
        match link.until(until, valid_until.changed()).await {
            // The permit was renewed, or lost.
            Some(Ok(())) => {}
            // Nothing renews the permit any more.
            Some(Err(_)) => link.sleep_until(until).await,
            None => {}
        }
    }
}
