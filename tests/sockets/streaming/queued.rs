//! Calls are queued for a permit that a streamed response holds.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, Response};
use axum::routing::get;
use hyper::body::Incoming;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower_throttle::algorithm::{Concurrency, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};

use super::connection::{Connection, Tasks, text, whole};
use super::{Feeds, Piece, Stage, USER, app, at_last, by_user};
use crate::support::{self, Server, VERSIONS, Version};

struct QueuedStreams {
    stage: Stage,
    connections: Vec<Connection>,
}

impl QueuedStreams {
    async fn waits(&self, count: usize) {
        at_last(&format!("{count} wait"), async {
            while self.stage.limiter.queued() != count {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Makes a request whose body has the chunks that the test sends. With HTTP/1.1, the request has a connection of
    /// its own.
    fn call(&self, at: usize) -> JoinHandle<Response<Incoming>> {
        let (sender, address) = (self.connections[at].sender.clone(), self.connections[at].address);
        tokio::spawn(async move {
            let connection = Connection { address, sender, tasks: Tasks::default() };
            connection.send(Method::GET, "/stream").await
        })
    }
}

#[tokio::test]
async fn the_next_queued_call_is_admitted_when_the_body_before_it_has_ended() {
    for version in VERSIONS {
        let stage = Stage::begin(Concurrency::per_key(1).total(5).queue(3)).await;
        let mut connections = Vec::new();
        for _ in 0..6 {
            connections.push(stage.connect(version).await);
        }
        let queue = QueuedStreams { stage, connections };
        let feed = queue.stage.feed();
        let mut streams = at_last("the first", queue.call(0)).await.unwrap();
        let (mut calls, mut feeds) = (VecDeque::new(), VecDeque::new());
        for at in 1..=3 {
            feeds.push_back(queue.stage.feed());
            calls.push_back(queue.call(at));
            queue.waits(at).await;
        }
        // The queue is full, and the total of five is not used up.
        let rejected = at_last("a rejection", queue.call(4)).await.unwrap();
        assert_eq!(
            (rejected.status().as_u16(), &rejected.headers()["retry-after"]),
            (429, &"1".parse().unwrap())
        );
        // The client of the second queued call disconnects, so the third call moves up.
        let leaves = calls.remove(1).unwrap();
        leaves.abort();
        queue.connections[2].close();
        if version == Version::Http2 {
            drop(leaves.await);
        }
        queue.waits(2).await;
        feeds.pop_back();
        feed.send(Piece::Data("a")).ok().unwrap();
        assert_eq!(text(streams.body_mut()).await, "a");
        queue.waits(2).await;
        assert!(calls.iter().all(|call| !call.is_finished()));
        drop(feed);
        for left in [1, 0] {
            whole(streams).await;
            streams = at_last("its admission", calls.pop_front().unwrap()).await.unwrap();
            assert_eq!((streams.status().as_u16(), queue.stage.limiter.queued()), (200, left), "{version:?}");
            assert!(calls.iter().all(|call| !call.is_finished()), "one at a time, in order");
            assert!(queue.stage.limiter.try_acquire_permit(USER).is_err());
            drop(feeds.pop_front());
        }
        whole(streams).await;
        queue.stage.gets_free("the last").await;
    }
}

#[tokio::test]
async fn a_wait_that_is_too_long_ends_with_429() {
    for version in VERSIONS {
        let clock = ManualClock::new();
        let rule = Concurrency::per_key(1).queue(3).max_wait(Duration::from_secs(5));
        let limiter = RateLimiter::builder(rule).clock(clock.clone()).build();
        let feeds = Feeds::default();
        let app = app(&feeds).layer(RateLimitLayer::with_limiter(by_user(), limiter.clone()));
        let stage = Stage { server: Server::start(app).await, limiter, feeds };
        let connections = vec![stage.connect(version).await, stage.connect(version).await];
        let queue = QueuedStreams { stage, connections };
        let _feed = queue.stage.feed();
        let streams = at_last("the first", queue.call(0)).await.unwrap();
        let waits = queue.call(1);
        queue.waits(1).await;
        clock.advance(Duration::from_secs(5));
        let rejected = at_last("a rejection", waits).await.unwrap();
        assert_eq!(
            (rejected.status().as_u16(), &rejected.headers()["retry-after"]),
            (429, &"1".parse().unwrap())
        );
        assert_eq!(rejected.headers()["content-type"], "application/problem+json");
        assert_eq!(queue.stage.limiter.queued(), 0);
        drop(streams);
    }
}

#[tokio::test]
async fn a_handler_can_read_how_long_its_request_was_queued() {
    let clock = ManualClock::new();
    let algorithm = LeakyBucket::new(Quota::per_second(10)).queue(5);
    let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
    let reported = |axum::Extension(decision): axum::Extension<Decision>| async move {
        format!("{} ms", decision.delay().as_millis())
    };
    let app = Router::new().route("/", get(reported)).layer(
        RateLimitLayer::with_limiter(Global, limiter.clone())
            .and(RateLimitLayer::new(Global, TokenBucket::new(Quota::per_day(50)))),
    );
    let server = Server::start(app).await;
    assert_eq!(support::get(server.address, Version::Http1, "/").await.text(), "0 ms");
    let calls: Vec<_> = [(); 2]
        .into_iter()
        .map(|()| async move { support::get(server.address, Version::Http2, "/").await })
        .map(tokio::spawn)
        .collect();
    at_last("both wait", async {
        while limiter.queued() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    clock.advance(Duration::from_millis(100));
    let mut first = None;
    at_last("the first", async {
        while !calls.iter().any(JoinHandle::is_finished) {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    clock.advance(Duration::from_millis(100));
    for call in calls {
        let answer = at_last("an answer", call).await.unwrap();
        first.get_or_insert_with(Vec::new).push(answer.text().to_owned());
    }
    let mut all = first.unwrap();
    all.sort();
    assert_eq!(all, ["100 ms", "200 ms"]);
}
