//! A handle that closes several limiters together.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limiter::Limiter;

/// A handle that closes the limiters of several layers by one call, when a server shuts down.
///
/// Clones are the same handle. Layers join it by [`shutdown`](crate::middleware::RateLimitLayer::shutdown), and
/// limiters without a layer by [`add`](Shutdown::add). The handle keeps a clone of each limiter until it closes them.
///
/// ```
/// use tower_throttle::algorithm::LeakyBucket;
/// use tower_throttle::key::PeerIp;
/// use tower_throttle::middleware::Shutdown;
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let shutdown = Shutdown::new();
/// let pages = RateLimitLayer::per_ip(Quota::per_second(10)).shutdown(&shutdown);
/// let queue = LeakyBucket::new(Quota::per_minute(2)).queue(5);
/// let exports = RateLimitLayer::new(PeerIp::new(), queue).shutdown(&shutdown);
/// // with axum, in the future of `with_graceful_shutdown`, after the signal:
/// // queued requests would delay its end
/// shutdown.close();
/// assert!(pages.limiter().check("any").is_closed());
/// assert!(exports.limiter().check("any").is_closed());
/// ```
#[derive(Clone, Default)]
pub struct Shutdown {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// For each limiter, a function that closes it. Empty once they are closed.
    limiters: Vec<Box<dyn FnOnce() + Send>>,
}

impl Shutdown {
    /// Creates a handle without limiters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a limiter to those that are closed. If they are closed already, closes this one at once.
    pub fn add<L: Limiter>(&self, limiter: &L) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            drop(state);
            return limiter.close();
        }
        let limiter = limiter.clone();
        state.limiters.push(Box::new(move || limiter.close()));
    }

    /// Closes all limiters that were added, and those that are added later, for ever. Queued calls are denied at once,
    /// and so are new calls, unless [`OnClose`](crate::limiter::OnClose) says otherwise. Calls in progress continue. If
    /// it is called again, nothing happens.
    pub fn close(&self) {
        let limiters = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_closed = true;
            mem::take(&mut state.limiters)
        };
        // A limiter wakes its queued calls, and their wakers may run any code. So the handle is not locked here.
        limiters.into_iter().for_each(|close| close());
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Shutdown")
            .field("is_closed", &state.is_closed)
            .field("limiters", &state.limiters.len())
            .finish()
    }
}
