//! IPv4 addresses within IPv6 addresses: those that are mapped, and those of translators (NAT64, and SIIT).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// The first 96 bits of the well-known prefix `64:ff9b::/96` (RFC 6052, section 2.1).
const WELL_KNOWN: u128 = 0x0064_ff9b << 64;

/// The networks of RFC 6890, except for those of documentation. A translator must not write their addresses with the
/// well-known prefix (RFC 6052, section 3.1): `64:ff9b::10.0.0.1` is a client of another private network, and
/// not a proxy at `10.0.0.1`.
const NOT_GLOBAL: [([u8; 4], u8); 11] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([240, 0, 0, 0], 4),
];

fn not_global() -> impl Iterator<Item = Ipv4Net> {
    NOT_GLOBAL.iter().filter_map(|(address, length)| Ipv4Net::new((*address).into(), *length).ok())
}

/// Returns the IPv4 address within an IPv6 address that is mapped, or that has the well-known prefix of NAT64 and is
/// global. Returns any other address as it is.
#[inline]
pub(super) fn canonical(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => match within(WELL_KNOWN, v6) {
            Some(v4) if !not_global().any(|network| network.contains(&v4)) => v4.into(),
            _ => address,
        },
        v4 => v4,
    }
}

/// Returns the IPv4 address within an address whose first 96 bits are `prefix`.
#[inline]
pub(super) fn within(prefix: u128, address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    (bits >> 32 == prefix).then_some(Ipv4Addr::from_bits(bits as u32))
}

/// Returns the first 96 bits of a prefix of 96 bits.
pub(super) fn prefix(text: &str) -> Option<u128> {
    let network: Ipv6Net = text.trim().parse().ok()?;
    let is_prefix = network.prefix_len() == 96 && network.addr() == network.network();
    is_prefix.then_some(network.addr().to_bits() >> 32)
}

/// Returns the networks of those addresses of a network within the well-known prefix that stay IPv6 addresses, because
/// they are not global. Returns `None` if the network is not within the prefix.
pub(super) fn not_converted(network: Ipv6Net) -> Option<Vec<Ipv6Net>> {
    let v4 = within(WELL_KNOWN, network.network())?;
    let v4 = Ipv4Net::new(v4, network.prefix_len().checked_sub(96)?).ok()?;
    let common = |other: Ipv4Net| match (v4.contains(&other), other.contains(&v4)) {
        (false, false) => None,
        (true, _) => Some(other),
        (_, true) => Some(v4),
    };
    let v6 = |v4: Ipv4Net| {
        let bits = WELL_KNOWN << 32 | u128::from(v4.network().to_bits());
        Ipv6Net::new(Ipv6Addr::from_bits(bits), v4.prefix_len() + 96).ok()
    };
    Some(not_global().filter_map(common).filter_map(v6).collect())
}
