//! Many orders in which threads may run, tried out one by one: nobody deadlocks, nobody sleeps on, and every unit is counted once.
//!
//! ```sh
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test --no-default-features --test shuttle
//! ```
//!
//! A target directory of its own, so that the flag does not undo other builds. `SHUTTLE_RANDOM_SEED=7` before it tries others.
//!
//! What fails prints its schedule. It is seen again with `REPLAY=<schedule>` before the command, and the test's name behind it. (A test
//! of two limiters may need it twice: the locks of two limiters are taken in the order of their addresses.)
//!
//! Each model is held against the real thing; and some against *twins*, small and broken on purpose, which must be found out by the same
//! checks. Shuttle tries orders of steps. It does not know how processors reorder what is relaxed.
#![cfg(shuttle)]

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::sync::{Mutex, mpsc};
use shuttle::{Config, Runner, thread};
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{Algorithm, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::{Clock, ManualClock, Nanos};
use tower_throttle::key::from_fn;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer, RateLimiter};

const INTERVAL: Duration = Duration::from_millis(100);
/// Executions of each model under each of the two schedulers.
const EXECUTIONS: usize = 10_000;

// -- The explorer ----------------------------------------------------------------------------------------------------

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    Runner::new(scheduler, config).run(model);
}

/// Runs the model in many orders: at random, and with few changes of who goes first, which finds what is rare at random.
fn explore(model: impl Fn() + Clone + Send + Sync + 'static) {
    if let Ok(schedule) = env::var("REPLAY") {
        return run(ReplayScheduler::new_from_encoded(&schedule), model);
    }
    run(RandomScheduler::new_from_seed(1, EXECUTIONS), model.clone());
    run(PctScheduler::new_from_seed(2, 3, EXECUTIONS), model);
}

// -- Time ------------------------------------------------------------------------------------------------------------

/// What the models need of a clock.
trait Time: Clock + Clone + Unpin {
    fn new() -> Self;
    fn tick(&self, by: Duration);
    /// Whether those who wait are woken when their time has come. If not, somebody has to look after them.
    const RINGS: bool;
}

/// Wakes everybody at each tick.
impl Time for ManualClock {
    const RINGS: bool = true;

    fn new() -> Self {
        Self::new()
    }

    fn tick(&self, by: Duration) {
        self.advance(by);
    }
}

/// A clock whose alarms ring when their time has come and not before, so that it covers up for nobody; or, if it does not ring, never.
#[derive(Clone, Debug, Default)]
struct Timer<const RINGS: bool>(Arc<Mutex<Alarms>>);

type Strict = Timer<true>;
type Mute = Timer<false>;

#[derive(Debug, Default)]
struct Alarms {
    now: Nanos,
    next: u64,
    set: BTreeMap<(Nanos, u64), Waker>,
}

impl<const RINGS: bool> Time for Timer<RINGS> {
    const RINGS: bool = RINGS;

    fn new() -> Self {
        Self::default()
    }

    fn tick(&self, by: Duration) {
        let due = {
            let mut alarms = self.0.lock().unwrap();
            alarms.now = alarms.now.after(Nanos::from(by).0);
            let later = (Nanos(alarms.now.0 + 1), 0);
            let later = alarms.set.split_off(&later);
            std::mem::replace(&mut alarms.set, later)
        };
        due.into_values().filter(|_| RINGS).for_each(Waker::wake);
    }
}

impl<const RINGS: bool> Clock for Timer<RINGS> {
    fn now(&self) -> Nanos {
        self.0.lock().unwrap().now
    }

    fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let id = {
            let mut alarms = self.0.lock().unwrap();
            alarms.next += 1;
            alarms.next
        };
        let alarm = Alarm::<RINGS> { alarms: self.0.clone(), at: (deadline, id) };
        Box::pin(poll_fn(move |cx| alarm.poll(cx)))
    }
}

struct Alarm<const RINGS: bool> {
    alarms: Arc<Mutex<Alarms>>,
    at: (Nanos, u64),
}

impl<const RINGS: bool> Alarm<RINGS> {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut alarms = self.alarms.lock().unwrap();
        if RINGS && alarms.now >= self.at.0 {
            return Poll::Ready(());
        }
        alarms.set.insert(self.at, cx.waker().clone());
        Poll::Pending
    }
}

impl<const RINGS: bool> Drop for Alarm<RINGS> {
    fn drop(&mut self) {
        let _spare = self.alarms.lock().unwrap().set.remove(&self.at);
    }
}

// -- Keys ------------------------------------------------------------------------------------------------------------

/// Three keys: the second lives in the shard of the first, the third does not. Under shuttle, all limiters have the same seed.
fn keys() -> [u64; 3] {
    static KEYS: OnceLock<[u64; 3]> = OnceLock::new();
    *KEYS.get_or_init(|| {
        let alike = |alike| (1..).find(|other| in_one_shard(0, *other) == alike).unwrap();
        [0, alike(true), alike(false)]
    })
}

