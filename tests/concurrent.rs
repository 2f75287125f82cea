//! Calls in progress: never more than the limit, and each gives back what it held, by whichever door it leaves.

mod support;

use std::any::Any;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use support::{Hand, Random};
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, Overflow, Policy, TokenBucket,
};
use tower_throttle::clock::{ManualClock, Nanos};
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{Decision, Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

const MS: Duration = Duration::from_millis(1);

/// Whatever a call holds.
type Holder = Box<dyn Any>;
type Call = Pin<Box<dyn Future<Output = Result<Holder, ()>>>>;

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(clock.clone()).build()
}

/// A request of a key, and what it costs.
type Asks = Request<(u64, u64)>;

fn answers(_: Asks) -> std::future::Ready<Result<Response<Empty<Bytes>>, Infallible>> {
    ready(Ok(Response::new(Empty::new())))
}

fn kept<B: 'static>(answer: Result<Response<B>, Infallible>) -> Result<Holder, ()> {
    let Ok(response) = answer;
    if response.status() == 200 { Ok(Box::new(response)) } else { Err(()) }
}

/// A call through the layer; what it holds is its response.
fn layered(limiter: &RateLimiter<Concurrency>, key: u64, cost: u64) -> Call {
    let layer =
        RateLimitLayer::with_limiter(from_fn(|request: &Asks| Some(request.body().0)), limiter.clone())
            .cost(|request: &Asks| request.body().1);
    let call = layer.layer(service_fn(answers)).call(Request::new((key, cost)));
    Box::pin(async move { kept(call.await) })
}

fn acquired<A: Algorithm>(limiter: &RateLimiter<A>, key: u64) -> Call {
    let call = limiter.acquire_permit(&key);
    Box::pin(async move { call.await.map(|permit| Box::new(permit) as Holder).map_err(drop) })
}

const KEYS: u64 = 3;

/// What one call of the model holds, or waits for.
#[derive(Clone, Copy, Debug)]
struct Item {
    key: usize,
    cost: u64,
    crowd: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: u64,
    item: Item,
    until: u64,
}

/// The rule in a few lines: who holds, who waits.
#[derive(Debug, Default)]
struct Model {
    limit: u64,
    /// The crowd in which calls count that come now, and how many it may be.
    total: Option<(usize, u64)>,
    counts: Vec<u64>,
    places: usize,
    held: [u64; KEYS as usize],
    lines: [VecDeque<Waiter>; KEYS as usize],
    granted: Vec<(u64, Item)>,
    ids: u64,
}

enum Course {
    Passes(Item),
    Waits(u64),
    Refused,
}

impl Model {
    fn limit(&self) -> u64 {
        self.total.map_or(self.limit, |(_, most)| self.limit.min(most))
    }

    fn room(&self) -> u64 {
        self.total.map_or(u64::MAX, |(crowd, most)| most.saturating_sub(self.counts[crowd]))
    }

    fn fits(&self, key: usize, cost: u64) -> bool {
        self.held[key] + cost <= self.limit()
    }

    fn item(&mut self, key: usize, cost: u64) -> Item {
        let crowd = self.total.map(|(crowd, _)| crowd);
        if let Some(crowd) = crowd {
            self.counts[crowd] += cost;
        }
        Item { key, cost, crowd }
    }

    /// A call that does not wait.
    fn check(&mut self, key: usize, cost: u64) -> Option<Item> {
        let passes = cost == 0 || self.lines[key].is_empty() && self.fits(key, cost) && cost <= self.room();
        passes.then(|| {
            self.held[key] += cost;
            self.item(key, cost)
        })
    }

    fn enter(&mut self, key: usize, cost: u64, until: u64, is_patient: bool) -> Course {
        let due = self.fits(key, cost) || self.held[key] == 0;
        if cost > self.limit() {
            Course::Refused
        } else if cost == 0 || self.lines[key].is_empty() && due {
            self.check(key, cost).map_or(Course::Refused, Course::Passes)
        } else if is_patient && self.lines[key].len() < self.places && cost <= self.room() {
            self.ids += 1;
            let (id, item) = (self.ids, self.item(key, cost));
            self.lines[key].push_back(Waiter { id, item, until });
            Course::Waits(id)
        } else {
            Course::Refused
        }
    }

    /// Those in front pass that may.
    fn settle(&mut self, key: usize) {
        while let Some(first) = self.lines[key].front().copied() {
            if self.held[key] > 0 && !self.fits(key, first.item.cost) {
                break;
            }
            self.lines[key].pop_front();
            self.held[key] += first.item.cost;
            self.granted.push((first.id, first.item));
        }
    }

    fn leave(&mut self, item: Item) {
        if let Some(crowd) = item.crowd {
            self.counts[crowd] -= item.cost;
        }
    }

    fn end(&mut self, item: Item) {
        self.leave(item);
        self.held[item.key] -= item.cost;
        self.settle(item.key);
    }

    fn granted(&self, id: u64) -> Option<Item> {
        self.granted.iter().find(|(granted, _)| *granted == id).map(|(_, item)| *item)
    }

    fn waiting(&self, id: u64) -> Option<Waiter> {
        self.lines.iter().flatten().find(|waiter| waiter.id == id).copied()
    }

    /// It gives up its place, or loses its patience.
    fn remove(&mut self, waiter: Waiter) {
        self.lines[waiter.item.key].retain(|other| other.id != waiter.id);
        self.leave(waiter.item);
        self.settle(waiter.item.key);
    }
}

/// Where a future stands, as the model has it.
#[derive(Clone, Copy, Debug)]
enum Stands {
    Outside,
    InLine(u64),
    Passed(Item),
    Refused,
}

struct Pending {
    hand: Hand<Call>,
    key: usize,
    stands: Stands,
}

