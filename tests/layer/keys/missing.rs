//! Requests without a key are rejected, share a budget, or pass.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, Tiered};
use tower_throttle::key::{
    Bearer, ClientIp, Cookie, Extension, Global, Header, KeyError, KeyExtractor, MissingKey, Networks,
    PeerIp, StoreKey, TrustedProxies,
};
use tower_throttle::middleware::Shadow;
use tower_throttle::stats::KeyStats;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

use super::{Http, ask, at_once, from, get, statuses, with};

#[tokio::test]
async fn a_request_without_a_key_is_rejected_and_the_body_names_nothing() {
    let layer = RateLimitLayer::per_ip(Quota::per_second(1));
    let answer = ask(&layer, get("/")).await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    assert!(!answer.body.contains("into_make_service_with_connect_info"), "{}", answer.body);
    assert!(answer.headers.get("retry-after").is_none() && answer.headers.get("ratelimit").is_none());
    assert_eq!(layer.limiter().len(), 0);
    let counts = layer.stats().keys;
    assert_eq!((counts.rejected, counts.shared, counts.unlimited, counts.forbidden), (1, 0, 0, 0));
}

/// The value of these keys is the caller's to send or not. Without it, there is one budget for all, and no error.
#[tokio::test]
async fn callers_without_a_token_a_cookie_or_a_header_share_one_budget() {
    macro_rules! assert_shared {
        ($key:expr) => {{
            let layer = RateLimitLayer::new($key, at_once(2));
            assert_eq!(statuses!(layer, from("1.1.1.1"), from("2.2.2.2"), from("3.3.3.3")), [200, 200, 429]);
            assert_eq!(layer.stats().keys, KeyStats::default(), "no key is missing");
            // the fix that the README names
            let layer = RateLimitLayer::new($key.or(PeerIp::new()), at_once(2));
            assert_eq!(statuses!(layer, from("1.1.1.1"), from("2.2.2.2"), from("3.3.3.3")), [200; 3]);
        }};
    }
    assert_shared!(Bearer::new());
    assert_shared!(Cookie::new("session").unwrap());
    assert_shared!(Header::new("x-api-key").unwrap());
}

/// The address of the peer, and how often it was extracted.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU32>);

impl KeyExtractor<Http> for Counted {
    type Key = IpAddr;

    fn extract(&self, request: &Http) -> Result<Option<IpAddr>, KeyError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        PeerIp::new().extract(request)
    }
}

/// A second extraction would log and count a mistake twice.
#[tokio::test]
async fn the_key_of_a_request_is_extracted_once_whatever_the_decision_is() {
    for missing in [MissingKey::Reject, MissingKey::Shared, MissingKey::Pass] {
        let counted = Counted::default();
        let shadow = Shadow::off();
        let layer =
            RateLimitLayer::new(counted.clone(), at_once(2)).missing_key(missing).shadow(&shadow).name("one");
        let mut asked = 0;
        let mut ask_once = async |request: Http| {
            let status = ask(&layer, request).await.status;
            asked += 1;
            assert_eq!(counted.0.load(Ordering::Relaxed), asked, "{missing:?}");
            status
        };
        // A new key, a known one, a denial that is made, and one that stands.
        for expected in [200, 200, 429, 429] {
            assert_eq!(ask_once(from("1.2.3.4")).await, expected);
        }
        ask_once(get("/")).await;
        layer.limiter().replace(at_once(3));
        ask_once(from("1.2.3.4")).await;
        shadow.set(true);
        ask_once(from("1.2.3.4")).await;
        ask_once(get("/")).await;
        let keys = layer.stats().keys;
        assert_eq!(keys.rejected + keys.shared + keys.unlimited, 2, "{missing:?}");
    }
}

