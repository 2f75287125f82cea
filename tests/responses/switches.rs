//! What a switch of a limit does to handlers: the status for each switch, state of the key, and argument of a handler.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::{Route, get};
use tower::{Layer, Service, ServiceExt};
use tower_throttle::algorithm::FixedWindow;
use tower_throttle::key::{ClientIp, Global, MissingKey, Networks};
use tower_throttle::middleware::{Decisions, Shadow};
use tower_throttle::stats::KeyStats;
use tower_throttle::{Decision, HttpResponder, Quota, RateLimitLayer};

use crate::support::Answer;

/// The arguments of the handlers, which are their paths.
const HANDLERS: [&str; 3] = ["/nothing", "/decision", "/decisions"];

/// The states of a key, with the header by which the request is identified. The first two are the same caller, whose
/// limit is one request.
const KEYS: [(&str, Option<&str>); 5] = [
    ("within the limit", Some("198.51.100.7")),
    ("over the limit", Some("198.51.100.7")),
    ("missing", None),
    ("invalid", Some("nobody")),
    ("forbidden", Some("203.0.113.7")),
];

fn by_client() -> ClientIp {
    ClientIp::header("x-real-ip").unwrap().deny(Networks::new(["203.0.113.0/24"]).unwrap())
}

fn limit(key: ClientIp) -> RateLimitLayer<ClientIp, FixedWindow> {
    RateLimitLayer::new(key, FixedWindow::new(Quota::per_hour(1))).name("by client")
}

fn all(n: u64) -> RateLimitLayer<Global, FixedWindow> {
    RateLimitLayer::new(Global, FixedWindow::new(Quota::per_hour(n))).name("all")
}

/// Returns the answers to one request for each of the [`KEYS`]: the status, and what the handler at `path` was given.
async fn answers<L>(layer: L, path: &str) -> [(u16, String); 5]
where
    L: Layer<Route> + Clone + Send + Sync + 'static,
    L::Service: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
    <L::Service as Service<Request>>::Response: IntoResponse + 'static,
    <L::Service as Service<Request>>::Future: Send + 'static,
{
    let text = |is_given: bool| if is_given { "a decision" } else { "nothing" };
    let app = Router::new()
        .route("/nothing", get(async || "nothing"))
        .route("/decision", get(async move |decision: Option<Decision>| text(decision.is_some())))
        .route("/decisions", get(async move |decisions: Decisions| text(decisions.iter().next().is_some())))
        .layer(layer);
    let mut answers = Vec::new();
    for (_, header) in KEYS {
        let mut request = Request::get(path);
        if let Some(value) = header {
            request = request.header("x-real-ip", value);
        }
        let request = request.body(Body::empty()).unwrap();
        let answer = Answer::read(app.clone().oneshot(request).await.unwrap()).await;
        answers.push((answer.status.as_u16(), answer.text().to_owned()));
    }
    answers.try_into().unwrap()
}

/// Compares the statuses of all handlers, for each of the [`KEYS`], and whether the handlers are given a decision.
macro_rules! assert_row {
    ($switch:literal, $layer:expr, $statuses:expr, $is_given:expr) => {
        for path in HANDLERS {
            let layer = $layer.responder(HttpResponder::new().insert_details(true));
            let answers = answers(layer, path).await;
            assert_eq!(answers.clone().map(|(status, _)| status), $statuses, "{} {path}", $switch);
            for ((status, given), (state, _)) in answers.iter().zip(KEYS) {
                let expected = if $is_given && path != "/nothing" { "a decision" } else { "nothing" };
                assert!(*status != 200 || given == expected, "{} {path}, {state}: {given}", $switch);
            }
        }
    };
}

