//! Missing permissions and values of other programs are named errors, and a clock that is ahead denies no longer.

use std::time::{Duration, Instant};

use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle_redis::{RedisError, RedisErrorKind, RedisStore, RedisStoreBuilder};

use super::{build, patient_limiter, used};
use crate::support::redis_server::{RedisCluster, RedisServer, Reply};
use crate::{connect, patient, set, value};

/// Sets the rules of the user `limited`, whose password is `secret`. Returns the URL of this user.
fn limit(server: &RedisServer, rules: &[&str]) -> String {
    server.call(&[&["ACL", "SETUSER", "limited", "reset", "on", ">secret"], rules].concat()).ok();
    format!("redis://limited:secret@{}", server.address())
}

fn store_of(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url).deadline(Duration::from_secs(2))
}

#[tokio::test]
async fn a_user_who_may_write_a_hash_but_not_end_it_leaves_no_key() {
    let server = RedisServer::start();
    for missing in ["-pexpire", "-hdel", "-hset"] {
        let url = limit(&server, &["~*", "&*", "+@all", missing]);
        for number in 0..5_u64 {
            let store = store_of(&url).connect().await.unwrap();
            let permits = store.permits("exports", 1).build().unwrap();
            let error = permits.try_acquire_permit(&number).await.unwrap_err();
            assert_eq!(error.kind(), RedisErrorKind::Permission, "{missing}: {error}");
            let store = store_of(&url).connect().await.unwrap();
            let leases = store.limiter("test", TokenBucket::new(Quota::per_day(100))).lease(10);
            let error = leases.build().unwrap().check(&number).await.unwrap_err();
            assert_eq!(error.kind(), RedisErrorKind::Permission, "{missing}: {error}");
        }
        assert_eq!(server.call(&["KEYS", "*"]), Reply::List(Vec::new()), "{missing}");
    }
}

#[tokio::test]
async fn a_full_server_gets_no_new_hash() {
    let server = RedisServer::start();
    let url = server.url();
    let limiter = || async { store_of(&url).connect().await.unwrap() };
    let (permits, leases) = (limiter().await, limiter().await);
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let error = permits.permits("exports", 1).build().unwrap().try_acquire_permit("a").await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::OutOfMemory, "{error}");
    let leases = leases.limiter("test", TokenBucket::new(Quota::per_day(100))).lease(10).build().unwrap();
    let error = leases.check("a").await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::OutOfMemory, "{error}");
    assert_eq!(server.call(&["KEYS", "*"]), Reply::List(Vec::new()));
}

#[tokio::test]
async fn one_limiter_without_its_permission_does_not_stop_the_others() {
    let server = RedisServer::start();
    for rules in
        [&["~*", "&*", "+@all", "-hset"][..], &["~throttle:{*}:test:*", "~throttle:{*}:connect", "+@all"]]
    {
        let (store, limiter) = build(store_of(&limit(&server, rules)).connect().await.unwrap());
        let permits = store.permits("exports", 1).build().unwrap();
        let mut failed = 0;
        for number in 0..1_000 {
            if number % 100 == 0 {
                let error = permits.acquire_permit("x").await.unwrap_err();
                assert_eq!(error.kind(), RedisErrorKind::Permission, "{rules:?}: {error}");
            }
            failed += u64::from(limiter.check("a").await.is_err());
        }
        assert_eq!(failed, 0, "{rules:?}: of 1,000 calls of another limiter");
        // Nothing was created, so nothing is left to remove.
        let trips = store.stats().trips;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(store.stats().trips, trips, "{rules:?}");
    }
}

#[tokio::test]
async fn a_call_without_its_permission_keeps_no_permit_of_a_key_that_others_use() {
    let server = RedisServer::start();
    let url = limit(&server, &["~*", "&*", "+@all", "-pexpire"]);
    let permits =
        async |url: &str| store_of(url).connect().await.unwrap().permits("exports", 3).build().unwrap();
    let (own, other) = (permits(&server.url()).await, permits(&url).await);
    let permit = own.acquire_permit("a").await.unwrap().unwrap();
    let error = other.acquire_permit("a").await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Permission, "{error}");
    let start = Instant::now();
    while own.peek("a").await.unwrap().remaining() < 2 {
        assert!(start.elapsed() < Duration::from_secs(5), "the lease of ten seconds must not pass");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(permit);
}

