//! What Prometheus shows of layers, also of several layers with one name.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tower::util::ServiceFn;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::key::{Global, Header};
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::support::{Now, scaled};

type Http = Request<Full<Bytes>>;

type Answer = Ready<Result<Response<Full<Bytes>>, Infallible>>;

fn hello(_: Http) -> Answer {
    ready(Ok(Response::new(Full::from("hello"))))
}

/// Makes requests without a connection. Returns how many of them were admitted.
fn ask<L, S, B>(layer: &L, requests: u64) -> u64
where
    L: Layer<ServiceFn<fn(Http) -> Answer>, Service = S>,
    S: Service<Http, Response = Response<B>, Error = Infallible> + Clone,
{
    let service = layer.layer(service_fn(hello as fn(Http) -> Answer));
    let status = || service.clone().oneshot(Request::new(Full::default())).now().unwrap().status();
    (0..requests).map(|_| u64::from(status() == 200)).sum()
}

/// Returns the value of a counter or a gauge.
fn shown(recorder: &PrometheusRecorder, metric: &str, labels: &str) -> u64 {
    let page = recorder.handle().render();
    let line = format!("tower_throttle_{metric}{{{labels}}} ");
    let value = page.lines().find_map(|found| found.strip_prefix(&line));
    value.unwrap_or_else(|| panic!("{line} in {page}")).parse().unwrap()
}

/// Requests are admitted while the counts are passed on other threads.
#[test]
fn two_layers_without_names_add_up_under_load() {
    let requests = scaled(100_000);
    let recorder = PrometheusBuilder::new().build_recorder();
    let layers =
        [5, requests / 2].map(|limit| RateLimitLayer::new(Global, FixedWindow::new(Quota::per_day(limit))));
    let (is_over, passes) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                metrics::with_local_recorder(&recorder, || {
                    while !is_over.load(Ordering::Relaxed) {
                        layers.iter().for_each(RateLimitLayer::record_metrics);
                        passes.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        let calls = [&layers[0], &layers[0], &layers[1]].map(|layer| scope.spawn(|| ask(layer, requests)));
        calls.into_iter().for_each(|call| _ = call.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    metrics::with_local_recorder(&recorder, || layers.iter().for_each(RateLimitLayer::record_metrics));
    let of =
        |outcome: &str| shown(&recorder, "calls_total", &format!("policy=\"default\",outcome=\"{outcome}\""));
    let counted = layers.map(|layer| layer.stats().calls);
    for calls in &counted {
        println!("counted: {} admitted, {} denied", calls.admitted, calls.denied);
    }
    println!("shown: {} admitted, {} denied", of("admitted"), of("denied"));
    println!("passed {} times meanwhile", passes.load(Ordering::Relaxed));
    assert_eq!(of("admitted"), 5 + requests / 2);
    assert_eq!(of("denied"), 3 * requests - (5 + requests / 2));
    assert_eq!(counted.map(|calls| calls.admitted), [5, requests / 2]);
}

#[test]
fn what_the_limiter_of_two_layers_counts_is_not_doubled() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let bucket = TokenBucket::new(Quota::per_day(5));
    let limiter = RateLimiter::builder(bucket).max_keys(1).name("api").build();
    let key = || Header::new("x-api-key").unwrap().or(Global);
    let layers = [0, 1].map(|_| RateLimitLayer::with_limiter(key(), limiter.clone()));
    (0..4).for_each(|key| _ = limiter.check(&key));
    let admitted: u64 = layers.iter().map(|layer| ask(layer, 4)).sum();
    assert_eq!(admitted, 5);
    metrics::with_local_recorder(&recorder, || {
        for _ in 0..3 {
            layers.iter().for_each(RateLimitLayer::record_metrics);
        }
    });
    for (outcome, number) in [("admitted", 5), ("denied", 3)] {
        let labels = format!("policy=\"api\",outcome=\"{outcome}\"");
        assert_eq!(shown(&recorder, "calls_total", &labels), number, "{outcome}");
    }
    assert_eq!(shown(&recorder, "evicted_total", "policy=\"api\""), limiter.stats().store.evicted);
    assert_eq!(shown(&recorder, "keys", "policy=\"api\""), 1);
}

/// A request without a key, and one that the store cannot decide, are counted beside those by outcome.
#[test]
fn requests_without_a_key_add_up() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let layers = [0, 1].map(|_| RateLimitLayer::per_ip(Quota::per_minute(5)).name("front door"));
    for _ in 0..2 {
        layers.iter().for_each(|layer| assert_eq!(ask(layer, 3), 0));
        metrics::with_local_recorder(&recorder, || layers.iter().for_each(RateLimitLayer::record_metrics));
    }
    assert_eq!(shown(&recorder, "keyless_total", "policy=\"front door\",outcome=\"rejected\""), 12);
    assert_eq!(shown(&recorder, "queued_total", "policy=\"front door\""), 0);
}

#[test]
fn clones_of_other_names_count_their_own_requests_and_share_the_budget() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let layer = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_day(5)));
    let [pages, search] = ["pages", "search"].map(|name| layer.clone().name(name));
    let same = pages.clone();
    assert_eq!((ask(&pages, 3), ask(&search, 4), ask(&same, 1)), (3, 2, 0));
    metrics::with_local_recorder(&recorder, || {
        for layer in [&layer, &pages, &search, &same] {
            layer.record_metrics();
        }
    });
    for (name, admitted, denied) in [("default", 0, 0), ("pages", 3, 1), ("search", 2, 2)] {
        let of = |outcome: &str| {
            shown(&recorder, "calls_total", &format!("policy=\"{name}\",outcome=\"{outcome}\""))
        };
        assert_eq!((of("admitted"), of("denied")), (admitted, denied), "{name}");
        assert_eq!(shown(&recorder, "keys", &format!("policy=\"{name}\"")), 1, "{name}");
    }
    let calls = [&layer, &pages, &search, &same].map(|layer| layer.stats().calls.ended());
    assert_eq!((calls, layer.limiter().stats().calls.ended()), ([0, 4, 4, 4], 8));
}
