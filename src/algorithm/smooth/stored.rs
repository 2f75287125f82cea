//! The state as a string: the key's time, the next scheduled time, and the stored permits, counted as time.

use std::time::Duration;

use super::stored_permits::StoredPermits;
use super::{MAX_FIXED, Smooth, SmoothState};
use crate::algorithm::stored::numbers_of;
use crate::algorithm::{StateReader, StateWriter, StoredAlgorithm};
use crate::quota::Quota;

impl StoredAlgorithm for Smooth {
    fn unit(&self) -> String {
        let (limit, period) = (self.quota.limit(), self.quota.period_nanos());
        match self.stored_permits {
            StoredPermits::Bursty => format!("s:{limit}/{period}"),
            StoredPermits::WarmingUp { warm_up, cold_factor } => {
                format!("sw:{limit}/{period}/{warm_up}/{cold_factor}")
            }
        }
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let (limit, period, stored_permits) = match numbers_of(unit, "s:") {
            Some([limit, period]) => (limit, period, StoredPermits::Bursty),
            None => {
                let [limit, period, warm_up, cold_factor] = numbers_of(unit, "sw:")?;
                // The cold factor is from 1 to 1,000. It is written as a multiple of 1/1024.
                let is_valid = warm_up <= i64::MAX as u64 && (1_024..=1_024_000).contains(&cold_factor);
                (limit, period, is_valid.then_some(StoredPermits::WarmingUp { warm_up, cold_factor })?)
            }
        };
        let quota = Quota::per(limit, Duration::from_nanos(period)).ok()?;
        let smooth = Self::with(quota, stored_permits);
        Some(Self { queue_config: self.queue_config, ..smooth }.measured())
    }

    fn write_state(&self, state: &SmoothState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        numbers.wide(state.next);
        numbers.wide(state.stored);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<SmoothState> {
        let last = numbers.instant()?;
        let next = numbers.wide().filter(|next| *next <= MAX_FIXED)?;
        let stored = numbers.wide().filter(|stored| *stored <= self.max_stored)?;
        Some(SmoothState { last, next, stored })
    }
}
