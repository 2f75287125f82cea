//! What others reported about fair queues, each by the number of its thread.

use std::sync::atomic::{AtomicU64, Ordering};

use super::simulation::{Load, simulate};
use super::*;
use crate::support::on_threads;

/// kubernetes#95979: a flow that was idle had a credit, and pushed the others aside when it came back.
#[test]
fn idleness_earns_nothing_kubernetes_95979() {
    let idle = Load::closed("idle", 20, SECOND).from(1_000 * SECOND);
    let busy = ["b", "c", "d"].map(|key| Load::closed(key, 20, SECOND));
    let loads: Vec<_> = [idle].into_iter().chain(busy).collect();
    let done = simulate(Concurrency::per_key(2).total(2), &loads, 1_400 * SECOND);
    let since: Vec<_> = done.iter().map(|one| one.done_after(1_000 * SECOND)).collect();
    let most = since.iter().max().unwrap() - since.iter().min().unwrap();
    assert!(most <= 2, "{since:?}");
}

/// kubernetes#102973: the seats of a wide request were forgotten in the rate of the virtual time.
#[test]
fn a_wide_call_counts_by_its_units_kubernetes_102973() {
    let wide = Load::closed("wide", 3, SECOND).cost(4);
    let narrow = (0..9).map(|n| Load::closed(&format!("n{n}"), 3, SECOND));
    let loads: Vec<_> = [wide].into_iter().chain(narrow).collect();
    let done = simulate(Concurrency::per_key(4).total(4), &loads, 4_000 * SECOND);
    let all: u64 = done.iter().map(|one| one.used()).sum();
    let share = 1_000 * done[0].used() / all;
    assert!((85..=115).contains(&share), "{share} of a thousand");
}

/// kubernetes#119799: a request waited for longer than its limit, because nothing was released.
#[test]
fn the_maximum_wait_holds_although_nothing_is_released_kubernetes_119799() {
    let (limiter, clock) = fair(Concurrency::per_key(1).total(1).queue(9).max_wait(15 * SECOND));
    let _held = taken(&limiter, "a");
    let mut calls: Vec<_> = (0..9).map(|n| queued(&limiter, ["a", "b", "c"][n % 3])).collect();
    clock.advance(15 * SECOND);
    for call in &mut calls {
        assert_eq!(denied(call).decision().delay(), 15 * SECOND);
    }
}

/// kubernetes#140884: a queue was removed while its seats were in use.
#[test]
fn a_caller_is_known_while_it_holds_kubernetes_140884() {
    let (limiter, clock) = fair(Concurrency::per_key(2).total(3));
    let held = limiter.call("kept").cost(2).permit().unwrap();
    for round in 0..200 {
        let permit = taken(&limiter, "a");
        let mut waiting: Vec<_> = (0..3).map(|n| queued(&limiter, &format!("{round} {n}"))).collect();
        clock.advance(SECOND);
        drop(permit);
        for call in &mut waiting {
            clock.advance(MS);
            drop(admitted(call));
        }
        assert_eq!(limiter.call("kept").peek().remaining(), 0);
    }
    drop(held);
    assert_eq!(limiter.call("kept").peek().remaining(), 2);
    is_unused(&limiter);
}

/// cockroach#91533: with two slots and ten tenants, the same tenants could win for ever.
#[test]
fn ten_callers_on_two_places_all_get_the_same_cockroach_91533() {
    let loads: Vec<_> = (0..10).map(|n| Load::closed(&n.to_string(), 5, SECOND)).collect();
    let done = simulate(Concurrency::per_key(2).total(2), &loads, 1_000 * SECOND);
    assert!(done.iter().all(|one| (199..=201).contains(&one.done())), "{done:?}");
}

/// cockroach#77443: which of several equal tenants is next was arbitrary, and so one could starve.
#[test]
fn equals_take_turns_cockroach_77443() {
    let (limiter, _) = fair(Concurrency::per_key(1).total(1));
    let mut permit = taken(&limiter, "x");
    let mut calls: Vec<_> =
        (0..3).flat_map(|_| ["a", "b", "c"]).map(|key| (key, queued(&limiter, key))).collect();
    let mut order = String::new();
    for _ in 0..9 {
        drop(permit);
        let at = calls.iter().position(|(_, call)| call.is_woken()).expect("one is next");
        let (key, mut call) = calls.remove(at);
        permit = admitted(&mut call);
        order += key;
    }
    assert_eq!(order, "abcabcabc");
}

/// golang/go#37852: the cancellation of a large first waiter woke nobody behind it.
#[test]
fn the_cancellation_of_a_large_call_wakes_those_behind_it_go_37852() {
    let (limiter, _) = fair(Concurrency::per_key(2).total(2));
    let held = taken(&limiter, "a");
    let large = waits(limiter.call("b").cost(2).acquire_permit());
    let mut small = queued(&limiter, "c");
    drop(large);
    drop(admitted(&mut small));
    drop(held);
    is_unused(&limiter);
}

/// Netflix concurrency-limits#234: the limit was checked first and taken later, and so exceeded.
#[test]
fn a_check_and_its_charge_are_one_step_netflix_234() {
    let limiter = FairLimiter::new(Concurrency::per_key(3).total(5));
    let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
    on_threads(4, |thread| {
        for round in 0..5_000 {
            if let Ok(permit) = limiter.try_acquire_permit(&((thread + round) % 3)) {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                now.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            }
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 5);
    is_unused(&limiter);
}

/// kthena#1771: the requests of one user were served in another order than they came.
#[test]
fn the_calls_of_one_caller_keep_their_order_kthena_1771() {
    let (limiter, _) = fair(Concurrency::per_key(2).total(3));
    let other = limiter.call("b").cost(2).permit().unwrap();
    let mut permit = taken(&limiter, "a");
    // The large one is before the small one, which would fit.
    let mut calls = [1, 2, 1].map(|cost| waits(limiter.call("a").cost(cost).acquire_permit()));
    drop(other);
    let first = admitted(&mut calls[0]);
    assert!(!calls[1].run() && !calls[2].run());
    drop(first);
    assert!(!calls[1].run() && !calls[2].run());
    drop(permit);
    permit = admitted(&mut calls[1]);
    assert!(!calls[2].run());
    drop(permit);
    drop(admitted(&mut calls[2]));
    is_unused(&limiter);
}

/// tricep#155: the queue was fair, and whoever called at the right time was admitted before it.
#[test]
fn nobody_takes_a_place_before_those_that_wait_tricep_155() {
    let (limiter, _) = fair(Concurrency::per_key(2).total(1));
    let held = taken(&limiter, "a");
    let mut next = queued(&limiter, "b");
    drop(held);
    // The place belongs to the call that waits, even if it was not polled since.
    for key in ["a", "b", "c"] {
        assert!(limiter.try_acquire_permit(key).is_err(), "{key}");
    }
    drop(admitted(&mut next));
    is_unused(&limiter);
}