/// A limiter and its model, side by side.
struct Bench {
    seed: u64,
    random: Random,
    clock: ManualClock,
    now: u64,
    limiter: RateLimiter<Concurrency>,
    model: Model,
    max_wait: Option<u64>,
    futures: Vec<Pending>,
    holders: Vec<(Holder, Item)>,
    /// By checks: held until released.
    checked: Vec<Item>,
    /// Rules that are made anew, total included.
    renewed: bool,
    served: u64,
    waited: u64,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (limit, places) = (random.within(1..=3), random.below(5));
        let most = (random.below(3) > 0).then(|| random.within(1..=6));
        let max_wait = (random.below(3) == 0).then(|| random.below(40));
        let mut rule = Concurrency::per_key(limit).queue(places);
        if let Some(most) = most {
            rule = rule.total(most);
        }
        if let Some(wait) = max_wait {
            rule = rule.max_wait(MS * wait as u32);
        }
        let clock = ManualClock::new();
        let total = most.map(|most| (0, most));
        let model = Model { limit, total, counts: vec![0], places: places as usize, ..Model::default() };
        Self {
            seed,
            renewed: random.below(4) == 0,
            random,
            limiter: limiter(rule, &clock),
            clock,
            now: 0,
            model,
            max_wait,
            futures: Vec::new(),
            holders: Vec::new(),
            checked: Vec::new(),
            served: 0,
            waited: 0,
        }
    }

    fn until(&self) -> u64 {
        self.max_wait.map_or(u64::MAX, |wait| self.now + wait)
    }

    fn enter(&mut self, key: usize, cost: u64) -> Stands {
        let until = self.until();
        match self.model.enter(key, cost, until, self.max_wait != Some(0)) {
            Course::Passes(item) => Stands::Passed(item),
            Course::Waits(id) => Stands::InLine(id),
            Course::Refused => Stands::Refused,
        }
    }

    fn key(&mut self) -> usize {
        self.random.below(KEYS) as usize
    }

    fn step(&mut self) {
        let seed = self.seed;
        let key = self.key();
        match self.random.below(14) {
            0 => {
                let passes = self.limiter.peek(&(key as u64)).is_allowed();
                let expected = self.model.check(key, 1);
                assert_eq!(passes, expected.is_some(), "seed {seed}: peek");
                match (self.limiter.permit(&(key as u64)), expected) {
                    (Ok(permit), Some(item)) => self.holders.push((Box::new(permit), item)),
                    (Err(_), None) => {}
                    (told, expected) => panic!("seed {seed}: {told:?}, not {expected:?}"),
                }
            }
            1 if !self.renewed => {
                let cost = self.random.below(4);
                let decision = self.limiter.check_n(&(key as u64), cost);
                let expected = self.model.check(key, cost);
                assert_eq!(decision.is_allowed(), expected.is_some(), "seed {seed}: {decision:?}");
                assert_eq!(decision.retry_after(), None);
                self.checked.extend(expected);
            }
            2 => {
                let hand = Hand::new(acquired(&self.limiter, key as u64));
                self.futures.push(Pending { hand, key, stands: Stands::Outside });
            }
            3 | 4 => {
                let cost = self.random.below(4);
                let hand = Hand::new(layered(&self.limiter, key as u64, cost));
                // No call waits in a layer whose rule has no places.
                let stands = self.enter(key, cost);
                self.futures.push(Pending { hand, key, stands });
            }
            5..=7 => self.poll_one(),
            8 if !self.futures.is_empty() => {
                let at = self.random.below(self.futures.len() as u64) as usize;
                self.drop_future(at);
            }
            9 | 10 if !self.holders.is_empty() => {
                let at = self.random.below(self.holders.len() as u64) as usize;
                self.drop_holder(at);
            }
            11 if !self.checked.is_empty() => {
                let at = self.random.below(self.checked.len() as u64) as usize;
                let item = self.checked.swap_remove(at);
                self.limiter.release(&(item.key as u64), item.cost);
                self.model.end(item);
            }
            12 => match self.random.below(4) {
                0 => self.limiter.reset(&(key as u64)),
                1 => self.replace(),
                _ => {
                    let step = self.random.below(20);
                    self.clock.advance(MS * step as u32);
                    self.now += step;
                }
            },
            _ => {}
        }
        self.compare();
    }

    fn replace(&mut self) {
        let limit = self.random.within(1..=3);
        let most = self.random.within(1..=6);
        let old = self.limiter.algorithm().into_owned();
        let new = match (self.model.total, self.renewed) {
            // Calls go on to count in the total that they count in.
            (Some((crowd, _)), false) => {
                self.model.total = Some((crowd, most));
                old.total(most)
            }
            (None, false) => {
                self.model.limit = limit;
                self.rule(limit)
            }
            (_, true) => {
                self.model.limit = limit;
                let rule = self.rule(limit);
                match self.random.below(3) {
                    0 => {
                        self.model.total = None;
                        rule
                    }
                    _ => {
                        self.model.counts.push(0);
                        self.model.total = Some((self.model.counts.len() - 1, most));
                        rule.total(most)
                    }
                }
            }
        };
        self.limiter.replace(new);
        (0..KEYS as usize).for_each(|key| self.model.settle(key));
    }

    fn rule(&self, limit: u64) -> Concurrency {
        let rule = Concurrency::per_key(limit).queue(self.model.places as u64);
        match self.max_wait {
            Some(wait) => rule.max_wait(MS * wait as u32),
            None => rule,
        }
    }

    fn poll_one(&mut self) {
        if self.futures.is_empty() {
            return;
        }
        let at = self.random.below(self.futures.len() as u64) as usize;
        self.poll(at);
    }

    fn poll(&mut self, at: usize) {
        let seed = self.seed;
        let Pending { mut hand, key, mut stands } = self.futures.swap_remove(at);
        if matches!(stands, Stands::Outside) {
            stands = self.enter(key, 1);
        }
        if let Stands::InLine(id) = stands {
            self.waited += 1;
            match (self.model.granted(id), self.model.waiting(id)) {
                (Some(item), _) => stands = Stands::Passed(item),
                (None, Some(waiter)) if waiter.until <= self.now => {
                    self.model.remove(waiter);
                    stands = Stands::Refused;
                }
                (None, waiter) => assert!(waiter.is_some()),
            }
        }
        let ended = hand.poll();
        match (stands, hand.output.take()) {
            (Stands::InLine(_), None) => self.futures.push(Pending { hand, key, stands }),
            (Stands::Passed(item), Some(Ok(holder))) => {
                self.served += 1;
                self.holders.push((holder, item));
            }
            (Stands::Refused, Some(Err(()))) => {}
            (stands, output) => {
                panic!(
                    "seed {seed}: {stands:?}, but ended {ended}, passed {:?}",
                    output.map(|out| out.is_ok())
                )
            }
        }
    }

    fn drop_future(&mut self, at: usize) {
        let Pending { hand, stands, .. } = self.futures.swap_remove(at);
        drop(hand);
        match stands {
            Stands::Passed(item) => self.model.end(item),
            Stands::InLine(id) => match (self.model.granted(id), self.model.waiting(id)) {
                (Some(item), _) => self.model.end(item),
                (None, Some(waiter)) => self.model.remove(waiter),
                (None, None) => unreachable!("it is in line"),
            },
            Stands::Outside | Stands::Refused => {}
        }
    }

    fn drop_holder(&mut self, at: usize) {
        let (holder, item) = self.holders.swap_remove(at);
        drop(holder);
        self.model.end(item);
    }

    fn compare(&mut self) {
        let seed = self.seed;
        for key in 0..KEYS as usize {
            let told = self.limiter.peek(&(key as u64));
            let left = self.model.limit().saturating_sub(self.model.held[key]).min(self.model.room());
            match self.model.lines[key].is_empty() {
                true => assert_eq!(told.remaining(), left, "seed {seed}: key {key} {told:?}"),
                false => assert!(!told.is_allowed() && told.remaining() == 0, "seed {seed}: {told:?}"),
            }
        }
        let waiting: usize = self.model.lines.iter().map(VecDeque::len).sum();
        assert_eq!(self.limiter.waiting(), waiting, "seed {seed}");
        for Pending { hand, stands, .. } in &self.futures {
            if let Stands::InLine(id) = stands {
                let turn = self.model.granted(*id).is_some();
                let late = self.model.waiting(*id).is_some_and(|waiter| waiter.until <= self.now);
                assert!(!turn && !late || hand.is_woken(), "seed {seed}: asleep");
            }
        }
    }

    /// Everything ends, in whatever order; then all is free.
    fn finish(mut self) -> (u64, u64) {
        let seed = self.seed;
        loop {
            match self.random.below(3) {
                0 if !self.futures.is_empty() => {
                    let at = self.random.below(self.futures.len() as u64) as usize;
                    self.drop_future(at);
                }
                1 if !self.holders.is_empty() => {
                    let at = self.random.below(self.holders.len() as u64) as usize;
                    self.drop_holder(at);
                }
                _ => match self.checked.pop() {
                    Some(item) => {
                        self.limiter.release(&(item.key as u64), item.cost);
                        self.model.end(item);
                    }
                    None => self.poll_one(),
                },
            }
            self.compare();
            if self.futures.is_empty() && self.holders.is_empty() && self.checked.is_empty() {
                break;
            }
        }
        for key in 0..KEYS {
            let all: Vec<_> = std::iter::from_fn(|| self.limiter.permit(&key).ok()).take(100).collect();
            assert_eq!(all.len() as u64, self.model.limit(), "seed {seed}");
        }
        if let Some((_, most)) = self.model.total {
            let all: Vec<_> = (0..100_u64).filter_map(|key| self.limiter.permit(&key).ok()).collect();
            assert_eq!(all.len() as u64, most, "seed {seed}");
        }
        assert_eq!(self.limiter.waiting(), 0);
        (self.served, self.waited)
    }
}

