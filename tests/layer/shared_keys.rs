//! The keys of all extractors, as texts for stores on other machines.

use std::net::IpAddr;

use http::{HeaderValue, Request};
use tower_throttle::key::{
    Bearer, ClientIp, Cookie, Extension, Global, GrpcMethod, GrpcService, Header, Host, KeyExtractor, Method,
    PeerIp, Query, StoreKey, TrustedProxies, first_of, from_fn,
};
use tower_throttle::limiter::{KeySecret, KeyText, KeyWriter, SharedKey};

/// A user type, as an app has it.
#[derive(Clone, Debug, Hash)]
struct Tenant {
    region: String,
    id: u64,
}

impl SharedKey for Tenant {
    fn write_to(&self, text: &mut KeyWriter) {
        text.part(&self.region).part(&self.id);
    }
}

fn secret() -> KeySecret {
    KeySecret::new("0123456789abcdef").unwrap()
}

fn request(headers: &[(&'static str, &str)]) -> Request<()> {
    let mut request = Request::post("/shop.Orders/Create").body(()).unwrap();
    for (name, value) in headers {
        request.headers_mut().append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    request.extensions_mut().insert(IpAddr::from([203, 0, 113, 7]));
    request.extensions_mut().insert(Tenant { region: "eu".to_owned(), id: 42 });
    request
}

fn text<K: SharedKey>(extractor: &impl KeyExtractor<Request<()>, Key = K>, request: &Request<()>) -> String {
    let key = StoreKey::Key(extractor.extract(request).unwrap().unwrap());
    KeyText::new("api").of(&key).strip_prefix("throttle:{").unwrap().strip_suffix("}:api").unwrap().to_owned()
}

#[test]
fn the_key_of_each_extractor_has_a_text() {
    let with = |name, value| request(&[(name, value)]);
    let plain = request(&[]);
    assert_eq!(text(&PeerIp::new(), &plain), "ip~203.0.113.7");
    assert_eq!(text(&PeerIp::new().ipv4_prefix(24), &plain), "ip~203.0.113.0");
    let client = ClientIp::x_forwarded_for(TrustedProxies::hops(1).unwrap());
    assert_eq!(text(&client, &with("x-forwarded-for", "2001:db8:1:2:3::4")), "ip~2001:db8:1:2::");
    let header = Header::new("x-api-key").unwrap();
    assert_eq!(text(&header, &with("x-api-key", "a{b},c")), "header~a%7Bb%7D%2Cc");
    assert_eq!(text(&header, &with("x-api-key", "\u{fc}")), "header~%C3%BC");
    assert_eq!(text(&header, &with("x-api-key", "")), "header~%");
    assert_eq!(text(&header, &plain), "header~");
    let query = Request::get("/?api_key=a%7Bb%7D%2Cc+d").body(()).unwrap();
    assert_eq!(text(&Query::new("api_key"), &query), "query~a%7Bb%7D%2Cc%20d");
    assert_eq!(text(&Query::new("api_key"), &plain), "query~");
    assert_eq!(KeyText::new("api").of(&Query::new("api_key").key("")), "throttle:{query~%}:api");
    assert_eq!(text(&Extension::<Tenant, _>::new(Tenant::clone), &plain), "eu,#42");
    assert_eq!(text(&Extension::<Tenant, _>::new(|tenant| tenant.id), &plain), "#42");
    assert_eq!(text(&Global, &plain), "()");
    assert_eq!(text(&Method::new(), &plain), "method~POST");
    assert_eq!(text(&Method::by_safety(), &plain), "unsafe~");
    // The same text with each version of `http`, since processes of two builds may share a store.
    let query = Request::builder().method("QUERY").body(()).unwrap();
    assert_eq!(text(&Method::new(), &query), "method~QUERY");
    assert_eq!(text(&Method::by_safety(), &query), "safe~");
    assert_eq!(text(&Host::known(["a.example"]), &with("host", "a.example:80")), "some~a.example");
    assert_eq!(text(&Host::known(["a.example"]), &with("host", "b.example")), "none~");
    assert_eq!(text(&GrpcService::known(["shop.Orders"]), &plain), "some~shop.Orders");
    assert_eq!(text(&GrpcMethod::known(["/shop.Orders/Create"]), &plain), "some~shop.Orders/Create");
    assert_eq!(text(&from_fn(|_: &Request<()>| Some("a")), &plain), "a");
    assert_eq!(text(&(PeerIp::new(), Method::new()), &plain), "ip~203.0.113.7,method~POST");
    let nested = ((PeerIp::new(), Extension::<Tenant, _>::new(Tenant::clone)), Global);
    assert_eq!(text(&nested, &plain), "(ip~203.0.113.7,(eu,#42)),()");
}

#[test]
fn extractors_with_a_fallback_say_which_one_found_the_key() {
    let any = first_of((
        Header::new("x-api-key").unwrap(),
        Bearer::new().keyed_by(secret()),
        Extension::<Tenant, _>::new(Tenant::clone),
    ));
    assert_eq!(text(&any, &request(&[("x-api-key", "a")])), "1~header~a");
    assert!(text(&any, &request(&[("authorization", "Bearer a")])).starts_with("2~1~some~hash~"));
    assert_eq!(text(&any, &request(&[])), "2~2~(eu,#42)");
    let built = KeyText::new("api").of(&any.first_key(|header| header.key(&HeaderValue::from_static("a"))));
    assert_eq!(built, "throttle:{1~header~a}:api");
}

#[cfg(feature = "axum")]
#[test]
fn a_route_is_written_as_in_the_router() {
    use tower_throttle::key::Route;

    assert_eq!(text(&Route::new(), &request(&[])), "route~");
    let key = KeyText::new("api").of(&Route::new().key("/users/{id}"));
    assert_eq!(key, "throttle:{route~/users/%7Bid%7D}:api");
}

#[test]
fn secrets_are_hashed_with_the_configured_secret() {
    let token = request(&[("authorization", "Bearer t0ken"), ("cookie", "session=%74oken")]);
    let by_token = Bearer::new().max_len(8).keyed_by(secret());
    let hashed = text(&by_token, &token);
    assert!(hashed.starts_with("some~hash~") && !hashed.contains("t0ken"), "{hashed}");
    assert_eq!(hashed.len(), "some~hash~".len() + 32);
    // Another process with the same secret gets the same string, and so does a key that is built by hand.
    assert_eq!(text(&Bearer::new().keyed_by(secret()), &token), hashed);
    assert_eq!(KeyText::new("api").of(&by_token.key("t0ken")), format!("throttle:{{{hashed}}}:api"));
    assert_ne!(text(&Bearer::new().keyed_by(KeySecret::new("another-secret-0").unwrap()), &token), hashed);
    assert_eq!(text(&by_token, &request(&[])), "none~");
    assert!(by_token.extract(&request(&[("authorization", "Bearer too-long-a-token")])).is_err());

    let by_session = Cookie::new("session").unwrap().keyed_by(secret());
    assert_eq!(
        KeyText::new("api").of(&by_session.key("token")),
        format!("throttle:{{{}}}:api", text(&by_session, &token))
    );
}

#[test]
fn a_missing_key_has_a_text_of_its_own() {
    let text = KeyText::new("api");
    assert_eq!(text.of(&StoreKey::<&str>::Missing), "throttle:{~missing}:api");
    assert_eq!(text.of(&StoreKey::Key("~missing")), "throttle:{%7Emissing}:api");
    assert_eq!(text.of(&StoreKey::Key(Some(()))), "throttle:{some~}:api");
}
