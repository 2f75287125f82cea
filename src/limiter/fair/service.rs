//! The service of callers: units that their calls have held, times the time, while calls waited.
//!
//! It is compared with the virtual time of the queue, which is the service of the caller that was admitted last. Who
//! begins to wait gets no credit for what it did not use before: its service is raised to the virtual time. If it holds
//! nothing, it begins one usual call later. Otherwise new callers, which have received nothing, would always come
//! first, and those that came before them would starve.

use crate::clock::Nanos;

/// The part of a new charge in the usual service of a call.
const WEIGHT: u128 = 16;

/// The service of all callers, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Service {
    /// The virtual time. It never falls.
    served: u128,
    /// The virtual time when calls began to wait, and the time of that.
    began: (u128, Nanos),
    /// While the clock is behind that time: the earliest time at which a call has ended since it was set back.
    behind: Option<Nanos>,
    /// The largest service that any caller ever had.
    largest: u128,
    /// The usual service of a call.
    usual: u128,
}

impl Service {
    /// Calls begin to wait. What callers have received in an earlier crowd no longer counts.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.served = self.largest;
        self.began = (self.served, now);
        self.behind = None;
    }

    /// Returns the service with which a caller begins to wait.
    pub(super) fn first(&self, held: u64, service: u128) -> u128 {
        let ahead = if held == 0 { self.usual } else { 0 };
        service.max(self.served.saturating_add(ahead))
    }

    /// A caller with this service is admitted from the queue.
    pub(super) fn admit(&mut self, service: u128) {
        self.served = self.served.max(service);
    }

    /// A caller has this service now.
    pub(super) fn record(&mut self, service: u128) {
        self.largest = self.largest.max(service);
    }

    /// Returns the service of a caller whose call passes while those of others wait.
    pub(super) fn pass(&self, service: u128) -> u128 {
        service.max(self.served)
    }

    /// Returns whether a caller with this service has received no more than the others.
    pub(super) fn is_paid(&self, service: u128) -> bool {
        service <= self.served
    }

    /// Returns the service of a caller after a call of `cost`, which was in progress from `since` to `now`. It counts
    /// from when calls began to wait.
    pub(super) fn charge(&mut self, service: u128, cost: u64, since: Nanos, now: Nanos) -> u128 {
        let began = self.began.1;
        // Otherwise calls would be free until a clock that was set back is where it was.
        self.behind = (now < began).then(|| self.behind.map_or(now, |behind| behind.min(now)));
        let time = now.saturating_since(since.max(self.behind.unwrap_or(began)));
        let charge = u128::from(cost) * u128::from(time);
        // A call that takes very long counts as two usual ones. Otherwise a single one would let all new callers wait
        // for hours. Without a whole grain, the average would never grow.
        // If the clock was set back, a call takes no time, which says nothing of the next ones.
        self.usual = match self.usual {
            usual if charge == 0 => usual,
            usual if usual < WEIGHT => charge,
            usual => usual - usual / WEIGHT + charge.min(usual.saturating_mul(2)) / WEIGHT,
        };
        service.max(self.began.0).saturating_add(charge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock was set back, so calls have taken no time.
    #[test]
    fn calls_that_took_no_time_change_nothing() {
        let mut service = Service::default();
        service.charge(0, 1, Nanos(0), Nanos(1_000));
        for _ in 0..1_000 {
            service.charge(0, 1, Nanos(9_000), Nanos(5_000));
        }
        assert_eq!(service.first(0, 0), 1_000);
        service.charge(0, 1, Nanos(0), Nanos(3_600_000_000_000));
        assert!(service.first(0, 0) < 1_100, "a call of an hour counts as two usual ones");
    }
}