fn as_the_model_says(seeds: impl Iterator<Item = u64>, renewed: bool) {
    let (mut served, mut waited) = (0, 0);
    for seed in seeds {
        let mut bench = Bench::new(seed);
        bench.renewed = renewed;
        (0..40).for_each(|_| bench.step());
        let done = bench.finish();
        served += done.0;
        waited += done.1;
    }
    assert!(served > 9_000 && waited > 9_000, "{served} {waited}");
}

#[test]
fn calls_pass_wait_and_leave_as_a_model_of_them_does() {
    as_the_model_says(0..15_000, false);
}

/// Each call counts in the total that there was when it came.
#[test]
fn calls_count_in_the_total_that_they_have_entered() {
    as_the_model_says(15_000..25_000, true);
}

// ---- whoever gives up ----

/// A service that takes so many polls.
fn slow(polls: usize) -> impl Future<Output = ()> {
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Calls of one kind, beside what they draw on.
struct Kind {
    name: &'static str,
    clock: ManualClock,
    call: Box<dyn Fn() -> Call>,
    /// How many units were charged, where that can be told.
    charged: Box<dyn Fn() -> u64>,
    /// Whether nothing is in progress.
    is_free: Box<dyn Fn() -> bool>,
    /// Whether the units stay charged once the service is called, though there is no response yet.
    has_service: bool,
}

macro_rules! service {
    ($layer:expr) => {{
        let layer = $layer;
        move || -> Call {
            let service = service_fn(|_: Asks| async {
                slow(2).await;
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            });
            let call = layer.layer(service).call(Request::new((0, 1)));
            Box::pin(async move { kept(call.await) })
        }
    }};
}

fn one_at_a_time() -> Concurrency {
    Concurrency::per_key(1).total(3).queue(9)
}

fn tokens() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(9)).queue(9)
}

fn line() -> LeakyBucket {
    LeakyBucket::new(Quota::per_second(10)).queue(9)
}

fn idle(limiter: &RateLimiter<Concurrency>) -> Box<dyn Fn() -> bool> {
    let limiter = limiter.clone();
    Box::new(move || {
        let all: Vec<_> = (0..9_u64).filter_map(|key| limiter.permit(&key).ok()).collect();
        all.len() == 3 && limiter.waiting() == 0
    })
}

fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    let none = || Box::new(|| 0_u64) as Box<dyn Fn() -> u64>;
    {
        let clock = ManualClock::new();
        let limiter = limiter(one_at_a_time(), &clock);
        let is_free = idle(&limiter);
        let call = Box::new(move || acquired(&limiter, 0));
        kinds.push(Kind { name: "engine", clock, call, charged: none(), is_free, has_service: false });
    }
    {
        let clock = ManualClock::new();
        let limiter = limiter(one_at_a_time(), &clock);
        let is_free = idle(&limiter);
        let by_key = from_fn(|request: &Asks| Some(request.body().0));
        let call = Box::new(service!(RateLimitLayer::with_limiter(by_key, limiter.clone())));
        kinds.push(Kind { name: "layer", clock, call, charged: none(), is_free, has_service: true });
    }
    macro_rules! tuple {
        ($name:literal, $rule:expr, $charged:expr) => {
            for layered in [false, true] {
                let clock = ManualClock::new();
                let limiter = limiter($rule, &clock);
                let (free, counted) = (limiter.clone(), limiter.clone());
                let by_key = from_fn(|request: &Asks| Some(request.body().0));
                let call: Box<dyn Fn() -> Call> = match layered {
                    true => Box::new(service!(RateLimitLayer::with_limiter(by_key, limiter.clone()))),
                    false => Box::new(move || acquired(&limiter, 0)),
                };
                // Long after: the line has nothing left to say.
                let later = clock.clone();
                let is_free = Box::new(move || {
                    later.advance(Duration::from_secs(36_000));
                    let one = free.permit(&0_u64);
                    let two = free.permit(&0_u64);
                    one.is_ok() && two.is_err() && free.waiting() == 0
                });
                let charged = Box::new(move || $charged(&counted));
                kinds.push(Kind { name: $name, clock, call, charged, is_free, has_service: layered });
            }
        };
    }
    tuple!("(tokens, one)", (tokens(), one_at_a_time()), |counted: &RateLimiter<(
        TokenBucket,
        Concurrency
    )>| {
        // The one at a time is idle when this is asked.
        let rule = counted.algorithm().into_owned();
        counted.replace((tokens(), Concurrency::per_key(1_000)));
        let left = counted.peek(&0_u64).remaining();
        counted.replace(rule);
        9 - left
    });
    tuple!("(one, line)", (one_at_a_time(), line()), |_: &RateLimiter<(Concurrency, LeakyBucket)>| 0_u64);
    tuple!("(line, one)", (line(), one_at_a_time()), |_: &RateLimiter<(LeakyBucket, Concurrency)>| 0_u64);
    macro_rules! joined {
        ($name:literal, $first:expr, $second:expr, $one:ident, $charged:expr) => {{
            let clock = ManualClock::new();
            let (first, second) = (limiter($first, &clock), limiter($second, &clock));
            let by_key = from_fn(|request: &Asks| Some(request.body().0));
            let layer = RateLimitLayer::with_limiter(by_key, first.clone())
                .and(RateLimitLayer::with_limiter(by_key, second.clone()));
            let is_free = idle(&$one!(first, second));
            let call = Box::new(service!(layer));
            let charged = Box::new(move || $charged(&first, &second));
            kinds.push(Kind { name: $name, clock, call, charged, is_free, has_service: true });
        }};
    }
    macro_rules! first {
        ($first:ident, $second:ident) => {
            $first
        };
    }
    macro_rules! second {
        ($first:ident, $second:ident) => {
            $second
        };
    }
    joined!("one and line", one_at_a_time(), line(), first, |_: &_, _: &_| 0_u64);
    joined!("line and one", line(), one_at_a_time(), second, |_: &_, _: &_| 0_u64);
    joined!(
        "one and tokens",
        one_at_a_time(),
        tokens(),
        first,
        |_: &_, tokens: &RateLimiter<TokenBucket>| { 9 - tokens.peek(&0_u64).remaining() }
    );
    joined!(
        "tokens and one",
        tokens(),
        one_at_a_time(),
        second,
        |tokens: &RateLimiter<TokenBucket>, _: &_| { 9 - tokens.peek(&0_u64).remaining() }
    );
    kinds
}

