//! What a policy that is not enforced tells: an event after each switch, and a gauge.

use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::{ClientIp, Global, Networks, TrustedProxies};
use tower_throttle::middleware::Shadow;
use tower_throttle::{Quota, RateLimitLayer};

use crate::{Http, Log, get, hello};

/// Sends the request to the layer, and returns the status.
macro_rules! status {
    ($layer:expr, $request:expr) => {
        $layer.layer(service_fn(hello)).oneshot($request).await.unwrap().status().as_u16()
    };
}

fn limit(name: &str) -> RateLimitLayer<Global, TokenBucket> {
    RateLimitLayer::new(Global, TokenBucket::new(Quota::per_hour(1_000))).name(name)
}

#[tokio::test]
async fn after_each_switch_the_first_request_that_passes_is_one_line() {
    let (log, _guard) = Log::start();
    let shadow = Shadow::off();
    let (one, two) = (limit("one").shadow(&shadow), limit("two").shadow(&shadow));
    let joined = limit("three").and(limit("four").shadow(&shadow));
    let mut lines = 0;
    for round in 0..3 {
        shadow.set(true);
        assert_eq!(log.lines().len(), lines, "no request has passed");
        for _ in 0..100 {
            // Switches that change nothing.
            shadow.set(true);
            assert_eq!([status!(one, get()), status!(two, get()), status!(joined, get())], [200; 3]);
        }
        let new = log.lines().split_off(lines);
        assert_eq!(new.len(), 3, "{round}: {new:#?}");
        for (line, name) in new.iter().zip(["one", "two", "four"]) {
            assert!(
                line.trim_start().starts_with("INFO") && line.contains("are admitted in shadow mode"),
                "{line}"
            );
            assert!(line.contains(&format!("policy=\"{name}\"")), "{line}");
        }
        lines += new.len();
        shadow.set(false);
        for _ in 0..100 {
            assert_eq!([status!(one, get()), status!(two, get()), status!(joined, get())], [200; 3]);
        }
    }
    assert_eq!(log.lines().len(), lines, "an enforced policy tells nothing");
}

#[tokio::test]
async fn the_first_request_that_passes_a_policy_that_is_not_enabled_is_one_line() {
    let (log, _guard) = Log::start();
    let (layer, joined) = (limit("one").enabled(false), limit("two").enabled(false).and(limit("three")));
    for _ in 0..100 {
        assert_eq!([status!(layer, get()), status!(joined, get())], [200; 2]);
    }
    let lines = log.lines();
    let [one, two] = &lines[..] else { panic!("{lines:#?}") };
    assert!(one.contains("INFO") && one.contains("not enabled") && one.contains("one"), "{one}");
    assert!(two.contains("INFO") && two.contains("not enabled") && two.contains("two"), "{two}");
}

fn with_list(list: &str) -> Http {
    let mut request = get();
    request.headers_mut().insert("x-forwarded-for", list.parse().unwrap());
    request
}

/// A mistake that was logged in shadow mode is logged again when it causes errors.
#[tokio::test]
async fn in_shadow_mode_each_key_error_is_logged_and_again_when_the_limit_is_enforced() {
    let (log, _guard) = Log::start();
    let shadow = Shadow::on();
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::hops(2).unwrap())
        .deny(Networks::new(["203.0.113.0/24"]).unwrap());
    let layer = RateLimitLayer::new(by_client, TokenBucket::new(Quota::per_hour(9))).shadow(&shadow);
    let requests = || [get(), with_list("192.0.2.1"), with_list("a, b"), with_list("203.0.113.7, 10.0.0.1")];
    for (is_on, statuses, levels, what) in [
        (true, [200; 4], ["ERROR", "WARN", "DEBUG", "DEBUG"], "admitted in shadow mode"),
        (false, [500, 400, 400, 403], ["ERROR", "WARN", "DEBUG", ""], "rejected"),
    ] {
        shadow.set(is_on);
        let before = log.lines().len();
        for (request, status) in requests().into_iter().zip(statuses) {
            assert_eq!(status!(layer, request), status);
        }
        let mut lines = log.lines().split_off(before);
        lines.retain(|line| !line.trim_start().starts_with("INFO"));
        let levels: Vec<_> = levels.into_iter().filter(|level| !level.is_empty()).collect();
        assert_eq!(lines.len(), levels.len(), "{lines:#?}");
        for (line, level) in lines.iter().zip(levels) {
            assert!(line.trim_start().starts_with(level) && line.contains(what), "{level} {what}: {line}");
            assert!(!line.contains("203.0.113"), "{line}");
        }
    }
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn the_gauge_is_0_while_a_policy_lets_all_requests_pass() {
    use metrics_exporter_prometheus::PrometheusBuilder;

    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let shadow = Shadow::off();
    let layer = limit("off")
        .enabled(false)
        .and(limit("on"))
        .and(limit("dry").shadow(&shadow))
        .and(limit("both").shadow(&shadow).enabled(false));
    for dry in [1, 0, 1] {
        shadow.set(dry == 0);
        layer.record_metrics();
        assert_eq!(
            layer.stats().iter().map(|stats| u8::from(stats.is_enforced)).collect::<Vec<_>>(),
            [0, 1, dry, 0]
        );
        let page = page.render();
        for (policy, value) in [("off", 0), ("on", 1), ("dry", dry), ("both", 0)] {
            let line = format!("tower_throttle_enforced{{policy=\"{policy}\"}} {value}");
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
    }
}
