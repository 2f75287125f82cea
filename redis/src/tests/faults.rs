//! Faults: each fault causes an error of its own kind, no later than at the deadline.

use std::time::Duration;

use tokio::time::Instant;

use super::staged::{Mode, Staged};
use super::{limiter, settings, store, values_of_others};
use crate::connection::{Connection, Reply, word_of};
use crate::error::RedisErrorKind;
use crate::script::TimeSource;
use crate::store::{RedisStore, RedisStoreBuilder};
use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};

const MS: Duration = Duration::from_millis(1);

pub(super) fn swaps(server: &Staged) -> RedisStore {
    store(server.clone(), settings(false, Duration::ZERO))
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_deadline_and_charges_nothing() {
    let server = Staged::new();
    let store = swaps(&server);
    let limiter = limiter(&store, FixedWindow::new(Quota::per_hour(5)));
    assert!(limiter.check("a").await.is_ok(), "so that the server's time is known");
    server.set(Mode::Hold);
    let start = Instant::now();
    let error = limiter.check("a").await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (RedisErrorKind::Late, 50 * MS));
    assert!(error.to_string().contains("deadline"), "{error}");
    tokio::time::advance(MS).await;
    server.resume();
    assert_eq!(limiter.peek("a").await.unwrap().remaining(), 4, "the late call has charged nothing");
    assert_eq!(store.stats().late, 1);
}

#[tokio::test(start_paused = true)]
async fn late_calls_open_the_breaker_and_one_call_tries_again() {
    let server = Staged::new();
    let store = swaps(&server);
    let limiter = limiter(&store, FixedWindow::new(Quota::per_hour(5)));
    server.set(Mode::Hang);
    for key in ["a", "b", "c", "d", "e"] {
        assert_eq!(limiter.check(key).await.unwrap_err().kind(), RedisErrorKind::Late);
    }
    // The trip ends at the same instant as the call.
    tokio::task::yield_now().await;
    let trips = server.commands().len();
    assert_eq!((trips, server.renewed()), (5, 1), "the connection is given up");
    let start = Instant::now();
    for _ in 0..1_000 {
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Open);
    }
    assert_eq!((server.commands().len(), start.elapsed()), (0, Duration::ZERO));
    tokio::time::advance(50 * MS).await;
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Late, "the attempt");
    tokio::task::yield_now().await;
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Open);
    server.set(Mode::Serve);
    tokio::time::advance(100 * MS).await;
    assert!(limiter.check("a").await.is_ok());
    assert!(limiter.check("b").await.is_ok());
    let stats = store.stats();
    assert_eq!((stats.circuit_openings, stats.is_circuit_open), (1, false));
}

#[tokio::test(start_paused = true)]
async fn errors_by_which_no_call_can_be_decided_open_it_at_once() {
    for (text, kind) in [
        ("READONLY You can't write against a read only replica.", RedisErrorKind::ReadOnly),
        ("NOREPLICAS Not enough good replicas to write.", RedisErrorKind::NoReplicas),
        ("OOM command not allowed when used memory > 'maxmemory'.", RedisErrorKind::OutOfMemory),
        ("BUSY Redis is busy running a script.", RedisErrorKind::Busy),
        ("LOADING Redis is loading the dataset in memory", RedisErrorKind::Loading),
        ("NOAUTH Authentication required.", RedisErrorKind::Auth),
    ] {
        let server = Staged::new();
        let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(5)));
        server.set(Mode::Fail(text));
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), kind);
        let open = limiter.check("a").await.unwrap_err();
        assert_eq!(open.kind(), RedisErrorKind::Open);
        assert!(open.to_string().contains(text), "{open}");
        server.set(Mode::Serve);
        tokio::time::advance(50 * MS).await;
        assert!(limiter.check("a").await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_again_but_misses_a_permission_closes_it() {
    let server = Staged::new();
    let store = swaps(&server);
    let limiter = limiter(&store, FixedWindow::new(Quota::per_hour(5)));
    server.set(Mode::Fail("LOADING Redis is loading the dataset in memory"));
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Loading);
    server.set(Mode::Fail("NOPERM this user has no permissions"));
    tokio::time::advance(50 * MS).await;
    for _ in 0..3 {
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Permission);
    }
    assert!(!store.stats().is_circuit_open);
}

