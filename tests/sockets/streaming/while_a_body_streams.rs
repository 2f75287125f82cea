//! A call holds its permit for as long as the body of its response is sent.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tower_throttle::algorithm::{Concurrency, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use super::connection::{Connection, text, whole};
use super::{Feeds, Piece, Stage, app, at_last, by_user};
use crate::support::{Server, VERSIONS, Version};

#[tokio::test]
async fn a_second_request_is_rejected_for_as_long_as_the_first_streams() {
    for version in VERSIONS {
        let stage = Stage::begin(Concurrency::per_key(1)).await;
        let (first, second) = (stage.connect(version).await, stage.connect(version).await);
        let feed = stage.feed();
        let mut streams = first.get("/stream").await;
        assert_eq!(streams.status(), 200);
        assert_eq!(streams.headers()["ratelimit-policy"], r#""default";q=1;qu="concurrent-requests""#);
        assert_eq!(streams.headers()["ratelimit"], r#""default";r=0"#);
        for chunk in ["a", "b", "c"] {
            let rejected = second.get("/text").await;
            assert_eq!(rejected.status(), 429, "{version:?}");
            assert_eq!(rejected.headers()["retry-after"], "1", "a hint: when a call ends is not known");
            assert_eq!(rejected.headers()["ratelimit"], r#""default";r=0"#);
            whole(rejected).await;
            feed.send(Piece::Data(chunk)).ok().unwrap();
            assert_eq!(text(streams.body_mut()).await, chunk);
        }
        assert_eq!(second.get("/text").await.status(), 429);
        feed.send(Piece::Trailers).ok().unwrap();
        drop(feed);
        let trailers = at_last("trailers", streams.body_mut().frame()).await.unwrap().unwrap();
        assert_eq!(trailers.into_trailers().unwrap()["x-sum"], "42");
        assert!(at_last("the end", streams.body_mut().frame()).await.is_none());
        stage.gets_free("the end of the first").await;
        let passes = second.get("/text").await;
        assert_eq!((passes.status().as_u16(), &*whole(passes).await), (200, &b"text"[..]));
    }
}

/// Tests a stream of half a second with the real clock.
#[tokio::test]
async fn a_stream_of_half_a_second_holds_its_permit_for_half_a_second() {
    let stage = Stage::begin(Concurrency::per_key(1)).await;
    let (first, second) = (stage.connect(Version::Http1).await, stage.connect(Version::Http2).await);
    let feed = stage.feed();
    let streams = first.get("/stream").await;
    let feeding = tokio::spawn(async move {
        for _ in 0..10 {
            sleep(Duration::from_millis(50)).await;
            feed.send(Piece::Data("tick")).ok().unwrap();
        }
    });
    let mut rejected = 0;
    while !feeding.is_finished() {
        let answer = second.get("/text").await;
        if !feeding.is_finished() {
            assert_eq!(answer.status(), 429);
            rejected += 1;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert!(rejected > 3, "{rejected}");
    assert_eq!(whole(streams).await.len(), 40);
    stage.gets_free("the end").await;
}

/// Tests a client that reads slowly. Its call holds the permit, because a body that has not been sent has not ended.
#[tokio::test]
async fn a_client_that_does_not_read_holds_its_permit() {
    for version in VERSIONS {
        let stage = Stage::begin(Concurrency::per_key(1)).await;
        let (slow, other) = (stage.connect(version).await, stage.connect(version).await);
        let feed = stage.feed();
        let streams = slow.get("/stream").await;
        let block: &'static str = "x".repeat(1 << 20).leak();
        for _ in 0..64 {
            feed.send(Piece::Data(block)).ok().unwrap();
        }
        drop(feed);
        for _ in 0..20 {
            assert_eq!(other.get("/text").await.status(), 429, "{version:?}");
        }
        assert_eq!(whole(streams).await.len(), 64 << 20);
        stage.gets_free("the end").await;
    }
}

#[tokio::test]
async fn the_total_counts_streams_of_all_users() {
    let limiter = RateLimiter::new(Concurrency::per_key(2).total(3));
    let feeds = Feeds::default();
    let layer = RateLimitLayer::with_limiter(by_user(), limiter.clone());
    let server = Server::start(app(&feeds).layer(layer)).await;
    let stage = Stage { server, limiter, feeds };
    let connection = stage.connect(Version::Http2).await;
    let others =
        [stage.limiter.try_acquire_permit("ben").unwrap(), stage.limiter.try_acquire_permit("cleo").unwrap()];
    let _feed = stage.feed();
    let streams = connection.get("/stream").await;
    assert_eq!(connection.get("/text").await.status(), 429);
    drop(others);
    assert_eq!(connection.get("/text").await.status(), 200);
    drop(streams);
    stage.gets_free("the stream").await;
    assert!(stage.is_free());
}

/// Tests a limit that is joined with a rate limit on another key, and a limit in a tuple with a rate limit.
#[tokio::test]
async fn beside_a_rate_the_permit_of_a_stream_is_held_to_its_end() {
    let rate = RateLimiter::new(TokenBucket::new(Quota::per_day(100)));
    let one = RateLimiter::new(Concurrency::per_key(1));
    let tuple = RateLimiter::new((TokenBucket::new(Quota::per_day(100)), Concurrency::per_key(1)));
    let feeds = Feeds::default();
    let joined = RateLimitLayer::with_limiter(Global, rate.clone())
        .name("rate")
        .and(RateLimitLayer::with_limiter(by_user(), one.clone()).name("at-once"));
    let apps = [
        app(&feeds).layer(joined),
        app(&feeds).layer(RateLimitLayer::with_limiter(by_user(), tuple.clone())),
    ];
    for (nth, app) in apps.into_iter().enumerate() {
        let server = Server::start(app).await;
        for version in VERSIONS {
            let (first, second) = (
                Connection::open(server.address, version).await,
                Connection::open(server.address, version).await,
            );
            let (feed, receiver) = mpsc::unbounded_channel();
            feeds.lock().unwrap().push_back(receiver);
            let mut streams = first.get("/stream").await;
            assert_eq!(second.get("/text").await.status(), 429);
            feed.send(Piece::Data("a")).ok().unwrap();
            text(streams.body_mut()).await;
            assert_eq!(second.get("/text").await.status(), 429);
            drop(feed);
            whole(streams).await;
            at_last("the end", async {
                while second.get("/text").await.status() != 200 {
                    sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
        }
        // There are two streams and two texts. Neither limit was charged for the rejected call.
        if nth == 0 {
            assert_eq!(rate.peek(&()).remaining(), 96);
        }
    }
}
