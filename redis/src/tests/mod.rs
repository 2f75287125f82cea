mod against_memory;
mod closed;
mod counted;
mod differential;
pub(super) mod events;
mod fallback;
mod faults;
mod flights;
mod joined;
mod kept;
mod late;
mod outages;
mod own_trips;
mod queues;
mod quotas;
#[path = "../../../tests/support/redis_connection.rs"]
pub(super) mod redis_connection;
#[path = "../../../tests/support/redis_server/mod.rs"]
pub(super) mod redis_server;
mod runtimes;
pub(super) mod scripted;
mod settled;
mod settlements;
mod staged;
mod threads;

use std::time::Duration;

use super::connection::Connection;
use super::frame::Frame;
use super::limiter::RedisLimiter;
use super::script::TimeSource;
use super::store::{RedisStore, RedisStoreBuilder};
use tower_throttle::algorithm::{StateWriter, StoredAlgorithm};

/// Returns the value of a key whose state has this unit and these numbers.
pub(super) fn value(unit: &str, numbers: &[u64]) -> Vec<u8> {
    let mut written = StateWriter::default();
    numbers.iter().for_each(|number| written.number(*number));
    let Frame { head, tail } = Frame::new(unit);
    [&head, written.as_bytes(), tail.as_bytes()].concat()
}

/// Returns values that are no state of a fixed window of five calls in `period` nanoseconds, although most of them are
/// nearly one. The last one has a newer version.
pub(super) fn values_of_others(period: u64) -> Vec<Vec<u8>> {
    let unit = &*format!("f:5/{period}");
    let time = 1_700_000_000_000_000;
    let good = value(unit, &[time, 1_000, 3]);
    let numbers = good.len() - unit.len() - 1;
    let with = |number: f64| {
        let mut value = good.clone();
        value[numbers - 8..numbers].copy_from_slice(&number.to_le_bytes());
        value
    };
    let text = b"\x01 f:5/60000000000 1700000000000000 1000 3";
    let mut values = vec![b"hello".to_vec(), b"1".to_vec(), vec![0, 1], text.to_vec(), text[1..].to_vec()];
    // Each length that is too short, and one that is too long.
    values.extend((1..good.len()).map(|length| good[..length].to_vec()));
    values.push([&good[..], b"0"].concat());
    values.push([&good[..numbers], &[0], &good[numbers..]].concat());
    values.extend([-3.0, 0.5, f64::NAN, f64::INFINITY, 9_007_199_254_740_994.0 * 2.0].map(with));
    values.extend([
        value(unit, &[time, 1_000]),
        value(unit, &[time, 1_000, 3, 4]),
        value(unit, &[time, 1_000, (1 << 53) + 6]),
        value(unit, &[time, period, 1]),
        value(unit, &[u64::MAX, 1_000, 3]),
        value(&format!("t:5/{period}/5"), &[0, time]),
        value(&format!("f:0/{period}"), &[time, 1_000, 3]),
        value("", &[time, 1_000, 3]),
    ]);
    // The tag of another unit, and one of no unit.
    let other = value(&format!("f:6/{period}"), &[time, 1_000, 3]);
    values.push([&other[..8], &good[8..]].concat());
    values.push([&good[..8], &other[8..]].concat());
    // Another state that is cut off.
    let second = |bytes: &[u8]| [&good[..numbers], bytes, &good[numbers..]].concat();
    let until = (time as f64).to_le_bytes();
    values.push(second(&until));
    values.push(second(&[&until[..], b"f:6/60000000000"].concat()));
    values.push(second(&[&until[..], b"f:6/60000000000\0", &other[8..24]].concat()));
    let newer = [&[2], &good[1..]].concat();
    values.push(newer);
    values
}

fn settings(scripts: bool, remember_denials: Duration) -> impl Fn(RedisStoreBuilder) -> RedisStoreBuilder {
    move |store| {
        let store = store.remember_denials(remember_denials);
        if scripts { store } else { store.without_scripts() }
    }
}

fn store(
    connection: impl Connection,
    settings: impl Fn(RedisStoreBuilder) -> RedisStoreBuilder,
) -> RedisStore {
    settings(RedisStoreBuilder::over(connection, TimeSource::Server)).connect_lazily().unwrap()
}

fn limiter<A: StoredAlgorithm>(store: &RedisStore, algorithm: A) -> RedisLimiter<A> {
    store.limiter("test", algorithm).build().unwrap()
}

/// A simple generator of random numbers (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    /// Returns a random number below the limit. The maximum number of its bits is random as well, so small numbers are
    /// frequent.
    pub(super) fn scaled_below(&mut self, limit: u64) -> u64 {
        let bits = self.below(u64::from(limit.ilog2()) + 1) as u32;
        self.below(limit.min(2 << bits)).min(limit - 1)
    }

    /// Returns the next reading of a clock that mostly makes small steps, and seldom large ones. Of twenty readings,
    /// two are earlier, one of them by more than a period.
    pub(super) fn reading_after(&mut self, now: u64, period: u64, small: u64) -> u64 {
        match self.below(20) {
            0 => now - self.scaled_below(period),
            1 => now - period - self.scaled_below(9 * period),
            2..5 => now + self.scaled_below(4 * period),
            5..8 => now,
            _ => now + self.scaled_below(small),
        }
    }
}
