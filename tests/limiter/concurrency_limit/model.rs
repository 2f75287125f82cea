//! Random operations, compared with a model of the permits.

use super::*;

const KEYS: u64 = 3;

/// The permit that one call of the model holds, or waits for.
#[derive(Clone, Copy, Debug)]
struct Item {
    key: usize,
    cost: u64,
    total_index: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: u64,
    item: Item,
    until: u64,
}

/// The algorithm in a few lines. It has the permits that are held, and the waiters.
#[derive(Debug, Default)]
struct Model {
    limit: u64,
    /// The total in which new calls count, and the limit of this total.
    total: Option<(usize, u64)>,
    counts: Vec<u64>,
    places: usize,
    held: [u64; KEYS as usize],
    lines: [VecDeque<Waiter>; KEYS as usize],
    granted: Vec<(u64, Item)>,
    ids: u64,
}

enum Course {
    Passes(Item),
    Waits(u64),
    Refused,
}

impl Model {
    fn limit(&self) -> u64 {
        self.total.map_or(self.limit, |(_, most)| self.limit.min(most))
    }

    fn room(&self) -> u64 {
        self.total.map_or(u64::MAX, |(total_index, most)| most.saturating_sub(self.counts[total_index]))
    }

    fn fits(&self, key: usize, cost: u64) -> bool {
        self.held[key] + cost <= self.limit()
    }

    fn item(&mut self, key: usize, cost: u64) -> Item {
        let total_index = self.total.map(|(total_index, _)| total_index);
        if let Some(total_index) = total_index {
            self.counts[total_index] += cost;
        }
        Item { key, cost, total_index }
    }

    /// Makes a call that does not wait.
    fn check(&mut self, key: usize, cost: u64) -> Option<Item> {
        let passes = cost == 0 || self.lines[key].is_empty() && self.fits(key, cost) && cost <= self.room();
        passes.then(|| {
            self.held[key] += cost;
            self.item(key, cost)
        })
    }

    fn enter(&mut self, key: usize, cost: u64, until: u64, is_patient: bool) -> Course {
        let due = self.fits(key, cost) || self.held[key] == 0;
        if cost > self.limit() {
            Course::Refused
        } else if cost == 0 || self.lines[key].is_empty() && due {
            self.check(key, cost).map_or(Course::Refused, Course::Passes)
        } else if is_patient && self.lines[key].len() < self.places && cost <= self.room() {
            self.ids += 1;
            let (id, item) = (self.ids, self.item(key, cost));
            self.lines[key].push_back(Waiter { id, item, until });
            Course::Waits(id)
        } else {
            Course::Refused
        }
    }

    /// Admits waiters from the front of the queue, as long as they fit.
    fn settle(&mut self, key: usize) {
        while let Some(first) = self.lines[key].front().copied() {
            if self.held[key] > 0 && !self.fits(key, first.item.cost) {
                break;
            }
            self.lines[key].pop_front();
            self.held[key] += first.item.cost;
            self.granted.push((first.id, first.item));
        }
    }

    fn leave(&mut self, item: Item) {
        if let Some(total_index) = item.total_index {
            self.counts[total_index] -= item.cost;
        }
    }

    fn end(&mut self, item: Item) {
        self.leave(item);
        self.held[item.key] -= item.cost;
        self.settle(item.key);
    }

    fn granted(&self, id: u64) -> Option<Item> {
        self.granted.iter().find(|(granted, _)| *granted == id).map(|(_, item)| *item)
    }

    fn waiting(&self, id: u64) -> Option<Waiter> {
        self.lines.iter().flatten().find(|waiter| waiter.id == id).copied()
    }

    /// Removes a waiter that was cancelled, or whose `max_wait` has ended.
    fn remove(&mut self, waiter: Waiter) {
        self.lines[waiter.item.key].retain(|other| other.id != waiter.id);
        self.leave(waiter.item);
        self.settle(waiter.item.key);
    }
}

/// The state of a future, according to the model.
#[derive(Clone, Copy, Debug)]
enum Stands {
    Outside,
    InLine(u64),
    Passed(Item),
    Refused,
}

struct Pending {
    hand: PolledByHand<Call>,
    key: usize,
    stands: Stands,
}

