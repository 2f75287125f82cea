//! A check of governor, for comparison. Its table has random hash seeds, and its clock is the time stamp counter.

mod support;

use std::hint::black_box;
use std::net::IpAddr;
use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use support::checks::{FEW, PLENTY, Subject, count_admitted, count_denied};
use support::{Case, program};

impl Subject for DefaultKeyedRateLimiter<IpAddr> {
    #[inline]
    fn check(&self, key: &IpAddr) -> bool {
        black_box(&self.check_key(key)).is_ok()
    }
}

fn limit(limit: u64) -> NonZeroU32 {
    u32::try_from(limit).ok().and_then(NonZeroU32::new).expect("a limit of 32 bits, and not 0")
}

fn main() {
    program(&[
        Case::new("admitted", |calls| {
            let quota = Quota::per_minute(limit(70)).allow_burst(limit(PLENTY));
            count_admitted(&RateLimiter::keyed(quota), calls);
        })
        .random(),
        Case::new("denied", |calls| count_denied(&RateLimiter::keyed(Quota::per_hour(limit(FEW))), calls))
            .random(),
    ]);
}
