//! Log events for the operator of a service. Each kind of mistake is logged once.
#![cfg(feature = "tracing")]

#[path = "../support/mod.rs"]
mod support;

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::key::{
    ClientIp, Extension, Global, Header, MissingKey, Networks, PeerIp, TrustedProxies,
};
use tower_throttle::middleware::OnStoreError;
use tower_throttle::store::{Acquired, Attempt, KeyedStore, Reservation, Store};
use tower_throttle::{Decision, Quota, RateLimitLayer, RateLimiter};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// A recorder of all events in this thread, for as long as the recorder exists.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(log.clone());
        (log, subscriber.set_default())
    }

    /// Returns the log lines about rate limits.
    fn lines(&self) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|line| line.contains("tower-throttle")).map(str::to_owned).collect()
    }

    /// Returns the log lines, without the events of denials.
    fn mistakes(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| !line.contains("tower-throttle: denied"));
        lines
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

type Http = Request<Full<Bytes>>;

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    Ok(Response::new(Full::from("hello")))
}

fn get() -> Http {
    Request::new(Full::default())
}

#[tokio::test]
async fn a_thousand_requests_without_a_peer_are_one_line_that_names_the_fix() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::per_ip(Quota::per_second(1)).name("front door");
    let services = [layer.layer(service_fn(hello)), layer.clone().layer(service_fn(hello))];
    for n in 0..1_000 {
        let answer = services[n % 2].clone().oneshot(get()).await.unwrap();
        assert_eq!(answer.status(), 500);
    }
    let lines = log.lines();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("ERROR") && line.contains("front door"), "{line}");
    assert!(line.contains("into_make_service_with_connect_info::<SocketAddr>()"), "{line}");
}

#[tokio::test]
async fn each_kind_of_mistake_is_logged_once() {
    let (log, _guard) = Log::start();
    let proxies = Networks::new(["10.0.0.0/8"]).unwrap();
    let by_client = ClientIp::header("x-real-ip").unwrap().only_from(proxies);
    let layer = RateLimitLayer::new(by_client, TokenBucket::new(Quota::per_second(1)))
        .missing_key(MissingKey::Shared)
        .name("front door");
    for _ in 0..100 {
        for peer in [None, Some([10, 0, 0, 1])] {
            let mut request = get();
            if let Some(peer) = peer {
                request.extensions_mut().insert(IpAddr::from(peer));
            }
            layer.layer(service_fn(hello)).oneshot(request).await.unwrap();
        }
    }
    let lines = log.mistakes();
    // If one peer is missing, the warning about requests without the header is still logged.
    let [peer, header] = &lines[..] else { panic!("{lines:#?}") };
    assert!(peer.contains("no peer address") && header.contains("is missing"), "{lines:#?}");
    assert!(
        lines.iter().all(|line| line.contains("ERROR") && line.contains("share one budget")),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn a_clients_mistake_is_logged_each_time_at_debug() {
    let (log, _guard) = Log::start();
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::hops(1).unwrap());
    let layer = RateLimitLayer::new(by_client, TokenBucket::new(Quota::per_second(1))).name("front door");
    for _ in 0..10 {
        let mut request = get();
        request.headers_mut().insert("x-forwarded-for", "secret".parse().unwrap());
        assert_eq!(layer.layer(service_fn(hello)).oneshot(request).await.unwrap().status(), 400);
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 10, "{lines:#?}");
    for line in lines {
        assert!(line.starts_with("DEBUG") && line.contains("front door"), "{line}");
        assert!(line.contains("x-forwarded-for") && line.contains("holds no IP address"), "{line}");
        assert!(!line.contains("secret"), "{line}");
    }
}

#[tokio::test]
async fn the_first_list_that_is_too_short_for_the_hops_is_a_warning_that_names_the_fix() {
    let (log, _guard) = Log::start();
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::hops(2).unwrap());
    let layer = RateLimitLayer::new(by_client, TokenBucket::new(Quota::per_second(1))).name("front door");
    for _ in 0..10 {
        let mut request = get();
        request.headers_mut().insert("x-forwarded-for", "192.0.2.1".parse().unwrap());
        assert_eq!(layer.clone().layer(service_fn(hello)).oneshot(request).await.unwrap().status(), 400);
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 10, "{lines:#?}");
    assert!(lines[0].trim_start().starts_with("WARN") && lines[0].contains("front door"), "{lines:#?}");
    assert!(lines[0].contains("TrustedProxies::hops"), "{lines:#?}");
    assert!(lines[1..].iter().all(|line| line.starts_with("DEBUG")), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains("192.0.2.1")), "{lines:#?}");
}

