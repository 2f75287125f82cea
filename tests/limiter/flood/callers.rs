//! A flood of invented keys, and more honest callers than places, lead to few denials for honest callers.

use std::time::Duration;

use tower_throttle::Quota;
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow,
};
use tower_throttle::limiter::OnFull;

use super::{Count, DAY, INVENTED, INVENTED_KEYS, MAX_KEYS, MINUTE, SECOND, Scene, bucket, daily};
use crate::support::{Random, scaled};

/// The effect of a flood on callers.
#[derive(Clone, Copy, Debug, Default)]
struct Flooded {
    newcomers: Count,
    half_an_hour_later: Count,
    /// The number of admitted calls of a caller that calls at ten times its limit, and this number without the flood.
    abuser: (u64, u64),
}

const ABUSER: u64 = 1;
const NEWCOMERS: u64 = 1_000_000;
const LATER: u64 = 2_000_000;

/// Makes calls for invented keys, `requests` calls for each key, within 5.6 s. At the same time, a thousand new callers
/// make five calls each, one a second, and another caller calls at ten times its limit.
fn flood<A: Algorithm>(algorithm: &A, on_full: Option<OnFull>, requests: u64) -> Flooded {
    // The pause is a little longer than a second, so that the last call of a new caller has ended when the next one is
    // made.
    const PAUSE: u64 = 7_000;
    const EVERY: u64 = INVENTED / 1_000;
    let (mut scene, mut quiet) = (Scene::new(algorithm, on_full), Scene::new(algorithm, None));
    let (mut seen, step) = (Flooded::default(), Duration::from_millis(5_600) / INVENTED as u32);
    let abuse = 10 * algorithm.policy().quota;
    let mut abused = 0;
    for at in 0..INVENTED + 5 * PAUSE {
        scene.advance(step);
        quiet.advance(step);
        if at < INVENTED {
            for _ in 0..requests {
                let _ = scene.call(INVENTED_KEYS + at);
            }
            while abused * INVENTED < abuse * (at + 1) {
                abused += 1;
                seen.abuser.0 += u64::from(scene.call(ABUSER));
                seen.abuser.1 += u64::from(quiet.call(ABUSER));
            }
        }
        for pause in 0..5 {
            let start = at.checked_sub(pause * PAUSE);
            if let Some(start) = start.filter(|start| *start < INVENTED && start % EVERY == 0) {
                seen.newcomers.add(scene.call(NEWCOMERS + start));
            }
        }
    }
    scene.advance(30 * MINUTE);
    for _ in 0..5 {
        for newcomer in 0..1_000 {
            seen.half_an_hour_later.add(scene.call(LATER + newcomer));
        }
        scene.advance(2 * SECOND);
    }
    seen
}

fn assert_withstands_a_flood<A: Algorithm>(algorithm: &A, requests: u64) {
    let seen = flood(algorithm, None, requests);
    let what = format!("{algorithm:?}, {requests} requests for each key");
    seen.newcomers.assert_below(2, &format!("during the flood, {what}"));
    seen.half_an_hour_later.assert_below(1, &format!("half an hour later, {what}"));
    let (admitted, quota) = seen.abuser;
    assert!(quota > 0 && admitted * 10 <= quota * 11, "{admitted} of {quota}: {what}");
}

#[test]
fn a_flood_of_keys_locks_no_new_caller_out() {
    assert_withstands_a_flood(&bucket(), 1);
    assert_withstands_a_flood(&LeakyBucket::new(Quota::per_minute(100)), 1);
    assert_withstands_a_flood(&Concurrency::per_key(2), 1);
}

#[test]
fn a_flood_of_keys_locks_no_new_caller_out_of_a_window() {
    for quota in [daily(), Quota::per_minute(100)] {
        assert_withstands_a_flood(&FixedWindow::new(quota), 1);
        assert_withstands_a_flood(&SlidingWindow::new(quota), 1);
        assert_withstands_a_flood(&SlidingCounter::new(quota), 1);
        assert_withstands_a_flood(&SlidingLog::new(quota), 1);
    }
}

#[test]
fn a_flood_of_keys_that_are_used_up_locks_no_new_caller_out() {
    assert_withstands_a_flood(&bucket(), 21);
    assert_withstands_a_flood(&FixedWindow::new(Quota::per_day(5)), 6);
    assert_withstands_a_flood(&SlidingCounter::new(Quota::per_minute(5)), 6);
    assert_withstands_a_flood(&SlidingWindow::new(Quota::per_day(5)), 6);
}

