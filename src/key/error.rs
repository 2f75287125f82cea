use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use http::HeaderName;

/// Why a request's key could not be had, or why its caller is not served at all.
///
/// Its text says which rule was broken and what to change. It never repeats what the request said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    Told(Cow<'static, str>),
    Forbidden(Cow<'static, str>),
    Peer(PeerRule),
    Header(HeaderRule, HeaderName),
}

/// What was wrong with the peer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerRule {
    Missing,
    MissingExtension,
    NoAddress,
}

/// What was wrong with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderRule {
    Missing,
    Twice,
    TooFew,
    NoAddress,
    TooLong,
    CookieTwice,
    OtherHost,
}

impl KeyError {
    /// An error that says `reason`. It is shown to callers and logged: put nothing into it that a caller sent.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Told(reason.into()) }
    }

    /// The caller is known, and is not served: HTTP 403, gRPC `PERMISSION_DENIED`, whatever the layer does about
    /// [missing keys](super::MissingKey).
    pub fn forbidden(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Reason::Forbidden(reason.into()) }
    }

    /// Whether the caller is not served, as opposed to not known.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self.reason, Reason::Forbidden(_))
    }

    #[cold]
    pub(super) fn peer(rule: PeerRule) -> Self {
        Self { reason: Reason::Peer(rule) }
    }

    #[cold]
    pub(super) fn header(rule: HeaderRule, name: &HeaderName) -> Self {
        Self { reason: Reason::Header(rule, name.clone()) }
    }

    /// A number below 32 for each kind of error, so that each can be told once.
    pub(crate) fn kind(&self) -> u32 {
        match &self.reason {
            Reason::Told(_) => 0,
            Reason::Forbidden(_) => 1,
            Reason::Peer(rule) => 2 + *rule as u32,
            Reason::Header(rule, _) => 8 + *rule as u32,
        }
    }
}

impl PeerRule {
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

impl HeaderRule {
    fn text(self) -> &'static str {
        match self {
            Self::Missing => "is missing: let the proxy set it, and all requests come through the proxy",
            Self::Twice => "stands in two lines, send one",
            Self::TooFew => {
                "has fewer entries than there are proxies to trust: let all requests come through all of them, or \
                 trust fewer"
            }
            Self::NoAddress => "holds no IP address where the caller's should be: let the proxy write one",
            Self::TooLong => "is too long: send a shorter one, or allow for it with `max_len`",
            Self::CookieTwice => "holds the same cookie twice: send it once",
            Self::OtherHost => "names another host than the request's target: send the same",
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Told(reason) | Reason::Forbidden(reason) => f.write_str(reason),
            Reason::Peer(rule) => f.write_str(rule.text()),
            Reason::Header(rule, name) => write!(f, "the header `{name}` {}", rule.text()),
        }
    }
}

impl Error for KeyError {}
