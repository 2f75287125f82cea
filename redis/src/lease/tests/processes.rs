//! Eight processes that lease units from one bucket, in virtual time. An exact bucket judges what they admit.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::in_process::RedisInProcess;
use crate::tests::Random;
use tower_throttle::Quota;
use tower_throttle::algorithm::{Algorithm, TokenBucket};
use tower_throttle::clock::Nanos;

const PROCESSES: usize = 8;
const SECONDS: u64 = 8;
/// The server executes a command 1 ms before the process has its reply.
const ROUND_TRIP: Duration = Duration::from_millis(2);

const BUCKET: TokenBucket = TokenBucket::new(Quota::per_second(1_000).burst(200));

/// Returns the times of calls, in milliseconds, and the process of each.
fn calls(percent: u64, share: impl Fn(&mut Random) -> usize) -> Vec<(u64, usize)> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut calls = Vec::new();
    for ms in 0..1_000 * SECONDS {
        // At 100 %, one call per millisecond is made on average: each of four possible calls has a probability of 25 %.
        for _ in 0..4 {
            if random.below(400) < percent {
                calls.push((ms, share(&mut random)));
            }
        }
    }
    calls
}

fn even(random: &mut Random) -> usize {
    random.below(PROCESSES as u64) as usize
}

/// One process makes half of the calls.
fn skewed(random: &mut Random) -> usize {
    if random.below(2) == 0 { 0 } else { even(random) }
}

/// Every 2 s, each process makes 50 calls within 100 ms.
fn bursts() -> Vec<(u64, usize)> {
    let burst = |start: u64| (0..400).map(move |call| (2_000 * start + call / 4, (call % 8) as usize));
    (0..SECONDS / 2).flat_map(burst).collect()
}

#[derive(Debug)]
struct Outcome {
    admitted: u64,
    /// The number of admissions that an exact bucket denies.
    over: usize,
    /// The number of the calls that an exact bucket admits.
    exact: u64,
    trips: u64,
}

impl Outcome {
    fn trips_per_admission(&self) -> f64 {
        self.trips as f64 / self.admitted as f64
    }
}

/// Makes the calls. At `killed`, in milliseconds, process 0 is killed and loses the units that it holds. Of the calls
/// in the first two of four seconds, `dropped` percent are polled once and, if they are not decided by then, dropped
/// two seconds later.
async fn run(calls: Vec<(u64, usize)>, units: u64, killed: Option<u64>, dropped: u64) -> Outcome {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let server = RedisInProcess::new(ROUND_TRIP);
    let machines: Vec<_> = (0..PROCESSES).map(|_| server.machine()).collect();
    let limiter =
        |machine: &RedisInProcess| machine.connect().limiter("api", BUCKET).lease(units).build().unwrap();
    let limiters: Vec<_> = machines.iter().map(limiter).collect();
    let start = Instant::now();
    let admissions = Arc::new(Mutex::new(Vec::new()));
    let mut exact = 0;
    let mut state = BUCKET.new_state(Nanos::ZERO, Nanos(1_000_000_000_000));
    let at = |time: Instant| Nanos(1_000_000_000_000).saturating_add((time - start).as_nanos() as u64);
    let mut tasks = Vec::new();
    for (ms, process) in calls {
        let time = start + Duration::from_millis(ms);
        sleep_until(time).await;
        if process == 0 && killed.is_some_and(|killed| killed <= ms) {
            machines[0].cut_off();
            continue;
        }
        exact += u64::from(BUCKET.check(&mut state, at(time), 1).is_allowed());
        let (mut call, admissions) = (Box::pin(limiters[process].check("a")), Arc::clone(&admissions));
        let is_kept = ms % 4_000 < 2_000 && random.below(100) < dropped;
        let kept = is_kept.then(|| Duration::from_millis(2_000 + random.below(50)));
        tasks.push(tokio::spawn(async move {
            let decision = match (poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await, kept) {
                (Poll::Ready(decision), _) => decision,
                (Poll::Pending, None) => call.await,
                (Poll::Pending, Some(kept)) => return sleep(kept).await,
            };
            if decision.unwrap().is_allowed() {
                // A call that took no time was decided in its process.
                let now = Instant::now();
                let decided = if now == time { now } else { now - ROUND_TRIP / 2 };
                admissions.lock().unwrap().push(decided);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut admissions = admissions.lock().unwrap().clone();
    admissions.sort_unstable();
    let mut state = BUCKET.new_state(Nanos::ZERO, Nanos(1_000_000_000_000));
    let mut is_over = |time: &Instant| !BUCKET.check(&mut state, at(*time), 1).is_allowed();
    let admitted = admissions.len() as u64;
    let over = admissions.into_iter().map(|time| is_over(&time)).filter(|is_over| *is_over).count();
    Outcome { admitted, over, exact, trips: server.trips() }
}

fn print(name: &str, outcome: &Outcome) {
    let ratio = outcome.admitted as f64 / outcome.exact as f64;
    println!(
        "{name}: {ratio:.4} of exact, {:.4} trips per admission, {outcome:?}",
        outcome.trips_per_admission()
    );
}

/// Verifies that no call is admitted that an exact bucket denies. Also verifies that the admitted calls, plus `lost`,
/// are at least 97 % of those that the exact bucket admits, and that there are at most `max_trips` trips per admission.
#[track_caller]
fn verify(name: &str, outcome: &Outcome, lost: u64, max_trips: f64) {
    print(name, outcome);
    assert_eq!(outcome.over, 0, "{name}: {outcome:?}");
    assert!((outcome.admitted + lost) * 100 >= outcome.exact * 97, "{name}: {outcome:?}");
    assert!(outcome.trips_per_admission() <= max_trips, "{name}: {outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn at_80_percent_load_a_lease_of_10_units_saves_nine_of_ten_trips() {
    verify("even", &run(calls(80, even), 10, None, 0).await, 0, 0.11);
    verify("skewed", &run(calls(80, skewed), 10, None, 0).await, 0, 0.11);
}

#[tokio::test(start_paused = true)]
async fn at_200_percent_load_denials_cost_few_trips() {
    verify("even", &run(calls(200, even), 25, None, 0).await, 0, 0.7);
    verify("skewed", &run(calls(200, skewed), 25, None, 0).await, 0, 0.7);
}

#[tokio::test(start_paused = true)]
async fn bursts_after_pauses_are_admitted_as_by_one_bucket() {
    verify("bursts, 10", &run(bursts(), 10, None, 0).await, 0, 1.0);
    verify("bursts, 25", &run(bursts(), 25, None, 0).await, 0, 1.0);
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_give_back_no_units_that_were_refilled() {
    for units in [1, 10] {
        for calls in [bursts(), calls(80, even), calls(200, even)] {
            let outcome = run(calls, units, None, 30).await;
            print("dropped", &outcome);
            assert!(outcome.over == 0 && outcome.admitted > 500, "{outcome:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_loses_no_more_than_its_lease() {
    verify("killed at 80 %", &run(calls(80, even), 10, Some(3_000), 0).await, 10, 0.11);
    verify("killed at 200 %", &run(calls(200, even), 25, Some(3_000), 0).await, 25, 0.7);
}
