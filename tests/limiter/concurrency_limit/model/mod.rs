//! Random operations, compared with a model of the permits.

mod bench;
mod operations;

use super::*;
use bench::Bench;

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
    admitted: Vec<(u64, Item)>,
    ids: u64,
}

enum Course {
    Passes(Item),
    Waits(u64),
    Denied,
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
            Course::Denied
        } else if cost == 0 || self.lines[key].is_empty() && due {
            self.check(key, cost).map_or(Course::Denied, Course::Passes)
        } else if is_patient && self.lines[key].len() < self.places && cost <= self.room() {
            self.ids += 1;
            let (id, item) = (self.ids, self.item(key, cost));
            self.lines[key].push_back(Waiter { id, item, until });
            Course::Waits(id)
        } else {
            Course::Denied
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
            self.admitted.push((first.id, first.item));
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

    fn admitted(&self, id: u64) -> Option<Item> {
        self.admitted.iter().find(|(admitted, _)| *admitted == id).map(|(_, item)| *item)
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
fn calls_are_admitted_queued_and_ended_as_in_the_model() {
    agrees_with_the_model(0, 15_000, false);
}

/// Each call counts in the total that existed when the call arrived.
#[test]
fn calls_count_in_the_total_that_they_have_entered() {
    agrees_with_the_model(15_000, 10_000, true);
}
