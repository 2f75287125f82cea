use super::*;
use crate::quota::Quota;

const SECOND: u64 = 1_000_000_000;

fn algorithm() -> Lockout<FixedWindow> {
    FixedWindow::new(Quota::per_second(2)).block_for(Duration::from_secs(5)).after(3)
}

#[test]
fn the_last_refusal_begins_the_block_and_hammering_changes_nothing() {
    let algorithm = algorithm();
    let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
    let mut check = |at: u64| algorithm.check(&mut state, Nanos(at), 1);
    assert!(check(0).is_allowed() && check(0).is_allowed());
    assert_eq!(check(0).retry_after(), Some(Duration::from_secs(1)));
    assert_eq!(check(SECOND / 2).retry_after(), Some(Duration::from_millis(500)));
    assert_eq!(check(SECOND / 2).retry_after(), Some(Duration::from_secs(5)));
    for at in (SECOND / 2..5 * SECOND + SECOND / 2).step_by(SECOND as usize / 7) {
        let rest = 5 * SECOND + SECOND / 2 - at;
        assert_eq!(check(at).retry_after(), Some(Duration::from_nanos(rest)), "{at}");
    }
    assert!(check(5 * SECOND + SECOND / 2).is_allowed());
}

#[test]
fn refusals_that_are_spread_over_windows_do_not_add_up() {
    let algorithm = algorithm();
    let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
    for at in (0..100).map(|n| n * SECOND) {
        let allowed = (0..4).filter(|_| algorithm.check(&mut state, Nanos(at), 1).is_allowed()).count();
        assert_eq!(allowed, 2, "two pass and two are refused, each second");
    }
}

#[test]
fn a_denied_call_prolongs_the_lockout_if_asked_to() {
    let algorithm = algorithm().extend_on_retry();
    let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
    for at in [0, 0, 0, 0, 0, 4 * SECOND] {
        let _ = algorithm.check(&mut state, Nanos(at), 1);
    }
    let peek = algorithm.peek(&mut state, Nanos(5 * SECOND), 1);
    assert_eq!(peek.retry_after(), Some(Duration::from_secs(5)), "as a check would say");
    assert!(!algorithm.check(&mut state, Nanos(8 * SECOND), 1).is_allowed());
    assert!(algorithm.check(&mut state, Nanos(13 * SECOND), 1).is_allowed());
}

#[test]
fn a_peek_is_not_counted_and_reports_what_a_check_would() {
    let algorithm = algorithm();
    let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
    for _ in 0..4 {
        let _ = algorithm.check(&mut state, Nanos::ZERO, 1);
    }
    for _ in 0..9 {
        assert_eq!(algorithm.peek(&mut state, Nanos::ZERO, 1).retry_after(), Some(Duration::from_secs(5)));
    }
    assert!(algorithm.check(&mut state, Nanos(SECOND), 2).is_allowed(), "it is not blocked yet");
}

#[test]
fn a_cost_that_never_fits_has_no_retry_in_a_block_either_and_nothing_passes_for_nothing() {
    let algorithm = algorithm();
    let mut state = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
    for _ in 0..3 {
        assert_eq!(algorithm.check(&mut state, Nanos::ZERO, 3).retry_after(), None);
    }
    assert_eq!(algorithm.check(&mut state, Nanos::ZERO, 3).retry_after(), None);
    let zero_cost = algorithm.check(&mut state, Nanos::ZERO, 0);
    assert!(zero_cost.is_allowed() && zero_cost.remaining() == 0);
    assert_eq!(zero_cost.reset_after(), Duration::from_secs(5));
    assert_eq!(algorithm.check(&mut state, Nanos::ZERO, 1).retry_after(), Some(Duration::from_secs(5)));
    assert!(!algorithm.is_fresh(&state, Nanos(5 * SECOND - 1)));
    assert!(algorithm.is_fresh(&state, Nanos(5 * SECOND)));
}

#[test]
#[should_panic(expected = "after 0 refusals")]
fn after_none_is_a_mistake() {
    let _ = FixedWindow::new(Quota::per_second(1)).block_for(Duration::from_secs(1)).after(0);
}

#[test]
#[should_panic(expected = "a block of no time")]
fn a_block_of_no_time_is_a_mistake() {
    let _ = FixedWindow::new(Quota::per_second(1)).block_for(Duration::ZERO);
}
