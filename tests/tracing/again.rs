//! What goes on is logged again, at most once a minute, so that it is also in the newest file of a log.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{ClientIp, Extension, Global, MissingKey, PeerIp, TrustedProxies};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::OwnLimiter;
use crate::{Http, Log, get, hello};

const SECOND: Duration = Duration::from_secs(1);

/// The counts of the events of an hour in which a mistake is made once a second.
fn each_minute() -> Vec<u64> {
    [&[1][..], &[60; 59]].concat()
}

/// Makes a mistake once a second, for an hour. Returns the counts of the events with this name.
async fn counts_of_an_hour(event: &str, mut mistake: impl AsyncFnMut()) -> Vec<u64> {
    let (log, _guard) = Log::start();
    for _ in 0..3_600 {
        mistake().await;
        tokio::time::advance(SECOND).await;
    }
    log.counts(event)
}

/// Sends the same request once a second, for an hour. Each response has this status.
async fn counts_of<S>(event: &str, service: S, status: u16, request: impl Fn() -> Http) -> Vec<u64>
where
    S: Service<Http, Response = Response<Full<bytes::Bytes>>, Error = Infallible> + Clone,
{
    counts_of_an_hour(event, async || {
        assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), status);
    })
    .await
}

fn bucket(limit: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_second(limit))
}

macro_rules! served {
    ($layer:expr) => {
        $layer
            .layer(service_fn(hello))
            .map_response(|response| response.map(|_| Full::<bytes::Bytes>::default()))
    };
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_500s_is_an_event_a_minute_with_the_count_since() {
    let counts =
        counts_of("missing_key", served!(RateLimitLayer::per_ip(Quota::per_second(9))), 500, get).await;
    println!("{} events about {} of 3,600 responses", counts.len(), counts.iter().sum::<u64>());
    assert_eq!(counts, each_minute());
    for missing in [MissingKey::Shared, MissingKey::Pass] {
        let layer = RateLimitLayer::per_ip(Quota::per_second(9)).missing_key(missing);
        assert_eq!(counts_of("missing_key", served!(layer), 200, get).await, each_minute());
    }
}

#[tokio::test(start_paused = true)]
async fn each_mistake_that_goes_on_is_an_event_a_minute() {
    let forwarded = |peer: [u8; 4], header: &'static str| {
        move || {
            let mut request = get();
            request.extensions_mut().insert(IpAddr::from(peer));
            request.headers_mut().insert(header, "192.0.2.1".parse().unwrap());
            request
        }
    };
    let few = RateLimitLayer::new(ClientIp::x_forwarded_for(TrustedProxies::hops(2).unwrap()), bucket(9));
    let request = forwarded([127, 0, 0, 1], "x-forwarded-for");
    assert_eq!(counts_of("list_too_short", served!(few), 400, request).await, each_minute());

    let by_peer = RateLimitLayer::new(PeerIp::new(), bucket(9));
    let request = forwarded([10, 0, 0, 1], "x-forwarded-for");
    assert_eq!(counts_of("proxy_as_client", served!(by_peer), 200, request).await, each_minute());
    let unread = RateLimitLayer::new(
        ClientIp::x_forwarded_for(TrustedProxies::cidrs(["192.0.2.0/24"]).unwrap()),
        bucket(9),
    );
    assert_eq!(counts_of("proxy_as_client", served!(unread), 200, request).await, each_minute());

    let costly = RateLimitLayer::new(Global, bucket(9)).cost(|_: &Http| 10);
    assert_eq!(counts_of("cost_never_fits", served!(costly), 429, get).await, each_minute());

    let closed = RateLimitLayer::new(Global, bucket(9));
    closed.limiter().close();
    assert_eq!(counts_of("limiter_closed", served!(closed), 503, get).await, each_minute());

    let ignored = RateLimitLayer::new(Global, bucket(9)).priority(|_: &Http| true);
    assert_eq!(counts_of("priority_ignored", served!(ignored), 200, get).await, each_minute());

    let limiter = RateLimiter::builder(FixedWindow::new(Quota::per_day(1))).max_keys(10).build();
    (0..10).for_each(|key| _ = limiter.check(&key));
    let mut keys = 10..;
    let counts = counts_of_an_hour("table_full", async || _ = limiter.check(&keys.next())).await;
    assert_eq!(counts, each_minute());
}

/// The time of the event is that of the limiter's clock, which may step.
#[tokio::test(start_paused = true)]
async fn a_full_table_is_logged_although_the_clock_was_set_back() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::builder(FixedWindow::new(Quota::per_day(1))).max_keys(1).clock(clock.clone()).build();
    let (log, _guard) = Log::start();
    let mut keys = 0..;
    let mut flood = |seconds: u64| {
        for _ in 0..seconds {
            _ = limiter.check(&keys.next());
            clock.advance(SECOND);
        }
    };
    flood(61);
    clock.set(3_600 * SECOND);
    flood(60);
    clock.set(Duration::ZERO);
    flood(120);
    assert_eq!(log.counts("table_full"), [1, 60, 60, 60]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_for_an_hour_is_an_event_a_minute_until_it_decides_again() {
    let limiter = OwnLimiter::new(bucket(1_000));
    limiter.set_down(true);
    let service = served!(RateLimitLayer::with_limiter(Global, limiter.clone()));
    let (log, _guard) = Log::start();
    let ask = async |status: u16| {
        assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), status);
        tokio::time::advance(SECOND).await;
    };
    for _ in 0..3_600 {
        ask(503).await;
    }
    assert_eq!(log.counts("store_failed"), each_minute());
    limiter.set_down(false);
    for _ in 0..600 {
        ask(200).await;
    }
    assert_eq!(log.counts("store_failed").len(), 60, "it is over");
    assert_eq!(log.lines().len(), 61, "{:#?}", log.lines());
    limiter.set_down(true);
    ask(503).await;
    // The 59 failures before the recovery that no event has counted, and this one.
    assert_eq!(log.counts("store_failed")[60..], [60], "the next failure is logged at once");
}

/// Two kinds of missing keys: each is logged by itself, and an event that is not due hides no other one.
#[tokio::test(start_paused = true)]
async fn each_kind_of_mistake_has_minutes_of_its_own() {
    #[derive(Clone)]
    struct User(u64);
    let (log, _guard) = Log::start();
    let key = (PeerIp::new(), Extension::<User, _>::new(|user| user.0));
    let service = served!(RateLimitLayer::new(key, bucket(9)));
    let with_peer = || {
        let mut request = Request::new(Full::default());
        request.extensions_mut().insert(IpAddr::from([192, 0, 2, 1]));
        request
    };
    for second in 0..120 {
        let request = if second % 2 == 0 { get() } else { with_peer() };
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 500);
        tokio::time::advance(SECOND).await;
    }
    assert_eq!(log.counts("missing_key"), [1, 1, 30, 30], "{:#?}", log.lines());
}

#[tokio::test(start_paused = true)]
async fn a_mistake_that_has_ended_is_not_logged_again() {
    let (log, _guard) = Log::start();
    let service = served!(RateLimitLayer::per_ip(Quota::per_second(9)));
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 500);
    for _ in 0..600 {
        let mut request = get();
        request.extensions_mut().insert(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200);
        tokio::time::advance(SECOND).await;
    }
    assert_eq!(log.counts("missing_key"), [1]);
}
