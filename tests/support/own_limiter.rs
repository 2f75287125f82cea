//! A limiter of one's own, written with the public API only, like a limiter in another crate.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, AlgorithmInfo, MAX_DEBT, SharedPermit};
use tower_throttle::clock::{AnyClock, Nanos};
use tower_throttle::limiter::{
    Acquired, Attempt, Decided, KeyText, Limiter, LimiterFor, Reservation, Settles, SharedKey,
};
use tower_throttle::stats::LimiterStats;

/// The error of a limiter that is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Down;

/// A limiter whose states are in a plain map, which a task owns, so that the limiter replies later. Its keys are texts.
/// Clones share the states.
#[derive(Clone, Debug)]
pub(crate) struct OwnLimiter<A: Algorithm> {
    jobs: mpsc::UnboundedSender<Job<A>>,
    clock: AnyClock,
    info: Arc<RwLock<Arc<AlgorithmInfo>>>,
    generation: Arc<AtomicU64>,
    /// The time for which each call travels to the task.
    latency: Duration,
    is_down: Arc<AtomicBool>,
}

type Job<A> = Box<dyn FnOnce(&mut Keys<A>) + Send>;
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The state of all keys, owned by the task.
struct Keys<A: Algorithm> {
    algorithm: A,
    clock: AnyClock,
    created_at: Nanos,
    states: HashMap<String, A::State>,
}

/// The parts of an [`Attempt`] that are sent to the task.
#[derive(Clone)]
struct Call<A> {
    key: String,
    cost: u64,
    tier: Option<A>,
    settles: bool,
}

impl<A: Algorithm> Keys<A> {
    fn with<R>(&mut self, call: &Call<A>, f: impl FnOnce(&A, &mut A::State, Nanos) -> R) -> R {
        let now = self.clock.now();
        let algorithm = call.tier.as_ref().unwrap_or(&self.algorithm);
        let new_state = || algorithm.new_state(self.created_at, now);
        let state = self.states.entry(call.key.clone()).or_insert_with(new_state);
        f(algorithm, state, now)
    }

    /// Charges the call or denies it. If the caller no longer waits for the reply, releases what the call holds.
    fn charge(&mut self, call: Call<A>, jobs: &mpsc::UnboundedSender<Job<A>>) -> Decided {
        let (decision, algorithm, charged_at) = self.with(&call, |algorithm, state, now| {
            let decision = algorithm.check(state, now, call.cost);
            (decision, algorithm.clone(), algorithm.last_update(state))
        });
        let (jobs, cost) = (jobs.clone(), call.cost);
        let reservation = if !decision.is_allowed() {
            Reservation::default()
        } else if A::NEEDS_RELEASE && cost > 0 {
            Reservation::on_release(move || {
                drop(SharedPermit::of_admitted(&algorithm, cost));
                let _ = jobs.send(Box::new(move |keys| {
                    keys.with(&call, |algorithm, state, now| algorithm.release(state, now, cost));
                }));
            })
        } else if call.settles {
            Reservation::on_settle(move |actual| {
                let _ = jobs.send(Box::new(move |keys| {
                    keys.with(&call, |algorithm, state, now| match actual < cost {
                        true => algorithm.refund(state, now, cost - actual, Some(charged_at)),
                        false => _ = algorithm.charge(state, now, actual - cost, MAX_DEBT),
                    });
                }));
                None
            })
        } else {
            Reservation::default()
        };
        Decided::new(decision, reservation)
    }
}

impl<A: Algorithm> OwnLimiter<A> {
    /// Creates a limiter with tokio's clock. Must be called in a runtime, which then runs the task.
    pub(crate) fn new(algorithm: A) -> Self {
        let (jobs, mut queue) = mpsc::unbounded_channel::<Job<A>>();
        let (clock, info) = (AnyClock::default(), Arc::new(RwLock::new(AlgorithmInfo::of(&algorithm))));
        let (generation, latency, is_down) = (Arc::default(), Duration::ZERO, Arc::default());
        let limiter = Self { jobs, clock: clock.clone(), info, generation, latency, is_down };
        let created_at = clock.now();
        let mut keys = Keys { algorithm, clock, created_at, states: HashMap::new() };
        tokio::spawn(async move {
            while let Some(job) = queue.recv().await {
                job(&mut keys);
            }
        });
        limiter
    }

    /// Sets the time for which each call travels to the task. A call that is cancelled before never arrives.
    pub(crate) fn latency(self, latency: Duration) -> Self {
        Self { latency, ..self }
    }

