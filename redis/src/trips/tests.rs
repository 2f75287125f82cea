use super::*;
use crate::script::TimeSource;
use crate::settlements::{Settlements, StoreSettlements};
use crate::states::Action;
use tower_throttle::Quota;
use tower_throttle::algorithm::{Algorithm, FixedWindow};

#[test]
fn a_flood_of_keys_is_bounded_and_locks_out_no_newer_key() {
    let plan = Plan::new(FixedWindow::new(Quota::per_hour(1)), TimeSource::Server, true).unwrap();
    let denials = Denials::new(Duration::from_secs(1));
    let mut state = plan.algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
    assert!(plan.algorithm.check(&mut state, Nanos::ZERO, 1).is_allowed());
    let call = Operation::new(Action::Check, 1, None);
    for number in 0..100_000 {
        let (key, now) = (Arc::from(number.to_string()), Nanos(number));
        denials.remember(&key, &plan, state.clone(), now, now);
        assert!(denials.answer(&key, &plan, &call, now).is_some(), "{number}");
    }
    let kept = denials.sets.iter().map(|set| set.lock().unwrap().len()).sum::<usize>();
    assert!(kept <= SETS * SET_KEYS && kept > SETS * SET_KEYS / 2, "{kept}");
    denials.forget("99999");
    assert!(denials.answer(&Arc::from("99999"), &plan, &call, Nanos(100_000)).is_none());
    denials.clear();
    assert!(denials.sets.iter().all(|set| set.lock().unwrap().is_empty()));
}

/// Returns a charge of two units that failed, and its error.
fn failed(settlements: &Arc<Settlements>) -> (Pending<FixedWindow>, RedisError) {
    let operation = Operation::new(Action::ChargeMore(9), 2, None);
    let unsettled = Some(settlements.settle(2, false));
    let charge = Pending { operation, deadline: Nanos::ZERO, reply: None, unsettled };
    (charge, RedisError::new(RedisErrorKind::Open, ""))
}

#[test]
fn charges_of_a_runtime_that_has_ended_wait_for_the_present_task_even_if_it_is_late_or_for_the_next_one() {
    let settlements = Arc::new(Settlements::new(Arc::<StoreSettlements>::default(), "test"));
    let retries = Retries::<FixedWindow>::default();
    let (key, late) = (Arc::from("a"), Nanos(2 * ABANDONED));
    let park = || {
        let (charge, error) = failed(&settlements);
        retries.park(&key, charge, error);
    };
    let (charge, error) = failed(&settlements);
    assert_eq!(retries.add(&key, charge, error, Nanos(1)), Some(1));
    park();
    assert_eq!(retries.len_or_end(1, late), 1, "the task goes on");
    assert_eq!(retries.next().unwrap().1[0].operation.cost(), 4);
    assert_eq!(retries.len_or_end(1, late), 0, "the task ends");
    park();
    assert_eq!(retries.abandoned(late), Some(2));
}

#[test]
fn charges_of_a_bounded_number_of_keys_wait_and_more_are_counted_as_lost() {
    let settlements = Arc::new(Settlements::new(Arc::<StoreSettlements>::default(), "test"));
    let retries = Retries::<FixedWindow>::default();
    let add = |key: u64| {
        let (charge, error) = failed(&settlements);
        retries.add(&Arc::from(key.to_string()), charge, error, Nanos::ZERO)
    };
    assert_eq!(add(0), Some(1), "the task begins");
    assert!((1..10_000).all(|key| add(key).is_none()));
    assert_eq!(settlements.failed(), 0);
    assert!((9_000..10_010).all(|key| add(key).is_none()));
    assert_eq!((settlements.failed(), settlements.units().uncharged), (10, 20));
    // Each key has its turn.
    let mut keys: Vec<_> = (0..10_000).map(|_| retries.next().unwrap().0).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), retries.len_or_end(1, Nanos::ZERO)), (10_000, 0));
    assert_eq!(add(1), Some(2), "another task begins");
}
