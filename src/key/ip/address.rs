//! The syntax of one address as proxies write it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str;

/// Returns the canonical form of an address written as `v4`, `v4:port`, `v6`, `[v6]` or `[v6]:port`. An IPv6 address
/// may have a zone, which is dropped. Returns `None` if the element has another form, or is an unspecified address
/// (`0.0.0.0`, `::`), which no client has.
pub(super) fn address(element: &[u8]) -> Option<IpAddr> {
    let element = str::from_utf8(element).ok()?;
    let address = if let Some(inside) = element.strip_prefix('[') {
        let (address, port) = inside.rsplit_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        v6(address)?
    } else {
        match element.split_once(':') {
            Some((address, port)) if !port.contains(':') => v4(address).filter(|_| is_port(port))?,
            Some(_) => v6(element)?,
            None => v4(element)?,
        }
    };
    specified(address)
}

/// Returns the canonical form of the address before the last colon, if a port follows that colon. An IPv6 address must
/// be written without brackets. Returns `None` if the element has another form, or if the address is unspecified.
pub(super) fn before_port(element: &[u8]) -> Option<IpAddr> {
    let (address, port) = str::from_utf8(element).ok()?.rsplit_once(':')?;
    specified(v4(address).or_else(|| v6(address)).filter(|_| is_port(port))?)
}

/// Removes spaces and tabs at both ends.
pub(super) fn trimmed(mut element: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = element {
        element = rest;
    }
    element
}

fn specified(address: IpAddr) -> Option<IpAddr> {
    let canonical = address.to_canonical();
    (!canonical.is_unspecified()).then_some(canonical)
}

/// Parses an IPv4 address. std accepts four decimal numbers without leading zeros, and nothing else.
fn v4(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn v6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((address, zone)) if is_zone(zone) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// Returns whether `text` has only the characters of a zone in a URI (RFC 6874): unreserved characters and `%`. Percent
/// encodings are not checked, because the zone is dropped.
fn is_zone(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

fn is_port(text: &str) -> bool {
    (1..=5).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && text.parse::<u16>().is_ok_and(|port| port > 0)
}