#[tokio::test]
async fn an_extension_that_is_absent_is_logged_once_with_the_order_of_layers() {
    #[derive(Clone)]
    struct Account(u64);
    let (log, _guard) = Log::start();
    let by_account = Extension::<Account, _>::new(|account| account.0);
    let layer = RateLimitLayer::new(by_account, TokenBucket::new(Quota::per_second(1)));
    for _ in 0..10 {
        assert_eq!(layer.layer(service_fn(hello)).oneshot(get()).await.unwrap().status(), 500);
    }
    let lines = log.lines();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("ERROR") && line.contains("Account"), "{line}");
    for fix in ["added after", "`.or(..)`", "`.or_shared()`"] {
        assert!(line.contains(fix), "{line}");
    }
}

/// Returns what is logged when a request from this peer with this header is sent twice.
async fn logged(by_peer: PeerIp, peer: &str, header: Option<&'static str>) -> Vec<String> {
    let peer: IpAddr = peer.parse().unwrap();
    let mut logs = Vec::new();
    // The log does not depend on whether axum's server inserts the address.
    for is_axum in [false, true] {
        let (log, _guard) = Log::start();
        let layer = RateLimitLayer::new(by_peer.clone(), TokenBucket::new(Quota::per_second(9)));
        for _ in 0..2 {
            let mut request = get();
            request.extensions_mut().insert(peer);
            if is_axum {
                request.extensions_mut().insert(ConnectInfo(SocketAddr::new(peer, 4711)));
            }
            if let Some(header) = header {
                request.headers_mut().insert(header, "192.0.2.1".parse().unwrap());
            }
            assert_eq!(layer.clone().layer(service_fn(hello)).oneshot(request).await.unwrap().status(), 200);
        }
        logs.push(log.lines());
    }
    assert_eq!(logs[0], logs[1]);
    logs.pop().unwrap_or_default()
}

#[tokio::test]
async fn a_peer_that_seems_to_be_a_proxy_is_a_warning_that_names_client_ip() {
    for peer in
        ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "::ffff:10.1.2.3", "fd00::1", "fe80::1"]
    {
        for header in [
            "x-forwarded-for",
            "forwarded",
            "x-real-ip",
            "cf-connecting-ip",
            "true-client-ip",
            "fly-client-ip",
        ] {
            let lines = logged(PeerIp::new(), peer, Some(header)).await;
            let [line] = &lines[..] else { panic!("{peer} {header}: {lines:#?}") };
            assert!(line.trim_start().starts_with("WARN") && line.contains("`ClientIp`"), "{line}");
            assert!(line.contains("PeerIp") && !line.contains("192.0.2.1"), "{line}");
        }
        assert_eq!(logged(PeerIp::new(), peer, None).await, [""; 0], "{peer}, without such a header");
        assert_eq!(
            logged(PeerIp::new(), peer, Some("x-other")).await,
            [""; 0],
            "{peer}, with another header"
        );
    }
    for peer in ["192.0.2.1", "8.8.8.8", "2001:db8::1", "172.32.0.1"] {
        assert_eq!(
            logged(PeerIp::new(), peer, Some("x-forwarded-for")).await,
            [""; 0],
            "{peer} is on the internet"
        );
    }
    // An outer layer has inserted the client's address.
    let found = PeerIp::new().peer_from(|address: &IpAddr| *address);
    assert_eq!(logged(found, "10.1.2.3", Some("x-forwarded-for")).await, [""; 0]);
}

