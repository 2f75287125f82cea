//! [`ClientIp`], which finds the client's address in a header of a proxy.

use std::net::IpAddr;

use http::{Extensions, HeaderMap, HeaderName, Request};

use super::header_list::{self, List};
use super::networks::{NetworkSet, Networks, Trust, TrustedProxies};
use super::options::{IpOptions, ip_extractor};
use super::peer_source::{Peer, PeerSource};
use super::proxy_warning::ProxyWarning;
use crate::error::ConfigError;
use crate::key::error::HeaderProblem;
use crate::key::header::{single_value, trimmed};
use crate::key::{KeyError, KeyExtractor};

const CLOUDFRONT: HeaderName = HeaderName::from_static("cloudfront-viewer-address");

/// The client's address behind proxies. Addresses are grouped by prefix, as with [`PeerIp`](super::PeerIp).
///
/// The address is read from one header, which is configured explicitly and never guessed. The guide lists the header
/// and the code for each deployment: [behind a proxy](crate::guide::proxy).
///
/// | the proxy | use | the client is |
/// |---|---|---|
/// | adds its peer to `X-Forwarded-For` | [`x_forwarded_for`](ClientIp::x_forwarded_for) | see below |
/// | adds its peer to `Forwarded` (RFC 7239) | [`forwarded`](ClientIp::forwarded) | see below |
/// | sets a single-address header | [`header`](ClientIp::header) | the only address in the only header of that name |
/// | is CloudFront | [`cloudfront`](ClientIp::cloudfront) | the only address in `CloudFront-Viewer-Address` |
///
/// `X-Forwarded-For` and `Forwarded` are lists. A list is read from the right, over all headers of that name, because
/// proxies write only the rightmost entries.
///
/// - With trusted **networks**, a peer outside these networks is the client, and no header is read. If the peer is
///   in one of the networks, the client is the first address from the right that is outside the networks. If all
///   addresses of the list are in the networks, the client is the leftmost address. If there is no header, the client
///   is the peer, which an [`allow`](ClientIp::allow) list may exempt.
/// - With *n* trusted **hops**, the client is the *n*th entry from the right.
///
/// An entry is an IPv4 or IPv6 address, with or without a port. `CloudFront-Viewer-Address` always has a port. The zone
/// of an address is dropped. An IPv4 address mapped into IPv6, or in an address of a NAT64, is an IPv4 address, as with
/// [`PeerIp`](super::PeerIp).
///
/// # Deployment caveat
///
/// A header is only as trustworthy as the proxy that writes it. Callers can choose their address in these cases:
///
/// - The proxy passes the header on unchanged, instead of adding the address of its peer to the list or overwriting the
///   single address.
/// - A trusted network contains callers.
/// - Callers can reach the server without going through the proxy, and the extractor trusts hops or reads a
///   single-address header. [`only_from`](ClientIp::only_from) excludes this case, because the peer's address is then
///   checked.
/// - The header is that of an outer proxy, and a caller can reach the inner proxy without going through the outer one.
///   The inner proxy must then overwrite the header.
///
/// The extraction logs a warning (feature `tracing`), at most once a minute for all clones of an extractor, when a peer
/// whose address is loopback, link-local or private sends the header, and its header is not read because it is not in
/// the networks that are trusted or given to [`only_from`](ClientIp::only_from): it may be a proxy, whose clients then
/// share a budget or, if an [`allow`](ClientIp::allow) list has its address, are not limited. The same warning is
/// logged when such a peer is trusted, and sends another header of proxies, and not this one. A peer that a
/// [`deny`](ClientIp::deny) list has is no warning. [`resolve`](ClientIp::resolve) logs nothing, and with
/// [`peer_from`](ClientIp::peer_from), no warning is logged.
///
/// # Errors
///
/// It is an error of the client (400) if the client's entry is not an address (`unknown`, an obfuscated name, an empty
/// entry), if there are fewer entries than hops, or if a single-address header occurs more than once. No other entry
/// and no other header is used instead. Each layer logs as a warning, at most once a minute, that lists have fewer
/// entries than hops, since a wrong number of hops causes the same error.
///
/// It is an error of the configuration if the header is missing, except with trusted networks. It is also an error of
/// the configuration if the extractor needs the peer and no extension contains the peer, or if the client is a peer
/// without an address. The layer's [`missing_key`](crate::RateLimitLayer::missing_key) determines what happens to such
/// a request.
///
/// ```
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle::key::{ClientIp, TrustedProxies};
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let by_client =
///     ClientIp::x_forwarded_for(TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"])?);
/// let layer = RateLimitLayer::new(by_client, TokenBucket::new(Quota::per_minute(100)));
/// # let _: axum::Router = axum::Router::new().layer(layer);
/// # Ok::<(), tower_throttle::error::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    source: Source,
    only_from: Option<Networks>,
    peer_source: PeerSource,
    options: IpOptions,
    warning: ProxyWarning,
}

