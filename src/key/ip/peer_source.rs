//! The peer of a connection, as reported by the server that accepted the connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Extensions;

use super::nat64::canonical;
use crate::key::KeyError;
use crate::key::error::PeerProblem;

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// A peer with an address, in its canonical form.
    Ip(IpAddr),
    /// A peer without an address, as over a unix socket.
    NoAddress,
}

impl Peer {
    #[inline]
    pub(super) fn address(self) -> Result<IpAddr, KeyError> {
        match self {
            Self::Ip(address) => Ok(address),
            Self::NoAddress => Err(KeyError::peer(PeerProblem::NoAddress)),
        }
    }

    #[inline]
    fn of(address: Option<IpAddr>) -> Self {
        address.map_or(Self::NoAddress, |address| Self::Ip(canonical(address)))
    }
}

/// The source of the peer: the extensions that servers insert, or the extension that is read by the function given to
/// `peer_from`.
#[derive(Clone)]
pub(super) struct PeerSource {
    extension: Option<Arc<PeerFn>>,
}

type PeerFn = dyn Fn(&Extensions) -> Option<Peer> + Send + Sync;

impl PeerSource {
    pub(super) const fn of_server() -> Self {
        Self { extension: None }
    }

    pub(super) fn from_extension<T, F, Address>(address: F) -> Self
    where
        T: Send + Sync + 'static,
        F: Fn(&T) -> Address + Send + Sync + 'static,
        Address: Into<Option<IpAddr>>,
    {
        let find = move |extensions: &Extensions| {
            extensions.get::<T>().map(|extension| Peer::of(address(extension).into()))
        };
        Self { extension: Some(Arc::new(find)) }
    }

    /// Returns whether peers are read from the extensions that servers insert. Returns `false` if `peer_from` was
    /// called.
    #[inline]
    pub(super) fn is_server(&self) -> bool {
        self.extension.is_none()
    }

    /// Returns the address in axum's extensions. Returns `None` if there is none, if `peer_from` was called, or without
    /// the feature `axum`.
    #[inline]
    pub(super) fn socket<'a>(&self, extensions: &'a Extensions) -> Option<&'a SocketAddr> {
        if self.is_server() { by_axum(extensions) } else { None }
    }

    pub(super) fn peer(&self, extensions: &Extensions) -> Result<Peer, KeyError> {
        self.peer_of(self.socket(extensions), extensions)
    }

    /// Returns the peer. `socket` is the result of [`socket`](Self::socket).
    pub(super) fn peer_of(
        &self,
        socket: Option<&SocketAddr>,
        extensions: &Extensions,
    ) -> Result<Peer, KeyError> {
        match (&self.extension, socket) {
            (Some(find), _) => find(extensions).ok_or_else(|| KeyError::peer(PeerProblem::MissingExtension)),
            (None, Some(socket)) => Ok(Peer::of(Some(socket.ip()))),
            (None, None) => by_other_servers(extensions),
        }
    }
}

/// Returns the peer from the extensions that servers other than axum's insert.
fn by_other_servers(extensions: &Extensions) -> Result<Peer, KeyError> {
    by_tonic(extensions).or_else(|| bare(extensions)).ok_or_else(|| KeyError::peer(PeerProblem::Missing))
}

impl fmt::Debug for PeerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.extension.is_some() { "extension" } else { "server" })
    }
}

fn bare(extensions: &Extensions) -> Option<Peer> {
    let socket = extensions.get::<SocketAddr>().map(SocketAddr::ip);
    socket.or_else(|| extensions.get::<IpAddr>().copied()).map(|address| Peer::of(Some(address)))
}

#[cfg(feature = "axum")]
#[inline]
fn by_axum(extensions: &Extensions) -> Option<&SocketAddr> {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

    match extensions.get::<ConnectInfo<SocketAddr>>() {
        Some(ConnectInfo(address)) => Some(address),
        // If there is no `ConnectInfo`, axum's own extractor `ConnectInfo` reads this extension, which is for tests.
        None => extensions.get::<MockConnectInfo<SocketAddr>>().map(|MockConnectInfo(address)| address),
    }
}

#[cfg(not(feature = "axum"))]
fn by_axum(_: &Extensions) -> Option<&SocketAddr> {
    None
}

#[cfg(feature = "tonic")]
fn by_tonic(extensions: &Extensions) -> Option<Peer> {
    // tonic also inserts this extension for its own TLS.
    let tcp = extensions.get::<tonic::transport::server::TcpConnectInfo>();
    if let Some(info) = tcp {
        return info.remote_addr().map(|address| Peer::of(Some(address.ip())));
    }
    #[cfg(unix)]
    if extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
        return Some(Peer::NoAddress);
    }
    None
}

#[cfg(not(feature = "tonic"))]
fn by_tonic(_: &Extensions) -> Option<Peer> {
    None
}
