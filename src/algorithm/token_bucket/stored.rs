//! The state as a string: the missing tokens, in grains, which are those of the [`MicroRate`] unless the string is exact,
//! and the key's time.

use super::{TokenBucket, TokenBucketState};
use crate::algorithm::rate::div_rem;
use crate::algorithm::stored::{MAX_EXACT, MicroRate, StepKind, numbers_of};
use crate::algorithm::{Algorithm, ReservedTime, ScriptSteps, StateReader, StateWriter, StoredAlgorithm};
use crate::clock::Nanos;
use crate::error::ConfigError;
use crate::quota::Quota;

/// The maximum number of tokens by which a state may be short of a full bucket, as a multiple of the burst. A state is
/// short of more than one burst only while calls wait.
const MAX_DEBT: u64 = 1 << 20;

impl TokenBucket {
    fn micro_rate(&self) -> MicroRate {
        MicroRate::of(self.rate)
    }

    /// Returns the maximum number of tokens by which a state may be short of a full bucket.
    fn max_missing(&self) -> u64 {
        self.burst().saturating_mul(MAX_DEBT)
    }

    /// Returns the missing grains, plus the grains of the time from the clock's zero to the key's time. A charge
    /// changes this sum. The passing of time does not change the sum until the bucket is full.
    fn mark(&self, state: &TokenBucketState) -> u128 {
        self.rate.grains(state.last.0).saturating_add(self.missing(state))
    }
}

impl StoredAlgorithm for TokenBucket {
    fn unit(&self) -> String {
        format!("t:{}/{}/{}", self.quota.limit(), self.quota.period_nanos(), self.burst())
    }

    fn with_unit(&self, unit: &str) -> Option<Self> {
        let [limit, period, burst] = numbers_of(unit, "t:")?;
        let quota = Quota::per(limit, std::time::Duration::from_nanos(period)).ok()?;
        let quota = (burst > 0).then(|| quota.burst(burst))?;
        Some(Self { queue_config: self.queue_config, empty: self.empty, ..Self::new(quota) })
    }

    fn write_state(&self, state: &TokenBucketState, numbers: &mut StateWriter) {
        numbers.wide(self.micro_rate().written(self.missing(state), numbers.is_exact()));
        numbers.instant(state.last);
    }

    fn read_state(&self, numbers: &mut StateReader<'_>) -> Option<TokenBucketState> {
        let missing = self.micro_rate().read(numbers.wide()?, numbers.is_exact())?;
        let (used, part) = div_rem(missing, self.rate.period);
        let used = u64::try_from(used).ok().filter(|used| *used <= self.max_missing())?;
        Some(TokenBucketState { last: numbers.instant()?, used, part })
    }

    fn check_storable(&self) -> Result<(), ConfigError> {
        self.micro_rate().check_storable()
    }

    /// A script does not support `start_empty`: for a script, a new key has been idle since the clock's zero, so its
    /// bucket is full.
    fn script(&self) -> Option<ScriptSteps> {
        let MicroRate { micro, unit, .. } = self.micro_rate();
        let period = u128::from(self.quota.period_nanos() / 1_000);
        let full = u128::from(self.burst()) * unit;
        let max = (u128::from(self.max_missing()) * unit).min(MAX_EXACT - 1);
        ScriptSteps::one(StepKind::Bucket, [micro, unit, full, unit, period, max])
    }

    fn charge_more(&self, state: &mut TokenBucketState, now: Nanos, cost: u64) {
        self.advance(state, now);
        // Calls that wait may have charged more than the burst. `charge_saturating` would lower that charge.
        if state.used <= self.burst() {
            self.charge_saturating(state, now, cost);
        }
    }