/// Whether another thread must wait for a key while one is held.
fn in_one_shard(one: u64, other: u64) -> bool {
    /// Read while a key is held: what it does then, it does once.
    struct Trap(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl std::fmt::Debug for Trap {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Trap")
        }
    }

    #[derive(Clone, Debug)]
    struct Probe(Arc<Trap>);

    impl Clock for Probe {
        fn now(&self) -> Nanos {
            let sprung = self.0.0.lock().unwrap().take();
            sprung.into_iter().for_each(|sprung| sprung());
            Nanos::ZERO
        }

        fn sleep_until(&self, _: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(std::future::pending())
        }
    }

    let came = Arc::new(AtomicUsize::new(0));
    let coming = came.clone();
    run(RandomScheduler::new_from_seed(3, 1), move || {
        let probe = Probe(Arc::new(Trap(Default::default())));
        let bucket = TokenBucket::new(Quota::per_hour(1));
        let limiter = RateLimiter::builder(bucket).clock(probe.clone()).build();
        let (others, coming) = (limiter.clone(), coming.clone());
        *probe.0.0.lock().unwrap() = Some(Box::new(move || {
            let past = Arc::new(AtomicUsize::new(0));
            let passing = past.clone();
            thread::spawn(move || {
                let _ = others.peek(&other);
                passing.store(1, Ordering::SeqCst);
            });
            (0..200).for_each(|_| thread::yield_now());
            coming.store(past.load(Ordering::SeqCst), Ordering::SeqCst);
        }));
        let _ = limiter.peek(&one);
    });
    came.load(Ordering::SeqCst) == 0
}

// -- Lines -----------------------------------------------------------------------------------------------------------

/// Lines of which one call leaves each [`INTERVAL`], as the models see them.
trait Line: Clone + Send + 'static {
    /// A call that is let in, with its delay.
    type Call: Future<Output = Duration> + Send + 'static;

    fn join(&self, key: u64) -> Self::Call;
    fn check(&self, key: u64) -> bool;
    fn touch(&self, key: u64);
}

#[derive(Clone)]
struct Real(RateLimiter<LeakyBucket>);

impl Real {
    fn new<C: Time>(clock: C) -> Self {
        Self(RateLimiter::builder(ten_a_second()).clock(clock).build())
    }
}

fn ten_a_second() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(8)
}

impl Line for Real {
    type Call = Pin<Box<dyn Future<Output = Duration> + Send>>;

    fn join(&self, key: u64) -> Self::Call {
        let call = self.0.acquire(&key);
        Box::pin(async move {
            let decision = call.await;
            assert!(decision.is_allowed(), "there is a place for everybody");
            decision.delay()
        })
    }

    fn check(&self, key: u64) -> bool {
        self.0.check(&key).is_allowed()
    }

    fn touch(&self, key: u64) {
        assert!(self.0.check_n(&key, 0).is_allowed());
    }
}

/// A line of one key, small and plain.
struct Twin<C, const FLAW: u8> {
    clock: C,
    plain: Arc<Mutex<Plain>>,
}

/// No flaw: what the checks find fault with is not that it is a twin.
const SOUND: u8 = 0;
/// It looks, lets go, and then leaves its waker.
const LATE: u8 = 1;
/// One that gives up does not tell the one behind.
const FORGETFUL: u8 = 2;
/// A release that nobody took takes its slot along.
const GREEDY: u8 = 3;
/// The last that comes goes first.
const UNFAIR: u8 = 4;

#[derive(Default)]
struct Plain {
    next: Nanos,
    tickets: u64,
    waiting: VecDeque<Waits>,
    released: BTreeMap<u64, Duration>,
    latest: Option<(u64, Nanos)>,
}

struct Waits {
    ticket: u64,
    arrived: Nanos,
    alarm: Nanos,
    waker: Option<Waker>,
}

impl Plain {
    /// Releases everyone whose turn has come. Whom to wake.
    fn release(&mut self, now: Nanos) -> Vec<Waker> {
        let mut wake = Vec::new();
        while let Some(first) = self.waiting.front() {
            if self.next > now {
                wake.extend((first.alarm > self.next).then(|| first.waker.clone()).flatten());
                break;
            }
            let first = self.waiting.pop_front().unwrap();
            self.latest = Some((first.ticket, self.next));
            self.leave(first.arrived);
            self.released.insert(first.ticket, Duration::from_nanos(now.since(first.arrived)));
            wake.extend(first.waker);
        }
        wake
    }

    fn leave(&mut self, arrived: Nanos) {
        self.next = self.next.max(arrived).after(Nanos::from(INTERVAL).0);
    }