/// In shadow mode, a limit decides after those that it is joined with, and only what they admit.
#[tokio::test]
async fn the_key_of_a_joined_limit_in_shadow_mode_is_extracted_once_if_the_others_admit_the_request() {
    for missing in [MissingKey::Reject, MissingKey::Shared, MissingKey::Pass] {
        let counted = Counted::default();
        let tried =
            RateLimitLayer::new(counted.clone(), at_once(1)).missing_key(missing).shadow(&Shadow::on());
        let real = || RateLimitLayer::new(Global, at_once(3));
        for statuses in [
            statuses!(tried.clone().and(real()), from("1.1.1.1"), from("1.1.1.1"), get("/"), get("/")),
            statuses!(real().and(tried.clone()), from("1.1.1.1"), from("1.1.1.1"), get("/"), get("/")),
        ] {
            assert_eq!(statuses, [200, 200, 200, 429]);
        }
        assert_eq!(counted.0.load(Ordering::Relaxed), 6, "{missing:?}");
        let keys = tried.stats().keys;
        assert_eq!(keys.rejected + keys.shared + keys.unlimited, 2, "{missing:?}");
    }
}

#[tokio::test]
async fn calls_without_a_key_may_share_one_budget_or_pass() {
    let shared = RateLimitLayer::new(PeerIp::new(), at_once(1)).missing_key(MissingKey::Shared);
    assert_eq!(
        statuses!(shared, get("/"), get("/"), from("1.2.3.4"), from("1.2.3.4"), from("5.6.7.8")),
        [200, 429, 200, 429, 200]
    );
    let pass = RateLimitLayer::new(PeerIp::new(), at_once(1)).missing_key(MissingKey::Pass);
    let answer = ask(&pass, get("/")).await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers.get("ratelimit").is_none(), "it was not limited");
    assert_eq!(statuses!(pass, get("/"), get("/"), from("1.2.3.4"), from("1.2.3.4")), [200, 200, 200, 429]);
    // The clones of a layer share their counts.
    let (shared, pass) = (shared.clone().hidden().stats().keys, pass.stats().keys);
    assert_eq!((shared.rejected, shared.shared, shared.unlimited), (0, 2, 0));
    assert_eq!((pass.rejected, pass.shared, pass.unlimited), (0, 0, 3));
}

/// The budget that requests without a key share can be read and changed in code, as that of any other key.
#[tokio::test]
async fn the_budget_of_requests_without_a_key_can_be_reset_and_refunded() {
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(2)).missing_key(MissingKey::Shared);
    assert_eq!(statuses!(layer, get("/"), get("/"), get("/")), [200, 200, 429]);
    let shared = || layer.limiter().call(&StoreKey::<()>::Missing);
    assert_eq!(shared().peek().remaining(), 0);
    shared().refund();
    assert_eq!(shared().peek().remaining(), 1);
    shared().reset();
    assert_eq!(shared().peek().remaining(), 2);
    assert_eq!(statuses!(layer, get("/"), get("/"), get("/")), [200, 200, 429]);
}

#[tokio::test]
async fn each_joined_layer_has_its_own_policy_for_missing_keys() {
    let all = || RateLimitLayer::new(Global, at_once(2));
    let rejects = RateLimitLayer::new(PeerIp::new(), at_once(1));
    let watched = rejects.clone();
    assert_eq!(statuses!(all().and(rejects), get("/"), get("/")), [500, 500]);
    assert_eq!(watched.stats().keys.rejected, 2);
    let passes = RateLimitLayer::new(PeerIp::new(), at_once(1)).missing_key(MissingKey::Pass);
    assert_eq!(statuses!(all().and(passes), get("/"), get("/"), get("/")), [200, 200, 429]);
    let shares = RateLimitLayer::new(PeerIp::new(), at_once(1)).missing_key(MissingKey::Shared);
    assert_eq!(statuses!(all().and(shares), get("/"), get("/"), from("1.2.3.4")), [200, 429, 200]);
}

#[tokio::test]
async fn callers_without_a_key_are_limited_by_the_limiters_own_algorithm() {
    let layer = RateLimitLayer::new(PeerIp::new(), Tiered::new(at_once(1)))
        .tier(|_: &Http, _| at_once(3))
        .missing_key(MissingKey::Shared);
    assert_eq!(statuses!(layer, get("/"), get("/")), [200, 429]);
    let known = || from("1.2.3.4");
    assert_eq!(statuses!(layer, known(), known(), known(), known()), [200, 200, 200, 429]);
}

