//! The lock of a shard, and its latest denial, which is read without the lock.
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

use super::attempt::Attempt;
use super::fingerprint::Fingerprint;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::{Decision, StandingDenial};
use crate::sys::lock::atomic::{AtomicU64, Ordering, fence};
use crate::sys::lock::{SpinGuard, SpinLock};

/// The age from which a denial is no longer read without the lock, in nanoseconds. The next call of the key then locks
/// the shard, and records that the key is in use. So a key with frequent calls is not the first to be evicted.
const MAX_AGE: u64 = 100_000;

/// A shard, its lock, and a recent denial, on two cache lines of their own, so that locking one shard does not slow
/// down calls on its neighbours. All that most calls touch is on the first line: the denied key, the lock and the
/// shard.
///
/// For up to 100 µs while the denial stands, most further calls of cost 1 for the denied key are denied without the
/// lock. The denial is written while the shard is locked.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct LockedShard<S> {
    /// The fingerprint of the denied key. 0 if there is no denial.
    key: AtomicU64,
    shard: SpinLock<S>,
    sequence: AtomicU64,
    /// The clock reading at which the call was denied.
    at: AtomicU64,
    denial: [AtomicU64; StandingDenial::WORDS],
    /// The fingerprint of the key that was denied last while the shard was locked. Denials of the key of this denial
    /// are not recorded here.
    last_denied: AtomicU64,
}

impl<S> LockedShard<S> {
    pub(super) fn new(shard: S) -> Self {
        Self {
            key: AtomicU64::new(0),
            shard: SpinLock::new(shard),
            sequence: AtomicU64::new(0),
            at: AtomicU64::new(0),
            denial: [const { AtomicU64::new(0) }; StandingDenial::WORDS],
            last_denied: AtomicU64::new(0),
        }
    }

    /// Locks the shard, and removes its latest denial, because any decision may change.
    #[inline]
    pub(super) fn lock(&self) -> SpinGuard<'_, S> {
        let shard = self.shard.lock();
        self.remove_denial();
        shard
    }

    /// Locks the shard for a new call. If the limiter's own algorithm decides the call, the latest denial is not
    /// removed, because such a call cannot change it.
    #[inline]
    pub(super) fn lock_for<A: Algorithm>(&self, call: &Attempt<'_, A>) -> SpinGuard<'_, S> {
        match call.algorithm() {
            None => self.shard.lock(),
            Some(_) => self.lock(),
        }
    }

    /// Returns the decision on a call of cost 1 for `id` at `now`, if the latest denial is a denial of `id`, still
    /// stands, and is younger than [`MAX_AGE`]. Otherwise returns `None`.
    #[inline]
    pub(super) fn standing_denial(&self, id: Fingerprint, now: Nanos) -> Option<Decision> {
        if self.key.load(Ordering::Relaxed) != id.word() {
            return None;
        }
        let sequence = self.sequence.load(Ordering::Acquire);
        let holder = self.key.load(Ordering::Relaxed);
        let at = self.at.load(Ordering::Relaxed);
        let denial = self.denial.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if !sequence.is_multiple_of(2)
            || self.sequence.load(Ordering::Relaxed) != sequence
            || holder != id.word()
        {
            return None;
        }
        let age = now.0.checked_sub(at).filter(|age| *age < MAX_AGE)?;
        StandingDenial(denial).after(age)
    }

    /// Keeps a denial of a call of cost 1 for `id`, if the denial can be read later. The shard is locked.
    ///
    /// If the kept denial is not one of `id`, the new denial is kept only if `id` was denied twice in a row. If there
    /// is a kept denial of another key, that denial must also be too old to be read. Otherwise the denials of many keys
    /// would replace each other, and would seldom be read.
    #[inline]
    pub(super) fn keep_denial(&self, id: Fingerprint, now: Nanos, decision: &Decision) {
        let known = self.key.load(Ordering::Relaxed);
        let key = id.word();
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
    pub(super) fn remove_denial(&self) {
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
    use crate::algorithm::{FixedWindow, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket};
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
