//! No order of a layer's methods loses a setting: for all pairs of methods, in both orders, either both settings have
//! their effect, or the program does not compile. `compile_errors` compiles the pairs that must not compile.

mod methods;

use std::any::type_name;
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};

use axum::body::Body;
use tower::util::ServiceFn;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, Tiered};
use tower_throttle::key::PeerIp;
use tower_throttle::{Meter, RateLimitLayer};

use self::methods::*;
use crate::support::{OwnLimiter, PolledByHand};

type HasEffect = fn(&Handles, &Limited, u8) -> bool;

/// A method, and a function that returns whether its setting has its effect. The function gets the peer of its
/// requests.
const METHODS: [(&str, HasEffect); 20] = [
    ("and", denies_all),
    ("axum_body", |_, limited, peer| limited.ask(request(peer)).unwrap().body() == &type_name::<Body>()),
    ("cost", |_, limited, peer| limited.status(peer, "cost", "2") == 200 && is_denial(limited.plain(peer))),
    ("enabled", |_, limited, peer| limited.admits_more(|| limited.plain(peer))),
    ("hidden", |_, limited, peer| {
        !limited.ask(request(peer)).unwrap().headers().contains_key("ratelimit-policy")
    }),
    ("joined", denies_all),
    ("metered", |_, limited, peer| {
        limited.status(peer, "units", "2") == 200 && is_denial(limited.plain(peer))
    }),
    ("missing_key", |_, limited, _| limited.ask(Request::default()).unwrap().status() == 200),
    ("name", |_, limited, _| limited.shown.contains(r#""named""#)),
    ("on_reject", |on, limited, peer| limited.denies(peer) && on.rejections.load(Ordering::SeqCst) > 0),
    // A limiter in memory does not fail.
    ("on_store_error", |_, _, _| true),
    ("priority", |_, limited, peer| {
        limited.plain(peer) == 200 && limited.plain(peer) == 200 && limited.status(peer, "vip", "1") == WAITS
    }),
    ("responder", |_, limited, peer| {
        limited.denies(peer) && limited.plain(peer) == StatusCode::IM_A_TEAPOT.as_u16()
    }),
    ("settle", |_, limited, peer| limited.admits_more(|| limited.status(peer, "actual", "0"))),
    ("shadow", |on, limited, peer| {
        let is_on = limited.admits_more(|| limited.plain(peer)) && on.shadow.denied() > 0;
        on.shadow.set(false);
        is_on && is_denial(limited.plain(peer))
    }),
    ("shutdown", |on, limited, peer| {
        on.shutdown.close();
        limited.plain(peer) == 503
    }),
    ("tier", |_, limited, peer| limited.admits_more(|| limited.status(peer, "tier", "9"))),
    ("timeline", |on, limited, peer| limited.denies(peer) && on.timeline.total().denied > 0),
    ("unless", |_, limited, peer| {
        limited.admits_more(|| {
            let mut request = request(peer);
            *request.uri_mut() = "/free".parse().unwrap();
            limited.ask(request).unwrap().status().as_u16()
        })
    }),
    ("unmetered", |_, limited, peer| limited.admits_more(|| limited.plain(peer))),
];

/// Returns whether the budget of all requests is used up by one request.
fn denies_all(_: &Handles, limited: &Limited, peer: u8) -> bool {
    [peer, peer + 100].map(|peer| is_denial(limited.status(peer, "total", "1")))[1]
}

/// Two methods in an order that compiles.
pub(crate) struct Pair {
    pub(crate) first: &'static str,
    pub(crate) second: &'static str,
    limited: fn(&Handles) -> Limited,
    /// The same methods of a layer whose limiter fails, if one of them is `on_store_error`.
    failing: Option<fn(&Handles) -> Limited>,
}

macro_rules! pairs {
    ($(($($first:ident)+) then $seconds:tt)+) => {{
        let mut pairs = Vec::new();
        $($(pairs!(@ pairs $first $seconds);)+)+
        pairs
    }};
    (@ $pairs:ident $first:ident ($($second:ident)*)) => {
        $($pairs.push(Pair {
            first: stringify!($first),
            second: stringify!($second),
            limited: |_on| limited(set!(_on, set!(_on, base(), $first), $second)),
            failing: pairs!(@ $first $second),
        });)*
    };
    (@ on_store_error on_store_error) => { None };
    // Limiters of one's own cannot be joined.
    (@ on_store_error and) => { None };
    (@ on_store_error joined) => { None };
    (@ on_store_error $second:ident) => {
        Some(|_on| {
            let layer = RateLimitLayer::with_limiter(PeerIp::new(), down());
            limited(set!(_on, set!(_on, layer, on_store_error), $second))
        })
    };
    (@ $first:ident on_store_error) => {
        Some(|_on| {
            let layer = RateLimitLayer::with_limiter(PeerIp::new(), down());
            limited(set!(_on, set!(_on, layer, $first), on_store_error))
        })
    };
    (@ $first:ident $second:ident) => { None };
}

/// Returns all pairs that compile. All others do not compile, such as `unmetered` without `metered` before it.
pub(crate) fn pairs() -> Vec<Pair> {
    pairs! {
        (and joined) then (and axum_body enabled joined on_reject responder)
        (axum_body) then (
            and axum_body cost enabled hidden metered missing_key name on_reject on_store_error priority settle shadow
            shutdown tier timeline unless
        )
        (cost priority settle tier) then (
            and axum_body enabled hidden joined metered missing_key name on_reject on_store_error priority responder
            settle shadow shutdown tier timeline unless
        )
        (enabled hidden missing_key name on_store_error shadow shutdown timeline unless) then (
            and axum_body cost enabled hidden joined metered missing_key name on_reject on_store_error priority
            responder settle shadow shutdown tier timeline unless
        )
        (metered) then (
            and axum_body enabled hidden joined metered missing_key name on_reject on_store_error priority responder
            settle shadow shutdown tier timeline unless unmetered
        )
        (on_reject) then (
            and axum_body cost enabled hidden metered missing_key name on_reject on_store_error priority responder
            settle shadow shutdown tier timeline unless
        )
        (responder) then (
            and axum_body cost enabled hidden metered missing_key name on_reject on_store_error priority settle shadow
            shutdown tier timeline unless
        )
    }
}

/// Returns a program with a function, on a line of its own, for each pair that must not compile, and the pairs by the
/// number of their line.
pub(crate) fn program() -> (String, Vec<(usize, String)>) {
    let compiles = pairs();
    let (mut program, mut lines) = (include_str!("methods.rs").to_owned(), Vec::new());
    for (first, _) in METHODS {
        for (second, _) in METHODS {
            if !compiles.iter().any(|pair| (pair.first, pair.second) == (first, second)) {
                let call = format!("set!(on, set!(on, base(), {first}), {second})");
                program += &format!("fn f{}(on: &Handles) {{ let _ = {call}; }}\n", lines.len());
                lines.push((program.lines().count(), format!("{first}, {second}")));
            }
        }
    }
    program += "fn main() {}\n";
    (program, lines)
}

#[tokio::test]
async fn two_methods_in_an_order_that_compiles_both_have_their_effect() {
    let mut lost = Vec::new();
    for Pair { first, second, limited, failing } in pairs() {
        let on = Handles::new();
        let limited = limited(&on);
        // Shadow mode is turned off after its test, and a limiter is closed at the end.
        let mut names = vec![first, second];
        names.dedup();
        names.sort_by_key(|name| (*name == "shutdown", *name != "shadow"));
        for (at, name) in names.into_iter().enumerate() {
            // A policy that is switched off does nothing else, and one that is joined after it still does.
            let is_moot = (first == "enabled" && !matches!(second, "and" | "joined")) || second == "enabled";
            if is_moot && name != "enabled" {
                continue;
            }
            let (_, has_effect) = METHODS.iter().find(|(method, _)| *method == name).unwrap();
            if !has_effect(&on, &limited, at as u8 + 1) {
                lost.push(format!("{first}, {second}: {name} is lost"));
            }
        }
        if failing.is_some_and(|failing| failing(&on).plain(1) != 200) {
            lost.push(format!("{first}, {second}: on_store_error is lost"));
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn of_a_method_that_is_called_twice_the_last_call_counts_or_both_do() {
    let [first, last] = [Handles::new(), Handles::new()];
    let limited = limited(
        base()
            .name("first")
            .name("named")
            .missing_key(MissingKey::Reject)
            .missing_key(MissingKey::Pass)
            .on_store_error(OnStoreError::Reject)
            .on_store_error(OnStoreError::Allow)
            .enabled(false)
            .enabled(true)
            .shadow(&first.shadow)
            .shadow(&last.shadow)
            .timeline(&first.timeline)
            .timeline(&last.timeline)
            .shutdown(&first.shutdown)
            .shutdown(&last.shutdown)
            .unless(|request: &Request| request.uri().path() == "/first")
            .unless(|request: &Request| request.uri().path() == "/free")
            .tier(|_: &Request, _| window(1))
            .tier(|_: &Request, _| window(2))
            .priority(|_: &Request| true)
            .priority(|_: &Request| false)
            .metered()
            .unmetered(Unmetered::Refund)
            .unmetered(Unmetered::Keep)
            .settle(|_: &Response| 0_u64)
            .settle(|response: &Response| number(response.headers(), "actual"))
            .on_reject({
                let rejections = Arc::clone(&first.rejections);
                move |_: &Rejection<'_>, _: &Request| _ = rejections.fetch_add(1, Ordering::SeqCst)
            })
            .on_reject({
                let rejections = Arc::clone(&last.rejections);
                move |_: &Rejection<'_>, _: &Request| _ = rejections.fetch_add(1, Ordering::SeqCst)
            }),
    );
    first.shadow.set(false);
    for name in ["shadow", "name", "missing_key", "unless", "timeline", "on_reject", "settle"] {
        let (at, (_, has_effect)) =
            METHODS.iter().enumerate().find(|(_, (method, _))| *method == name).unwrap();
        assert!(has_effect(&last, &limited, at as u8), "{name}");
    }
    assert_eq!(first.timeline.total().denied, 0);
    assert!(first.rejections.load(Ordering::SeqCst) > 0);
    first.shutdown.close();
    assert_eq!(limited.plain(200), 503);
}

#[test]
fn a_second_metered_keeps_what_happens_to_estimates() {
    let refunds = || base().metered().unmetered(Unmetered::Refund).metered();
    let limited_twice = limited(refunds());
    assert!(limited_twice.admits_more(|| limited_twice.plain(1)));
    assert!(limited(refunds().unmetered(Unmetered::Keep)).denies(1));
}

type Inner = ServiceFn<fn(Request) -> Ready<Result<Response, Infallible>>>;

/// A service with a limit.
struct Limited {
    service: Box<dyn Fn(Request) -> Option<axum::http::Response<&'static str>>>,
    /// What `Debug` shows of the layer.
    shown: String,
}

/// The status of a request that waits.
const WAITS: u16 = 0;

impl Limited {
    /// Returns the response, with the type of its body, or `None` if the request waits.
    fn ask(&self, request: Request) -> Option<axum::http::Response<&'static str>> {
        (self.service)(request)
    }

    fn status(&self, peer: u8, field: &'static str, value: &'static str) -> u16 {
        let mut request = request(peer);
        request.headers_mut().insert(field, value.parse().unwrap());
        self.ask(request).map_or(WAITS, |response| response.status().as_u16())
    }

    fn plain(&self, peer: u8) -> u16 {
        self.status(peer, "plain", "1")
    }

    /// Returns whether more requests are admitted than the limit admits.
    fn admits_more(&self, ask: impl Fn() -> u16) -> bool {
        (0..4).all(|_| ask() == 200)
    }

    /// Returns whether a request above the limit is denied.
    fn denies(&self, peer: u8) -> bool {
        is_denial([(); 4].map(|()| self.plain(peer))[3])
    }
}

fn is_denial(status: u16) -> bool {
    status == 429 || status == StatusCode::IM_A_TEAPOT.as_u16()
}

fn request(peer: u8) -> Request {
    let mut request = Request::default();
    request.extensions_mut().insert(IpAddr::from([10, 0, 0, peer]));
    request
}

/// Uses as many units as the request says, and answers with the same fields.
fn handler(request: Request) -> Ready<Result<Response, Infallible>> {
    if let Some(units) = number(request.headers(), "units") {
        Meter::of(request.extensions()).set(units);
    }
    let mut response = Response::default();
    response.headers_mut().clone_from(request.headers());
    ready(Ok(response))
}

fn limited<L, B>(layer: L) -> Limited
where
    L: Layer<Inner> + fmt::Debug,
    L::Service: Service<Request, Response = axum::http::Response<B>, Error = Infallible> + Clone + 'static,
{
    let service = layer.layer(service_fn(handler as fn(_) -> _));
    let ask = move |request| {
        let mut call = PolledByHand::new(service.clone().oneshot(request));
        call.poll();
        let Ok(response) = call.output?;
        Some(response.map(|_| type_name::<B>()))
    };
    Limited { service: Box::new(ask), shown: format!("{layer:?}") }
}

/// A limiter that fails.
fn down() -> OwnLimiter<Tiered<FixedWindow>> {
    let limiter = OwnLimiter::new(Tiered::new(window(2)));
    limiter.set_down(true);
    limiter
}
