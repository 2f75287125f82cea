//! The limiters and layers that are compared with the model. All uses of a limiter are in this file.
//!
//! There is a limiter of each kind, and the layers of all kinds are joined in each service of many policies. A call is
//! exempt from most of these policies, so that any few limiters decide it together. Other services have few policies.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower::{Layer, Service};
use tower_throttle::algorithm::*;
use tower_throttle::clock::{Clock, ManualClock, Nanos};
use tower_throttle::key::from_fn;
use tower_throttle::limiter::OnClose;
use tower_throttle::limiter::OnFull;
use tower_throttle::middleware::{PolicyReport, Rejection, Responder, Shadow};
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::model::{Counts, Ending, Fixed, Id, Key, Limit, Single, counts_of};
use crate::support::Random;
use crate::support::calls::{Calls, InProgress};

/// The random parameters of a limiter. Each kind uses some of them.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) burst: u64,
    slices: usize,
    is_aligned: bool,
    warm_up: Option<u64>,
    pub(crate) starts_empty: bool,
    total: Option<u64>,
    /// The duration of a lockout, and the number of denials after which it begins.
    lockout: (u64, u64),
    queue: Option<QueueParams>,
    /// The percentage of the limit that calls with priority may borrow from the next window.
    priority: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct QueueParams {
    places: u64,
    max_wait: Option<u64>,
    drops_oldest: bool,
}

/// The settings of a limiter's queue, and the total of all keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// `true` if requests of a layer are queued, and not only calls of `acquire`.
    pub(crate) holds_requests: bool,
    pub(crate) places: u64,
    pub(crate) max_wait: u64,
    pub(crate) drops_oldest: bool,
    /// The units that calls with priority may borrow, if only these calls wait.
    pub(crate) priority_units: Option<u64>,
    /// `true` if it is known when a waiter will be admitted.
    pub(crate) is_timed: bool,
    pub(crate) total: Option<u64>,
}

/// What the parameters of a case are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// All times are multiples of this one, in nanoseconds.
    pub(crate) grid: u64,
    /// `true` if limiters may have settings whose times are not multiples of the grid.
    pub(crate) is_fine: bool,
    /// `true` if limiters may queue calls.
    pub(crate) queues: bool,
    /// `true` if a new key may have used units.
    pub(crate) starts_empty: bool,
}

impl Params {
    pub(crate) fn any(random: &mut Random, scale: Scale) -> Self {
        let period = match scale.is_fine {
            true => random.one_of(&[7, 10, 60, 100, 120]),
            false => random.one_of(&[60, 120]),
        } * scale.grid;
        let (limit, burst) = (random.within(1..=6), random.within(1..=6));
        let queue = (scale.queues && !random.one_in(3)).then(|| QueueParams {
            places: random.one_of(&[0, 1, 1, 2, 2, 3, 5]),
            max_wait: random.one_in(2).then(|| random.below(period / scale.grid * 3) * scale.grid),
            drops_oldest: random.one_in(3),
        });
        Self {
            limit,
            period,
            burst,
            slices: random.within(1..=4) as usize,
            is_aligned: random.one_in(2),
            warm_up: (scale.is_fine && random.one_in(2)).then(|| random.below(period * 3)),
            starts_empty: scale.starts_empty && random.one_in(4),
            total: random.one_in(2).then(|| random.within(1..=6)),
            lockout: (random.within(1..=60) * scale.grid, random.within(1..=4)),
            queue,
            priority: (scale.queues && random.one_in(3)).then(|| random.within(20..=100) as u8),
        }
    }