#[derive(Clone, Debug)]
enum Source {
    List(List, TrustedProxies),
    Single(HeaderName),
    CloudFront,
}

impl ClientIp {
    /// Creates an extractor that reads `X-Forwarded-For`.
    #[must_use]
    pub fn x_forwarded_for(proxies: TrustedProxies) -> Self {
        Self::new(Source::List(List::XForwardedFor, proxies))
    }

    /// Creates an extractor that reads `Forwarded` (RFC 7239). An element of that header may have at most 16 pairs. The
    /// standard defines four pairs.
    #[must_use]
    pub fn forwarded(proxies: TrustedProxies) -> Self {
        Self::new(Source::List(List::Forwarded, proxies))
    }

    /// Creates an extractor that reads a header with a single address, such as `cf-connecting-ip`, `x-real-ip` or
    /// `fly-client-ip`.
    ///
    /// The proxy must overwrite whatever the caller sent in this header. Callers must not be able to reach the server
    /// without going through the proxy, unless [`only_from`](ClientIp::only_from) is set.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a header name, or if the header has a format and a constructor of its own:
    /// `x-forwarded-for`, `forwarded` and `cloudfront-viewer-address`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_throttle::key::ClientIp;
    ///
    /// let by_client = ClientIp::header("cf-connecting-ip")?;
    /// # Ok::<(), tower_throttle::error::ConfigError>(())
    /// ```
    pub fn header(name: &str) -> Result<Self, ConfigError> {
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            ConfigError::of_input(name, "is no header name: give one such as \"cf-connecting-ip\"")
        })?;
        let instead = match header.as_str() {
            "x-forwarded-for" => "x_forwarded_for",
            "forwarded" => "forwarded",
            "cloudfront-viewer-address" => "cloudfront",
            _ => return Ok(Self::new(Source::Single(header))),
        };
        Err(ConfigError::of_input(name, format_args!("has a form of its own: take `ClientIp::{instead}`")))
    }

    /// Creates an extractor that reads `CloudFront-Viewer-Address`, which contains one address and its port.
    #[must_use]
    pub fn cloudfront() -> Self {
        Self::new(Source::CloudFront)
    }

    fn new(source: Source) -> Self {
        let (peer_source, options) = (PeerSource::of_server(), IpOptions::new());
        Self { source, only_from: None, peer_source, options, warning: ProxyWarning::new() }
    }

    /// Reads the header only if the peer is in these networks. If the peer is in none of them, the request did not come
    /// through the proxies, and the peer is the client. If the method is called twice, only the networks of the last
    /// call count.
    ///
    /// ```
    /// use tower_throttle::key::{ClientIp, Networks};
    ///
    /// // the first of Cloudflare's networks; Cloudflare publishes the full list, which changes
    /// let cloudflare = Networks::new(["173.245.48.0/20", "103.21.244.0/22"])?;
    /// let by_client = ClientIp::header("cf-connecting-ip")?.only_from(cloudflare);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn only_from(mut self, networks: Networks) -> Self {
        self.only_from = Some(networks);
        self
    }

    /// Returns the key of callers from `address`, to peek at, refund or reset their usage.
    ///
    /// If this extractor is a part of an [`Or`](crate::key::Or), the layer has the key that
    /// [`first_key`](crate::key::Or::first_key) or [`second_key`](crate::key::Or::second_key) returns.
    #[must_use]
    pub fn key(&self, address: IpAddr) -> IpAddr {
        self.options.network(self.options.canonical(address))
    }

    /// Returns the client's address, without grouping it by prefix. Lists of [allowed](ClientIp::allow) or
    /// [denied](ClientIp::deny) networks do not affect the result. Logs nothing.
    ///
    /// # Errors
    ///
    /// Returns the errors of the [extractor](ClientIp).
    pub fn resolve<B>(&self, request: &Request<B>) -> Result<IpAddr, KeyError> {
        self.find(request)?.client.address()
    }

    fn find<B>(&self, request: &Request<B>) -> Result<Found, KeyError> {
        let (headers, extensions) = (request.headers(), request.extensions());
        if let Some(networks) = &self.only_from {
            let peer = self.peer(extensions)?;
            if !networks.contains_peer(peer) {
                return Ok(Found { client: peer, unread: Some(Unread::NotListed) });
            }
        }
        match &self.source {
            Source::List(list, proxies) => {
                // The peer is read before the list is locked. Reading the peer calls the function given to `peer_from`,
                // and this function might replace the list.
                let peer = self.peer(extensions);
                let entry = |element: &[u8]| self.entry(list.address(element), &list.name());
                proxies.with(|trust| match trust {
                    Trust::Networks(trusted) => {
                        let peer = peer?;
                        if trusted.contains_peer(peer) {
                            first_untrusted(*list, trusted, headers, peer, entry)
                        } else {
                            Ok(Found { client: peer, unread: Some(Unread::NotListed) })
                        }
                    }
                    Trust::Hops(count) => nth_hop(*list, *count, headers, entry).map(Found::read),
                })
            }
            Source::Single(name) => self.single(name, headers, header_list::address),
            Source::CloudFront => self.single(&CLOUDFRONT, headers, header_list::before_port),
        }
    }

    /// Logs a warning if a peer whose header was not read is probably a proxy.
    fn warn_if_unread(&self, unread: Unread, peer: Peer, is_limited: bool, headers: &HeaderMap) {
        // With `peer_from`, an outer layer may have found the address of the client.
        if !self.peer_source.is_server() {
            return;
        }
        if let Unread::Missing = unread {
            self.warning.warn_if_other(peer, is_limited, headers);
        } else {
            let name = match &self.source {
                Source::List(list, _) => list.name(),
                Source::Single(name) => name.clone(),
                Source::CloudFront => CLOUDFRONT,
            };
            self.warning.warn_if_unread(peer, is_limited, &name, headers);
        }
    }

    fn peer(&self, extensions: &Extensions) -> Result<Peer, KeyError> {
        self.peer_source.peer(extensions).map(|peer| self.options.canonical_peer(peer))
    }

    /// Returns the canonical address of an entry of the header `name`. Returns an error if the entry has none.
    fn entry(&self, address: Option<IpAddr>, name: &HeaderName) -> Result<IpAddr, KeyError> {
        self.options.entry(address).ok_or_else(|| KeyError::header(HeaderProblem::NoAddress, name))
    }

    /// Returns the address in the header `name`. Returns an error if the request does not have exactly one such header,
    /// or if its value is not an address.
    fn single(
        &self,
        name: &HeaderName,
        headers: &HeaderMap,
        address: fn(&[u8]) -> Option<IpAddr>,
    ) -> Result<Found, KeyError> {
        let value =
            single_value(name, headers)?.ok_or_else(|| KeyError::header(HeaderProblem::Missing, name))?;
        self.entry(address(trimmed(value.as_bytes())), name).map(Found::read)
    }
}