/// A limiter and its model. Every operation is made on both.
struct Bench {
    seed: u64,
    random: Random,
    clock: ManualClock,
    now: u64,
    limiter: RateLimiter<Concurrency>,
    model: Model,
    max_wait: Option<u64>,
    futures: Vec<Pending>,
    holders: Vec<(Holder, Item)>,
    /// The calls by `check`, which are in progress until they are released.
    checked: Vec<Item>,
    /// `true` if the algorithm is replaced by new ones, each with a total of its own.
    renewed: bool,
    served: u64,
    waited: u64,
}

impl Bench {
    fn new(seed: u64) -> Self {
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
            checked: Vec::new(),
            served: 0,
            waited: 0,
        }
    }

    fn until(&self) -> u64 {
        self.max_wait.map_or(u64::MAX, |wait| self.now + wait)
    }

    fn enter(&mut self, key: usize, cost: u64) -> Stands {
        let until = self.until();
        match self.model.enter(key, cost, until, self.max_wait != Some(0)) {
            Course::Passes(item) => Stands::Passed(item),
            Course::Waits(id) => Stands::InLine(id),
            Course::Refused => Stands::Refused,
        }
    }

    fn key(&mut self) -> usize {
        self.random.below(KEYS) as usize
    }

    fn step(&mut self) {
        let seed = self.seed;
        let key = self.key();
        match self.random.below(14) {
            0 => {
                let passes = self.limiter.peek(&(key as u64)).is_allowed();
                let expected = self.model.check(key, 1);
                assert_eq!(passes, expected.is_some(), "seed {seed}: peek");
                match (self.limiter.try_acquire_permit(&(key as u64)), expected) {
                    (Ok(permit), Some(item)) => self.holders.push((Box::new(permit), item)),
                    (Err(_), None) => {}
                    (reported, expected) => panic!("seed {seed}: {reported:?}, not {expected:?}"),
                }
            }
            1 if !self.renewed => {
                let cost = self.random.below(4);
                let decision = self.limiter.check_n(&(key as u64), cost);
                let expected = self.model.check(key, cost);
                assert_eq!(decision.is_allowed(), expected.is_some(), "seed {seed}: {decision:?}");
                assert_eq!(decision.retry_after(), None);
                self.checked.extend(expected);
            }
            2 => {
                let hand = PolledByHand::new(acquired(&self.limiter, key as u64));
                self.futures.push(Pending { hand, key, stands: Stands::Outside });
            }
            3 | 4 => {
                let cost = self.random.below(4);
                let hand = PolledByHand::new(layered(&self.limiter, key as u64, cost));
                // The algorithm of this layer has no queue, so no call waits.
                let stands = self.enter(key, cost);
                self.futures.push(Pending { hand, key, stands });
            }
            5..=7 => self.poll_one(),
            8 if !self.futures.is_empty() => {
                let at = self.random.below(self.futures.len() as u64) as usize;
                self.drop_future(at);
            }
            9 | 10 if !self.holders.is_empty() => {
                let at = self.random.below(self.holders.len() as u64) as usize;
                self.drop_holder(at);
            }
            11 if !self.checked.is_empty() => {
                let at = self.random.below(self.checked.len() as u64) as usize;
                let item = self.checked.swap_remove(at);
                self.limiter.release(&(item.key as u64), item.cost);
                self.model.end(item);
            }
            12 => match self.random.below(4) {
                0 => self.limiter.reset(&(key as u64)),
                1 => self.replace(),
                _ => {
                    let step = self.random.below(20);
                    self.clock.advance(MS * step as u32);
                    self.now += step;
                }
            },
            _ => {}
        }
        self.compare();
    }

    fn replace(&mut self) {
        let limit = self.random.within(1..=3);
        let most = self.random.within(1..=6);
        let old = self.limiter.algorithm().into_owned();
        let new = match (self.model.total, self.renewed) {
            // A call counts in the total that it was counted in when it arrived.
            (Some((total_index, _)), false) => {
                self.model.total = Some((total_index, most));
                old.total(most)
            }
            (None, false) => {
                self.model.limit = limit;
                self.rule(limit)
            }
            (_, true) => {
                self.model.limit = limit;
                let rule = self.rule(limit);
                match self.random.below(3) {
                    0 => {
                        self.model.total = None;
                        rule
                    }
                    _ => {
                        self.model.counts.push(0);
                        self.model.total = Some((self.model.counts.len() - 1, most));
                        rule.total(most)
                    }
                }
            }
        };
        self.limiter.replace(new);
        (0..KEYS as usize).for_each(|key| self.model.settle(key));
    }

    fn rule(&self, limit: u64) -> Concurrency {
        let rule = Concurrency::per_key(limit).queue(self.model.places as u64);
        match self.max_wait {
            Some(wait) => rule.max_wait(MS * wait as u32),
            None => rule,
        }
    }

    fn poll_one(&mut self) {
        if self.futures.is_empty() {
            return;
        }
        let at = self.random.below(self.futures.len() as u64) as usize;
        self.poll(at);
    }

    fn poll(&mut self, at: usize) {
        let seed = self.seed;
        let Pending { mut hand, key, mut stands } = self.futures.swap_remove(at);
        if matches!(stands, Stands::Outside) {
            stands = self.enter(key, 1);
        }
        if let Stands::InLine(id) = stands {
            self.waited += 1;
            match (self.model.granted(id), self.model.waiting(id)) {
                (Some(item), _) => stands = Stands::Passed(item),
                (None, Some(waiter)) if waiter.until <= self.now => {
                    self.model.remove(waiter);
                    stands = Stands::Refused;
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
            (Stands::Refused, Some(Err(()))) => {}
            (stands, output) => {
                panic!(
                    "seed {seed}: {stands:?}, but ended {ended}, passed {:?}",
                    output.map(|out| out.is_ok())
                )
            }
        }
    }

    fn drop_future(&mut self, at: usize) {
        let Pending { hand, stands, .. } = self.futures.swap_remove(at);
        drop(hand);
        match stands {
            Stands::Passed(item) => self.model.end(item),
            Stands::InLine(id) => match (self.model.granted(id), self.model.waiting(id)) {
                (Some(item), _) => self.model.end(item),
                (None, Some(waiter)) => self.model.remove(waiter),
                (None, None) => unreachable!("it is queued"),
            },
            Stands::Outside | Stands::Refused => {}
        }
    }

    fn drop_holder(&mut self, at: usize) {
        let (holder, item) = self.holders.swap_remove(at);
        drop(holder);
        self.model.end(item);
    }

    fn compare(&mut self) {
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
                let turn = self.model.granted(*id).is_some();
                let late = self.model.waiting(*id).is_some_and(|waiter| waiter.until <= self.now);
                assert!(!turn && !late || hand.is_woken(), "seed {seed}: asleep");
            }
        }
    }

    /// Ends all calls, in random order. Then nothing is in use.
    fn finish(mut self) -> (u64, u64) {
        let seed = self.seed;
        loop {
            match self.random.below(3) {
                0 if !self.futures.is_empty() => {
                    let at = self.random.below(self.futures.len() as u64) as usize;
                    self.drop_future(at);
                }
                1 if !self.holders.is_empty() => {
                    let at = self.random.below(self.holders.len() as u64) as usize;
                    self.drop_holder(at);
                }
                _ => match self.checked.pop() {
                    Some(item) => {
                        self.limiter.release(&(item.key as u64), item.cost);
                        self.model.end(item);
                    }
                    None => self.poll_one(),
                },
            }
            self.compare();
            if self.futures.is_empty() && self.holders.is_empty() && self.checked.is_empty() {
                break;
            }
        }
        for key in 0..KEYS {
            let all: Vec<_> =
                std::iter::from_fn(|| self.limiter.try_acquire_permit(&key).ok()).take(100).collect();
            assert_eq!(all.len() as u64, self.model.limit(), "seed {seed}");
        }
        if let Some((_, most)) = self.model.total {
            let all: Vec<_> =
                (0..100_u64).filter_map(|key| self.limiter.try_acquire_permit(&key).ok()).collect();
            assert_eq!(all.len() as u64, most, "seed {seed}");
        }
        assert_eq!(self.limiter.queued(), 0);
        (self.served, self.waited)
    }
}

fn agrees_with_the_model(first: u64, count: u64, renewed: bool) {
    let (mut served, mut waited) = (0, 0);
    for seed in first..first + scaled(count) {
        let mut bench = Bench::new(seed);
        bench.renewed = renewed;
        (0..40).for_each(|_| bench.step());
        let done = bench.finish();
        served += done.0;
        waited += done.1;
    }
    assert!(served > scaled(8_000) && waited > scaled(8_000), "{served} {waited}");
}

#[test]
fn calls_are_admitted_queued_and_released_as_in_the_model() {
    agrees_with_the_model(0, 15_000, false);
}

/// Each call counts in the total that existed when the call arrived.
#[test]
fn calls_count_in_the_total_that_they_have_entered() {
    agrees_with_the_model(15_000, 10_000, true);
}
