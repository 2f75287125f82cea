//! Rejections byte by byte, in process and as one frame of a connection.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{Empty, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, Header, KeyError, KeyExtractor, PeerIp};

use tower_throttle::middleware::{HttpResponder, SendHeaders};
use tower_throttle::store::{Acquired, Attempt, KeyedStore, Reservation, Store};
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};

use crate::details::{Details, reported};
use crate::frames::{self, EMPTY, Says, ask, call, one};
use crate::protobuf::{A_QUARTER, ONE_SECOND, THIRTY_SECONDS_PER_IP, denied};
use crate::service::{Echo, METHODS, SAY, builder, limit, serve};
use crate::support::Random;

fn per(limit: u64, period: Duration) -> TokenBucket {
    TokenBucket::new(Quota::per(limit, period).unwrap())
}

fn request() -> Request<Full<Bytes>> {
    call(SAY, Some("application/grpc")).map(|()| Full::from(EMPTY))
}

type App = Response<Empty<Bytes>>;

/// Calls a service behind the layer. The service answers every request.
async fn through<L, S, B>(layer: &L) -> Response<B>
where
    L: Layer<tower::util::BoxCloneSyncService<Request<Full<Bytes>>, App, Infallible>, Service = S>,
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
{
    let inner = service_fn(|_| async { Ok(Response::new(Empty::new())) });
    layer.layer(tower::util::BoxCloneSyncService::new(inner)).oneshot(request()).await.unwrap()
}

/// Returns the headers of a rejection, which has no body and no trailers.
macro_rules! refusal {
    ($layer:expr) => {{
        let response = through(&$layer).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.body().is_end_stream() && response.body().size_hint().exact() == Some(0));
        let headers = response.into_parts().0.headers;
        assert_eq!(one(&headers, "content-type"), Some("application/grpc"));
        assert_eq!(one(&headers, "grpc-message"), Some("rate limit exceeded"));
        headers
    }};
}

/// Returns the headers of the rejection of the second of two calls.
macro_rules! second {
    ($layer:expr) => {{
        let layer = $layer;
        assert!(!through(&layer).await.headers().contains_key("grpc-status"));
        refusal!(layer)
    }};
}

#[tokio::test]
async fn over_a_connection_each_rejection_is_one_frame_of_known_bytes() {
    let second = Duration::from_secs(1);
    let minute_and_more = Duration::new(60, 1);
    for (layer, details, retry_after, pushback) in [
        (limit(per(1, second), &ManualClock::new()).hidden(), ONE_SECOND.to_owned(), "1", Some("1000")),
        (limit(per(1, second / 4), &ManualClock::new()).hidden(), A_QUARTER.to_owned(), "1", Some("250")),
        (
            limit(per(1, 30 * second), &ManualClock::new()).name("per-ip"),
            THIRTY_SECONDS_PER_IP.to_owned(),
            "30",
            Some("30000"),
        ),
        (
            limit(per(1, minute_and_more), &ManualClock::new()).hidden(),
            denied(Some(minute_and_more), &[]),
            "61",
            Some("-1"),
        ),
        (
            limit(per(1, 60 * second), &ManualClock::new()),
            denied(Some(60 * second), &["default"]),
            "60",
            Some("60000"),
        ),
    ] {
        let server = serve!(builder().layer(layer).add_service(Echo::default()));
        let admitted = ask(server.address, SAY).await;
        assert!(!admitted.has("grpc-status") && admitted.frames.len() > 1, "{admitted:?}");
        for method in METHODS {
            let heard = ask(server.address, method).await;
            heard.assert_is_trailers_only();
            assert_eq!(heard.header("content-type"), "application/grpc");
            assert_eq!(heard.header("grpc-status"), "8");
            assert_eq!(heard.header("grpc-message"), "rate limit exceeded");
            assert_eq!(heard.header("grpc-status-details-bin"), details);
            assert_eq!(heard.header("retry-after"), retry_after);
            assert_eq!(one(&heard.headers, "grpc-retry-pushback-ms"), pushback);
            reported(&heard.headers);
        }
    }
}

