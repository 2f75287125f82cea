//! Threads and tasks that must end.

use super::joint::*;
use super::*;

/// Runs all operations at once from four threads, with full tables. The test must end without a deadlock.
#[test]
fn four_threads_with_full_tables_end_without_a_deadlock() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let clock = ManualClock::new();
    let limit = 1_000;
    let a = RateLimiter::builder(FixedWindow::new(Quota::per_hour(limit)))
        .clock(clock.clone())
        .max_keys(3)
        .on_full(OnFull::ShareBuckets)
        .build();
    let b = RateLimiter::builder(Tiered::new(SlidingLog::new(Quota::per_hour(limit))))
        .clock(clock.clone())
        .max_keys(2)
        .on_full(OnFull::ShareBuckets)
        .build();
    let c =
        RateLimiter::builder(TokenBucket::new(Quota::per_second(9))).clock(clock.clone()).max_keys(2).build();
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let counts: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (a, b, c, counts, clock) = (a.clone(), b.clone(), c.clone(), &counts, clock.clone());
            scope.spawn(move || {
                let r = &mut Random::new(thread);
                let tier = SlidingLog::new(Quota::per_hour(7));
                let (t2, t1) = (tier.clone(), SlidingLog::new(Quota::per_hour(limit)));
                let one = layer(&a).and(layer(&b)).and(layer(&c)).responder(ErrorResponder);
                let two = layer(&c)
                    .and(
                        layer(&b)
                            .tier(move |q: &Req, _: &&'static str| if q.1 { t1.clone() } else { t2.clone() }),
                    )
                    .and(layer(&a))
                    .and(layer(&a).cost(|q: &Req| u64::from(q.1)))
                    .responder(ErrorResponder);
                let (mut one, mut two) = (one.layer(service_fn(ok)), two.layer(service_fn(ok)));
                for _ in 0..scaled(40_000) {
                    let at = r.below(8) as usize;
                    let key = keys[at];
                    match r.below(20) {
                        0 => c.replace(TokenBucket::new(Quota::per_second(r.within(1..=9)))),
                        1 => c.reset(key),
                        2 => c.refund(key, 3),
                        3 => clock.advance(Duration::from_nanos(r.below(1_000_000))),
                        4 => {
                            let _ = c.check(key);
                        }
                        5 => {
                            let _ = b.call(key).tier(&tier).peek();
                        }
                        6..13 => {
                            if poll(&mut answer(&mut one, Req(key, true))).unwrap().is_ok() {
                                counts[at].fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        _ => {
                            let both = r.one_in(2);
                            if poll(&mut answer(&mut two, Req(key, both))).unwrap().is_ok() {
                                counts[at].fetch_add(1 + u64::from(both), Ordering::SeqCst);
                            }
                        }
                    }
                }
            });
        }
    });
    let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    println!("{counts:?} {} {} {}", a.len(), b.len(), c.len());
    assert!(counts.iter().all(|count| *count <= limit));
    assert!(a.len() <= 3 && b.len() <= 2 && c.len() <= 2);
}

/// Tasks on two threads, while algorithms are replaced, keys are reset, and calls are cancelled. All tasks end.
#[test]
fn queues_lose_no_wakeup_while_algorithms_are_replaced_and_keys_are_reset() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let leaky = |rate| LeakyBucket::new(Quota::per_second(rate)).queue(10_000);
        let queue = RateLimiter::new(Tiered::new(leaky(10_000)));
        let lends = RateLimiter::new(SlidingWindow::new(Quota::per_second(2_000)).priority(100));
        let stack = layer(&queue).and(layer(&lends).priority(|_: &Req| true)).responder(ErrorResponder);
        let service = stack.layer(service_fn(ok));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..1_500_u64 {
            let (queue, lends, mut service) = (queue.clone(), lends.clone(), service.clone());
            tasks.spawn(async move {
                let r = &mut Random::new(n);
                match r.below(12) {
                    0 => {
                        let _ =
                            tokio::time::timeout(Duration::from_micros(r.below(50_000)), queue.acquire("k"))
                                .await;
                    }
                    1 => queue.replace(Tiered::new(leaky(r.within(8_000..=20_000)))),
                    2 => lends.replace(
                        SlidingWindow::new(Quota::per_second(r.within(1_900..=2_500)))
                            .slices(r.within(1..=20) as usize)
                            .priority(100),
                    ),
                    3 => {
                        queue.refund("k", 3);
                        lends.refund("k", 1);
                    }
                    4 => {
                        if r.one_in(10) {
                            queue.reset("k");
                            lends.reset("k");
                        }
                    }
                    5 | 6 => {
                        let _ = tokio::time::timeout(
                            Duration::from_micros(r.below(90_000)),
                            service.call(Req("k", true)),
                        )
                        .await;
                    }
                    7 => {
                        let _ = lends.call("k").cost(r.within(1..=5)).priority().acquire().await;
                    }
                    8 => {
                        let _ = service.call(Req("k", true)).await;
                    }
                    9 => {
                        let _ = queue.call("k").tier(&leaky(r.within(8_000..=9_000))).acquire().await;
                    }
                    _ => {
                        let _ = queue.acquire("k").await;
                    }
                }
            });
            if n % 8 == 0 {
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
        }
        let at = std::time::Instant::now();
        let mut ended = 0;
        while let Ok(Some(done)) = tokio::time::timeout(secs(15), tasks.join_next()).await {
            done.unwrap();
            ended += 1;
        }
        println!("{ended} ended, {:?} after the last began", at.elapsed());
        assert_eq!(ended, 1_500);
    });
}
