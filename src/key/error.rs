use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use http::{HeaderName, HeaderValue};

use crate::error::ConfigError;

/// An error of a [`KeyExtractor`](super::KeyExtractor): the key of a request could not be extracted, or the caller is
/// denied service.
///
/// There are four kinds, each with its own response. A layer in [shadow mode](crate::RateLimitLayer::shadow) lets
/// these requests pass.
///
/// | constructor | mistake of | HTTP | gRPC |
/// |---|---|---|---|
/// | [`new`](KeyError::new) | the configuration | 500, unless [`MissingKey`](super::MissingKey) says otherwise | `INTERNAL` |
/// | [`invalid`](KeyError::invalid) | the client | 400 | `INVALID_ARGUMENT` |
/// | [`unauthorized`](KeyError::unauthorized) | the client: it does not say who it is | 401 | `UNAUTHENTICATED` |
/// | [`forbidden`](KeyError::forbidden) | no mistake: the caller is denied service | 403 | `PERMISSION_DENIED` |
///
/// The error's text is for the log: it says what was wrong and what to change, and names headers and types. The texts
/// of this crate's own errors never repeat values of the request. Of these texts, clients receive only the reasons that
/// were given to `invalid`, `unauthorized` and `forbidden`. For all other errors, clients receive a general sentence
/// that names neither headers nor types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    Message(Cow<'static, str>),
    Forbidden(Cow<'static, str>),
    /// The mistake of the client, and the challenge of a request that is unauthorized. This is one variant, and the
    /// challenge boxed, because each request has room for an error, and looks whether there is one.
    Invalid(Cow<'static, str>, Option<Box<HeaderValue>>),
    Peer(PeerProblem),
    /// A missing extension, by the name of its type.
    Extension(&'static str),
    Header(HeaderProblem, HeaderName),
}

/// A problem with the peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerProblem {
    Missing,
    MissingExtension,
    NoAddress,
}

/// A problem with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderProblem {
    Missing,
    Twice,
    TooFew,
    NoAddress,
    TooLong,
    TwoWords,
    OtherHost,
}

