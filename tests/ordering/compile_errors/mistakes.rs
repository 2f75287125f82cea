//! Natural mistakes. The compiler's message names the change, or the guide does.

/// A mistake in the body of `main`, after [`PRELUDE`].
pub(super) struct Mistake {
    pub(super) name: &'static str,
    pub(super) body: &'static str,
    /// The parts of the compiler's message that name the change, or the part that the guide quotes.
    pub(super) says: &'static [&'static str],
    /// `true` if the compiler cannot name the change, so that the guide does.
    pub(super) in_guide: bool,
    /// The change with which the program compiles: a part of the body, and what replaces it.
    pub(super) change: [&'static str; 2],
}

impl Mistake {
    /// Returns the program with this body.
    pub(super) fn program(body: &str) -> String {
        format!("{PRELUDE}    {body}\n}}\n")
    }
}

const PRELUDE: &str = r"#![allow(unused)]
#![deny(unused_must_use)]
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use tower::{Layer, Service, service_fn};
use tower_throttle::algorithm::{Algorithm, Concurrency, StoredAlgorithm, Tiered, TokenBucket};
use tower_throttle::limiter::Denied;
use tower_throttle::key::{self, Header, PeerIp, from_fn};
use tower_throttle::middleware::{FieldNames, Rejection, ResetFormat, Shadow};
use tower_throttle::{ErrorResponder, HttpResponder, Quota, RateLimitLayer, RateLimiter, Rejecter};

/// Limits an app, and so asks for what axum wants of a layer.
macro_rules! app {
    ($layer:expr) => {
        let _: Router = Router::new().layer($layer);
    };
}