#[tokio::test(start_paused = true)]
async fn a_read_does_not_close_the_breaker_while_writes_fail() {
    let server = Staged::new();
    let store = swaps(&server);
    let limiter = limiter(&store, FixedWindow::new(Quota::per_hour(5)));
    assert!(limiter.check_n("a", 3).await.is_ok());
    server.set_full(true);
    assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::OutOfMemory);
    for _ in 0..20 {
        tokio::time::advance(400 * MS).await;
        assert_eq!(limiter.peek("a").await.unwrap().remaining(), 2);
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Open, "the probe failed");
        tokio::time::advance(400 * MS).await;
        assert_eq!(limiter.peek("b").await.unwrap().remaining(), 5);
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::OutOfMemory);
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Open);
        assert!(store.stats().is_circuit_open, "a read says nothing about writes");
    }
    assert_eq!(store.stats().circuit_openings, 1, "it was open all the time");
    server.set_full(false);
    tokio::time::advance(400 * MS).await;
    // A denial writes nothing by itself.
    assert!(!limiter.check_n("a", 3).await.unwrap().is_allowed());
    assert!(!store.stats().is_circuit_open, "the state was written as it is");
    assert_eq!(limiter.check_n("a", 2).await.unwrap().remaining(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_trip_of_an_earlier_connection_does_not_end_a_new_one() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(5)));
    server.set(Mode::Hang);
    let call = |key: &'static str| tokio::spawn(limiter.check(key));
    let mut calls: Vec<_> = ["a", "b", "c", "d", "e"].map(call).into();
    tokio::time::sleep(10 * MS).await;
    calls.extend(["f", "g", "h"].map(call));
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().kind(), RedisErrorKind::Late);
    }
    tokio::time::sleep(MS).await;
    assert_eq!(server.renewed(), 1, "the first five ended that connection, and the others the new one");
}

#[tokio::test(start_paused = true)]
async fn replies_that_no_script_makes_are_errors() {
    let text = |text: &str| Mode::Answer(Reply::Text(text.into()));
    let at = |time: f64| Mode::Answer(Reply::Text([b"D", &time.to_le_bytes()[..]].concat()));
    for mode in [
        text(""),
        text("D"),
        text("D1234567"),
        text("D1700000000 123456 "),
        Mode::Answer(Reply::Text([b"X", &1_700_000_000e6_f64.to_le_bytes()[..]].concat())),
        at(-1.0),
        at(0.5),
        at(f64::NAN),
        at(f64::INFINITY),
        at(1e300),
        text("\u{e9}"),
        Mode::Answer(Reply::Text([b"D", &1_700_000_000e6_f64.to_le_bytes()[..], b"\xff"].concat())),
        Mode::Answer(Reply::Other("int(1)".to_owned())),
        Mode::Fail("ERR something else"),
        Mode::Fail(""),
    ] {
        let server = Staged::new();
        let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(5)));
        server.set(mode.clone());
        for _ in 0..10 {
            let kind = limiter.check("a").await.unwrap_err().kind();
            assert!(matches!(kind, RedisErrorKind::Foreign | RedisErrorKind::Server), "{mode:?}: {kind:?}");
        }
        server.set(Mode::Serve);
        assert!(limiter.check("a").await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_level_with_leases_that_no_bucket_has_is_foreign() {
    let max = u64::MAX;
    for level in [
        "11000000 0 0 0 0".to_owned(),
        format!("{max} 0 0 0 0"),
        format!("0 {max} 0 0 0"),
        "0 0 1 0 0".to_owned(),
        format!("10 0 {max} 0 0"),
        format!("0 0 0 {max} {max}"),
    ] {
        let server = Staged::new();
        let limiter = swaps(&server)
            .limiter("api", TokenBucket::new(Quota::per_minute(60).burst(10)))
            .lease(5)
            .build()
            .unwrap();
        let reply = [b"D", &1_700_000_000e6_f64.to_le_bytes()[..], level.as_bytes()].concat();
        server.set(Mode::Answer(Reply::Text(reply)));
        let error = limiter.check("a").await.unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Foreign, "{level}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_connects_until_its_deadline_if_that_is_long() {
    let server = Staged::new();
    server.set(Mode::Hold);
    let builder = RedisStoreBuilder::over(server.clone(), TimeSource::Server).deadline(10_000 * MS);
    let connecting = tokio::spawn(builder.connect());
    tokio::time::sleep(5_000 * MS).await;
    server.resume();
    assert!(connecting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn values_of_others_are_errors_and_stay_as_they_are() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(5)));
    for value in values_of_others(3_600_000_000_000) {
        let value = &*word_of(&value);
        server.put("throttle:{a}:test:f", value);
        for _ in 0..2 {
            assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Foreign);
            assert_eq!(limiter.reset("a").await.unwrap_err().kind(), RedisErrorKind::Foreign);
        }
        assert_eq!(server.texts()["throttle:{a}:test:f"], value);
        assert!(limiter.check("b").await.is_ok(), "other keys are not concerned");
        limiter.reset("b").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_that_the_server_does_not_have_is_sent_once() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(5)));
    server.set(Mode::NoScript);
    assert!(limiter.peek("a").await.is_ok());
    let commands: Vec<_> = server.commands().into_iter().map(|command| command[0].clone()).collect();
    assert_eq!(commands, ["EVALSHA", "EVAL"]);
}

