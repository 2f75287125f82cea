//! The contract of limiters of the calls in progress, run against broken ones.

use std::convert::Infallible;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};
use tokio::time::sleep;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::{AlgorithmInfo, Concurrency};
use tower_throttle::error::BoxError;
use tower_throttle::limiter::{
    Acquired, Attempt, Decided, FairLimiter, Limiter, LimiterFor, MemoryKey, Reservation,
};
use tower_throttle::stats::LimiterStats;
use tower_throttle_contract::{Contract, MakePermits};

/// Makes limiters that share a total.
#[derive(Clone, Copy)]
struct MakeFair;

impl MakePermits for MakeFair {
    type Limiter = FairLimiter;

    fn make(&self, name: &str, limit: u64) -> Result<FairLimiter, BoxError> {
        Ok(FairLimiter::builder(Concurrency::per_key(limit).total(50)).name(name).build())
    }
}

#[tokio::test(start_paused = true)]
async fn a_fair_limiter_keeps_the_contract() {
    let report = Contract::of_permits(MakeFair).run().await;
    report.assert_passed();
    assert!(report.passed().len() >= 20, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fair_limiter_keeps_the_contract_in_real_time() {
    Contract::of_permits(MakeFair).run().await.assert_passed();
}

/// The fault of a limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    HoldsNothing,
    NeverReleases,
    ReleasesOnlyOnce,
    TakesOneForAnyCost,
    HasOneKey,
    DoesNotWait,
    WaitsForEver,
    KeepsThePermitsOfDroppedWaits,
    KeepsThePermitsOfLateDrops,
    NeverCloses,
    /// Not a fault: it makes one decision after another, and each takes 5 ms.
    IsSlow,
}

#[derive(Clone, Copy)]
struct MakeBroken(Fault);

#[derive(Clone)]
struct Broken(RateLimiter<Concurrency>, Fault, Arc<Mutex<()>>);

#[tokio::test(start_paused = true)]
async fn each_fault_of_a_limiter_of_the_calls_in_progress_is_found() {
    Contract::of_permits(MakeBroken(Fault::None)).run().await.assert_passed();
    Contract::of_permits(MakeBroken(Fault::IsSlow)).run().await.assert_passed();
    for (fault, case) in [
        (Fault::HoldsNothing, "a_key_has_as_many_permits_as_the_limit"),
        (Fault::NeverReleases, "a_released_permit_can_be_taken_again"),
        (Fault::ReleasesOnlyOnce, "a_cost_takes_as_many_permits_or_none"),
        (Fault::TakesOneForAnyCost, "a_cost_takes_as_many_permits_or_none"),
        (Fault::HasOneKey, "keys_do_not_share_permits"),
        (Fault::DoesNotWait, "a_waiting_call_gets_the_permit_that_is_released"),
        (Fault::WaitsForEver, "a_waiting_call_is_denied_after_its_maximum_wait"),
        (Fault::KeepsThePermitsOfDroppedWaits, "a_wait_that_is_dropped_takes_no_permit"),
        (Fault::KeepsThePermitsOfLateDrops, "a_wait_that_is_dropped_late_takes_no_permit"),
        (Fault::NeverCloses, "a_closed_limiter_gives_no_permits"),
    ] {
        let report = Contract::of_permits(MakeBroken(fault)).run().await;
        let found = report.failed().iter().any(|(name, _)| *name == case);
        assert!(found, "{fault:?} is not found by {case}: {report}");
    }
}

impl MakePermits for MakeBroken {
    type Limiter = Broken;

    fn make(&self, _: &str, limit: u64) -> Result<Broken, BoxError> {
        Ok(Broken(RateLimiter::new(Concurrency::per_key(limit)), self.0, Arc::default()))
    }
}

impl Limiter for Broken {
    type Algorithm = Concurrency;
    type Error = Infallible;
    type Wait = Pin<Box<dyn Future<Output = Result<Decided, Infallible>> + Send>>;

    fn info(&self) -> Arc<AlgorithmInfo> {
        self.0.info()
    }

    fn stats(&self) -> LimiterStats {
        self.0.stats()
    }

    fn close(&self) {
        if self.1 != Fault::NeverCloses {
            self.0.close();
        }
    }
}

impl Broken {
    fn held(fault: Fault, cost: u64, reservation: Reservation) -> Reservation {
        match fault {
            _ if reservation.is_empty() => reservation,
            Fault::HoldsNothing => Reservation::default(),
            Fault::NeverReleases => Reservation::on_release(move || mem::forget(reservation)),
            Fault::ReleasesOnlyOnce if cost > 1 => Reservation::on_release(move || mem::forget(reservation)),
            _ => reservation,
        }
    }
}

impl<K: MemoryKey + ?Sized> LimiterFor<K> for Broken {
    fn acquire(&self, key: &K, attempt: Attempt<'_, Concurrency>) -> Acquired<Self::Wait> {
        let (fault, cost) = (self.1, attempt.cost());
        let attempt = match fault {
            Fault::TakesOneForAnyCost => Attempt::new(cost.min(1)),
            Fault::DoesNotWait => Attempt::new(cost),
            Fault::WaitsForEver if attempt.may_wait() => Attempt::new(cost).wait(),
            _ => attempt,
        };
        let acquired = match fault {
            Fault::HasOneKey => LimiterFor::<str>::acquire(&self.0, "all", attempt),
            _ => LimiterFor::<K>::acquire(&self.0, key, attempt),
        };
        match acquired {
            _ if fault == Fault::IsSlow => {
                let turn = Arc::clone(&self.2);
                Acquired::Pending(Box::pin(async move {
                    let decided = match acquired {
                        Acquired::Ready(decision, reservation) => Decided::new(decision, reservation),
                        Acquired::Pending(wait) => wait.await?,
                    };
                    let _turn = turn.lock().await;
                    sleep(Duration::from_millis(5)).await;
                    Ok(decided)
                }))
            }
            Acquired::Ready(decision, reservation) => {
                Acquired::Ready(decision, Self::held(fault, cost, reservation))
            }
            Acquired::Pending(wait)
                if matches!(
                    fault,
                    Fault::KeepsThePermitsOfDroppedWaits | Fault::KeepsThePermitsOfLateDrops
                ) =>
            {
                let (sender, later) = oneshot::channel();
                tokio::spawn(async move {
                    let unwanted = sender.send(wait.await);
                    if fault == Fault::KeepsThePermitsOfDroppedWaits {
                        mem::forget(unwanted);
                    }
                });
                Acquired::Pending(Box::pin(Later(later)))
            }
            Acquired::Pending(wait) => Acquired::Pending(Box::pin(wait)),
        }
    }
}

type Decision = Result<Decided, Infallible>;

/// The future of a decision. If it is dropped when the decision is made, the permit stays taken.
struct Later(oneshot::Receiver<Decision>);

impl Future for Later {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        Pin::new(&mut self.0).poll(cx).map(Result::unwrap)
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        mem::forget(self.0.try_recv());
    }
}
