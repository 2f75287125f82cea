use super::*;

/// Returns the wait of each call, rounded to hundredths of a second, as the waits in Guava's own tests are. `calls` has
/// a pause, in hundredths of a second, and a cost for each call. Each call arrives when its pause has passed since the
/// previous call was admitted.
fn waits(limiter: &Smooth, calls: &[(u64, u64)]) -> Vec<u64> {
    let mut now = Nanos::ZERO;
    let mut state = limiter.new_state(now, now);
    calls
        .iter()
        .map(|(pause, permits)| {
            now = now.saturating_add(pause * 10_000_000);
            let ready_at = limiter.turn(&state).max(now);
            limiter.observe(&mut state, ready_at);
            limiter.take(&mut state, now, *permits);
            let wait = ready_at.saturating_since(now);
            now = ready_at;
            (wait + 5_000_000) / 10_000_000
        })
        .collect()
}

#[test]
fn a_call_waits_for_the_cost_of_the_one_before() {
    let five = Smooth::bursty(Quota::per_second(5));
    assert_eq!(waits(&five, &[(0, 1), (0, 1), (0, 1)]), [0, 20, 20]);
    assert_eq!(waits(&five, &[(0, 1), (20, 1), (20, 1)]), [0, 0, 0]);
    // One second is stored: five permits. The sixth call passes at once as well, since its cost delays only the next
    // call.
    assert_eq!(
        waits(&five, &[(0, 1), (500, 1), (0, 1), (0, 1), (0, 1), (0, 1), (0, 1), (0, 1)]),
        [0, 0, 0, 0, 0, 0, 0, 20]
    );
    assert_eq!(waits(&five, &[(0, 1), (0, 1), (0, 3), (0, 1), (0, 2), (0, 1)]), [0, 20, 20, 60, 20, 40]);
}

#[test]
fn a_cold_start_is_slow_and_so_is_one_after_a_pause() {
    let warming = Smooth::warming_up(Quota::per_second(2), Duration::from_secs(4));
    let calls: Vec<_> = [0; 8].into_iter().chain([50]).chain([0; 2]).map(|pause| (pause, 1)).collect();
    assert_eq!(waits(&warming, &calls), [0, 138, 113, 88, 63, 50, 50, 50, 0, 50, 50]);
    let calls: Vec<_> = [0; 8].into_iter().chain([450]).chain([0; 7]).map(|pause| (pause, 1)).collect();
    assert_eq!(waits(&warming, &calls), [0, 138, 113, 88, 63, 50, 50, 50, 0, 138, 113, 88, 63, 50, 50, 50]);
}

#[test]
fn other_cold_factors() {
    let warming = Smooth::warming_up(Quota::per_second(5), Duration::from_secs(4)).cold_factor(10.0);
    let calls = [(0, 1); 8];
    assert_eq!(waits(&warming, &calls), [0, 175, 126, 76, 30, 20, 20, 20]);
    let level = Smooth::warming_up(Quota::per_second(5), Duration::from_secs(4)).cold_factor(1.0);
    assert_eq!(waits(&level, &calls), [0, 20, 20, 20, 20, 20, 20, 20]);
}

#[test]
fn it_does_not_matter_how_permits_are_split() {
    let warming = Smooth::warming_up(Quota::per_second(7), Duration::from_secs(4)).cold_factor(2.5);
    let end = |calls: &[u64]| {
        let mut state = warming.new_state(Nanos::ZERO, Nanos::ZERO);
        calls.iter().for_each(|cost| warming.take(&mut state, Nanos::ZERO, *cost));
        state.next
    };
    let whole = end(&[60]);
    for calls in [&[1; 60][..], &[20, 40], &[59, 1], &[7, 7, 7, 7, 7, 7, 7, 7, 4]] {
        assert!(end(calls).abs_diff(whole) < 1 << FRACTION_BITS, "{calls:?}");
        assert!(end(calls) >= whole.saturating_sub(60), "{calls:?}");
    }
}

#[test]
fn no_warm_up_has_no_store() {
    let none = Smooth::warming_up(Quota::per_second(5), Duration::ZERO);
    assert_eq!(waits(&none, &[(0, 1), (0, 1), (500, 1), (0, 1)]), [0, 20, 0, 20]);
}

