//! The contract of limiters, run against the limiter in memory, a limiter that replies later, and broken limiters.

use std::future::Future;
use std::sync::Arc;

use tower_throttle::Decision;
use tower_throttle::algorithm::{Algorithm, AlgorithmInfo};
use tower_throttle::error::BoxError;
use tower_throttle::limiter::{
    Acquired, Attempt, Decided, Limiter, LimiterFor, Reservation, Settles, SharedKey,
};
use tower_throttle::stats::LimiterStats;
use tower_throttle_contract::{Contract, InMemory, MakeLimiter, TestedLimiter};

use crate::support::own_limiter::{BoxFuture, Down, OwnLimiter, text};

#[tokio::test(start_paused = true)]
async fn the_limiter_in_memory_keeps_the_contract() {
    let report = Contract::new(InMemory).run().await;
    report.assert_passed();
    assert!(report.passed().len() >= 75, "{report}");
    let report = Contract::of_permits(InMemory).run().await;
    report.assert_passed();
    assert!(report.passed().len() >= 20, "{report}");
}

#[tokio::test]
async fn the_limiter_in_memory_keeps_the_contract_in_real_time() {
    Contract::new(InMemory).run().await.assert_passed();
    Contract::of_permits(InMemory).run().await.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn a_limiter_that_answers_later_keeps_the_contract() {
    Contract::new(MakeBroken(Fault::None)).run().await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limiter_that_answers_later_keeps_the_contract_in_real_time() {
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

/// The fault of a limiter.
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
    HidesTheGeneration,
    DoesNotWait,
    ChargesTwice,
    ChargesOnlyOne,
    WaitsTooShort,
    RoundsWaits,
}

#[derive(Clone, Copy)]
struct MakeBroken(Fault);

#[derive(Clone)]
struct Broken<A: Algorithm>(OwnLimiter<A>, Fault);

#[tokio::test(start_paused = true)]
async fn each_fault_of_a_limiter_is_found() {
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
        (Fault::HidesTheGeneration, "a_replacement_changes_the_generation"),
        (Fault::DoesNotWait, "acquire_waits_until_units_are_available"),
        (Fault::ChargesTwice, "remaining_counts_down"),
        (Fault::ChargesOnlyOne, "a_cost_is_charged_all_or_none"),
        (Fault::WaitsTooShort, "a_bucket_admits_waiting_calls_at_its_rate"),
        (Fault::RoundsWaits, "retry_after_of_a_token_bucket_is_true"),
    ] {
        let report = Contract::new(MakeBroken(fault)).run().await;
        let found = report.failed().iter().any(|(name, _)| *name == case);
        assert!(found, "{fault:?} is not found by {case}: {report}");
    }
}

impl<A: Algorithm> MakeLimiter<A> for MakeBroken {
    type Limiter = Broken<A>;

    fn make(&self, _: &str, algorithm: A) -> Result<Broken<A>, BoxError> {
        Ok(Broken(OwnLimiter::new(algorithm), self.0))
    }
}

impl<A: Algorithm> Limiter for Broken<A> {
    type Algorithm = A;
    type Error = Down;
    type Wait = BoxFuture<Result<Decided, Down>>;

    fn info(&self) -> Arc<AlgorithmInfo> {
        self.0.info()
    }

    fn generation(&self) -> u64 {
        if let Fault::HidesTheGeneration = self.1 { 0 } else { self.0.generation() }
    }

    fn stats(&self) -> LimiterStats {
        self.0.stats()
    }

    fn close(&self) {
        self.0.close();
    }
}

impl<A: Algorithm> Broken<A> {
    fn key(&self, key: &(impl SharedKey + ?Sized)) -> String {
        let key = text(key);
        if let Fault::IgnoresCase = self.1 { key.to_lowercase() } else { key }
    }
}

impl<A: Algorithm, K: SharedKey + ?Sized> LimiterFor<K> for Broken<A> {
    fn acquire(&self, key: &K, attempt: Attempt<'_, A>) -> Acquired<Self::Wait> {
        let key = self.key(key);
        let attempt = match self.1 {
            Fault::DoesNotWait => Attempt::new(attempt.cost()),
            Fault::ChargesTwice => Attempt::new(attempt.cost().saturating_mul(2)),
            _ => attempt,
        };
        let Acquired::Pending(wait) = self.0.acquire(&key, attempt) else { unreachable!() };
        match self.1 {
            Fault::DoesNotSettle => Acquired::Pending(Box::pin(async {
                Ok(Decided::new(*wait.await?.decision(), Reservation::default()))
            })),
            // All waiters are admitted when the first may be admitted, and nothing is charged.
            Fault::WaitsTooShort if attempt.may_wait() => {
                let peek = self.0.peek(&key, Attempt::new(attempt.cost()));
                Acquired::Pending(Box::pin(async {
                    let decision = peek.await?;
                    tokio::time::sleep(decision.retry_after().unwrap_or_default()).await;
                    drop(wait);
                    Ok(Decided::new(decision, Reservation::default()))
                }))
            }
            _ => Acquired::Pending(wait),
        }
    }
}

impl<A: Algorithm> Settles for Broken<A> {}

impl<A: Algorithm> TestedLimiter for Broken<A> {
    fn check(&self, key: &str, cost: u64) -> impl Future<Output = Result<Decision, BoxError>> + Send {
        let (limiter, key, attempt) = (self.0.clone(), self.key(key), Attempt::new);
        let decision: BoxFuture<Result<Decision, Down>> = match self.1 {
            Fault::ChargesTwice => limiter.check(&key, attempt(cost.saturating_mul(2))),
            Fault::ChargesOnlyOne => limiter.check(&key, attempt(cost.min(1))),
            Fault::ChargesDenials => {
                let (all, one) = (limiter.check(&key, attempt(cost)), limiter.check(&key, attempt(1)));
                Box::pin(async {
                    let decision = all.await?;
                    if !decision.is_allowed() {
                        let _ = one.await?;
                    }
                    Ok(decision)
                })
            }
            // It counts the time in tenths of a second.
            Fault::RoundsWaits => {
                let check = limiter.check(&key, attempt(cost));
                Box::pin(async {
                    let decision = check.await?;
                    let wait = decision.retry_after().map(|wait| wait.as_millis().div_ceil(100) as u64);
                    Ok(decision.with_retry_after(wait.map(|tenths| tenths * 100_000_000)))
                })
            }
            Fault::ReadsAndThenWrites => {
                let peek = limiter.peek(&key, attempt(cost));
                Box::pin(async move {
                    let decision = peek.await?;
                    if decision.is_allowed() {
                        tokio::task::yield_now().await;
                        let _ = limiter.check(&key, Attempt::new(cost)).await?;
                    }
                    Ok(decision)
                })
            }
            _ => limiter.check(&key, attempt(cost)),
        };
        async { Ok(decision.await?) }
    }

    fn peek(&self, key: &str, cost: u64) -> impl Future<Output = Result<Decision, BoxError>> + Send {
        let (key, attempt) = (self.key(key), Attempt::new(cost));
        let decision = match self.1 {
            Fault::ChargesPeeks => self.0.check(&key, attempt),
            _ => self.0.peek(&key, attempt),
        };
        async { Ok(decision.await?) }
    }

    async fn refund(&self, key: &str, cost: u64) -> Result<(), BoxError> {
        let key = self.key(key);
        match self.1 {
            Fault::DoesNotRefund => {}
            Fault::RefundsTwice => self.0.refund(&key, cost.saturating_mul(2)).await?,
            _ => self.0.refund(&key, cost).await?,
        }
        Ok(())
    }

    async fn reset(&self, key: &str) -> Result<(), BoxError> {
        if !matches!(self.1, Fault::DoesNotReset) {
            self.0.reset(&self.key(key)).await?;
        }
        Ok(())
    }

    fn replace(&self, algorithm: A) {
        if !matches!(self.1, Fault::DoesNotReplace) {
            self.0.replace(algorithm);
        }
    }
}