fn main() {
    let quota = Quota::per_minute(100);
    let limiter = RateLimiter::new(TokenBucket::new(quota));
";

pub(super) const MISTAKES: [Mistake; 50] = [
    Mistake {
        name: "question_mark_of_a_decision",
        body: r#"let _ = || -> Result<(), Denied> {
        limiter.check("user:42")?;
        Ok(())
    };"#,
        says: &["the `?` operator cannot be applied to type `Decision`"],
        in_guide: true,
        change: [r#"limiter.check("user:42")?"#, r#"limiter.check("user:42").into_result()?"#],
    },
    Mistake {
        name: "error_responder_in_axum",
        body: r"let limit = RateLimitLayer::per_ip(quota).responder(ErrorResponder);
    app!(limit);",
        says: &["`Infallible: From<tower_throttle::Error<Infallible>>` is not satisfied"],
        in_guide: true,
        change: [".responder(ErrorResponder)", ""],
    },
    Mistake {
        name: "burst_of_an_algorithm",
        body: "let _ = TokenBucket::new(quota).burst(20);",
        says: &["no method named `burst` found for struct `TokenBucket`"],
        in_guide: true,
        change: ["TokenBucket::new(quota).burst(20)", "TokenBucket::new(quota.burst(20))"],
    },
    Mistake {
        name: "decision_as_bool",
        body: r#"if limiter.check("user:42") {}"#,
        says: &["expected `bool`, found `Decision`"],
        in_guide: true,
        change: [r#"limiter.check("user:42")"#, r#"limiter.check("user:42").is_allowed()"#],
    },
    Mistake {
        name: "acquire_without_await",
        body: r#"let _ = async { limiter.acquire("user:42").is_allowed() };"#,
        says: &["no method named `is_allowed` found for struct `tower_throttle::limiter::Acquire<"],
        in_guide: true,
        change: [".is_allowed()", ".await.is_allowed()"],
    },
    Mistake {
        name: "service_without_responder",
        body: r"let limit = RateLimitLayer::new(from_fn(|_: &String| Some(1)), TokenBucket::new(quota));
    let mut service = limit.layer(service_fn(async |_: String| Ok::<_, Infallible>(())));
    let _ = service.call(String::new());",
        says: &["no method named `call` found for struct `RateLimit<"],
        in_guide: true,
        change: ["TokenBucket::new(quota));", "TokenBucket::new(quota)).responder(ErrorResponder);"],
    },
    Mistake {
        name: "fraction_of_a_unit",
        body: "let _ = Quota::per_second(0.5);",
        says: &["expected `u64`, found floating-point number"],
        in_guide: true,
        change: ["Quota::per_second(0.5)", "Quota::per(1, Duration::from_secs(2))"],
    },
    Mistake {
        name: "key_type_as_value",
        body: "app!(RateLimitLayer::new(PeerIp, TokenBucket::new(quota)));",
        says: &["expected value, found struct `PeerIp`"],
        in_guide: true,
        change: ["PeerIp,", "PeerIp::new(),"],
    },
    Mistake {
        name: "rejecter_without_limiter",
        body: r#"let _ = |rejecter: Rejecter| {
        limiter.check("user:42").into_result().map_err(|denied| rejecter.reject(denied))
    };"#,
        says: &["this method takes 2 arguments but 1 argument was supplied"],
        in_guide: true,
        change: ["reject(denied)", "reject(&limiter, denied)"],
    },
    Mistake {
        name: "limiter_as_layer",
        body: "app!(limiter);",
        says: &["`RateLimiter<TokenBucket>: Layer<"],
        in_guide: true,
        change: ["app!(limiter)", "app!(RateLimitLayer::with_limiter(PeerIp::new(), limiter))"],
    },
    Mistake {
        name: "cost_after_tier",
        body: r"let bucket = TokenBucket::new(quota);
    let limit = RateLimitLayer::new(PeerIp::new(), Tiered::new(bucket.clone()))
        .tier(move |_: &Request, _| bucket.clone())
        .cost(|_: &Request| 2);
    app!(limit);",
        says: &["no method named `cost` found for struct `RateLimitLayer<"],
        in_guide: true,
        change: [
            r".tier(move |_: &Request, _| bucket.clone())
        .cost(|_: &Request| 2)",
            r".cost(|_: &Request| 2)
        .tier(move |_: &Request, _| bucket.clone())",
        ],
    },
    Mistake {
        name: "header_without_question_mark",
        body: r#"app!(RateLimitLayer::new(Header::new("x-api-key"), TokenBucket::new(quota)));"#,
        says: &["a `Result` becomes a key by `?` or `unwrap()`"],
        in_guide: false,
        change: [r#"Header::new("x-api-key")"#, r#"Header::new("x-api-key").unwrap()"#],
    },
    Mistake {
        name: "key_without_hash",
        body: r"#[derive(Clone, Copy, PartialEq, Eq)]
    struct User(u64);
    app!(RateLimitLayer::new(key::Extension::<User, _>::new(|user| *user), TokenBucket::new(quota)));",
        says: &["`StoreKey<User>` cannot be a key: it is not `Hash`", "derive `Hash` for it"],
        in_guide: false,
        change: ["PartialEq, Eq", "PartialEq, Eq, Hash"],
    },
    Mistake {
        name: "quota_as_algorithm",
        body: "app!(RateLimitLayer::new(PeerIp::new(), quota));",
        says: &["a `Quota` becomes one by `TokenBucket::new(quota)`"],
        in_guide: false,
        change: ["PeerIp::new(), quota", "PeerIp::new(), TokenBucket::new(quota)"],
    },
    Mistake {
        name: "limiter_as_algorithm",
        body: "app!(RateLimitLayer::new(PeerIp::new(), limiter));",
        says: &[
            "a limiter that you have already made goes into a layer by `RateLimitLayer::with_limiter(key, limiter)`",
        ],
        in_guide: false,
        change: ["RateLimitLayer::new(", "RateLimitLayer::with_limiter("],
    },
    Mistake {
        name: "calls_in_progress_in_redis",
        body: r#"fn in_redis<A: StoredAlgorithm>(name: &str, algorithm: A) {}
    in_redis("exports", Concurrency::per_key(2));"#,
        says: &["in place of a `Concurrency`, are limited by `redis.permits(name, limit)`"],
        in_guide: false,
        change: ["Concurrency::per_key(2)", "TokenBucket::new(quota)"],
    },
    Mistake {
        name: "boxed_algorithm",
        body: r"let algorithm: Box<dyn Algorithm> = Box::new(TokenBucket::new(quota));
    app!(RateLimitLayer::new(PeerIp::new(), algorithm));",
        says: &["the trait `Algorithm` is not dyn compatible"],
        in_guide: true,
        change: [": Box<dyn Algorithm> = Box::new(TokenBucket::new(quota))", " = TokenBucket::new(quota)"],
    },
    Mistake {
        name: "fallback_of_an_address",
        body: r#"let by_address = PeerIp::new().or(Header::new("x-api-key").unwrap());
    app!(RateLimitLayer::new(by_address, TokenBucket::new(quota)));"#,
        says: &["no method named `or` found for struct `PeerIp`"],
        in_guide: true,
        change: [
            r#"PeerIp::new().or(Header::new("x-api-key").unwrap())"#,
            r#"key::first_of((Header::new("x-api-key").unwrap(), PeerIp::new()))"#,
        ],
    },
    Mistake {
        name: "algorithm_and_key_swapped",
        body: "app!(RateLimitLayer::new(TokenBucket::new(quota), PeerIp::new()));",
        says: &["`PeerIp` is no algorithm"],
        in_guide: false,
        change: ["TokenBucket::new(quota), PeerIp::new()", "PeerIp::new(), TokenBucket::new(quota)"],
    },
    Mistake {
        name: "lockout_without_after",
        body: r"let lockout = TokenBucket::new(quota).block_for(Duration::from_secs(60));
    app!(RateLimitLayer::new(PeerIp::new(), lockout));",
        says: &["`block_for(..)` by `.after(n)`"],
        in_guide: false,
        change: ["from_secs(60))", "from_secs(60)).after(3)"],
    },
    Mistake {
        name: "builder_as_limiter",
        body: r"let builder = RateLimiter::builder(TokenBucket::new(quota)).max_keys(10);
    app!(RateLimitLayer::with_limiter(PeerIp::new(), builder));",
        says: &["a builder by `.build()`"],
        in_guide: false,
        change: ["max_keys(10)", "max_keys(10).build()"],
    },
    Mistake {
        name: "algorithm_as_limiter",
        body: "app!(RateLimitLayer::with_limiter(PeerIp::new(), TokenBucket::new(quota)));",
        says: &["`TokenBucket` is no limiter", "an algorithm becomes one by `RateLimiter::new(algorithm)`"],
        in_guide: false,
        change: [
            "PeerIp::new(), TokenBucket::new(quota)",
            "PeerIp::new(), RateLimiter::new(TokenBucket::new(quota))",
        ],
    },
    Mistake {
        name: "reference_as_limiter",
        body: "app!(RateLimitLayer::with_limiter(PeerIp::new(), &limiter));",
        says: &["a reference by `.clone()`"],
        in_guide: false,
        change: ["&limiter", "limiter.clone()"],
    },
    Mistake {
        name: "untyped_cost",
        body: "app!(RateLimitLayer::per_ip(quota).cost(|request| request.uri().path().len() as u64));",
        says: &["consider giving this closure parameter an explicit type"],
        in_guide: false,
        change: ["|request|", "|request: &Request|"],
    },
    Mistake {
        name: "untyped_key",
        body: "app!(RateLimitLayer::new(from_fn(|request| request.uri().port_u16()), TokenBucket::new(quota)));",
        says: &["consider giving this closure parameter an explicit type"],
        in_guide: false,
        change: ["|request|", "|request: &Request|"],
    },
    Mistake {
        name: "key_without_option",
        body: r"let by_path = from_fn(|request: &Request| request.uri().path().to_owned());
    app!(RateLimitLayer::new(by_path, TokenBucket::new(quota)));",
        says: &["try wrapping the expression in `Some`"],
        in_guide: false,
        change: ["request.uri().path().to_owned()", "Some(request.uri().path().to_owned())"],
    },
    Mistake {
        name: "key_of_a_request_by_value",
        body: r"let by_path = from_fn(|request: Request| Some(request.uri().path().to_owned()));
    app!(RateLimitLayer::new(by_path, TokenBucket::new(quota)));",
        says: &["consider adjusting the signature so it borrows its argument"],
        in_guide: false,
        change: ["|request: Request|", "|request: &Request|"],
    },
    Mistake {
        name: "closure_as_key",
        body: r"let by_path = |request: &Request| Some(request.uri().path().to_owned());
    app!(RateLimitLayer::new(by_path, TokenBucket::new(quota)));",
        says: &["`key::from_fn(|request: &axum::http::Request<Body>| Some(..))`"],
        in_guide: false,
        change: ["new(by_path,", "new(from_fn(by_path),"],
    },
    Mistake {
        name: "name_of_a_header_as_key",
        body: r#"app!(RateLimitLayer::new("x-api-key", TokenBucket::new(quota)));"#,
        says: &["for HTTP requests take one of `tower_throttle::key`"],
        in_guide: false,
        change: [r#""x-api-key","#, r#"Header::new("x-api-key").unwrap(),"#],
    },
    Mistake {
        name: "path_as_condition",
        body: r#"app!(RateLimitLayer::per_ip(quota).unless("/health"));"#,
        says: &[r#"for paths take `key::Paths::new(["/health"])`"#],
        in_guide: false,
        change: [r#"unless("/health")"#, r#"unless(key::Paths::new(["/health"]))"#],
    },
    Mistake {
        name: "tier_of_a_plain_algorithm",
        body: r"let bucket = TokenBucket::new(quota);
    let limit = RateLimitLayer::new(PeerIp::new(), bucket.clone()).tier(move |_: &Request, _| bucket.clone());
    app!(limit);",
        says: &["no method named `tier` found for struct `RateLimitLayer<"],
        in_guide: true,
        change: ["PeerIp::new(), bucket.clone()", "PeerIp::new(), Tiered::new(bucket.clone())"],
    },
    Mistake {
        name: "tier_that_is_tiered",
        body: r"let bucket = TokenBucket::new(quota);
    let limit = RateLimitLayer::new(PeerIp::new(), Tiered::new(bucket.clone()))
        .tier(move |_: &Request, _| Tiered::new(bucket.clone()));
    app!(limit);",
        says: &["expected `TokenBucket`, found `Tiered<TokenBucket>`"],
        in_guide: false,
        change: ["_| Tiered::new(bucket.clone())", "_| bucket.clone()"],
    },
    Mistake {
        name: "settle_by_another_response",
        body: "app!(RateLimitLayer::per_ip(quota).settle(|response: &String| response.len() as u64));",
        says: &["expected closure signature `for<'a> fn(&'a Response<Body>) -> _`"],
        in_guide: false,
        change: [
            "|response: &String| response.len() as u64",
            "|response: &Response| u64::from(response.status().is_success())",
        ],
    },
    Mistake {
        name: "cost_of_another_type",
        body: r"let cost = 3_u32;
    app!(RateLimitLayer::per_ip(quota).cost(move |_: &Request| cost));",
        says: &["you can convert a `u32` to a `u64`"],
        in_guide: false,
        change: ["| cost", "| cost.into()"],
    },
    Mistake {
        name: "shadow_by_value",
        body: "app!(RateLimitLayer::per_ip(quota).shadow(Shadow::on()));",
        says: &["consider borrowing here"],
        in_guide: false,
        change: ["Shadow::on()", "&Shadow::on()"],
    },
    Mistake {
        name: "decision_as_an_argument",
        body: r#"async fn hello(decision: tower_throttle::Decision) -> String {
        format!("{:?}", decision)
    }
    let _: Router = Router::new().route("/", axum::routing::get(hello));"#,
        says: &["the trait bound `fn(Decision) -> "],
        in_guide: true,
        change: ["decision: tower_throttle::Decision", "decision: Option<tower_throttle::Decision>"],
    },
    Mistake {
        name: "key_by_value",
        body: r"let id = 42_u64;
    assert!(limiter.check(id).is_allowed());",
        says: &["consider borrowing here"],
        in_guide: false,
        change: ["check(id)", "check(&id)"],
    },
    Mistake {
        name: "decision_unused",
        body: r#"limiter.check("user:42");"#,
        says: &["a decision that is not read limits nothing"],
        in_guide: false,
        change: [r#"limiter.check("user:42")"#, r#"assert!(limiter.check("user:42").is_allowed())"#],
    },
    Mistake {
        name: "call_unused",
        body: r#"limiter.call("user:42").cost(5);"#,
        says: &["the call is not made yet: call `check`"],
        in_guide: false,
        change: [".cost(5);", ".cost(5).charge();"],
    },
    Mistake {
        name: "permit_unused",
        body: r#"limiter.try_acquire_permit("user:42").unwrap();"#,
        says: &["a permit that is dropped at once holds nothing"],
        in_guide: false,
        change: ["limiter.try", "let _permit = limiter.try"],
    },
    Mistake {
        name: "type_without_parameters",
        body: r"struct App {
        _limit: RateLimitLayer,
    }
    let _ = App { _limit: RateLimitLayer::per_ip(quota) };",
        says: &["expected at least 2 generic arguments"],
        in_guide: false,
        change: ["_limit: RateLimitLayer,", "_limit: RateLimitLayer<PeerIp, TokenBucket>,"],
    },
    Mistake {
        name: "around_a_whole_router",
        body: r"let app = RateLimitLayer::per_ip(quota).layer(Router::<()>::new());
    let app = axum::ServiceExt::<Request>::into_make_service_with_connect_info::<std::net::SocketAddr>(app);
    let _ = async |listener: tokio::net::TcpListener| axum::serve(listener, app).await;",
        says: &["expected `Response<Body>`, found `Response<ResponseBody<Body>>`"],
        in_guide: true,
        change: ["per_ip(quota).layer", "per_ip(quota).axum_body().layer"],
    },
    Mistake {
        name: "limiter_joined",
        body: "app!(RateLimitLayer::per_ip(quota).and(limiter));",
        says: &["join `RateLimitLayer`s: `layer.and(RateLimitLayer::with_limiter(key, limiter))`"],
        in_guide: false,
        change: ["and(limiter)", "and(RateLimitLayer::with_limiter(PeerIp::new(), limiter))"],
    },
    Mistake {
        name: "fair_limiter_joined",
        body: r"let fair = tower_throttle::limiter::FairLimiter::new(
        tower_throttle::algorithm::Concurrency::per_key(2).total(10),
    );
    let fair = RateLimitLayer::with_limiter(PeerIp::new(), fair);
    app!(RateLimitLayer::per_ip(quota).and(fair));",
        says: &["such as a `FairLimiter`, is applied by itself: the rate outside, the `FairLimiter` inside"],
        in_guide: false,
        change: ["RateLimitLayer::per_ip(quota).and(fair)", "fair"],
    },
    Mistake {
        name: "joined_with_a_responder",
        body: r"let busy = HttpResponder::new().denied_status(StatusCode::SERVICE_UNAVAILABLE);
    app!(RateLimitLayer::per_ip(quota).and(RateLimitLayer::per_ip(quota).responder(busy)));",
        says: &["set it on the joined layer: `a.and(b).responder(..)`"],
        in_guide: false,
        change: ["per_ip(quota).responder(busy))", "per_ip(quota)).responder(busy)"],
    },
    Mistake {
        name: "joined_with_on_reject",
        body: r"let count = |_: &Rejection<'_>, _: &Request| println!();
    app!(RateLimitLayer::per_ip(quota).and(RateLimitLayer::per_ip(quota).on_reject(count)));",
        says: &["if it has `responder`, `on_reject` or `axum_body`, set it on the joined layer"],
        in_guide: false,
        change: ["per_ip(quota).on_reject(count))", "per_ip(quota)).on_reject(count)"],
    },
    Mistake {
        name: "joined_with_axum_body",
        body: "app!(RateLimitLayer::per_ip(quota).and(RateLimitLayer::per_ip(quota).axum_body()));",
        says: &["if it has `responder`, `on_reject` or `axum_body`, set it on the joined layer"],
        in_guide: false,
        change: ["per_ip(quota).axum_body())", "per_ip(quota)).axum_body()"],
    },
    Mistake {
        name: "responder_after_axum_body",
        body: "app!(RateLimitLayer::per_ip(quota).axum_body().responder(HttpResponder::new()));",
        says: &["the responder of this layer cannot be set any more", "before `axum_body`"],
        in_guide: false,
        change: [
            ".axum_body().responder(HttpResponder::new())",
            ".responder(HttpResponder::new()).axum_body()",
        ],
    },
    Mistake {
        name: "responder_twice",
        body: r"let limit = RateLimitLayer::per_ip(quota).responder(HttpResponder::new().jitter(Duration::from_secs(1)));
    app!(limit.responder(HttpResponder::new().retry_after(false)));",
        says: &["call `responder` once", "are methods of `HttpResponder`"],
        in_guide: false,
        change: [
            r"(Duration::from_secs(1)));
    app!(limit.responder(HttpResponder::new().retry_after(false)));",
            r"(Duration::from_secs(1)).retry_after(false));
    app!(limit);",
        ],
    },
    Mistake {
        name: "upper_case_field_name",
        body: r#"const NAMES: FieldNames = FieldNames::new("X-Limit", "x-left", "x-reset", ResetFormat::DeltaSeconds);"#,
        says: &["`X-Limit` is no name of a header field: take lower-case letters, digits and hyphens"],
        in_guide: false,
        change: ["X-Limit", "x-limit"],
    },
];
