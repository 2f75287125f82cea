//! A second store, which is a task that owns a plain map and replies later. It is written with the public API only,
//! like a store in another crate.

mod calls;
mod layers;

use std::borrow::Cow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tower_throttle::algorithm::{Algorithm, SharedPermit};
use tower_throttle::clock::{AnyClock, Nanos};
use tower_throttle::store::{
    Acquired, Attempt, CheckStore, Denied, KeyedStore, MakeStore, Permit, ReleaseStore, ReplaceAlgorithm,
    Reservation, SettleStore, Store, StoreSettings,
};
use tower_throttle::{Decision, RateLimiter};

/// A factory of a [`TaskStore`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct InTask;

/// The error of a store whose task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// The handle of the task.
#[derive(Clone, Debug)]
pub(crate) struct TaskStore<A: Algorithm> {
    jobs: mpsc::UnboundedSender<Job<A>>,
    clock: AnyClock,
    initial: A,
    replaced: Arc<RwLock<Option<A>>>,
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

impl<A: Algorithm> MakeStore<A> for InTask {
    type Store = TaskStore<A>;
    type Error = Infallible;

    fn make_store(self, settings: StoreSettings<A>) -> Result<TaskStore<A>, Infallible> {
        let StoreSettings { algorithm, clock, .. } = settings;
        let (jobs, mut queue) = mpsc::unbounded_channel::<Job<A>>();
        let store =
            TaskStore { jobs, clock: clock.clone(), initial: algorithm.clone(), replaced: Arc::default() };
        let created_at = clock.now();
        let mut keys = Keys { algorithm, clock, created_at, states: HashMap::new() };
        tokio::spawn(async move {
            while let Some(job) = queue.recv().await {
                job(&mut keys);
            }
        });
        Ok(store)
    }
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
    fn charge(&mut self, call: Call<A>, jobs: &mpsc::UnboundedSender<Job<A>>) -> (Decision, Reservation) {
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
                        false => algorithm.charge_saturating(state, now, actual - cost),
                    });
                }));
                None
            })
        } else {
            Reservation::default()
        };
        (decision, reservation)
    }
}

impl<A: Algorithm> TaskStore<A> {
    /// Runs `f` in the task.
    fn run<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Keys<A>) -> R + Send + 'static,
    ) -> impl Future<Output = Result<R, Gone>> + Send + 'static {
        let (reply, result) = oneshot::channel();
        let sent = self.jobs.send(Box::new(move |keys| drop(reply.send(f(keys)))));
        async move {
            sent.map_err(|_| Gone)?;
            result.await.map_err(|_| Gone)
        }
    }

    /// Charges the call or denies it.
    fn try_call(&self, call: Call<A>) -> BoxFuture<Result<(Decision, Reservation), Gone>> {
        let jobs = self.jobs.clone();
        Box::pin(self.run(move |keys| keys.charge(call, &jobs)))
    }
}

impl<A: Algorithm> Call<A> {
    fn new(key: String, attempt: Attempt<'_, A>) -> Self {
        let settles = attempt.wants_reservation();
        Self { key, cost: attempt.cost(), tier: attempt.algorithm().cloned(), settles }
    }
}

impl<A: Algorithm> Store<A> for TaskStore<A> {
    type Key = String;
    type Error = Gone;
    type Wait = BoxFuture<Result<(Decision, Reservation), Gone>>;

    fn algorithm(&self) -> Cow<'_, A> {
        match &*self.replaced.read().unwrap_or_else(PoisonError::into_inner) {
            Some(algorithm) => Cow::Owned(algorithm.clone()),
            None => Cow::Borrowed(&self.initial),
        }
    }

    /// A call that waits tries again at the time at which the task says that the call would be admitted. The calls have
    /// no order.
    fn acquire(&self, key: String, attempt: Attempt<'_, A>) -> Acquired<Self::Wait> {
        let holds_requests = self.algorithm().queue_config().is_some_and(|queue| queue.holds_requests());
        let may_wait = attempt.may_wait() || holds_requests;
        let (store, call) = (self.clone(), Call::new(key, attempt));
        let mut left = attempt.max_wait().unwrap_or(Duration::MAX);
        Acquired::Pending(Box::pin(async move {
            loop {
                let (decision, reservation) = store.try_call(call.clone()).await?;
                match decision.retry_after().filter(|wait| may_wait && *wait <= left) {
                    Some(wait) => {
                        store.clock.sleep_until(store.clock.now().saturating_add(nanos(wait))).await;
                        left -= wait;
                    }
                    None => return Ok((decision, reservation)),
                }
            }
        }))
    }
}

