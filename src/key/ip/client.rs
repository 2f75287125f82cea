use std::net::IpAddr;

use http::{HeaderMap, HeaderName, Request};

use super::address;
use super::header_list::List;
use super::networks::{NetworkSet, Networks};
use super::options::{IpOptions, ip_extractor};
use super::peer_source::{Peer, PeerSource};
use super::trusted::{Trust, TrustedProxies};
use crate::error::HeaderNameError;
use crate::key::error::HeaderProblem;
use crate::key::single_header::single_value;
use crate::key::{KeyError, KeyExtractor};

const CLOUDFRONT: HeaderName = HeaderName::from_static("cloudfront-viewer-address");

/// The client's address behind proxies, grouped by prefix as [`PeerIp`](super::PeerIp) does.
///
/// From one header, which the deployment names; there is no guessing. Which one, and the line to write for it, is in
/// the guide: [behind a proxy](crate::guide::proxy).
///
/// | the proxy | take | the client is |
/// |---|---|---|
/// | adds its peer to `X-Forwarded-For` | [`x_forwarded_for`](ClientIp::x_forwarded_for) | see below |
/// | adds its peer to `Forwarded` (RFC 7239) | [`forwarded`](ClientIp::forwarded) | see below |
/// | sets a header of its own | [`header`](ClientIp::header) | the one address in its one line |
/// | is CloudFront | [`cloudfront`](ClientIp::cloudfront) | the one address in `CloudFront-Viewer-Address` |
///
/// A list is read from the right, over all lines of the header, for only what stands there is from a proxy. With
/// trusted **networks**: a peer in none of them is the client, and no header is read. Else it is the first address
/// from the right that is in none of them; the leftmost if all are; the peer if there is no header. With trusted
/// **hops**: it is in exactly that entry from the right.
///
/// An entry is an IPv4 or IPv6 address, with or without a port. An address with a zone is taken without it; one of
/// IPv4 mapped into IPv6 is an IPv4 address.
///
/// # Deployment caveat
///
/// A header is as true as the proxy that writes it, and only if every request comes through it. A single-address
/// header that the proxy passes on instead of setting it, and hops behind a server that can be reached past the proxy,
/// let callers choose their address. Trusted networks, and [`only_from`](ClientIp::only_from), check the peer.
///
/// # Errors
///
/// Of the client (400): if the entry that counts is no address (`unknown`, an obfuscated name, an empty one), if there are
/// fewer entries than hops, or two lines of a single-address header. An entry left of that one is never taken instead,
/// nor is another header. The first list that is shorter than the hops is logged as a warning, since a wrong number of
/// hops looks the same.
///
/// Of the configuration: if there is no header at all where one is demanded, or no peer's address where one is needed.
/// What becomes of such a request is the layer's [`missing_key`](crate::RateLimitLayer::missing_key).
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::key::{ClientIp, TrustedProxies};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let by_client = ClientIp::x_forwarded_for(TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"])?);
/// let layer = RateLimitLayer::new(by_client, TokenBucket::new(Quota::per_minute(100)));
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// # Ok::<(), tower_throttle::error::NetworkError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    source: Source,
    only_from: Option<Networks>,
    peer_source: PeerSource,
    options: IpOptions,
}

#[derive(Clone, Debug)]
enum Source {
    List(List, TrustedProxies),
    Single(HeaderName),
    CloudFront,
}

impl ClientIp {
    /// From `X-Forwarded-For`.
    #[must_use]
    pub fn x_forwarded_for(proxies: TrustedProxies) -> Self {
        Self::new(Source::List(List::XForwardedFor, proxies))
    }

    /// From `Forwarded` (RFC 7239), of elements with at most 16 pairs each; the standard knows four.
    #[must_use]
    pub fn forwarded(proxies: TrustedProxies) -> Self {
        Self::new(Source::List(List::Forwarded, proxies))
    }

