//! The shares that callers get when more of them wait than there are places.

use super::simulation::{Got, Load, simulate, simulate_turns};
use super::*;

/// Returns the share of the first `count` callers, in thousandths.
fn share(got: &[Got], count: usize) -> u64 {
    let used = |got: &[Got]| got.iter().map(Got::used).sum::<u64>();
    (1_000 * used(&got[..count]) + used(got) / 2) / used(got)
}

fn p99<'a>(got: impl IntoIterator<Item = &'a Got>) -> Duration {
    let mut waits: Vec<_> = got.into_iter().flat_map(Got::waits).collect();
    waits.sort_unstable();
    waits[waits.len() * 99 / 100]
}

fn of(total: u64) -> Concurrency {
    Concurrency::per_key(total).total(total)
}

/// Returns `count` callers with `connections` calls of this length at a time.
fn callers<'a>(
    name: &'a str,
    count: usize,
    connections: usize,
    length: Duration,
) -> impl Iterator<Item = Load> + use<'a> {
    (0..count).map(move |n| Load::closed(&format!("{name}{n}"), connections, length))
}

#[test]
fn long_calls_get_no_more_than_short_ones() {
    let loads: Vec<_> = callers("long", 1, 20, 10 * SECOND).chain(callers("short", 1, 20, SECOND)).collect();
    let share = share(&simulate(of(10), &loads, 1_000 * SECOND), 1);
    println!("two callers of 10 s and 1 s on 10 places: {share} of 1,000");
    assert!((490..=510).contains(&share), "{share}");
}

#[test]
fn long_calls_get_no_more_if_more_callers_wait_than_there_are_places() {
    let loads: Vec<_> = callers("long", 5, 4, 10 * SECOND).chain(callers("short", 5, 4, SECOND)).collect();
    let share = share(&simulate(of(2), &loads, 5_000 * SECOND), 5);
    println!("five callers of 10 s and five of 1 s on 2 places: {share} of 1,000");
    assert!((470..=530).contains(&share), "{share}");
}

#[test]
fn a_single_connection_with_long_calls_gets_no_more_than_a_caller() {
    let loads: Vec<_> = callers("long", 1, 1, 10 * SECOND).chain(callers("short", 9, 4, SECOND)).collect();
    let got = share(&simulate(of(2), &loads, 10_000 * SECOND), 1);
    let turns = share(&simulate_turns(2, &loads, 10_000 * SECOND), 1);
    println!(
        "one connection of 10 s among nine callers of 1 s on 2 places: {got} of 1,000, in turns {turns}"
    );
    assert!((90..=110).contains(&got), "{got}");
    assert!(turns > 300, "{turns}");
}

#[test]
fn large_calls_get_no_more_than_small_ones() {
    let large = Load::closed("large", 2, SECOND).cost(8);
    let loads: Vec<_> = [large].into_iter().chain(callers("small", 30, 2, SECOND)).collect();
    let share = share(&simulate(of(10), &loads, 5_000 * SECOND), 1);
    println!("one caller of cost 8 among 30 of cost 1 on 10 places: {share} of 1,000");
    assert!((27..=37).contains(&share), "{share}");
}

#[test]
fn a_flood_among_many_callers_is_one_of_them() {
    let loads: Vec<_> = callers("flood", 1, 1_000, SECOND).chain(callers("other", 999, 1, SECOND)).collect();
    let got = simulate(of(10), &loads, 2_000 * SECOND);
    let all: u64 = got.iter().map(Got::done).sum();
    println!("a flood of 1,000 among 999 callers on 10 places: {} of {all}", got[0].done());
    assert!(10_000 * got[0].done() <= 12 * all && 10_000 * got[0].done() >= 8 * all);
}

#[test]
fn new_callers_do_not_push_old_ones_aside() {
    let new = (0..6_000).map(|n| Load::once(&format!("new{n}"), n * SECOND / 10, SECOND));
    let loads: Vec<_> = callers("old", 2, 5, SECOND).chain(new).collect();
    let done = |got: &[Got]| got[..2].iter().map(Got::done).sum::<u64>();
    let (got, turns) =
        (done(&simulate(of(10), &loads, 600 * SECOND)), done(&simulate_turns(10, &loads, 600 * SECOND)));
    println!("two old callers under ten new ones a second on 10 places: {got} calls, in turns {turns}");
    assert!(got >= turns, "{got}, in turns {turns}");
}

#[test]
fn a_call_of_an_hour_delays_nobody() {
    let hour = Load::once("hour", 100 * SECOND, 3_600 * SECOND);
    let loads: Vec<_> = [hour].into_iter().chain(callers("other", 20, 2, SECOND)).collect();
    let until = 5_000 * SECOND;
    let (got, turns) = (simulate(of(10), &loads, until), simulate_turns(10, &loads, until));
    let (late, late_in_turns) = (p99(&got[1..]), p99(&turns[1..]));
    println!(
        "next to a call of an hour, the p99 of the others' waits is {late:?}, in turns {late_in_turns:?}"
    );
    assert!(10 * late <= 11 * late_in_turns, "{late:?}, in turns {late_in_turns:?}");
}