#[tokio::test]
async fn a_caller_that_still_sends_gets_the_same_frame_and_no_further_demand() {
    let echo = Echo::default();
    let layer = limit(per(1, Duration::from_secs(1)), &ManualClock::new()).cost(|_: &Request<_>| 2);
    let server = serve!(builder().layer(layer).add_service(echo.clone()));
    for method in METHODS {
        let heard =
            frames::send(server.address, call(method, Some("application/grpc")), Says::AndGoesOn).await;
        heard.assert_is_trailers_only();
        assert!(heard.frames[1..].iter().any(|frame| frame.asks_for_no_more()), "{heard:?}");
    }
    assert_eq!(echo.calls(), 0);
}

#[tokio::test]
async fn a_name_is_reported_unchanged() {
    let longest: String = ('!'..='~').cycle().take(256).collect();
    let long = |length| "x".repeat(length);
    let names = ["per ip", "a\"b\\c", "100%", "%25 %", " ", "a,b;c=d", "%E2%82%AC", "~", &longest];
    let lengths = [1, 117, 118, 119, 127, 128, 129, 255, 256].map(long);
    for name in names.into_iter().chain(lengths.iter().map(String::as_str)) {
        let headers = second!(limit(per(1, Duration::from_millis(1_500)), &ManualClock::new()).name(name));
        let wait = Some(Duration::from_millis(1_500));
        assert_eq!(one(&headers, "grpc-status-details-bin"), Some(denied(wait, &[name]).as_str()), "{name}");
        assert_eq!(reported(&headers), Details::new(wait, &[name], Some(1_500)));
    }
}

#[tokio::test]
async fn a_wait_is_reported_to_the_nanosecond() {
    let nano = Duration::from_nanos(1);
    let minute = Duration::from_secs(60);
    for (wait, retry_after, pushback) in [
        (nano, "1", Some(1)),
        (Duration::new(0, 999_999), "1", Some(1)),
        (Duration::new(0, 1_000_000), "1", Some(1)),
        (Duration::new(0, 1_000_001), "1", Some(2)),
        (Duration::new(0, 999_999_999), "1", Some(1_000)),
        (Duration::new(1, 1), "2", Some(1_001)),
        (Duration::new(3, 0), "3", Some(3_000)),
        (minute - nano, "60", Some(60_000)),
        (minute, "60", Some(60_000)),
        (minute + nano, "61", Some(-1)),
        (Duration::from_secs(3_600), "3600", Some(-1)),
        (Duration::new(100 * 365 * 86_400, 7), "2147483647", Some(-1)),
    ] {
        let headers = second!(limit(per(1, wait), &ManualClock::new()));
        assert_eq!(reported(&headers), Details::new(Some(wait), &["default"], pushback));
        assert_eq!(one(&headers, "retry-after"), Some(retry_after), "{wait:?}");
    }
}

/// Makes calls at random times. Each rejection must report the decision of the limiter. Returns the number of
/// rejections.
async fn walk<A>(rule: A, random: &mut Random) -> usize
where
    A: Algorithm + Debug + Send + Sync + 'static,
    A::State: Send + 'static,
{
    let clock = ManualClock::new();
    let layer = limit(rule, &clock);
    let mut refused = 0;
    for _ in 0..100 {
        clock.advance(Duration::from_nanos(random.below(500_000_000)));
        let decision = layer.limiter().peek(&());
        if decision.is_allowed() {
            assert!(!through(&layer).await.headers().contains_key("grpc-status"));
            continue;
        }
        let headers = refusal!(layer);
        let reported = reported(&headers);
        assert_eq!((reported.wait, reported.names), (decision.retry_after(), vec!["default".to_owned()]));
        refused += 1;
    }
    refused
}