    fn pass(&mut self, now: Nanos) -> bool {
        let passes = self.waiting.is_empty() && self.next <= now;
        if passes {
            self.leave(now);
            self.latest = None;
        }
        passes
    }
}

impl<C: Time, const FLAW: u8> Twin<C, FLAW> {
    fn new(clock: C) -> Self {
        Self { clock, plain: Arc::default() }
    }

    /// Holds the line; wakes, once it does no more.
    fn with<R>(&self, change: impl FnOnce(&mut Plain, Nanos) -> R) -> R {
        let mut plain = self.plain.lock().unwrap();
        let now = self.clock.now();
        let mut wake = plain.release(now);
        let result = change(&mut plain, now);
        wake.extend(plain.release(now));
        drop(plain);
        wake.into_iter().for_each(Waker::wake);
        result
    }
}

impl<C: Time, const FLAW: u8> Clone for Twin<C, FLAW> {
    fn clone(&self) -> Self {
        Self { clock: self.clock.clone(), plain: self.plain.clone() }
    }
}

impl<C: Time, const FLAW: u8> Line for Twin<C, FLAW> {
    type Call = TwinCall<C, FLAW>;

    fn join(&self, _: u64) -> Self::Call {
        TwinCall { line: self.clone(), ticket: None, sleep: None }
    }

    fn check(&self, _: u64) -> bool {
        self.with(Plain::pass)
    }

    fn touch(&self, _: u64) {
        self.with(|_, _| {});
    }
}

type Sleep = (Nanos, Pin<Box<dyn Future<Output = ()> + Send>>);

struct TwinCall<C: Time, const FLAW: u8> {
    line: Twin<C, FLAW>,
    ticket: Option<u64>,
    sleep: Option<Sleep>,
}

impl<C: Time, const FLAW: u8> TwinCall<C, FLAW> {
    /// Leaves, or is told when to ask again.
    fn ask(&mut self, waker: &Waker) -> Result<Duration, Nanos> {
        let ticket = &mut self.ticket;
        let answer = self.line.with(|plain, now| {
            if ticket.is_none() {
                if plain.pass(now) {
                    return Ok(Duration::ZERO);
                }
                plain.tickets += 1;
                *ticket = Some(plain.tickets);
                let alarm = plain.next.after(plain.waiting.len() as u64 * Nanos::from(INTERVAL).0);
                let waits = Waits { ticket: plain.tickets, arrived: now, alarm, waker: None };
                match FLAW {
                    UNFAIR => plain.waiting.push_front(waits),
                    _ => plain.waiting.push_back(waits),
                }
            }
            let number = ticket.unwrap();
            if let Some(delay) = plain.released.remove(&number) {
                plain.latest.take_if(|(latest, _)| *latest == number);
                *ticket = None;
                return Ok(delay);
            }
            let next = plain.next;
            let at = plain.waiting.iter().position(|waits| waits.ticket == number).unwrap();
            let waits = &mut plain.waiting[at];
            if at == 0 || waits.alarm <= now {
                waits.alarm = next.after(at as u64 * Nanos::from(INTERVAL).0);
            }
            if FLAW != LATE {
                waits.waker = Some(waker.clone());
            }
            Err(waits.alarm)
        });
        if FLAW == LATE && answer.is_err() {
            let mut plain = self.line.plain.lock().unwrap();
            plain
                .waiting
                .iter_mut()
                .filter(|waits| Some(waits.ticket) == self.ticket)
                .for_each(|waits| waits.waker = Some(waker.clone()));
        }
        answer
    }
}

impl<C: Time, const FLAW: u8> Future for TwinCall<C, FLAW> {
    type Output = Duration;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Duration> {
        loop {
            let alarm = match self.ask(cx.waker()) {
                Ok(delay) => return Poll::Ready(delay),
                Err(alarm) => alarm,
            };
            if self.sleep.as_ref().is_none_or(|(at, _)| *at != alarm) {
                self.sleep = Some((alarm, self.line.clock.sleep_until(alarm)));
            }
            let (_, sleep) = self.sleep.as_mut().unwrap();
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.sleep = None;
        }
    }
}

impl<C: Time, const FLAW: u8> Drop for TwinCall<C, FLAW> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let behind = self.line.with(|plain, _| {
            if plain.released.remove(&ticket).is_some() {
                if let Some((_, before)) =
                    plain.latest.take_if(|(latest, _)| *latest == ticket && FLAW != GREEDY)
                {
                    plain.next = before;
                }
                return None;
            }
            let at = plain.waiting.iter().position(|waits| waits.ticket == ticket)?;
            plain.waiting.remove(at);
            let (next, ahead) = (plain.next, at as u64 * Nanos::from(INTERVAL).0);
            let behind = plain.waiting.get_mut(at)?;
            if FLAW == FORGETFUL {
                // Nor does it tell later.
                behind.alarm = behind.alarm.min(next);
                return None;
            }
            behind.alarm = next.after(ahead);
            behind.waker.clone()
        });
        behind.into_iter().for_each(Waker::wake);
    }
}

