//! Mistakes in the configuration of a limit are logged as errors, and those of clients at the level `DEBUG`.

use std::net::IpAddr;
use std::time::Duration;

use http::Request;
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth,
    Tiered, TokenBucket,
};
use tower_throttle::key::{ClientIp, Extension, Global, Header, MissingKey, Networks, TrustedProxies};
use tower_throttle::limiter::FairLimiter;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::{Http, Log, get, hello, support};

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
    assert!(line.contains("tower-throttle[T01]: requests are rejected"), "{line}");
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

#[test]
fn a_burst_on_a_window_is_a_warning_when_a_limiter_is_built() {
    fn warnings<A: Algorithm>(algorithm: A) -> usize {
        let (log, _guard) = Log::start();
        let layer = RateLimitLayer::new(Global, algorithm);
        let limiter = layer.clone().limiter().clone();
        assert!(limiter.try_acquire_permit("key").is_ok());
        let lines = log.lines();
        let is_of_burst = |line: &&String| line.contains("WARN") && line.contains("event=\"burst_ignored\"");
        lines.iter().filter(is_of_burst).count()
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
fn the_warning_of_a_burst_says_which_limit_it_is_and_what_to_change() {
    let (log, _guard) = Log::start();
    let (minute, hour) = (Quota::per_minute(10).burst(20), Quota::per_hour(500).burst(50));
    let windows =
        (SlidingWindow::new(minute), FixedWindow::new(hour)).block_for(Duration::from_secs(1)).after(3);
    let _ = RateLimiter::builder(windows).name("login").build();
    let _ = RateLimiter::new(SlidingLog::new(hour));
    let line = |of: &str, limiter: &str| {
        let text = format!("the window of {of} ignores its burst: remove the burst, or use a TokenBucket");
        format!(" WARN tower_throttle: tower-throttle[T08]: {text} event=\"burst_ignored\"{limiter}")
    };
    let login = " limiter=\"login\"";
    assert_eq!(
        log.lines(),
        [line("10 per 60s", login), line("500 per 3600s", login), line("500 per 3600s", "")]
    );
}

#[test]
fn a_total_with_a_queue_is_a_warning_that_names_the_fair_limiter() {
    let (log, _guard) = Log::start();
    let lines = || log.lines().into_iter().filter(|line| line.contains("[T12]")).collect::<Vec<_>>();
    let in_progress = Concurrency::per_key(2).queue(5);
    let total = in_progress.clone().total(10);
    let _ = RateLimiter::new(in_progress);
    let _ = RateLimiter::new(Concurrency::per_key(2).total(10));
    let _ = FairLimiter::new(total.clone());
    assert_eq!(lines(), [""; 0]);
    let limiter = RateLimiter::builder(total.clone()).name("exports").build();
    let line = &lines()[0];
    assert!(line.contains("WARN") && line.contains("FairLimiter") && line.contains("\"exports\""), "{line}");
    assert!(limiter.clone().try_acquire_permit("key").is_ok());
    assert_eq!(lines().len(), 1);
    let _ = RateLimiter::new(Tiered::new(total));
    assert_eq!(lines().len(), 2);
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

#[tokio::test]
async fn a_call_with_priority_on_a_limit_without_priority_is_a_warning_once() {
    let (log, _guard) = Log::start();
    let window = FixedWindow::new(Quota::per_hour(10));
    let limiter = RateLimiter::builder(window.clone()).name("login").build();
    let layer = RateLimitLayer::with_limiter(Global, limiter.clone()).priority(|_: &Http| true);
    assert_eq!(log.lines(), [""; 0], "no call has priority yet");
    for _ in 0..3 {
        assert!(limiter.clone().call("key").priority().acquire().await.is_allowed());
        assert_eq!(layer.layer(service_fn(hello)).oneshot(get()).await.unwrap().status(), 200);
    }
    let line = "calls have priority, which this limit ignores: call `priority(percent)` on its window";
    let event = "event=\"priority_ignored\"";
    let of =
        |limiter: &str| format!(" WARN tower_throttle: tower-throttle[T07]: {line} {event}{limiter} count=1");
    assert_eq!(log.lines(), [of(" limiter=\"login\"")]);

    // The limiters of layers that are joined, and of tiers. Each limiter has its own line.
    let other = RateLimitLayer::new(Global, window.clone()).priority(|_: &Http| true);
    let joined = other.and(RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(9))));
    for _ in 0..3 {
        assert_eq!(joined.layer(service_fn(hello)).oneshot(get()).await.unwrap().status(), 200);
    }
    let tiers = RateLimiter::new(Tiered::new(window.clone().priority(20)));
    assert!(tiers.call("key").priority().acquire().await.is_allowed());
    assert!(tiers.call("key").tier(&window.clone().priority(50)).priority().acquire().await.is_allowed());
    assert_eq!(log.lines().len(), 2, "these tiers have priority");
    assert!(tiers.call("key").tier(&window).priority().acquire().await.is_allowed());
    assert_eq!(log.lines(), [of(" limiter=\"login\""), of(""), of("")]);
}

/// A proxy answers 504 while the request waits. Code that calls `acquire` may wait for as long as it wants.
#[test]
fn a_layer_that_may_hold_requests_for_long_is_a_warning_with_both_times() {
    fn warnings<A: Algorithm>(algorithm: A) -> Vec<String> {
        let (log, _guard) = Log::start();
        let limiter = RateLimiter::builder(algorithm).name("reports").build();
        assert_eq!(log.lines(), [""; 0], "it has no layer");
        let layer = RateLimitLayer::with_limiter(Global, limiter).name("slow");
        let _ = (layer.clone().layer(()), layer.layer(()));
        log.lines()
    }
    let line = |wait: &str| {
        let text = format!(
            "with a full queue, a request waits for {wait}, and after 30s many proxies and clients give up: set \
             `max_wait` on the algorithm, or a smaller `queue`"
        );
        let fields = format!("event=\"long_wait\" limiter=\"reports\" longest_wait={wait}");
        [format!(" WARN tower_throttle: tower-throttle[T09]: {text} {fields}")]
    };
    let (minute, hour) = (Quota::per_minute(2), Quota::per_hour(10));
    assert_eq!(warnings(LeakyBucket::new(minute)), line("60s"));
    assert_eq!(warnings(LeakyBucket::new(Quota::per_second(1)).queue(31)), line("31s"));
    assert_eq!(warnings(TokenBucket::new(minute).queue(2)), line("60s"));
    assert_eq!(warnings(FixedWindow::new(hour).queue(11)), line("7200s"));
    assert_eq!(warnings(SlidingWindow::new(hour).priority(20)), line("3600s"));
    assert_eq!(warnings(Tiered::new(LeakyBucket::new(minute))), line("60s"));
    assert_eq!(warnings((LeakyBucket::new(minute), LeakyBucket::new(hour).queue(1))), line("360s"));
    let none = [""; 0];
    assert_eq!(warnings(LeakyBucket::new(Quota::per_second(1)).queue(30)), none, "not above 30 s");
    assert_eq!(warnings(LeakyBucket::new(minute).max_wait(Duration::from_secs(90))), none, "it is set");
    assert_eq!(warnings(LeakyBucket::new(minute).queue(0)), none, "no request waits");
    assert_eq!(warnings(TokenBucket::new(hour)), none, "a layer queues nothing");
    assert_eq!(warnings(Concurrency::per_key(1).queue(9)), none, "the wait is unknown");
}

#[cfg(feature = "metrics")]
#[test]
fn the_second_policy_of_a_name_is_logged_when_its_metrics_are_first_recorded() {
    let (log, _guard) = Log::start();
    let layer = |name| RateLimitLayer::new(Global, TokenBucket::new(Quota::per_second(1))).name(name);
    let number = || log.lines().iter().filter(|line| line.contains("event=\"same_name\"")).count();
    let first = layer("same");
    for recorded in [&first, &first.clone(), &layer("other"), &first] {
        recorded.record_metrics();
    }
    assert_eq!(number(), 0, "clones have one name, and it is theirs");
    let second = layer("same");
    assert_eq!(number(), 0, "it is not recorded yet");
    for _ in 0..3 {
        second.record_metrics();
        second.clone().record_metrics();
    }
    assert_eq!(number(), 1, "{:#?}", log.lines());
    let joined = layer("same").and(layer("one more"));
    joined.record_metrics();
    assert_eq!(number(), 2);
    drop((first, second, joined));
    layer("same").record_metrics();
    assert_eq!(number(), 2, "the others are gone");
    let line = &log.lines()[0];
    assert!(
        line.contains("WARN") && line.contains("policy=\"same\"") && line.contains("`.name(..)`"),
        "{line}"
    );
}
