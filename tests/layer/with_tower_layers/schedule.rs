//! A random schedule of the calls, the wakeups and the clock of one stack.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use tokio::time::{Instant, advance};
use tower::Service;
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::{Quota, RateLimiter};

use super::callers::{Caller, Readiness};
use super::stack::{Builder, Parts, Stack};
use super::{Call, INTERVAL, Job, MS, Shared, World};
use crate::support::{Alarm, PolledByHand, Random};

/// The outcomes of calls over all schedules of a stack. They show that the schedules tested something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) answered: usize,
    pub(super) waited: usize,
    pub(super) rejected: usize,
    pub(super) shed: usize,
    pub(super) timed_out: usize,
    pub(super) abandoned: usize,
    pub(super) abandoned_in_line: usize,
}

pub(super) struct Schedule<'a> {
    random: Random,
    pub(super) world: Shared,
    pub(super) parts: Parts,
    limiter: RateLimiter<LeakyBucket>,
    root: Option<Stack>,
    pub(super) callers: Vec<Caller>,
    pub(super) calls: Vec<(Job, PolledByHand<<Stack as Service<Job>>::Future>)>,
    pub(super) tally: &'a mut Tally,
}

impl<'a> Schedule<'a> {
    pub(super) fn new(seed: u64, build: fn(&mut Builder) -> Stack, tally: &'a mut Tally) -> Self {
        let mut random = Random::new(seed);
        let places = random.below(5);
        let world = Shared(Arc::new(Mutex::new(World {
            calls: Vec::new(),
            came: Vec::new(),
            places: places as usize,
            exact: random.one_in(2),
            line: VecDeque::new(),
            next: Instant::now(),
            open: true,
            callers: Vec::new(),
            working: BTreeMap::new(),
            most: usize::MAX,
            hurries: false,
        })));
        let quota = Quota::per(1, INTERVAL).unwrap();
        let limiter = RateLimiter::new(LeakyBucket::new(quota).queue(places));
        let mut builder = Builder {
            world: world.clone(),
            limiter: limiter.clone(),
            most: random.within(1..=6) as usize,
            bound: random.within(1..=3) as usize,
            patience: MS * random.within(1..=24) as u32,
            parts: Parts::default(),
        };
        let root = build(&mut builder);
        let parts = builder.parts;
        Self {
            random,
            world,
            parts,
            limiter,
            root: Some(root),
            callers: Vec::new(),
            calls: Vec::new(),
            tally,
        }
    }

    fn exact(&self) -> bool {
        self.world.lock().exact
    }

