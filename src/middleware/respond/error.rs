use std::fmt;

use super::{Pass, PolicyReport, Rejection, Responder};
use crate::decision::Decision;
use crate::error::BoxError;
use crate::key::KeyError;
use crate::limiter::Permit;

/// A responder that rejects calls with an [`Error`], for services that are not HTTP, and for clients.
///
/// It holds no permits: with [`Concurrency`](crate::algorithm::Concurrency), a call is in progress until its response
/// is ready, even if this is an HTTP response whose body has not ended.
///
/// ```
/// use tower_throttle::key;
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::new(
///     key::from_fn(|line: &String| line.split(' ').next().map(str::to_owned)),
///     TokenBucket::new(Quota::per_second(10)),
/// )
/// .responder(ErrorResponder);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorResponder;

/// The error of a service whose layer has the responder [`ErrorResponder`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<E> {
    /// A policy denied the call, the limiter was [closed](Decision::is_closed), or its [key table is
    /// full](Decision::is_table_full).
    Limited(Decision),
    /// The extractor returned no valid key: there is a configuration mistake, the [client](KeyError::is_invalid) made
    /// the key invalid, the request does not say [who its caller is](KeyError::is_unauthorized), or the caller is
    /// [forbidden](KeyError::is_forbidden).
    Key(KeyError),
    /// The limiter could not decide the call, because its store failed.
    Store(BoxError),
    /// The inner service returned an error.
    Inner(E),
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(decision) => write!(f, "rate limit exceeded: {decision}"),
            Self::Key(error) if error.is_forbidden() => f.write_str("the caller is not served"),
            Self::Key(error) if error.is_invalid() => {
                f.write_str("the request does not identify its caller in a valid form")
            }
            Self::Key(error) if error.is_unauthorized() => {
                f.write_str("the request does not say who its caller is")
            }
            Self::Key(_) => f.write_str("the request has no key to limit it by"),
            Self::Store(_) => f.write_str("the rate limiter's store cannot decide"),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

/// [`Error::Inner`] is displayed as the inner error itself, and has no source. So the inner error need not implement
/// [`std::error::Error`]. For example, the boxed errors of tower's own middleware do not implement it.
impl<E: fmt::Debug + fmt::Display> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Limited(_) | Self::Inner(_) => None,
            Self::Key(error) => Some(error),
            Self::Store(error) => Some(&**error),
        }
    }
}

impl<Req, Res, Err> Responder<Req, Res, Err> for ErrorResponder {
    type Response = Res;
    type Error = Error<Err>;

    const PASS: Option<Pass<Res, Err, Res, Error<Err>>> = Some(|polled| polled.map_err(Error::Inner));
    const DRAINS: bool = false;

    fn passes(&self) -> bool {
        true
    }

    fn admits_as_is(&self) -> bool {
        true
    }

    fn map_response(&self, _: &[PolicyReport<'_>], response: Res) -> Res {
        response
    }

    // The response is passed on as it is. The default method would copy it once more, in case it holds the permit.
    #[inline]
    fn convert(&self, _: &[PolicyReport<'_>], response: Res, _: Permit) -> Res {
        response
    }

    fn map_error(&self, error: Err) -> Error<Err> {
        Error::Inner(error)
    }

    fn reject(&self, _: &Req, rejection: Rejection<'_>) -> Result<Res, Error<Err>> {
        Err(match rejection {
            Rejection::Limited(reports) => {
                let denials =
                    reports.iter().map(PolicyReport::decision).filter(|decision| !decision.is_allowed());
                // `None` means that waiting does not help or that the wait is unknown. It is treated as the longest
                // wait. A denial by a closed limiter takes precedence, and then a denial because of a full key table.
                let rank = |denial: &&Decision| {
                    let unavailable = u8::from(denial.is_unavailable()) + u8::from(denial.is_closed());
                    (unavailable, denial.retry_nanos().unwrap_or(u64::MAX))
                };
                let denial = denials.max_by_key(rank);
                match denial {
                    Some(denial) => Error::Limited(*denial),
                    None => unreachable!("a call that every policy allows is not denied"),
                }
            }
            Rejection::Key(error) => Error::Key(error),
            Rejection::Store(failure) => Error::Store(failure.into_error()),
        })
    }
}