#[tokio::test]
async fn with_every_algorithm_it_is_the_wait_of_the_decision() {
    let mut random = Random::new(6);
    for round in 0..10 {
        let period = Duration::from_nanos(random.within(1_000_000_000..=90_000_000_000));
        let quota = Quota::per(random.within(1..=5), period).unwrap();
        for refused in [
            walk(TokenBucket::new(quota), &mut random).await,
            walk(LeakyBucket::new(quota).queue(0), &mut random).await,
            walk(FixedWindow::new(quota), &mut random).await,
            walk(SlidingWindow::new(quota), &mut random).await,
            walk(SlidingCounter::new(quota), &mut random).await,
            walk(SlidingLog::new(quota), &mut random).await,
            walk(Smooth::bursty(quota).queue(0), &mut random).await,
            walk(Smooth::warming_up(quota, period / 2).queue(0), &mut random).await,
            walk(TokenBucket::new(quota).block_for(period).after(3), &mut random).await,
        ] {
            assert!(refused > 0, "round {round}: {quota:?} rejected no call");
        }
    }
}

#[tokio::test]
async fn of_several_policies_those_that_denied_are_named() {
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let a = || limit(per(1, second), &clock).name("a");
    let b = || limit(per(1, 3 * second), &clock).name("b");
    let ample = || limit(per(9, second), &clock).name("ample");

    // The rejection reports the longest wait, since all policies must allow the call.
    let headers = second!(a().and(ample()).and(b()));
    assert_eq!(reported(&headers), Details::new(Some(3 * second), &["a", "b"], Some(3_000)));
    let headers = second!(ample().and(b()));
    assert_eq!(reported(&headers), Details::new(Some(3 * second), &["b"], Some(3_000)));
    // The wait of a hidden policy is included.
    let headers = second!(a().and(b().hidden()));
    assert_eq!(reported(&headers), Details::new(Some(3 * second), &["a"], Some(3_000)));
    let headers = second!(a().hidden().and(ample()).and(b().hidden()));
    assert_eq!(reported(&headers), Details::new(Some(3 * second), &[], Some(3_000)));
    // Policies with the same name get different names.
    let headers = second!(a().and(a()));
    assert_eq!(reported(&headers), Details::new(Some(second), &["a", "a-2"], Some(1_000)));
}

#[tokio::test]
async fn of_several_limits_on_one_key_the_decisive_one_is_named() {
    let second = Duration::from_secs(1);
    let limits = (per(1, second), per(2, 60 * second));
    let clock = ManualClock::new();
    let layer = limit(limits, &clock).name("user");
    let headers = second!(layer.clone());
    assert_eq!(reported(&headers), Details::new(Some(second), &["user"], Some(1_000)));
    clock.advance(second);
    let headers = second!(layer);
    assert_eq!(reported(&headers), Details::new(Some(29 * second), &["user-2"], Some(29_000)));
}

#[tokio::test]
async fn a_cost_that_can_never_fit_is_not_to_be_retried() {
    let dear = |_: &Request<_>| 2;
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let never = limit(per(1, second), &clock).cost(dear);
    let headers = refusal!(never);
    assert_eq!(reported(&headers), Details::new(None, &["default"], Some(-1)));
    assert_eq!(one(&headers, "grpc-status-details-bin"), Some(denied(None, &["default"]).as_str()));

    let headers = refusal!(never.hidden());
    assert_eq!(reported(&headers), Details::new(None, &[], Some(-1)));
    assert_eq!(one(&headers, "grpc-status-details-bin"), Some("CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQ"));

    // Waiting does not help, even if another policy would allow the call later.
    let used = limit(per(1, second), &clock).name("later");
    assert!(used.limiter().check(&()).is_allowed());
    let never = limit(per(1, second), &clock).cost(dear).name("never");
    let headers = refusal!(used.and(never));
    assert_eq!(reported(&headers), Details::new(None, &["later", "never"], Some(-1)));
}

#[tokio::test]
async fn the_end_of_a_call_in_progress_is_not_known() {
    let layer = limit(Concurrency::per_key(1), &ManualClock::new());
    let _in_progress = layer.limiter().try_acquire_permit(&()).unwrap();
    let headers = refusal!(layer);
    assert_eq!(reported(&headers), Details::new(None, &["default"], None));
}

