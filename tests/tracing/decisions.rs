//! Decisions are events, and are recorded in the span of the request. The changes of a store that fails are logged.

use std::net::IpAddr;
use std::time::Duration;

use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::key::{Global, Header};
use tower_throttle::middleware::OnStoreError;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
use tracing_subscriber::util::SubscriberInitExt;

use crate::support::OwnLimiter;
use crate::{Http, Log, get, hello, support};

#[tokio::test]
async fn each_change_of_a_store_between_failing_and_deciding_is_logged_once() {
    for (treatment, status, what) in
        [(OnStoreError::Reject, 503, "are rejected"), (OnStoreError::Allow, 200, "are not limited")]
    {
        let (log, _guard) = Log::start();
        let limiter = OwnLimiter::new(TokenBucket::new(Quota::per_second(1_000_000)));
        let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).on_store_error(treatment);
        let service = layer.layer(service_fn(hello));
        for is_failing in [false, true, false, true] {
            limiter.set_down(is_failing);
            for _ in 0..1_000 {
                let expected = if is_failing { status } else { 200 };
                assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), expected);
            }
        }
        let lines = log.lines();
        let [first, restored, second] = &lines[..] else { panic!("{lines:#?}") };
        assert!(restored.contains("INFO") && restored.contains("decides again"), "{restored}");
        for line in [first, second] {
            assert!(line.contains("ERROR") && line.contains(what), "{line}");
            assert!(line.contains("connection refused by 192.0.2.1"), "{line}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_the_queue_is_logged_at_debug_and_so_is_a_denial() {
    let (log, _guard) = Log::start();
    let bucket = LeakyBucket::new(Quota::per_second(10)).queue(1);
    let service = RateLimitLayer::new(Global, bucket).layer(service_fn(hello));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..10 {
        calls.spawn(service.clone().oneshot(get()));
    }
    assert_eq!(calls.join_all().await.len(), 10);
    let lines = log.lines();
    assert!(lines.iter().all(|line| line.starts_with("DEBUG")), "{lines:#?}");
    let queued = |line: &&String| {
        line.ends_with("tower-throttle: queued event=\"queued\" policy=\"default\" delay=100ms")
    };
    let denied = |line: &&String| {
        line.ends_with("denied event=\"denied\" policy=\"default\" retry_after=100ms outcome=\"queue_full\" locked_out=false")
    };
    assert_eq!(
        (lines.iter().filter(queued).count(), lines.iter().filter(denied).count()),
        (1, 8),
        "{lines:#?}"
    );
}

/// The event of a denial has the policy and the wait, and nothing of the caller.
#[tokio::test]
async fn a_denial_is_an_event_without_the_key() {
    let (log, _guard) = Log::start();
    let key = Header::new("x-api-key").unwrap();
    let layer = RateLimitLayer::new(key, FixedWindow::new(Quota::per_hour(1))).name("by key");
    let service = layer.hidden().layer(service_fn(hello));
    for _ in 0..3 {
        let mut request = get();
        request.headers_mut().insert("x-api-key", "recognisable".parse().unwrap());
        let _ = service.clone().oneshot(request).await.unwrap();
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    for line in lines {
        assert!(
            line.contains("denied event=\"denied\" policy=\"by key\" retry_after=")
                && line.ends_with("outcome=\"denied\" locked_out=false")
        );
        assert!(!line.contains("recognisable"), "{line}");
    }
}

/// A lockout is no outcome of its own, so a field of the event tells it, with and without a layer.
#[tokio::test]
async fn a_denial_of_a_key_that_is_locked_out_says_so() {
    let window = FixedWindow::new(Quota::per_hour(1)).block_for(Duration::from_secs(7_200)).after(2);
    let limiter = RateLimiter::builder(window).name("log-ins").build();
    let service = RateLimitLayer::with_limiter(Global, limiter.clone()).layer(service_fn(hello));
    for is_layer in [true, false] {
        let (log, _guard) = Log::start();
        for _ in 0..4 {
            if is_layer {
                let _ = service.clone().oneshot(get()).await.unwrap();
            } else {
                let _ = limiter.check("ann");
            }
        }
        let lines = log.lines();
        let ends = lines.iter().map(|line| line.split_once("outcome=").unwrap_or_default().1);
        let expected = [false, true, true].map(|is| format!("\"denied\" locked_out={is}"));
        assert!(ends.eq(expected), "{lines:#?}");
    }
}

/// Returns the value of a span's field `rate_limit.decision` after a request.
fn recorded<S>(service: &S, request: Http) -> String
where
    S: tower::Service<Http> + Clone,
    S::Error: std::fmt::Debug,
{
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_writer(log.clone());
    let _guard = subscriber.finish().set_default();
    let span = tracing::info_span!("request", rate_limit.decision = tracing::field::Empty);
    span.in_scope(|| {
        let mut call = support::PolledByHand::new(service.clone().call(request));
        assert!(call.poll());
    });
    drop(span);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let Some((_, value)) = log.split_once("rate_limit.decision=\"") else { return String::new() };
    value.split('"').next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_decision_is_recorded_in_a_span_that_declares_the_field() {
    use tower_throttle::HttpResponder;
    use tower_throttle::middleware::{SendHeaders, Shadow};
    let with_peer = || {
        let mut request = get();
        request.extensions_mut().insert(IpAddr::from([192, 0, 2, 7]));
        request
    };
    let shadow = Shadow::on();
    let layer = RateLimitLayer::per_ip(Quota::per_hour(1)).shadow(&shadow);
    let service = layer.layer(service_fn(hello));
    assert_eq!(recorded(&service, with_peer()), "admitted");
    assert_eq!(recorded(&service, with_peer()), "shadow_denied");
    shadow.set(false);
    assert_eq!(recorded(&service, with_peer()), "denied");
    assert_eq!(recorded(&service, get()), "missing_key");
    let exempt = layer.clone().unless(|_: &Http| true).layer(service_fn(hello));
    assert_eq!(recorded(&exempt, with_peer()), "", "it is not limited");
    let joined = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(9))).and(layer.clone());
    assert_eq!(recorded(&joined.layer(service_fn(hello)), with_peer()), "denied");
    layer.limiter().close();
    assert_eq!(recorded(&service, with_peer()), "closed");
    let silent = HttpResponder::new().send_headers(SendHeaders::Never).insert_extension(false);
    let layer = RateLimitLayer::per_ip(Quota::per_hour(1)).responder(silent);
    assert_eq!(recorded(&layer.layer(service_fn(hello)), with_peer()), "admitted", "it reports nothing else");
}
