//! Requests whose key cannot be extracted, because of a mistake of the client or of the configuration.

use std::hash::{Hash, Hasher};

use http::Request;
use tower_throttle::RateLimitLayer;
use tower_throttle::key::{
    Bearer, ClientIp, Cookie, Extension, Global, Header, Host, KeyError, KeyExtractor, MissingKey, Networks,
    PeerIp, Preflight, TrustedProxies, first_of,
};

use crate::keys::{Http, ask, at_once, from, get, statuses, with, with_peer};

/// Words that no public text may contain: names of headers, products and methods.
const NAMES: [&str; 14] = [
    "authorization",
    "x-api-key",
    "forwarded",
    "host",
    "cookie",
    "cloudfront",
    "cf-",
    "x-",
    "tower",
    "axum",
    "tonic",
    "max_len",
    "proxy",
    "proxies",
];

const INVALID: &str = "the request does not identify its client in a valid form";
const UNKNOWN: &str = "the server cannot identify the client of this request";

fn assert_names_nothing(text: &str) {
    let text = text.to_ascii_lowercase();
    assert!(!text.is_empty());
    for name in NAMES {
        assert!(!text.contains(name), "{name} in {text:?}");
    }
}

/// Sends a request to a layer with this key extractor, with each treatment of missing keys, once as an HTTP request and
/// once as a gRPC request.
macro_rules! assert_rejected {
    ($key:expr, $request:expr, $status:literal, $code:literal, $what:expr) => {{
        for missing in [MissingKey::Reject, MissingKey::Shared, MissingKey::Pass] {
            if $status == 500 && missing != MissingKey::Reject {
                continue;
            }
            let layer = RateLimitLayer::new($key, at_once(9)).missing_key(missing);
            let answer = ask(&layer, $request).await;
            assert_eq!(answer.status, $status, "{} {missing:?}", $what);
            assert_eq!(answer.headers["content-type"], "application/problem+json");
            let problem: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!((&problem["type"], &problem["status"]), (&"about:blank".into(), &$status.into()));
            let detail = if $status == 400 { INVALID } else { UNKNOWN };
            assert_eq!(problem["detail"], detail, "{}", $what);
            assert_names_nothing(detail);
            for field in ["retry-after", "ratelimit", "ratelimit-policy"] {
                assert!(!answer.headers.contains_key(field), "{field}");
            }
            let grpc = ask(&layer, with($request, "content-type", "application/grpc")).await;
            assert_eq!(grpc.status, 200);
            assert_eq!(grpc.headers["grpc-status"], $code, "{}", $what);
            assert_eq!(grpc.headers["grpc-message"], detail, "{}", $what);
            assert_eq!(layer.limiter().len(), 0, "nothing is counted");
            let counts = layer.stats().keys;
            let (invalid, rejected) = if $status == 400 { (2, 0) } else { (0, 2) };
            assert_eq!((counts.invalid, counts.rejected), (invalid, rejected), "{}", $what);
            assert_eq!((counts.shared, counts.unlimited, counts.forbidden), (0, 0, 0), "{}", $what);
        }
    }};
}

fn lines(name: &'static str, values: &[&str]) -> Http {
    values.iter().fold(from("10.0.0.1"), |request, value| with(request, name, value))
}

