//! The state as a string: the key's time, the number of records, then the age and the units of each record, the oldest
//! record first.

use super::{Hit, SlidingLog, SlidingLogState};
use crate::algorithm::stored::numbers_of;
use crate::algorithm::{StateReader, StateWriter, StoredAlgorithm};
use crate::error::ConfigError;
use crate::quota::Quota;

/// The maximum limit of a log that is kept in Redis, because each call sends all records of the log.
const MAX_HITS: u64 = 100;

impl StoredAlgorithm for SlidingLog {
    fn unit(&self) -> String {
        format!("g:{}/{}", self.quota.limit(), self.quota.period_nanos())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period] = numbers_of(unit, "g:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        Some(Self { queue_config: self.queue_config, ..Self::new(quota) })
    }

    fn write_state(&self, state: &SlidingLogState, numbers: &mut StateWriter) {
        numbers.instant(state.last);
        numbers.number(state.hits.len() as u64);
        let mut before = state.base;
        for hit in &state.hits {
            numbers.number(state.time.wrapping_sub(hit.time));
            numbers.number(hit.cumulative.wrapping_sub(before));
            before = hit.cumulative;
        }
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<SlidingLogState> {
        let last = numbers.instant()?;
        let period = self.quota.period_nanos();
        let mut state = SlidingLogState { last, time: period, total: 0, base: 0, hits: Default::default() };
        let mut oldest = period;
        for _ in 0..numbers.at_most(self.quota.limit())? {
            let age = numbers.number().filter(|age| *age < oldest)?;
            let units = numbers.at_most(self.quota.limit() - state.total).filter(|units| *units > 0)?;
            oldest = age;
            state.total += units;
            state.hits.push_back(Hit { time: period - age, cumulative: state.total });
        }
        Some(state)
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        match self.quota.limit() <= MAX_HITS {
            true => Ok(()),
            false => Err(ConfigError::new(format!(
                "a SlidingLog in Redis has a limit of at most {MAX_HITS}, since each call sends the whole log: take a \
                 SlidingWindow for a limit of {}",
                self.quota.limit()
            ))),
        }
    }
}