    /// Returns parameters by which these are replaced. A limiter keeps its total, although its limit may change. The queue
    /// stays as it is if the algorithm is made from the old one, or if calls choose algorithms that are not replaced.
    pub(crate) fn another(&self, limiter: usize, random: &mut Random, scale: Scale) -> Self {
        let mut other = Self::any(random, scale);
        if limiter == TIERED || limiter == CALLS {
            other.queue = self.queue;
        }
        let total = self.total.map(|_| random.within(1..=6));
        match random.below(4) {
            0 => Self { limit: other.limit, burst: other.burst, total, ..self.clone() },
            1 => Self { period: other.period, total, ..self.clone() },
            2 => Self { total, queue: other.queue, ..self.clone() },
            _ => Self { total, starts_empty: self.starts_empty, ..other },
        }
    }

    fn quota(&self) -> Quota {
        quota(self.limit, self.period).burst(self.burst)
    }

    /// Returns the settings of a queue with this number of places, unless another number was set.
    fn settings(&self, default_places: Option<u64>) -> Settings {
        let Self { queue, .. } = *self;
        let places = queue.map(|queue| queue.places).or(default_places);
        Settings {
            holds_requests: places.is_some(),
            places: places.unwrap_or(u64::MAX),
            max_wait: queue.and_then(|queue| queue.max_wait).unwrap_or(u64::MAX),
            drops_oldest: queue.is_some_and(|queue| queue.drops_oldest),
            priority_units: None,
            is_timed: true,
            total: None,
        }
    }

    fn settings_of_window(&self) -> Settings {
        let settings = self.settings(None);
        match self.priority {
            None => settings,
            Some(percent) => Settings {
                holds_requests: true,
                places: 0,
                drops_oldest: false,
                priority_units: Some(self.limit * u64::from(percent) / 100),
                ..settings
            },
        }
    }
}

fn quota(limit: u64, period: u64) -> Quota {
    Quota::per(limit, Duration::from_nanos(period)).unwrap()
}

/// Sets the queue of an algorithm.
macro_rules! queued {
    ($algorithm:expr, $params:expr) => {{
        let mut algorithm = $algorithm;
        if let Some(queue) = $params.queue {
            algorithm = algorithm.queue(queue.places);
            if let Some(max_wait) = queue.max_wait {
                algorithm = algorithm.max_wait(Duration::from_nanos(max_wait));
            }
            if queue.drops_oldest {
                algorithm = algorithm.overflow(QueueOverflow::DropOldest);
            }
        }
        algorithm
    }};
}

/// A kind of algorithm, made from parameters.
pub(crate) trait Kind: Algorithm {
    fn new(params: &Params) -> Self;

    fn settings(params: &Params) -> Settings {
        params.settings(None)
    }

    /// Returns the algorithm of the model, which counts totals by itself.
    fn in_model(params: &Params) -> Self {
        Self::new(params)
    }

    /// Returns the algorithm that replaces this one.
    fn next(self, params: &Params) -> Self {
        Self::new(params)
    }

    /// Returns the algorithms that calls can choose.
    fn tiers(_: &Params) -> Vec<Self> {
        Vec::new()
    }

    fn is_locked_out(_algorithm: &Self, _state: &Self::State, _at: u64) -> bool {
        false
    }

    /// Makes a call that holds nothing when it was decided.
    fn decide(limiter: &RateLimiter<Self>, key: Key, cost: u64) -> Decision {
        limiter.check_n(&key, cost)
    }

    /// Makes a call that may wait, and that holds nothing when it was decided.
    fn wait(limiter: &RateLimiter<Self>, key: Key, cost: u64) -> Pin<Box<dyn Future<Output = Decision>>> {
        Box::pin(limiter.acquire_n(&key, cost))
    }
}

/// A call in progress ends at once.
macro_rules! in_progress {
    () => {
        fn decide(limiter: &RateLimiter<Self>, key: Key, cost: u64) -> Decision {
            InProgress::check(limiter, &key, cost).0
        }

        fn wait(_: &RateLimiter<Self>, _: Key, _: u64) -> Pin<Box<dyn Future<Output = Decision>>> {
            unreachable!("only layers make calls in progress")
        }
    };
}