impl KeyError {
    /// Creates an error of the configuration: the server lacks what it needs to identify the client.
    ///
    /// `reason` is logged and not sent to clients. It may name the fix. It must not contain anything that the caller
    /// sent.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Message(reason.into()) }
    }

    /// Creates an error for a mistake of the client: HTTP 400, gRPC `INVALID_ARGUMENT`. The layer's setting for
    /// [missing keys](super::MissingKey) does not apply to this error.
    ///
    /// `reason` is sent to the client, and logged at level `debug`. It must not contain anything that the caller sent.
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::key::{KeyError, KeyExtractor};
    ///
    /// /// The tenant at the start of the path: `/42/..`.
    /// #[derive(Clone)]
    /// struct Tenant;
    ///
    /// impl<B> KeyExtractor<Request<B>> for Tenant {
    ///     type Key = u64;
    ///
    ///     fn extract(&self, request: &Request<B>) -> Result<Option<u64>, KeyError> {
    ///         let tenant =
    ///             request.uri().path().split('/').nth(1).and_then(|tenant| tenant.parse().ok());
    ///         tenant.map(Some).ok_or_else(|| {
    ///             KeyError::invalid("the path does not begin with a tenant's number")
    ///         })
    ///     }
    /// }
    /// ```
    pub fn invalid(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Invalid(reason.into(), None) }
    }

    /// Creates an error for a request that does not say, or does not prove, who the caller is: HTTP 401 with the field
    /// `WWW-Authenticate: Bearer`, gRPC `UNAUTHENTICATED`. [`challenge`](KeyError::challenge) changes the field. The
    /// layer's setting for [missing keys](super::MissingKey) does not apply to this error.
    ///
    /// `reason` is sent to the client, and logged at level `debug`. It must not contain anything that the caller sent.
    ///
    /// For a bearer token, [`Bearer::required`](super::Bearer::required) makes this error.
    ///
    /// ```
    /// use http::Request;
    /// use tower_throttle::key::{KeyError, KeyExtractor};
    ///
    /// /// The user that an earlier layer has found.
    /// #[derive(Clone)]
    /// struct User(u64);
    ///
    /// #[derive(Clone)]
    /// struct SignedIn;
    ///
    /// impl<B> KeyExtractor<Request<B>> for SignedIn {
    ///     type Key = u64;
    ///
    ///     fn extract(&self, request: &Request<B>) -> Result<Option<u64>, KeyError> {
    ///         let user = request.extensions().get::<User>().map(|user| Some(user.0));
    ///         user.ok_or_else(|| KeyError::unauthorized("sign in first"))
    ///     }
    /// }
    /// ```
    pub fn unauthorized(reason: impl Into<Cow<'static, str>>) -> Self {
        let challenge = Box::new(HeaderValue::from_static("Bearer"));
        Self { reason: Reason::Invalid(reason.into(), Some(challenge)) }
    }

    /// Sets the value of the field `WWW-Authenticate` of an [unauthorized](KeyError::unauthorized) request. The default
    /// is `Bearer`. Has no effect on other errors.
    ///
    /// # Errors
    ///
    /// Returns an error if `challenge` is empty, or cannot be the value of a header field.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::key::KeyError;
    ///
    /// let error = KeyError::unauthorized("sign in first").challenge("Basic realm=\"shop\"")?;
    /// assert!(error.is_unauthorized());
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    pub fn challenge(mut self, challenge: &str) -> Result<Self, ConfigError> {
        let value = HeaderValue::from_str(challenge.trim()).ok().filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| {
            ConfigError::of_input(challenge, "is no challenge: give one such as \"Bearer\"")
        })?;
        if let Reason::Invalid(_, Some(challenge)) = &mut self.reason {
            **challenge = value;
        }
        Ok(self)
    }

    /// Creates an error for a caller that is known and is denied service: HTTP 403, gRPC `PERMISSION_DENIED`. The
    /// layer's setting for [missing keys](super::MissingKey) does not apply to this error.
    ///
    /// `reason` is sent to the client, and is not logged. It must not contain anything that the caller sent.
    pub fn forbidden(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Forbidden(reason.into()) }
    }

    /// Returns whether [`forbidden`](KeyError::forbidden) created the error, because the caller is known and is denied
    /// service.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.reason, Reason::Forbidden(_))
    }

    /// Returns the name of this kind of error in the span field `rate_limit.decision`.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            error if error.is_forbidden() => "forbidden",
            error if error.is_invalid() => "invalid_key",
            error if error.is_unauthorized() => "unauthorized",
            _ => "missing_key",
        }
    }

    /// Returns whether the error is a mistake of the client, and not of the configuration.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        match &self.reason {
            Reason::Invalid(_, challenge) => challenge.is_none(),
            Reason::Header(problem, _) => problem.is_invalid(),
            _ => false,
        }
    }

    /// Returns whether [`unauthorized`](KeyError::unauthorized) created the error, because it is not known who the
    /// caller is.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        self.challenge_value().is_some()
    }

    /// Returns whether the request is rejected because of what its client sent or did not send, whatever the setting
    /// for missing keys is.
    pub(crate) fn is_of_client(&self) -> bool {
        self.is_invalid() || self.is_unauthorized()
    }

    /// Returns the one of two errors of a request for which it is rejected: that its caller is forbidden, or else the
    /// mistake of the client, which no setting admits. Of two errors that are equal in this, returns the first.
    pub(crate) fn or_graver(self, other: Self) -> Self {
        let gravity = |error: &Self| (error.is_forbidden(), error.is_of_client());
        if gravity(&other) > gravity(&self) { other } else { self }
    }

    /// Returns the value of `WWW-Authenticate` in the response, if there is one.
    pub(crate) fn challenge_value(&self) -> Option<&HeaderValue> {
        match &self.reason {
            Reason::Invalid(_, challenge) => challenge.as_deref(),
            _ => None,
        }
    }

    /// Returns whether the error says that a list of addresses has fewer entries than there are trusted hops. The cause
    /// may be a wrong number of hops in the configuration.
    pub(crate) fn is_too_few(&self) -> bool {
        matches!(self.reason, Reason::Header(HeaderProblem::TooFew, _))
    }

    /// Returns the sentence that is sent to the client.
    pub(crate) fn public_text(&self) -> &str {
        match &self.reason {
            Reason::Forbidden(reason) | Reason::Invalid(reason, _) => reason,
            _ if self.is_invalid() => "the request does not identify its client in a valid form",
            _ => "the server cannot identify the client of this request",
        }
    }

    #[cold]
    pub(super) fn extension<T>() -> Self {
        Self { reason: Reason::Extension(std::any::type_name::<T>()) }
    }

    #[cold]
    pub(super) fn peer(problem: PeerProblem) -> Self {
        Self { reason: Reason::Peer(problem) }
    }

    #[cold]
    pub(super) fn header(problem: HeaderProblem, name: &HeaderName) -> Self {
        Self { reason: Reason::Header(problem, name.clone()) }
    }

    /// Returns a number below 6 for each kind of missing key, so that each kind is logged by itself.
    pub(crate) fn kind(&self) -> usize {
        match &self.reason {
            Reason::Message(_) | Reason::Forbidden(_) | Reason::Invalid(..) => 0,
            Reason::Peer(problem) => 1 + *problem as usize,
            Reason::Extension(_) => 4,
            Reason::Header(..) => 5,
        }
    }
}

