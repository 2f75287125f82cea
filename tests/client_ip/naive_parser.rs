//! Addresses and networks as text, parsed step by step, without the parsers of the standard library.

use std::net::IpAddr;

/// An IPv4 or IPv6 address. An IPv4-mapped address is `V6` until it is made canonical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    V4(u32),
    V6(u128),
}

use Address::{V4, V6};

impl Address {
    /// Returns the IPv4 address if this is an IPv4-mapped address, or that of a client behind a NAT64 with the
    /// well-known prefix. Otherwise returns the address itself.
    pub(crate) fn canonical(self, lax: Lax) -> Self {
        let V6(bits) = self else { return self };
        let within = (bits & 0xffff_ffff) as u32;
        match bits >> 32 {
            0xffff if !lax.mapped_stays => V4(within),
            0x64_ff9b_0000_0000_0000_0000 if !lax.nat64_stays && (is_global(within) || lax.private_nat64) => {
                V4(within)
            }
            _ => self,
        }
    }

    /// Returns the IPv4 address within, if this is an address of the prefix of a NAT64.
    pub(crate) fn without(self, prefix: u128) -> Self {
        match self {
            V6(bits) if bits >> 32 == prefix >> 32 => V4((bits & 0xffff_ffff) as u32),
            other => other,
        }
    }

    pub(crate) fn is_no_client(self) -> bool {
        matches!(self, V4(0) | V6(0))
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => V4(ip.to_bits()),
            IpAddr::V6(ip) => V6(ip.to_bits()),
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        match address {
            V4(bits) => Self::from(bits.to_be_bytes()),
            V6(bits) => Self::from(bits.to_be_bytes()),
        }
    }
}

/// Returns whether an address is in none of the networks of RFC 6890, except for those of documentation.
fn is_global(bits: u32) -> bool {
    !matches!(
        bits.to_be_bytes(),
        [0 | 10 | 127 | 240..=255, ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 0, 0, _]
            | [192, 88, 99, _]
            | [192, 168, ..]
            | [198, 18 | 19, ..]
    )
}

/// Parses a number of at most `digits` digits.
fn number(text: &str, digits: usize, base: u32) -> Option<u32> {
    if text.is_empty() || text.len() > digits {
        return None;
    }
    let mut number = 0;
    for letter in text.chars() {
        number = number * base + letter.to_digit(base)?;
    }
    Some(number)
}

pub(crate) fn ipv4(text: &str, zeros_may_lead: bool) -> Option<u32> {
    let parts: Vec<&str> = text.split('.').collect();
    if parts.len() != 4 {
        return None;
    }
    let mut bits = 0;
    for part in parts {
        let octet = number(part, 3, 10)?;
        if octet > 255 || (octet.to_string() != part && !zeros_may_lead) {
            return None;
        }
        bits = bits << 8 | octet;
    }
    Some(bits)
}

/// Parses groups between colons. If `is_end` is true, the last two groups may be written as an IPv4 address.
fn groups(text: &str, is_end: bool) -> Option<Vec<u32>> {
    let mut groups = Vec::new();
    if text.is_empty() {
        return Some(groups);
    }
    let parts: Vec<&str> = text.split(':').collect();
    for (place, part) in parts.iter().enumerate() {
        if part.contains('.') && is_end && place == parts.len() - 1 {
            let bits = ipv4(part, false)?;
            groups.extend([bits >> 16, bits & 0xffff]);
        } else {
            groups.push(number(part, 4, 16)?);
        }
    }
    Some(groups)
}

pub(crate) fn ipv6(text: &str) -> Option<u128> {
    let halves: Vec<&str> = text.split("::").collect();
    let all = match halves[..] {
        [whole] => groups(whole, true)?,
        [left, right] => {
            let (left, right) = (groups(left, false)?, groups(right, true)?);
            // `::` stands for at least one group.
            let out = 8_usize.checked_sub(left.len() + right.len()).filter(|out| *out > 0)?;
            [left, vec![0; out], right].concat()
        }
        _ => return None,
    };
    if all.len() != 8 {
        return None;
    }
    Some(all.into_iter().fold(0, |bits, group| bits << 16 | u128::from(group)))
}

fn zoned(text: &str) -> Option<u128> {
    match text.split_once('%') {
        Some((address, zone)) => {
            let fits = |letter: char| letter.is_ascii_alphanumeric() || "-._~%".contains(letter);
            (!zone.is_empty() && zone.chars().all(fits)).then(|| ipv6(address))?
        }
        None => ipv6(text),
    }
}

fn is_port(text: &str) -> bool {
    number(text, 5, 10).is_some_and(|port| (1..=65535).contains(&port))
}

/// The faults of a mutant that reads an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lax {
    pub(crate) mapped_stays: bool,
    pub(crate) nat64_stays: bool,
    pub(crate) private_nat64: bool,
    pub(crate) zeros_may_lead: bool,
    pub(crate) any_port: bool,
    pub(crate) unspecified_is_valid: bool,
}

