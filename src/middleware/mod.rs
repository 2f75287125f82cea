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
//! A call that is queued, or that waits for the reply of a store on another machine, is decided while the response
//! future is polled. All other calls are decided in `call`. The body of the request is not read before the decision. An
//! admitted call is passed to the instance of the inner service that `poll_ready` has polled.
//!
//! A queued request is kept together with an instance of the inner service that is ready for the request. When the
//! request is admitted, it is passed to that instance. A gRPC request waits no longer than its `grpc-timeout`. The body
//! of a queued request is not read. If the algorithm limits calls in progress
//! ([`Concurrency`](crate::algorithm::Concurrency)), the response's body holds the permit until the body ends, fails or
//! is dropped. A handler finds the [`Decision`](crate::Decision), with the delay, in the request's extensions. An axum
//! handler can take the decision as an argument. When a limiter is [closed](crate::limiter::RateLimiter::close), all
//! calls in its queues are rejected at once.
//!
//! If the cost of a call is known only from its response, use [`settle`](RateLimitLayer::settle). To see what a limit
//! would do before it is enforced, use [`shadow`](RateLimitLayer::shadow).
//!
//! A [`Responder`] makes the responses. The default, [`HttpResponder`], answers a rejected call with an HTTP or gRPC
//! response, and keeps the error type of the service. The form of the responses can be configured. [`ErrorResponder`]
//! is for services that are not HTTP.

mod accept;
mod body;
mod drain;
mod formats;
mod future;
mod layer;
mod layers;
mod policy;
mod response;
mod service;
mod shared;

pub use body::ResponseBody;
pub use formats::{FieldNames, ResetFormat};
pub use future::ResponseFuture;
#[doc(no_inline)]
pub use layer::RateLimitLayer;
pub use layers::Layers;
pub use policy::on_store_error::OnStoreError;
pub use policy::shadow::{Shadow, ShadowDenied};
#[doc(no_inline)]
pub use response::error::{Error, ErrorResponder};
pub use response::extensions::{Decisions, Rejected};
#[doc(no_inline)]
pub use response::http_responder::HttpResponder;
pub use response::options::{BodyFormat, GrpcMode, HeaderFormat, SendHeaders};
pub use response::report::PolicyReport;
pub use response::request_head::RequestHead;
pub use response::{Rejection, Responder, StoreError};
pub use service::RateLimit;

#[cfg(feature = "axum")]
#[doc(hidden)]
pub use self::body::SameBody;
// These items occur in the types of layers and responders. They are public so that users can write such a type.
#[doc(hidden)]
pub use self::{
    body::{OuterBody, WrapBody},
    drain::{DrainBody, LeaveUnread, UnreadBody},
    layers::IntoPolicySet,
    policy::Policy,
    policy::and::And,
    policy::request_options::{CostFn, PriorityFn, SettleFn, TierFn, UnitCost},
    response::on_reject::OnReject,
    response::rejection_body::{DefaultRejection, IntoRejectionBody, RejectionFn, RejectionResponse},
};
