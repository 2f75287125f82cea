//! The layer with a queue between tower's own layers, which reserve services, pass them on and cancel calls. In random
//! schedules, no wakeup is lost, and no reservation is lost.
//!
//! The clock is tokio's paused clock. A `ManualClock` would wake all waiters at each step, and so hide lost wakeups. A
//! schedule polls a task only if its waker was woken, as an executor does.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, advance};
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::load_shed::error::Overloaded;
use tower::timeout::Timeout;
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, Service};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::key::Global;
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use crate::support::{Alarm, PolledByHand, Random};

const MS: Duration = Duration::from_millis(1);
const INTERVAL: Duration = Duration::from_millis(4);

/// The number of schedules for each of the ten stacks.
const SCHEDULES: u64 = 1_000;

type Job = usize;
type Answer<'a> = Pin<Box<dyn Future<Output = Result<Job, BoxError>> + Send + 'a>>;

/// The service of jobs that each layer of a stack is.
trait Jobs: Service<Job, Response = Job, Error = BoxError, Future: Send> + Clone + Send + 'static {}

impl<S> Jobs for S where
    S: Service<Job, Response = Job, Error = BoxError, Future: Send> + Clone + Send + 'static
{
}

/// The record of a call.
#[derive(Clone, Copy, Debug)]
struct Call {
    made: Instant,
    /// The time at which the call arrived at the layer.
    came: Option<Instant>,
    /// The time at which the layer called the inner service.
    left: Option<Instant>,
    refused: bool,
}

/// What is observed of a stack: in front of the layer, behind the layer, and in the innermost service.
#[derive(Debug)]
struct World {
    calls: Vec<Call>,
    /// The calls in the order in which they arrived at the layer.
    came: Vec<Job>,
    places: usize,
    /// `true` if every woken task is polled at once. Then the expected queue and its next slot are known.
    exact: bool,
    line: VecDeque<Job>,
    next: Instant,
    /// The readiness of the innermost service, and the tasks that wait for it.
    open: bool,
    callers: Vec<Waker>,
    /// The calls that the innermost service works on, and the maximum number of these calls.
    working: BTreeMap<Job, Work>,
    most: usize,
    /// `true` if the innermost service from now on answers at once.
    hurries: bool,
}

#[derive(Debug, Default)]
struct Work {
    done: bool,
    waker: Option<Waker>,
}

impl World {
    /// Records that a call arrives at the layer.
    fn comes(&mut self, job: Job) {
        let now = Instant::now();
        self.came.push(job);
        self.calls[job].came = Some(now);
        let passes = self.line.is_empty() && self.next <= now;
        if passes || self.line.len() < self.places {
            self.line.push_back(job);
        } else {
            self.calls[job].refused = true;
        }
    }

    /// Records that the layer calls the inner service.
    fn leaves(&mut self, job: Job) {
        let now = Instant::now();
        let again = self.calls[job].left.replace(now);
        assert_eq!(again, None, "{job} is called twice");
        if self.exact {
            assert_eq!(self.line.pop_front(), Some(job), "it leaves before another");
            let slot = self.next.max(self.calls[job].came.unwrap());
            assert_eq!(now, slot, "{job} does not leave at its slot");
            self.next = slot + INTERVAL;
        }
    }

    /// Records the end of a call, whatever its result.
    fn ends(&mut self, job: Job) {
        self.line.retain(|other| *other != job);
    }

    /// Asserts that no call is still queued after its slot.
    fn assert_no_call_is_late(&self) {
        let late = self.line.front().filter(|_| self.next <= Instant::now());
        assert!(!self.exact || late.is_none(), "{late:?} is still queued");
    }

    /// Asserts that each released call had a slot of its own at that time, in the order of arrival.
    fn assert_slots(&self) {
        let mut free = None;
        for job in &self.came {
            let Call { came: Some(came), left: Some(left), .. } = self.calls[*job] else { continue };
            let slot = free.map_or(came, |free| came.max(free));
            assert!(left >= slot, "{job} left {:?} before its slot", slot - left);
            free = Some(slot + INTERVAL);
        }
    }

    /// Returns how many calls have arrived at the layer, and how many have left it.
    fn progress(&self) -> (usize, usize) {
        (self.came.len(), self.calls.iter().filter(|call| call.left.is_some()).count())
    }

    fn set_open(&mut self, open: bool) -> Vec<Waker> {
        self.open = open;
        if open { std::mem::take(&mut self.callers) } else { Vec::new() }
    }
}

#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<World>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The innermost service of a stack, which answers on command.
#[derive(Debug)]
struct Backend {
    world: Shared,
    ready: bool,
}

impl Clone for Backend {
    fn clone(&self) -> Self {
        Self { world: self.world.clone(), ready: false }
    }
}