// -- What becomes of calls -------------------------------------------------------------------------------------------

/// Counts the steps of the models, in the order in which they happen. It is none itself: nobody is scheduled by it.
#[derive(Clone, Default)]
struct Stamps(Arc<AtomicUsize>);

impl Stamps {
    fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// A call that was let in: when it came, as far as can be known from outside, and for how long it waited.
#[derive(Clone, Copy, Debug)]
struct Passed {
    key: u64,
    joining: (usize, Nanos),
    joined: (usize, Nanos),
    delay: Duration,
}

impl Passed {
    fn earliest(&self) -> Nanos {
        self.joining.1.after(Nanos::from(self.delay).0)
    }

    fn latest(&self) -> Nanos {
        self.joined.1.after(Nanos::from(self.delay).0)
    }
}

/// Nobody left before the schedule allowed it, nor before one that had joined before it came.
fn judge(passed: &[Passed]) {
    for one in passed {
        for other in passed.iter().filter(|other| other.key == one.key && other.joined.0 < one.joining.0) {
            assert!(other.earliest() <= one.latest(), "overtaken: {other:?} by {one:?}");
        }
        // The slot at zero is taken.
        let mut leave: Vec<_> =
            passed.iter().filter(|other| other.key == one.key).map(Passed::latest).collect();
        leave.sort();
        for (slot, left) in (1..).zip(leave) {
            assert!(left >= Nanos::from(INTERVAL * slot), "too early: {left:?} in {passed:?}");
        }
    }
}

/// How the calls of a model come, and where they report.
#[derive(Clone)]
struct Stage<L, C> {
    line: L,
    clock: C,
    stamps: Stamps,
}

impl<L: Line, C: Time> Stage<L, C> {
    /// The slot at zero of each key is taken.
    fn new(line: impl Fn(C) -> L, keys: &[u64]) -> Self {
        let clock = C::new();
        let line = line(clock.clone());
        keys.iter().for_each(|key| assert!(line.check(*key)));
        Self { line, clock, stamps: Stamps::default() }
    }

    /// A call that waits until it is let in, in a thread. It tells once it stands in line.
    fn stays(&self, key: u64, joined: mpsc::Sender<()>) -> thread::JoinHandle<Passed> {
        let Self { line, clock, stamps } = self.clone();
        thread::spawn(move || {
            let mut call = Box::pin(line.join(key));
            let now = clock.now();
            let joining = (stamps.next(), now);
            // The task that takes it up later is another.
            let first = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let stamp = stamps.next();
            let joined_at = (stamp, clock.now());
            joined.send(()).unwrap();
            let delay = match first {
                Poll::Ready(delay) => delay,
                Poll::Pending => block_on(call),
            };
            Passed { key, joining, joined: joined_at, delay }
        })
    }

    /// A call that is dropped after some polls, or let in.
    fn quits(&self, key: u64) -> thread::JoinHandle<Option<Passed>> {
        let Self { line, clock, stamps } = self.clone();
        thread::spawn(move || {
            let polls = thread_rng().gen_range(0..3);
            let mut call = pin!(line.join(key));
            let now = clock.now();
            let joining = (stamps.next(), now);
            let delay = block_on(poll_fn(|cx| {
                let polled = (0..polls).find_map(|_| match call.as_mut().poll(cx) {
                    Poll::Ready(delay) => Some(delay),
                    Poll::Pending => None,
                });
                Poll::Ready(polled)
            }))?;
            let stamp = stamps.next();
            Some(Passed { key, joining, joined: (stamp, clock.now()), delay })
        })
    }

    /// One turn of each key comes. Where no alarm rings, somebody looks after each line.
    fn turn(&self, keys: &[u64]) {
        self.clock.tick(INTERVAL);
        if !C::RINGS {
            keys.iter().for_each(|key| self.line.touch(*key));
        }
    }