// While handlers took a plain `Decision`, and shadow mode answered requests without a valid key, the statuses were:
//
// | switch | handler that takes nothing | that takes a `Decision` |
// |---|---|---|
// | `enabled(false)` | 200, 200, 200, 200, 200 | 500, 500, 500, 500, 500 |
// | `unless` | 200, 200, 200, 200, 403 | 500, 500, 500, 500, 403 |
// | `allow` | 200, 200, 500, 400, 403 | 500, 500, 500, 400, 403 |
// | shadow mode | 200, 200, 500, 400, 403 | 500, 500, 500, 400, 403 |
// | shadow mode, joined with a limit of 4 | 200, 200, 500, 400, 403 | 200, 200, 500, 400, 403 |
#[tokio::test]
async fn no_switch_makes_a_handler_fail_and_a_dry_run_answers_nothing() {
    let (on, off) = (Shadow::on(), Shadow::off());
    let enforced = || limit(by_client());
    let allowed = || by_client().allow(Networks::new(["198.51.100.0/24"]).unwrap());
    let everything = |_: &Request| true;

    assert_row!("enforced", enforced(), [200, 429, 500, 400, 403], true);
    assert_row!("shadow off", enforced().shadow(&off), [200, 429, 500, 400, 403], true);
    assert_row!("enabled(false)", enforced().enabled(false), [200, 200, 200, 200, 200], false);
    assert_row!("unless", enforced().unless(everything), [200, 200, 200, 200, 403], false);
    assert_row!("allow", limit(allowed()), [200, 200, 500, 400, 403], false);
    assert_row!("shadow", enforced().shadow(&on), [200, 200, 200, 200, 200], false);
    assert_row!("shadow, not enabled", enforced().shadow(&on).enabled(false), [200; 5], false);

    // The policy in shadow mode has no part in the request, and the other one decides.
    assert_row!("shadow and all", enforced().shadow(&on).and(all(4)), [200, 200, 200, 200, 429], true);
    assert_row!("all and shadow", all(4).and(enforced().shadow(&on)), [200, 200, 200, 200, 429], true);
    // The key errors of the policy that is enforced answer as they do without the other one.
    let dry = || all(9).shadow(&on);
    assert_row!("shadow and enforced", dry().and(enforced()), [200, 429, 500, 400, 403], true);
    assert_row!("enforced and shadow", enforced().and(dry()), [200, 429, 500, 400, 403], true);
}

#[tokio::test]
async fn in_shadow_mode_requests_are_counted_as_what_they_would_have_been_answered_with() {
    let (shadow, switch) = (Shadow::on(), Shadow::off());
    let layer = limit(by_client());
    let (enforced, dry, joined) = (
        layer.clone().and(all(9)),
        limit(by_client()).shadow(&shadow),
        limit(by_client()).shadow(&shadow).and(all(9)),
    );
    let alone = limit(by_client()).shadow(&switch);
    drop(answers(enforced.clone(), "/nothing").await);
    drop(answers(alone.clone(), "/nothing").await);
    let expected = enforced.stats()[0].keys;
    assert_eq!(alone.stats().keys, expected);
    drop(answers(dry.clone(), "/nothing").await);
    assert_eq!(dry.stats().keys, expected);
    assert_eq!([expected.rejected, expected.invalid, expected.forbidden], [1; 3]);
    drop(answers(joined.clone(), "/nothing").await);
    assert_eq!(joined.stats()[0].keys, expected);
    for stats in [&dry.stats(), &joined.stats()[0]] {
        assert_eq!((stats.calls.admitted, stats.calls.shadow_denied, stats.calls.ended()), (1, 1, 2));
    }
    // The other policy has decided all of the requests.
    assert_eq!((joined.stats()[1].calls.admitted, joined.stats()[1].keys), (5, KeyStats::default()));
    assert_eq!(shadow.denied(), 2, "decisions only, one for each of the layers");
}

#[tokio::test]
async fn in_shadow_mode_a_shared_key_decides_requests_without_a_key() {
    let shadow = Shadow::on();
    let shared = || limit(by_client()).missing_key(MissingKey::Shared).shadow(&shadow);
    for is_joined in [false, true] {
        let (layer, denied) = (shared(), shadow.denied());
        let statuses = match is_joined {
            false => answers(layer.clone(), "/nothing").await.map(|(status, _)| status),
            true => answers(layer.clone().and(all(9)), "/nothing").await.map(|(status, _)| status),
        };
        assert_eq!((statuses, layer.stats().keys.shared, shadow.denied() - denied), ([200; 5], 1, 1));
        // The shared budget was spent by the request before.
        drop(answers(layer.clone(), "/nothing").await);
        assert_eq!((layer.stats().keys.shared, shadow.denied() - denied), (2, 4));
        assert_eq!(
            layer.stats().calls.shadow_denied,
            4,
            "three requests of the caller, and one without a key"
        );
    }
}