#[tokio::test]
async fn each_layer_warns_of_a_proxy_for_itself() {
    let (log, _guard) = Log::start();
    let key = || (PeerIp::new(), Global);
    let layer = RateLimitLayer::new(key(), TokenBucket::new(Quota::per_second(9)));
    let other = RateLimitLayer::new(key(), TokenBucket::new(Quota::per_second(9)));
    for layer in [&layer, &layer.clone(), &other, &layer] {
        let mut request = get();
        request.extensions_mut().insert(IpAddr::from([127, 0, 0, 1]));
        request.headers_mut().insert("x-forwarded-for", "192.0.2.1".parse().unwrap());
        layer.layer(service_fn(hello)).oneshot(request).await.unwrap();
    }
    assert_eq!(log.lines().len(), 2, "{:#?}", log.lines());
}

#[tokio::test]
async fn each_layer_logs_its_own_mistakes() {
    let (log, _guard) = Log::start();
    for name in ["one", "two"] {
        let service = RateLimitLayer::per_ip(Quota::per_second(1)).name(name).layer(service_fn(hello));
        for _ in 0..10 {
            service.clone().oneshot(get()).await.unwrap();
        }
    }
    let lines = log.lines();
    assert!(lines.len() == 2 && lines[0].contains("one") && lines[1].contains("two"), "{lines:#?}");
}

#[tokio::test]
async fn concurrent_threads_log_a_mistake_once() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::per_ip(Quota::per_second(1));
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let _guard = tracing::dispatcher::set_default(&dispatch);
                for _ in 0..1_000 {
                    let answer = layer.layer(service_fn(hello)).oneshot(get());
                    assert!(support::PolledByHand::new(answer).poll());
                }
            });
        }
    });
    assert_eq!(log.lines().len(), 1);
}

#[tokio::test]
async fn what_a_caller_sends_is_not_logged() {
    let (log, _guard) = Log::start();
    let layer =
        RateLimitLayer::new(Header::new("x-api-key").unwrap(), TokenBucket::new(Quota::per_second(1)));
    let service = layer.layer(service_fn(hello));
    for _ in 0..3 {
        let mut request = get();
        request.headers_mut().append("x-api-key", "secret".parse().unwrap());
        request.headers_mut().append("x-api-key", "secret".parse().unwrap());
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 400);
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for line in lines {
        assert!(line.contains("x-api-key") && !line.contains("secret"), "{line}");
    }
}

#[tokio::test]
async fn a_cost_that_never_fits_is_a_mistake_and_a_denial_is_none() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(2)))
        .cost(|request: &Http| request.uri().path().len() as u64);
    let service = layer.layer(service_fn(hello));
    let call = |path: &str| service.clone().oneshot(Request::get(path).body(Full::default()).unwrap());
    assert_eq!(call("/a").await.unwrap().status(), 200);
    for _ in 0..10 {
        assert_eq!(call("/a").await.unwrap().status(), 429);
    }
    assert_eq!(log.mistakes(), [""; 0]);
    for _ in 0..10 {
        assert_eq!(call("/abc").await.unwrap().status(), 429);
    }
    let lines = log.mistakes();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("costs more"), "{line}");
}

#[tokio::test]
async fn a_cost_that_exceeds_a_limit_of_calls_in_progress_is_a_mistake() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::new(Global, Concurrency::per_key(2))
        .cost(|request: &Http| request.uri().path().len() as u64);
    let service = layer.layer(service_fn(hello));
    let call = |path: &str| service.clone().oneshot(Request::get(path).body(Full::default()).unwrap());
    let in_progress = call("/a").await.unwrap();
    assert_eq!(in_progress.status(), 200);
    assert_eq!(call("/a").await.unwrap().status(), 429);
    assert_eq!(log.mistakes(), [""; 0], "it is only denied now");
    assert_eq!(call("/abc").await.unwrap().status(), 429);
    let lines = log.mistakes();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("costs more"), "{line}");
}

