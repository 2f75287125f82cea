//! Contestants that run alternately.

use std::time::Duration;

/// A contestant. `run` makes a fixed number of calls, and returns the time that they take.
pub struct Contestant<'a> {
    pub name: String,
    pub run: Box<dyn FnMut() -> Duration + 'a>,
}

impl<'a> Contestant<'a> {
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Duration + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// The time of each contestant in each round.
pub struct Rounds {
    names: Vec<String>,
    seconds: Vec<Vec<f64>>,
}

impl Rounds {
    /// Runs the contestants in the order A B C, B C A, C A B and so on, after one round that is not counted.
    pub fn of(mut contestants: Vec<Contestant<'_>>, rounds: usize) -> Self {
        let mut seconds = vec![Vec::with_capacity(rounds); contestants.len()];
        for round in 0..=rounds {
            for position in 0..contestants.len() {
                let which = (round + position) % contestants.len();
                let took = (contestants[which].run)();
                if round > 0 {
                    seconds[which].push(took.as_secs_f64());
                }
            }
        }
        Self { names: contestants.into_iter().map(|contestant| contestant.name).collect(), seconds }
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    fn seconds(&self, name: &str) -> &[f64] {
        let at = self.names.iter().position(|known| known == name);
        &self.seconds[at.unwrap_or_else(|| panic!("no contestant is called {name}"))]
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the median of the times of `name`, in seconds.
    #[cfg(feature = "redis")]
    pub fn median(&self, name: &str) -> f64 {
        median(self.seconds(name).iter().copied())
    }

    /// Returns the median, over the rounds, of the ratio of the times of `name` and `peer`.
    pub fn ratio(&self, name: &str, peer: &str) -> f64 {
        median(self.seconds(name).iter().zip(self.seconds(peer)).map(|(ours, theirs)| ours / theirs))
    }

    /// Returns the quartiles, over the rounds, of the ratio of the times of `name` and `peer`.
    pub fn quartiles(&self, name: &str, peer: &str) -> (f64, f64) {
        quartiles(self.seconds(name).iter().zip(self.seconds(peer)).map(|(ours, theirs)| ours / theirs))
    }

    /// Returns the [`ratio`](Rounds::ratio) of the times of `name` and `peer`, after the time of `base` was subtracted
    /// from both.
    pub fn extra(&self, name: &str, peer: &str, base: &str) -> f64 {
        let pairs = self.seconds(name).iter().zip(self.seconds(peer)).zip(self.seconds(base));
        median(pairs.map(|((ours, theirs), base)| (ours - base) / (theirs - base)))
    }
}

pub fn quartiles(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 4], values[values.len() * 3 / 4])
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length => (values[(length - 1) / 2] + values[length / 2]) / 2.0,
    }
}