ip_extractor!(ClientIp);

impl<B> KeyExtractor<Request<B>> for ClientIp {
    type Key = IpAddr;

    #[inline]
    fn extract(&self, request: &Request<B>) -> Result<Option<IpAddr>, KeyError> {
        let Found { client, unread } = self.find(request)?;
        let key = self.options.key_of_peer(client)?;
        if let Some(unread) = unread {
            self.warn_if_unread(unread, client, key.is_some(), request.headers());
        }
        Ok(key)
    }
}

/// Why the header of a request is not read.
#[derive(Clone, Copy)]
enum Unread {
    /// The peer is not in the networks that are trusted or given to `only_from`.
    NotListed,
    /// The peer is trusted, and the request has no such header.
    Missing,
}

/// The client of a request.
struct Found {
    client: Peer,
    /// Why no header is read, if the client is the peer.
    unread: Option<Unread>,
}

impl Found {
    /// Creates the client whose address a header has.
    fn read(address: IpAddr) -> Self {
        Self { client: Peer::Ip(address), unread: None }
    }
}

/// Returns the first address from the right that is not trusted or, if all are trusted, the leftmost address. Without
/// any address, returns the peer, which is trusted.
fn first_untrusted(
    list: List,
    trusted: &NetworkSet,
    headers: &HeaderMap,
    peer: Peer,
    entry: impl Fn(&[u8]) -> Result<IpAddr, KeyError>,
) -> Result<Found, KeyError> {
    let mut last = Found { client: peer, unread: Some(Unread::Missing) };
    for element in list.elements(headers) {
        let address = entry(element)?;
        last = Found::read(address);
        if !trusted.contains(address) {
            break;
        }
    }
    Ok(last)
}

/// Returns the address in the entry that is number `count` from the right.
fn nth_hop(
    list: List,
    count: usize,
    headers: &HeaderMap,
    entry: impl Fn(&[u8]) -> Result<IpAddr, KeyError>,
) -> Result<IpAddr, KeyError> {
    let name = list.name();
    match list.elements(headers).nth(count - 1) {
        Some(element) => entry(element),
        None if headers.contains_key(&name) => Err(KeyError::header(HeaderProblem::TooFew, &name)),
        None => Err(KeyError::header(HeaderProblem::Missing, &name)),
    }
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
        // If the list were locked while `peer_from`'s function runs, this call would deadlock.
        assert_eq!(by_client.resolve(&request), Ok([192, 0, 2, 1].into()));
    }
}
