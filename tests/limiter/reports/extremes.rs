//! Quotas and clocks at the ends of their ranges.

use super::*;

fn wild(r: &mut Random) -> Quota {
    let period = if r.one_in(3) { i64::MAX as u64 } else { r.any_size().min(i64::MAX as u64) };
    let quota =
        Quota::per(if r.one_in(4) { u64::MAX } else { r.any_size() }, Duration::from_nanos(period)).unwrap();
    if r.one_in(2) { quota.burst(if r.one_in(3) { u64::MAX } else { r.any_size() }) } else { quota }
}

/// Asserts that no operation panics, and that a call of cost 0 is admitted.
fn wildly<A: Algorithm>(with_priority: WithPriority<A>, make: impl Fn(&mut Random) -> A) {
    for seed in 0..scaled(4_000) {
        let r = &mut Random::new(seed);
        let rules = [make(r), make(r)];
        let clock = ManualClock::new();
        let start = if r.one_in(2) { u64::MAX - r.any_size() } else { r.any_size() };
        clock.set(Duration::from_nanos(start));
        let limiter =
            RateLimiter::builder(rules[0].clone()).clock(clock.clone()).max_keys(r.one_of(&[1, 100])).build();
        let mut held: Vec<PolledByHand<Acquire<A>>> = Vec::new();
        for _ in 0..30 {
            let cost = r.one_of(&[0, 1, 2, u64::MAX, 1 << 40]);
            let key = r.one_of(&["k", "k", "k", "l"]);
            match r.below(14) {
                0 => clock.set(Duration::from_nanos(if r.one_in(3) { u64::MAX } else { r.any_size() })),
                1 => clock.advance(Duration::from_nanos(r.any_size())),
                2 => limiter.refund(key, cost),
                3 => limiter.replace(rules[r.below(2) as usize].clone()),
                4 => _ = limiter.reset(key),
                5 => held.clear(),
                6 | 7 => {
                    let _ = limiter.check_n(key, cost);
                }
                8 => {
                    let reported = limiter.peek_n(key, cost);
                    assert!(cost > 0 || reported.is_allowed());
                    let _ = effective_window(&rules[0], &reported);
                }
                _ => {
                    let mut hand = PolledByHand::new(if r.one_in(2) {
                        limiter.acquire_n(key, cost)
                    } else {
                        with_priority(&limiter, key, cost)
                    });
                    if !hand.poll() {
                        assert!(cost > 0);
                        held.push(hand);
                    }
                }
            }
            for hand in &mut held {
                if hand.alarm.rang() {
                    hand.poll();
                }
            }
        }
    }
}

#[test]
fn extreme_quotas_never_panic() {
    let secs = Duration::from_secs;
    wildly(acquire_with_priority, |r| FixedWindow::new(wild(r)).priority(50));
    wildly(acquire_with_priority, |r| SlidingWindow::new(wild(r)).priority(100));
    wildly(acquire_with_priority, |r| SlidingCounter::new(wild(r)).priority(100));
    wildly(acquire_with_priority, |r| SlidingLog::new(wild(r)).priority(30));
    wildly(RateLimiter::acquire_n, |r| block(LeakyBucket::new(wild(r)).queue(5), r));
    wildly(RateLimiter::acquire_n, |r| block(Smooth::bursty(wild(r)).queue(5), r));
    wildly(RateLimiter::acquire_n, |r| {
        Tiered::new(Smooth::warming_up(wild(r), secs(3)).queue(5).max_wait(secs(9)))
    });
    wildly(acquire_with_priority, |r| Tiered::new(block(SlidingWindow::new(wild(r)).priority(70), r)));
    wildly(RateLimiter::acquire_n, |r| {
        let (bucket, window) = (TokenBucket::new(wild(r)), FixedWindow::new(wild(r)).aligned());
        Algorithm::block_for((bucket, window, LeakyBucket::new(wild(r))), Duration::MAX).after(2)
    });
    wildly(RateLimiter::acquire_n, |r| {
        Tiered::new((TokenBucket::new(wild(r)).start_empty(), SlidingCounter::new(wild(r))))
    });
}