#[test]
fn a_flood_of_keys_locks_no_new_caller_out_where_denials_lock_out() {
    let hour = 60 * MINUTE;
    let logins = FixedWindow::new(Quota::per_minute(5)).block_for(hour).after(10);
    assert_withstands_a_flood(&logins, 1);
    // Each invented key is locked out.
    assert_withstands_a_flood(&logins, 15);
    assert_withstands_a_flood(&bucket().block_for(hour).after(10), 1);
    assert_withstands_a_flood(&SlidingLog::new(daily()).block_for(hour).after(1), 1);
    assert_withstands_a_flood(&Concurrency::per_key(2).block_for(hour).after(10), 1);
    assert_withstands_a_flood(&(bucket(), FixedWindow::new(daily())), 1);
}

/// Simulates several callers per place in the table. Each caller makes 50 calls in `time` (at full size), and each
/// round has another order.
fn honest_callers<A: Algorithm>(
    algorithm: &A,
    on_full: Option<OnFull>,
    callers: u64,
    time: Duration,
) -> Count {
    let mut scene = Scene::new(algorithm, on_full);
    let mut random = Random::new(callers);
    let mut order: Vec<u64> = (0..callers).collect();
    let step = time / (50 * callers) as u32;
    let mut count = Count::default();
    for _ in 0..scaled(50) {
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        for key in &order {
            scene.advance(step);
            count.add(scene.call(*key));
        }
    }
    count
}

fn assert_serves_honest_callers<A: Algorithm>(algorithm: &A, time: Duration) {
    for callers in [MAX_KEYS as u64 * 3 / 2, MAX_KEYS as u64 * 3] {
        let count = honest_callers(algorithm, None, callers, time);
        count.assert_below(1, &format!("{callers} callers, {algorithm:?}"));
    }
}

#[test]
fn more_honest_callers_than_places_are_served_by_a_daily_window() {
    assert_serves_honest_callers(&FixedWindow::new(daily()), DAY);
}

#[test]
fn more_honest_callers_than_places_are_served_by_a_sliding_counter() {
    assert_serves_honest_callers(&SlidingCounter::new(Quota::per_minute(100)), MINUTE);
}

#[test]
fn more_honest_callers_than_places_are_served_by_a_bucket() {
    assert_serves_honest_callers(&bucket(), MINUTE);
}

#[test]
fn more_honest_callers_than_places_are_served_where_calls_in_progress_are_limited() {
    assert_serves_honest_callers(&Concurrency::per_key(2), 10 * MINUTE);
}

#[test]
fn more_honest_callers_than_places_are_served_where_denials_lock_out() {
    assert_serves_honest_callers(&FixedWindow::new(daily()).block_for(60 * MINUTE).after(10), DAY);
}

/// Prints the table of figures in the guide. The command is `cargo test -p tower-throttle-tests --test limiter --
/// --ignored --nocapture figures_for_each_policy`.
#[test]
#[ignore = "prints figures of the guide: .ci/nightly runs it, and its comment says how to see them"]
fn figures_for_each_policy() {
    fn print<A: Algorithm>(what: &str, algorithm: &A, requests: u64, time: Duration) {
        for on_full in [OnFull::EvictLeastUsed, OnFull::Reject] {
            let seen = flood(algorithm, Some(on_full), requests);
            let honest = [3, 6]
                .map(|half| honest_callers(algorithm, Some(on_full), MAX_KEYS as u64 * half / 2, time))
                .map(Count::percent);
            println!(
                "| {what} | {requests} | {on_full:?} | {:.1} % | {:.1} % | {:.2} x | {:.1} % | {:.1} % |",
                seen.newcomers.percent(),
                seen.half_an_hour_later.percent(),
                seen.abuser.0 as f64 / seen.abuser.1 as f64,
                honest[0],
                honest[1],
            );
        }
    }
    print("TokenBucket 100/min, burst 20", &bucket(), 1, MINUTE);
    print("FixedWindow 1,000/day", &FixedWindow::new(daily()), 1, DAY);
    print("SlidingCounter 100/min", &SlidingCounter::new(Quota::per_minute(100)), 1, MINUTE);
    let logins = FixedWindow::new(Quota::per_minute(5)).block_for(60 * MINUTE).after(10);
    print("FixedWindow 5/min, block_for 1 h after 10", &logins, 1, 60 * MINUTE);
    print("FixedWindow 5/min, block_for 1 h after 10", &logins, 15, 60 * MINUTE);
    print("FixedWindow 5/day", &FixedWindow::new(Quota::per_day(5)), 6, 15 * DAY);
    print("Concurrency 2", &Concurrency::per_key(2), 1, 10 * MINUTE);
}