    /// All slots until now are taken, and the next is there in an interval.
    fn ends(&self, keys: &[u64]) {
        for key in keys {
            assert!(!self.line.check(*key), "a slot was not charged");
        }
        self.clock.tick(INTERVAL);
        for key in keys {
            assert!(self.line.check(*key), "a slot was lost");
            assert!(!self.line.check(*key), "a slot was given twice");
        }
    }
}

fn all<T: 'static>(threads: Vec<thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

// -- Models ----------------------------------------------------------------------------------------------------------

/// Some join and stay, others give up. As many turns come as have stayed, and no more: all have left then, and no slot is over.
fn as_many_turns_as_stay<L: Line, C: Time>(line: impl Fn(C) -> L, keys: &[u64], stay: u32) {
    let stage = Stage::new(line, keys);
    let (joined, waits) = mpsc::channel();
    let quit: Vec<_> = keys.iter().map(|key| stage.quits(*key)).collect();
    let stayers: Vec<_> = keys.iter().flat_map(|key| (0..stay).map(|_| *key)).collect();
    let stayers: Vec<_> = stayers.into_iter().map(|key| stage.stays(key, joined.clone())).collect();
    stayers.iter().for_each(|_| waits.recv().unwrap());
    assert!(all(quit).iter().all(Option::is_none), "no turn has come");
    (0..stay).for_each(|_| stage.turn(keys));
    judge(&all(stayers));
    stage.ends(keys);
}

/// Calls join and give up while turns come.
fn turns_come_meanwhile<L: Line, C: Time>(line: impl Fn(C) -> L, keys: &'static [u64]) {
    const STAY: u32 = 2;
    let stage = Stage::new(line, keys);
    let (joined, waits) = mpsc::channel();
    let turns = stage.clone();
    let ticker = thread::spawn(move || turns.turn(keys));
    let quit: Vec<_> = keys.iter().map(|key| stage.quits(*key)).collect();
    let stayers: Vec<_> = keys.iter().flat_map(|key| [*key; STAY as usize]).collect();
    let stayers: Vec<_> = stayers.into_iter().map(|key| stage.stays(key, joined.clone())).collect();
    stayers.iter().for_each(|_| waits.recv().unwrap());
    ticker.join().unwrap();
    let mut passed: Vec<_> = all(quit).into_iter().flatten().collect();
    (0..STAY).for_each(|_| stage.turn(keys));
    passed.extend(all(stayers));
    judge(&passed);
    stage.clock.tick(INTERVAL);
    for key in keys {
        assert!(stage.line.check(*key), "a slot was lost");
        assert!(!stage.line.check(*key), "a slot was given twice");
    }
}

/// A call is let go and dropped untold, while another joins and a third would pass at once: one of them has its slot.
fn nobody_takes_the_turn<L: Line, C: Time>(line: impl Fn(C) -> L) {
    let stage = Stage::new(line, &[0]);
    let mut untold = Box::pin(stage.line.join(0));
    assert!(untold.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    stage.clock.tick(INTERVAL);
    stage.line.touch(0);
    let drops = thread::spawn(move || drop(untold));
    let line = stage.line.clone();
    let checks = thread::spawn(move || line.check(0));
    let (joined, waits) = mpsc::channel();
    let stays = stage.stays(0, joined);
    waits.recv().unwrap();
    drops.join().unwrap();
    if checks.join().unwrap() {
        stage.turn(&[0]);
    }
    stays.join().unwrap();
    stage.ends(&[0]);
}

/// What a second thread does to those who wait.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    Nothing,
    Refund,
    Reset,
    /// By a rule of twice the rate.
    Replace,
}

/// Two calls join, a third passes or not, and somebody interferes: units are counted exactly, and all leave at their turns.
fn somebody_interferes<C: Time>(act: Act) {
    let stage = Stage::new(Real::new::<C>, &[0]);
    let (joined, waits) = mpsc::channel();
    let limiter = stage.line.0.clone();
    let acts = thread::spawn(move || match act {
        Act::Nothing => {}
        Act::Refund => limiter.refund(&0_u64, 1),
        Act::Reset => limiter.reset(&0_u64),
        Act::Replace => limiter.replace(LeakyBucket::new(Quota::per_second(20)).queue(8)),
    });
    let stayers: Vec<_> = (0..2).map(|_| stage.stays(0, joined.clone())).collect();
    let line = stage.line.clone();
    let passed = thread::spawn(move || line.check(0)).join().unwrap();
    stayers.iter().for_each(|_| waits.recv().unwrap());
    acts.join().unwrap();
    let (interval, turns) = match act {
        // One of the three had what came back.
        Act::Refund | Act::Reset => (INTERVAL, if passed { 2 } else { 1 }),
        Act::Replace => (INTERVAL / 2, 2),
        Act::Nothing => (INTERVAL, 2),
    };
    assert!(!passed || matches!(act, Act::Refund | Act::Reset), "there was nothing left to pass by");
    for turn in 0..=turns {
        let limiter = &stage.line.0;
        let gone = turn == turns;
        if turn > 0 {
            stage.clock.tick(interval);
        }
        if !C::RINGS {
            stage.line.touch(0);
        }
        assert!(!limiter.check(&0_u64).is_allowed(), "more than was due");
        if gone {
            break;
        }
    }
    let delays: Vec<_> = all(stayers).into_iter().map(|passed| passed.delay).collect();
    assert!(delays.iter().all(|delay| *delay <= interval * turns), "{delays:?}");
    stage.clock.tick(interval);
    assert!(stage.line.check(0) && !stage.line.check(0));
}

/// Two budgets that are drawn on together: three units of the first, two of the second.
trait Pair: Clone + Send + 'static {
    /// Takes one of each, or none; the first first, or the other way round.
    fn take(&self, crossed: bool) -> bool;
    fn left(&self) -> [u64; 2];
}