const TICK: Duration = Duration::from_millis(10);

/// One passes and ends at 45 ms; a second comes, and is dropped after so many polls, 10 ms apart, with what it got; a third stands behind it. When the
/// third passes, whether the second had passed, and whether it got its response.
fn dropped_after(kind: &Kind, polls: Option<usize>) -> (usize, bool, bool, u64) {
    let mut first = Hand::new((kind.call)());
    while !first.poll() {}
    let mut first = Some(first.output.take().unwrap().unwrap());
    let mut second = polls.map(|_| Hand::new((kind.call)()));
    let mut third = Hand::new((kind.call)());
    // The engine's stands in line from its first poll on.
    if let (Some(second), false) = (&mut second, kind.has_service) {
        second.poll();
    }
    third.poll();
    let (mut passed, mut ended) = (false, false);
    for tick in 0..200 {
        if tick == 5 {
            first = None;
        }
        if let Some(call) = &mut second {
            let polls = polls.unwrap();
            if tick >= polls {
                ended = call.output.is_some();
                second = None;
            } else {
                call.poll();
                // Some polls later than it passes, it is ready.
                passed |= call.polls > 0 && call.output.is_some();
            }
        }
        if third.run() {
            let got = third.output.take().unwrap();
            assert!(got.is_ok(), "{}: the third is refused", kind.name);
            assert!(second.as_ref().is_none_or(|call| call.output.is_none()), "{}: two at a time", kind.name);
            drop(got);
            let charged = (kind.charged)();
            drop(first);
            return (tick, passed, ended, charged);
        }
        kind.clock.advance(TICK);
    }
    panic!("{}: after {polls:?} polls, the third never passes", kind.name);
}

#[test]
fn a_call_dropped_at_any_poll_takes_no_permit_along() {
    let count = kinds().len();
    for at in 0..count {
        let alone = {
            let kind = kinds().swap_remove(at);
            dropped_after(&kind, None).0
        };
        let (mut lost, mut kept) = (0, 0);
        for polls in 0..=40 {
            let kind = kinds().swap_remove(at);
            let (name, queued) = (kind.name, kind.name.contains("line"));
            let (tick, _, ended, charged) = dropped_after(&kind, Some(polls));
            assert!((kind.is_free)(), "{name} after {polls} polls: not all is free");
            // Its turn is at 50 ms, or at 100 ms where there is a line.
            let turn = if queued { 10 } else { 5 };
            if polls <= turn {
                assert!(!ended, "{name} after {polls} polls");
                // As if it had never come; but whoever is told of a place is told when it is free.
                assert_eq!(tick, alone.max(polls), "{name} after {polls} polls");
                lost += 1;
            } else {
                kept += u64::from(ended);
                let last = if queued { 20 } else { polls };
                assert!(tick <= last.max(polls), "{name} after {polls} polls: at {tick}");
            }
            if name.contains("tokens") {
                // The first and the third, and the second if it was let in.
                let all = if polls <= turn { 2 } else { 3 };
                assert_eq!(charged, all, "{name} after {polls} polls");
            }
        }
        assert!(lost > 4 && kept > 4);
    }
}

// ---- threads ----

const THREADS: u64 = 8;

fn together(work: impl Fn(u64) + Sync) {
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread);
            });
        }
    });
}

/// How many are in progress, and whether it was ever more than may be.
#[derive(Debug, Default)]
struct Gauge {
    now: AtomicU64,
    most: AtomicU64,
}

impl Gauge {
    fn up(&self) {
        self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    fn down(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn threads_hold_no_more_than_the_limit_of_a_key_nor_the_total() {
    for round in 0..10 {
        let limiter = RateLimiter::new(Concurrency::per_key(2).total(4));
        let (all, each) =
            (Gauge::default(), [const { Gauge { now: AtomicU64::new(0), most: AtomicU64::new(0) } }; 3]);
        let passed = AtomicU64::new(0);
        together(|thread| {
            let mut random = Random::new(round * THREADS + thread);
            let mut held = Vec::new();
            for _ in 0..2_000 {
                let key = random.below(3) as usize;
                if let Ok(permit) = limiter.permit(&key) {
                    all.up();
                    each[key].up();
                    passed.fetch_add(1, Ordering::Relaxed);
                    held.push((key, permit));
                }
                if random.below(2) == 0 {
                    thread::yield_now();
                }
                while held.len() as u64 > random.below(3) {
                    let (key, permit) = held.pop().unwrap();
                    each[key].down();
                    all.down();
                    drop(permit);
                }
            }
            for (key, permit) in held {
                each[key].down();
                all.down();
                drop(permit);
            }
        });
        assert!(all.most.into_inner() <= 4);
        assert!(each.into_iter().all(|each| each.most.into_inner() <= 2));
        assert!(passed.into_inner() > 100);
        let free: Vec<_> = [0_usize, 0, 1, 1, 2].map(|key| limiter.permit(&key)).into_iter().collect();
        assert_eq!(free.iter().filter(|permit| permit.is_ok()).count(), 4, "all are free");
        assert!(free[4].is_err());
    }
}

#[test]
fn threads_that_wait_all_get_their_permit_and_no_more_at_a_time_than_may() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let limiter = RateLimiter::new(Concurrency::per_key(2).queue(100).total(1_000));
        let gauges: Arc<[Gauge; 3]> = Arc::default();
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..24_u64 {
            let (limiter, gauges) = (limiter.clone(), gauges.clone());
            tasks.spawn(async move {
                let mut random = Random::new(task);
                for _ in 0..200 {
                    let key = random.below(3) as usize;
                    let wait = limiter.acquire_permit(&key);
                    let permit = match random.below(4) {
                        // Gives up, maybe just when its turn comes.
                        0 => match tokio::time::timeout(Duration::ZERO, wait).await {
                            Ok(permit) => permit.unwrap(),
                            Err(_) => continue,
                        },
                        _ => wait.await.unwrap(),
                    };
                    gauges[key].up();
                    tokio::task::yield_now().await;
                    gauges[key].down();
                    drop(permit);
                }
            });
        }
        let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("nobody is left waiting");
        assert!(gauges.iter().all(|gauge| gauge.most.load(Ordering::SeqCst) <= 2));
        assert_eq!(limiter.waiting(), 0);
        for key in 0..3_usize {
            let free = [(); 3].map(|()| limiter.permit(&key).ok());
            assert_eq!(free.iter().flatten().count(), 2);
        }
    });
}

#[test]
fn of_joined_limits_a_denial_is_told_as_one() {
    let one = RateLimiter::new(Concurrency::per_key(9).total(1));
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_day(100_000)));
    let by_key = from_fn(|key: &u64| Some(*key));
    let layer = RateLimitLayer::with_limiter(by_key, one.clone())
        .and(RateLimitLayer::with_limiter(by_key, bucket))
        .responder(ErrorResponder);
    together(|thread| {
        let mut service = layer.layer(service_fn(|_| ready(Ok::<_, Infallible>(()))));
        for _ in 0..20_000 {
            if let Err(error) = service.call(thread).now() {
                assert!(matches!(error, Error::Limited(denied) if !denied.is_allowed()));
            }
        }
    });
    assert!(one.permit(&0_u64).is_ok());
}