#[tokio::test]
async fn each_change_of_a_store_between_failing_and_deciding_is_logged_once() {
    #[derive(Clone, Debug)]
    struct Switched {
        local: RateLimiter<TokenBucket>,
        fails: Arc<AtomicBool>,
    }
    impl Store<TokenBucket> for Switched {
        type Key = ();
        type Error = io::Error;
        type Wait = Pin<Box<dyn Future<Output = io::Result<(Decision, Reservation)>> + Send>>;

        fn algorithm(&self) -> Cow<'_, TokenBucket> {
            self.local.algorithm()
        }

        fn acquire(&self, (): (), attempt: Attempt<'_, TokenBucket>) -> Acquired<Self::Wait> {
            let result = match self.fails.load(Ordering::SeqCst) {
                true => Err(io::Error::other("no route to the store")),
                false => Ok((self.local.check_n("a", attempt.cost()), Reservation::default())),
            };
            Acquired::Pending(Box::pin(async { result }))
        }
    }
    impl<K: ?Sized> KeyedStore<TokenBucket, K> for Switched {
        fn key(&self, _: &K) {}
    }
    for (treatment, status, what) in
        [(OnStoreError::Reject, 503, "are refused"), (OnStoreError::Allow, 200, "are not limited")]
    {
        let (log, _guard) = Log::start();
        let fails = Arc::new(AtomicBool::new(false));
        let local = RateLimiter::new(TokenBucket::new(Quota::per_second(1_000_000)));
        let limiter = RateLimiter::with_store(Switched { local, fails: Arc::clone(&fails) });
        let layer = RateLimitLayer::with_limiter(Global, limiter).on_store_error(treatment);
        let service = layer.layer(service_fn(hello));
        for is_failing in [false, true, false, true] {
            fails.store(is_failing, Ordering::SeqCst);
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
            assert!(line.contains("no route to the store"), "{line}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn holding_a_request_is_logged_at_debug_and_so_is_a_denial() {
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
    let held = |line: &&String| line.ends_with("held policy=\"default\" delay=100ms");
    let denied =
        |line: &&String| line.ends_with("denied policy=\"default\" retry_after=100ms outcome=\"queue_full\"");
    assert_eq!(
        (lines.iter().filter(held).count(), lines.iter().filter(denied).count()),
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
            line.contains("denied policy=\"by key\" retry_after=") && line.ends_with("outcome=\"denied\"")
        );
        assert!(!line.contains("recognisable"), "{line}");
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
    use tower_throttle::middleware::Shadow;
    let with_peer = || {
        let mut request = get();
        request.extensions_mut().insert(IpAddr::from([192, 0, 2, 7]));
        request
    };
    let shadow = Shadow::new();
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
}

#[test]
fn a_burst_on_a_window_is_a_warning_when_a_limiter_is_built() {
    fn warnings<A: Algorithm>(algorithm: A) -> usize {
        let (log, _guard) = Log::start();
        let layer = RateLimitLayer::new(Global, algorithm);
        let limiter = layer.clone().limiter().clone();
        assert!(limiter.check("key").is_allowed());
        let lines = log.lines();
        assert!(lines.iter().all(|line| line.contains("WARN") && line.contains("burst")), "{lines:?}");
        lines.len()
    }
    let (plain, burst) = (Quota::per_minute(10), Quota::per_minute(10).burst(20));
    assert_eq!(warnings(FixedWindow::new(burst)), 1);
    assert_eq!(warnings(SlidingWindow::new(burst)), 1);
    assert_eq!(warnings(SlidingCounter::new(burst)), 1);
    assert_eq!(warnings(SlidingLog::new(burst)), 1);
    assert_eq!(warnings(FixedWindow::new(burst).priority(20)), 1);
    assert_eq!(warnings((TokenBucket::new(burst), FixedWindow::new(burst))), 1);
    assert_eq!(warnings(Tiered::new(FixedWindow::new(burst)).block_for(Duration::from_secs(1)).after(3)), 1);
    assert_eq!(warnings((TokenBucket::new(burst), FixedWindow::new(plain))), 0);
    assert_eq!(warnings(LeakyBucket::new(burst)) + warnings(Smooth::bursty(burst)), 0);
    assert_eq!(warnings(Concurrency::per_key(1)), 0);
}

#[test]
fn a_table_that_is_full_is_a_warning_once_for_each_limiter() {
    let (log, _guard) = Log::start();
    for limiters in 1..=2 {
        let limiter = RateLimiter::builder(TokenBucket::new(Quota::per_day(5))).max_keys(10).build();
        (0..10).for_each(|key| _ = limiter.check(&key));
        assert_eq!(log.lines().len(), limiters - 1, "there is room");
        (10..1_000).for_each(|key| _ = limiter.check(&key));
        let lines = log.lines();
        assert_eq!(lines.len(), limiters, "{lines:#?}");
        let line = &lines[limiters - 1];
        assert!(line.contains("WARN") && line.contains("max_keys") && line.contains("is full"), "{line}");
    }
}

/// In this test, each key contains a known string. The string must not be in anything that an operator or a caller can
/// see.
#[cfg(feature = "metrics")]
#[tokio::test]
async fn a_key_is_in_no_event_header_body_count_or_metric() {
    use http_body_util::BodyExt;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tower_throttle::HttpResponder;
    use tower_throttle::key::{Bearer, Cookie};
    use tower_throttle::stats::{Timeline, TopKeys};

    const KEYS: [&str; 4] =
        ["recognisable-token", "recognisable-key", "recognisable-session", "203.0.113.77"];

    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let (log, _logging) = Log::start();
    let (top, timeline) = (TopKeys::new(), Timeline::new());
    let bucket = || TokenBucket::new(Quota::per_hour(1));
    let details = || HttpResponder::new().insert_details(true);
    let by_token = RateLimitLayer::new(Bearer::new(), bucket()).name("token").responder(details());
    let by_token = by_token.timeline(&timeline).top_keys(&top);
    let by_key = RateLimitLayer::new(Header::new("x-api-key").unwrap(), bucket()).name("key");
    let joined = by_key.and(RateLimitLayer::new(Cookie::new("session").unwrap(), bucket()).name("session"));
    let by_ip =
        RateLimitLayer::new(PeerIp::new(), LeakyBucket::new(Quota::per_second(100)).queue(1)).name("ip");
    let hello = service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("hello")))
    });
    let request = |[authorization, key, cookie]: [&str; 3]| {
        let mut request = Request::new(Full::default());
        for (name, value) in [("authorization", authorization), ("x-api-key", key), ("cookie", cookie)] {
            if !value.is_empty() {
                request.headers_mut().insert(name, value.parse().unwrap());
            }
        }
        let peer: SocketAddr = "203.0.113.77:4711".parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
        request
    };
    let all = ["Bearer recognisable-token", "recognisable-key", "session=recognisable-session"];
    let mut seen = String::new();
    let mut statuses = Vec::new();
    // One request is admitted, one is denied, and one lacks one of its keys. Callers without a key share a budget.
    for headers in [all, all, ["", all[1], all[2]], [all[0], "", all[2]], [all[0], all[1], ""]] {
        let answers = [
            by_token.layer(hello).oneshot(request(headers)).await.unwrap().map(BodyExt::boxed_unsync),
            joined.layer(hello).oneshot(request(headers)).await.unwrap().map(BodyExt::boxed_unsync),
            by_ip.layer(hello).oneshot(request(headers)).await.unwrap().map(BodyExt::boxed_unsync),
        ];
        for answer in answers {
            let (head, body) = answer.into_parts();
            statuses.push(head.status.as_u16());
            let body = body.collect().await.unwrap().to_bytes();
            seen += &format!("{head:?} {}\n", String::from_utf8_lossy(&body));
        }
    }
    assert_eq!(statuses[..6], [200, 200, 200, 429, 429, 200], "{statuses:?}");
    // Two tokens are a mistake of the client, which is logged, too.
    let mut two_tokens = request(all);
    two_tokens.headers_mut().append("authorization", all[0].parse().unwrap());
    let (head, body) = by_token.layer(hello).oneshot(two_tokens).await.unwrap().into_parts();
    assert_eq!(head.status, 400);
    let body = body.collect().await.unwrap().to_bytes();
    seen += &format!("{head:?} {}\n", String::from_utf8_lossy(&body));
    by_token.record_metrics();
    joined.record_metrics();
    by_ip.record_metrics();
    seen += &page.render();
    seen += &format!("{:?} {:?} {:?}\n", by_token.stats(), joined.stats(), by_ip.stats());
    seen += &format!("{top:?} {:?} {timeline:?}\n", top.list());
    seen += &format!("{by_token:?} {joined:?} {by_ip:?} {:?}\n", by_token.limiter());
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        log.contains("tower-throttle: denied") && seen.contains("tower_throttle_calls_total"),
        "{log} {seen}"
    );
    for key in KEYS {
        assert!(!log.contains(key), "{key} is in the log: {log}");
        assert!(!seen.contains(key), "{key} can be seen: {seen}");
    }
}
