//! The replay of a log with one algorithm.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_throttle::RateLimiter;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::Acquire;

use crate::log::Log;

/// The outcomes of the requests.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The number of requests that were admitted at once.
    pub(crate) passed: u64,
    /// The number of requests that were admitted after they were queued.
    pub(crate) waited: u64,
    /// The number of denied requests of each client.
    pub(crate) denied: Vec<u64>,
}

impl Outcome {
    pub(crate) fn denied(&self) -> u64 {
        self.denied.iter().sum()
    }

    /// Returns at most `n` clients: those with the most denied requests, in descending order.
    pub(crate) fn worst(&self, n: usize) -> Vec<usize> {
        let mut clients: Vec<usize> =
            (0..self.denied.len()).filter(|client| self.denied[*client] > 0).collect();
        clients.sort_by_key(|client| std::cmp::Reverse(self.denied[*client]));
        clients.truncate(n);
        clients
    }
}

/// Calls a limiter at the times of the log. Calls that have to wait are kept until they are admitted.
pub(crate) fn replay<A: Algorithm>(algorithm: A, log: &Log) -> Outcome {
    let clock = ManualClock::new();
    // The key table has room for every client, so that no client is evicted.
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).max_keys(log.clients.len()).build();
    let mut queues: HashMap<usize, VecDeque<Pin<Box<Acquire<A>>>>> = HashMap::new();
    let mut outcome = Outcome { passed: 0, waited: 0, denied: vec![0; log.clients.len()] };

    let mut now = Duration::ZERO;
    for request in &log.requests {
        let time = Duration::from_secs(request.time);
        // The clock moves in small steps, so that queued calls are admitted on time and in the order of arrival. If a
        // call were admitted more than 5 ms late, the queue would move its schedule.
        while !queues.is_empty() && now + STEP < time {
            now += STEP;
            clock.set(now);
            queues.retain(|_, queue| !admit_due(queue));
        }
        now = time;
        clock.set(now);
        queues.retain(|_, queue| !admit_due(queue));
        let queue = queues.entry(request.client).or_default();
        let mut call = Box::pin(limiter.acquire(&log.clients[request.client]));
        match poll(&mut call) {
            Poll::Ready(decision) if decision.is_allowed() => outcome.passed += 1,
            Poll::Ready(_) => outcome.denied[request.client] += 1,
            Poll::Pending => {
                outcome.waited += 1;
                queue.push_back(call);
            }
        }
    }
    outcome
}

/// The maximum step of the clock while calls are queued. So a call is admitted at most 5 ms after its slot.
const STEP: Duration = Duration::from_millis(5);

/// Admits the queued calls that are due. Returns whether the queue is empty.
fn admit_due<A: Algorithm>(queue: &mut VecDeque<Pin<Box<Acquire<A>>>>) -> bool {
    while queue.front_mut().is_some_and(|first| poll(first).is_ready()) {
        queue.pop_front();
    }
    queue.is_empty()
}

/// Polls a future by hand. The clock moves in this thread only, so no wake-up is needed.
fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Client, Request};
    use tower_throttle::Quota;
    use tower_throttle::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};

    fn log(times: &[u64]) -> Log {
        let requests = times.iter().map(|time| Request { time: *time, client: 0 }).collect();
        Log { requests, clients: vec![Client::Name("a".to_owned())], ..Log::default() }
    }

    fn outcome(passed: u64, waited: u64, denied: u64) -> Outcome {
        Outcome { passed, waited, denied: vec![denied] }
    }

    #[test]
    fn the_four_differ_as_they_should() {
        // The limit is 4 per 4 s. One call arrives first, three arrive just before the first window ends, and six when
        // it ends.
        let quota: Quota = "4 per 4s".parse().unwrap();
        let log = log(&[100, 103, 103, 103, 104, 104, 104, 104, 104, 104]);
        assert_eq!(replay(FixedWindow::new(quota).queue(0), &log), outcome(8, 0, 2));
        assert_eq!(replay(SlidingWindow::new(quota).queue(0), &log), outcome(5, 0, 5));
        assert_eq!(replay(TokenBucket::new(quota).queue(0), &log), outcome(6, 0, 4));
        // At 103 s, one call is admitted, and two are queued for 104 s and 105 s. At 104 s, the first of these two has
        // left the queue, which has three free places for six calls.
        assert_eq!(replay(LeakyBucket::new(quota), &log), outcome(2, 5, 3));
    }

    #[test]
    fn queued_calls_are_admitted_before_later_calls_arrive() {
        let bucket = LeakyBucket::new(Quota::per_second(1)).queue(1);
        assert_eq!(replay(bucket.clone(), &log(&[5, 5, 5])), outcome(1, 1, 1));
        assert_eq!(replay(bucket.clone(), &log(&[5, 5, 6, 7, 8])), outcome(1, 4, 0));
        assert_eq!(replay(bucket, &log(&[5, 5, 7])), outcome(2, 1, 0));
    }
}