impl Kind for TokenBucket {
    fn new(params: &Params) -> Self {
        let bucket = queued!(Self::new(params.quota()), params);
        if params.starts_empty { bucket.start_empty() } else { bucket }
    }
}

impl Kind for FixedWindow {
    fn new(params: &Params) -> Self {
        let window = queued!(Self::new(quota(params.limit, params.period)), params);
        let window = if params.is_aligned { window.aligned() } else { window };
        params.priority.map_or(window.clone(), |percent| window.priority(percent))
    }

    fn settings(params: &Params) -> Settings {
        params.settings_of_window()
    }
}

impl Kind for SlidingWindow {
    fn new(params: &Params) -> Self {
        let window = Self::new(quota(params.limit, params.period)).slices(params.slices);
        let window = queued!(window, params);
        params.priority.map_or(window.clone(), |percent| window.priority(percent))
    }

    fn settings(params: &Params) -> Settings {
        params.settings_of_window()
    }
}

impl Kind for SlidingLog {
    fn new(params: &Params) -> Self {
        queued!(Self::new(quota(params.limit, params.period)), params)
    }
}

impl Kind for SlidingCounter {
    fn new(params: &Params) -> Self {
        queued!(Self::new(quota(params.limit, params.period)), params)
    }
}

impl Kind for LeakyBucket {
    fn new(params: &Params) -> Self {
        queued!(Self::new(params.quota()), params)
    }

    fn settings(params: &Params) -> Settings {
        params.settings(Some(params.burst))
    }
}

/// The interval is a whole number of nanoseconds, because waits of several intervals are rounded together.
impl Kind for Smooth {
    fn new(params: &Params) -> Self {
        let quota = quota(params.limit, params.period.next_multiple_of(params.limit)).burst(params.burst);
        let smooth = match params.warm_up {
            None => Self::bursty(quota),
            Some(warm_up) => Self::warming_up(quota, Duration::from_nanos(warm_up)),
        };
        queued!(smooth, params)
    }

    fn settings(params: &Params) -> Settings {
        params.settings(Some(params.burst))
    }
}

impl Kind for Concurrency {
    in_progress!();

    fn new(params: &Params) -> Self {
        let limit = Self::per_key(params.limit);
        queued!(params.total.map_or(limit.clone(), |total| limit.total(total)), params)
    }

    fn settings(params: &Params) -> Settings {
        Settings { is_timed: false, total: params.total, ..params.settings(None) }
    }

    /// A total below the limit per key limits each key as well.
    fn in_model(params: &Params) -> Self {
        let limit = params.total.map_or(params.limit, |total| total.min(params.limit));
        queued!(Self::per_key(limit), params)
    }

    /// The replacement continues the count of the old total.
    fn next(self, params: &Params) -> Self {
        let limit = self.with_per_key(params.limit);
        queued!(params.total.map_or(limit.clone(), |total| limit.total(total)), params)
    }
}

/// It is not promised whether a call that another limit denies adds its tier to the key. It may do so if its own limit has
/// to compute how long it would wait. So there is no maximum wait.
impl Kind for Tiered<FixedWindow> {
    fn new(params: &Params) -> Self {
        let queue = params.queue.map(|queue| QueueParams { max_wait: None, ..queue });
        let params = Params { queue, priority: None, ..params.clone() };
        Self::new(<FixedWindow as Kind>::new(&params))
    }

    fn settings(params: &Params) -> Settings {
        Settings { max_wait: u64::MAX, ..params.settings(None) }
    }

    fn tiers(params: &Params) -> Vec<Self> {
        let Params { limit, period, .. } = *params;
        let tier = |limit, period| <Self as Kind>::new(&Params { limit, period, ..params.clone() });
        vec![tier(limit, period), tier(limit + 2, period), tier(2, period * 2)]
    }
}

impl Kind for Lockout<FixedWindow> {
    fn new(params: &Params) -> Self {
        let (duration, denials) = params.lockout;
        let window = <FixedWindow as Kind>::new(&Params { priority: None, ..params.clone() });
        window.block_for(Duration::from_nanos(duration)).after(denials)
    }