#[test]
fn of_joined_limits_neither_is_charged_for_what_the_other_denies() {
    for total_first in [true, false] {
        // However long it takes, nothing flows in.
        let clock = ManualClock::new();
        let one = limiter(Concurrency::per_key(2).total(3), &clock);
        let bucket = limiter(TokenBucket::new(Quota::per_day(20_000)), &clock);
        let by_key = from_fn(|request: &Asks| Some(request.body().0));
        let passed = AtomicU64::new(0);
        let work = |thread: u64, call: &dyn Fn(Asks) -> Call| {
            let mut random = Random::new(thread);
            let mut held = Vec::new();
            for _ in 0..4_000 {
                let mut call = Hand::new(call(Request::new((random.below(3), 1))));
                assert!(call.poll(), "nobody waits");
                if let Some(Ok(holder)) = call.output {
                    passed.fetch_add(1, Ordering::Relaxed);
                    held.push(holder);
                }
                held.truncate(random.below(2) as usize);
                if random.below(4) == 0 {
                    thread::yield_now();
                }
            }
        };
        let conc = RateLimitLayer::with_limiter(by_key, one.clone());
        let rate = RateLimitLayer::with_limiter(Global, bucket.clone());
        match total_first {
            true => {
                let layer = conc.and(rate);
                together(|thread| {
                    let service = layer.layer(service_fn(answers));
                    work(thread, &|request| {
                        let call = service.clone().call(request);
                        Box::pin(async move { kept(call.await) })
                    });
                });
            }
            false => {
                let layer = rate.and(conc);
                together(|thread| {
                    let service = layer.layer(service_fn(answers));
                    work(thread, &|request| {
                        let call = service.clone().call(request);
                        Box::pin(async move { kept(call.await) })
                    });
                });
            }
        }
        let passed = passed.into_inner();
        assert!(passed > 1_000, "{passed}");
        assert_eq!(bucket.peek(&()).remaining(), 20_000 - passed.min(20_000), "as many as passed");
        let all: Vec<_> = (0..9_u64).filter_map(|key| one.permit(&key).ok()).collect();
        assert_eq!(all.len(), 3);
    }
}

/// The total is in no key's hands: another key may take its last place between a look and a charge.
#[test]
fn a_tuple_is_charged_for_those_only_that_its_total_lets_in() {
    for total_last in [true, false].repeat(5) {
        let one = || Concurrency::per_key(4).total(1);
        let tokens = || TokenBucket::new(Quota::per_day(20_000));
        let passed = [const { AtomicU64::new(0) }; THREADS as usize];
        let count = |permit: Result<_, Decision>, thread: u64| {
            if permit.is_ok() {
                passed[thread as usize].fetch_add(1, Ordering::Relaxed);
            }
        };
        let wide = || Concurrency::per_key(u64::MAX);
        // What is charged of a key, and how many of three are free.
        let told: Vec<(u64, usize)> = match total_last {
            true => {
                let limiter = limiter((tokens(), Concurrency::per_key(3), one()), &ManualClock::new());
                together(|thread| (0..5_000).for_each(|_| count(limiter.permit(&thread), thread)));
                limiter.replace((tokens(), wide(), wide()));
                let charged: Vec<_> =
                    (0..THREADS).map(|key| 20_000 - limiter.peek(&key).remaining()).collect();
                limiter.replace((tokens(), Concurrency::per_key(3), Concurrency::per_key(3)));
                let free = |key| [(); 4].map(|()| limiter.permit(&key).ok()).iter().flatten().count();
                charged.into_iter().zip((0..THREADS).map(free)).collect()
            }
            false => {
                let limiter = limiter((one(), tokens(), Concurrency::per_key(3)), &ManualClock::new());
                together(|thread| (0..5_000).for_each(|_| count(limiter.permit(&thread), thread)));
                limiter.replace((wide(), tokens(), wide()));
                let charged: Vec<_> =
                    (0..THREADS).map(|key| 20_000 - limiter.peek(&key).remaining()).collect();
                limiter.replace((Concurrency::per_key(3), tokens(), Concurrency::per_key(3)));
                let free = |key| [(); 4].map(|()| limiter.permit(&key).ok()).iter().flatten().count();
                charged.into_iter().zip((0..THREADS).map(free)).collect()
            }
        };
        let passed: Vec<_> = passed.iter().map(|passed| (passed.load(Ordering::Relaxed), 3)).collect();
        assert_eq!(told, passed, "{total_last}");
    }
}

// ---- a full table ----

fn in_a_full_table(max_keys: usize, limit: u64, at_most_the_limit: bool) {
    for seed in 0..1_000 {
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        let rule = Concurrency::per_key(limit).total(100);
        let limiter = RateLimiter::builder(rule).clock(clock.clone()).max_keys(max_keys).build();
        let mut held: Vec<(u64, _)> = Vec::new();
        for _ in 0..60 {
            let key = random.below(5);
            match random.below(5) {
                0..=2 => {
                    let told = limiter.peek(&key).is_allowed();
                    let permit = limiter.permit(&key);
                    if at_most_the_limit {
                        assert_eq!(
                            told,
                            permit.is_ok(),
                            "seed {seed}: a look says what a call would be told"
                        );
                    }
                    held.extend(permit.ok().map(|permit| (key, permit)));
                }
                3 if !held.is_empty() => {
                    drop(held.swap_remove(random.below(held.len() as u64) as usize));
                }
                _ => clock.advance(Duration::from_secs(random.below(12))),
            }
            assert!(limiter.len() <= max_keys, "seed {seed}");
            let of_the_key = held.iter().filter(|(other, _)| *other == key).count() as u64;
            assert!(!at_most_the_limit || of_the_key <= limit, "seed {seed}: {of_the_key} of key {key}");
            assert!(held.len() <= 100);
        }
        while !held.is_empty() {
            drop(held.swap_remove(random.below(held.len() as u64) as usize));
        }
        for key in 0..5_u64 {
            let free: Vec<_> = std::iter::from_fn(|| limiter.permit(&key).ok()).take(10).collect();
            assert_eq!(free.len() as u64, limit, "seed {seed}: key {key} is free");
        }
        let all: Vec<_> = (0..300_u64).filter_map(|key| limiter.permit(&key).ok()).collect();
        assert!(all.len() <= 100 && limiter.len() <= max_keys, "{}", all.len());
        drop(all);
        limiter.replace(limiter.algorithm().into_owned().total(1));
        assert!(limiter.permit(&9).is_ok(), "seed {seed}: nobody counts in the total");
    }
}

#[test]
fn what_is_held_in_a_shared_bucket_is_given_back_there() {
    in_a_full_table(1, 2, false);
    in_a_full_table(2, 3, false);
}

#[test]
fn a_key_that_moves_out_of_a_shared_bucket_holds_no_more_than_the_limit() {
    in_a_full_table(1, 1, true);
    in_a_full_table(2, 2, true);
}

// ---- one by one ----

