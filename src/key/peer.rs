//! The address of a connection's other end, as the server that accepted it says.

use std::net::SocketAddr;

use http::Extensions;

use super::KeyError;

/// The peer's address, from whatever server put it into the request's extensions.
pub(super) fn address(extensions: &Extensions) -> Result<SocketAddr, KeyError> {
    by_axum(extensions)
        .or_else(|| by_tonic(extensions))
        .or_else(|| extensions.get::<SocketAddr>().copied())
        .ok_or_else(missing)
}

#[cfg(feature = "axum")]
fn by_axum(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

    let connected = extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| *address);
    // What axum's own extractor falls back to, in tests.
    connected.or_else(|| extensions.get::<MockConnectInfo<SocketAddr>>().map(|mock| mock.0))
}

#[cfg(not(feature = "axum"))]
fn by_axum(_: &Extensions) -> Option<SocketAddr> {
    None
}

#[cfg(feature = "tonic")]
fn by_tonic(extensions: &Extensions) -> Option<SocketAddr> {
    // Over TLS, tonic inserts it as well.
    extensions.get::<tonic::transport::server::TcpConnectInfo>()?.remote_addr()
}

#[cfg(not(feature = "tonic"))]
fn by_tonic(_: &Extensions) -> Option<SocketAddr> {
    None
}

#[cold]
fn missing() -> KeyError {
    KeyError::new(if cfg!(feature = "axum") {
        "no peer address: serve the axum app with \
         `app.into_make_service_with_connect_info::<SocketAddr>()`; with other servers, put a `SocketAddr` into the \
         request's extensions (tonic's is read with tower-throttle's feature `tonic`)"
    } else {
        "no peer address: with axum, switch on tower-throttle's feature `axum` and serve the app with \
         `app.into_make_service_with_connect_info::<SocketAddr>()`; with other servers, put a `SocketAddr` into the \
         request's extensions (tonic's is read with tower-throttle's feature `tonic`)"
    })
}
