//! The circuit breaker. It opens after failures. While it is open, calls are not sent to the server: they fail, or the
//! fallback decides them. After each pause, one call, the *trial*, is sent to try the server again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::{RedisError, RedisErrorKind};
use tower_throttle::clock::Nanos;
use tower_throttle::stats::StoreStats;

/// The number of failed trips in a row that opens the breaker, if the last of these trips was late or had no
/// connection. Any other outage opens the breaker at once.
const MAX_LATE: u64 = 5;
const MILLISECOND: u64 = 1_000_000;
/// The pause before the first trial, and the maximum pause between two trials. The pause doubles after each trial that
/// fails.
const PAUSES: (u64, u64) = (50 * MILLISECOND, 400 * MILLISECOND);

/// A circuit breaker. It is closed at first.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// The time of the next trial, or 0 if the breaker is closed.
    next_attempt: AtomicU64,
    /// The number of trips in a row that failed because of an outage.
    late: AtomicU64,
    opened: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    pause: u64,
    /// `true` while a trial is under way.
    is_trying: bool,
    reason: Option<RedisError>,
    /// `true` if the server failed to write, so that only a trip that has written shows that the fault is over.
    needs_write: bool,
}

impl Breaker {
    /// Returns an error if the breaker is open at `now`, so that the call is not sent. When the pause is over, one call
    /// gets no error, and tries the server again.
    pub(super) fn admit(&self, now: Nanos) -> Result<(), RedisError> {
        let next = self.next_attempt.load(Ordering::Acquire);
        if next == 0 {
            return Ok(());
        }
        if now.0 >= next {
            let later = now.0.saturating_add(PAUSES.1);
            let mine = self.next_attempt.compare_exchange(next, later, Ordering::AcqRel, Ordering::Acquire);
            if mine.is_ok() {
                self.lock().is_trying = true;
                return Ok(());
            }
        }
        let open = self.lock();
        let reason = open.reason.as_ref().map(ToString::to_string).unwrap_or_default();
        Err(RedisError::new(RedisErrorKind::Open, reason))
    }

    /// Records a reply at `now`. The reply closes the breaker, unless only a trip that writes can close it.
    pub(super) fn replied(&self, now: Nanos) {
        if self.late.load(Ordering::Relaxed) > 0 {
            self.late.store(0, Ordering::Relaxed);
        }
        if self.is_open() {
            let mut open = self.lock();
            match open.needs_write {
                false => self.close(&mut open),
                // A reply to a trip that did not write says nothing about the fault, so the next call may be another
                // trial.
                true if open.is_trying => {
                    open.is_trying = false;
                    self.next_attempt.store(now.0.max(1), Ordering::Release);
                }
                true => {}
            }
        }
    }

    /// Records a trip that has written, which closes the breaker.
    pub(super) fn wrote(&self) {
        if self.is_open() {
            self.close(&mut self.lock());
        }
    }

    /// Sets the time of the next trial. The pause is twice as long as the last pause, within [`PAUSES`].
    fn postpone(&self, open: &mut Open, now: Nanos) {
        open.is_trying = false;
        open.pause = PAUSES.1.min(open.pause.saturating_mul(2)).max(PAUSES.0);
        self.next_attempt.store(now.0.saturating_add(open.pause).max(1), Ordering::Release);
    }

    /// Returns whether the breaker is open and only a trip that writes can close it.
    pub(super) fn needs_write(&self) -> bool {
        self.is_open() && self.lock().needs_write
    }