/// Asserts that the error says that this command is missing.
fn named(error: &RedisError, command: &str) {
    assert_eq!(error.kind(), RedisErrorKind::Permission, "{command}: {error}");
    // The text for users names other commands as well.
    let detail = format!("{error:?}");
    assert!(detail.contains(command), "{command}: {detail}");
}

#[tokio::test]
async fn a_command_that_is_renamed_is_a_missing_permission_that_names_it() {
    for command in ["EVALSHA", "EVAL", "TIME", "GET", "PSETEX", "DEL"] {
        let server = RedisServer::with(&["--rename-command", command, "renamed"]);
        let error = store_of(&server.url()).connect().await.unwrap_err();
        named(&error, command);
        assert_eq!(server.call(&["DBSIZE"]), Reply::Integer(0), "{command}");
    }
    for command in ["EXISTS", "HGET", "HMGET", "HSET", "HDEL", "PEXPIRE"] {
        let server = RedisServer::with(&["--rename-command", command, "renamed"]);
        let (store, limiter) = build(store_of(&server.url()).connect().await.unwrap());
        let permits = store.permits("exports", 1).build().unwrap();
        let leases =
            store.limiter("leased", TokenBucket::new(Quota::per_day(100))).lease(10).build().unwrap();
        for _ in 0..3 {
            if command != "HMGET" {
                named(&permits.acquire_permit("a").await.unwrap_err(), command);
            }
            if command != "HGET" {
                named(&leases.check("a").await.unwrap_err(), command);
            }
            assert!(limiter.check("a").await.is_ok(), "{command}");
        }
        assert_eq!(store.stats().circuit_openings, 0, "{command}");
    }
}

#[tokio::test]
async fn a_user_who_lacks_a_permission_is_named() {
    let server = RedisServer::start();
    let url = format!("redis://limited:secret@{}", server.address());
    for rules in ["-evalsha", "-eval", "-time", "-get", "-psetex", "-del"].map(|missing| ["+@all", missing]) {
        let mut command = vec!["ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*"];
        command.extend(rules);
        server.call(&command).ok();
        let error = RedisStore::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Permission, "{rules:?}: {error}");
        assert_eq!(server.call(&["DBSIZE"]), Reply::Integer(0), "{rules:?}");
    }
}

#[tokio::test]
async fn the_permissions_that_the_error_names_suffice() {
    let server = RedisServer::start();
    let allow = |commands: &[&str]| {
        let mut command = vec!["ACL", "SETUSER", "limited", "reset", "on", ">secret", "~throttle:*"];
        command.extend(commands);
        server.call(&command).ok();
    };
    let mut commands = vec!["+evalsha", "+eval", "+time", "+get", "+psetex", "+del"];
    allow(&commands);
    let url = format!("redis://limited:secret@{}", server.address());
    let store = || RedisStore::builder(&url).deadline(Duration::from_secs(10));
    let bucket = || TokenBucket::new(Quota::per_day(100));
    let scripts = build(store().connect().await.unwrap()).1;
    assert!(scripts.check("a").await.unwrap().is_allowed());
    let swaps = [(); 2].map(|()| store().without_scripts().prefix("throttle:swap"));
    let mut calls = Vec::new();
    for store in swaps {
        let limiter = build(store.connect().await.unwrap()).1;
        calls.extend((0..20).map(|_| tokio::spawn(limiter.check("a"))));
    }
    for call in calls {
        assert!(call.await.unwrap().unwrap().is_allowed());
    }
    let leases = async || {
        let store = store().prefix("throttle:lease").connect().await.unwrap();
        store.limiter("test", bucket()).lease(10).build().unwrap()
    };
    let limiter = leases().await;
    let error = limiter.check("a").await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Permission);
    commands.extend(["+exists", "+hmget", "+hgetall", "+hset", "+hdel", "+pexpire"]);
    allow(&commands);
    let named = error.to_string();
    for command in &commands {
        assert!(named.contains(&command[1..].to_uppercase()), "{command}: {named}");
    }
    let limiter = leases().await;
    for _ in 0..4 {
        assert!(limiter.check("a").await.unwrap().is_allowed());
    }
    // The value is now one whose lease may have expired, as the next trip finds.
    let key = "throttle:lease:{a}:test:lease/100/86400000000000/100";
    let value = server.call(&["HGET", key, "s"]).text();
    let (value, _) = value.rsplit_once(' ').unwrap();
    server.call(&["HSET", key, "s", &format!("{value} 1")]);
    leases().await.refund("a", 1).await.unwrap();
    limiter.reset("a").await.unwrap();
}

