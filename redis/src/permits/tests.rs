//! Calls of several runtimes, some of which end or are not driven.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::RedisPermits;
use crate::store::RedisStore;
use crate::tests::redis_server::RedisServer;

const LEASE: Duration = Duration::from_millis(1_200);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn limiter(server: &RedisServer) -> RedisPermits {
    leasing(server, LEASE)
}

fn leasing(server: &RedisServer, lease: Duration) -> RedisPermits {
    let store = RedisStore::builder(&server.url()).deadline(lease / 8).connect_lazily().unwrap();
    store.permits("test", 1).lease(lease).build().unwrap()
}

/// Makes calls until one is admitted.
async fn until_admitted(limiter: &RedisPermits) {
    for _ in 0..100 {
        if limiter.try_acquire_permit("a").await.is_ok_and(|permit| permit.is_ok()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no call is admitted");
}

#[test]
fn calls_on_another_runtime_are_decided_if_the_first_runtime_is_not_driven() {
    let server = RedisServer::start();
    let limiter = limiter(&server);
    let first = runtime();
    // The permit is kept, so the task of the key goes on, but its runtime is not driven any more.
    let _permit = first.block_on(limiter.try_acquire_permit("a")).unwrap().unwrap();
    // The connection has a task on the first runtime, too. The store makes another connection.
    runtime().block_on(until_admitted(&limiter));
}

#[test]
fn a_waiter_gets_its_permit_if_the_runtime_that_made_the_trips_ends() {
    let server = RedisServer::start();
    let limiter = limiter(&server);
    let (first, second) = (runtime(), runtime());
    let permit = first.block_on(limiter.acquire_permit("a")).unwrap().unwrap();
    let waiter = limiter.clone();
    let waiter = second.spawn(async move { waiter.acquire_permit("a").await });
    // The task of the key is on the first runtime.
    let both = std::thread::spawn(move || {
        second.block_on(async move { tokio::time::timeout(Duration::from_secs(30), waiter).await })
    });
    first.block_on(async { tokio::time::sleep(Duration::from_millis(300)).await });
    drop(first);
    drop(permit);
    let waited = both.join().unwrap().expect("it does not hang").unwrap();
    assert!(waited.unwrap().is_ok());
    runtime().block_on(until_admitted(&limiter));
}

#[test]
fn a_permit_is_free_if_the_runtime_that_made_the_trips_ends_when_it_is_dropped() {
    let (server, lease) = (RedisServer::start(), Duration::from_secs(24));
    let limiter = leasing(&server, lease);
    let (first, second) = (runtime(), runtime());
    let permit = first.block_on(limiter.acquire_permit("a")).unwrap().unwrap();
    // The task of the key is on the first runtime, which is not driven any more.
    second.block_on(async move { drop(permit) });
    drop(first);
    let other = leasing(&server, lease);
    let admitted = async { tokio::time::timeout(lease / 2, other.acquire_permit("a")).await };
    assert!(second.block_on(admitted).expect("it waits for the lease").unwrap().is_ok());
}

/// Calls that wait for a permit, some of which are kept and not polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_call_holds_its_place_and_its_permit_until_it_is_dropped() {
    const MS: Duration = Duration::from_millis(1);
    let patience = Duration::from_secs(30);
    let server = RedisServer::start();
    // The future is left before its trip, during its trip, or while it waits.
    for polled in [Duration::ZERO, MS / 20, 100 * MS] {
        for is_closed in [false, true] {
            let store = RedisStore::builder(&server.url()).deadline(2_000 * MS).connect_lazily().unwrap();
            let limiter = store.permits(&format!("{polled:?}{is_closed}"), 1).build().unwrap();
            let permit = limiter.acquire_permit("a").await.unwrap().unwrap();
            let mut kept = Box::pin(limiter.acquire_permit("a"));
            // With zero, `timeout` polls the call once.
            assert!(tokio::time::timeout(polled, &mut kept).await.is_err(), "{polled:?}");
            // Calls that were left during their trips have arrived before the next call.
            tokio::time::sleep(100 * MS).await;
            let mut behind: Vec<_> = (0..3).map(|_| tokio::spawn(limiter.acquire_permit("a"))).collect();
            tokio::time::sleep(100 * MS).await;
            if is_closed {
                limiter.close();
                for call in behind {
                    let denied = tokio::time::timeout(patience, call).await.expect("it is denied");
                    assert!(denied.unwrap().unwrap().is_err());
                }
                assert!(tokio::time::timeout(patience, kept).await.unwrap().unwrap().is_err());
                continue;
            }
            // The kept call gets the permit, and holds it.
            drop(permit);
            tokio::time::sleep(300 * MS).await;
            assert!(behind.iter().all(|call| !call.is_finished()), "the kept call was overtaken: {polled:?}");
            // Calls for another key do not wait for it.
            let other = tokio::time::timeout(patience, limiter.acquire_permit("b")).await;
            assert!(other.unwrap().unwrap().is_ok());
            drop(kept);
            while !behind.is_empty() {
                let next = async {
                    loop {
                        if let Some(at) = behind.iter().position(tokio::task::JoinHandle::is_finished) {
                            return behind.remove(at).await;
                        }
                        tokio::time::sleep(MS).await;
                    }
                };
                let permit = tokio::time::timeout(patience, next).await.expect("a call behind is lost");
                assert!(permit.unwrap().unwrap().is_ok());
            }
        }
    }
}

#[cfg(feature = "tracing")]
#[tokio::test]
async fn a_command_for_messages_that_is_renamed_is_logged_once_and_permits_are_handed_over() {
    let server = RedisServer::with(&["--rename-command", "PUBLISH", "renamed"]);
    let limiter = limiter(&server);
    let logged = crate::tests::events::Events::default();
    let _logging = tracing::subscriber::set_default(logged.clone());
    let mut permit = limiter.acquire_permit("a").await.unwrap().unwrap();
    for _ in 0..3 {
        let waiter = tokio::spawn(limiter.acquire_permit("a"));
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(permit);
        permit = waiter.await.unwrap().unwrap().unwrap();
    }
    let logged = logged.all();
    assert!(
        matches!(&logged[..], [one] if one.name == "messages_refused" && one.text.contains("(PUBLISH")),
        "{logged:?}"
    );
}

#[cfg(feature = "tracing")]
#[tokio::test]
async fn a_user_who_may_not_subscribe_is_logged_once() {
    let server = RedisServer::start();
    let rules = ["on", ">secret", "allkeys", "allchannels", "allcommands", "-subscribe"];
    server.call(&[&["ACL", "SETUSER", "app"], &rules[..]].concat()).ok();
    let url = format!("redis://app:secret@{}", server.address());
    let store = RedisStore::builder(&url).deadline(LEASE / 8).connect().await.unwrap();
    let limiter = store.permits("test", 1).lease(LEASE).build().unwrap();
    let logged = crate::tests::events::Events::default();
    let _logging = tracing::subscriber::set_default(logged.clone());
    let permit = limiter.acquire_permit("a").await.unwrap().unwrap();
    let waiter = tokio::spawn(limiter.acquire_permit("a"));
    // The subscription is tried again after 100, 200, 400 and 800 ms.
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(permit);
    assert!(waiter.await.unwrap().unwrap().is_ok(), "it has asked the server");
    let logged = logged.all();
    assert!(
        matches!(&logged[..], [one] if one.name == "messages_refused" && one.text.contains("NOPERM")),
        "{logged:?}"
    );
}