#[tokio::test]
async fn a_clients_mistake_is_400_whatever_is_done_about_missing_keys() {
    let networks = || TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap();
    let hops = |count| TrustedProxies::hops(count).unwrap();

    let token = || lines("authorization", &["Bearer a", "Bearer b"]);
    assert_rejected!(Bearer::new(), token(), 400, "3", "two lines of Authorization");
    assert_rejected!(Bearer::new().or(PeerIp::new()), token(), 400, "3", "two lines, and another extractor");
    assert_rejected!(first_of((Bearer::new(), Global)), token(), 400, "3", "two lines, in first_of");
    assert_rejected!((PeerIp::new(), Bearer::new()), token(), 400, "3", "two lines, in a tuple");
    let long = || lines("authorization", &["Bearer abcde"]);
    assert_rejected!(Bearer::new().max_len(4), long(), 400, "3", "a token that is too long");
    let header = || Header::new("x-api-key").unwrap();
    assert_rejected!(header(), lines("x-api-key", &["a", "b"]), 400, "3", "two lines of a header");
    assert_rejected!(header().max_len(4), lines("x-api-key", &["abcde"]), 400, "3", "a long header");
    let cookie = || Cookie::new("id").unwrap().max_len(4);
    assert_rejected!(cookie(), lines("cookie", &["id=abcde"]), 400, "3", "a long cookie");

    let host = || Host::known(["a.example"]);
    let absolute = || {
        let request = Request::get("http://a.example/").header("host", "b.example");
        request.body(http_body_util::Full::default()).unwrap()
    };
    assert_rejected!(host(), absolute(), 400, "3", "a Host unlike the target");
    assert_rejected!(host(), lines("host", &["a.example", "a.example"]), 400, "3", "two lines of Host");

    for list in ["unknown", "1.2.3.4,", "1.2.3.4, _hidden", "no address"] {
        let request = || lines("x-forwarded-for", &[list]);
        assert_rejected!(ClientIp::x_forwarded_for(networks()), request(), 400, "3", list);
        assert_rejected!(ClientIp::x_forwarded_for(hops(1)), request(), 400, "3", list);
    }
    for list in ["for=unknown", "by=1.2.3.4", "for=1.2.3.4;for=1.2.3.5", "\"", "1.2.3.4"] {
        let request = || lines("forwarded", &[list]);
        assert_rejected!(ClientIp::forwarded(networks()), request(), 400, "3", list);
        assert_rejected!(ClientIp::forwarded(hops(1)), request(), 400, "3", list);
    }
    let few = || lines("x-forwarded-for", &["1.2.3.4", "1.2.3.5"]);
    assert_rejected!(ClientIp::x_forwarded_for(hops(3)), few(), 400, "3", "fewer entries than hops");
    let single = || ClientIp::header("cf-connecting-ip").unwrap();
    let request = |values| lines("cf-connecting-ip", values);
    assert_rejected!(single(), request(&["1.2.3.4", "1.2.3.4"]), 400, "3", "two lines of an address");
    assert_rejected!(single(), request(&["1.2.3.4, 1.2.3.4"]), 400, "3", "a list, not an address");
    let request = || lines("cloudfront-viewer-address", &["1.2.3.4"]);
    assert_rejected!(ClientIp::cloudfront(), request(), 400, "3", "CloudFront without a port");
}

/// A header that may occur once occurs several times. The inner service might read any of the lines, so it does not
/// matter which lines are equal or empty.
#[tokio::test]
async fn several_lines_of_a_key_header_are_400_and_an_invalid_argument() {
    macro_rules! assert_single {
        ($name:literal, $valid:literal, $other:literal, $key:expr) => {{
            let layer = RateLimitLayer::new($key, at_once(9));
            assert_eq!(ask(&layer, lines($name, &[$valid])).await.status, 200);
            for values in [
                &[$valid, $valid][..],
                &[$valid, $other],
                &[$other, $valid],
                &[$valid, ""],
                &["", $valid],
                &["", ""],
                &[$valid, $other, $valid],
            ] {
                let what = format!("{} as {values:?} in {}", $name, stringify!($key));
                assert_rejected!($key, lines($name, values), 400, "3", what);
            }
        }};
    }
    let header = || Header::new("x-api-key").unwrap();
    assert_single!("x-api-key", "a", "b", header());
    assert_single!("x-api-key", "a", "b", header().or(PeerIp::new()));
    assert_single!("x-api-key", "a", "b", first_of((header(), Global)));
    assert_single!("x-api-key", "a", "b", (PeerIp::new(), header()));
    assert_single!("authorization", "Bearer a", "Basic b", Bearer::new());
    assert_single!("authorization", "Bearer a", "Basic b", Bearer::new().or(PeerIp::new()));
    assert_single!("authorization", "Bearer a", "Basic b", first_of((Bearer::new(), Global)));
    assert_single!("authorization", "Bearer a", "Basic b", (PeerIp::new(), Bearer::new()));
    assert_single!("host", "a.example", "b.example", Host::known(["a.example"]));
    assert_single!("host", "a.example", "b.example", (PeerIp::new(), Host::known(["a.example"])));
    assert_single!("x-real-ip", "1.2.3.4", "1.2.3.5", ClientIp::header("x-real-ip").unwrap());
    assert_single!("cloudfront-viewer-address", "1.2.3.4:5", "1.2.3.4:6", ClientIp::cloudfront());
}