#[test]
fn extremes_neither_panic_nor_pass_for_free() {
    let quotas = [
        Quota::per(1, Duration::from_nanos(i64::MAX as u64)).unwrap(),
        Quota::per_second(1_000_000_000).burst(u64::MAX),
        Quota::per(u64::MAX, Duration::from_secs(600)).unwrap(),
    ];
    for quota in quotas {
        for smooth in [
            Smooth::bursty(quota),
            Smooth::warming_up(quota, Duration::MAX).cold_factor(1_000.0),
            Smooth::warming_up(quota, Duration::from_nanos(1))
                .cold_factor(1.0)
                .max_wait(Duration::from_secs(9)),
        ] {
            for now in [0, 1, u64::MAX - 1, u64::MAX].map(Nanos) {
                let mut state = smooth.new_state(Nanos::ZERO, now);
                assert!(smooth.check(&mut state, now, u64::MAX).is_allowed());
                let next = smooth.check(&mut state, now, 1);
                assert!(!next.is_allowed(), "{smooth:?} {now:?}");
                let _ = smooth.check(&mut state, Nanos::ZERO, u64::MAX);
                let _ = smooth.peek(&mut state, Nanos::MAX, 1);
                let _ = smooth.is_fresh(&state, now);
            }
        }
    }
}

#[test]
#[should_panic(expected = "give 1 to 1000")]
fn a_cold_factor_below_one_panics() {
    let _ = Smooth::warming_up(Quota::per_second(1), Duration::from_secs(1)).cold_factor(0.99);
}

#[test]
#[should_panic(expected = "give 1 to 1000")]
fn a_cold_factor_that_is_no_number_panics() {
    let _ = Smooth::warming_up(Quota::per_second(1), Duration::from_secs(1)).cold_factor(f64::NAN);
}

#[test]
fn a_refund_in_parts_is_worth_no_more_than_what_was_taken() {
    let bursty = Smooth::bursty(Quota::per(9_999_999_999, Duration::from_secs(10)).unwrap());
    let mut state = bursty.new_state(Nanos::ZERO, Nanos::ZERO);
    assert!(bursty.check(&mut state, Nanos::ZERO, 2).is_allowed());
    bursty.refund(&mut state, Nanos::ZERO, 1, None);
    // One interval is 1.0000000001 ns.
    assert!(!bursty.check(&mut state, Nanos(1), 1).is_allowed());
    assert!(bursty.check(&mut state, Nanos(2), 1).is_allowed());
}

#[test]
fn a_debt_of_centuries_is_neither_forgotten_nor_given_back() {
    let month = Smooth::bursty(Quota::per(1, Duration::from_secs(30 * 86_400)).unwrap());
    let mut state = month.new_state(Nanos::ZERO, Nanos::ZERO);
    assert!(month.check(&mut state, Nanos::ZERO, 20_000).is_allowed());
    month.refund(&mut state, Nanos::ZERO, 19_999, None);
    let rest = month.peek(&mut state, Nanos::ZERO, 1).retry_after();
    assert_eq!(rest, Some(Duration::from_secs(30 * 86_400)));

    let second = Smooth::bursty(Quota::per_second(1));
    let mut state = second.new_state(Nanos::ZERO, Nanos(u64::MAX - 1));
    assert!(second.check(&mut state, Nanos(u64::MAX - 1), 1_000_000).is_allowed());
    // The clock is set back: the debt remains.
    let rest = second.peek(&mut state, Nanos(5), 1).retry_after();
    assert_eq!(rest, Some(Duration::from_secs(999_999)), "one second was stored");
}

#[test]
fn a_key_is_full_after_the_calls_that_pass_at_once_and_used_more_in_debt() {
    let quota = Quota::per_second(4);
    for (smooth, at_once) in [
        (Smooth::bursty(quota), 5),
        (Smooth::warming_up(quota, Duration::from_secs(4)), 1),
        (Smooth::warming_up(quota, Duration::from_secs(4)).cold_factor(1_000.0), 1),
    ] {
        let now = Nanos(1_000_000_000);
        let mut state = smooth.new_state(Nanos::ZERO, now);
        for used in 0..=at_once {
            assert_eq!(smooth.usage(&state, now), Usage::of(used, at_once), "{smooth:?}");
            assert_eq!(smooth.check(&mut state, now, 1).is_allowed(), used < at_once);
        }
        assert!(smooth.charge(&mut state, now, 10_000, u64::MAX) > 0);
        let in_debt = smooth.usage(&state, now);
        assert!(in_debt > Usage::FULL && in_debt < Usage::LOCKED_OUT, "{smooth:?}");
        assert_eq!(smooth.usage(&state, Nanos(u64::MAX)), Usage::NONE);
    }
}
