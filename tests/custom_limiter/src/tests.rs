use std::convert::Infallible;
use std::net::IpAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::RateLimitLayer;
use tower_throttle::error::BoxError;
use tower_throttle::key::{MissingKey, PeerIp, StoreKey};
use tower_throttle::limiter::{Acquired, Attempt, Limiter, LimiterFor};
use tower_throttle_contract::{Contract, MakePermits};

use super::InProgress;

const SOURCE: &str = include_str!("in_progress.rs");

#[test]
fn its_code_is_in_the_guide() {
    let guide = without_breaks(include_str!("../../../src/guide/engine.md"));
    let is_there = guide.contains(&without_breaks(SOURCE));
    assert!(is_there, "src/guide/engine.md has another limiter than in_progress.rs");
}

/// Returns the code without what depends on the width of a line, which is smaller in the guide.
fn without_breaks(code: &str) -> String {
    let code: String = code.chars().filter(|char| !char.is_whitespace()).collect();
    code.replace(",)", ")").replace(",}", "}").replace(",]", "]")
}

/// Hidden items are not in the list of public items.
#[test]
fn it_names_public_items_only() {
    let public = include_str!("../../../.ci/public_items.tsv");
    let mut named = 0;
    for line in SOURCE.lines().filter_map(|line| line.strip_prefix("use tower_throttle::")) {
        let (module, items) =
            line.trim_end_matches(';').rsplit_once("::").unwrap_or(("", line.trim_end_matches(';')));
        for item in items.trim_matches(['{', '}']).split(", ") {
            let path = ["tower_throttle", module, item].into_iter().filter(|part| !part.is_empty());
            let path = path.collect::<Vec<_>>().join("::");
            assert!(public.contains(&format!("\n{path}\t")), "{path} is no public item");
            named += 1;
        }
    }
    assert!(named >= 10, "{named}");
}

fn request(peer: Option<&str>) -> Request<Full<Bytes>> {
    let mut request = Request::default();
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
    }
    request
}

#[tokio::test]
async fn in_a_layer_each_key_has_its_permits_until_the_bodies_end() {
    let limiter = InProgress::new(2);
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter.clone())
        .missing_key(MissingKey::Shared)
        .name("busy");
    let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
    }));
    let ask = async |peer| service.clone().oneshot(request(peer)).await.unwrap();
    let peers = [Some("192.0.2.1"), Some("192.0.2.2"), None];
    let mut held = Vec::new();
    for status in [200, 200, 429] {
        for peer in peers {
            let response = ask(peer).await;
            assert_eq!(response.status(), status, "{peer:?}");
            assert_eq!(response.headers().contains_key("retry-after"), status == 429);
            held.push((peer, response));
        }
    }
    // The first response ends when its body was read, and the others when they are dropped.
    let (_, first) = held.remove(0);
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(ask(peers[0]).await.status(), 200);
    assert_eq!(ask(peers[1]).await.status(), 429, "another key");
    assert_eq!(ask(None).await.status(), 429, "the key of those without a key");
    drop(held);
    for peer in peers {
        assert_eq!(ask(peer).await.status(), 200);
    }
    assert_eq!(format!("{limiter:?}").matches("keys: Mutex { data: {}").count(), 1, "{limiter:?}");
    layer.limiter().close();
    assert_eq!(ask(peers[0]).await.status(), 503);
}

/// The key `()` of `Global` writes nothing to a hasher, as a missing key does.
#[test]
fn a_missing_key_is_no_other_key() {
    let limiter = InProgress::new(1);
    let call = |key| match limiter.acquire(&key, Attempt::new(1)) {
        Acquired::Ready(decision, permit) => (decision.is_allowed(), permit),
        _ => unreachable!("each call is decided at once"),
    };
    let held = [StoreKey::Key(()), StoreKey::Missing].map(call);
    assert!(held[0].0 && held[1].0);
    assert!(!call(StoreKey::Key(())).0 && !call(StoreKey::Missing).0);
}

#[derive(Clone)]
struct Make;

impl MakePermits for Make {
    type Limiter = InProgress;

    fn make(&self, _: &str, limit: u64) -> Result<InProgress, BoxError> {
        Ok(InProgress::new(limit))
    }
}

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract_but_for_the_calls_that_wait() {
    let waits = [
        "a_waiting_call_gets_the_permit_that_is_released",
        "a_waiting_call_is_denied_after_its_maximum_wait",
        "a_wait_that_is_dropped_takes_no_permit",
        "a_wait_that_is_dropped_late_takes_no_permit",
        "concurrent_calls_hold_no_more_permits_than_the_limit",
        "a_closed_limiter_gives_no_permits",
    ];
    let report = Contract::of_permits(Make).run_if(|name| !waits.contains(&name)).await;
    report.assert_passed();
    assert!(report.passed().len() >= 15, "{report}");
}