#[tokio::test]
async fn jitter_is_the_same_in_all_parts_that_report_a_wait() {
    let (wait, most) = (Duration::from_millis(59_000), Duration::from_secs(2));
    let layer = limit(per(1, wait), &ManualClock::new()).responder(HttpResponder::new().jitter(most));
    through(&layer).await;
    let mut waits = Vec::new();
    for _ in 0..500 {
        let headers = refusal!(layer);
        // `reported` compares the delay, the pushback, and `Retry-After`.
        let reported = reported(&headers).wait.unwrap();
        assert!((wait..=wait + most).contains(&reported), "{reported:?}");
        let field = one(&headers, "ratelimit").unwrap();
        assert_eq!(field, format!("\"default\";r=0;t={}", one(&headers, "retry-after").unwrap()));
        waits.push(reported);
    }
    waits.sort();
    // Each rejection draws one random time from the whole range. It is practically impossible that a quarter of the
    // range has none.
    let quarter = |at: u32| (wait + most * at / 4)..=(wait + most * (at + 1) / 4);
    assert!((0..4).all(|at| waits.iter().any(|wait| quarter(at).contains(wait))), "{waits:?}");
    assert!(waits.iter().any(|wait| wait.subsec_nanos() % 1_000_000 != 0), "{waits:?}");
}

#[tokio::test]
async fn jitter_adds_no_wait_where_no_wait_helps() {
    let jitter = HttpResponder::new().jitter(Duration::from_secs(5));
    let layer = limit(per(1, Duration::from_secs(1)), &ManualClock::new()).cost(|_: &Request<_>| 2);
    let headers = refusal!(layer.responder(jitter));
    assert_eq!(reported(&headers), Details::new(None, &["default"], Some(-1)));
}

#[tokio::test]
async fn jitter_may_exceed_any_timeout() {
    let second = Duration::from_secs(1);
    for most in [60 * second, u32::MAX * second, Duration::MAX] {
        let layer = limit(per(1, second), &ManualClock::new()).responder(HttpResponder::new().jitter(most));
        through(&layer).await;
        for _ in 0..100 {
            let wait = reported(&refusal!(layer)).wait.unwrap();
            assert!(wait >= second && wait <= most.saturating_add(second), "{wait:?}");
        }
    }
}

#[tokio::test]
async fn fields_and_retry_after_can_be_omitted_and_details_stay() {
    let second = Duration::from_secs(1);
    let responder = HttpResponder::new().retry_after(false).send_headers(SendHeaders::Never);
    let headers = second!(limit(per(1, second), &ManualClock::new()).responder(responder));
    assert_eq!(reported(&headers), Details::new(Some(second), &["default"], Some(1_000)));
    let names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "content-type",
            "grpc-status",
            "grpc-message",
            "grpc-status-details-bin",
            "grpc-retry-pushback-ms",
            "cache-control",
        ]
    );
}

#[tokio::test]
async fn an_outer_layer_changes_nothing_in_the_rejection_of_an_inner_one() {
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let inner = limit(per(1, second), &clock).name("inner");
    let outer = limit(per(9, second), &clock).name("outer");
    let stack = tower::layer::layer_fn(|service| outer.layer(inner.layer(service)));
    let headers = second!(stack);
    assert_eq!(reported(&headers), Details::new(Some(second), &["inner"], Some(1_000)));
    let lines: Vec<_> = headers.get_all("ratelimit").iter().collect();
    assert_eq!(lines, ["\"inner\";r=0;t=1", "\"outer\";r=7;t=1"]);
}

/// Asserts the code and the message. If there are details, they must agree.
fn assert_is(headers: &HeaderMap, code: u64, message: &str) {
    assert_eq!(one(headers, "grpc-status"), Some(code.to_string().as_str()), "{headers:?}");
    let status = tonic::Status::from_header_map(headers).unwrap();
    assert_eq!(status.message(), message);
    if let Some(details) = one(headers, "grpc-status-details-bin") {
        assert_eq!(details, crate::protobuf::base64(&crate::protobuf::status(code, message, &[])));
    }
    for absent in ["grpc-retry-pushback-ms", "retry-after", "ratelimit", "ratelimit-policy"] {
        assert!(!headers.contains_key(absent), "{headers:?}");
    }
}