#[test]
fn those_in_line_go_by_the_rule_that_holds_now() {
    let limiter = limiter(Concurrency::per_key(2).queue(9), &ManualClock::new());
    let [first, second] = [(); 2].map(|()| limiter.permit("a").unwrap());
    let mut line = [(); 2].map(|()| Hand::new(limiter.acquire_permit("a")));
    line.iter_mut().for_each(|call| assert!(!call.poll()));
    limiter.replace(Concurrency::per_key(1).queue(9));
    drop(first);
    assert!(!line[0].run(), "another is in progress");
    drop(second);
    assert!(line[0].run() && !line[1].run());
    // More at once: at once.
    limiter.replace(Concurrency::per_key(2).queue(9));
    assert!(line[1].run());
}

#[test]
fn a_refund_takes_nothing_from_a_permit() {
    let limiter = RateLimiter::new(Concurrency::per_key(1).total(1));
    let first = limiter.permit("a").unwrap();
    limiter.refund("a", 1);
    assert!(limiter.permit("a").is_err() && limiter.permit("b").is_err(), "one is in progress");
    drop(first);
    let second = limiter.permit("b").unwrap();
    assert!(limiter.permit("c").is_err());
    drop(second);

    let both = RateLimiter::new((TokenBucket::new(Quota::per_hour(9)), Concurrency::per_key(1)));
    let first = both.permit("a").unwrap();
    both.refund("a", 1);
    assert!(both.permit("a").is_err(), "the call was free, but it is not over");
    drop(first);
    let _second = both.permit("a").unwrap();
    assert!(both.permit("a").is_err());
}

#[test]
fn what_a_check_took_is_held_until_it_is_released() {
    let limiter = RateLimiter::new(Concurrency::per_key(3).total(4));
    assert!(limiter.check_n("a", 3).is_allowed() && !limiter.check("a").is_allowed());
    assert!(limiter.check_n("b", 0).is_allowed() && !limiter.check_n("b", 2).is_allowed());
    limiter.release("a", 2);
    assert_eq!(limiter.peek("a").remaining(), 2);
    // Never more than was taken.
    limiter.release("a", u64::MAX);
    limiter.release("b", 5);
    assert_eq!((limiter.peek("a").remaining(), limiter.peek("b").remaining()), (3, 3));
    let all: Vec<_> = (0..9).filter_map(|key| limiter.permit(&key).ok()).collect();
    assert_eq!(all.len(), 4);
}

#[test]
fn a_total_that_was_replaced_is_left_by_those_who_entered_it() {
    let limiter = RateLimiter::new(Concurrency::per_key(5));
    let old = limiter.permit("a").unwrap();
    limiter.replace(Concurrency::per_key(5).total(1));
    let _new = limiter.permit("b").unwrap();
    drop(old);
    assert!(limiter.permit("c").is_err(), "one is in progress that counts");

    let first = Concurrency::per_key(5).total(1);
    let limiter = RateLimiter::new(first.clone());
    let old = limiter.permit("a").unwrap();
    limiter.replace(Concurrency::per_key(5));
    drop(old);
    limiter.replace(first);
    assert!(limiter.permit("a").is_ok(), "nobody is in progress");
}

#[test]
fn the_oldest_makes_room_in_the_total_as_well() {
    let rule = Concurrency::per_key(1).total(2).queue(1).overflow(Overflow::DropOldest);
    let limiter = limiter(rule, &ManualClock::new());
    let held = limiter.permit("a").unwrap();
    let [mut oldest, mut newest] = [(); 2].map(|()| Hand::new(limiter.acquire_permit("a")));
    assert!(!oldest.poll() && !newest.poll());
    assert!(oldest.run() && oldest.output.unwrap().is_err());
    drop(held);
    assert!(newest.run() && newest.output.unwrap().is_ok());
}

/// A rule of one's own, that cannot be relied on.
#[derive(Clone, Debug)]
struct Panics;

impl Algorithm for Panics {
    type State = ();

    fn fresh(&self, _: Nanos, _: Nanos) {}

    fn seen(&self, (): &()) -> Nanos {
        Nanos::ZERO
    }

    fn check(&self, (): &mut (), _: Nanos, _: u64) -> Decision {
        panic!("a rule of one's own")
    }

    fn peek(&self, (): &mut (), _: Nanos, _: u64) -> Decision {
        Decision::allow(1, 1, 0)
    }

    fn refund(&self, (): &mut (), _: Nanos, _: u64) {}

    fn adapt(&self, (): &mut (), _: &Self, _: Nanos) {}

    fn is_fresh(&self, (): &(), _: Nanos) -> bool {
        true
    }

    fn policy(&self) -> Policy {
        Policy::new(1, Duration::from_secs(1))
    }
}

#[test]
fn a_rule_that_panics_beside_others_leaves_their_permits_free() {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let one = RateLimiter::new(Concurrency::per_key(1).total(1));
        let mut service = RateLimitLayer::with_limiter(Global, one.clone())
            .and(RateLimitLayer::with_limiter(Global, RateLimiter::new(Panics)))
            .responder(ErrorResponder)
            .layer(service_fn(|()| ready(Ok::<(), Infallible>(()))));
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(service.call(())))).is_err();
        sender.send(panicked && one.permit(&()).is_ok()).unwrap();
    });
    assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(true));
}

/// A permit may end wherever it is.
#[test]
fn a_permit_ends_on_another_thread_in_a_panic_and_after_its_limiter() {
    let limiter = limiter(Concurrency::per_key(1), &ManualClock::new());
    let permit = limiter.permit("a").unwrap();
    thread::spawn(move || drop(permit)).join().unwrap();
    let permit = limiter.permit("a").unwrap();
    let panicked = thread::spawn(move || {
        let _permit = permit;
        panic!("as handlers do");
    });
    assert!(panicked.join().is_err());
    let permit = limiter.permit("a").unwrap();
    let mut waits = Hand::new(limiter.acquire_permit("a"));
    assert!(!waits.poll());
    drop(limiter);
    drop(permit);
    assert!(waits.run() && waits.output.unwrap().is_ok());
    // Nothing is held by rules that hold nothing.
    assert!(RateLimiter::new(FixedWindow::new(Quota::per_hour(1))).permit("a").unwrap().is_empty());
}

#[test]
fn whoever_stands_in_line_is_overtaken_by_nobody() {
    let limiter = limiter(Concurrency::per_key(2).queue(5), &ManualClock::new());
    let [first, second] = [(); 2].map(|()| limiter.permit("a").unwrap());
    let mut line = [(); 3].map(|()| Hand::new(limiter.acquire_permit("a")));
    line.iter_mut().for_each(|call| assert!(!call.poll()));
    assert!(limiter.permit("a").is_err() && limiter.permit("b").is_ok());
    drop(second);
    // Free, and spoken for: though the first of the line was not polled yet.
    assert!(limiter.permit("a").is_err() && !limiter.check("a").is_allowed());
    assert!(!line[1].run() && line[0].run());
    line[1].abandon();
    drop(first);
    assert!(line[2].run());
    // The second gave up, so the third has the first one's.
    assert!(limiter.permit("a").is_err());
    drop(line);
    assert!(limiter.permit("a").is_ok());
}