    /// Sets whether the limiter is down. All its calls then fail.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    /// Runs `f` in the task, once the future was polled.
    fn run<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Keys<A>) -> R + Send + 'static,
    ) -> BoxFuture<Result<R, Down>> {
        let (limiter, (reply, result)) = (self.clone(), oneshot::channel());
        Box::pin(async move {
            if !limiter.latency.is_zero() {
                sleep(limiter.latency).await;
            }
            if limiter.is_down.load(Ordering::SeqCst) {
                return Err(Down);
            }
            let job: Job<A> = Box::new(move |keys| drop(reply.send(f(keys))));
            limiter.jobs.send(job).map_err(|_| Down)?;
            result.await.map_err(|_| Down)
        })
    }

    /// Charges the call or denies it.
    fn try_call(&self, call: Call<A>) -> BoxFuture<Result<Decided, Down>> {
        let jobs = self.jobs.clone();
        self.run(move |keys| keys.charge(call, &jobs))
    }

    /// Charges the call or denies it. A call in progress ends at once.
    pub(crate) fn check(&self, key: &str, attempt: Attempt<'_, A>) -> BoxFuture<Result<Decision, Down>> {
        let call = self.try_call(Call::new(key, attempt));
        Box::pin(async move { Ok(*call.await?.decision()) })
    }

    pub(crate) fn peek(
        &self,
        key: &(impl SharedKey + ?Sized),
        attempt: Attempt<'_, A>,
    ) -> BoxFuture<Result<Decision, Down>> {
        let call = Call::new(key, attempt);
        self.run(move |keys| keys.with(&call, |algorithm, state, now| algorithm.peek(state, now, call.cost)))
    }

    pub(crate) fn refund(&self, key: &str, cost: u64) -> BoxFuture<Result<(), Down>> {
        let call = Call::new(key, Attempt::new(cost));
        self.run(move |keys| {
            keys.with(&call, |algorithm, state, now| algorithm.refund(state, now, cost, None));
        })
    }

    pub(crate) fn reset(&self, key: &str) -> BoxFuture<Result<(), Down>> {
        let key = text(key);
        self.run(move |keys| drop(keys.states.remove(&key)))
    }

    pub(crate) fn replace(&self, algorithm: A) {
        // While the lock is held, no other algorithm is sent to the task.
        let mut current = self.info.write().unwrap();
        let info = current.replaced_by(&algorithm);
        let generation = info.generation();
        *current = info;
        let _ = self.jobs.send(Box::new(move |keys| {
            let now = keys.clock.now();
            keys.states.values_mut().for_each(|state| algorithm.migrate(state, &keys.algorithm, now));
            keys.algorithm = algorithm;
        }));
        self.generation.store(generation, Ordering::Release);
    }
}

impl<A: Algorithm> Call<A> {
    fn new(key: &(impl SharedKey + ?Sized), attempt: Attempt<'_, A>) -> Self {
        let (key, settles) = (text(key), attempt.wants_reservation());
        Self { key, cost: attempt.cost(), tier: attempt.algorithm().cloned(), settles }
    }
}

impl<A: Algorithm> Limiter for OwnLimiter<A> {
    type Algorithm = A;
    type Error = Down;
    type Wait = BoxFuture<Result<Decided, Down>>;

    fn info(&self) -> Arc<AlgorithmInfo> {
        Arc::clone(&self.info.read().unwrap())
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn stats(&self) -> LimiterStats {
        LimiterStats::default()
    }

    fn close(&self) {}
}

impl<A: Algorithm, K: SharedKey + ?Sized> LimiterFor<K> for OwnLimiter<A> {
    /// A call that waits tries again at the time at which the task says that the call would be admitted. The calls have
    /// no order.
    fn acquire(&self, key: &K, attempt: Attempt<'_, A>) -> Acquired<Self::Wait> {
        let may_wait = attempt.may_wait() || self.info().holds_requests();
        let (limiter, call) = (self.clone(), Call::new(key, attempt));
        let mut left = attempt.max_wait().unwrap_or(Duration::MAX);
        Acquired::Pending(Box::pin(async move {
            loop {
                let decided = limiter.try_call(call.clone()).await?;
                match decided.decision().retry_after().filter(|wait| may_wait && *wait <= left) {
                    Some(wait) => {
                        limiter.clock.sleep_until(limiter.clock.now().saturating_add(nanos(wait))).await;
                        left -= wait;
                    }
                    None => return Ok(decided),
                }
            }
        }))
    }
}

impl<A: Algorithm> Settles for OwnLimiter<A> {}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection refused by 192.0.2.1")
    }
}

impl std::error::Error for Down {}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the text of a key.
pub(crate) fn text(key: &(impl SharedKey + ?Sized)) -> String {
    KeyText::new("own").of(key)
}
