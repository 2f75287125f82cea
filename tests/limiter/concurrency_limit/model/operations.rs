//! Random operations are made on a limiter and on its model.

use super::bench::{Bench, Pending, Stands};
use super::*;

impl Bench {
    pub(super) fn step(&mut self) {
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
            1 => {
                let cost = self.random.below(4);
                let expected = self.model.check(key, cost);
                match (self.limiter.call(&(key as u64)).cost(cost).permit(), expected) {
                    (Ok(permit), Some(item)) => self.holders.push((Box::new(permit), item)),
                    (Err(denied), None) => assert_eq!(denied.decision().retry_after(), None),
                    (reported, expected) => panic!("seed {seed}: {reported:?}, not {expected:?}"),
                }
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
            12 => match self.random.below(4) {
                0 => assert_eq!(self.limiter.reset(&(key as u64)), self.model.held[key] > 0, "seed {seed}"),
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
        let old = self.limiter.algorithm();
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

    /// Ends all calls, in random order. Then nothing is in use.
    pub(super) fn finish(mut self) -> (u64, u64) {
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
                _ => self.poll_one(),
            }
            self.compare();
            if self.futures.is_empty() && self.holders.is_empty() {
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