    /// Picks one of `count` items at random.
    fn pick(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.random.below(count as u64) as usize)
    }

    fn pick_caller(&mut self, state: Readiness) -> Option<usize> {
        let in_state = |(at, caller): (usize, &Caller)| (caller.state == state).then_some(at);
        let callers: Vec<_> = self.callers.iter().enumerate().filter_map(in_state).collect();
        self.pick(callers.len()).map(|at| callers[at])
    }

    fn call(&mut self, caller: usize) {
        let job = {
            let mut world = self.world.lock();
            world.calls.push(Call { made: Instant::now(), came: None, left: None, rejected: false });
            world.calls.len() - 1
        };
        let caller = &mut self.callers[caller];
        caller.state = Readiness::Idle;
        self.calls.push((job, PolledByHand::new(caller.stack.call(job))));
    }

    async fn advance(&mut self, by: u32) {
        if !self.exact() {
            advance(MS * by).await;
            return;
        }
        for _ in 0..by {
            advance(MS).await;
            self.settle();
        }
    }

    pub(super) async fn step(&mut self) {
        match self.random.below(16) {
            0 if self.callers.len() < 5 => {
                let stack = match self.pick(self.callers.len()) {
                    Some(at) => self.callers[at].stack.clone(),
                    None => self.root.clone().unwrap(),
                };
                self.callers.push(Caller::new(stack));
            }
            1 if self.random.one_in(3) => {
                if let Some(at) = self.pick(self.callers.len()) {
                    self.callers.swap_remove(at);
                }
            }
            2..5 => {
                if let Some(at) = self.pick(self.callers.len()) {
                    self.callers[at].ask();
                }
            }
            5..9 => {
                if let Some(at) = self.pick_caller(Readiness::Ready) {
                    self.call(at);
                }
            }
            9 => {
                if let Some(at) = self.pick(self.calls.len()) {
                    let (job, call) = self.calls.swap_remove(at);
                    self.tally.abandoned += 1;
                    self.tally.abandoned_in_line += usize::from(self.world.lock().line.contains(&job));
                    drop(call);
                }
            }
            10 => {
                // The call continues in another task, which polls it.
                if let Some(at) = self.pick(self.calls.len()) {
                    self.calls[at].1.moves();
                    self.calls[at].1.poll();
                }
                if let Some(at) = self.pick_caller(Readiness::Asked) {
                    self.callers[at].alarm = Alarm::new();
                    self.callers[at].ask();
                }
            }
            11 => {
                let working: Vec<_> = self.world.lock().working.keys().copied().collect();
                if let Some(at) = self.pick(working.len()) {
                    let waker = {
                        let mut world = self.world.lock();
                        let work = world.working.get_mut(&working[at]).unwrap();
                        work.done = true;
                        work.waker.take()
                    };
                    waker.into_iter().for_each(Waker::wake);
                }
            }
            12 => {
                let open = self.random.below(4) > 0;
                let woken = self.world.lock().set_open(open);
                woken.into_iter().for_each(Waker::wake);
            }
            13 => {
                // Polls some of the woken tasks.
                let luck = self.random.word();
                let lucky = |at: usize| luck >> (at % 64) & 1 == 1;
                let workers = self.parts.workers.iter_mut();
                workers.enumerate().filter(|(at, _)| lucky(60 + at)).for_each(|(_, worker)| {
                    worker.run();
                });
                let callers = self.callers.iter_mut();
                callers.enumerate().filter(|(at, _)| lucky(50 + at)).for_each(|(_, caller)| caller.run());
                let calls = self.calls.iter_mut();
                calls.enumerate().filter(|(at, _)| lucky(*at)).for_each(|(_, (_, call))| {
                    call.run();
                });
            }
            14 => {
                self.settle();
                self.assert_no_lost_wakeup();
            }
            _ => {
                let by = self.random.below(16) as u32;
                self.advance(by).await;
            }
        }
        self.reap();
        if self.exact() {
            self.settle();
        }
    }

    /// From now on, lets every caller and every service do its work: services that are ready are called once more, and
    /// calls are answered. After a number of intervals, all calls have ended.
    pub(super) async fn end(&mut self) {
        drop(self.root.take());
        let mut woken = {
            let mut world = self.world.lock();
            world.hurries = true;
            world.set_open(true)
        };
        woken.extend(self.world.lock().working.values_mut().filter_map(|work| work.waker.take()));
        woken.into_iter().for_each(Waker::wake);
        self.callers.retain(|caller| caller.state != Readiness::Idle);
        let enough = INTERVAL * (self.calls.len() + self.callers.len() + 1) as u32;
        let start = Instant::now();
        loop {
            loop {
                self.settle();
                let Some(at) = self.pick_caller(Readiness::Ready) else { break };
                self.call(at);
                self.callers.swap_remove(at);
            }
            if self.calls.is_empty() && self.callers.is_empty() {
                break;
            }
            self.assert_no_lost_wakeup();
            let asleep: Vec<_> = self.calls.iter().map(|(job, _)| job).collect();
            assert!(
                start.elapsed() < enough,
                "after {enough:?} {asleep:?} are asleep, and {} that were not ready",
                self.callers.len()
            );
            advance(MS).await;
        }
        let ended = self.parts.workers.iter_mut().all(PolledByHand::run);
        assert!(ended, "a buffer's task is still there");
        for (permits, all) in &self.parts.permits {
            assert_eq!(permits.available_permits(), *all, "permits are lost");
        }
        {
            let world = self.world.lock();
            assert!(world.working.is_empty() && world.line.is_empty());
            world.assert_slots();
        }
        advance(INTERVAL).await;
        assert_eq!(self.limiter.peek(&()).remaining(), 1, "a call is left in the queue");
    }
}
