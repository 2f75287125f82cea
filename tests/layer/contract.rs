//! The contract of stores, run against the store in memory, a store that replies later, and broken stores.

use std::borrow::Cow;
use std::convert::Infallible;

use tower_throttle::Decision;
use tower_throttle::algorithm::Algorithm;
use tower_throttle::error::BoxError;
use tower_throttle::store::{
    Acquired, Attempt, CheckStore, Denied, KeyedStore, MakeStore, Permit, ReplaceAlgorithm, Reservation,
    SettleStore, Store, StoreSettings,
};
use tower_throttle::test_util::{Contract, InMemory, TestedStore};

use crate::task_store::{BoxFuture, Gone, InTask, TaskStore};

#[tokio::test(start_paused = true)]
async fn the_store_in_memory_keeps_the_contract() {
    let report = Contract::new(InMemory).run().await;
    report.assert_passed();
    assert!(report.passed().len() >= 40, "{report}");
}

#[tokio::test]
async fn the_store_in_memory_keeps_the_contract_in_real_time() {
    Contract::new(InMemory).run().await.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_later_keeps_the_contract() {
    Contract::new(MakeBroken(Fault::None)).run().await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_answers_later_keeps_the_contract_in_real_time() {
    Contract::new(MakeBroken(Fault::None)).run().await.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn names_are_unique_and_can_be_chosen() {
    let contract = Contract::new(InMemory);
    let mut names = contract.names();
    let report = contract.run_if(|name| name == "a_denial_charges_nothing").await;
    assert_eq!(report.passed(), ["a_denial_charges_nothing"]);
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// The fault of a store.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    IgnoresCase,
    ChargesDenials,
    ChargesPeeks,
    ReadsAndThenWrites,
    RefundsTwice,
    DoesNotRefund,
    DoesNotReset,
    DoesNotSettle,
    DoesNotReplace,
    DoesNotWait,
    ChargesTwice,
    ChargesOnlyOne,
    WaitsTooShort,
}

#[derive(Clone, Copy)]
struct MakeBroken(Fault);

#[derive(Clone)]
struct Broken<A: Algorithm>(TaskStore<A>, Fault);

#[tokio::test(start_paused = true)]
async fn each_fault_of_a_store_is_found() {
    for (fault, case) in [
        (Fault::IgnoresCase, "similar_keys_do_not_share_units"),
        (Fault::ChargesDenials, "a_denial_charges_nothing"),
        (Fault::ChargesPeeks, "a_peek_charges_nothing"),
        (Fault::ReadsAndThenWrites, "concurrent_calls_on_a_bucket_admit_its_burst"),
        (Fault::RefundsTwice, "a_refund_returns_units"),
        (Fault::DoesNotRefund, "a_refund_returns_units"),
        (Fault::DoesNotReset, "a_reset_makes_a_key_fresh"),
        (Fault::DoesNotSettle, "settling_lower_returns_the_difference"),
        (Fault::DoesNotReplace, "a_replaced_algorithm_is_reported"),
        (Fault::DoesNotWait, "acquire_waits_until_units_are_available"),
        (Fault::ChargesTwice, "remaining_counts_down"),
        (Fault::ChargesOnlyOne, "a_cost_is_charged_all_or_none"),
        (Fault::WaitsTooShort, "a_bucket_releases_waiting_calls_at_its_rate"),
    ] {
        let report = Contract::new(MakeBroken(fault)).run().await;
        let found = report.failed().iter().any(|(name, _)| *name == case);
        assert!(found, "{fault:?} is not found by {case}: {report}");
    }
}

impl<A: Algorithm> MakeStore<A> for MakeBroken {
    type Store = Broken<A>;
    type Error = Infallible;

    fn make_store(self, settings: StoreSettings<A>) -> Result<Broken<A>, Infallible> {
        InTask.make_store(settings).map(|store| Broken(store, self.0))
    }
}

impl<A: Algorithm> Store<A> for Broken<A> {
    type Key = String;
    type Error = Gone;
    type Wait = BoxFuture<Result<(Decision, Reservation), Gone>>;

    fn algorithm(&self) -> Cow<'_, A> {
        self.0.algorithm()
    }

    fn acquire(&self, key: String, attempt: Attempt<'_, A>) -> Acquired<Self::Wait> {
        let attempt = match self.1 {
            Fault::DoesNotWait => Attempt::new(attempt.cost()),
            Fault::ChargesTwice => Attempt::new(attempt.cost().saturating_mul(2)),
            _ => attempt,
        };
        let Acquired::Pending(wait) = self.0.acquire(key.clone(), attempt) else { unreachable!() };
        match self.1 {
            Fault::DoesNotSettle => Acquired::Pending(Box::pin(async {
                let (decision, _) = wait.await?;
                Ok((decision, Reservation::default()))
            })),
            // All waiters are admitted when the first may be admitted, and nothing is charged.
            Fault::WaitsTooShort if attempt.may_wait() => {
                let peek = self.0.peek(key, Attempt::new(attempt.cost()));
                Acquired::Pending(Box::pin(async {
                    let decision = peek.await?;
                    tokio::time::sleep(decision.retry_after().unwrap_or_default()).await;
                    drop(wait);
                    Ok((decision, Reservation::default()))
                }))
            }
            _ => Acquired::Pending(wait),
        }
    }
}

impl<A: Algorithm, K: ToString + ?Sized> KeyedStore<A, K> for Broken<A> {
    fn key(&self, key: &K) -> String {
        let key = key.to_string();
        if let Fault::IgnoresCase = self.1 { key.to_lowercase() } else { key }
    }
}

impl<A: Algorithm> CheckStore<A> for Broken<A> {
    type Reply<T: Send + 'static> = BoxFuture<Result<T, Gone>>;
    type Output<T> = Result<T, Gone>;

    fn output<T>(result: Result<T, Gone>) -> Result<T, Gone> {
        result
    }

    fn check(&self, key: String, attempt: Attempt<'_, A>) -> Self::Reply<Decision> {
        let (store, tier, cost) = (self.0.clone(), attempt.algorithm(), attempt.cost());
        let attempt = move |cost| match tier {
            Some(tier) => Attempt::new(cost).with_algorithm(tier),
            None => Attempt::new(cost),
        };
        match self.1 {
            Fault::ChargesTwice => store.check(key, attempt(cost.saturating_mul(2))),
            Fault::ChargesOnlyOne => store.check(key, attempt(cost.min(1))),
            Fault::ChargesDenials => {
                let (all, one) = (store.check(key.clone(), attempt(cost)), store.check(key, attempt(1)));
                Box::pin(async {
                    let decision = all.await?;
                    if !decision.is_allowed() {
                        let _ = one.await?;
                    }
                    Ok(decision)
                })
            }
            Fault::ReadsAndThenWrites => {
                let peek = store.peek(key.clone(), attempt(cost));
                Box::pin(async move {
                    let decision = peek.await?;
                    if decision.is_allowed() {
                        tokio::task::yield_now().await;
                        let _ = store.check(key, Attempt::new(cost)).await?;
                    }
                    Ok(decision)
                })
            }
            _ => store.check(key, attempt(cost)),
        }
    }

    fn try_acquire_permit(
        &self,
        key: String,
        attempt: Attempt<'_, A>,
    ) -> Self::Reply<Result<Permit, Denied>> {
        self.0.try_acquire_permit(key, attempt)
    }

    fn peek(&self, key: String, attempt: Attempt<'_, A>) -> Self::Reply<Decision> {
        if let Fault::ChargesPeeks = self.1 { self.0.check(key, attempt) } else { self.0.peek(key, attempt) }
    }

    fn refund(&self, key: String, cost: u64) -> Self::Reply<()> {
        match self.1 {
            Fault::DoesNotRefund => Box::pin(async { Ok(()) }),
            Fault::RefundsTwice => self.0.refund(key, cost.saturating_mul(2)),
            _ => self.0.refund(key, cost),
        }
    }

    fn reset(&self, key: String) -> Self::Reply<()> {
        if let Fault::DoesNotReset = self.1 { Box::pin(async { Ok(()) }) } else { self.0.reset(key) }
    }
}

impl<A: Algorithm> SettleStore<A> for Broken<A> {}

impl<A: Algorithm> ReplaceAlgorithm<A> for Broken<A> {
    fn replace(&self, algorithm: A) {
        if !matches!(self.1, Fault::DoesNotReplace) {
            self.0.replace(algorithm);
        }
    }
}

impl<A: Algorithm> TestedStore<A> for Broken<A> {
    async fn reply<T: Send + 'static>(reply: Self::Reply<T>) -> Result<T, BoxError> {
        Ok(reply.await?)
    }

    fn result<T>(output: Self::Output<T>) -> Result<T, BoxError> {
        Ok(output?)
    }
}