impl<A: Algorithm, K: ToString + ?Sized> KeyedStore<A, K> for TaskStore<A> {
    fn key(&self, key: &K) -> String {
        key.to_string()
    }
}

impl<A: Algorithm> CheckStore<A> for TaskStore<A> {
    type Reply<T: Send + 'static> = BoxFuture<Result<T, Gone>>;
    type Output<T> = Result<T, Gone>;

    fn output<T>(result: Result<T, Gone>) -> Result<T, Gone> {
        result
    }

    fn check(&self, key: String, attempt: Attempt<'_, A>) -> Self::Reply<Decision> {
        let call = self.try_call(Call::new(key, attempt));
        Box::pin(async move {
            let (decision, reservation) = call.await?;
            reservation.forget();
            Ok(decision)
        })
    }

    fn try_acquire_permit(
        &self,
        key: String,
        attempt: Attempt<'_, A>,
    ) -> Self::Reply<Result<Permit, Denied>> {
        let call = self.try_call(Call::new(key, attempt));
        Box::pin(async move {
            let (decision, reservation) = call.await?;
            Ok(Permit::decided(decision, reservation))
        })
    }

    fn peek(&self, key: String, attempt: Attempt<'_, A>) -> Self::Reply<Decision> {
        let call = Call::new(key, attempt);
        Box::pin(
            self.run(move |keys| {
                keys.with(&call, |algorithm, state, now| algorithm.peek(state, now, call.cost))
            }),
        )
    }

    fn refund(&self, key: String, cost: u64) -> Self::Reply<()> {
        let call = Call::new(key, Attempt::new(cost));
        Box::pin(self.run(move |keys| {
            keys.with(&call, |algorithm, state, now| algorithm.refund(state, now, cost, None));
        }))
    }

    fn reset(&self, key: String) -> Self::Reply<()> {
        Box::pin(self.run(move |keys| drop(keys.states.remove(&key))))
    }
}

impl<A: Algorithm> ReleaseStore<A> for TaskStore<A> {
    fn release(&self, key: String, attempt: Attempt<'_, A>) -> Self::Reply<()> {
        let call = Call::new(key, attempt);
        Box::pin(self.run(move |keys| {
            keys.with(&call, |algorithm, state, now| {
                let cost = call.cost.min(algorithm.in_flight(state));
                algorithm.release(state, now, cost);
                drop(SharedPermit::of_admitted(algorithm, cost));
            });
        }))
    }
}

impl<A: Algorithm> SettleStore<A> for TaskStore<A> {}

impl<A: Algorithm> ReplaceAlgorithm<A> for TaskStore<A> {
    fn replace(&self, algorithm: A) {
        *self.replaced.write().unwrap_or_else(PoisonError::into_inner) = Some(algorithm.clone());
        let replace = move |keys: &mut Keys<A>| {
            let now = keys.clock.now();
            keys.states.values_mut().for_each(|state| algorithm.migrate(state, &keys.algorithm, now));
            keys.algorithm = algorithm;
        };
        let _ = self.jobs.send(Box::new(replace));
    }
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task of the store has ended")
    }
}

impl std::error::Error for Gone {}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn limiter<A: Algorithm>(algorithm: A) -> RateLimiter<A, TaskStore<A>> {
    let built = RateLimiter::builder(algorithm).store(InTask).build();
    built.unwrap_or_else(|never| match never {})
}