/// Parses an element of a list, which is an address with an optional port, zone and brackets.
pub(crate) fn element(text: &[u8], lax: Lax) -> Option<Address> {
    let text = str::from_utf8(text).ok()?;
    let (address, port) = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        (V6(zoned(inside)?), if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
    } else if text.matches(':').count() == 1 {
        let (address, port) = text.split_once(':')?;
        (V4(ipv4(address, lax.zeros_may_lead)?), Some(port))
    } else if text.contains(':') {
        (V6(zoned(text)?), None)
    } else {
        (V4(ipv4(text, lax.zeros_may_lead)?), None)
    };
    if port.is_some_and(|port| !is_port(port) && !lax.any_port) {
        return None;
    }
    validated(address, lax)
}

/// Parses the header of a CDN, which has an address, a colon and a port.
pub(crate) fn viewer(text: &[u8], lax: Lax) -> Option<Address> {
    let text = str::from_utf8(text).ok()?;
    let (address, port) = text.rsplit_once(':')?;
    if !is_port(port) && !lax.any_port {
        return None;
    }
    let address =
        if address.contains(':') { V6(zoned(address)?) } else { V4(ipv4(address, lax.zeros_may_lead)?) };
    validated(address, lax)
}

fn validated(address: Address, lax: Lax) -> Option<Address> {
    let address = address.canonical(lax);
    (lax.unspecified_is_valid || !address.is_no_client()).then_some(address)
}

/// Networks, and the keyword for Unix sockets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Networks {
    networks: Vec<(Address, u32)>,
    pub(crate) unix: bool,
}

const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1"];
const PRIVATE: [&str; 6] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10"];

impl Networks {
    pub(crate) fn new(list: &[String]) -> Option<Self> {
        let mut all = Self::default();
        for text in list {
            let words: Vec<&str> = match text.trim() {
                "unix" => {
                    all.unix = true;
                    continue;
                }
                "loopback" => LOOPBACK.to_vec(),
                "private" => [&LOOPBACK[..], &PRIVATE[..]].concat(),
                other => vec![other],
            };
            for word in words {
                all.networks.push(network(word)?);
            }
        }
        Some(all)
    }

    /// Returns whether the networks together contain all of IPv4 or all of IPv6. They do if they contain the first
    /// address, and the address after the end of each network.
    pub(crate) fn has_whole_family(&self) -> bool {
        let next = |(network, length): &(Address, u32)| match network {
            V4(bits) => u32::try_from(u64::from(*bits) + (1 << (32 - length))).ok().map(V4),
            V6(bits) => bits.checked_add(1_u128.checked_shl(128 - length)?).map(V6),
        };
        let is_v4 = |address: &Address| matches!(address, V4(_));
        [V4(0), V6(0)].into_iter().any(|first| {
            let family = self.networks.iter().filter(|(network, _)| is_v4(network) == is_v4(&first));
            self.contains(first) && family.filter_map(next).all(|address| self.contains(address))
        })
    }

    pub(crate) fn contains(&self, address: Address) -> bool {
        self.networks.iter().any(|(network, length)| match (network, address) {
            (V4(network), V4(address)) => is_same(32, *length, (*network).into(), address.into()),
            (V6(network), V6(address)) => is_same(128, *length, *network, address),
            _ => false,
        })
    }
}

/// Returns whether the first bits are equal, compared one by one.
fn is_same(width: u32, length: u32, one: u128, other: u128) -> bool {
    (0..length).all(|place| {
        let bit = width - 1 - place;
        (one >> bit) & 1 == (other >> bit) & 1
    })
}

/// Parses a prefix length, without leading zeros.
fn length_of(text: &str) -> Option<u32> {
    number(text, 3, 10).filter(|_| text == "0" || !text.starts_with('0'))
}

/// Parses the prefix of a NAT64, which has 96 bits.
pub(crate) fn prefix(text: &str) -> Option<u128> {
    let bits = ipv6(text.strip_suffix("/96")?)?;
    (bits & 0xffff_ffff == 0).then_some(bits)
}

fn network(text: &str) -> Option<(Address, u32)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length_of(length)?)),
        None => (text, None),
    };
    let address = match address.contains(':') {
        true => V6(ipv6(address)?),
        false => V4(ipv4(address, false)?),
    };
    let (width, bits) = match address {
        V4(bits) => (32, bits.into()),
        V6(bits) => (128, bits),
    };
    let length = length.unwrap_or(width);
    // All bits beyond the prefix must be zero.
    if length > width || (length..width).any(|place| (bits >> (width - 1 - place)) & 1 == 1) {
        return None;
    }
    // The canonical addresses of the network must be one network again, whose first and last address say so.
    let canonical = |host: u128| match address {
        V6(bits) => V6(bits | host).canonical(Lax::default()),
        V4(_) => address,
    };
    let hosts = if length == 0 { u128::MAX } else { (1_u128 << (width - length)) - 1 };
    if bits >> 32 == 0x64_ff9b_0000_0000_0000_0000 && length >= 96 {
        let is_v4 = |host: u32| matches!(canonical(host.into()), V4(_));
        // The edges of the networks of RFC 6890 have zeros in the last 8 bits.
        let all: Vec<bool> = (0..=hosts as u32).step_by(256).map(is_v4).collect();
        if all.iter().any(|one| *one != all[0]) {
            return None;
        }
    }
    match (address, canonical(0)) {
        (V6(_), V4(bits)) => Some((V4(bits), length.checked_sub(96)?)),
        _ => Some((address, length)),
    }
}
