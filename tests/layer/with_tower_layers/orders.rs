//! Each order of tower's layers and the layer with a queue runs through many random schedules.

use tokio::task::coop::unconstrained;

use super::schedule::{Schedule, Tally};
use super::stack::{Builder, Stack};

/// The number of schedules for each of the ten stacks.
const SCHEDULES: u64 = 1_000;

/// Prints which schedule failed.
struct Witness(u64);

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with the seed {}", self.0);
        }
    }
}

/// Runs random schedules of a stack. Returns their outcomes.
async fn schedules(build: fn(&mut Builder) -> Stack) -> Tally {
    let mut tally = Tally::default();
    // All schedules run in one task. Without `unconstrained`, tokio's types would yield after some polls.
    unconstrained(async {
        for seed in 0..SCHEDULES {
            let _witness = Witness(seed);
            let mut schedule = Schedule::new(seed, build, &mut tally);
            for _ in 0..96 {
                schedule.step().await;
            }
            schedule.end().await;
        }
    })
    .await;
    let Tally { answered, waited, rejected, abandoned, abandoned_in_line, .. } = tally;
    for seen in [answered, waited, rejected, abandoned, abandoned_in_line] {
        assert!(seen > SCHEDULES as usize / 4, "they look at little: {tally:?}");
    }
    tally
}

#[tokio::test(start_paused = true)]
async fn before_concurrency_limit_no_lost_wakeup() {
    schedules(|stack| {
        let service = stack.backend();
        let service = stack.concurrent(service);
        Stack::new(stack.limited(service))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn behind_concurrency_limit_no_lost_wakeup() {
    schedules(|stack| {
        let service = stack.limited(stack.backend());
        Stack::new(stack.concurrent(service))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn before_buffer_no_lost_wakeup() {
    schedules(|stack| {
        let service = stack.backend();
        let service = stack.buffered(service);
        Stack::new(stack.limited(service))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn behind_buffer_no_lost_wakeup() {
    schedules(|stack| {
        let service = stack.limited(stack.backend());
        Stack::new(stack.buffered(service))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn before_timeout_no_lost_wakeup_and_queueing_is_not_timed() {
    let tally = schedules(|stack| {
        let service = stack.backend();
        let service = stack.soon(service);
        Stack::new(stack.limited(service))
    })
    .await;
    assert!(tally.timed_out > 100, "{tally:?}");
}

#[tokio::test(start_paused = true)]
async fn behind_timeout_no_lost_wakeup_and_cancelled_calls_leave_the_queue() {
    let tally = schedules(|stack| {
        let service = stack.limited(stack.backend());
        Stack::new(stack.in_time(service))
    })
    .await;
    assert!(tally.timed_out > 100, "{tally:?}");
}

#[tokio::test(start_paused = true)]
async fn under_load_shed_no_lost_wakeup() {
    let tally = schedules(|stack| {
        let service = stack.backend();
        let service = stack.concurrent(service);
        let service = stack.limited(service);
        Stack::new(stack.shed(service))
    })
    .await;
    assert!(tally.shed > 100, "{tally:?}");
}

#[tokio::test(start_paused = true)]
async fn before_load_shed_no_lost_wakeup() {
    let tally = schedules(|stack| {
        let service = stack.backend();
        let service = stack.concurrent(service);
        let service = stack.shed(service);
        Stack::new(stack.limited(service))
    })
    .await;
    assert!(tally.shed > 100, "{tally:?}");
}

#[tokio::test(start_paused = true)]
async fn among_all_layers_no_lost_wakeup() {
    let tally = schedules(|stack| {
        let service = stack.backend();
        let service = stack.soon(service);
        let service = stack.concurrent(service);
        let service = stack.buffered(service);
        let service = stack.limited(service);
        let service = stack.in_time(service);
        Stack::new(stack.shed(service))
    })
    .await;
    assert!(tally.timed_out > 100 && tally.shed > 100, "{tally:?}");
}

#[tokio::test(start_paused = true)]
async fn between_two_concurrency_limits_no_lost_wakeup() {
    let tally = schedules(|stack| {
        let service = stack.backend();
        let service = stack.concurrent(service);
        let service = stack.limited(service);
        let service = stack.concurrent(service);
        let service = stack.in_time(service);
        Stack::new(stack.buffered(service))
    })
    .await;
    assert!(tally.timed_out > 100, "{tally:?}");
}
