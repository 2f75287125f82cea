//! The subjects with which the store is compared, besides governor with its default store.

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

/// A map under locks, with the time at which the bucket of each key is full again, in nanoseconds since `started`.
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

/// A table without locks, whose check does only the work that every check needs. The hash of a key determines a line.
/// Each line has room for four hashes and four states.
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
        // Half of the places stay vacant. About one line in 20 has more than four keys. The surplus keys then share its
        // first place.
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