    fn settings(params: &Params) -> Settings {
        params.settings(None)
    }

    fn is_locked_out(algorithm: &Self, state: &Self::State, at: u64) -> bool {
        algorithm.usage(state, Nanos(at)) == Usage::LOCKED_OUT
    }
}

impl Kind for (TokenBucket, SlidingLog) {
    fn new(params: &Params) -> Self {
        let other = Params { limit: params.limit + 1, period: params.period * 2, ..params.clone() };
        (<TokenBucket as Kind>::new(params), <SlidingLog as Kind>::new(&other))
    }
}

/// The calls in progress of a key, and the calls in a window.
impl Kind for (Concurrency, FixedWindow) {
    in_progress!();

    fn new(params: &Params) -> Self {
        let window = Params { limit: params.limit + 1, priority: None, ..params.clone() };
        let calls = Params { total: None, limit: params.burst, ..params.clone() };
        (<Concurrency as Kind>::new(&calls), <FixedWindow as Kind>::new(&window))
    }

    fn settings(params: &Params) -> Settings {
        Settings { is_timed: false, ..params.settings(None) }
    }
}

/// A clock that moves when it is set, and in some cases by a nanosecond at each reading. Clones share the time.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    manual: ManualClock,
    ticks: Arc<AtomicU64>,
    /// The time by which each reading advances the clock.
    step: u64,
    grid: u64,
    is_monotonic: bool,
}

impl Watch {
    /// Creates a clock that is set to multiples of `grid`, and advances by `step` at each reading.
    pub(crate) fn new(grid: u64, step: u64, is_monotonic: bool) -> Self {
        Self { manual: ManualClock::new(), ticks: Arc::new(AtomicU64::new(step)), step, grid, is_monotonic }
    }

    pub(crate) fn set(&self, to: u64) {
        // The readings of a case must not add up to a step of the clock.
        assert!(self.ticks.load(Ordering::SeqCst) < self.grid / 2 || self.step == 0);
        self.manual.set(Duration::from_nanos(to));
    }
}

impl Clock for Watch {
    fn now(&self) -> Nanos {
        let ticks = self.ticks.fetch_add(self.step, Ordering::SeqCst);
        self.manual.now().saturating_add(ticks)
    }

    fn is_monotonic(&self) -> bool {
        self.is_monotonic
    }

    /// The clock is never set to a time between two multiples of the grid.
    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match deadline {
            Nanos::MAX => self.manual.sleep_until(deadline),
            Nanos(deadline) => self.manual.sleep_until(Nanos(deadline / self.grid * self.grid)),
        }
    }
}

/// A limiter, without the type of its algorithm.
pub(crate) trait Live {
    fn check(&self, key: Key, cost: u64) -> Decision;
    fn peek(&self, key: Key, cost: u64) -> Decision;
    fn acquire(&self, key: Key, cost: u64) -> Pin<Box<dyn Future<Output = Decision>>>;
    fn refund(&self, key: Key, cost: u64);
    fn reset(&self, key: Key) -> bool;
    fn pause(&self, key: Key, duration: u64) -> bool;
    fn replace(&self, params: &Params);
    fn close(&self);
    fn queued(&self) -> usize;
    fn len(&self) -> usize;
    fn evicted(&self) -> u64;
    fn calls(&self) -> Counts;
}

impl<A: Kind> Live for RateLimiter<A> {
    fn check(&self, key: Key, cost: u64) -> Decision {
        A::decide(self, key, cost)
    }

    fn peek(&self, key: Key, cost: u64) -> Decision {
        self.peek_n(&key, cost)
    }

    fn acquire(&self, key: Key, cost: u64) -> Pin<Box<dyn Future<Output = Decision>>> {
        A::wait(self, key, cost)
    }