impl Service<Job> for Backend {
    type Response = Job;
    type Error = BoxError;
    type Future = Working;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let mut world = self.world.lock();
        // A service that is ready stays ready until it is called.
        if world.open || self.ready {
            self.ready = true;
            return Poll::Ready(Ok(()));
        }
        world.callers.push(cx.waker().clone());
        Poll::Pending
    }

    fn call(&mut self, job: Job) -> Working {
        assert!(std::mem::take(&mut self.ready), "{job} is called without being ready");
        let mut world = self.world.lock();
        world.working.insert(job, Work::default());
        assert!(world.working.len() <= world.most, "{job} is one too many at once");
        Working { world: self.world.clone(), job }
    }
}

#[derive(Debug)]
struct Working {
    world: Shared,
    job: Job,
}

impl Future for Working {
    type Output = Result<Job, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut world = self.world.lock();
        let hurries = world.hurries;
        let work = world.working.get_mut(&self.job).expect("it works until it is dropped");
        if work.done || hurries {
            return Poll::Ready(Ok(self.job));
        }
        work.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.world.lock().working.remove(&self.job);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Front,
    Back,
}

/// A recorder, which is placed in front of the layer and behind it.
#[derive(Debug)]
struct Probe<S> {
    service: S,
    side: Side,
    world: Shared,
    ready: bool,
}

impl<S: Clone> Clone for Probe<S> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone(), side: self.side, world: self.world.clone(), ready: false }
    }
}

impl<S> Service<Job> for Probe<S>
where
    S: Service<Job, Response = Job, Error: Into<BoxError>, Future: Send + 'static>,
{
    type Response = Job;
    type Error = BoxError;
    type Future = Answer<'static>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let polled = self.service.poll_ready(cx).map_err(Into::into);
        self.ready = matches!(polled, Poll::Ready(Ok(())));
        polled
    }

    fn call(&mut self, job: Job) -> Answer<'static> {
        let side = self.side;
        assert!(std::mem::take(&mut self.ready), "{job} goes on at the {side:?} without being ready");
        match side {
            Side::Front => self.world.lock().comes(job),
            Side::Back => self.world.lock().leaves(job),
        }
        let ends = (side == Side::Front).then(|| Ends { world: self.world.clone(), job });
        let response = self.service.call(job);
        Box::pin(async move {
            let _ends = ends;
            response.await.map_err(Into::into)
        })
    }
}

#[derive(Debug)]
struct Ends {
    world: Shared,
    job: Job,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.world.lock().ends(self.job);
    }
}

/// Builds a stack from the innermost service outward.
struct Builder {
    world: Shared,
    limiter: RateLimiter<LeakyBucket>,
    most: usize,
    bound: usize,
    patience: Duration,
    parts: Parts,
}

/// The parts of a stack that are observed in other ways.
#[derive(Default)]
struct Parts {
    /// The concurrency limits, each with its number of permits.
    permits: Vec<(Arc<Semaphore>, usize)>,
    /// The tasks of the buffers.
    workers: Vec<PolledByHand<Pin<Box<dyn Future<Output = ()>>>>>,
    sheds: bool,
    /// The time limits of a call, with and without the time in the queue.
    in_all: Option<Duration>,
    behind: Option<Duration>,
}

impl Builder {
    fn backend(&self) -> impl Jobs + use<> {
        Backend { world: self.world.clone(), ready: false }
    }

    fn limited<S: Jobs>(&self, service: S) -> impl Jobs + use<S> {
        let probe = |side| (side, self.world.clone());
        let (side, world) = probe(Side::Back);
        let behind = Probe { service, side, world, ready: false };
        let layer = RateLimitLayer::with_limiter(Global, self.limiter.clone()).responder(ErrorResponder);
        let (side, world) = probe(Side::Front);
        Probe { service: layer.layer(behind), side, world, ready: false }
    }

    fn concurrent<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        let permits = Arc::new(Semaphore::new(self.most));
        self.parts.permits.push((permits.clone(), self.most));
        self.world.lock().most = self.most;
        ConcurrencyLimit::with_semaphore(service, permits)
    }

    fn buffered<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        let (buffer, worker) = Buffer::pair(service, self.bound);
        self.parts.workers.push(PolledByHand::new(Box::pin(worker)));
        buffer
    }

    /// Adds a layer in front of the rate limit.
    fn in_time<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        self.parts.in_all = Some(self.patience);
        Timeout::new(service, self.patience)
    }

    /// Adds a layer behind the rate limit.
    fn soon<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        self.parts.behind = Some(self.patience);
        Timeout::new(service, self.patience)
    }

    fn shed<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        self.parts.sheds = true;
        LoadShed::new(service)
    }
}

type Stack = BoxCloneService<Job, Job, BoxError>;

/// A caller, which has a clone of the stack.
struct Caller {
    stack: Stack,
    alarm: Arc<Alarm>,
    state: Readiness,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Readiness {
    Idle,
    Asked,
    Ready,
}

impl Caller {
    fn new(stack: Stack) -> Self {
        Self { stack, alarm: Alarm::new(), state: Readiness::Idle }
    }

    fn ask(&mut self) {
        let waker = Waker::from(self.alarm.clone());
        self.alarm.rang();
        self.state = match self.stack.poll_ready(&mut Context::from_waker(&waker)) {
            Poll::Ready(ready) => {
                ready.expect("none of them fails");
                Readiness::Ready
            }
            Poll::Pending => Readiness::Asked,
        };
    }

