//! The inputs of a case (setup, peer, headers) and its possible results.

use std::fmt;
use std::net::IpAddr;

/// The setup of a `ClientIp`.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) source: Source,
    pub(crate) only_from: Option<Vec<String>>,
    /// The prefix of the operator's own NAT64.
    pub(crate) nat64: Option<&'static str>,
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
    /// Returns the name of the header that is read.
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

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A peer that the server does not report.
    Absent,
    /// A peer over a Unix socket, which has no address.
    Unix,
    At(IpAddr),
}

/// The parts of a request that are read.
#[derive(Clone)]
pub(crate) struct Heard {
    pub(crate) peer: Peer,
    /// The names in lower case, and the values.
    pub(crate) lines: Vec<(&'static str, Vec<u8>)>,
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} says", self.peer)?;
        self.lines.iter().try_for_each(|(name, value)| write!(f, "\n    {name}: {}", value.escape_ascii()))
    }
}

/// The origin of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum How {
    Peer,
    TrustedPeer,
    Decisive,
    AllTrusted,
}

/// The reason why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Missing {
    NoPeer,
    UnixPeer,
    NoHeader,
    Several,
    TooFew,
    Broken,
}