    fn refund(&self, key: Key, cost: u64) {
        self.refund(&key, cost);
    }

    fn reset(&self, key: Key) -> bool {
        self.reset(&key)
    }

    fn pause(&self, key: Key, duration: u64) -> bool {
        self.pause(&key, Duration::from_nanos(duration))
    }

    fn replace(&self, params: &Params) {
        self.replace(self.algorithm().next(params));
    }

    fn close(&self) {
        self.close();
    }

    fn queued(&self) -> usize {
        self.queued()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn evicted(&self) -> u64 {
        self.stats().store.evicted
    }

    fn calls(&self) -> Counts {
        counts_of(self.stats().calls)
    }
}

/// The kinds of the limiters, by number.
pub(crate) const BUCKET: usize = 0;
pub(crate) const FIXED: usize = 1;
pub(crate) const WINDOW: usize = 2;
pub(crate) const LOG: usize = 3;
pub(crate) const COUNTER: usize = 4;
pub(crate) const LEAKY: usize = 5;
pub(crate) const SMOOTH: usize = 6;
pub(crate) const CALLS: usize = 7;
pub(crate) const TIERED: usize = 8;
pub(crate) const LOCKOUT: usize = 9;
pub(crate) const PAIR: usize = 10;
pub(crate) const CALLS_AND_FIXED: usize = 11;
pub(crate) const KINDS: usize = 12;

/// The limiter of each policy. Four limiters have two policies, so that a call can use them twice.
pub(crate) const LIMITER_OF: [usize; 16] = [
    BUCKET,
    FIXED,
    WINDOW,
    LOG,
    COUNTER,
    LEAKY,
    SMOOTH,
    CALLS,
    TIERED,
    LOCKOUT,
    PAIR,
    CALLS_AND_FIXED,
    BUCKET,
    LOCKOUT,
    TIERED,
    CALLS,
];

/// Returns whether admitted calls of a limiter hold units until they end.
pub(crate) fn holds_units(limiter: usize) -> bool {
    limiter == CALLS || limiter == CALLS_AND_FIXED
}

/// What a call asks of one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobPart {
    pub(crate) key: Key,
    pub(crate) cost: u64,
    pub(crate) tier: usize,
    pub(crate) priority: bool,
    pub(crate) is_exempt: bool,
}

/// A request. It is not limited by the policies for which it has no part.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: Id,
    pub(crate) parts: [Option<JobPart>; LIMITER_OF.len()],
    pub(crate) max_wait: Option<u64>,
}

impl Job {
    fn part(&self, policy: usize) -> &JobPart {
        self.parts[policy].as_ref().expect("the policy limits the call")
    }
}

/// A response, with the actual cost for each policy.
pub(crate) type Answer = [Option<u64>; LIMITER_OF.len()];

pub(crate) type Response = Pin<Box<dyn Future<Output = Result<Answer, Error<()>>>>>;

/// A rate-limited service.
pub(crate) trait Serve {
    fn call(&mut self, job: Job) -> Response;
    /// Returns the counts of each policy.
    fn counts(&self) -> Vec<Counts>;
}

struct Served<S, F> {
    service: S,
    counts: F,
}

impl<S, F> Serve for Served<S, F>
where
    S: Service<Job, Response = Answer, Error = Error<()>, Future: 'static>,
    F: Fn() -> Vec<Counts>,
{
    fn call(&mut self, job: Job) -> Response {
        Box::pin(self.service.call(job))
    }

    fn counts(&self) -> Vec<Counts> {
        (self.counts)()
    }
}

/// The inner service. A call of it ends when the test says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inner(Arc<Mutex<InnerState>>);

#[derive(Debug, Default)]
struct InnerState {
    arrived: Vec<Id>,
    endings: BTreeMap<Id, Result<Answer, ()>>,
    wakers: BTreeMap<Id, Waker>,
}

pub(crate) struct InCall {
    inner: Inner,
    id: Id,
}