const BUDGETS: [u64; 2] = [3, 2];

/// Two limiters, by a key each; the two may be one.
#[derive(Clone)]
struct Joined<A: Algorithm, B: Algorithm> {
    first: (RateLimiter<A>, u64),
    second: (RateLimiter<B>, u64),
}

type Keys = [u64; 2];
type Key = fn(&Keys) -> Option<u64>;

/// `first.and(second)`: by the first and the second of a request's keys.
macro_rules! both {
    ($first:expr, $second:expr) => {{
        let first = RateLimitLayer::with_limiter(from_fn((|keys| Some(keys[0])) as Key), $first.clone());
        let second = RateLimitLayer::with_limiter(from_fn((|keys| Some(keys[1])) as Key), $second.clone());
        let layers = first.and(second).responder(ErrorResponder);
        layers.layer(service_fn(async |_: Keys| Ok::<_, ()>(())))
    }};
}

impl<A: Algorithm, B: Algorithm> Pair for Joined<A, B> {
    fn take(&self, crossed: bool) -> bool {
        let ((first, one), (second, other)) = (&self.first, &self.second);
        match crossed {
            false => block_on(both!(first, second).call([*one, *other])).is_ok(),
            true => block_on(both!(second, first).call([*other, *one])).is_ok(),
        }
    }

    fn left(&self) -> [u64; 2] {
        let ((first, one), (second, other)) = (&self.first, &self.second);
        [first.peek(one).remaining(), second.peek(other).remaining()]
    }
}

fn hourly(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_hour(limit))
}

fn limiter<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(Mute::new()).build()
}

fn two_limiters() -> impl Pair {
    let first = limiter(TokenBucket::new(Quota::per_hour(BUDGETS[0])));
    Joined { first: (first, 0), second: (limiter(hourly(BUDGETS[1])), 0) }
}

fn two_keys(one: u64, other: u64) -> impl Pair {
    let limiter = limiter(hourly(BUDGETS[0]));
    assert!(limiter.check_n(&other, BUDGETS[0] - BUDGETS[1]).is_allowed());
    Joined { first: (limiter.clone(), one), second: (limiter, other) }
}

#[derive(Clone)]
struct Budgets<const FLAW: u8>([Arc<Mutex<u64>>; 2]);

/// It holds them in the order in which they are named.
const CROSSED: u8 = 1;
/// It holds one at a time, and keeps what it took of the first.
const HALF: u8 = 2;
/// It looks, lets go, and takes.
const TORN: u8 = 3;

impl<const FLAW: u8> Budgets<FLAW> {
    fn new() -> Self {
        Self(BUDGETS.map(|budget| Arc::new(Mutex::new(budget))))
    }
}

impl<const FLAW: u8> Pair for Budgets<FLAW> {
    fn take(&self, crossed: bool) -> bool {
        let [first, second] = &self.0;
        let named = if crossed { [second, first] } else { [first, second] };
        match FLAW {
            HALF => named.into_iter().all(|budget| {
                let mut left = budget.lock().unwrap();
                let passes = *left > 0;
                *left -= u64::from(passes);
                passes
            }),
            TORN => {
                let passes = named.into_iter().all(|budget| *budget.lock().unwrap() > 0);
                if passes {
                    named.into_iter().for_each(|budget| {
                        let mut left = budget.lock().unwrap();
                        *left = left.saturating_sub(1);
                    });
                }
                passes
            }
            _ => {
                let [one, other] = if FLAW == CROSSED { named } else { [first, second] };
                let (mut one, mut other) = (one.lock().unwrap(), other.lock().unwrap());
                let passes = *one > 0 && *other > 0;
                if passes {
                    *one -= 1;
                    *other -= 1;
                }
                passes
            }
        }
    }

    fn left(&self) -> [u64; 2] {
        self.0.each_ref().map(|budget| *budget.lock().unwrap())
    }
}

/// Three threads take from both, in either order: as many pass as the least of the two allows, and both are charged for those.
fn all_or_none<P: Pair>(pair: impl Fn() -> P) {
    let pair = pair();
    let threads: Vec<_> = [false, true, true]
        .into_iter()
        .map(|crossed| {
            let pair = pair.clone();
            thread::spawn(move || u64::from(pair.take(crossed)))
        })
        .collect();
    let here = u64::from(pair.take(false));
    let passed = here + all(threads).into_iter().sum::<u64>();
    assert_eq!(pair.left().map(|left| left + passed), BUDGETS, "both are charged for those who passed");
    assert_eq!(passed, BUDGETS[1], "as many pass as the least allows");
}