#[tokio::test]
async fn a_mistake_in_the_configuration_is_500_and_the_body_names_nothing() {
    let hops = TrustedProxies::hops(1).unwrap();
    assert_rejected!(PeerIp::new(), get("/"), 500, "13", "no peer");
    assert_rejected!(
        PeerIp::new().peer_from(|peer: &Option<std::net::IpAddr>| *peer),
        get("/"),
        500,
        "13",
        "no extension"
    );
    assert_rejected!(ClientIp::x_forwarded_for(hops.clone()), from("10.0.0.1"), 500, "13", "no list");
    assert_rejected!(ClientIp::forwarded(hops.clone()), from("10.0.0.1"), 500, "13", "no list");
    assert_rejected!(ClientIp::header("x-real-ip").unwrap(), from("10.0.0.1"), 500, "13", "no header");
    assert_rejected!(ClientIp::cloudfront(), from("10.0.0.1"), 500, "13", "no header");
}

#[tokio::test]
async fn two_cookies_of_one_name_count_as_no_cookie() {
    let cookies = |peer: &str, line: &str| with(from(peer), "cookie", line);
    let cookie = || Cookie::new("id").unwrap();
    let layer = RateLimitLayer::new(cookie(), at_once(1));
    assert_eq!(
        statuses!(
            layer,
            cookies("1.1.1.1", "id=a"),
            cookies("1.1.1.1", "id=a; id=b"),
            // The second of two cookies of the same name is invented. Such a request has the key of callers without the
            // cookie.
            cookies("1.1.1.1", "id=a; id=c"),
            cookies("1.1.1.1", "id=d; a=b; id=e"),
            with(cookies("1.1.1.1", "id=f"), "cookie", "i%64=f"),
            from("1.1.1.1"),
            cookies("1.1.1.1", "id=a"),
        ),
        [200, 200, 429, 429, 429, 429, 429]
    );
    assert_eq!(layer.stats().keys.rejected, 0);
    let layer = RateLimitLayer::new(cookie().or(PeerIp::new()), at_once(1));
    assert_eq!(
        statuses!(
            layer,
            cookies("1.1.1.1", "id=a; id=b"),
            cookies("1.1.1.1", "id=a; id=c"),
            from("1.1.1.1"),
            cookies("2.2.2.2", "id=a; id=b"),
        ),
        [200, 429, 429, 200]
    );
}

#[tokio::test]
async fn a_caller_that_is_not_served_or_not_limited_is_not_asked_for_a_valid_key() {
    let twice = |peer: &str| {
        with(with(with_peer(get("/"), peer), "authorization", "Bearer a"), "authorization", "Bearer b")
    };
    let list = |entry: &str| Networks::new([entry]).unwrap();
    let peer = PeerIp::new().deny(list("6.6.6.6")).allow(list("7.7.7.7"));
    let layer = RateLimitLayer::new((Bearer::new(), peer), at_once(1));
    assert_eq!(statuses!(layer, twice("6.6.6.6"), twice("7.7.7.7"), twice("8.8.8.8")), [403, 200, 400]);
}

#[tokio::test]
async fn of_two_mistakes_the_clients_counts() {
    // Otherwise, a caller that does not come through the proxy could choose not to be limited.
    let by_both = || (ClientIp::header("x-real-ip").unwrap(), Bearer::new());
    let twice = || lines("authorization", &["Bearer a", "Bearer b"]);
    assert_rejected!(by_both(), twice(), 400, "3", "a header is missing, another is there twice");
}

