use super::*;
use crate::script::TimeSource;
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
