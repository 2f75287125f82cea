//! The script that hands out permits, written again in Rust.

use std::collections::{BTreeMap, VecDeque};

use super::super::{Arguments, Found, Kind, Operation, Outcome};

/// The value of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Permits {
    pub(super) records: BTreeMap<String, Record>,
    /// The waiters in order, each with the limit of its process.
    queue: VecDeque<(String, u64)>,
    first: u64,
    longest: u64,
    pub(super) fence: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) holds: bool,
    pub(super) units: u64,
    pub(super) ends: u64,
    lease: u64,
    pub(super) fence: u64,
}

impl Permits {
    pub(super) fn held(&self) -> u64 {
        self.records.values().filter(|record| record.holds).map(|record| record.units).sum()
    }

    /// Returns the time to live of the key, in milliseconds.
    pub(super) fn ttl(&self) -> u64 {
        self.longest.div_ceil(1_000) + 1
    }

    fn write(&mut self, name: &str, record: Record) {
        self.first = if self.first == 0 { record.ends } else { self.first.min(record.ends) };
        self.records.insert(name.to_owned(), record);
    }

    fn remove(&mut self, name: &str) {
        self.records.remove(name);
        self.queue.retain(|(waiter, _)| waiter != name);
    }

    /// Removes the records that have expired.
    fn sweep(&mut self, now: u64) -> bool {
        if self.first == 0 || (now < self.first && self.first <= now + self.longest) {
            return false;
        }
        self.first = 0;
        for (name, record) in self.records.clone() {
            match record.ends {
                ends if ends <= now => self.remove(&name),
                ends => self.write(&name, Record { ends: ends.min(now + record.lease), ..record }),
            }
        }
        true
    }

    fn grant(&mut self, name: &str, record: Record, now: u64) {
        self.fence = now.max(self.fence + 1);
        self.write(name, Record { holds: true, fence: self.fence, ..record });
    }

    /// Gives free permits to the first waiters.
    fn hand_over(&mut self, now: u64) -> bool {
        let mut has_changed = false;
        while let Some((name, limit)) = self.queue.front().cloned() {
            let record = self.records[&name].clone();
            if self.held() > 0 && self.held() + record.units > limit {
                break;
            }
            self.queue.pop_front();
            self.grant(&name, record, now);
            has_changed = true;
        }
        has_changed
    }

    /// Makes a trip.
    pub(super) fn execute(&mut self, arguments: &Arguments, operations: &[Operation], now: u64) -> Outcome {
        let Arguments { process, limit, lease, places, .. } = arguments;
        let name = |number: u64| format!("{process}.{number}");
        self.longest = self.longest.max(*lease);
        let mut has_changed = self.sweep(now);
        for Operation { kind, number, .. } in operations {
            let name = name(*number);
            let Some(record) = self.records.get(&name).cloned() else { continue };
            has_changed = true;
            match kind {
                Kind::Leave => self.remove(&name),
                Kind::Keep | Kind::Queue | Kind::Try => {
                    self.write(&name, Record { ends: now + lease, lease: *lease, ..record });
                }
            }
        }
        has_changed |= self.hand_over(now);
        let mut found = Vec::new();
        for Operation { kind, number, units } in operations.iter().filter(|one| one.kind != Kind::Leave) {
            let (name, units) = (name(*number), *units);
            if !self.records.contains_key(&name) && *kind != Kind::Keep {
                let record = Record { holds: false, units, ends: now + lease, lease: *lease, fence: 0 };
                if self.queue.is_empty() && self.held() + units <= *limit {
                    self.grant(&name, record, now);
                    has_changed = true;
                } else if *kind == Kind::Queue && (self.queue.len() as u64) < *places && units <= *limit {
                    self.queue.push_back((name.clone(), *limit));
                    self.write(&name, record);
                    has_changed = true;
                }
            }
            found.push(match self.records.get(&name) {
                Some(Record { holds: true, fence, .. }) => Found::Holds { fence: *fence, held: self.held() },
                Some(_) => {
                    let ahead = self.queue.iter().position(|(waiter, _)| *waiter == name);
                    Found::Waits(ahead.unwrap_or_default() as u64)
                }
                None => Found::None,
            });
        }
        let until_expiry = self.first.saturating_sub(now);
        Outcome {
            now,
            held: self.held(),
            waiting: self.queue.len() as u64,
            until_expiry,
            has_changed,
            is_proof: has_changed,
            is_unsent: false,
            found,
        }
    }
}

impl Record {
    pub(super) fn new(holds: bool, units: u64, ends: u64, lease: u64, fence: u64) -> Self {
        Self { holds, units, ends, lease, fence }
    }
}
