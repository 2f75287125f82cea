//! Requests that do not say who their caller is, if the key requires it, are rejected with 401.

use std::convert::Infallible;

use http::Request;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::key::{Bearer, Header, KeyError, KeyExtractor, MissingKey, Networks, PeerIp, first_of};
use tower_throttle::middleware::Shadow;
use tower_throttle::{ErrorResponder, HttpResponder, RateLimitLayer};

use super::{Http, ask, at_once, from, get, statuses, with};

/// An extractor of one's own, with a challenge.
#[derive(Clone)]
struct Named(&'static str);

impl<B> KeyExtractor<Request<B>> for Named {
    type Key = u8;

    fn extract(&self, request: &Request<B>) -> Result<Option<u8>, KeyError> {
        let error = || KeyError::unauthorized("say who you are").challenge(self.0).unwrap();
        request.headers().get("name").map(|_| Some(1)).ok_or_else(error)
    }
}

#[tokio::test]
async fn a_caller_without_a_required_token_gets_a_401_and_shares_no_budget() {
    let layer = RateLimitLayer::new(Bearer::new().required(), at_once(1));
    for request in
        [get("/"), with(get("/"), "authorization", "Basic YTpi"), with(get("/"), "authorization", "Bearer")]
    {
        let answer = ask(&layer, request).await;
        assert_eq!((answer.status, &answer.headers["www-authenticate"]), (401, &"Bearer".parse().unwrap()));
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(
            (&body["title"], &body["detail"]),
            (&"Unauthorized".into(), &"send a bearer token".into())
        );
        assert!(!answer.headers.contains_key("ratelimit") && !answer.headers.contains_key("retry-after"));
    }
    let with_token = |token: &str| with(get("/"), "authorization", &format!("Bearer {token}"));
    assert_eq!(statuses!(layer, with_token("a"), with_token("a"), with_token("b")), [200, 429, 200]);
    let keys = layer.stats().keys;
    assert_eq!((keys.unauthorized, keys.invalid, keys.rejected), (3, 0, 0));
    assert_eq!(layer.limiter().stats().calls.ended(), 3, "no key is charged");
    // The setting is kept, whatever comes after it.
    let by_address = Bearer::new().required().max_len(9).or(PeerIp::new());
    assert_eq!(statuses!(RateLimitLayer::new(by_address, at_once(1)), from("192.0.2.1")), [401]);
    // As the last extractor, it rejects those for whom no other one has found a key.
    let by_key = first_of((Header::new("x-api-key").unwrap(), Bearer::new().required()));
    let with_key = || with(get("/"), "x-api-key", "acme");
    let layer = RateLimitLayer::new(by_key, at_once(1));
    assert_eq!(statuses!(layer, with_key(), with_key(), get("/"), with_token("a")), [200, 429, 401, 200]);
}

#[tokio::test]
async fn the_setting_for_missing_keys_does_not_apply() {
    for missing in [MissingKey::Reject, MissingKey::Shared, MissingKey::Pass] {
        let layer = RateLimitLayer::new(Named("Basic realm=\"shop\""), at_once(1)).missing_key(missing);
        let answer = ask(&layer, get("/")).await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.headers["www-authenticate"], "Basic realm=\"shop\"");
        assert_eq!(statuses!(layer, with(get("/"), "name", "ann")), [200]);
    }
    for no_challenge in ["two\nlines", "", " "] {
        assert!(KeyError::unauthorized("").challenge(no_challenge).is_err(), "{no_challenge:?}");
    }
    assert_eq!(KeyError::invalid("no").challenge("Basic").unwrap(), KeyError::invalid("no"));
}

#[tokio::test]
async fn other_errors_exemptions_and_shadow_mode_are_as_with_other_mistakes_of_clients() {
    let named = || RateLimitLayer::new(Named("Bearer"), at_once(1));
    assert_eq!(
        statuses!(named().unless(|request: &Http| request.uri().path() == "/health"), get("/health")),
        [200]
    );
    let shadow = Shadow::on();
    let layer = named().shadow(&shadow);
    assert_eq!(statuses!(layer, get("/")), [200]);
    assert_eq!(layer.stats().keys.unauthorized, 1);
    // A caller on a deny list gets a 403 in any order. A missing address is a mistake of the server, and comes last.
    let denies = || PeerIp::new().deny(Networks::new(["6.6.6.6"]).unwrap());
    let layer = RateLimitLayer::new((Named("Bearer"), denies()), at_once(1));
    assert_eq!(statuses!(layer, from("6.6.6.6"), from("1.2.3.4"), get("/")), [403, 401, 401]);
    let layer = RateLimitLayer::new((denies(), Named("Bearer")), at_once(1)).missing_key(MissingKey::Pass);
    assert_eq!(statuses!(layer, from("6.6.6.6"), from("1.2.3.4"), get("/")), [403, 401, 401]);
    let joined = named().and(RateLimitLayer::new(denies(), at_once(1)));
    assert_eq!(statuses!(joined, from("6.6.6.6"), from("1.2.3.4")), [403, 401]);
    // A response of one's own may have another challenge.
    let own = HttpResponder::new().rejection_response(|rejection, _| {
        let response =
            http::Response::builder().status(rejection.status()).header("www-authenticate", "Digest");
        response.body("no").unwrap()
    });
    let challenges = ask(&named().responder(own), get("/")).await.headers;
    assert_eq!(challenges.get_all("www-authenticate").iter().collect::<Vec<_>>(), ["Digest"]);
}

#[tokio::test]
async fn services_that_are_not_http_get_the_error() {
    let layer = RateLimitLayer::new(Named("Bearer"), at_once(1)).responder(ErrorResponder);
    let service = layer.layer(service_fn(async |_: Http| Ok::<_, Infallible>(())));
    let error = service.oneshot(get("/")).await.unwrap_err();
    assert_eq!(error.to_string(), "the request does not say who its caller is");
    assert!(matches!(error, tower_throttle::Error::Key(key) if key.is_unauthorized()));
}
