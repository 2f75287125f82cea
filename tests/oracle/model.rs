//! The rules once more, as naive and exact as they can be written. Nothing here knows how the crate computes.
//!
//! An oracle is told what *we* admitted, so that one wrong answer does not become a hundred.

/// What a rule says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admit,
    Refuse,
    /// The rule leaves it open: a window of slices may give a unit back up to one slice late.
    Either,
}

pub(crate) trait Oracle: Clone {
    /// The clock shows `now`.
    fn observe(&mut self, now: u64);
    fn verdict(&self, cost: u64) -> Verdict;
    fn admit(&mut self, cost: u64);
    /// The least and the most that may be told as remaining.
    fn remaining(&self) -> (u64, u64);
    /// The exact time until the key is as new, where the rule fixes it.
    fn reset(&self) -> Option<u128>;
    /// A cost above it never fits.
    fn capacity(&self) -> Option<u64>;
    fn clock(&self) -> &Timeline;

    /// How far the clock is behind the key's time, which stands still meanwhile.
    fn behind(&self) -> u64 {
        self.clock().behind
    }
}

/// A key's own time: the sum of what the clock went on, as promise 6 has it.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    period: u64,
    latest: u64,
    time: u128,
    behind: u64,
}

impl Timeline {
    pub(crate) fn new(start: u64, period: u64) -> Self {
        Self { period, latest: start, time: 0, behind: 0 }
    }

    /// How far time went on.
    fn observe(&mut self, now: u64) -> u64 {
        let on = now.saturating_sub(self.latest);
        self.behind = self.latest.saturating_sub(now);
        if self.behind > self.period {
            self.behind = 0;
        }
        if self.behind == 0 {
            self.latest = now;
        }
        self.time += u128::from(on);
        on
    }
}

/// A token is `period` grains, a nanosecond brings `limit` of them.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    clock: Timeline,
    limit: u64,
    burst: u64,
    grains: u128,
}

impl Bucket {
    pub(crate) fn full(limit: u64, period: u64, burst: u64, start: u64) -> Self {
        let clock = Timeline::new(start, period);
        Self { clock, limit, burst, grains: u128::from(burst) * u128::from(period) }
    }

    /// The same bucket, if it was empty and has filled for `idle` nanoseconds.
    pub(crate) fn empty_until(mut self, idle: u64) -> Self {
        self.grains = self.grains.min(u128::from(idle) * u128::from(self.limit));
        self
    }

    fn token(&self) -> u128 {
        u128::from(self.clock.period)
    }
}

impl Oracle for Bucket {
    fn observe(&mut self, now: u64) {
        let brought = u128::from(self.clock.observe(now)) * u128::from(self.limit);
        self.grains = self.grains.saturating_add(brought).min(u128::from(self.burst) * self.token());
    }

    fn verdict(&self, cost: u64) -> Verdict {
        match self.grains >= u128::from(cost) * self.token() {
            true => Verdict::Admit,
            false => Verdict::Refuse,
        }
    }

    fn admit(&mut self, cost: u64) {
        self.grains -= u128::from(cost) * self.token();
    }

    fn remaining(&self) -> (u64, u64) {
        let whole = (self.grains / self.token()) as u64;
        (whole, whole)
    }

    fn reset(&self) -> Option<u128> {
        let missing = u128::from(self.burst) * self.token() - self.grains;
        match missing {
            0 => Some(0),
            _ => Some(missing.div_ceil(u128::from(self.limit)) + u128::from(self.clock.behind)),
        }
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.burst)
    }

    fn clock(&self) -> &Timeline {
        &self.clock
    }
}

/// When the window ends, in the key's time, and what it has admitted.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    clock: Timeline,
    limit: u64,
    aligned: bool,
    ends: u128,
    count: u64,
}

impl Fixed {
    pub(crate) fn new(limit: u64, period: u64, aligned: bool, start: u64) -> Self {
        Self { clock: Timeline::new(start, period), limit, aligned, ends: 0, count: 0 }
    }

    fn next_edge(&self) -> u128 {
        let (latest, period) = (u128::from(self.clock.latest), u128::from(self.clock.period));
        match self.aligned {
            true => self.clock.time + (latest / period + 1) * period - latest,
            false => self.clock.time + period,
        }
    }
}

impl Oracle for Fixed {
    fn observe(&mut self, now: u64) {
        let set_back = now < self.clock.latest;
        self.clock.observe(now);
        if self.clock.time >= self.ends {
            self.count = 0;
        }
        // A clock that was set back has other edges ahead; the count stays.
        if self.aligned && set_back && self.clock.behind == 0 && self.count > 0 {
            self.ends = self.next_edge();
        }
    }

    fn verdict(&self, cost: u64) -> Verdict {
        match u128::from(self.count) + u128::from(cost) <= u128::from(self.limit) {
            true => Verdict::Admit,
            false => Verdict::Refuse,
        }
    }

    fn admit(&mut self, cost: u64) {
        if self.count == 0 {
            self.ends = self.next_edge();
        }
        self.count += cost;
    }

    fn remaining(&self) -> (u64, u64) {
        let left = self.limit - self.count;
        (left, left)
    }

    fn reset(&self) -> Option<u128> {
        match self.count {
            0 => Some(0),
            _ => Some(self.ends - self.clock.time + u128::from(self.clock.behind)),
        }
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.limit)
    }

    fn clock(&self) -> &Timeline {
        &self.clock
    }
}