impl PeerProblem {
    fn text(self) -> &'static str {
        match self {
            Self::Missing if cfg!(feature = "axum") => {
                "no peer address: serve the axum app with \
                 `app.into_make_service_with_connect_info::<SocketAddr>()`; with other servers, put a `SocketAddr` \
                 into the request's extensions (tonic's is read with tower-throttle's feature `tonic`)"
            }
            Self::Missing => {
                "no peer address: with axum, switch on tower-throttle's feature `axum` and serve the app with \
                 `app.into_make_service_with_connect_info::<SocketAddr>()`; with other servers, put a `SocketAddr` \
                 into the request's extensions (tonic's is read with tower-throttle's feature `tonic`)"
            }
            Self::MissingExtension => {
                "no peer address: the extension that `peer_from` reads is not in the request; let the server, or a \
                 layer outside this one, put it there"
            }
            Self::NoAddress => {
                "the peer has no address, as over a unix socket: take the caller's from a header \
                 (`ClientIp`), and put `unix` into the list of trusted proxies"
            }
        }
    }
}

impl HeaderProblem {
    /// Returns whether the problem is a mistake of the client. A missing header is a mistake of the configuration,
    /// since a proxy should have set the header.
    fn is_invalid(self) -> bool {
        match self {
            Self::Missing => false,
            Self::Twice
            | Self::TooFew
            | Self::NoAddress
            | Self::TooLong
            | Self::TwoWords
            | Self::OtherHost => true,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Missing => "is missing: let the proxy set it, and all requests come through the proxy",
            Self::Twice => "stands in two lines, send one",
            Self::TooFew => {
                "has fewer entries than `TrustedProxies::hops` counts: if requests through the proxies are rejected, \
                 give it the number of proxies that add an entry; else a client came past some of them"
            }
            Self::NoAddress => "holds no IP address where the caller's should be: let the proxy write one",
            Self::TooLong => "is too long: send a shorter one, or allow for it with `max_len`",
            Self::TwoWords => "has more than one word after the scheme: send the token alone",
            Self::OtherHost => "names another host than the request's target: send the same",
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Message(reason) | Reason::Forbidden(reason) | Reason::Invalid(reason, _) => {
                f.write_str(reason)
            }
            Reason::Extension(name) => write!(
                f,
                "the request has no extension of type `{name}`: let the layer that inserts it run first (with \
                 `Router::layer`, it is added after this one; in a `ServiceBuilder`, before), or say with `.or(..)` \
                 or `.or_shared()` how requests without it are limited"
            ),
            Reason::Peer(problem) => f.write_str(problem.text()),
            Reason::Header(problem, name) => write!(f, "the header `{name}` {}", problem.text()),
        }
    }
}

impl Error for KeyError {}
