//! The events of this crate: their names and fields are promised in the guide, and those of failures come again.
#![cfg(feature = "tracing")]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::advance;
use tracing::field::{Field, Visit};

use super::faults::swaps;
use super::flights::settle;
use super::limiter;
use super::staged::{Mode, Staged};
use crate::store::RedisStore;
use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, SlidingWindow};
use tower_throttle::key::StoreKey;
use tower_throttle::limiter::{Acquired, Attempt, LimiterFor};

/// An event: its name, its text, the count, and whether the guide has it with this level and these fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) count: u64,
    fields: BTreeSet<&'static str>,
}

/// A subscriber that keeps the events of levels above `debug`, or those of calls, which the other crate logs.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<Event>>>, bool);

impl Events {
    /// Returns the counts of the events with this name.
    pub(crate) fn counts(&self, name: &str) -> Vec<u64> {
        let events = self.0.lock().unwrap();
        events.iter().filter(|event| event.name == name).map(|event| event.count).collect()
    }

    pub(crate) fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }
}

impl Visit for Event {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}").replace('"', "");
        match field.name() {
            "event" => self.name.clone_from(&text),
            "count" => self.count = text.parse().unwrap(),
            _ => {}
        }
        self.text.push_str(&format!("{field}={text} "));
        if !["event", "message"].contains(&field.name()) {
            self.fields.insert(field.name());
        }
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        let of_calls = *metadata.level() == tracing::Level::DEBUG && metadata.target() == "tower_throttle";
        metadata.is_event() && if self.1 { of_calls } else { *metadata.level() <= tracing::Level::INFO }
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let metadata = event.metadata();
        if self.1 {
            let mut visited = Event::default();
            event.record(&mut visited);
            self.0.lock().unwrap().push(visited);
        } else if metadata.module_path().is_some_and(|path| path.starts_with("tower_throttle_redis")) {
            assert_eq!(metadata.target(), "tower_throttle", "{metadata:?}");
            let mut visited = Event::default();
            event.record(&mut visited);
            assert_promised(&visited, &metadata.level().to_string().to_lowercase());
            self.0.lock().unwrap().push(visited);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Panics unless the guide of `tower-throttle` has this event, with its level and its fields, and its text begins as it
/// should.
fn assert_promised(event: &Event, level: &str) {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/guide/production.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let row = guide.lines().find(|line| line.starts_with(&format!("| `{}` |", event.name)));
    let cells: Vec<_> = row.unwrap_or_else(|| panic!("{event:?}")).split('|').map(str::trim).collect();
    let fields: BTreeSet<_> = cells[3].split('`').skip(1).step_by(2).collect();
    assert_eq!((cells[2], fields), (level, event.fields.clone()), "{event:?}");
    // A mistake has a code, which `.ci/codes` compares with the guide.
    let start = if ["warn", "error"].contains(&level) { "tower-throttle[R" } else { "tower-throttle: " };
    assert!(event.text.contains(&format!("message={start}")), "{event:?}");
}

fn window() -> FixedWindow {
    FixedWindow::new(Quota::per_hour(10_000))
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_an_hour_is_an_event_a_minute_and_its_end_is_one() {
    let (server, events) = (Staged::new(), Events::default());
    let _logging = tracing::subscriber::set_default(events.clone());
    let limiter = limiter(&swaps(&server), window());
    server.set(Mode::Fail("LOADING"));
    for _ in 0..3_600 {
        assert!(limiter.check("a").await.is_err());
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(events.counts("redis_failed"), [&[1][..], &[60; 59]].concat());
    assert_eq!(events.counts("redis_recovered").len(), 0);
    server.set(Mode::Serve);
    assert!(limiter.check("a").await.is_ok());
    assert_eq!(events.counts("redis_recovered").len(), 1);
    server.set(Mode::Fail("LOADING"));
    assert!(limiter.check("a").await.is_err());
    assert_eq!(events.counts("redis_failed")[60..], [60], "another outage is logged at once");
}

#[tokio::test(start_paused = true)]
async fn settlements_that_fail_for_an_hour_are_an_event_a_minute() {
    let (server, events) = (Staged::new(), Events::default());
    let limiter = limiter(&swaps(&server), window());
    let _logging = tracing::subscriber::set_default(events.clone());
    for _ in 0..600 {
        server.set(Mode::Serve);
        let call = limiter.call("a").reserve().await.unwrap().unwrap();
        server.set(Mode::Fail("ERR no such thing"));
        call.settle(2);
        settle().await;
        advance(Duration::from_secs(6)).await;
    }
    assert_eq!(events.counts("settlement_failed"), [&[1][..], &[10; 59]].concat());
    assert!(events.all().iter().all(|event| event.text.contains("limiter=test")), "{:?}", events.all());
}

/// The calls of a layer are not: it logs them itself.
#[tokio::test(start_paused = true)]
async fn a_call_without_a_layer_is_an_event_of_the_limiter() {
    let (server, events) = (Staged::new(), Events(Arc::default(), true));
    let limiter = limiter(&swaps(&server), FixedWindow::new(Quota::per_hour(2)).queue(1));
    let _logging = tracing::subscriber::set_default(events.clone());
    let key = StoreKey::Key(());
    assert!(limiter.check("a").await.unwrap().is_allowed() && limiter.check("a").await.unwrap().is_allowed());
    assert!(!limiter.check("a").await.unwrap().is_allowed());
    assert!(limiter.call("a").permit().await.unwrap().is_err());
    assert!(limiter.call("a").cost(3).reserve().await.unwrap().is_err());
    let _ = limiter.peek("a").await.unwrap();
    assert!(limiter.acquire("a").await.unwrap().delay() > Duration::ZERO);
    for _ in 0..2 {
        match LimiterFor::acquire(&limiter, &key, Attempt::new(2)) {
            Acquired::Ready(..) => {}
            Acquired::Pending(wait) => drop(wait.await.unwrap()),
        }
    }
    let seen = events.all();
    let names: Vec<_> = seen.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["denied", "denied", "denied", "queued"], "{seen:?}");
    assert!(seen.iter().all(|event| event.text.contains("limiter=test ")), "{seen:?}");
}

#[tokio::test]
async fn a_store_tells_its_prefix() {
    let events = Events::default();
    let _logging = tracing::subscriber::set_default(events.clone());
    let builder = || RedisStore::builder("redis://127.0.0.1:1");
    let _ = builder().connect_lazily().unwrap();
    let _ = builder().prefix("shop").connect_lazily().unwrap();
    assert!(builder().prefix("failed").connect().await.is_err());
    let server = super::redis_server::RedisServer::start();
    RedisStore::builder(&server.url()).prefix("blog").connect().await.unwrap();
    let logged = events.all();
    assert!(logged.iter().all(|event| event.name == "redis_prefix"), "{logged:?}");
    let prefixes: Vec<_> =
        logged.iter().map(|event| event.text.split("prefix=").nth(1).unwrap().trim()).collect();
    assert_eq!(prefixes, ["throttle", "shop", "blog"]);
}

#[tokio::test]
async fn an_algorithm_that_cannot_be_kept_in_redis_is_logged() {
    let events = Events::default();
    let store = RedisStore::builder("redis://127.0.0.1:1").connect_lazily().unwrap();
    let limiter = store.limiter("a", SlidingWindow::new(Quota::per_hour(1))).build().unwrap();
    let _logging = tracing::subscriber::set_default(events.clone());
    limiter.replace(SlidingWindow::new(Quota::per_hour(1)).priority(20));
    let logged = events.all();
    assert!(matches!(&logged[..], [one] if one.name == "not_replaced"), "{logged:?}");
}
