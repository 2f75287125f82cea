//! Clients that forge headers, behind honest proxies. Whatever a client sends, the result is the client's own address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::{Heard, Model, Mutant, Peer, Setup, Source, Trust};
use crate::scale::scaled;
use crate::seed::Random;
use crate::{adapter, generators};

const CASES: u64 = 100_000;

/// The networks of the proxies' addresses.
const PROXIES: [&str; 3] = ["10.0.0.0/8", "fd00::/8", "192.0.2.1"];

/// The way a proxy changes the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyMode {
    /// The proxy appends the address of its peer.
    Appends,
    /// The proxy replaces the header by the address of its peer.
    Overwrites,
}

fn cidrs() -> Trust {
    Trust::Cidrs(PROXIES.map(str::to_owned).to_vec())
}

/// Asserts that the result is the client's address, through `proxies` proxies.
fn is_not_deceived(source: Source, proxies: u64, mode: ProxyMode) {
    is_not_deceived_by(&Setup { source, only_from: None, nat64: None }, proxies, mode);
}

fn is_not_deceived_by(setup: &Setup, proxies: u64, mode: ProxyMode) {
    let asked = adapter::peer_said(adapter::client_ip(setup).unwrap());
    for seed in 0..scaled(CASES) {
        let (client, heard) = request(seed, &setup.source, proxies, mode);
        let found = asked.resolve(&adapter::request(&heard).unwrap());
        let expected = client.to_canonical();
        assert_eq!(found.as_ref().ok(), Some(&expected), "seed {seed}: {setup:?}, {heard:?}: {found:?}");
    }
}

/// Returns a client, and the request that arrives from it.
fn request(seed: u64, source: &Source, proxies: u64, mode: ProxyMode) -> (IpAddr, Heard) {
    let mut random = Random::new(seed);
    let client = client(&mut random);
    let (mut from, mut lines) = (client, forged_lines(&mut random, source));
    for _ in 0..proxies {
        let said = said(&mut random, source, from);
        pass(&mut random, &mut lines, source.name(), said, mode);
        from = proxy(&mut random);
    }
    (client, Heard { peer: Peer::At(from), lines })
}

fn client(random: &mut Random) -> IpAddr {
    let word = random.word();
    match random.below(8) {
        // An address next to those of the proxies, or an address that might be mistaken for that of a proxy.
        0 => {
            let list =
                ["9.255.255.255", "11.0.0.0", "192.0.2.2", "127.0.0.1", "192.168.0.1", "::1", "fc00::1"];
            random.one_of(&list).parse().unwrap()
        }
        1..4 => match Ipv4Addr::from_bits(word as u32) {
            ip if ip.octets()[0] == 10 || ip.is_unspecified() || ip.octets() == [192, 0, 2, 1] => {
                client(random)
            }
            ip if random.one_in(2) => ip.to_ipv6_mapped().into(),
            ip => ip.into(),
        },
        4 => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(word & 3)).into(),
        _ => Ipv6Addr::from_bits((1 << 125) | u128::from(word) << 40 | u128::from(word >> 50)).into(),
    }
}

fn proxy(random: &mut Random) -> IpAddr {
    random.one_of(&["10.0.0.1", "10.9.8.7", "::ffff:10.0.0.1", "192.0.2.1", "fd00::1"]).parse().unwrap()
}

