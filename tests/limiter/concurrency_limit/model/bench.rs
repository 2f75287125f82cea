//! A limiter is compared with its model: every call is made on both, and ends on both.

use super::*;

/// The state of a future, according to the model.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stands {
    Outside,
    InLine(u64),
    Passed(Item),
    Denied,
}

pub(super) struct Pending {
    pub(super) hand: PolledByHand<Call>,
    pub(super) key: usize,
    pub(super) stands: Stands,
}

/// A limiter and its model. Every operation is made on both.
pub(super) struct Bench {
    pub(super) seed: u64,
    pub(super) random: Random,
    pub(super) clock: ManualClock,
    pub(super) now: u64,
    pub(super) limiter: RateLimiter<Concurrency>,
    pub(super) model: Model,
    pub(super) max_wait: Option<u64>,
    pub(super) futures: Vec<Pending>,
    pub(super) holders: Vec<(Holder, Item)>,
    /// `true` if the algorithm is replaced by new ones, each with a total of its own.
    pub(super) renewed: bool,
    pub(super) served: u64,
    pub(super) waited: u64,
}

impl Bench {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (limit, places) = (random.within(1..=3), random.below(5));
        let most = (random.below(3) > 0).then(|| random.within(1..=6));
        let max_wait = (random.below(3) == 0).then(|| random.below(40));
        let mut rule = Concurrency::per_key(limit).queue(places);
        if let Some(most) = most {
            rule = rule.total(most);
        }
        if let Some(wait) = max_wait {
            rule = rule.max_wait(MS * wait as u32);
        }
        let clock = ManualClock::new();
        let total = most.map(|most| (0, most));
        let model = Model { limit, total, counts: vec![0], places: places as usize, ..Model::default() };
        Self {
            seed,
            renewed: random.below(4) == 0,
            random,
            limiter: limiter(rule, &clock),
            clock,
            now: 0,
            model,
            max_wait,
            futures: Vec::new(),
            holders: Vec::new(),
            served: 0,
            waited: 0,
        }
    }

    fn until(&self) -> u64 {
        self.max_wait.map_or(u64::MAX, |wait| self.now + wait)
    }

    pub(super) fn enter(&mut self, key: usize, cost: u64) -> Stands {
        let until = self.until();
        match self.model.enter(key, cost, until, self.max_wait != Some(0)) {
            Course::Passes(item) => Stands::Passed(item),
            Course::Waits(id) => Stands::InLine(id),
            Course::Denied => Stands::Denied,
        }
    }

    pub(super) fn key(&mut self) -> usize {
        self.random.below(KEYS) as usize
    }

    pub(super) fn poll_one(&mut self) {
        if self.futures.is_empty() {
            return;
        }
        let at = self.random.below(self.futures.len() as u64) as usize;
        self.poll(at);
    }

    pub(super) fn poll(&mut self, at: usize) {
        let seed = self.seed;
        let Pending { mut hand, key, mut stands } = self.futures.swap_remove(at);
        if matches!(stands, Stands::Outside) {
            stands = self.enter(key, 1);
        }
        if let Stands::InLine(id) = stands {
            self.waited += 1;
            match (self.model.admitted(id), self.model.waiting(id)) {
                (Some(item), _) => stands = Stands::Passed(item),
                (None, Some(waiter)) if waiter.until <= self.now => {
                    self.model.remove(waiter);
                    stands = Stands::Denied;
                }
                (None, waiter) => assert!(waiter.is_some()),
            }
        }
        let ended = hand.poll();
        match (stands, hand.output.take()) {
            (Stands::InLine(_), None) => self.futures.push(Pending { hand, key, stands }),
            (Stands::Passed(item), Some(Ok(holder))) => {
                self.served += 1;
                self.holders.push((holder, item));
            }
            (Stands::Denied, Some(Err(()))) => {}
            (stands, output) => {
                panic!(
                    "seed {seed}: {stands:?}, but ended {ended}, passed {:?}",
                    output.map(|out| out.is_ok())
                )
            }
        }
    }

    pub(super) fn drop_future(&mut self, at: usize) {
        let Pending { hand, stands, .. } = self.futures.swap_remove(at);
        drop(hand);
        match stands {
            Stands::Passed(item) => self.model.end(item),
            Stands::InLine(id) => match (self.model.admitted(id), self.model.waiting(id)) {
                (Some(item), _) => self.model.end(item),
                (None, Some(waiter)) => self.model.remove(waiter),
                (None, None) => unreachable!("it is queued"),
            },
            Stands::Outside | Stands::Denied => {}
        }
    }

    pub(super) fn drop_holder(&mut self, at: usize) {
        let (holder, item) = self.holders.swap_remove(at);
        drop(holder);
        self.model.end(item);
    }

    pub(super) fn compare(&mut self) {
        let seed = self.seed;
        for key in 0..KEYS as usize {
            let reported = self.limiter.peek(&(key as u64));
            let left = self.model.limit().saturating_sub(self.model.held[key]).min(self.model.room());
            match self.model.lines[key].is_empty() {
                true => assert_eq!(reported.remaining(), left, "seed {seed}: key {key} {reported:?}"),
                false => {
                    assert!(!reported.is_allowed() && reported.remaining() == 0, "seed {seed}: {reported:?}");
                }
            }
        }
        let waiting: usize = self.model.lines.iter().map(VecDeque::len).sum();
        assert_eq!(self.limiter.queued(), waiting, "seed {seed}");
        for Pending { hand, stands, .. } in &self.futures {
            if let Stands::InLine(id) = stands {
                let turn = self.model.admitted(*id).is_some();
                let late = self.model.waiting(*id).is_some_and(|waiter| waiter.until <= self.now);
                assert!(!turn && !late || hand.is_woken(), "seed {seed}: asleep");
            }
        }
    }
}
