//! The latest denial of a shard, which is read without the lock of the shard.
//!
//! After a denial, callers often try again at once. Their calls would all lock the shard of their key only to be denied
//! again. Until the `retry_after` of a denial has passed, no other call can change the decision on a call of cost 1, if
//! the algorithm [promises that](crate::algorithm::Algorithm::DENIALS_STAND). Refunds, resets, replacements of the
//! algorithm and similar changes can change the decision. All of these lock the shard, and then remove the denial. Only
//! a call that the limiter's own algorithm decides locks the shard without removing the denial.
//!
//! The denial is stored in several words, which a sequence number protects. The number is odd while the words are
//! written. A reader reads the number, the words, and the number again. If both numbers are the same and even, the
//! words belong to one denial.

use super::fingerprint::Fingerprint;
use crate::clock::Nanos;
use crate::decision::{Decision, StandingDenial};
use crate::sys::lock::atomic::{AtomicU64, Ordering, fence};

/// The age from which a denial is no longer read without the lock, in nanoseconds. The next call of the key then locks
/// the shard, and records that the key is in use. So a key with frequent calls is not the first to be evicted.
const MAX_AGE: u64 = 100_000;

/// The latest denial of a shard, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct LatestDenial {
    sequence: AtomicU64,
    /// The fingerprint of the denied key. 0 if there is no denial.
    key: AtomicU64,
    /// The clock reading at which the call was denied.
    at: AtomicU64,
    denial: [AtomicU64; StandingDenial::WORDS],
    /// The fingerprint of the key that was denied last while the shard was locked. Denials of the key in `key` are not
    /// recorded here.
    last_denied: AtomicU64,
}

impl LatestDenial {
    /// Returns the decision on a call of cost 1 for `key` at `now`, if the latest denial is a denial of `key`, still
    /// stands, and is younger than [`MAX_AGE`]. Otherwise returns `None`.
    #[inline]
    pub(super) fn standing(&self, key: Fingerprint, now: Nanos) -> Option<Decision> {
        if self.key.load(Ordering::Relaxed) != key.word() {
            return None;
        }
        let sequence = self.sequence.load(Ordering::Acquire);
        let (holder, at) = (self.key.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed));
        let denial = self.denial.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if !sequence.is_multiple_of(2)
            || self.sequence.load(Ordering::Relaxed) != sequence
            || holder != key.word()
        {
            return None;
        }
        let age = now.0.checked_sub(at).filter(|age| *age < MAX_AGE)?;
        StandingDenial(denial).after(age)
    }

    /// Keeps a denial of a call of cost 1 for `key`, if the denial can be read later. The shard is locked.
    ///
    /// If the kept denial is not one of `key`, the new denial is kept only if `key` was denied twice in a row. If there
    /// is a kept denial of another key, that denial must also be too old to be read. Otherwise the denials of many keys
    /// would replace each other, and would seldom be read.
    #[inline]
    pub(super) fn keep(&self, key: Fingerprint, now: Nanos, decision: &Decision) {
        let (known, key) = (self.key.load(Ordering::Relaxed), key.word());
        if known != key {
            let age = now.0.saturating_sub(self.at.load(Ordering::Relaxed));
            let is_repeated = self.last_denied.load(Ordering::Relaxed) == key;
            self.last_denied.store(key, Ordering::Relaxed);
            if !is_repeated || known > 0 && age < MAX_AGE {
                return;
            }
        }
        if let Some(StandingDenial(denial)) = decision.standing() {
            self.write(key, now, denial);
        }
    }

    /// Removes the denial. The shard is locked.
    #[inline]
    pub(super) fn remove(&self) {
        if self.key.load(Ordering::Relaxed) > 0 {
            self.write(0, Nanos::ZERO, [0; StandingDenial::WORDS]);
        }
    }

    fn write(&self, key: u64, now: Nanos, denial: [u64; StandingDenial::WORDS]) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // A thread that reads one of the words that are stored below also reads the odd number, or a later number.
        fence(Ordering::Release);
        self.key.store(key, Ordering::Relaxed);
        self.at.store(now.0, Ordering::Relaxed);
        for (word, value) in self.denial.iter().zip(denial) {
            word.store(value, Ordering::Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket};
    use crate::quota::Quota;
    use fastrand::Rng;
    use std::time::Duration;

    /// Makes `calls`, each of which has a pause before the call, a cost, and a time `later`. Makes a call of cost 1
    /// after each of them. If that call is denied, compares the denial, as it is read at `later` and at other times,
    /// with the algorithm's own decision at the same times.
    fn compare<A: Algorithm>(algorithm: A, calls: &[(u64, u64, u64)]) {
        const { assert!(A::DENIALS_STAND) }
        let mut now = Nanos(1_000_000);
        let mut state = algorithm.new_state(Nanos::ZERO, now);
        for (pause, cost, later) in calls {
            now = now.saturating_add(*pause);
            let _ = algorithm.check(&mut state, now, *cost);
            let denial = algorithm.check(&mut state, now, 1);
            if denial.is_allowed() {
                assert_eq!(denial.standing(), None);
                continue;
            }
            let words = denial.standing().expect("a denial of cost 1 with a wait");
            let wait = denial.retry_after().map(|wait| Nanos::from(wait).0).unwrap_or_default();
            for later in [0, 1, *later, later % wait.max(1), wait - 1, wait, wait + 1] {
                let mut seen = state.clone();
                let decision = algorithm.check(&mut seen, now.saturating_add(later), 1);
                let read = words.after(later);
                assert_eq!(read.is_some(), !decision.is_allowed(), "{algorithm:?}: {denial:?} after {later}");
                assert!(read.is_none_or(|read| read == decision), "{read:?}, not {decision:?}");
                // A later call shows whether the denied call has changed anything in the state but the time.
                let at = now.saturating_add(later + 7);
                let both = [seen, state.clone()].map(|mut state| algorithm.check(&mut state, at, 1));
                assert!(decision.is_allowed() || both[0] == both[1], "{algorithm:?}: {both:?}");
            }
        }
    }

    #[test]
    fn a_denial_stands_until_its_wait_has_passed() {
        for seed in 0..1_000 {
            let mut random = Rng::with_seed(seed);
            let (limit, period) = (random.u64(1..6), random.u64(1..50));
            let calls: Vec<_> = (0..random.usize(1..40))
                .map(|_| (random.u64(..30), random.u64(..4), random.u64(..60)))
                .collect();
            let quota = Quota::per(limit, Duration::from_nanos(period)).unwrap();
            compare(TokenBucket::new(quota.burst(3)), &calls);
            compare(FixedWindow::new(quota), &calls);
            compare(FixedWindow::new(quota).aligned(), &calls);
            compare(SlidingWindow::new(quota), &calls);
            compare(SlidingCounter::new(quota), &calls);
            compare(SlidingLog::new(quota), &calls);
        }
    }
}