/// Every admission, for ever. The window must hold the limit over each period, and may remember for one slice more.
#[derive(Clone, Debug)]
pub(crate) struct Sliding {
    clock: Timeline,
    limit: u64,
    slice: u64,
    log: Vec<(u128, u64)>,
}

impl Sliding {
    pub(crate) fn new(limit: u64, period: u64, slices: u64, start: u64) -> Self {
        Self { clock: Timeline::new(start, period), limit, slice: period.div_ceil(slices), log: Vec::new() }
    }

    /// The rule itself: no slices, nothing left open.
    pub(crate) fn exact(limit: u64, period: u64, start: u64) -> Self {
        Self { clock: Timeline::new(start, period), limit, slice: 0, log: Vec::new() }
    }

    /// What was admitted less than `span` ago.
    fn within(&self, span: u128) -> u128 {
        let young = |at: u128| self.clock.time - at < span;
        self.log.iter().filter(|(at, _)| young(*at)).map(|(_, cost)| u128::from(*cost)).sum()
    }

    fn strict(&self) -> u128 {
        self.within(u128::from(self.clock.period))
    }

    fn slack(&self) -> u128 {
        self.within(u128::from(self.clock.period) + u128::from(self.slice))
    }
}

impl Oracle for Sliding {
    fn observe(&mut self, now: u64) {
        self.clock.observe(now);
    }

    fn verdict(&self, cost: u64) -> Verdict {
        let (limit, cost) = (u128::from(self.limit), u128::from(cost));
        match (self.strict() + cost <= limit, self.slack() + cost <= limit) {
            (false, _) => Verdict::Refuse,
            (true, true) => Verdict::Admit,
            (true, false) => Verdict::Either,
        }
    }

    fn admit(&mut self, cost: u64) {
        if cost > 0 {
            self.log.push((self.clock.time, cost));
        }
    }

    fn remaining(&self) -> (u64, u64) {
        let left = |used: u128| u128::from(self.limit).saturating_sub(used) as u64;
        (left(self.slack()), left(self.strict()))
    }

    fn reset(&self) -> Option<u128> {
        None
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.limit)
    }

    fn clock(&self) -> &Timeline {
        &self.clock
    }
}

/// When the current window began, in the key's time, and two counts.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    clock: Timeline,
    limit: u64,
    began: u128,
    previous: u64,
    current: u64,
}

impl Counter {
    pub(crate) fn new(limit: u64, period: u64, start: u64) -> Self {
        Self { clock: Timeline::new(start, period), limit, began: 0, previous: 0, current: 0 }
    }

    fn period(&self) -> u128 {
        u128::from(self.clock.period)
    }

    /// What the previous window still weighs, times the period.
    fn weighs(&self) -> u128 {
        u128::from(self.previous) * (self.began + self.period() - self.clock.time)
    }
}

impl Oracle for Counter {
    fn observe(&mut self, now: u64) {
        self.clock.observe(now);
        let ended = (self.clock.time - self.began) / self.period();
        self.began += ended * self.period();
        match ended {
            0 => {}
            1 => (self.previous, self.current) = (self.current, 0),
            _ => (self.previous, self.current) = (0, 0),
        }
    }

    fn verdict(&self, cost: u64) -> Verdict {
        let free = u128::from(self.limit - self.current) * self.period() - self.weighs();
        match cost <= self.limit && u128::from(cost) * self.period() <= free {
            true => Verdict::Admit,
            false => Verdict::Refuse,
        }
    }

    fn admit(&mut self, cost: u64) {
        if self.previous == 0 && self.current == 0 {
            self.began = self.clock.time;
        }
        self.current += cost;
    }

    fn remaining(&self) -> (u64, u64) {
        let left = self.limit - self.current - self.weighs().div_ceil(self.period()) as u64;
        (left, left)
    }

    fn reset(&self) -> Option<u128> {
        let windows = match (self.previous, self.current) {
            (0, 0) => return None,
            (_, 0) => 1,
            _ => 2,
        };
        Some(self.began + windows * self.period() - self.clock.time + u128::from(self.clock.behind))
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.limit)
    }

    fn clock(&self) -> &Timeline {
        &self.clock
    }
}

/// How much of the interval after the last call is still to go; a nanosecond is `limit` parts.
#[derive(Clone, Debug)]
pub(crate) struct Leaky {
    clock: Timeline,
    limit: u64,
    parts: u128,
}

impl Leaky {
    pub(crate) fn new(limit: u64, period: u64, start: u64) -> Self {
        Self { clock: Timeline::new(start, period), limit, parts: 0 }
    }
}

impl Oracle for Leaky {
    fn observe(&mut self, now: u64) {
        let gone = u128::from(self.clock.observe(now)) * u128::from(self.limit);
        self.parts = self.parts.saturating_sub(gone);
    }

    fn verdict(&self, cost: u64) -> Verdict {
        match cost == 0 || self.parts == 0 {
            true => Verdict::Admit,
            false => Verdict::Refuse,
        }
    }

    fn admit(&mut self, cost: u64) {
        self.parts += u128::from(cost) * u128::from(self.clock.period);
    }

    fn remaining(&self) -> (u64, u64) {
        let left = u64::from(self.parts == 0);
        (left, left)
    }

    fn reset(&self) -> Option<u128> {
        match self.parts {
            0 => Some(0),
            parts => Some(parts.div_ceil(u128::from(self.limit)) + u128::from(self.clock.behind)),
        }
    }

    fn capacity(&self) -> Option<u64> {
        None
    }

    fn clock(&self) -> &Timeline {
        &self.clock
    }
}