#[test]
fn a_wait_that_is_too_long_ends_with_a_refusal_that_names_no_time() {
    let clock = ManualClock::new();
    let limiter = limiter(Concurrency::per_key(1).queue(5).max_wait(MS * 100), &clock);
    let held = limiter.permit("a").unwrap();
    let mut first = Hand::new(limiter.acquire_permit("a"));
    assert!(!first.poll());
    clock.advance(MS * 60);
    let mut second = Hand::new(limiter.acquire_permit("a"));
    assert!(!second.poll());
    clock.advance(MS * 40 - Duration::from_nanos(1));
    assert!(!first.run() && !second.run());
    clock.advance(Duration::from_nanos(1));
    assert!(first.run() && !second.run());
    let refusal = first.output.unwrap().unwrap_err();
    assert_eq!((refusal.is_allowed(), refusal.is_closed(), refusal.retry_after()), (false, false, None));
    assert_eq!(refusal.delay(), MS * 100);
    drop(held);
    assert!(second.run() && second.output.unwrap().is_ok());
}

/// In a block, or around one: what is in progress is given back.
#[test]
fn a_block_around_a_tuple_of_them_gives_permits_back() {
    let clock = ManualClock::new();
    let rule = (TokenBucket::new(Quota::per_second(1).burst(100)), Concurrency::per_key(1).total(1));
    let limiter = limiter(rule.block_for(Duration::from_secs(5)).after(2), &clock);
    let held = limiter.permit("a").unwrap();
    assert!(limiter.permit("a").is_err());
    let blocked = limiter.permit("a").unwrap_err();
    assert_eq!(blocked.retry_after(), None, "nobody knows when the first is over");
    drop(held);
    assert_eq!(limiter.permit("a").unwrap_err().retry_after(), Some(Duration::from_secs(5)));
    clock.advance(Duration::from_secs(5));
    let held = limiter.permit("a").unwrap();
    assert!(limiter.permit("b").is_err());
    drop(held);
    assert!(limiter.permit("b").is_ok());
}

/// Both of two joined layers that count the same key's calls: one call counts twice, and is over once.
#[test]
fn a_call_that_counts_twice_in_one_limiter_is_given_back_twice() {
    let limiter = RateLimiter::new(Concurrency::per_key(4).total(5));
    let both = RateLimitLayer::with_limiter(Global, limiter.clone())
        .and(RateLimitLayer::with_limiter(Global, limiter.clone()))
        .layer(service_fn(answers));
    let call = || {
        let call = both.clone().call(Request::new((0, 1)));
        let mut call = Hand::new(Box::pin(async move { kept(call.await) }));
        assert!(call.poll());
        call.output.unwrap()
    };
    let (first, second) = (call().unwrap(), call().unwrap());
    assert!(call().is_err() && limiter.peek(&()).remaining() == 0);
    drop(first);
    assert_eq!(limiter.peek(&()).remaining(), 2);
    drop(second);
    assert_eq!((limiter.peek(&()).remaining(), limiter.peek(&1).remaining()), (4, 4));
}

#[test]
fn a_service_that_fails_or_panics_or_is_no_http_gives_the_permit_back() {
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).responder(ErrorResponder);
    let mut fails = layer.layer(service_fn(|ok: bool| ready(if ok { Ok("yes") } else { Err("no") })));
    for ok in [true, false, true] {
        let mut call = Hand::new(fails.call(ok));
        assert!(limiter.permit(&()).is_err(), "it is in progress from the call on");
        assert!(matches!(fails.call(true).now(), Err(Error::Limited(denied)) if !denied.is_allowed()));
        assert!(call.poll());
        assert!(matches!((ok, call.output.unwrap()), (true, Ok("yes")) | (false, Err(Error::Inner("no")))));
        assert!(limiter.permit(&()).is_ok());
    }
    let mut panics = layer.clone().layer(service_fn(|early: bool| {
        assert!(!early, "as services do");
        async { panic!("as handlers do") as Result<(), Infallible> }
    }));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(panics.call(true)))).is_err());
    assert!(limiter.permit(&()).is_ok());
    let mut call = Box::pin(panics.call(false));
    let polled = AssertUnwindSafe(|| {
        call.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    });
    assert!(catch_unwind(polled).is_err());
    drop(call);
    assert!(limiter.permit(&()).is_ok());
}

trait Now: Future + Sized {
    /// What it ends with at its first poll.
    fn now(self) -> Self::Output {
        let mut hand = Hand::new(self);
        assert!(hand.poll());
        hand.output.unwrap()
    }
}

impl<F: Future> Now for F {}

#[test]
fn a_service_that_panics_when_its_turn_comes_gives_the_permit_back() {
    let limiter = limiter(Concurrency::per_key(1).queue(3), &ManualClock::new());
    let mut panics = RateLimitLayer::with_limiter(Global, limiter.clone())
        .responder(ErrorResponder)
        .layer(service_fn(|()| -> std::future::Ready<Result<(), Infallible>> { panic!("as services do") }));
    let held = limiter.permit(&()).unwrap();
    let mut call = Box::pin(panics.call(()));
    let mut poll = || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut context).is_ready()))
    };
    assert!(matches!(poll(), Ok(false)));
    drop(held);
    assert!(poll().is_err());
    assert!(limiter.permit(&()).is_ok());
}

