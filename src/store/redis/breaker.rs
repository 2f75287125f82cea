//! The circuit breaker. After failures, calls are decided without a trip to the server, except for one call that tries
//! again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::error::{RedisError, RedisErrorKind};
use crate::clock::Nanos;

/// The number of late calls in a row that open the breaker.
const MAX_LATE: u64 = 5;
const MILLISECOND: u64 = 1_000_000;
/// The time until the first attempt, and the maximum time between two attempts. The time doubles with each attempt.
const PAUSES: (u64, u64) = (50 * MILLISECOND, 400 * MILLISECOND);

/// A breaker, which is closed at first.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// The time of the next attempt, or 0 if the breaker is closed.
    next_attempt: AtomicU64,
    /// The number of trips in a row that were late.
    late: AtomicU64,
    opened: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    pause: u64,
    reason: Option<RedisError>,
}

impl Breaker {
    /// Returns an error if a call at `now` must be decided without a trip. If an attempt is due, the call is that
    /// attempt.
    pub(super) fn admit(&self, now: Nanos) -> Result<(), RedisError> {
        let next = self.next_attempt.load(Ordering::Acquire);
        if next == 0 {
            return Ok(());
        }
        if now.0 >= next {
            let later = now.0.saturating_add(PAUSES.1);
            let claimed =
                self.next_attempt.compare_exchange(next, later, Ordering::AcqRel, Ordering::Acquire);
            if claimed.is_ok() {
                return Ok(());
            }
        }
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = open.reason.as_ref().map(ToString::to_string).unwrap_or_default();
        Err(RedisError::new(RedisErrorKind::Open, reason))
    }

    /// Records a trip that succeeded.
    pub(super) fn succeeded(&self) {
        if self.late.load(Ordering::Relaxed) > 0 {
            self.late.store(0, Ordering::Relaxed);
        }
        if self.next_attempt.load(Ordering::Relaxed) > 0 {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if self.next_attempt.swap(0, Ordering::AcqRel) > 0 {
                *open = Open::default();
                log_closed();
            }
        }
    }

    /// Records a trip that failed at `now`. Returns whether the breaker is open.
    pub(super) fn failed(&self, error: &RedisError, now: Nanos) -> bool {
        if !error.kind().is_outage() {
            return self.next_attempt.load(Ordering::Relaxed) > 0;
        }
        let is_slow = matches!(error.kind(), RedisErrorKind::Late | RedisErrorKind::Unreachable);
        let late = self.late.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let was_open = self.next_attempt.load(Ordering::Relaxed) > 0;
        if is_slow && !was_open && late < MAX_LATE {
            return false;
        }
        // Trips that began before the breaker opened do not delay the next attempt.
        let is_attempt = self.next_attempt.load(Ordering::Relaxed) > now.0.saturating_add(open.pause);
        if !was_open || is_attempt {
            open.pause = if was_open { PAUSES.1.min(open.pause.saturating_mul(2)) } else { PAUSES.0 };
            self.next_attempt.store(now.0.saturating_add(open.pause).max(1), Ordering::Release);
        }
        if !was_open {
            self.opened.fetch_add(1, Ordering::Relaxed);
            log_opened(error);
        }
        open.reason = Some(error.clone());
        true
    }

    /// Returns how often the breaker has opened.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    pub(super) fn is_open(&self) -> bool {
        self.next_attempt.load(Ordering::Relaxed) > 0
    }
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
        breaker.succeeded();
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
            breaker.succeeded();
        }
        assert!(!breaker.is_open());
    }
}
