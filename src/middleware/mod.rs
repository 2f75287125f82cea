//! The tower words: layer, service, future, body, and what a refused caller gets.
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
//! Each call is decided in `call`, before its body is read. A call that is admitted goes to the very service that was
//! readied for it.
//!
//! Where the rule lets calls wait, a request is held with the service that was readied for it, no longer than its
//! `grpc-timeout`, and passed on when its turn has come; nothing of its body is read meanwhile. Where calls count
//! while they are in progress ([`Concurrency`](crate::algorithm::Concurrency)), the response's body keeps the permit
//! to its end. A handler finds the [`Decision`](crate::Decision), and the delay in it, in the request's extensions; in
//! axum it takes it as an argument. A limiter that is [closed](crate::limiter::RateLimiter::close) answers all who wait.
//!
//! What a call cost may be known only when it is over: [`settle`](RateLimitLayer::settle). What a limit would do is known
//! before it bites: [`shadow`](RateLimitLayer::shadow).
//!
//! What the answers look like is a [`Responder`]'s choice. [`HttpResponder`], the default, never changes the
//! service's error type: it answers, in forms that can be chosen. [`ErrorResponder`] serves services that are not HTTP.

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
mod waits;

pub use body::ResponseBody;
pub use drain::{Drain, DrainBody, LeaveUnread, UnreadBody};
pub use formats::FieldNames;
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use layers::{IntoPolicySet, Layers};
pub use policy::Policy;
pub use policy::and::And;
pub use policy::key_stats::KeyStats;
pub use policy::outcome::Outcome;
pub use policy::request_options::{
    CostFn, PriorityFn, RequestOptions, SettleFn, SettleResponse, TierFn, UnitCost,
};
pub use policy::set::{JointPolicy, PolicySet, SettlePolicies};
pub use policy::shadow::{Shadow, ShadowDenied};
pub use response::error::{Error, ErrorResponder};
pub use response::http_responder::HttpResponder;
pub use response::options::{BodyFormat, GrpcMode, HeaderFormat, ResetFormat, SendHeaders};
pub use response::rejection_body::{DefaultRejection, IntoRejectionBody, RejectionFn, RejectionResponse};
pub use response::request_head::RequestHead;
pub use response::{PolicyReport, Rejection, Responder, StoreError};
pub use service::RateLimit;