#[tokio::test(start_paused = true)]
async fn a_clock_of_the_server_that_steps_costs_one_trip() {
    let server = Staged::new();
    let limiter = limiter(&swaps(&server), TokenBucket::new(Quota::per_hour(5)));
    assert!(limiter.check("a").await.is_ok());
    for step in [3_600_000_000, -3_600_000_000, 60_000_000] {
        server.set_ahead(step);
        server.commands();
        assert!(limiter.peek("b").await.is_ok(), "{step}");
        assert!(server.commands().len() <= 2, "{step}");
        assert!(limiter.peek("b").await.is_ok(), "{step}");
        assert_eq!(server.commands().len(), 1, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn masters_whose_clocks_differ_decide_by_their_own_and_keep_what_moves() {
    const HOUR: i64 = 3_600_000_000;
    for ahead in [HOUR, -HOUR] {
        let servers = [Staged::new(), Staged::new()];
        servers[1].set_ahead(ahead);
        let window = || FixedWindow::new(Quota::per_minute(5));
        let limiters = servers.each_ref().map(|server| limiter(&swaps(server), window()));
        for (server, limiter) in servers.iter().zip(&limiters) {
            assert_eq!(limiter.check("a").await.unwrap().remaining(), 4);
            server.set(Mode::Hold);
            assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Late);
            tokio::time::advance(MS).await;
            server.resume();
            assert_eq!(
                limiter.peek("a").await.unwrap().remaining(),
                4,
                "its clock says that the call is late"
            );
        }
        assert_eq!(limiters[0].check_n("b", 5).await.unwrap().remaining(), 0);
        // The second master takes over the keys of the first.
        servers[0].texts().iter().for_each(|(key, text)| servers[1].put(key, text));
        let moved = limiters[1].check("b").await.unwrap();
        assert_eq!(moved.is_allowed(), ahead > 0, "time has passed for the key, or stands still");
        assert!(moved.retry_after() <= Some(Duration::from_secs(120)), "{:?}", moved.retry_after());
    }
}

#[test]
fn settings_that_redis_cannot_work_with_are_errors_when_built() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = swaps(&Staged::new());
        let build = |name, quota| store.limiter(name, FixedWindow::new(quota)).build();
        let error = build("", Quota::per_hour(5)).unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Name);
        let _login = build("login", Quota::per_hour(5)).unwrap();
        assert!(build("login", Quota::per_hour(5)).is_ok());
        let error = build("login", Quota::per_hour(6)).unwrap_err();
        assert!(error.to_string().contains("another algorithm or quota"), "{error}");
        assert_eq!(
            RedisStore::builder("http://x").connect_lazily().unwrap_err().kind(),
            RedisErrorKind::Config
        );
        let _ = limiter(&store, TokenBucket::new(Quota::per_hour(5)));
    });
}

#[tokio::test(start_paused = true)]
async fn the_end_of_each_connection_is_one_failure_whichever_call_was_first() {
    let server = Staged::new();
    let store = swaps(&server);
    let limiter = limiter(&store, FixedWindow::new(Quota::per_hour(5)));
    server.set(Mode::End);
    for connection in 0..5 {
        assert_eq!(store.stats().circuit_openings, 0, "{connection} connections have ended");
        for _ in 0..10 {
            assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Unreachable);
            if connection == 4 {
                break;
            }
        }
        // Another call has discarded the connection, and there is a new one.
        server.renew(connection);
    }
    assert_eq!(store.stats().circuit_openings, 1);
    for pause in [50 * MS, 100 * MS] {
        assert_eq!(limiter.check("a").await.unwrap_err().kind(), RedisErrorKind::Open);
        tokio::time::advance(pause).await;
        server.commands();
        let error = limiter.check("a").await.unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Open, "{error}");
        assert!(error.to_string().contains("it has ended"), "{error}");
        assert_eq!(server.commands().len(), 1, "the trial, after {pause:?}");
        server.renew(server.number());
    }
}
