//! What unused time is worth: the store of a limiter, and what is taken from it.
//!
//! All times are in fine units, 2^-48 of a nanosecond.

use super::wide::{part_of, product_over};

/// Fractions of a nanosecond are counted in 2^-48.
pub(super) const FINE: u32 = 48;
/// Cold factors are multiples of 1/1024.
const PARTS: u32 = 10;
const SECOND: u128 = 1_000_000_000 << FINE;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reserve {
    /// Up to one second of unused time, free of charge.
    Bursty,
    WarmingUp {
        /// In nanoseconds.
        warm_up: u64,
        /// In 1/1024.
        cold_factor: u64,
    },
}

impl Reserve {
    pub(super) const fn warming_up(warm_up: u64, cold_factor: u64) -> Self {
        Self::WarmingUp { warm_up, cold_factor: cold_factor << PARTS }
    }

    /// The same with another cold factor, at least 1.
    pub(super) fn colder(self, factor: f64) -> Self {
        match self {
            Self::Bursty => self,
            Self::WarmingUp { warm_up, .. } => {
                let cold_factor = (factor * f64::from(1 << PARTS)).ceil() as u64;
                Self::WarmingUp { warm_up, cold_factor }
            }
        }
    }

    /// The most that is stored.
    pub(super) fn most(self) -> u128 {
        match self {
            Self::Bursty => SECOND,
            Self::WarmingUp { warm_up, cold_factor } => {
                let above = (2 * u128::from(warm_up)) << (FINE + PARTS);
                bend(warm_up) + above.div_ceil(u128::from(cold_factor) + (1 << PARTS))
            }
        }
    }

    /// As much of the most as `stored` was of what `old` could store; if that was of the other kind, as much as at
    /// first. Rounded so that no call goes early.
    pub(super) fn refill(self, stored: u128, old: Self) -> u128 {
        match (self, old) {
            (Self::Bursty, Self::Bursty) => stored,
            (Self::WarmingUp { .. }, Self::WarmingUp { .. }) if old.most() > 0 => {
                part_of(self.most(), stored, old.most())
            }
            _ => self.at_first(),
        }
    }

    /// What is stored when a limiter is built: nothing, or all that makes it cold.
    pub(super) fn at_first(self) -> u128 {
        match self {
            Self::Bursty => 0,
            Self::WarmingUp { .. } => self.most(),
        }
    }

    /// What idle time stores.
    pub(super) fn stores(self, idle: u128) -> u128 {
        match self {
            Self::Bursty => idle,
            Self::WarmingUp { cold_factor, .. } => {
                let (fills, over) = fill_rate(cold_factor);
                product_over(idle, fills, 1, &[over], 0)
            }
        }
    }

    /// How long idle time takes to store `missing`.
    pub(super) fn until(self, missing: u128) -> u128 {
        match self {
            Self::Bursty => missing,
            Self::WarmingUp { cold_factor, .. } => {
                let (fills, over) = fill_rate(cold_factor);
                product_over(missing, over.into(), 1, &[fills as u64], 0)
            }
        }
    }

    /// Takes `time` from what is stored, and fresh time for the rest; how long that takes.
    pub(super) fn spend(self, stored: &mut u128, time: u128) -> u128 {
        let before = *stored;
        *stored = before.saturating_sub(time);
        match self {
            Self::Bursty => time - (before - *stored),
            Self::WarmingUp { warm_up, cold_factor } => {
                let bend = bend(warm_up);
                let (from, to) = (before.saturating_sub(bend), stored.saturating_sub(bend));
                if from == to {
                    return time;
                }
                // What the line's slope adds: (cf^2 - 1) (from^2 - to^2) / (4 warm_up).
                let slope = cold_factor * cold_factor - (1 << (2 * PARTS));
                time + product_over(from - to, from + to, slope, &[warm_up], 2 + 2 * PARTS + FINE)
            }
        }
    }

    /// How many permits of `time` each are free of charge.
    pub(super) fn free(self, stored: u128, time: u128) -> u64 {
        match self {
            Self::Bursty => u64::try_from(stored / time).unwrap_or(u64::MAX),
            Self::WarmingUp { .. } => 0,
        }
    }
}

fn bend(warm_up: u64) -> u128 {
    u128::from(warm_up) << (FINE - 1)
}

/// The store fills by 1/2 + 2 / (1 + cf) for each unit of time: as numerator and denominator.
fn fill_rate(cold_factor: u64) -> (u128, u64) {
    const ONE: u64 = 1 << PARTS;
    (u128::from(cold_factor + 5 * ONE), 2 * (cold_factor + ONE))
}