/// Calls that wait in two lines at once, and in either order; one of them gives up, before turns come or meanwhile.
fn two_lines<C: Time>(meanwhile: bool) {
    let clock = C::new();
    let build = || RateLimiter::builder(ten_a_second()).clock(clock.clone()).build();
    let lines = [build(), build()];
    let [first, second] = &lines;
    let budget = RateLimiter::builder(TokenBucket::new(Quota::per_hour(5))).clock(clock.clone()).build();
    assert!(first.check(&0_u64).is_allowed() && second.check(&0_u64).is_allowed());
    let (joined, waits) = mpsc::channel();
    let layers = {
        let key = (|_: &Keys| Some(0_u64)) as Key;
        let (first, second, budget) = (first.clone(), second.clone(), budget.clone());
        move |crossed| {
            let (first, second) = if crossed { (&second, &first) } else { (&first, &second) };
            RateLimitLayer::with_limiter(from_fn(key), first.clone())
                .and(RateLimitLayer::with_limiter(from_fn(key), budget.clone()))
                .and(RateLimitLayer::with_limiter(from_fn(key), second.clone()))
                .responder(ErrorResponder)
                .layer(service_fn(async |_: Keys| Ok::<_, ()>(())))
        }
    };
    let stays: Vec<_> = [false, true]
        .into_iter()
        .map(|crossed| {
            let (layers, joined) = (layers.clone(), joined.clone());
            thread::spawn(move || {
                let call = layers(crossed).call([0, 0]);
                joined.send(()).unwrap();
                assert!(block_on(call).is_ok());
            })
        })
        .collect();
    let quits = thread::spawn(move || {
        let mut call = pin!(layers(true).call([0, 0]));
        // It may pass at once; then it has to be told, or it is not known here that it did.
        let polls = thread_rng().gen_range(u8::from(meanwhile)..3);
        block_on(poll_fn(|cx| Poll::Ready((0..polls).any(|_| call.as_mut().poll(cx).is_ready()))))
    });
    let turn = || {
        clock.tick(INTERVAL);
        lines.iter().filter(|_| !C::RINGS).for_each(|line| assert!(line.check_n(&0_u64, 0).is_allowed()));
    };
    if meanwhile {
        turn();
    }
    stays.iter().for_each(|_| waits.recv().unwrap());
    let passed = quits.join().unwrap();
    assert!(meanwhile || !passed, "no turn has come");
    turn();
    turn();
    all(stays);
    assert_eq!(budget.peek(&0_u64).remaining(), 3 - u64::from(passed), "charged once, or not at all");
    if !meanwhile {
        assert!(lines.iter().all(|line| !line.check(&0_u64).is_allowed()), "a slot was not charged");
    }
    clock.tick(INTERVAL);
    assert!(lines.iter().all(|line| line.check(&0_u64).is_allowed()), "a slot was lost");
    assert!(lines.iter().all(|line| !line.check(&0_u64).is_allowed()), "a slot was given twice");
}

/// New keys come to a table of two: one at a time, two at once in either order, in line, and some are reset.
fn the_table_is_full(keys: [u64; 3]) {
    let clock = Strict::new();
    let limiter = RateLimiter::builder(ten_a_second()).clock(clock.clone()).max_keys(2).build();
    let [one, alike, apart] = keys;
    let bounded = |limiter: &RateLimiter<LeakyBucket>| assert!(limiter.len() <= 2, "the bound is kept");
    // A key passes once; those without a place share a bucket, or do not.
    let checks = {
        let limiter = limiter.clone();
        thread::spawn(move || {
            let passed = limiter.check(&one).is_allowed();
            bounded(&limiter);
            let again = limiter.check(&one).is_allowed();
            bounded(&limiter);
            assert!(!again || !passed, "it passed twice");
        })
    };
    let joins = {
        let limiter = limiter.clone();
        thread::spawn(move || {
            let mut service = both!(limiter, limiter);
            let mut call = pin!(service.call([apart, alike]));
            let _ = block_on(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())));
            bounded(&limiter);
        })
    };
    let crosses = {
        let limiter = limiter.clone();
        thread::spawn(move || {
            let mut service = both!(limiter, limiter);
            let mut call = pin!(service.call([alike, apart]));
            let _ = block_on(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())));
            limiter.reset(&apart);
            bounded(&limiter);
        })
    };
    let waits = block_on(async {
        let first = limiter.acquire(&7_777_u64).await;
        bounded(&limiter);
        first.is_allowed()
    });
    checks.join().unwrap();
    joins.join().unwrap();
    crosses.join().unwrap();
    let _ = waits;
    bounded(&limiter);
    // All is as new after a while, and all places are free again.
    clock.tick(Duration::from_secs(100));
    for key in 1_000..1_006_u64 {
        let _ = limiter.check_n(&key, 0);
    }
    assert_eq!(limiter.len(), 0, "places were lost");
}

