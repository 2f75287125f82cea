//! Scripts on a real server, compared with the algorithm itself: random calls at times that the tests set. The key of a
//! test lives longer than in `against_memory`, since a mistake after the clock was set back shows late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Random;
use super::redis_server::{RedisServer, Reply};
use super::scripted::START;
use crate::client::{Client, Server};
use crate::script::TimeSource;
use crate::store::RedisStoreBuilder;
use tower_throttle::Quota;
use tower_throttle::algorithm::{
    FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, StoredAlgorithm, TokenBucket,
};
use tower_throttle::clock::Nanos;

/// Compares `operations` random calls by a script with the algorithm.
fn compare<A: StoredAlgorithm>(algorithm: A, period: u64, max_cost: u64, operations: u64) {
    let server = RedisServer::start();
    let mut side = server.connect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(
        Server::At(::redis::Client::open(server.url()).unwrap().into(), ""),
        Duration::from_secs(10),
    );
    let time: &AtomicU64 = Box::leak(Box::default());
    let store = RedisStoreBuilder::over(client, TimeSource::Passed(time)).deadline(Duration::from_secs(60));
    let store = super::settings(true, Duration::ZERO)(store).connect_lazily().unwrap();
    let limiter = super::limiter(&store, algorithm.clone());
    let key = format!("throttle:{{a}}:test:{}", A::kind());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut micros = START;
    let mut state = algorithm.new_state(Nanos::ZERO, Nanos(micros * 1_000));
    let (mut decided, mut allowed) = (0, 0);
    let mut last_text = Reply::Nil;
    while decided < operations {
        micros = random.reading_after(micros, period, period / max_cost.max(8) * 4 + 2);
        time.store(micros, Ordering::SeqCst);
        let now = Nanos(micros * 1_000);
        // The first call begins a trip, and the other calls are decided together in the next one.
        let calls = if random.below(4) == 0 { random.below(6) + 1 } else { 1 };
        let costs: Vec<u64> = (0..calls).map(|_| random.scaled_below(max_cost + 2)).collect();
        let got = runtime.block_on(async {
            let calls: Vec<_> = costs.iter().map(|cost| tokio::spawn(limiter.check_n("a", *cost))).collect();
            let mut decisions = Vec::new();
            for call in calls {
                decisions.push(call.await.unwrap().unwrap());
            }
            decisions
        });
        let mut is_written = false;
        for (cost, got) in costs.iter().zip(got) {
            let mut next = state.clone();
            let expected = algorithm.check(&mut next, now, *cost);
            assert_eq!(
                format!("{got:?}"),
                format!("{expected:?}"),
                "{algorithm:?}, call {decided} of cost {cost} at {micros}"
            );
            // A denial is not written, unless the clock was set back or the algorithm counts denials.
            let is_denial = !expected.is_allowed() && !algorithm.counts_denials();
            let was_set_back = algorithm.must_keep(&state, &next);
            if (*cost > 0 && !is_denial) || was_set_back {
                (state, is_written) = (next, true);
            }
            allowed += u64::from(expected.is_allowed());
            decided += 1;
        }
        let text = side.call(&["GET", &key]);
        if is_written && text != Reply::Nil && text != last_text {
            let ttl: u64 = side.call(&["GET", &format!("ttl:{key}")]).text().parse().unwrap();
            let reset = algorithm.peek(&mut state.clone(), now, 0).reset_after();
            let least = (reset.as_nanos() as u64).div_ceil(1_000_000);
            assert!((least..=least + 3).contains(&ttl), "{algorithm:?}: {ttl} ms for {reset:?}, {text:?}");
        }
        last_text = text;
    }
    assert!(allowed > operations / 50 && allowed < operations - operations / 50, "{algorithm:?}: {allowed}");
}

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

macro_rules! compared {
    ($($name:ident, $algorithm:expr, $period:expr, $max_cost:expr;)+) => {
        $(
            #[test]
            fn $name() {
                compare($algorithm, $period, $max_cost, 10_000);
            }
        )+

        /// The same tests in full size, for `.ci/nightly`.
        mod in_full {
            use super::*;

            $(
                #[test]
                #[ignore = "takes a minute: .ci/nightly runs it"]
                fn $name() {
                    compare($algorithm, $period, $max_cost, 100_000);
                }
            )+
        }
    };
}

fn both() -> (TokenBucket, FixedWindow) {
    (TokenBucket::new(Quota::per_second(10)), FixedWindow::new(Quota::per_minute(60)))
}

compared! {
    script_of_a_token_bucket, TokenBucket::new(Quota::per_minute(7).burst(4)), MINUTE, 4;
    script_of_a_fast_token_bucket, TokenBucket::new(Quota::per_second(1_000_000)), SECOND, 1_000_000;
    script_of_a_token_bucket_of_the_largest_rate,
        TokenBucket::new(Quota::per_second(1_000_000_000_000)), SECOND, 1_000_000_000_000;
    script_of_a_token_bucket_of_the_largest_numbers,
        TokenBucket::new(Quota::per_day(104_249)), 86_400 * SECOND, 104_249;
    swaps_of_a_token_bucket_above_the_numbers_of_a_script,
        TokenBucket::new(Quota::per_day(1_000_003)), 86_400 * SECOND, 1_000_003;
    script_of_a_slow_token_bucket,
        TokenBucket::new(Quota::per(7, Duration::from_secs(3 * 86_400)).unwrap()), 3 * 86_400 * SECOND, 7;
    script_of_a_leaky_bucket, LeakyBucket::new(Quota::per_minute(7)), MINUTE, 3;
    script_of_a_fixed_window, FixedWindow::new(Quota::per_minute(10)), MINUTE, 10;
    script_of_an_aligned_window, FixedWindow::new(Quota::per_second(10)).aligned(), SECOND, 10;
    script_of_a_sliding_counter, SlidingCounter::new(Quota::per_minute(10)), MINUTE, 10;
    script_of_a_sliding_window, SlidingWindow::new(Quota::per_minute(10)), MINUTE, 10;
    script_of_a_sliding_window_of_seven_slices, SlidingWindow::new(Quota::per_second(30)).slices(7), SECOND, 30;
    script_of_a_pair, both(), 5 * SECOND, 12;
    script_of_three, (
        SlidingWindow::new(Quota::per_second(10)),
        (SlidingCounter::new(Quota::per_minute(100)), LeakyBucket::new(Quota::per_second(20))),
    ), 5 * SECOND, 3;
}
