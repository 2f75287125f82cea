//! The picture of fair capacity: a flood and a caller that asks once a second, with one queue and with one per caller.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::Concurrency;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::{Denied, FairLimiter, Permit};

use crate::sheet::{Mark, Sheet, Side, WIDTH};

/// The number of calls that are in progress at a time, and their length in milliseconds.
const PLACES: u64 = 10;
const LENGTH: u64 = 100;
/// The number of calls of the flood at a time. When one has ended, the next is made at once.
const CONNECTIONS: u64 = 100;
const SECONDS: u64 = 20;

type Call = Pin<Box<dyn Future<Output = Result<Permit, Denied>>>>;

/// The waits of the caller that asks once a second, in milliseconds, and the number of the calls that ended.
#[derive(Debug)]
struct Run {
    waits: Vec<(u64, u64)>,
    ended: u64,
}

/// Both runs.
#[derive(Debug)]
pub(crate) struct FairCapacity {
    one_queue: Run,
    fair: Run,
}

impl FairCapacity {
    pub(crate) fn run() -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::new();
        // One queue for all, in the order of arrival.
        let one = RateLimiter::builder(Concurrency::per_key(PLACES).queue(200)).clock(clock.clone()).build();
        let one_queue = simulate(&clock, |_| Box::pin(one.acquire_permit("all")))?;
        let clock = ManualClock::new();
        let limit = Concurrency::per_key(PLACES).total(PLACES).queue(200);
        let fair = FairLimiter::builder(limit).clock(clock.clone()).build();
        let fair = simulate(&clock, |key| Box::pin(fair.acquire_permit(key)))?;
        Ok(Self { one_queue, fair })
    }

    /// Returns the sentence that says what the picture shows.
    fn label(&self) -> String {
        format!(
            "Next to a flood of {CONNECTIONS} calls at a time on {PLACES} places, the calls of a caller that asks once \
             a second wait for up to {} ms with one queue, and up to {} ms with a queue for each caller. Either way, \
             {} calls are served.",
            self.one_queue.longest(),
            self.fair.longest(),
            self.fair.ended
        )
    }

    pub(crate) fn draw(&self) -> String {
        let mut sheet = Sheet::new("A flood, and a caller once a second");
        let limit =
            format!("{PLACES} calls at a time, of {LENGTH} ms each; the flood has {CONNECTIONS} at a time");
        sheet.text((8, 46), Side::Left, &limit);
        let longest = |run: &Run| format!("its calls wait up to {} ms", run.longest());
        panel(&mut sheet, 70, "One queue for all:", &longest(&self.one_queue), "orange", &self.one_queue);
        panel(&mut sheet, 210, "A queue for each caller:", &longest(&self.fair), "blue", &self.fair);
        for second in (0..=SECONDS).step_by(5) {
            let side = if second == SECONDS { Side::Right } else { Side::Middle };
            sheet.text((column(1_000 * second), 336), side, &format!("{second} s"));
        }
        sheet.finish(348, &self.label())
    }
}

impl Run {
    fn longest(&self) -> u64 {
        self.waits.iter().map(|(_, wait)| *wait).max().unwrap_or_default()
    }
}

/// Makes the calls of both callers, in virtual time.
fn simulate(clock: &ManualClock, acquire: impl Fn(&'static str) -> Call) -> Result<Run, Box<dyn Error>> {
    let mut run = Run { waits: Vec::new(), ended: 0 };
    let mut waiting: Vec<(&'static str, u64, Call)> = Vec::new();
    // The ends of the calls in progress, and what comes after them.
    let mut held: BTreeMap<(u64, u64), (&'static str, Permit)> = BTreeMap::new();
    let mut number = 0;
    for now in 0..1_000 * SECONDS {
        clock.set(Duration::from_millis(now));
        let before = (run.ended, waiting.len());
        while let Some(first) = held.first_entry().filter(|first| first.key().0 <= now) {
            let (key, permit) = first.remove();
            drop(permit);
            run.ended += 1;
            if key == "flood" {
                waiting.push((key, now, acquire(key)));
            }
        }
        // The connections of the flood are opened one by one.
        if now < CONNECTIONS {
            waiting.push(("flood", now, acquire("flood")));
        }
        if now % 1_000 == 550 {
            waiting.push(("polite", now, acquire("polite")));
        }
        if before == (run.ended, waiting.len()) {
            continue;
        }
        let mut still = Vec::new();
        for (key, since, mut call) in waiting {
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => still.push((key, since, call)),
                Poll::Ready(permit) => {
                    number += 1;
                    held.insert((now + LENGTH, number), (key, permit?));
                    if key == "polite" {
                        run.waits.push((since, now - since));
                    }
                }
            }
        }
        waiting = still;
    }
    Ok(run)
}

/// Where the columns begin.
const LEFT: i32 = 56;

fn column(at: u64) -> i32 {
    let width = u64::try_from(WIDTH - LEFT - 12).unwrap_or_default();
    LEFT + i32::try_from(at * width / (1_000 * SECONDS)).unwrap_or(i32::MAX)
}

/// Draws the wait of each call as a dot, over the time at which it was made.
fn panel(sheet: &mut Sheet, top: i32, name: &str, wait: &str, color: &str, run: &Run) {
    sheet.sentence((8, top), name, "", (color, wait));
    let bottom = top + 104;
    let height = |wait: u64| bottom - i32::try_from(wait * 80 / 1_000).unwrap_or(i32::MAX);
    for (wait, text) in [(0, "0"), (500, "0.5 s"), (1_000, "1 s")] {
        sheet.line(&[(LEFT, height(wait)), (WIDTH - 8, height(wait))], "grid", 1);
        sheet.text((LEFT - 6, height(wait) + 5), Side::Right, text);
    }
    let points: Vec<_> = run.waits.iter().map(|(at, wait)| (column(*at), height(*wait))).collect();
    sheet.marks(Mark::Dot, &points, 4, color);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_delays_the_polite_caller_only_with_one_queue() {
        let runs = FairCapacity::run().unwrap();
        assert!(runs.one_queue.longest() >= 900 && runs.fair.longest() <= LENGTH, "{runs:?}");
        assert_eq!(runs.fair.ended, runs.one_queue.ended, "{runs:?}");
        assert!(runs.fair.waits.len() as u64 >= SECONDS - 1);
    }
}