impl Inner {
    pub(crate) fn has_arrived(&self, id: Id) -> bool {
        self.0.lock().unwrap().arrived.contains(&id)
    }

    /// Ends a call. Returns `false` if the call is to be dropped instead.
    pub(crate) fn end(&self, id: Id, ending: &Ending) -> bool {
        let ending = match ending {
            Ending::Answer(actual) => Ok(std::array::from_fn(|policy| actual[policy])),
            Ending::Error => Err(()),
            Ending::Dropped => return false,
        };
        let mut state = self.0.lock().unwrap();
        state.endings.insert(id, ending);
        let waker = state.wakers.remove(&id);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        true
    }
}

impl Service<Job> for Inner {
    type Response = Answer;
    type Error = ();
    type Future = InCall;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, job: Job) -> InCall {
        self.0.lock().unwrap().arrived.push(job.id);
        InCall { inner: self.clone(), id: job.id }
    }
}

impl Future for InCall {
    type Output = Result<Answer, ()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.inner.0.lock().unwrap();
        match state.endings.remove(&self.id) {
            Some(ending) => Poll::Ready(ending),
            None => {
                state.wakers.insert(self.id, cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A responder that rejects calls as [`ErrorResponder`] does, and notes the decisions of all policies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reports(Arc<Mutex<BTreeMap<Id, Vec<Decision>>>>);

impl Reports {
    /// Returns the decisions on a call of the policies that are not in shadow mode.
    pub(crate) fn take(&self, id: Id) -> Vec<Decision> {
        self.0.lock().unwrap().remove(&id).unwrap_or_default()
    }

    /// Like `take`, but keeps the decisions.
    pub(crate) fn peek(&self, id: Id) -> Vec<Decision> {
        self.0.lock().unwrap().get(&id).cloned().unwrap_or_default()
    }

    fn note(&self, id: Id, reports: &[PolicyReport<'_>]) {
        let decisions = reports.iter().map(|report| *report.decision()).collect();
        self.0.lock().unwrap().insert(id, decisions);
    }
}

impl Responder<Job, Answer, ()> for Reports {
    type Response = Answer;
    type Error = Error<()>;

    fn max_wait(&self, job: &Job) -> Option<Duration> {
        job.max_wait.map(Duration::from_nanos)
    }

    fn on_admit(&self, job: &mut Job, reports: &[PolicyReport<'_>]) {
        self.note(job.id, reports);
    }

    fn map_response(&self, reports: &[PolicyReport<'_>], response: Answer) -> Answer {
        Responder::<Job, Answer, ()>::map_response(&ErrorResponder, reports, response)
    }

    fn map_error(&self, error: ()) -> Error<()> {
        Responder::<Job, Answer, ()>::map_error(&ErrorResponder, error)
    }

    fn reject(&self, job: &Job, rejection: Rejection<'_>) -> Result<Answer, Error<()>> {
        self.note(job.id, rejection.policies());
        ErrorResponder.reject(job, rejection)
    }
}

/// The settings of the limiters of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableParams {
    pub(crate) max_keys: usize,
    pub(crate) fixed: Fixed,
}

/// Creates a limiter.
fn limiter<A: Kind>(params: &Params, table: TableParams, clock: &Watch) -> RateLimiter<A> {
    let TableParams { max_keys, fixed } = table;
    let on_close = if fixed.admits_when_closed { OnClose::Allow } else { OnClose::Reject };
    let evicts = fixed.room.is_none_or(|room| room.evicts);
    let on_full = if evicts { OnFull::EvictLeastUsed } else { OnFull::Reject };
    RateLimiter::builder(A::new(params))
        .clock(clock.clone())
        .max_keys(max_keys)
        .max_queued(fixed.max_queued)
        .on_close(on_close)
        .on_full(on_full)
        .build()
}

/// Defines the limiters of a case, one of each kind.
macro_rules! limiters {
    ($($name:ident: $algorithm:ty = $number:ident,)+) => {
        /// The limiters of a case.
        pub(crate) struct Limiters {
            $($name: RateLimiter<$algorithm>,)+
            tiers: [FixedWindow; 3],
        }

        impl Limiters {
            /// Creates the limiters with these parameters.
            pub(crate) fn new(params: &[Params], table: TableParams, clock: &Watch) -> Self {
                let tiers = <Tiered<FixedWindow> as Kind>::tiers(&params[TIERED]);
                Self {
                    $($name: limiter(&params[$number], table, clock),)+
                    tiers: std::array::from_fn(|tier| tiers[tier].algorithm().clone()),
                }
            }

            pub(crate) fn live(&self) -> Vec<Box<dyn Live>> {
                vec![$(Box::new(self.$name.clone()),)+]
            }
        }

        /// Returns the models of the limiters with these parameters.
        pub(crate) fn models(params: &[Params], fixed: Fixed) -> Vec<Box<dyn Limit>> {
            vec![$(Box::new(Single::<$algorithm>::new(&params[$number], fixed)),)+]
        }

        /// Returns the settings of a limiter with these parameters.
        pub(crate) fn settings_of(limiter: usize, params: &Params) -> Settings {
            match limiter {
                $($number => <$algorithm as Kind>::settings(params),)+
                _ => unreachable!("there are no other limiters"),
            }
        }
    };
}

limiters! {
    bucket: TokenBucket = BUCKET,
    fixed: FixedWindow = FIXED,
    window: SlidingWindow = WINDOW,
    log: SlidingLog = LOG,
    counter: SlidingCounter = COUNTER,
    leaky: LeakyBucket = LEAKY,
    smooth: Smooth = SMOOTH,
    calls: Concurrency = CALLS,
    tiered: Tiered<FixedWindow> = TIERED,
    lockout: Lockout<FixedWindow> = LOCKOUT,
    pair: (TokenBucket, SlidingLog) = PAIR,
    calls_and_fixed: (Concurrency, FixedWindow) = CALLS_AND_FIXED,
}

/// A policy that limits the calls with a part for it, with their costs.
macro_rules! plain {
    ($policy:expr, $limiter:expr, $shadows:expr) => {
        RateLimitLayer::with_limiter(
            from_fn(|job: &Job| job.parts[$policy].map(|part| part.key)),
            $limiter.clone(),
        )
        .cost(|job: &Job| job.part($policy).cost)
        .unless(|job: &Job| job.parts[$policy].is_some_and(|part| part.is_exempt))
        .shadow(&$shadows[$policy])
    };
}

/// A policy whose calls may have priority, and are settled.
macro_rules! full {
    ($policy:expr, $limiter:expr, $shadows:expr) => {
        plain!($policy, $limiter, $shadows)
            .settle(|answer: &Answer| answer[$policy])
            .priority(|job: &Job| job.part($policy).priority)
    };
}

/// A policy whose calls choose a tier, and are settled.
macro_rules! by_tier {
    ($policy:expr, $limiters:expr, $shadows:expr) => {{
        let tiers = $limiters.tiers.clone();
        plain!($policy, $limiters.tiered, $shadows)
            .tier(move |job: &Job, _: &Key| tiers[job.part($policy).tier].clone())
            .settle(|answer: &Answer| answer[$policy])
    }};
}

/// A service with joined policies.
pub(crate) struct Subject {
    pub(crate) service: Box<dyn Serve>,
    /// The policies, in the order in which they are joined.
    pub(crate) policies: Vec<usize>,
    /// `true` if calls may have tiers and priority, and are settled.
    pub(crate) is_full: bool,
}

/// Makes a service of joined layers.
macro_rules! served {
    ($inner:expr, $reports:expr, $is_full:expr, $policies:expr, $layers:expr) => {{
        let layers = $layers.responder($reports.clone());
        let service = layers.layer($inner.clone());
        let counts = move || layers.stats().into_iter().map(|policy| counts_of(policy.calls)).collect();
        let service: Box<dyn Serve> = Box::new(Served { service, counts });
        Subject { service, policies: $policies, is_full: $is_full }
    }};
}

/// The number of services.
pub(crate) const SERVICES: usize = 6;

/// The service of all policies, which are plain.
pub(crate) const ALL_PLAIN: usize = 0;
/// The service of all policies, with all that a policy can have, in the reverse order.
pub(crate) const ALL_FULL: usize = 1;

/// Returns the policies of each service, in the order in which they are joined.
pub(crate) fn policies_of(service: usize) -> Vec<usize> {
    match service {
        ALL_PLAIN => (0..LIMITER_OF.len()).collect(),
        ALL_FULL => (0..LIMITER_OF.len()).rev().collect(),
        2 => vec![0, 1],
        3 => vec![1, 0],
        4 => vec![0, 12],
        _ => vec![6, 9, 10, 11, 8],
    }
}

/// Creates a service over the limiters.
pub(crate) fn subject(
    service: usize,
    of: &Limiters,
    shadows: &[Shadow],
    inner: &Inner,
    to: &Reports,
) -> Subject {
    let policies = policies_of(service);
    match service {
        ALL_PLAIN => {
            let layers = plain!(0, of.bucket, shadows)
                .and(plain!(1, of.fixed, shadows))
                .and(plain!(2, of.window, shadows))
                .and(plain!(3, of.log, shadows))
                .and(plain!(4, of.counter, shadows))
                .and(plain!(5, of.leaky, shadows))
                .and(plain!(6, of.smooth, shadows))
                .and(plain!(7, of.calls, shadows))
                .and(plain!(8, of.tiered, shadows))
                .and(plain!(9, of.lockout, shadows))
                .and(plain!(10, of.pair, shadows))
                .and(plain!(11, of.calls_and_fixed, shadows))
                .and(plain!(12, of.bucket, shadows))
                .and(plain!(13, of.lockout, shadows))
                .and(plain!(14, of.tiered, shadows))
                .and(plain!(15, of.calls, shadows));
            served!(inner, to, false, policies, layers)
        }
        ALL_FULL => {
            let layers = full!(15, of.calls, shadows)
                .and(by_tier!(14, of, shadows))
                .and(full!(13, of.lockout, shadows))
                .and(full!(12, of.bucket, shadows))
                .and(full!(11, of.calls_and_fixed, shadows))
                .and(full!(10, of.pair, shadows))
                .and(full!(9, of.lockout, shadows))
                .and(by_tier!(8, of, shadows))
                .and(full!(7, of.calls, shadows))
                .and(full!(6, of.smooth, shadows))
                .and(full!(5, of.leaky, shadows))
                .and(full!(4, of.counter, shadows))
                .and(full!(3, of.log, shadows))
                .and(full!(2, of.window, shadows))
                .and(full!(1, of.fixed, shadows))
                .and(full!(0, of.bucket, shadows));
            served!(inner, to, true, policies, layers)
        }
        2 => {
            let layers = plain!(0, of.bucket, shadows).and(plain!(1, of.fixed, shadows));
            served!(inner, to, false, policies, layers)
        }
        3 => {
            let layers = plain!(1, of.fixed, shadows).and(plain!(0, of.bucket, shadows));
            served!(inner, to, false, policies, layers)
        }
        4 => {
            let layers = plain!(0, of.bucket, shadows).and(plain!(12, of.bucket, shadows));
            served!(inner, to, false, policies, layers)
        }
        _ => {
            let layers = full!(6, of.smooth, shadows)
                .and(full!(9, of.lockout, shadows))
                .and(full!(10, of.pair, shadows).and(full!(11, of.calls_and_fixed, shadows)))
                .and(by_tier!(8, of, shadows));
            served!(inner, to, true, policies, layers)
        }
    }
}
