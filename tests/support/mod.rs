//! The shared parts of the integration tests: a real server, a real client, a parser of header fields, futures that are
//! polled by hand, an algorithm and a limiter of one's own, and random numbers from a seed.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

mod answer;
pub(crate) mod calls;
mod client;
mod clock;
mod own_algorithm;
pub(crate) mod own_limiter;
mod polled;
mod random;
mod redis_connection;
pub(crate) mod redis_server;
mod scale;
mod server;
mod threads;

use std::time::Duration;

use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;

pub(crate) use answer::{Answer, Item};
pub(crate) use client::{
    Client, Client1, Client2, VERSIONS, Version, at_once, get, read_until, request, send,
};
pub(crate) use clock::{TickingClock, limiter};
pub(crate) use own_algorithm::OwnAlgorithm;
pub(crate) use own_limiter::OwnLimiter;
pub(crate) use polled::{Alarm, Now, PolledByHand, patient, waits};
pub(crate) use random::Random;
pub(crate) use scale::scaled;
pub(crate) use server::{Server, Task, listen};
pub(crate) use threads::{ends_within, on_threads};

/// Returns the time over which a client that received `decision` should spread the remaining units.
pub(crate) fn effective_window(algorithm: &impl Algorithm, decision: &Decision) -> Option<Duration> {
    let mut policies = Vec::new();
    algorithm.for_each_policy(&mut |policy| policies.push(policy));
    policies[decision.limit_index()].effective_window(decision)
}
