//! The keys that are denied most often, as `on_reject` lists them.

use std::convert::Infallible;
use std::net::IpAddr;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::key::{
    Bearer, Extension, Global, Header, KeyExtractor, Networks, PeerIp, first_of, from_fn,
};
use tower_throttle::middleware::{Rejection, Shadow, ShadowDenied};
use tower_throttle::stats::TopKeys;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

use crate::keys::{Http, at_once, from, get, statuses, with, with_peer};
use crate::support::{OwnLimiter, PolledByHand};

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

/// Returns the counts of a list, whose labels are hashes.
fn counts(top: &TopKeys) -> Vec<u64> {
    let is_hash = |label: &str| label.len() == 16 && label.bytes().all(|byte| byte.is_ascii_hexdigit());
    let list = top.list();
    assert!(list.iter().all(|key| is_hash(&key.label)), "{list:?}");
    list.into_iter().map(|key| key.denied).collect()
}

#[tokio::test]
async fn the_keys_that_a_layer_denies_most_often_are_listed_by_their_hashes() {
    let (peer, top) = (PeerIp::new(), TopKeys::new());
    let is_free = |request: &Http| request.uri().path() == "/free";
    let layer = RateLimitLayer::new(peer.clone(), at_once(1)).unless(is_free).on_reject(top.watch(&peer));
    for (caller, calls) in [("1.2.3.4", 2), ("5.6.7.8", 4), ("9.9.9.9", 1)] {
        for call in 0..calls {
            assert_eq!(statuses!(layer, from(caller)), [if call == 0 { 200 } else { 429 }]);
            assert_eq!(statuses!(layer, with_peer(get("/free"), caller)), [200]);
        }
    }
    assert_eq!((counts(&top), top.total()), (vec![3, 1], 4));
    top.clear();
    assert_eq!((counts(&top), top.total()), (vec![], 0));
}

/// A key is the group of addresses that has one budget, and not the address.
#[tokio::test]
async fn one_network_that_has_one_budget_is_one_key() {
    let (peer, top) = (PeerIp::new(), TopKeys::new());
    let layer = RateLimitLayer::new(peer.clone(), at_once(1)).on_reject(top.watch(&peer));
    let [first, second, other] = ["2001:db8::1", "2001:db8::2:3", "2001:db8:0:1::1"].map(from);
    assert_eq!(statuses!(layer, first.clone(), second.clone(), first, other), [200, 429, 429, 200]);
    assert_eq!(counts(&top), [2]);
}

/// With a label, the function is of one's own.
#[tokio::test]
async fn a_label_is_of_the_key_that_is_denied() {
    let (peer, top) = (PeerIp::new(), TopKeys::new());
    let (extractor, shown) = (peer.clone(), top.clone());
    let layer =
        RateLimitLayer::new(peer, at_once(1)).on_reject(move |rejection: &Rejection<'_>, request: &Http| {
            if rejection.status() == StatusCode::TOO_MANY_REQUESTS
                && let Ok(Some(key)) = extractor.extract(request)
            {
                shown.record_as(&key, || key.to_string());
            }
        });
    let callers = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "10.0.0.1", "10.0.0.1"];
    for caller in callers.map(from).into_iter().chain([get("/no-key")]) {
        let _ = statuses!(layer, caller);
    }
    let list: Vec<_> = top.list().into_iter().map(|key| (key.label, key.denied)).collect();
    assert_eq!(list, [("2001:db8::".to_owned(), 2), ("10.0.0.1".to_owned(), 1)]);
}

/// The labels are the texts of the keys, also of those of the guide's favourite extractors, which callers without a
/// value share.
#[tokio::test]
async fn a_text_says_whose_key_it_is() {
    #[derive(Clone)]
    struct User(u64);
    let by_user = first_of((Extension::<User, _>::new(|user| user.0), PeerIp::new()));
    let top = TopKeys::new();
    let layer = RateLimitLayer::new(by_user.clone(), at_once(1)).on_reject(top.watch_text(&by_user));
    let user = |id: u64, peer: &str| {
        let mut request = from(peer);
        request.extensions_mut().insert(User(id));
        request
    };
    for request in
        [user(42, "1.2.3.4"), user(42, "5.6.7.8"), user(42, "1.2.3.4"), from("5.6.7.8"), from("5.6.7.8")]
    {
        let _ = statuses!(layer, request);
    }
    let labels =
        |top: &TopKeys| top.list().into_iter().map(|key| (key.label, key.denied)).collect::<Vec<_>>();
    assert_eq!(labels(&top), [("1~#42".to_owned(), 2), ("2~ip~5.6.7.8".to_owned(), 1)]);
    let (by_key, top) = (Header::new("x-api-key").unwrap(), TopKeys::new());
    let layer = RateLimitLayer::new(by_key.clone(), at_once(1)).on_reject(top.watch_text(&by_key));
    for key in ["acme", "acme", "acme", "other"] {
        let _ = statuses!(layer, with(get("/"), "x-api-key", key));
    }
    assert_eq!(statuses!(layer, get("/"), get("/")), [200, 429]);
    assert_eq!(labels(&top), [("header~acme".to_owned(), 2), ("header~".to_owned(), 1)]);
    // In a handler, an entry of the same list has the same key.
    top.record_as(&by_key.key(&"acme".parse().unwrap()), || "not asked for".to_owned());
    assert_eq!(labels(&top)[0], ("header~acme".to_owned(), 3));
}