    fn close(&self, open: &mut Open) {
        if self.next_attempt.swap(0, Ordering::AcqRel) > 0 {
            *open = Open::default();
            log_closed();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a trip that failed at `now`. Returns whether the breaker is open.
    pub(super) fn failed(&self, error: &RedisError, now: Nanos) -> bool {
        if error.kind().is_outage() { self.record_outage(error, now) } else { self.is_open() }
    }

    /// Records a trip that failed at `now` for a reason that concerns other trips as well. Returns whether the breaker
    /// is open.
    pub(super) fn record_outage(&self, error: &RedisError, now: Nanos) -> bool {
        let is_slow = matches!(error.kind(), RedisErrorKind::Late | RedisErrorKind::Unreachable);
        let late = self.late.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.lock();
        let was_open = self.is_open();
        if is_slow && !was_open && late < MAX_LATE {
            return false;
        }
        // A trip may read first, and fail only when it writes. Trips that began before the breaker opened must not
        // prolong the pause.
        let writes = concerns_writes(error.kind());
        let has_failed_to_write = writes && now.0 >= self.next_attempt.load(Ordering::Relaxed);
        if !was_open || open.is_trying || has_failed_to_write {
            // A closed breaker has no pause, so the first pause is the shortest.
            self.postpone(&mut open, now);
        }
        if !was_open {
            self.opened.fetch_add(1, Ordering::Relaxed);
            log_opened(error);
        }
        // If writes fail, a reply to a trip that only reads must not close the breaker.
        open.needs_write |= writes;
        open.reason = Some(error.clone());
        true
    }

    /// Sets how often the breaker has opened, and whether it is open.
    pub(super) fn add_to(&self, stats: &mut StoreStats) {
        (stats.circuit_openings, stats.is_circuit_open) = (self.opened(), self.is_open());
    }

    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    fn is_open(&self) -> bool {
        self.next_attempt.load(Ordering::Relaxed) > 0
    }
}

/// Returns whether a server that replies with an error of this kind may still be able to read.
const fn concerns_writes(kind: RedisErrorKind) -> bool {
    matches!(kind, RedisErrorKind::ReadOnly | RedisErrorKind::OutOfMemory | RedisErrorKind::Permission)
}

#[cfg(feature = "tracing")]
fn log_opened(error: &RedisError) {
    tracing::error!(%error, "tower-throttle: limits in Redis are not decided there until it answers again");
}

#[cfg(feature = "tracing")]
fn log_closed() {
    tracing::info!("tower-throttle: limits are decided in Redis again");
}

#[cfg(not(feature = "tracing"))]
fn log_opened(_: &RedisError) {}

#[cfg(not(feature = "tracing"))]
fn log_closed() {}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: RedisErrorKind) -> RedisError {
        RedisError::new(kind, "")
    }

    fn at(millis: u64) -> Nanos {
        Nanos(1 + millis * MILLISECOND)
    }

    #[test]
    fn late_calls_open_it_and_one_call_tries() {
        let breaker = Breaker::default();
        for _ in 1..MAX_LATE {
            assert!(!breaker.failed(&error(RedisErrorKind::Late), at(0)));
        }
        assert!(breaker.admit(at(0)).is_ok());
        assert!(breaker.failed(&error(RedisErrorKind::Late), at(0)));
        assert_eq!(breaker.admit(at(49)).unwrap_err().kind(), RedisErrorKind::Open);
        assert!(breaker.admit(at(50)).is_ok(), "the attempt");
        assert!(breaker.admit(at(50)).is_err(), "there is one at a time");
        assert!(breaker.failed(&error(RedisErrorKind::Late), at(100)));
        assert!(breaker.admit(at(199)).is_err(), "the pause has doubled");
        assert!(breaker.admit(at(200)).is_ok());
        breaker.replied(at(200));
        assert!(breaker.admit(at(200)).is_ok() && breaker.admit(at(200)).is_ok());
        assert_eq!(breaker.opened(), 1);
    }

    #[test]
    fn an_error_of_the_server_opens_it_at_once_and_a_foreign_value_never() {
        let breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.failed(&error(RedisErrorKind::Foreign), at(0)));
        }
        assert!(breaker.failed(&error(RedisErrorKind::ReadOnly), at(0)));
        assert!(breaker.admit(at(1)).unwrap_err().to_string().contains("replica"));
    }

    #[test]
    fn trips_that_were_on_their_way_do_not_delay_the_attempt() {
        let breaker = Breaker::default();
        breaker.failed(&error(RedisErrorKind::Busy), at(0));
        for _ in 0..100 {
            breaker.failed(&error(RedisErrorKind::Busy), at(20));
        }
        assert!(breaker.admit(at(50)).is_ok());
    }

    #[test]
    fn a_success_between_late_calls_keeps_it_closed() {
        let breaker = Breaker::default();
        for _ in 0..100 {
            breaker.failed(&error(RedisErrorKind::Late), at(0));
            breaker.replied(at(0));
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_reply_does_not_close_it_while_writes_fail() {
        for kind in [RedisErrorKind::OutOfMemory, RedisErrorKind::ReadOnly, RedisErrorKind::Permission] {
            let breaker = Breaker::default();
            assert!(breaker.failed(&error(kind), at(0)));
            breaker.replied(at(1));
            assert!(breaker.needs_write() && breaker.admit(at(49)).is_err(), "{kind:?}");
            assert!(breaker.admit(at(50)).is_ok());
            breaker.replied(at(51));
            assert!(breaker.admit(at(51)).is_ok(), "the attempt has shown nothing, so the next call is one");
            assert!(breaker.admit(at(51)).is_err());
            assert!(breaker.failed(&error(kind), at(60)), "it reads first, and then writes");
            assert!(breaker.admit(at(159)).is_err() && breaker.admit(at(160)).is_ok(), "a pause of 100 ms");
            breaker.wrote();
            assert!(!breaker.is_open() && !breaker.needs_write());
        }
    }
}
