//! The messages by which the server says that a waiter has a permit. These messages arrive on a connection of their
//! own, and may be lost.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dashmap::DashMap;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::records::Records;
use crate::links::Links;
use tower_throttle::store_support::random_u64;

/// The first pause between the end of a connection for messages and the next connection, and the maximum pause. The
/// pause doubles each time, until a connection lasts for [`IDLE`].
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// The interval at which the task examines whether a call waits. If no call waits, the task closes the connection.
const IDLE: Duration = Duration::from_secs(10);

/// The receiver of the messages for all limiters of a store.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The name of this store, which no store of another process has.
    process: String,
    next_number: AtomicU64,
    /// The calls that wait or may have to wait, by the numbers of their records.
    waiting: DashMap<u64, Arc<Records>>,
    /// The task that receives messages.
    task: Mutex<Option<AbortHandle>>,
}

impl Listener {
    pub(crate) fn new() -> Arc<Self> {
        let process = format!("{:016x}", random_u64());
        Arc::new(Self {
            process,
            next_number: AtomicU64::new(0),
            waiting: DashMap::new(),
            task: Mutex::default(),
        })
    }

    pub(super) fn process(&self) -> &str {
        &self.process
    }

    /// Returns the number of a new record. No two records of a store have the same number.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Expects a message about a record, until [`forget`](Self::forget) is called.
    pub(super) fn expect(&self, number: u64, records: &Arc<Records>) {
        self.waiting.insert(number, Arc::clone(records));
    }

    pub(super) fn forget(&self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Starts the task that receives messages, unless it is running. `channel` is the beginning of the names of
    /// channels. In a cluster, the task subscribes at the node that has `key`. Since the nodes forward messages to each
    /// other, the task also receives the messages about keys of other nodes.
    pub(super) fn listen(self: &Arc<Self>, links: &Links, channel: &str, key: &Arc<str>) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let receive = receive(
                Arc::downgrade(self),
                links.clone(),
                format!("{channel}{}", self.process),
                Arc::clone(key),
            );
            *task = Some(runtime.spawn(receive).abort_handle());
        }
    }

    /// Processes a message: the number of a record, its fencing token, and the units that all records hold.
    fn receive(&self, text: &str, links: &Links) {
        let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (Some(number), Some(fence), Some(held)) = (next(), next(), next()) else { return };
        let Some(records) = self.waiting.get(&number).map(|records| Arc::clone(&records)) else { return };
        records.lock().receive(&records.rules, number, fence, held, links.any().now());
        records.wake.notify_one();
    }
}

async fn receive(listener: Weak<Listener>, links: Links, channel: String, key: Arc<str>) {
    let mut pause = PAUSES.0;
    while listener.upgrade().is_some_and(|listener| !listener.waiting.is_empty()) {
        let (receiver, of) = (listener.clone(), links.clone());
        let on_message = move |text: &str| {
            if let Some(listener) = receiver.upgrade() {
                listener.receive(text, &of);
            }
        };
        let mut messages = pin!(links.route(&key).link.listen(channel.clone(), Box::new(on_message)));
        while tokio::time::timeout(IDLE, &mut messages).await.is_err() {
            pause = PAUSES.0;
            if listener.upgrade().is_none_or(|listener| listener.waiting.is_empty()) {
                return;
            }
        }
        tokio::time::sleep(pause).await;
        pause = PAUSES.1.min(2 * pause);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}
