//! Asks the crate the same questions as the model.
#![allow(dead_code, reason = "each program that includes it uses a part")]

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tower_throttle::key::{ClientIp, Networks, TrustedProxies};

use crate::model::{Heard, Peer, Setup, Source, Trust};

/// The address of the connection, or `None` if there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected(pub(crate) Option<IpAddr>);

/// Builds the extractor. Returns `None` if the setup is invalid.
pub(crate) fn client_ip(setup: &Setup) -> Option<ClientIp> {
    let client = match &setup.source {
        Source::XForwardedFor(trust) => ClientIp::x_forwarded_for(trusted(trust)?),
        Source::Forwarded(trust) => ClientIp::forwarded(trusted(trust)?),
        Source::Header(name) => ClientIp::header(name).ok()?,
        Source::CloudFront => ClientIp::cloudfront(),
    };
    let client = match &setup.only_from {
        Some(list) => client.only_from(Networks::new(list.iter().map(String::as_str)).ok()?),
        None => client,
    };
    match setup.nat64 {
        Some(prefix) => client.nat64_prefix(prefix).ok(),
        None => Some(client),
    }
}

fn trusted(trust: &Trust) -> Option<TrustedProxies> {
    match trust {
        Trust::Cidrs(list) => TrustedProxies::cidrs(list.iter().map(String::as_str)).ok(),
        Trust::Hops(hops) => TrustedProxies::hops(*hops).ok(),
    }
}

/// Returns the same extractor, for a server that reports the peer in a type of its own. Only with such a type can a
/// peer have no address.
pub(crate) fn peer_said(client: ClientIp) -> ClientIp {
    client.peer_from(|connected: &Connected| connected.0)
}

/// Builds the request. Returns `None` if a header is invalid.
pub(crate) fn request(heard: &Heard) -> Option<Request<()>> {
    let mut request = Request::new(());
    match heard.peer {
        Peer::Absent => {}
        Peer::Unix => {
            request.extensions_mut().insert(Connected(None));
        }
        Peer::At(ip) => {
            request.extensions_mut().insert(Connected(Some(ip)));
            request.extensions_mut().insert(SocketAddr::new(ip, 50_000));
        }
    }
    *request.headers_mut() = headers(heard)?;
    Some(request)
}

fn headers(heard: &Heard) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in &heard.lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).ok()?);
    }
    Some(headers)
}
