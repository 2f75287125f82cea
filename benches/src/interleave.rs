//! Contestants that take turns.

use std::time::Duration;

/// One that is measured: a name, and a run of so many calls that tells how long it took.
pub struct Contestant<'a> {
    pub name: String,
    pub run: Box<dyn FnMut() -> Duration + 'a>,
}

impl<'a> Contestant<'a> {
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Duration + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// What each contestant took in each round.
pub struct Rounds {
    names: Vec<String>,
    seconds: Vec<Vec<f64>>,
}

impl Rounds {
    /// A B C, B C A, C A B and so on, after one round that is not counted.
    pub fn of(mut contestants: Vec<Contestant<'_>>, rounds: usize) -> Self {
        let mut seconds = vec![Vec::with_capacity(rounds); contestants.len()];
        for round in 0..=rounds {
            for turn in 0..contestants.len() {
                let which = (round + turn) % contestants.len();
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
        &self.seconds[at.unwrap_or_else(|| panic!("nobody is called {name}"))]
    }

    /// The median, over the rounds, of what `name` took to what `peer` took.
    pub fn ratio(&self, name: &str, peer: &str) -> f64 {
        median(self.seconds(name).iter().zip(self.seconds(peer)).map(|(ours, theirs)| ours / theirs))
    }

    /// As [`ratio`](Rounds::ratio), of what both took more than `base`.
    pub fn extra(&self, name: &str, peer: &str, base: &str) -> f64 {
        let pairs = self.seconds(name).iter().zip(self.seconds(peer)).zip(self.seconds(base));
        median(pairs.map(|((ours, theirs), base)| (ours - base) / (theirs - base)))
    }
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length => (values[(length - 1) / 2] + values[length / 2]) / 2.0,
    }
}