    /// From a header that holds one address, such as `cf-connecting-ip`, `x-real-ip` or `fly-client-ip`.
    ///
    /// The proxy must set it, whatever the caller sent, and nobody must reach the server past the proxy; see
    /// [`only_from`](ClientIp::only_from).
    ///
    /// # Errors
    ///
    /// If `name` is no header name, or one of a header with a form of its own: `x-forwarded-for`, `forwarded` and
    /// `cloudfront-viewer-address`.
    pub fn header(name: &str) -> Result<Self, HeaderNameError> {
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| HeaderNameError::no_name(name))?;
        let instead = match header.as_str() {
            "x-forwarded-for" => "x_forwarded_for",
            "forwarded" => "forwarded",
            "cloudfront-viewer-address" => "cloudfront",
            _ => return Ok(Self::new(Source::Single(header))),
        };
        Err(HeaderNameError::dedicated_method(name, instead))
    }

    /// From `CloudFront-Viewer-Address`, which holds one address and a port.
    #[must_use]
    pub fn cloudfront() -> Self {
        Self::new(Source::CloudFront)
    }

    fn new(source: Source) -> Self {
        Self { source, only_from: None, peer_source: PeerSource::of_server(), options: IpOptions::new() }
    }

    /// Reads the header only if the peer is in these networks. Any other peer is taken for the client: it has come
    /// past the proxies.
    ///
    /// ```
    /// use tower_throttle::key::{ClientIp, Networks};
    ///
    /// // the first of Cloudflare's networks; all of them are on a page of theirs, and change
    /// let cloudflare = Networks::new(["173.245.48.0/20", "103.21.244.0/22"])?;
    /// let by_client = ClientIp::header("cf-connecting-ip")?.only_from(cloudflare);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn only_from(mut self, networks: Networks) -> Self {
        self.only_from = Some(networks);
        self
    }

    /// The key of callers from that address: to look at, refund or reset what they have used.
    #[must_use]
    pub fn key(&self, address: IpAddr) -> IpAddr {
        self.options.network(address.to_canonical())
    }

    /// The client's address, before grouping, and before callers that are [allowed](ClientIp::allow) or
    /// [denied](ClientIp::deny) are told apart.
    ///
    /// # Errors
    ///
    /// Those of the [extractor](ClientIp).
    pub fn resolve<B>(&self, request: &Request<B>) -> Result<IpAddr, KeyError> {
        self.find(request)?.address()
    }

    fn find<B>(&self, request: &Request<B>) -> Result<Peer, KeyError> {
        let (headers, extensions) = (request.headers(), request.extensions());
        if let Some(networks) = &self.only_from {
            let peer = self.peer_source.peer(extensions)?;
            if !networks.contains_peer(peer) {
                return Ok(peer);
            }
        }
        match &self.source {
            Source::List(list, proxies) => {
                // Before the list is locked: a function of the user's that reads it might replace it.
                let peer = self.peer_source.peer(extensions);
                proxies.with(|trust| match trust {
                    Trust::Networks(trusted) => walk(*list, trusted, headers, peer?),
                    Trust::Hops(count) => hop(*list, *count, headers).map(Peer::Ip),
                })
            }
            Source::Single(name) => single(name, headers, address::address).map(Peer::Ip),
            Source::CloudFront => single(&CLOUDFRONT, headers, address::before_port).map(Peer::Ip),
        }
    }
}

ip_extractor!(ClientIp);

/// The first from the right that is not trusted, beginning with the peer; the last if all are.
fn walk(list: List, trusted: &NetworkSet, headers: &HeaderMap, peer: Peer) -> Result<Peer, KeyError> {
    if !trusted.contains_peer(peer) {
        return Ok(peer);
    }
    let mut last = peer;
    for element in list.elements(headers) {
        let address = list.address(element).ok_or_else(|| broken(&list.name()))?;
        last = Peer::Ip(address);
        if !trusted.contains(address) {
            break;
        }
    }
    Ok(last)
}

/// The address in that entry from the right.
fn hop(list: List, count: usize, headers: &HeaderMap) -> Result<IpAddr, KeyError> {
    let name = list.name();
    match list.elements(headers).nth(count - 1) {
        Some(element) => list.address(element).ok_or_else(|| broken(&name)),
        None if headers.contains_key(&name) => Err(KeyError::header(HeaderProblem::TooFew, &name)),
        None => Err(KeyError::header(HeaderProblem::Missing, &name)),
    }
}

/// The one address in the one line of a header.
fn single(
    name: &HeaderName,
    headers: &HeaderMap,
    address: fn(&[u8]) -> Option<IpAddr>,
) -> Result<IpAddr, KeyError> {
    let line = single_value(name, headers)?.ok_or_else(|| KeyError::header(HeaderProblem::Missing, name))?;
    address(address::trimmed(line.as_bytes())).ok_or_else(|| broken(name))
}

fn broken(name: &HeaderName) -> KeyError {
    KeyError::header(HeaderProblem::NoAddress, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_finds_the_peer_may_replace_the_proxies() {
        let proxies = TrustedProxies::loopback();
        let (list, by_client) = (proxies.clone(), ClientIp::x_forwarded_for(proxies));
        let by_client = by_client.peer_from(move |peer: &IpAddr| {
            list.replace(TrustedProxies::private());
            *peer
        });
        let mut request = Request::new(());
        request.extensions_mut().insert(IpAddr::from([10, 0, 0, 1]));
        request.headers_mut().insert("x-forwarded-for", http::HeaderValue::from_static("192.0.2.1"));
        // Held while the function runs, the list's lock would never be free.
        assert_eq!(by_client.resolve(&request), Ok([192, 0, 2, 1].into()));
    }
}