/// A body may be moved, and end elsewhere; a frame that is an error ends it as well.
#[test]
fn a_body_that_is_moved_or_fails_gives_the_permit_back_at_its_end() {
    use http_body_util::BodyExt;
    let limiter = RateLimiter::new(Concurrency::per_key(1));
    let gone = Arc::new(AtomicBool::new(false));
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone());
    let mut service = layer.layer(service_fn(|frames: Request<Vec<Result<&'static str, &'static str>>>| {
        let frames = frames.into_body().into_iter().map(|frame| {
            frame.map(|data| match data {
                "trailers" => http_body::Frame::trailers(http::HeaderMap::new()),
                data => http_body::Frame::data(Bytes::from_static(data.as_bytes())),
            })
        });
        let body = Frames(frames.collect::<Vec<_>>().into_iter());
        ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let mut call = |frames: Vec<_>| service.call(Request::new(frames)).now().unwrap().into_body();

    let mut body = call(vec![Ok("a"), Ok("b"), Ok("trailers")]);
    for _ in 0..3 {
        assert!(limiter.permit(&()).is_err());
        assert!(body.frame().now().unwrap().is_ok());
    }
    assert!(limiter.permit(&()).is_err(), "trailers are not the end");
    assert!(body.frame().now().is_none());
    assert!(limiter.permit(&()).is_ok(), "though the body is still there");
    drop(body);

    let mut body = call(vec![Ok("a"), Err("broken"), Ok("b")]);
    assert!(body.frame().now().unwrap().is_ok() && limiter.permit(&()).is_err());
    assert!(body.frame().now().unwrap().is_err() && limiter.permit(&()).is_ok());
    drop(body);

    let body = call(vec![Ok("a")]);
    let mark = gone.clone();
    thread::spawn(move || {
        drop(body);
        mark.store(true, Ordering::SeqCst);
    })
    .join()
    .unwrap();
    assert!(gone.load(Ordering::SeqCst) && limiter.permit(&()).is_ok());

    // Never polled, never read.
    drop(call(vec![]));
    assert!(limiter.permit(&()).is_ok());
}

struct Frames<I>(I);

impl<I> http_body::Body for Frames<I>
where
    I: Iterator<Item = Result<http_body::Frame<Bytes>, &'static str>> + Unpin,
{
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

// ---- what is told ----

#[test]
fn fields_name_the_unit_and_no_time() {
    let limiter = RateLimiter::new(Concurrency::per_key(5));
    let mut service =
        RateLimitLayer::with_limiter(Global, limiter.clone()).name("downloads").layer(service_fn(answers));
    let mut held = Vec::new();
    for left in (0..5).rev() {
        let answer = service.call(Request::new((0, 1))).now().unwrap();
        let headers = answer.headers();
        assert_eq!(headers["ratelimit-policy"], r#""downloads";q=5;qu="concurrent-requests""#);
        assert_eq!(headers["ratelimit"], format!(r#""downloads";r={left}"#));
        held.push(answer);
    }
    let refused = service.call(Request::new((0, 1))).now().unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["ratelimit-policy"], r#""downloads";q=5;qu="concurrent-requests""#);
    assert_eq!(refused.headers()["ratelimit"], r#""downloads";r=0"#);
    assert!(!refused.headers().contains_key("retry-after"));
    // Nor beside a rate that knows when: it would be a promise.
    let rate = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)));
    assert!(rate.check(&()).is_allowed());
    let mut both = RateLimitLayer::with_limiter(Global, rate)
        .and(RateLimitLayer::with_limiter(Global, limiter))
        .layer(service_fn(answers));
    let refused = both.call(Request::new((0, 1))).now().unwrap();
    assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (429, false));
}

// ---- deadlines of gRPC calls ----

fn grpc(timeout: &str, content_type: &str) -> Asks {
    let request = Request::builder().header("grpc-timeout", timeout).header("content-type", content_type);
    request.body((0, 1)).unwrap()
}

#[test]
fn a_grpc_call_waits_no_longer_than_its_timeout() {
    let clock = ManualClock::new();
    let queue = limiter(LeakyBucket::new(Quota::per_second(10)).queue(50), &clock);
    let mut service = RateLimitLayer::with_limiter(Global, queue.clone()).layer(service_fn(answers));
    let mut call = |request| {
        let mut call = Hand::new(service.call(request));
        call.poll();
        call
    };
    assert!(!call(grpc("250m", "application/grpc")).is_pending());
    let _line = [(); 2].map(|()| {
        let call = call(grpc("250m", "application/grpc"));
        assert!(call.is_pending());
        call
    });
    // Its turn would be at 300 ms.
    for (timeout, content_type) in
        [("250m", "application/grpc"), ("299999u", "application/grpc+proto"), ("0S", "application/grpc-web")]
    {
        let refused = call(grpc(timeout, content_type)).output.expect("refused at once").unwrap();
        let headers = refused.headers();
        assert_eq!((refused.status().as_u16(), &headers["grpc-status"]), (200, &"8".parse().unwrap()));
        assert_eq!(headers["retry-after"], "1");
    }
    assert_eq!(queue.waiting(), 2);
    // It is true: at 50 ms the same call waits, and a nanosecond before it does not.
    clock.advance(MS * 50 - Duration::from_nanos(1));
    assert!(!call(grpc("250m", "application/grpc")).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert!(call(grpc("250m", "application/grpc")).is_pending());
    // What is no timeout, or not gRPC's, bounds nobody.
    for (timeout, content_type) in [
        ("1m", "application/json"),
        ("1m", "application/grpcx"),
        ("1", "application/grpc"),
        ("m", "application/grpc"),
        ("-1m", "application/grpc"),
        ("123456789n", "application/grpc"),
        ("1 m", "application/grpc"),
        ("99999999H", "application/grpc"),
    ] {
        assert!(call(grpc(timeout, content_type)).is_pending(), "{timeout} {content_type}");
    }
}

/// Nobody knows when it will be its turn: so it waits, as long as it may.
#[test]
fn a_grpc_call_that_waits_for_a_permit_is_refused_at_its_timeout() {
    let clock = ManualClock::new();
    let one = limiter(Concurrency::per_key(1).queue(5), &clock);
    let rate = limiter(TokenBucket::new(Quota::per_hour(9)), &clock);
    let mut services: [Box<dyn FnMut(Asks) -> Call>; 2] = [
        {
            let mut service = RateLimitLayer::with_limiter(Global, one.clone()).layer(service_fn(answers));
            Box::new(move |request| {
                let call = service.call(request);
                Box::pin(async move { kept_grpc(call.await) })
            })
        },
        {
            let layer = RateLimitLayer::with_limiter(Global, rate.clone())
                .and(RateLimitLayer::with_limiter(Global, one.clone()));
            let mut service = layer.layer(service_fn(answers));
            Box::new(move |request| {
                let call = service.call(request);
                Box::pin(async move { kept_grpc(call.await) })
            })
        },
    ];
    for service in &mut services {
        let held = one.permit(&()).unwrap();
        let mut call = Hand::new(service(grpc("250m", "application/grpc")));
        let mut patient = Hand::new(service(grpc("250m", "text/plain")));
        assert!(!call.poll() && !patient.poll());
        clock.advance(MS * 250 - Duration::from_nanos(1));
        assert!(!call.run());
        clock.advance(Duration::from_nanos(1));
        assert!(call.run() && call.output.take().unwrap().is_err());
        assert!(!patient.run());
        drop(held);
        assert!(patient.run() && patient.output.take().unwrap().is_ok());
        assert!(one.permit(&()).is_ok());
    }
    assert_eq!(rate.peek(&()).remaining(), 8, "the one refused was given its unit back");
}

fn kept_grpc<B: 'static>(answer: Result<Response<B>, Infallible>) -> Result<Holder, ()> {
    let Ok(response) = answer;
    if response.headers().contains_key("grpc-status") { Err(()) } else { Ok(Box::new(response)) }
}

// ---- what the service behind is told ----

#[test]
fn the_decision_in_a_requests_extensions_is_the_one_that_held_it_longest() {
    let clock = ManualClock::new();
    let fast = limiter(LeakyBucket::new(Quota::per_second(10)).queue(9), &clock);
    let slow = limiter(LeakyBucket::new(Quota::per_second(4)).queue(7), &clock);
    let bucket = limiter(TokenBucket::new(Quota::per_hour(3)), &clock);
    let told = |request: Asks| {
        let decision = *request.extensions().get::<Decision>().expect("it was limited");
        ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())).map(|mut response| {
            response.extensions_mut().insert(decision);
            response
        }))
    };
    let layer = RateLimitLayer::with_limiter(Global, fast)
        .and(RateLimitLayer::with_limiter(Global, slow.clone()))
        .and(RateLimitLayer::with_limiter(Global, bucket));
    let mut service = layer.layer(service_fn(told));
    let first = service.call(Request::new((0, 1))).now().unwrap();
    let decision = first.extensions().get::<Decision>().unwrap();
    // None was held: the nearest to exhaustion.
    assert_eq!((decision.delay(), decision.limit(), decision.remaining()), (Duration::ZERO, 3, 2));
    let mut second = Hand::new(service.call(Request::new((0, 1))));
    assert!(!second.poll());
    for _ in 0..25 {
        clock.advance(MS * 10);
        second.run();
    }
    let second = second.output.expect("it is its turn").unwrap();
    let decision = second.extensions().get::<Decision>().unwrap();
    assert_eq!((decision.delay(), decision.limit()), (MS * 250, 8));
}