    /// Polls the caller as its task would: only if the waker was woken.
    fn run(&mut self) {
        while self.state == Readiness::Asked && self.alarm.rang() {
            self.ask();
        }
    }
}

/// The outcomes of calls over all schedules of a stack. They show that the schedules tested something.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    answered: usize,
    waited: usize,
    refused: usize,
    shed: usize,
    timed_out: usize,
    abandoned: usize,
    abandoned_in_line: usize,
}

struct Schedule<'a> {
    random: Random,
    world: Shared,
    parts: Parts,
    limiter: RateLimiter<LeakyBucket>,
    root: Option<Stack>,
    callers: Vec<Caller>,
    calls: Vec<(Job, PolledByHand<<Stack as Service<Job>>::Future>)>,
    tally: &'a mut Tally,
}

impl<'a> Schedule<'a> {
    fn new(seed: u64, build: fn(&mut Builder) -> Stack, tally: &'a mut Tally) -> Self {
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
            world.calls.push(Call { made: Instant::now(), came: None, left: None, refused: false });
            world.calls.len() - 1
        };
        let caller = &mut self.callers[caller];
        caller.state = Readiness::Idle;
        self.calls.push((job, PolledByHand::new(caller.stack.call(job))));
    }

    /// Polls every woken task until none is woken.
    fn settle(&mut self) {
        let awake = |caller: &Caller| caller.state == Readiness::Asked && caller.alarm.is_set();
        loop {
            for worker in &mut self.parts.workers {
                worker.run();
            }
            self.callers.iter_mut().for_each(Caller::run);
            for (_, call) in &mut self.calls {
                call.run();
            }
            self.reap();
            let workers = self.parts.workers.iter().any(PolledByHand::is_woken);
            if !workers
                && !self.callers.iter().any(awake)
                && !self.calls.iter().any(|(_, call)| call.is_woken())
            {
                break;
            }
        }
        self.world.lock().assert_no_call_is_late();
    }

    /// When every woken task has run, asserts that polling the other tasks changes nothing. Otherwise, these tasks
    /// should have been woken. The task of a buffer is an exception, because it is not woken when a call that it holds
    /// is cancelled.
    fn assert_no_lost_wakeup(&mut self) {
        let before = self.world.lock().progress();
        for caller in self.callers.iter_mut().filter(|caller| caller.state == Readiness::Asked) {
            caller.ask();
            assert_eq!(caller.state, Readiness::Asked, "a caller missed its wakeup");
        }
        for (job, call) in &mut self.calls {
            assert!(!call.poll(), "{job} missed its wakeup");
            let now = self.world.lock().progress();
            assert_eq!(now, before, "{job} missed its wakeup");
        }
    }

    /// Removes the calls that have a response, and checks the responses.
    fn reap(&mut self) {
        let world = self.world.lock();
        self.calls.retain_mut(|(job, call)| {
            let Some(output) = call.output.take() else { return true };
            let Call { made, came, left, refused } = world.calls[*job];
            let now = Instant::now();
            match output.map_err(failure) {
                Ok(answer) => {
                    assert_eq!(answer, *job, "an answer that is another's");
                    self.tally.answered += 1;
                    self.tally.waited += usize::from(left.expect("it was called") > came.unwrap());
                }
                Err(Failure::Limited) => {
                    assert_eq!(left, None, "{job} is refused, and called all the same");
                    assert!(refused || !world.exact, "{job} is refused though there is a place");
                    self.tally.refused += 1;
                }
                Err(Failure::Shed) => {
                    assert!(self.parts.sheds);
                    self.tally.shed += 1;
                }
                Err(Failure::TimedOut) => {
                    let behind = self.parts.behind.zip(left).is_some_and(|(time, left)| now >= left + time);
                    let in_all = self.parts.in_all.is_some_and(|time| now >= made + time);
                    assert!(behind || in_all, "{job} has more time");
                    self.tally.timed_out += 1;
                }
            }
            false
        });
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

    async fn step(&mut self) {
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
    async fn end(&mut self) {
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
        let places = self.world.lock().places as u64;
        assert_eq!(
            self.limiter.acquire_n(&(), 0).await.remaining(),
            places + 1,
            "a call is left in the queue"
        );
    }
}

enum Failure {
    Limited,
    Shed,
    TimedOut,
}

fn failure(error: BoxError) -> Failure {
    match error.downcast::<Error<BoxError>>().map(|error| *error) {
        Ok(Error::Limited(_)) => Failure::Limited,
        Ok(Error::Inner(error)) => failure(error),
        Err(error) if error.is::<Overloaded>() => Failure::Shed,
        Err(error) if error.is::<Elapsed>() => Failure::TimedOut,
        other => panic!("{other:?}"),
    }
}

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
    let Tally { answered, waited, refused, abandoned, abandoned_in_line, .. } = tally;
    for seen in [answered, waited, refused, abandoned, abandoned_in_line] {
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
