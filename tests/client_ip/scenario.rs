//! What is asked: how it is set up, who connected, what was sent. And what can be the answer.

use std::fmt;
use std::net::IpAddr;

/// How a `ClientIp` is made.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) source: Source,
    pub(crate) only_from: Option<Vec<String>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Source {
    XForwardedFor(Trust),
    Forwarded(Trust),
    Header(&'static str),
    CloudFront,
}

#[derive(Clone, Debug)]
pub(crate) enum Trust {
    Cidrs(Vec<String>),
    Hops(usize),
}

impl Source {
    /// The header that is read.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::XForwardedFor(_) => "x-forwarded-for",
            Self::Forwarded(_) => "forwarded",
            Self::Header(name) => name,
            Self::CloudFront => "cloudfront-viewer-address",
        }
    }

    pub(crate) fn trust(&self) -> Option<&Trust> {
        match self {
            Self::XForwardedFor(trust) | Self::Forwarded(trust) => Some(trust),
            _ => None,
        }
    }
}

/// Who connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The server does not say.
    Absent,
    /// Over a unix socket: it has no address.
    Unix,
    At(IpAddr),
}

/// What a request says.
#[derive(Clone)]
pub(crate) struct Heard {
    pub(crate) peer: Peer,
    /// Names in lower case, and values.
    pub(crate) lines: Vec<(&'static str, Vec<u8>)>,
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} says", self.peer)?;
        self.lines.iter().try_for_each(|(name, value)| write!(f, "\n    {name}: {}", value.escape_ascii()))
    }
}

/// Where an address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum How {
    Peer,
    TrustedPeer,
    Decisive,
    AllTrusted,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Missing {
    NoPeer,
    UnixPeer,
    NoHeader,
    Several,
    TooFew,
    Broken,
}
