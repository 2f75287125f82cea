//! The layer between other layers. The instance that is ready is the one that is called, and nothing is charged before
//! the call.

mod between_layers;
mod limits;
mod readied_instance;

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::sleep;
use tower::{BoxError, Service};
use tower_throttle::Error;

/// A service that panics if an instance is called that is not ready. It records which instance was called.
#[derive(Debug)]
struct Probe {
    number: u64,
    ready: bool,
    shared: Arc<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    numbers: AtomicU64,
    /// Returns the instances that were called, in order.
    called: Mutex<Vec<u64>>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl Probe {
    fn new() -> Self {
        Self { number: 0, ready: false, shared: Arc::default() }
    }

    fn calls(&self) -> usize {
        self.shared.called.lock().unwrap().len()
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        let number = self.shared.numbers.fetch_add(1, Ordering::SeqCst) + 1;
        Self { number, ready: false, shared: self.shared.clone() }
    }
}

impl Service<String> for Probe {
    type Response = String;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<String>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, line: String) -> Self::Future {
        assert!(mem::take(&mut self.ready), "instance {} was not ready", self.number);
        self.shared.called.lock().unwrap().push(self.number);
        let notes = self.shared.clone();
        Box::pin(async move {
            let running = notes.running.fetch_add(1, Ordering::SeqCst) + 1;
            notes.most_running.fetch_max(running, Ordering::SeqCst);
            sleep(Duration::from_millis(3)).await;
            notes.running.fetch_sub(1, Ordering::SeqCst);
            Ok(line)
        })
    }
}

/// Boxes the error of a limiter. If the error contains a boxed error, returns the contained error.
fn plain(error: Error<BoxError>) -> BoxError {
    match error {
        Error::Inner(error) => error,
        Error::Limited(decision) => Error::<std::io::Error>::Limited(decision).into(),
        other => panic!("{other}"),
    }
}