// -- Tests -----------------------------------------------------------------------------------------------------------

const ONE: &[u64] = &[0];

fn held_apart() -> &'static [u64] {
    Box::leak(Box::new([keys()[0], keys()[2]]))
}

fn held_together() -> &'static [u64] {
    Box::leak(Box::new([keys()[0], keys()[1]]))
}

#[test]
fn keys_are_found_in_one_shard_and_in_two() {
    let [one, alike, apart] = keys();
    assert!(in_one_shard(alike, one) && !in_one_shard(apart, one) && !in_one_shard(alike, apart));
}

#[test]
fn those_who_stay_leave_at_the_turns_of_those_who_give_up() {
    explore(|| as_many_turns_as_stay(Real::new::<Strict>, ONE, 2));
    explore(|| as_many_turns_as_stay(Real::new::<Mute>, ONE, 2));
    explore(|| as_many_turns_as_stay(Real::new::<ManualClock>, ONE, 1));
}

#[test]
fn nobody_sleeps_on_when_turns_come_while_calls_join_and_give_up() {
    explore(|| turns_come_meanwhile(Real::new::<Strict>, ONE));
    explore(|| turns_come_meanwhile(Real::new::<Mute>, ONE));
    explore(|| turns_come_meanwhile(Real::new::<ManualClock>, ONE));
}

#[test]
fn a_turn_that_nobody_takes_is_the_next_ones() {
    explore(|| nobody_takes_the_turn(Real::new::<Strict>));
    explore(|| nobody_takes_the_turn(Real::new::<Mute>));
}

#[test]
fn lines_of_two_keys_do_not_disturb_each_other() {
    for keys in [held_together(), held_apart()] {
        explore(move || as_many_turns_as_stay(Real::new::<Strict>, keys, 1));
        explore(move || turns_come_meanwhile(Real::new::<Mute>, keys));
    }
}

#[test]
fn whoever_interferes_units_are_counted_exactly() {
    for act in [Act::Nothing, Act::Refund, Act::Reset, Act::Replace] {
        explore(move || somebody_interferes::<Strict>(act));
    }
}

#[test]
fn two_limits_are_charged_both_or_not_at_all_in_either_order() {
    let [one, alike, apart] = keys();
    explore(|| all_or_none(two_limiters));
    explore(move || all_or_none(|| two_keys(one, alike)));
    explore(move || all_or_none(|| two_keys(one, apart)));
}

#[test]
fn calls_that_wait_in_two_lines_leave_both_or_give_both_up() {
    explore(|| two_lines::<Strict>(false));
    explore(|| two_lines::<Strict>(true));
    explore(|| two_lines::<Mute>(true));
}

#[test]
fn new_keys_at_a_full_table_come_to_an_end() {
    let keys = keys();
    explore(move || the_table_is_full(keys));
}

// -- Twins -----------------------------------------------------------------------------------------------------------

#[test]
fn a_sound_twin_passes() {
    explore(|| as_many_turns_as_stay(Twin::<Strict, SOUND>::new, ONE, 2));
    explore(|| turns_come_meanwhile(Twin::<Mute, SOUND>::new, ONE));
    explore(|| nobody_takes_the_turn(Twin::<Strict, SOUND>::new));
    explore(|| all_or_none(Budgets::<SOUND>::new));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waker_left_too_late_is_found_out() {
    explore(|| turns_come_meanwhile(Twin::<Mute, LATE>::new, ONE));
}

#[test]
#[should_panic(expected = "deadlock")]
fn one_that_gives_up_and_tells_nobody_is_found_out() {
    explore(|| as_many_turns_as_stay(Twin::<Strict, FORGETFUL>::new, ONE, 2));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_turn_that_is_lost_is_found_out() {
    explore(|| nobody_takes_the_turn(Twin::<Strict, GREEDY>::new));
}

#[test]
#[should_panic(expected = "overtaken")]
fn one_that_overtakes_is_found_out() {
    explore(|| as_many_turns_as_stay(Twin::<Mute, UNFAIR>::new, ONE, 2));
}

#[test]
#[should_panic(expected = "deadlock")]
fn budgets_held_in_the_order_of_their_names_are_found_out() {
    explore(|| all_or_none(Budgets::<CROSSED>::new));
}

#[test]
#[should_panic(expected = "both are charged for those who passed")]
fn a_budget_that_is_charged_alone_is_found_out() {
    explore(|| all_or_none(Budgets::<HALF>::new));
}

#[test]
#[should_panic(expected = "both are charged for those who passed")]
fn budgets_looked_at_before_they_are_held_are_found_out() {
    explore(|| all_or_none(Budgets::<TORN>::new));
}
