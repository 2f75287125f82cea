//! What the store is compared with, besides governor.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dashmap::DashMap;
use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;

use crate::check::{Quotas, Subject};

pub type FastHash = foldhash::fast::RandomState;
pub type FastGovernor = governor::RateLimiter<IpAddr, DashMapStateStore<IpAddr, FastHash>, DefaultClock>;

impl Subject for FastGovernor {
    #[inline]
    fn check(&self, key: &IpAddr) -> bool {
        black_box(&self.check_key(key)).is_ok()
    }
}

pub fn fast_governor(quotas: Quotas) -> FastGovernor {
    FastGovernor::dashmap_with_hasher(quotas.governors, FastHash::default())
}

/// The time at which the bucket of a key is full again, in nanoseconds, in a map under locks.
pub struct Map {
    pub started: Instant,
    pub full_at: DashMap<IpAddr, u64, FastHash>,
    pub burst: u64,
}

impl Subject for Map {
    #[inline]
    fn check(&self, key: &IpAddr) -> bool {
        let now = self.started.elapsed().as_nanos() as u64;
        let Some(mut full_at) = self.full_at.get_mut(key) else {
            self.full_at.insert(*key, now + 1);
            return true;
        };
        let next = now.max(*full_at) + 1;
        let admitted = next - now <= self.burst;
        if admitted {
            *full_at = next;
        }
        admitted
    }
}

/// Lines of four hashes and four states, each line for the keys of its hashes, without a lock: what a check takes at
/// least.
pub struct Bare {
    started: Instant,
    hash: std::hash::RandomState,
    lines: Vec<Line>,
    burst: u64,
}

#[derive(Default)]
#[repr(align(64))]
struct Line([[AtomicU64; 2]; 4]);

impl Bare {
    pub fn new(keys: usize, burst: u64) -> Self {
        // Half of the places stay vacant, so that no line overflows but one in a thousand.
        let lines = (0..keys.div_ceil(2)).map(|_| Line::default()).collect();
        Self { started: Instant::now(), hash: std::hash::RandomState::new(), lines, burst }
    }
}

impl Subject for Bare {
    #[inline]
    fn check(&self, key: &IpAddr) -> bool {
        let now = self.started.elapsed().as_nanos() as u64;
        let hash = self.hash.hash_one(key) | 1;
        let Line(places) = &self.lines[((u128::from(hash) * self.lines.len() as u128) >> 64) as usize];
        let place = places.iter().find(|[known, _]| known.load(Ordering::Relaxed) == hash);
        let place = place.or_else(|| places.iter().find(|[known, _]| known.load(Ordering::Relaxed) == 0));
        let [known, full_at] = place.unwrap_or(&places[0]);
        known.store(hash, Ordering::Relaxed);
        let take = |before: u64| {
            let next = now.max(before) + 1;
            (next - now <= self.burst).then_some(next)
        };
        full_at.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok()
    }
}
