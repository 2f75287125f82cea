//! Who is asking.
//!
//! A [`KeyExtractor`] knows requests, not limits: it says whose budget a request draws on.
//!
//! | you limit by | take |
//! |---|---|
//! | the address of the TCP peer | [`PeerIp`] |
//! | the value of a header | [`Header`] |
//! | what an earlier layer found out | [`Extension`] |
//! | everyone together | [`Global`] |
//! | several of these at once | a tuple: `(PeerIp::new(), Header::new("x-api-key")?)` |
//! | anything else, any request type | [`from_fn`] |
//!
//! An extractor answers `Ok(None)` for a request that is not limited, and an error for one whose key cannot be had:
//! that request is refused (HTTP 500), since letting it pass would be a way round the limit.

mod error;
mod extension;
mod function;
mod global;
mod header;
mod ip;
mod or;
mod peer;
mod tuple;

use std::hash::Hash;

pub use error::KeyError;
pub use extension::Extension;
pub use function::{FromFn, from_fn};
pub use global::Global;
pub use header::{Header, HeaderKey};
pub use ip::PeerIp;
pub use or::{Or, OrKey};

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
    note = "for HTTP requests take one of `tower_throttle::key`; for others `key::from_fn(|request: &{Req}| Some(..))`"
)]
pub trait KeyExtractor<Req> {
    /// Whose budget it is. Only its hash is kept.
    type Key: Hash;

    /// The key of `request`; `Ok(None)` if it is not limited.
    ///
    /// # Errors
    ///
    /// If the key cannot be had.
    fn extract(&self, request: &Req) -> Result<Option<Self::Key>, KeyError>;
}