    fn reserve_slot(
        &self,
        state: &mut TokenBucketState,
        now: Nanos,
        cost: u64,
        max_wait: u64,
    ) -> Option<ReservedTime> {
        let behind = self.advance(state, now);
        if cost > self.burst() {
            return Some(ReservedTime { decision: self.deny(state, behind, cost), mark: 0 });
        }
        let lag = self.rate.grains(behind);
        let until = self.until(state, cost);
        // A call whose units are available does not wait for the clock to catch up.
        let wait = if until == 0 { 0 } else { until.saturating_add(lag) };
        let places = self.rate.units(self.queue_config.places().min(self.max_missing() - self.burst()));
        let max_wait = max_wait.min(self.queue_config.max_wait());
        let max = if max_wait == u64::MAX { u128::MAX } else { self.rate.grains(max_wait) };
        // The clock must catch up with the key's time before the queue gets shorter.
        let free = if until > places { (until - places).saturating_add(lag) } else { 0 };
        let excess = free.max(wait.saturating_sub(max));
        let reset = self.missing(state).saturating_add(lag);
        let decision = match (wait, excess) {
            (0, _) => {
                state.used += cost;
                self.allow(state, behind, self.available(state))
            }
            (_, 0) => {
                state.used += cost;
                let owed = self.missing(state).saturating_add(lag);
                let next = self.until(state, 1).saturating_add(lag);
                let decision = self.rate.allow(self.burst(), 0, owed, next);
                decision.with_delay(self.rate.nanos_of(wait))
            }
            (_, excess) => {
                let denial = self.rate.deny(self.burst(), self.available(state), Some(excess), reset);
                let is_full = wait <= max && self.queue_config.places() > 0;
                if is_full { denial.with_queue_full() } else { denial }
            }
        };
        Some(ReservedTime { decision, mark: self.mark(state) })
    }

    fn give_back(&self, state: &mut TokenBucketState, now: Nanos, cost: u64, mark: u128) -> bool {
        self.advance(state, now);
        let is_last = self.mark(state) == mark;
        if is_last {
            state.used = state.used.saturating_sub(cost);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let bucket = TokenBucket::new(Quota::per_minute(7).burst(3));
        let mut state = bucket.new_state(Nanos::ZERO, Nanos(MS));
        for now in [MS, 2 * MS, 999 * MS] {
            assert!(bucket.check(&mut state, Nanos(now), 1).is_allowed());
            let mut text = StateWriter::default();
            bucket.write_state(&state, &mut text);
            let read = bucket.read_state(&mut StateReader::new(text.as_str())).unwrap();
            assert_eq!((read.last, read.used, read.part), (state.last, state.used, state.part));
        }
        assert_eq!(bucket.with_unit(&bucket.unit()), Some(bucket));
    }

    #[test]
    fn calls_that_wait_are_paced_and_give_back_only_the_last_place() {
        let bucket = TokenBucket::new(Quota::per_second(10).burst(2)).queue(2);
        let mut state = bucket.new_state(Nanos::ZERO, Nanos::ZERO);
        let mut reserve = |now: u64| bucket.reserve_slot(&mut state, Nanos(now * MS), 1, u64::MAX).unwrap();
        let waits: Vec<_> = (0..4).map(|_| reserve(0)).collect();
        let delays: Vec<_> = waits.iter().map(|wait| wait.decision.delay().as_millis()).collect();
        assert_eq!(delays, [0, 0, 100, 200]);
        let denied = reserve(0).decision;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(Duration::from_millis(100))));
        assert!(!bucket.give_back(&mut state, Nanos(50 * MS), 1, waits[2].mark), "another is behind it");
        assert!(bucket.give_back(&mut state, Nanos(50 * MS), 1, waits[3].mark));
        let next = bucket.reserve_slot(&mut state, Nanos(50 * MS), 1, 149 * MS).unwrap().decision;
        assert_eq!((next.is_allowed(), next.retry_after()), (false, Some(Duration::from_millis(1))));
        let next = bucket.reserve_slot(&mut state, Nanos(50 * MS), 1, 150 * MS).unwrap().decision;
        assert_eq!(next.delay(), Duration::from_millis(150));
        assert!(!bucket.check(&mut state, Nanos(50 * MS), 1).is_allowed(), "a state that owes can be asked");
        assert_eq!(bucket.peek(&mut state, Nanos(50 * MS), 1).remaining(), 0);
    }
}