/// Returns the words of the line of the guide after this comment.
fn line_of_guide(comment: &str) -> Vec<&'static str> {
    let guide = include_str!("../../../src/guide/many_machines.md");
    let (_, rest) = guide.split_once(&format!("\n# {comment}\n")).expect(comment);
    let line = rest.lines().next().unwrap();
    assert!(line.starts_with("ACL SETUSER app "), "{line}");
    line.split(' ').collect()
}

fn grant(server: &RedisServer, comments: &[&str]) -> String {
    comments.iter().for_each(|comment| server.call(&line_of_guide(comment)).ok());
    format!("redis://app:secret@{}", server.address())
}

const RATES: &str = "rates, tiers and lockouts, and whatever else a store is used for";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_permissions_in_the_guide_suffice_for_rates_leases_and_permits() {
    let server = RedisServer::start();
    let url = grant(&server, &[RATES]);
    let shop = || store_of(&url).prefix("shop");
    let store = shop().connect().await.unwrap();
    let bucket = || TokenBucket::new(Quota::per_day(100));
    let limiter = store.limiter("rate", bucket()).build().unwrap();
    assert!(limiter.check("a").await.unwrap().is_allowed());
    limiter.reset("a").await.unwrap();
    // Each of these calls is written, and some of them in turn.
    let lockout = bucket().block_for(Duration::from_secs(60)).after(3);
    let lockout = store.limiter("lockout", lockout).build().unwrap();
    let calls: Vec<_> = (0..20).map(|_| tokio::spawn(lockout.check("a"))).collect();
    for call in calls {
        assert!(call.await.unwrap().unwrap().is_allowed());
    }
    let leases = || store.limiter("leased", bucket()).lease(10).build().unwrap();
    named(&leases().check("a").await.unwrap_err(), "HMGET");
    grant(&server, &["leases"]);
    let limiter = leases();
    for _ in 0..4 {
        assert!(limiter.check("a").await.unwrap().is_allowed());
    }
    // The next trip finds that a lease may have expired.
    let key = "shop:{a}:leased:lease/100/86400000000000/100";
    let value = server.call(&["HGET", key, "s"]).text();
    let (value, _) = value.rsplit_once(' ').unwrap();
    server.call(&["HSET", key, "s", &format!("{value} 1")]);
    leases().reset("a").await.unwrap();

    server.call(&["ACL", "DELUSER", "app"]);
    grant(&server, &[RATES]);
    let store = shop().connect().await.unwrap();
    let permits = store.permits("exports", 1).build().unwrap();
    named(&permits.acquire_permit("a").await.unwrap_err(), "HGET");
    grant(&server, &["permits"]);
    let permit = permits.acquire_permit("a").await.unwrap().unwrap();
    // The next trip finds that a permit may have expired.
    let value = server.call(&["HGET", "shop:{a}:exports:p", "s"]).text();
    let mut words: Vec<_> = value.split(' ').collect();
    words[6] = "1";
    server.call(&["HSET", "shop:{a}:exports:p", "s", &words.join(" ")]);
    let next = tokio::spawn(permits.acquire_permit("a"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(permit);
    let permit = next.await.unwrap().unwrap().unwrap();
    assert_eq!(server.calls_of("hgetall"), 2, "of leases and of permits");
    assert_eq!((server.calls_of("subscribe"), server.calls_of("publish")), (0, 0));
    grant(&server, &["messages about permits"]);
    let next = tokio::spawn(permits.acquire_permit("a"));
    while server.calls_of("subscribe") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(permit);
    assert!(next.await.unwrap().unwrap().is_ok());
    assert_eq!(server.calls_of("publish"), 1);
}

#[tokio::test]
async fn the_permissions_in_the_guide_suffice_for_a_database_a_cluster_and_sentinels() {
    let server = RedisServer::start();
    let url = format!("{}/3", grant(&server, &[RATES]));
    let shop = |url: &str| store_of(url).prefix("shop");
    shop(&url).connect().await.unwrap_err();
    grant(&server, &["another database than 0"]);
    let limiter = build(shop(&url).connect().await.unwrap()).1;
    assert!(limiter.check("a").await.unwrap().is_allowed());

    let sentinel = RedisServer::sentinel(&server);
    sentinel.call(&["ACL", "SETUSER", "app", "on", ">secret"]).ok();
    let url = format!("redis://app:secret@{}", sentinel.address());
    let store = || RedisStore::sentinel([&url], "mymaster").deadline(Duration::from_secs(2)).prefix("shop");
    let error = store().connect().await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Permission, "{error}");
    grant(&sentinel, &["each sentinel"]);
    named(&store().connect().await.unwrap_err(), "role");
    grant(&server, &["each server that sentinels watch"]);
    let limiter = build(store().connect().await.unwrap()).1;
    assert!(limiter.check("a").await.unwrap().is_allowed());

    let cluster = RedisCluster::start();
    let urls: Vec<_> = cluster.nodes.iter().map(|node| grant(node, &[RATES])).collect();
    let store = || RedisStore::cluster(&urls).deadline(Duration::from_secs(2)).prefix("shop");
    for (rules, missing) in [(["-asking", "-asking"], "slots"), (["+cluster|slots", "-asking"], "ASKING")] {
        cluster
            .nodes
            .iter()
            .for_each(|node| node.call(&[&["ACL", "SETUSER", "app"], &rules[..]].concat()).ok());
        named(&store().connect().await.unwrap_err(), missing);
    }
    cluster.nodes.iter().for_each(|node| {
        grant(node, &["each node of a cluster"]);
    });
    let limiter = build(store().connect().await.unwrap()).1;
    let key = "shop:{a}:test:t";
    let from = cluster.node_of(key);
    let to = (from + 1) % 3;
    assert!(limiter.check("a").await.unwrap().is_allowed());
    let slot = cluster.begin_to_move(key, from, to);
    cluster.move_keys(&slot, from, to);
    assert!(limiter.check("a").await.unwrap().is_allowed(), "while the slot moves");
    assert!(cluster.nodes[to].calls_of("asking") > 0);
}

#[tokio::test]
async fn a_pattern_of_the_guide_permits_the_keys_of_one_limiter() {
    let server = RedisServer::start();
    let keys = ["~throttle:{*}:test:*", "~throttle:{*}:connect"];
    let mut command = vec!["ACL", "SETUSER", "limited", "reset", "on", ">secret", "+@all"];
    command.extend(keys);
    server.call(&command).ok();
    let url = format!("redis://limited:secret@{}", server.address());
    let store = RedisStore::builder(&url).deadline(Duration::from_secs(10)).connect().await.unwrap();
    let window = || FixedWindow::new(Quota::per_day(5));
    let lockout =
        store.limiter("test", window().block_for(Duration::from_secs(60)).after(3)).build().unwrap();
    // Each of these calls is written, and some of them in turn.
    let calls: Vec<_> = (0..20).map(|_| tokio::spawn(lockout.check("a"))).collect();
    for call in calls {
        let _ = call.await.unwrap().unwrap();
    }
    let other = store.limiter("other", window()).build().unwrap();
    assert_eq!(other.check("a").await.unwrap_err().kind(), RedisErrorKind::Permission);
}

#[tokio::test]
async fn values_of_others_are_errors_and_stay_as_they_are() {
    let server = RedisServer::start();
    let limiter = patient_limiter(&server).await;
    let swaps = build(patient(&server).without_scripts().connect().await.unwrap()).1;
    let key = "throttle:{a}:test:t";
    let unit = "t:10/86400000000000/100000";
    let time = 1_700_000_000_000_000_f64;
    let state = |numbers: &[f64]| {
        let bytes: Vec<_> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        value(unit, &bytes)
    };
    let good = state(&[5.0, time]);
    let replaced = |at: usize, byte: u8| {
        let mut value = good.clone();
        value[at] = byte;
        value
    };
    let mut values = vec![
        Vec::new(),
        b"hello".to_vec(),
        vec![0, 1],
        vec![1; 200],
        // The numbers.
        state(&[1e30, time]),
        state(&[f64::INFINITY, time]),
        state(&[f64::NAN, time]),
        state(&[-5.0, time]),
        state(&[0.5, time]),
        state(&[5.0, f64::NAN]),
        state(&[5.0, -time]),
        state(&[5.0, time + 0.5]),
        state(&[5.0, 1e16]),
        // The length.
        state(&[5.0]),
        state(&[5.0, time, 0.0]),
        [&good[..], b" "].concat(),
        // A byte of the tag, and an older and a newer version.
        replaced(1, !good[1]),
        replaced(7, !good[7]),
        replaced(0, 0),
        replaced(0, 2),
        value("f:5/3600000000000", &[0; 24]),
        value("t:0/86400000000000/100000", &[0; 16]),
    ];
    values.extend((1..good.len()).map(|length| good[..length].to_vec()));
    let mut side = server.connect();
    for value in &values {
        set(&server, key, value);
        let shown = value.escape_ascii();
        for limiter in [&limiter, &swaps] {
            for result in [limiter.check("a").await.map(|_| ()), limiter.reset("a").await.map(|_| ())] {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), RedisErrorKind::Foreign, "{shown}");
                let is_newer = value.first() == Some(&2);
                assert_eq!(error.to_string().contains("a newer release"), is_newer, "{shown}: {error}");
            }
        }
        assert_eq!(side.call(&["GET", key]), Reply::Text(value.clone()), "{shown}");
        assert_eq!(side.call(&["PTTL", key]), Reply::Integer(-1), "{shown}");
        side.call(&["DEL", key]);
    }
    server.call(&["RPUSH", key, "x"]);
    let error = limiter.check("a").await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Foreign);
    let text = error.to_string();
    assert!(text.contains("the limiter is \"test\", TokenBucket 10/d burst 100000"), "{text}");
    assert_eq!(server.call(&["LLEN", key]), Reply::Integer(1));
    server.call(&["DEL", key]);
    // A script takes -0 for 0, and so must the process that reads what the script has found.
    set(&server, key, &state(&[-0.0, time]));
    assert!(limiter.check("a").await.unwrap().is_allowed());
    // A value of this crate without an expiry gets one, and a time in the far future is corrected.
    set(&server, key, &state(&[0.0, 8e15]));
    assert!(limiter.check("a").await.unwrap().is_allowed());
    assert!(matches!(server.call(&["PTTL", key]), Reply::Integer(1..)));
    assert_eq!(used(&limiter).await, 1);
    let long = "k".repeat(1 << 20);
    assert!(limiter.check(long.as_str()).await.is_ok());
}

#[tokio::test]
async fn a_clock_ahead_by_more_than_a_period_denies_no_longer_than_that() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let window = FixedWindow::new(Quota::per_minute(1));
    let limiter = store.limiter("test", window).build().unwrap();
    // The window is full, and was written by a server whose clock was an hour ahead.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    let numbers = [(now + 3_600_000_000) as f64, 0.0, 1.0].map(f64::to_le_bytes).concat();
    set(&server, "throttle:{a}:test:f", &value("f:1/60000000000", &numbers));
    let denial = limiter.check("a").await.unwrap();
    assert!(denial.retry_after() <= Some(Duration::from_secs(60)), "{denial:?}");
    let Reply::Text(value) = server.call(&["GET", "throttle:{a}:test:f"]) else { panic!("no value") };
    let last = f64::from_le_bytes(value[8..16].try_into().unwrap());
    assert!(last < (now + 60_000_000) as f64, "the denial was written: {last}");
    assert!(matches!(server.call(&["PTTL", "throttle:{a}:test:f"]), Reply::Integer(1..=60_010)));
}
