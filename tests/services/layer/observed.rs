//! What others can observe of a layer's decisions: a function that sees rejections, extensions, and the counts.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::key::{Global, Header, PeerIp, from_fn};
use tower_throttle::middleware::{Decisions, Rejected, Rejection};
use tower_throttle::{Decision, ErrorResponder, HttpResponder, Quota, RateLimitLayer};

use crate::keys::{Http, at_once, from, get, with};

type Seen = Arc<Mutex<Vec<String>>>;

/// Returns a line about a rejection, with the names of the policies that denied.
fn line(rejection: &Rejection<'_>) -> String {
    let denied: Vec<_> =
        rejection.policies().iter().filter(|report| !report.decision().is_allowed()).collect();
    let names: Vec<_> = denied.iter().map(|report| report.name()).collect();
    format!("{} {}", rejection.status().as_u16(), names.join("+"))
}

/// Returns a function that records rejections with the paths of their requests.
fn recorder(seen: &Seen) -> impl Fn(&Rejection<'_>, &Http) + Clone + use<> {
    let seen = seen.clone();
    move |rejection, request| {
        seen.lock().unwrap().push(format!("{} {}", line(rejection), request.uri().path()));
    }
}

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

#[tokio::test]
async fn each_rejection_is_observed_and_no_admission() {
    let seen = Seen::default();
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(1)).name("ip").on_reject(recorder(&seen));
    let service = layer.layer(service_fn(hello));
    let plain = RateLimitLayer::new(PeerIp::new(), at_once(1)).name("ip").layer(service_fn(hello));
    for request in [from("1.2.3.4"), from("1.2.3.4"), get("/no-key")] {
        let expected = plain.clone().oneshot(request.clone()).await.unwrap();
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!((answer.status(), answer.headers()), (expected.status(), expected.headers()));
    }
    assert_eq!(*seen.lock().unwrap(), ["429 ip /", "500  /no-key"]);
}

#[tokio::test]
async fn rejections_of_joined_layers_and_of_grpc_are_observed() {
    let seen = Seen::default();
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(9))
        .name("ip")
        .and(RateLimitLayer::new(Global, at_once(1)).name("all").hidden())
        .on_reject(recorder(&seen));
    let service = layer.layer(service_fn(hello));
    let grpc = || with(from("1.2.3.4"), "content-type", "application/grpc");
    assert!(!service.clone().oneshot(grpc()).await.unwrap().headers().contains_key("grpc-status"));
    assert_eq!(service.oneshot(grpc()).await.unwrap().headers()["grpc-status"], "8");
    assert_eq!(*seen.lock().unwrap(), ["429 all /"], "also a policy that is hidden from callers");
}

#[tokio::test]
async fn rejections_of_services_that_are_not_http_are_observed() {
    let seen = Seen::default();
    let recorded = seen.clone();
    let layer =
        RateLimitLayer::new(from_fn(|job: &u32| Some(job % 10)), TokenBucket::new(Quota::per_hour(1)))
            .responder(ErrorResponder)
            .on_reject(move |rejection: &Rejection<'_>, job: &u32| {
                recorded.lock().unwrap().push(format!("{} {job}", line(rejection)));
            });
    let service = layer.layer(service_fn(|job: u32| async move { Ok::<_, Infallible>(job) }));
    assert_eq!(service.clone().oneshot(7).await.unwrap(), 7);
    assert!(service.clone().oneshot(17).await.is_err());
    assert_eq!(*seen.lock().unwrap(), ["429 default 17"]);
}

/// Returns the details in the extensions of a request, as names and remaining units.
async fn decisions(request: Http) -> Result<Response<Full<Bytes>>, Infallible> {
    let decisions = request.extensions().get::<Decisions>();
    let parts: Vec<_> = decisions.map_or(Vec::new(), |decisions| {
        decisions.iter().map(|(name, decision)| format!("{name}={}", decision.remaining())).collect()
    });
    Ok(Response::new(Full::from(parts.join(" "))))
}

async fn text(response: Response<impl hyper::body::Body<Data = Bytes, Error: std::fmt::Debug>>) -> String {
    use http_body_util::BodyExt;
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn a_handler_finds_the_decisions_of_all_policies_by_name() {
    let details = || HttpResponder::new().insert_details(true);
    let joined = RateLimitLayer::new(PeerIp::new(), at_once(9))
        .name("ip")
        .and(RateLimitLayer::new(Global, FixedWindow::new(Quota::per_day(5))).name("all").hidden())
        .responder(details());
    let outer = RateLimitLayer::new(Global, at_once(3)).name("outer").responder(details());
    let service = outer.layer(joined.layer(service_fn(decisions)));
    let answer = service.oneshot(from("1.2.3.4")).await.unwrap();
    assert_eq!(text(answer).await, "outer=2 ip=8 all=4");
    let quiet = RateLimitLayer::new(Global, at_once(3)).layer(service_fn(decisions));
    assert_eq!(text(quiet.oneshot(get("/")).await.unwrap()).await, "", "off by default");
}

#[tokio::test]
async fn the_response_to_a_denied_request_has_the_policy_and_the_decision() {
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(9))
        .name("ip")
        .and(RateLimitLayer::new(Global, at_once(1)).name("all").hidden())
        .responder(HttpResponder::new().insert_details(true));
    let service = layer.layer(service_fn(hello));
    let rejected = |response: &Response<_>| {
        let rejected = response.extensions().get::<Rejected>()?;
        Some((rejected.policy().to_owned(), *rejected.decision()))
    };
    let admitted = service.clone().oneshot(from("1.2.3.4")).await.unwrap();
    assert_eq!(rejected(&admitted), None);
    let denied = service.clone().oneshot(from("1.2.3.4")).await.unwrap();
    let (policy, decision): (String, Decision) = rejected(&denied).unwrap();
    assert_eq!((policy.as_str(), decision.is_allowed(), decision.limit()), ("all", false, 1));
    let grpc = with(from("1.2.3.4"), "content-type", "application/grpc");
    assert!(rejected(&service.clone().oneshot(grpc).await.unwrap()).is_some());
    let no_key = service.oneshot(get("/")).await.unwrap();
    assert_eq!((no_key.status().as_u16(), rejected(&no_key)), (500, None));
}

/// The counts of a policy name it, and nothing of the callers.
#[tokio::test]
async fn the_counts_of_a_layer_name_no_key() {
    let layer = RateLimitLayer::new(Header::new("x-api-key").unwrap(), at_once(1)).name("by key");
    let service = layer.layer(service_fn(hello));
    for key in ["recognisable", "recognisable", "recognisable-2"] {
        let request: Request<_> = with(get("/"), "x-api-key", key);
        let _ = service.clone().oneshot(request).await.unwrap();
    }
    let stats = layer.stats();
    assert_eq!((stats.calls.admitted, stats.calls.denied, stats.calls.ended()), (2, 1, 3));
    let shown = format!("{stats:?} {:?}", layer.limiter().stats());
    assert!(shown.contains("by key") && !shown.contains("recognisable"), "{shown}");
}