/// Returns random lines, often with text that could open or end a quote, an element or an address.
fn forged_lines(random: &mut Random, source: &Source) -> Vec<(&'static str, Vec<u8>)> {
    let mut lines = generators::lines(random, source);
    let mut name = source.name();
    if random.one_in(4) {
        name = random.one_of(&["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip"]);
    }
    let end: &[u8] = random.one_of(&[
        b"\"".as_slice(),
        b"\\",
        b"\\\"",
        b"\"\\",
        b"\"\\\\",
        b"for=\"",
        b"for=\"6.6.6.6",
        b"for=6.6.6.6;x=\"",
        b"for=6.6.6.6;x=\"\\",
        b"\", for=6.6.6.6, \"",
        b"[",
        b"6.6.6.6:",
        b"for=",
        b"for=6.6.6.6;",
        b",",
        b";",
        b"=",
        b" ",
        b"",
        b"\xff",
        b"6.6.6.6",
        b"for=6.6.6.6",
        b"10.0.0.1",
        b"for=10.0.0.1",
    ]);
    match (random.below(3), lines.last_mut()) {
        (0, _) => lines.push((name, end.to_vec())),
        (1, Some((_, line))) => line.extend(end),
        _ => {}
    }
    lines
}

/// Returns the element that an honest proxy writes: the address of its peer.
fn said(random: &mut Random, source: &Source, from: IpAddr) -> Vec<u8> {
    let port = random.within(1..=65535);
    let bare = from.to_string();
    if matches!(source, Source::CloudFront) {
        return format!("{bare}:{port}").into_bytes();
    }
    let text = match (from, random.below(4)) {
        (IpAddr::V4(_), 0) => format!("{bare}:{port}"),
        (IpAddr::V6(_), 0) => format!("[{bare}]:{port}"),
        (IpAddr::V6(_), 1) => format!("[{bare}]"),
        (IpAddr::V6(_), 2) => format!("{bare}%eth0"),
        _ => bare,
    };
    if !matches!(source, Source::Forwarded(_)) {
        return text.into_bytes();
    }
    let node = if text.contains([':', '%']) || random.one_in(4) { format!("\"{text}\"") } else { text };
    let pair = format!("{}={node}", random.one_of(&["for", "For"]));
    let (before, behind) = random.one_of(&[
        ("", ""),
        ("", ""),
        ("", ";proto=https;host=example.com"),
        ("proto=http;", ""),
        ("by=\"[fd00::1]:80\"; ", " ;host=\"a, b\""),
        ("", ";x=\"\\\"\";y=\"\\\\\""),
        ("secret=\"for=6.6.6.6, \";", ";"),
    ]);
    format!("{before}{pair}{behind}").into_bytes()
}

