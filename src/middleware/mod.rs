//! The tower middleware: layer, service, future, response body, and the responses to rejected calls.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_throttle::{Quota, RateLimitLayer};
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_ip(Quota::per_minute(100).burst(20)));
//!
//! // Serve it so that the peer's address is known:
//! // axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
//! ```
//!
//! A call that is queued, or that waits for a reply from another machine, is decided while the response future is
//! polled. All other calls are decided in `call`. The body of the request is not read before the decision. An admitted
//! call is passed to the instance of the inner service that `poll_ready` has polled.
//!
//! A queued request is kept together with an instance of the inner service that is ready for the request. When the
//! request is admitted, it is passed to that instance. A gRPC request waits no longer than its `grpc-timeout`. The body
//! of a queued request is not read. If the algorithm limits calls in progress
//! ([`Concurrency`](crate::algorithm::Concurrency)), the response's body holds the permit until the body ends, fails or
//! is dropped. A handler finds the [`Decision`](crate::Decision), with the delay, in the request's extensions. An axum
//! handler can take the decision as an argument. When a limiter is [closed](crate::limiter::RateLimiter::close), all
//! calls in its queues are rejected at once. A [`Shutdown`] closes the limiters of several layers together.
//!
//! If the cost of a call is known only from its response, use [`settle`](RateLimitLayer::settle). To see what a limit
//! would do before it is enforced, use [`shadow`](RateLimitLayer::shadow).
//!
//! A [`Responder`] makes the responses. The default, [`HttpResponder`], answers a rejected call with an HTTP or gRPC
//! response, and keeps the error type of the service. The form of the responses can be configured. [`ErrorResponder`]
//! is for services that are not HTTP.

mod body;
mod drain;
mod field_values;
mod info;
mod joint;
mod layer;
mod meter;
mod names;
mod options;
mod outcome;
mod policies;
mod policy;
mod problem_json;
mod reported;
mod respond;
mod service;
mod shadow;
mod shutdown;

pub use body::ResponseBody;
pub use info::OnStoreError;
pub use layer::Layers;
#[doc(no_inline)]
pub use layer::RateLimitLayer;
#[doc(no_inline)]
pub use meter::Meter;
pub use meter::Unmetered;
#[cfg(feature = "axum")]
pub use respond::HandlerResponder;
#[doc(no_inline)]
pub use respond::HttpResponder;
#[cfg(feature = "axum")]
#[doc(no_inline)]
pub use respond::Rejecter;
#[doc(no_inline)]
pub use respond::error::{Error, ErrorResponder};
pub use respond::{
    BodyFormat, Decisions, FieldNames, GrpcMode, HeaderFormat, PolicyReport, Rejected, Rejection,
    RequestHead, ResetFormat, Responder, SendHeaders, StoreError,
};
pub use service::{RateLimit, ResponseFuture};
pub use shadow::{Shadow, ShadowDenied};
pub use shutdown::Shutdown;

/// The types that occur in the type of a layer or of a responder, and traits in their bounds.
///
/// Methods such as `cost` and `on_reject` change the type of a layer. Import these types to write such a type in a
/// struct or in a signature. A function can also return `impl Layer<..>`, and an app can box its layers: see
/// [recipes](crate::guide::recipes).
///
/// ```
/// use http::Request;
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::key::PeerIp;
/// use tower_throttle::middleware::types::CostFn;
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// type Cost = CostFn<fn(&Request<String>) -> u64>;
///
/// struct Limits {
///     uploads: RateLimitLayer<PeerIp, TokenBucket, Cost>,
/// }
///
/// let by_length: fn(&Request<String>) -> u64 = |request| request.body().len() as u64;
/// let limits =
///     Limits { uploads: RateLimitLayer::per_ip(Quota::per_hour(1_000_000)).cost(by_length) };
/// ```
///
/// Joined layers have one [`Policy`](types::Policy) each. A layer that exempts requests has another
/// key:
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::key::{Global, Paths, PeerIp};
/// use tower_throttle::middleware::Layers;
/// use tower_throttle::middleware::types::{And, Policy, Unless};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// type Limits =
///     Layers<And<Policy<Unless<PeerIp, Paths>, TokenBucket>, Policy<Global, TokenBucket>>>;
///
/// let each = RateLimitLayer::per_ip(Quota::per_minute(100)).unless(Paths::new(["/health"]));
/// let all =
///     RateLimitLayer::new(Global, TokenBucket::new(Quota::per_second(1_000))).name("all");
/// let limits: Limits = each.and(all);
/// ```
pub mod types {
    pub use super::body::{OuterBody, WrapBody};
    pub use super::drain::{DrainBody, LeaveUnread, UnreadBody};
    pub use super::joint::And;
    pub use super::layer::IntoPolicySet;
    pub use super::options::{CostFn, Metered, PriorityFn, SettleFn, TierFn, UnitCost};
    pub use super::policy::Policy;
    pub use super::respond::{
        DefaultRejection, IntoRejectionBody, OnReject, RejectHead, RejectionFn, RejectionResponse, SetOn,
        Unset,
    };

    #[cfg(feature = "axum")]
    pub use super::{body::AxumBody, respond::IntoAxumBody};
    #[doc(inline)]
    pub use crate::key::Unless;
}