#[tokio::test]
async fn forbidden_by_a_joined_layer_takes_precedence_over_a_missing_key() {
    let denies = || RateLimitLayer::new(PeerIp::new().deny(Networks::new(["6.6.6.6"]).unwrap()), at_once(1));
    let by_token = || RateLimitLayer::new(Bearer::new(), at_once(1)).missing_key(MissingKey::Pass);
    let twice = || with(with(from("6.6.6.6"), "authorization", "Bearer a"), "authorization", "Bearer b");
    assert_eq!(ask(&denies().and(by_token()), twice()).await.status, 403);
    assert_eq!(ask(&by_token().and(denies()), twice()).await.status, 403);
    let all = by_token().missing_key(MissingKey::Reject);
    assert_eq!(ask(&all.and(denies()), twice()).await.status, 403);
}

/// As in a tuple of the same keys.
#[tokio::test]
async fn a_clients_mistake_takes_precedence_over_one_of_the_configuration_in_joined_layers() {
    #[derive(Clone)]
    struct Tenant(u64);
    let tenant = || Extension::<Tenant, _>::new(|tenant| tenant.0);
    let by_tenant = || RateLimitLayer::new(tenant(), at_once(1));
    let by_token = || RateLimitLayer::new(Bearer::new(), at_once(1));
    let by_user = || RateLimitLayer::new(Bearer::new().required(), at_once(1));
    let twice = || with(with(get("/"), "authorization", "Bearer a"), "authorization", "Bearer b");
    assert_eq!(ask(&by_tenant().and(by_token()), twice()).await.status, 400);
    assert_eq!(ask(&by_token().and(by_tenant()), twice()).await.status, 400);
    assert_eq!(ask(&by_tenant().and(by_token()).and(by_tenant()), twice()).await.status, 400);
    assert_eq!(ask(&by_tenant().and(by_tenant()).and(by_token()), twice()).await.status, 400);
    assert_eq!(ask(&by_tenant().and(by_user()), get("/")).await.status, 401);
    assert_eq!(ask(&by_user().and(by_tenant()), get("/")).await.status, 401);
    // The first of two mistakes of one kind.
    let by_key = || RateLimitLayer::new(Header::new("x-api-key").unwrap(), at_once(1));
    let two_keys = || with(with(get("/"), "x-api-key", "a"), "x-api-key", "b");
    assert_eq!(ask(&by_user().and(by_key()), two_keys()).await.status, 401);
    assert_eq!(ask(&by_key().and(by_user()), two_keys()).await.status, 400);
    assert_eq!(ask(&by_tenant().and(by_token()), get("/")).await.status, 500);
}

#[tokio::test]
async fn services_that_are_not_http_get_an_error() {
    struct Closed;
    impl KeyExtractor<u32> for Closed {
        type Key = ();
        fn extract(&self, request: &u32) -> Result<Option<()>, KeyError> {
            if *request == 6 { Err(KeyError::forbidden("no sixes")) } else { Ok(Some(())) }
        }
    }
    let layer = RateLimitLayer::new(Closed, at_once(1)).responder(ErrorResponder);
    let service = layer.layer(service_fn(|n: u32| async move { Ok::<_, Infallible>(n) }));
    let error = service.oneshot(6).await.unwrap_err();
    assert_eq!(error.to_string(), "the caller is not served");
    assert!(matches!(error, tower_throttle::Error::Key(key) if key.is_forbidden()));
}

#[test]
fn what_a_caller_sent_is_not_printed() {
    let request = with(with(get("/"), "authorization", "Bearer secret"), "cookie", "session=secret");
    let request = with(request, "x-api-key", "secret");
    let keys = (Bearer::new(), Cookie::new("session").unwrap(), Header::new("x-api-key").unwrap());
    let shown = format!("{:?} {keys:?}", keys.extract(&request).unwrap().unwrap());
    assert!(!shown.contains("secret"), "{shown}");
    let broken = with(get("/"), "x-forwarded-for", "secret");
    let by_client = ClientIp::x_forwarded_for(TrustedProxies::hops(1).unwrap());
    let error = by_client.resolve(&broken).unwrap_err();
    assert!(error.to_string().contains("x-forwarded-for"), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}

#[test]
fn counts_begin_at_zero() {
    let layer = RateLimitLayer::new(Global, FixedWindow::new(Quota::per_second(1)));
    assert_eq!(layer.stats().keys, KeyStats::default());
}