#[tokio::test]
async fn a_caller_without_a_key_has_an_identity_that_no_key_can_have() {
    // A `Hash` that is not prefix-free can write any bytes, including those of the marker for "no key".
    struct Raw(&'static [u8]);
    impl Hash for Raw {
        fn hash<H: Hasher>(&self, state: &mut H) {
            state.write(self.0);
        }
    }
    #[derive(Clone)]
    struct ByKey;
    impl KeyExtractor<Http> for ByKey {
        type Key = Raw;
        fn extract(&self, request: &Http) -> Result<Option<Raw>, KeyError> {
            match request.uri().path() {
                "/magic" => Ok(Some(Raw(b"tower-throttle: a caller without a key\0"))),
                "/empty" => Ok(Some(Raw(b""))),
                _ => Err(KeyError::new("no key")),
            }
        }
    }
    let layer = RateLimitLayer::new(ByKey, at_once(1)).missing_key(MissingKey::Shared);
    assert_eq!(
        statuses!(layer, get("/"), get("/magic"), get("/empty"), get("/"), get("/magic"), get("/empty")),
        [200, 200, 200, 429, 429, 429]
    );
    // If a limiter is called directly, it finds the state of a caller by the caller's key.
    assert!(!layer.limiter().check(&Raw(b"")).is_allowed());
}

#[tokio::test]
async fn an_absent_extension_is_a_missing_key() {
    #[derive(Clone)]
    struct User(u64);
    let by_user = || Extension::<User, _>::new(|user| user.0);
    let signed_in = |id| {
        let mut request = get("/");
        request.extensions_mut().insert(User(id));
        request
    };
    assert_rejected!(by_user(), get("/"), 500, "13", "no extension");
    let layer = RateLimitLayer::new(by_user(), at_once(1));
    assert_eq!(
        statuses!(layer, get("/"), signed_in(1), get("/"), signed_in(1), signed_in(2)),
        [500, 200, 500, 429, 200]
    );
    assert_eq!(layer.stats().keys.rejected, 2);
    let layer = RateLimitLayer::new(by_user(), at_once(1)).missing_key(MissingKey::Shared);
    assert_eq!(statuses!(layer, get("/"), signed_in(1), get("/")), [200, 200, 429]);
    let layer = RateLimitLayer::new(by_user().or(PeerIp::new()), at_once(1));
    assert_eq!(
        statuses!(layer, from("1.1.1.1"), signed_in(1), from("2.2.2.2"), from("1.1.1.1")),
        [200, 200, 200, 429]
    );
}

#[test]
fn trusting_every_address_is_an_error_with_advice() {
    for (networks, named) in [
        (&["0.0.0.0/0"][..], "0.0.0.0/0"),
        (&["0.0.0.0/1", "128.0.0.0/1"], "0.0.0.0/0"),
        (&["128.0.0.0/1", "10.0.0.0/8", "64.0.0.0/2", "0.0.0.0/2"], "0.0.0.0/0"),
        (&["::ffff:0.0.0.0/96"], "0.0.0.0/0"),
        (&["::ffff:0.0.0.0/97", "128.0.0.0/1"], "0.0.0.0/0"),
        (&["::ffff:0.0.0.0/97", "::ffff:128.0.0.0/97"], "0.0.0.0/0"),
        (&["::/0"], "::/0"),
        (&["::/1", "8000::/1"], "::/0"),
        (&["10.0.0.0/8", "::/0", "unix"], "::/0"),
    ] {
        let error = TrustedProxies::cidrs(networks).expect_err("trusts everybody").to_string();
        assert!(error.contains(&format!("`{named}`")), "{networks:?}: {error}");
        assert!(error.contains("TrustedProxies::hops"), "{error}");
        // A list of networks to allow or deny may contain all addresses.
        assert!(Networks::new(networks).is_ok(), "{networks:?}");
    }
    for networks in [
        &["0.0.0.0/1"][..],
        &["0.0.0.0/1", "128.0.0.0/2"],
        &["::/1"],
        &["2000::/3"],
        &["private", "unix"],
        &[],
    ] {
        assert!(TrustedProxies::cidrs(networks).is_ok(), "{networks:?}");
    }
}

#[tokio::test]
async fn a_preflight_does_not_override_its_method() {
    let preflight = || {
        let request = Request::options("/").header("origin", "https://a.example");
        request.header("access-control-request-method", "PUT").body(http_body_util::Full::default()).unwrap()
    };
    let layer = RateLimitLayer::new(Global, at_once(1)).unless(Preflight);
    let overriding = || with(preflight(), "x-http-method-override", "POST");
    assert_eq!(
        statuses!(layer, preflight(), preflight(), overriding(), overriding(), preflight()),
        [200, 200, 200, 429, 200]
    );
}