#[tokio::test]
async fn what_no_limit_has_denied_is_not_listed() {
    let top = TopKeys::new();
    // Without a key, of a forbidden caller, and with an invalid key.
    let peer = PeerIp::new().deny(Networks::new(["192.0.2.0/24"]).unwrap());
    let layer = RateLimitLayer::new(peer.clone(), at_once(1)).on_reject(top.watch(&peer));
    assert_eq!(statuses!(layer, get("/"), from("192.0.2.7"), from("10.0.0.1")), [500, 403, 200]);
    let by_key = Header::new("x-api-key").unwrap();
    let layer = RateLimitLayer::new(by_key.clone(), at_once(1)).on_reject(top.watch(&by_key));
    let two = with(with(get("/"), "x-api-key", "a"), "x-api-key", "b");
    assert_eq!(statuses!(layer, two), [400]);
    // By a closed limiter, by one that has failed, and by one whose table is full.
    let layer = RateLimitLayer::new(PeerIp::new(), at_once(1)).on_reject(top.watch(&PeerIp::new()));
    layer.limiter().close();
    assert_eq!(statuses!(layer, from("10.0.0.1")), [503]);
    let limiter = OwnLimiter::new(at_once(1));
    limiter.set_down(true);
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter).on_reject(top.watch(&PeerIp::new()));
    assert_eq!(statuses!(layer, from("10.0.0.1")), [503]);
    let full = tower_throttle::RateLimiter::builder(at_once(1))
        .max_keys(1)
        .on_full(tower_throttle::limiter::OnFull::Reject)
        .build();
    let layer = RateLimitLayer::with_limiter(PeerIp::new(), full).on_reject(top.watch(&PeerIp::new()));
    let callers: Vec<_> = (0..200).map(|caller| from(&format!("10.0.1.{caller}"))).collect();
    let mut denied_by_the_table = 0;
    for caller in callers {
        denied_by_the_table += u32::from(statuses!(layer, caller) == [503]);
    }
    assert!(denied_by_the_table > 0);
    assert_eq!((counts(&top), top.total()), (vec![], 0));
}

/// An extractor that cannot find the key of a denied request lists nothing, and neither does one that exempts it.
#[tokio::test]
async fn requests_that_share_the_budget_of_those_without_a_key_are_not_listed() {
    let (peer, top) = (PeerIp::new(), TopKeys::new());
    let layer = RateLimitLayer::new(peer.clone(), at_once(1))
        .missing_key(tower_throttle::key::MissingKey::Shared)
        .on_reject(top.watch(&peer));
    assert_eq!(statuses!(layer, get("/"), get("/")), [200, 429]);
    let exempt = from_fn(|_: &Http| None::<u8>);
    let layer = RateLimitLayer::new(Global, at_once(1)).on_reject(top.watch(&exempt));
    assert_eq!(statuses!(layer, get("/"), get("/")), [200, 429]);
    assert_eq!(top.total(), 0);
}

#[tokio::test]
async fn on_a_joined_layer_the_denials_of_one_policy_are_listed_by_its_name() {
    let [any, address, all, numbered, none] = std::array::from_fn(|_| TopKeys::new());
    let peer = PeerIp::new();
    // The second limit of the algorithm is the one that denies, and it is reported by another name.
    let two_limits = (FixedWindow::new(Quota::per_hour(9)), FixedWindow::new(Quota::per_day(2)));
    let by_peer = RateLimitLayer::new(peer.clone(), two_limits).name("address");
    let by_all = RateLimitLayer::new(Global, at_once(4)).name("all");
    let layer = by_peer
        .and(by_all)
        .on_reject(top_of(&any, None))
        .on_reject(top_of(&address, Some("address")))
        .on_reject(top_of(&all, Some("all")))
        .on_reject(top_of(&none, Some("address-3")));
    let calls = [from("10.0.0.1"), from("10.0.0.1"), from("10.0.0.1"), from("10.0.0.2"), from("10.0.0.3")];
    let mut statuses = Vec::new();
    for call in calls.into_iter().chain([from("10.0.0.4")]) {
        statuses.extend(statuses!(layer, call));
    }
    assert_eq!(statuses, [200, 200, 429, 200, 200, 429]);
    assert_eq!([&any, &address, &all, &none].map(counts), [vec![1, 1], vec![1], vec![1], vec![]]);

    // Policies without a name are numbered.
    let layer = RateLimitLayer::new(peer.clone(), at_once(9)).and(RateLimitLayer::new(Global, at_once(1)));
    let layer =
        layer.on_reject(top_of(&none, Some("default"))).on_reject(top_of(&numbered, Some("default-2")));
    assert_eq!(statuses!(layer, from("10.0.0.1"), from("10.0.0.1")), [200, 429]);
    assert_eq!([&none, &numbered].map(TopKeys::total), [0, 1]);
}

