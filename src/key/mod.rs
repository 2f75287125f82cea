//! Key extractors, which determine the caller of a request.
//!
//! A [`KeyExtractor`] returns the key of a request. Requests with equal keys are charged to one budget.
//!
//! | limit by | use |
//! |---|---|
//! | the address of the TCP peer | [`PeerIp`] |
//! | the address of the client behind proxies | [`ClientIp`]; the guide says which constructor: [behind a proxy](crate::guide::proxy) |
//! | a user, or anything else that an outer layer determined | [`Extension`] |
//! | a token, a session, the value of a header, a parameter of the query | [`Bearer`], [`Cookie`], [`Header`], [`Query`] |
//! | a route of axum, a method, a host | `Route` (feature `axum`), [`Method`], [`Host`] |
//! | a gRPC service or method | [`GrpcService`], [`GrpcMethod`] |
//! | all requests together | [`Global`] |
//! | the first of several keys that a request has | [`first_of`]`((`[`Bearer::new()`](Bearer::new)`, `[`PeerIp::new()`](PeerIp::new)`))` |
//! | a combination of these | a tuple: `(PeerIp::new(), Method::by_safety())` |
//! | anything else, any request type | [`from_fn`] |
//!
//! Callers can invent tokens, sessions and values of headers, and each invented value has a new budget. So limit by
//! address as well, or put the rate-limit layer inside the layer that checks the value. The parts of a tuple are hashed
//! separately: the keys `("a", "bc")` and `("ab", "c")` differ.
//!
//! # Requests that are exempt, forbidden, or without a key
//!
//! An extractor returns `Ok(None)` for a request that is not limited. [`allow`](PeerIp::allow) exempts callers in some
//! networks, and [`unless`](crate::RateLimitLayer::unless) exempts requests that match a predicate: a closure, or one
//! of [`Paths`], [`Preflight`], [`GrpcHealth`] and [`GrpcReflection`]. Callers in the networks of a
//! [`deny`](PeerIp::deny) list are rejected with 403, and neither the layer nor a layer that is
//! [joined](crate::RateLimitLayer::and) with it charges their requests.
//!
//! By default, a request whose key cannot be extracted is rejected, since callers could otherwise bypass the limit. A
//! mistake of the client (a duplicate header, a token that is too long or has a second word, an invalid list of
//! addresses) is answered with HTTP 400 or gRPC `INVALID_ARGUMENT`, and logged at level `debug` (feature `tracing`).
//! [`Bearer::required`] answers a request without a token with 401 or `UNAUTHENTICATED`. A
//! mistake of the configuration (the peer's address, a proxy's header or an extension is missing) is answered with HTTP
//! 500 or gRPC `INTERNAL`. The log then says once a minute, at level `error`, what to change. [`MissingKey`] lists the
//! alternatives to a rejection because of a mistake of the configuration. The bodies of these responses name neither
//! headers nor types. A layer in [shadow mode](crate::RateLimitLayer::shadow) lets all these requests pass.
//!
//! # Peeking at, refunding and resetting a key
//!
//! Most extractors have a method `key`, which builds the key of a request from the value that the request would
//! contain. If you pass a key of another type or form to a limiter, the limiter finds no state for that key, and
//! reports no error. So build keys with the extractor:
//!
//! ```
//! use tower_throttle::algorithm::TokenBucket;
//! use tower_throttle::key::{Header, PeerIp};
//! use tower_throttle::{Quota, RateLimitLayer};
//!
//! let by_api_key = Header::new("x-api-key")?.or(PeerIp::new());
//! let layer =
//!     RateLimitLayer::new(by_api_key.clone(), TokenBucket::new(Quota::per_minute(100)));
//! layer.limiter().reset(&by_api_key.first_key(|header| header.key(&"4711".parse().unwrap())));
//! layer.limiter().reset(&by_api_key.second_key(|peer| peer.key([192, 0, 2, 1].into())));
//! # Ok::<(), http::header::InvalidHeaderName>(())
//! ```
//!
//! An [`Or`] has the methods [`first_key`](Or::first_key) and [`second_key`](Or::second_key) instead. The key of a
//! tuple is the tuple of the keys, the key of [`Global`] is `()`, and the key of [`from_fn`] is the value that the
//! function returns.
//!
//! # Keys for several machines
//!
//! A limiter that keeps its state on another machine, such as in Redis, requires keys that implement
//! [`SharedKey`](crate::limiter::SharedKey). Such a key can be written as a string that is the same on all machines. A
//! key with several parts implements the trait if all its parts do. The keys of [`Bearer`] and [`Cookie`] implement the
//! trait only with [`keyed_by(secret)`](Bearer::keyed_by). Without a secret, each process hashes tokens and sessions
//! with a random number of its own, so each process would have a limit of its own.

mod any_request;
mod error;
mod exempt;
mod extension;
mod header;
mod ip;
mod missing_key;
mod or;
mod query;
mod request;
#[cfg(feature = "axum")]
mod route;
mod secret;
mod tuple;

use std::hash::Hash;

pub use any_request::{FromFn, Global, from_fn};
pub use error::KeyError;
pub use exempt::{GrpcHealth, GrpcReflection, Paths, Preflight};
pub use extension::Extension;
pub use header::{Header, HeaderKey};
pub use ip::{ClientIp, Networks, PeerIp, TrustedProxies};
pub use missing_key::{MissingKey, StoreKey};
pub use or::{ExtractorTuple, Or, OrKey, first_of};
pub use query::{Query, QueryKey};
pub use request::{GrpcMethod, GrpcService, Host, Method, MethodKey};
#[cfg(feature = "axum")]
pub use route::{Route, RouteKey};
pub use secret::{Bearer, Cookie, SecretHash};
// These items occur in the types of extractors and in the bounds of methods.
pub use self::{exempt::RequestPredicate, secret::ProcessSeed};
// The docs of this type are in `middleware::types`.
#[doc(hidden)]
pub use self::exempt::Unless;

/// Finds the key of a request.
///
/// ```
/// use tower_throttle::key::{KeyError, KeyExtractor};
///
/// struct Job {
///     tenant: u32,
/// }
///
/// #[derive(Clone)]
/// struct Tenant;
///
/// impl KeyExtractor<Job> for Tenant {
///     type Key = u32;
///
///     fn extract(&self, job: &Job) -> Result<Option<u32>, KeyError> {
///         Ok(Some(job.tenant))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot find a key in a request of type `{Req}`",
    note = "for HTTP requests take one of `tower_throttle::key`; for others `key::from_fn(|request: &{Req}| Some(..))`",
    note = "a `Result` becomes a key by `?` or `unwrap()`: `Header::new(\"x-api-key\")?`"
)]
pub trait KeyExtractor<Req> {
    /// The key, which identifies a budget. A limiter in memory keeps only the hash of the key.
    ///
    /// The `Hash` of the key must be prefix-free: the bytes that one key writes to the hasher must neither equal nor
    /// begin with the bytes that a different key writes. The implementations of the standard library and derived
    /// implementations are prefix-free. Otherwise two callers might share a budget. So a `Hash` written by hand should
    /// call `Hash` of its fields, and `Hasher::write` only for data of a fixed length.
    type Key: Hash;

    /// Returns the key of `request`, or `Ok(None)` if the request is not limited.
    ///
    /// # Errors
    ///
    /// Returns an error if the key cannot be extracted because of a mistake of the [configuration](KeyError::new) or of
    /// the [client](KeyError::invalid), or if the caller is [denied service](KeyError::forbidden).
    fn extract(&self, request: &Req) -> Result<Option<Self::Key>, KeyError>;
}
