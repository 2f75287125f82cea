//! The metrics of policies in memory and in Redis.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
use tower_throttle_redis::RedisStore;

use crate::connect;
use crate::support::redis_server::RedisServer;

fn at_once(n: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_minute(n))
}

/// Returns the metrics of the guide, with the names of their labels and of the outcomes.
fn promised() -> BTreeMap<String, BTreeSet<String>> {
    let guide = include_str!("../../../src/guide/production.md");
    let (_, rows) = guide.split_once("| name | kind | labels | value |").unwrap();
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.flat_map(|row| {
        let cells: Vec<_> = row.split('|').collect();
        let labels: BTreeSet<_> = names(cells[3]).into_iter().collect();
        let names = names(cells[1]).into_iter().map(|name| format!("tower_throttle_{name}"));
        names.map(move |name| (name, labels.clone())).collect::<Vec<_>>()
    })
    .collect()
}

/// A denial by each kind of limiter is one count, whether a layer or a handler has called it, and however often the
/// counts are passed on.
#[tokio::test]
async fn a_denial_without_a_layer_is_one_count_of_its_limiter() {
    let server = RedisServer::start();
    let redis = connect(&server).await;
    let checked = redis.limiter("checked", at_once(1)).build().unwrap();
    let leased = redis.limiter("leased", at_once(1)).lease(1).build().unwrap();
    let permits = redis.permits("permits", 1).lease(Duration::from_secs(60)).build().unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    assert!(
        checked.check("a").await.unwrap().is_allowed() && !checked.check("a").await.unwrap().is_allowed()
    );
    assert!(leased.check("a").await.unwrap().is_allowed() && !leased.check("a").await.unwrap().is_allowed());
    let permit = permits.try_acquire_permit("a").await.unwrap();
    assert!(permit.is_ok() && permits.try_acquire_permit("a").await.unwrap().is_err());
    let count = |limiter: &str, outcome: &str| {
        let page = recorder.handle().render();
        let line =
            format!("tower_throttle_limiter_calls_total{{limiter=\"{limiter}\",outcome=\"{outcome}\"}} ");
        page.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse::<u64>().unwrap()
    };
    for _ in 0..2 {
        checked.record_metrics();
        leased.clone().record_metrics();
        permits.record_metrics();
        for limiter in ["checked", "leased", "permits"] {
            assert_eq!((count(limiter, "admitted"), count(limiter, "denied")), (1, 1), "{limiter}");
        }
    }
    let layer = RateLimitLayer::with_limiter(Global, redis.limiter("layer", at_once(1)).build().unwrap());
    for status in [200, 429] {
        let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())));
        let response = layer.layer(service).oneshot(Request::new(Empty::<Bytes>::new())).await.unwrap();
        assert_eq!(response.status(), status);
    }
    layer.record_metrics();
    layer.limiter().record_metrics();
    assert_eq!((count("layer", "admitted"), count("layer", "denied")), (1, 1));
}

/// Calls to a server can fail, so only policies with their state on a server have counts of such calls.
#[tokio::test(start_paused = true)]
async fn each_metric_has_a_help_text_and_only_policies_in_redis_have_metrics_of_a_server() {
    const OF_A_SERVER: [&str; 7] = [
        "tower_throttle_circuit_open",
        "tower_throttle_circuit_openings_total",
        "tower_throttle_fallbacks_total",
        "tower_throttle_late_total",
        "tower_throttle_settle_errors_total",
        "tower_throttle_store_errors_total",
        "tower_throttle_trips_total",
    ];
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let queued = RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_second(10))).name("queued");
    for _ in 0..2 {
        let response = queued
            .layer(service_fn(async |_| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))))
            .oneshot(Request::new(Empty::<Bytes>::new()))
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
    }
    queued.record_metrics();
    let plain = |name| RateLimitLayer::new(Global, at_once(1)).name(name);
    plain("first").and(plain("second")).record_metrics();
    let redis = RedisStore::builder("redis://127.0.0.1:1").connect_lazily().unwrap();
    let in_redis = |name: &'static str| {
        let limiter = redis.limiter(name, at_once(1)).build().unwrap();
        RateLimitLayer::with_limiter(Global, limiter).name(name)
    };
    in_redis("alone").record_metrics();
    in_redis("third").and(in_redis("fourth")).record_metrics();
    RateLimiter::builder(at_once(1)).name("local").build().record_metrics();
    redis.limiter("remote", at_once(1)).build().unwrap().record_metrics();
    redis.limiter("leases", at_once(1)).lease(10).build().unwrap().record_metrics();
    redis.permits("permits", 1).build().unwrap().record_metrics();

    let page = recorder.handle().render();
    let labelled = |label: String| -> BTreeSet<_> {
        let lines = page.lines().filter(|line| !line.starts_with('#') && line.contains(&label));
        lines.filter_map(|line| line.split('{').next()).collect()
    };
    let metrics = |policy: &str| labelled(format!("policy=\"{policy}\""));
    let in_memory = metrics("first");
    assert!(in_memory.contains("tower_throttle_settled_units_total") && in_memory.len() >= 8, "{page}");
    assert_eq!(in_memory, metrics("second"));
    assert!(metrics("queued").is_superset(&in_memory), "{page}");
    for policy in ["alone", "third", "fourth"] {
        let more: Vec<_> = metrics(policy).difference(&in_memory).copied().collect();
        assert_eq!(more, OF_A_SERVER, "{policy}: {page}");
    }
    // A limiter has the metrics of a policy that are its own, with other names.
    let of_limiter = |name: &str| labelled(format!("limiter=\"{name}\""));
    let own = |name: &&str| name.replacen("tower_throttle_", "tower_throttle_limiter_", 1);
    let no_policys = ["tower_throttle_keyless_total", "tower_throttle_enforced"];
    let expected: BTreeSet<_> = in_memory.iter().filter(|name| !no_policys.contains(name)).map(own).collect();
    assert_eq!(of_limiter("local"), expected.iter().map(|name| &**name).collect());
    for limiter in ["remote", "leases", "permits"] {
        let more: Vec<_> = of_limiter(limiter).difference(&of_limiter("local")).copied().collect();
        let of_a_server = OF_A_SERVER.iter().filter(|name| **name != "tower_throttle_store_errors_total");
        assert_eq!(more, of_a_server.map(own).collect::<Vec<_>>(), "{limiter}: {page}");
    }
    let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let names: Vec<_> = names.collect();
    let promised = promised();
    assert_eq!(names.iter().copied().collect::<BTreeSet<_>>(), promised.keys().map(|name| &**name).collect());
    for (name, labels) in promised {
        let lines = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let shown = lines.flat_map(|line| {
            let (_, labels) = line.split_once('{').unwrap();
            let labels = labels.split('}').next().unwrap().split(',');
            let labels = labels.map(|label| label.split_once('=').unwrap());
            labels.filter(|(label, _)| *label != "quantile").flat_map(|(label, value)| {
                let value = value.trim_matches('"').to_owned();
                [Some(label.to_owned()), (label == "outcome").then_some(value)]
            })
        });
        assert_eq!(shown.flatten().collect::<BTreeSet<_>>(), labels, "{name}: {page}");
    }
    for name in names {
        let help = page.lines().find_map(|line| line.strip_prefix(&format!("# HELP {name} ")));
        assert!(help.is_some_and(|help| help.len() > 10), "{name}: {page}");
    }
}