/// Adds the element in one of the ways of real proxies: in a new line, at the end of the last line, or with all lines
/// joined.
fn pass(
    random: &mut Random,
    lines: &mut Vec<(&'static str, Vec<u8>)>,
    name: &'static str,
    said: Vec<u8>,
    mode: ProxyMode,
) {
    let is_it = |(other, _): &(&'static str, Vec<u8>)| *other == name;
    let comma = random.one_of(&[b",".as_slice(), b", ", b", "]);
    match random.below(3) {
        _ if mode == ProxyMode::Overwrites => {
            lines.retain(|line| !is_it(line));
            lines.push((name, said));
        }
        0 => {
            let (old, others): (Vec<_>, Vec<_>) = lines.drain(..).partition(is_it);
            let mut all: Vec<Vec<u8>> = old.into_iter().map(|(_, line)| line).collect();
            all.push(said);
            lines.extend(others);
            lines.push((name, all.join(comma)));
        }
        1 => match lines.iter_mut().rfind(|line| is_it(line)) {
            Some((_, last)) => last.extend([comma, &said].concat()),
            None => lines.push((name, said)),
        },
        _ => lines.push((name, said)),
    }
}

#[test]
fn x_forwarded_for_through_a_trusted_proxy() {
    is_not_deceived(Source::XForwardedFor(cidrs()), 1, ProxyMode::Appends);
}

#[test]
fn x_forwarded_for_through_two_trusted_proxies() {
    is_not_deceived(Source::XForwardedFor(cidrs()), 2, ProxyMode::Appends);
}

#[test]
fn x_forwarded_for_through_a_hop() {
    is_not_deceived(Source::XForwardedFor(Trust::Hops(1)), 1, ProxyMode::Appends);
}

#[test]
fn x_forwarded_for_through_two_hops() {
    is_not_deceived(Source::XForwardedFor(Trust::Hops(2)), 2, ProxyMode::Appends);
}

#[test]
fn an_x_forwarded_for_that_the_proxy_overwrites() {
    is_not_deceived(Source::XForwardedFor(cidrs()), 1, ProxyMode::Overwrites);
    is_not_deceived(Source::XForwardedFor(Trust::Hops(1)), 1, ProxyMode::Overwrites);
}

#[test]
fn forwarded_through_a_trusted_proxy() {
    is_not_deceived(Source::Forwarded(cidrs()), 1, ProxyMode::Appends);
}

#[test]
fn forwarded_through_two_trusted_proxies() {
    is_not_deceived(Source::Forwarded(cidrs()), 2, ProxyMode::Appends);
}

#[test]
fn forwarded_through_a_hop() {
    is_not_deceived(Source::Forwarded(Trust::Hops(1)), 1, ProxyMode::Appends);
}

#[test]
fn forwarded_through_two_hops() {
    is_not_deceived(Source::Forwarded(Trust::Hops(2)), 2, ProxyMode::Appends);
}

#[test]
fn a_header_that_the_proxy_overwrites() {
    is_not_deceived(Source::Header("x-real-ip"), 1, ProxyMode::Overwrites);
}

#[test]
fn a_header_that_cloudfront_overwrites() {
    is_not_deceived(Source::CloudFront, 1, ProxyMode::Overwrites);
}

/// Tests clients that connect to the server directly. The result is the address of the client.
#[test]
fn straight_to_the_server() {
    let only_from = Some(PROXIES.map(str::to_owned).to_vec());
    for source in [Source::XForwardedFor(cidrs()), Source::Forwarded(cidrs())] {
        is_not_deceived(source, 0, ProxyMode::Appends);
    }
    for source in [
        Source::XForwardedFor(Trust::Hops(1)),
        Source::Forwarded(Trust::Hops(1)),
        Source::Header("x-real-ip"),
        Source::CloudFront,
    ] {
        let setup = Setup { source, only_from: only_from.clone(), nat64: None };
        is_not_deceived_by(&setup, 0, ProxyMode::Appends);
        // For a request through a proxy, the result is the client's address.
        is_not_deceived_by(&setup, 1, ProxyMode::Overwrites);
    }
}

/// Tests that the forged headers of these tests deceive mutants.
#[test]
fn mutants_are_deceived() {
    let is_deceived = |mutant, source: &Source, proxies| {
        let model =
            Model::new(&Setup { source: source.clone(), only_from: None, nat64: None }, mutant).unwrap();
        (0..1_000).any(|seed| {
            let (client, heard) = request(seed, source, proxies, ProxyMode::Appends);
            model.answer(&heard).map(|(ip, _)| ip) != Ok(client.to_canonical())
        })
    };
    for trust in [cidrs(), Trust::Hops(1)] {
        let (x_forwarded_for, forwarded) = (Source::XForwardedFor(trust.clone()), Source::Forwarded(trust));
        for source in [&x_forwarded_for, &forwarded] {
            assert!(!is_deceived(Mutant::Faithful, source, 1), "{source:?}");
            assert!(is_deceived(Mutant::Leftmost, source, 1), "{source:?}");
            assert!(is_deceived(Mutant::FirstLineOnly, source, 1), "{source:?}");
        }
        assert!(is_deceived(Mutant::QuotesFromTheLeft, &forwarded, 1), "{forwarded:?}");
    }
    for source in [Source::XForwardedFor(cidrs()), Source::Forwarded(cidrs())] {
        assert!(!is_deceived(Mutant::Faithful, &source, 0), "{source:?}");
        assert!(is_deceived(Mutant::PeerIsIgnored, &source, 0), "{source:?}");
    }
}