#[tokio::test]
async fn a_limiter_that_was_closed_is_unavailable() {
    let layer = limit(per(1, Duration::from_secs(1)), &ManualClock::new());
    let other = limit(per(1, Duration::from_secs(1)), &ManualClock::new());
    // The same is true of a limiter that has just denied a call.
    reported(&second!(layer.clone()));
    layer.limiter().close();
    let server = serve!(builder().layer(layer.clone()).add_service(Echo::default()));
    let heard = ask(server.address, SAY).await;
    heard.assert_is_trailers_only();
    assert_is(&heard.headers, 14, "shutting down");
    let response = through(&other.and(layer)).await;
    assert_is(response.headers(), 14, "shutting down");
}

/// A store whose calls always fail.
#[derive(Clone, Debug)]
struct Broken(TokenBucket);

impl Store<TokenBucket> for Broken {
    type Key = ();
    type Error = std::io::Error;
    type Wait = Pin<Box<dyn Future<Output = Result<(Decision, Reservation), std::io::Error>> + Send>>;

    fn algorithm(&self) -> Cow<'_, TokenBucket> {
        Cow::Borrowed(&self.0)
    }

    fn acquire(&self, (): (), _: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
        Acquired::Pending(Box::pin(async { Err(std::io::Error::other("50% of the store is gone")) }))
    }
}

impl<K: ?Sized> KeyedStore<TokenBucket, K> for Broken {
    fn key(&self, _: &K) {}
}

#[tokio::test]
async fn a_store_that_fails_is_unavailable() {
    let limiter = RateLimiter::with_store(Broken(per(1, Duration::from_secs(1))));
    let response = through(&RateLimitLayer::with_limiter(Global, limiter)).await;
    assert!(response.body().is_end_stream());
    // Nothing of the store's error is reported.
    assert_is(response.headers(), 14, "rate limiter unavailable");
}

/// A key extractor that forbids every request.
#[derive(Clone, Debug)]
struct Forbidding(&'static str);

impl<Req> KeyExtractor<Req> for Forbidding {
    type Key = ();

    fn extract(&self, _: &Req) -> Result<Option<()>, KeyError> {
        Err(KeyError::forbidden(self.0))
    }
}

#[tokio::test]
async fn callers_without_a_key_get_the_reason() {
    let key = Header::new("x-api-key").unwrap();
    let layer = RateLimitLayer::new(key, per(1, Duration::from_secs(1)));
    let twice = [("x-api-key", "a"), ("x-api-key", "b")];
    let mut request = request();
    for (name, value) in twice {
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let service = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) });
    let response = layer.layer(service).oneshot(request).await.unwrap();
    assert!(response.body().is_end_stream());
    assert_is(response.headers(), 3, "the request does not identify its client in a valid form");

    // The response does not say what the server lacks.
    let layer = RateLimitLayer::new(PeerIp::new(), per(1, Duration::from_secs(1)));
    assert_is(through(&layer).await.headers(), 13, "the server cannot identify the client of this request");

    let strange = "no: 100% \u{fc}\n";
    let layer = RateLimitLayer::new(Forbidding(strange), per(1, Duration::from_secs(1)));
    let response = through(&layer).await;
    assert_eq!(one(response.headers(), "grpc-message"), Some("no: 100%25 %C3%BC%0A"));
    assert_is(response.headers(), 7, strange);
}

/// Some clients accept at most 8 KiB of headers.
#[tokio::test]
async fn even_long_names_leave_space_in_the_header_block() {
    let clock = ManualClock::new();
    let name = |letter: &str| letter.repeat(256);
    let policy = |letter| limit(per(1, Duration::from_secs(100 * 365 * 86_400)), &clock).name(&name(letter));
    let headers = second!(policy("%").and(policy("\"")).and(policy("\\")).and(policy("d")));
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
    assert!(size < 8_192, "{size}");
    assert_eq!(reported(&headers).names.len(), 4);
}