type Watch = Box<dyn Fn(&Rejection<'_>, &Http) + Send + Sync>;

/// Returns the function that lists the peers that a policy, or any policy, denies.
fn top_of(top: &TopKeys, policy: Option<&str>) -> Watch {
    match policy {
        Some(policy) => Box::new(top.watch_policy(policy, &PeerIp::new())),
        None => Box::new(top.watch(&PeerIp::new())),
    }
}

#[tokio::test]
async fn a_policy_that_denies_together_with_a_closed_one_is_listed() {
    let [first, second, any] = std::array::from_fn(|_| TopKeys::new());
    let closed = RateLimitLayer::new(Global, at_once(9)).name("closed");
    closed.limiter().close();
    let address = RateLimitLayer::new(PeerIp::new(), at_once(1)).name("address");
    assert!(address.limiter().check(&PeerIp::new().key([10, 0, 0, 1].into())).is_allowed());
    let layer = address.and(closed);
    let layer = layer
        .on_reject(top_of(&first, Some("address")))
        .on_reject(top_of(&second, Some("closed")))
        .on_reject(top_of(&any, None));
    assert_eq!(statuses!(layer, from("10.0.0.1"), from("10.0.0.2")), [503, 503]);
    assert_eq!([&first, &second, &any].map(TopKeys::total), [1, 0, 1]);
}

/// In shadow mode, the inner service lists the keys.
#[tokio::test]
async fn in_shadow_mode_the_inner_service_lists_the_keys() {
    let (peer, shadow) = (PeerIp::new(), Shadow::on());
    let [rejected, would_be] = std::array::from_fn(|_| TopKeys::new());
    let queue = LeakyBucket::new(Quota::per_day(1)).queue(1);
    let (extractor, top) = (peer.clone(), would_be.clone());
    let record = move |request: Http| {
        if request.extensions().get::<ShadowDenied>().is_some()
            && let Ok(Some(key)) = extractor.extract(&request)
        {
            top.record(&key);
        }
        request
    };
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(peer.clone(), queue).shadow(&shadow).on_reject(rejected.watch(&peer)))
        .map_request(record)
        .service_fn(hello);
    for _ in 0..3 {
        assert_eq!(service.clone().oneshot(from("10.0.0.1")).await.unwrap().status(), 200);
    }
    assert_eq!([&rejected, &would_be].map(TopKeys::total), [0, 2]);
    assert_eq!(counts(&would_be), [2]);
}

/// The request of a queued call is still there when the call is denied, also of a service that is not HTTP.
#[tokio::test]
async fn a_call_that_leaves_the_queue_undecided_is_listed_if_the_limit_denies_it() {
    let (job, top) = (from_fn(|job: &u32| Some(job % 10)), TopKeys::new());
    let bucket = LeakyBucket::new(Quota::per_day(1)).queue(1);
    let bucket = bucket.overflow(tower_throttle::algorithm::QueueOverflow::DropOldest);
    let layer = RateLimitLayer::new(job, bucket).responder(ErrorResponder).on_reject(top.watch(&job));
    let service = layer.layer(service_fn(|job: u32| async move { Ok::<_, Infallible>(job) }));
    assert_eq!(service.clone().oneshot(7).await.unwrap(), 7);
    let mut queued = PolledByHand::new(service.clone().oneshot(17));
    assert!(!queued.poll());
    let mut newer = PolledByHand::new(service.clone().oneshot(27));
    assert!(!newer.poll() && queued.poll() && queued.output.unwrap().is_err());
    assert_eq!(counts(&top), [1]);
    layer.limiter().close();
    assert!(newer.poll() && newer.output.unwrap().is_err());
    assert_eq!(counts(&top), [1]);
}

/// Two functions are both called, and clones of a list share its counts.
#[tokio::test]
async fn a_denied_key_is_counted_in_each_list() {
    let [first, second] = std::array::from_fn(|_| TopKeys::new());
    let key = Bearer::new();
    let layer = RateLimitLayer::new(key, TokenBucket::new(Quota::per_day(1)))
        .on_reject(first.watch(&key))
        .on_reject(second.clone().watch(&key));
    let request = || with(get("/"), "authorization", "Bearer secret-token");
    assert_eq!(statuses!(layer, request(), request(), request()), [200, 429, 429]);
    assert_eq!([&first, &second].map(counts), [[2], [2]]);
    assert_ne!(first.list()[0].label, second.list()[0].label, "each list has a seed of its own");
    assert!(!format!("{:?} {first:?}", first.list()).contains("secret"));
}

#[test]
fn any_key_can_be_recorded() {
    let top = TopKeys::with_capacity(2);
    top.record("user:42");
    top.record(&"user:42".to_owned());
    top.record_as("user:42", || unreachable!("the key is in the list"));
    top.record(&(IpAddr::from([10, 0, 0, 1]), 7_u64));
    assert_eq!(counts(&top), [3, 1]);
}
