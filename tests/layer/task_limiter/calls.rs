//! Tests of the calls of this limiter.

use super::*;

use tokio::time::Instant;
use tower_throttle::Quota;
use tower_throttle::algorithm::{Concurrency, FixedWindow, SlidingWindow, Tiered, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::limiter::{Denied, Permit};

use crate::support::PolledByHand;

const MS: Duration = Duration::from_millis(1);

fn cost<A: Algorithm>(cost: u64) -> Attempt<'static, A> {
    Attempt::new(cost)
}

/// Makes a call that may wait.
fn acquire<A: Algorithm>(
    limiter: &TaskLimiter<A>,
    key: &str,
    attempt: Attempt<'_, A>,
) -> BoxFuture<Result<Decided, Gone>> {
    let Acquired::Pending(wait) = limiter.acquire(key, attempt.wait()) else { unreachable!() };
    wait
}

fn acquire_permit<A: Algorithm>(
    limiter: &TaskLimiter<A>,
    key: &str,
) -> BoxFuture<Result<Result<Permit, Denied>, Gone>> {
    let wait = acquire(limiter, key, Attempt::new(1));
    Box::pin(async move {
        let (decision, reservation, _) = wait.await?.into_parts();
        Ok(Permit::decided(decision, reservation))
    })
}

#[tokio::test(start_paused = true)]
async fn check_peek_refund_and_reset_are_async_and_keep_their_meaning() -> Result<(), Gone> {
    let limiter = limiter(FixedWindow::new(Quota::per_hour(5)));
    assert_eq!(limiter.check("a", cost(1)).await?.remaining(), 4);
    assert_eq!(limiter.check("a", cost(3)).await?.remaining(), 1);
    assert_eq!(limiter.peek("a", cost(1)).await?.remaining(), 1);
    assert!(!limiter.peek("a", cost(2)).await?.is_allowed());
    let denied = limiter.check("a", cost(2)).await?;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(Duration::from_secs(3_600))));
    assert_eq!(limiter.check("b", cost(1)).await?.remaining(), 4);
    limiter.refund("a", 2).await?;
    assert_eq!(limiter.peek("a", cost(1)).await?.remaining(), 3);
    limiter.reset("a").await?;
    assert_eq!(limiter.clone().peek("a", cost(1)).await?.remaining(), 5);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_no_longer_than_asked() -> Result<(), Gone> {
    let limiter = limiter(TokenBucket::new(Quota::per_second(10).burst(1)));
    let start = Instant::now();
    for call in 0..3 {
        assert!(acquire(&limiter, "upstream", cost(1)).await?.decision().is_allowed());
        assert_eq!(start.elapsed(), MS * 100 * call);
    }
    let too_short = acquire(&limiter, "upstream", cost(1).with_max_wait(MS * 99));
    assert!(!too_short.await?.decision().is_allowed());
    assert_eq!(start.elapsed(), MS * 200, "it is denied at once");
    let in_time = acquire(&limiter, "upstream", cost(1).with_max_wait(MS * 100));
    assert!(in_time.await?.decision().is_allowed());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn permits_are_released_when_dropped_and_not_when_forgotten() -> Result<(), Box<dyn std::error::Error>>
{
    let limiter = limiter(Concurrency::per_key(2));
    let first = acquire_permit(&limiter, "a").await??;
    let second = acquire_permit(&limiter, "a").await??;
    let denied = acquire_permit(&limiter, "a").await?.unwrap_err();
    assert_eq!(denied.to_string(), "the rate limit is reached");
    drop(first);
    assert_eq!(limiter.peek("a", cost(1)).await?.remaining(), 1);
    second.forget();
    assert_eq!(limiter.peek("a", cost(1)).await?.remaining(), 1);
    // The call by `check` holds its unit, too.
    assert!(limiter.check("a", cost(1)).await?.is_allowed());
    assert_eq!(limiter.peek("a", cost(1)).await?.remaining(), 0);
    limiter.release("a", 1).await?;
    assert_eq!(limiter.peek("a", cost(1)).await?.remaining(), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_released_if_its_future_is_dropped_at_any_poll() -> Result<(), Gone> {
    for polls in 0..3 {
        let limiter = limiter(Concurrency::per_key(1));
        let mut call = PolledByHand::new(acquire_permit(&limiter, "a"));
        for _ in 0..polls {
            if call.poll() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let taken = call.output.is_some();
        assert_eq!(taken, polls == 2, "after {polls} polls");
        drop(call);
        tokio::task::yield_now().await;
        assert_eq!(limiter.peek("a", cost(1)).await?.remaining(), 1, "after {polls} polls");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tuples_and_tiers_are_decided() -> Result<(), Gone> {
    let both = limiter((SlidingWindow::new(Quota::per_second(3)), FixedWindow::new(Quota::per_hour(4))));
    assert_eq!(both.check("a", cost(3)).await?.remaining(), 0);
    tokio::time::sleep(MS * 1_100).await;
    assert_eq!(both.check("a", cost(1)).await?.limit_index(), 1, "one is left of the hour");
    assert!(!both.check("a", cost(1)).await?.is_allowed());

    let (free, paid) = (FixedWindow::new(Quota::per_hour(2)), FixedWindow::new(Quota::per_hour(10)));
    let (tiers, paid) = (limiter(Tiered::new(free)), Tiered::new(paid));
    assert_eq!(tiers.check("a", cost(2)).await?.remaining(), 0);
    assert!(!tiers.check("a", cost(1)).await?.is_allowed());
    assert_eq!(tiers.check("a", cost(1).with_algorithm(&paid)).await?.remaining(), 7);
    assert_eq!(tiers.peek("a", cost(1).with_algorithm(&paid)).await?.remaining(), 7);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_algorithm_is_replaced() -> Result<(), Gone> {
    let limiter = limiter(TokenBucket::new(Quota::per_hour(10)));
    assert_eq!(limiter.check("a", cost(8)).await?.remaining(), 2);
    limiter.replace(TokenBucket::new(Quota::per_hour(100)));
    assert_eq!(limiter.info().quotas()[0].quota, 100);
    assert_eq!(limiter.peek("a", cost(1)).await?.remaining(), 92);
    Ok(())
}

#[tokio::test]
async fn a_limiter_takes_any_clock() -> Result<(), Gone> {
    let clock = ManualClock::new();
    let limiter = TaskLimiter::new(FixedWindow::new(Quota::per_hour(1)), clock.clone());
    assert!(limiter.check("a", cost(1)).await?.is_allowed());
    assert!(!limiter.check("a", cost(1)).await?.is_allowed());
    clock.advance(Duration::from_secs(3_600));
    assert!(limiter.check("a", cost(1)).await?.is_allowed());
    Ok(())
}

#[test]
fn a_limiter_that_is_gone_is_an_error_and_no_denial() {
    let limiter = {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { limiter(FixedWindow::new(Quota::per_hour(1))) })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        assert_eq!(limiter.check("a", cost(1)).await.unwrap_err(), Gone);
        assert_eq!(acquire(&limiter, "a", cost(1)).await.unwrap_err(), Gone);
        assert_eq!(acquire_permit(&limiter, "a").await.unwrap_err(), Gone);
        assert_eq!(limiter.reset("a").await.unwrap_err(), Gone);
    });
}
