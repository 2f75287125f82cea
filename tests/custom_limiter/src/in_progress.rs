use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Pending;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tower_throttle::Decision;
use tower_throttle::algorithm::{AlgorithmInfo, Concurrency};
use tower_throttle::limiter::{Acquired, Attempt, Decided, Limiter, LimiterFor, MemoryKey, Reservation};
use tower_throttle::stats::LimiterStats;

/// At most `limit` calls in progress for each key. No call waits.
#[derive(Clone, Debug)]
pub struct InProgress {
    limit: u64,
    info: Arc<AlgorithmInfo>,
    is_closed: Arc<AtomicBool>,
    seed: RandomState,
    // the calls in progress, by whether there is a key, and the hash of the key
    keys: Arc<Mutex<HashMap<(bool, u64), u64>>>,
}

impl InProgress {
    /// Creates a limiter.
    pub fn new(limit: u64) -> Self {
        let info = AlgorithmInfo::of(&Concurrency::per_key(limit));
        Self { limit, info, is_closed: Arc::default(), seed: RandomState::new(), keys: Arc::default() }
    }
}

impl Limiter for InProgress {
    type Algorithm = Concurrency;
    type Error = Infallible;
    type Wait = Pending<Result<Decided, Infallible>>;

    fn info(&self) -> Arc<AlgorithmInfo> {
        Arc::clone(&self.info)
    }
    fn stats(&self) -> LimiterStats {
        LimiterStats::default()
    }
    fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }
}

impl<K: MemoryKey + ?Sized> LimiterFor<K> for InProgress {
    fn acquire(&self, key: &K, attempt: Attempt<'_, Concurrency>) -> Acquired<Self::Wait> {
        let mut hasher = self.seed.build_hasher();
        let id = (key.hash_key(&mut hasher), hasher.finish());
        let (limit, cost) = (self.limit, attempt.cost());
        let mut keys = self.keys.lock().unwrap();
        let held = keys.get(&id).copied().unwrap_or(0);
        let left = limit - held;
        let decision = if cost == 0 {
            Decision::allow(limit, left, 0)
        } else if self.is_closed.load(Relaxed) {
            Decision::closed(limit)
        } else if cost > left {
            Decision::denied(limit).with_remaining(left).with_unknown_wait(cost <= limit)
        } else {
            Decision::allow(limit, left - cost, 0)
        };
        if cost == 0 || !decision.is_allowed() {
            return Acquired::Ready(decision, Reservation::default());
        }
        keys.insert(id, held + cost);
        let keys = Arc::clone(&self.keys);
        let permit = Reservation::on_release(move || {
            let mut keys = keys.lock().unwrap();
            // a key without calls in progress takes no memory
            match keys[&id] - cost {
                0 => keys.remove(&id),
                held => keys.insert(id, held),
            };
        });
        Acquired::Ready(decision, permit)
    }
}
