//! Requests that a client, a proxy or a broken proxy could send. Most of them are valid or nearly valid.

use std::net::IpAddr;

use crate::model::{Heard, Peer, Setup, Source, Trust};
use crate::seed::Random;

/// Addresses in [`HOME`], in several spellings.
const TRUSTED: [&str; 9] = [
    "64:ff9b::192.0.2.1",
    "2001:db8:64::10.0.0.1",
    "10.0.0.1",
    "10.255.255.255",
    "192.0.2.1",
    "fd00::1",
    "FD12:0:0::9",
    "::ffff:10.1.2.3",
    "::ffff:a00:1",
];
const OTHERS: [&str; 17] = [
    "1.2.3.4",
    "203.0.113.7",
    "9.255.255.255",
    "11.0.0.0",
    "192.0.2.2",
    "127.0.0.1",
    "192.168.0.1",
    "::1",
    "2001:db8::1",
    "fe80::1",
    "::ffff:198.51.100.7",
    "::ffff:b00:0",
    "::10.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b::198.51.100.7",
    "2001:db8:64::203.0.113.7",
    "2001:db8:64::",
];
const HOME: [&str; 3] = ["10.0.0.0/8", "fd00::/8", "192.0.2.1"];
const NETWORKS: [&str; 15] = [
    "unix",
    "loopback",
    "private",
    "::/0",
    "0.0.0.0/0",
    "::ffff:10.0.0.0/104",
    "::ffff:11.0.0.0",
    "203.0.113.0/29",
    "10.255.255.254/31",
    "2001:db8::/33",
    "fd00::/9",
    "::/96",
    "64:ff9b::203.0.113.0/120",
    "64:ff9b::192.168.0.0/112",
    "2001:db8:64::/97",
];
const GARBAGE: [&[u8]; 18] = [
    b"",
    b" ",
    b"unknown",
    b"_hidden",
    b"0.0.0.0",
    b"::",
    b"::ffff:0:0",
    b"010.8.8.8",
    b"10.0.0.01",
    b"0x0a000001",
    b"1.2.3",
    b"10.1",
    b"1.2.3.256",
    b"[10.0.0.1]",
    b"[::1",
    b"1:2:3:4:5:6:7:8:9",
    b"\xff",
    b"\"",
];
const PORTS: [&str; 6] = ["80", "1", "65535", "00443", "5000", "50000"];
const NO_PORTS: [&str; 8] = ["", "0", "00000", "65536", "70000", "000080", "+1", "http"];
const ZONES: [&str; 4] = ["eth0", "25eth0", "1", "a-b.c_d~e"];
const LETTERS: &[u8] = b",;:.=\"\\[]% \t0129abfFx_-/\xff\x80";
const NAMES: [&str; 7] = [
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "cf-connecting-ip",
    "cloudfront-viewer-address",
    "via",
    "host",
];

pub(crate) fn setup(random: &mut Random) -> Setup {
    let source = match random.below(20) {
        0..9 => Source::XForwardedFor(trust(random)),
        9..18 => Source::Forwarded(trust(random)),
        18 => Source::Header(random.one_of(&["x-real-ip", "cf-connecting-ip", "x-client"])),
        _ => Source::CloudFront,
    };
    let only_from = random.one_in(5).then(|| networks(random));
    let nat64 = random.one_in(3).then(|| random.one_of(&["2001:db8:64::/96", "64:ff9b::/96", "::/96"]));
    Setup { source, only_from, nat64 }
}

fn trust(random: &mut Random) -> Trust {
    match random.below(10) {
        0..8 => Trust::Cidrs(networks(random).into_iter().map(half).collect()),
        _ => Trust::Hops(random.one_of(&[1, 1, 2, 2, 3, 5])),
    }
}

/// Returns the lower half of a network that is a whole family, because a whole family is not accepted. Returns other
/// networks unchanged.
fn half(network: String) -> String {
    match network.strip_suffix("/0") {
        Some(family) => format!("{family}/1"),
        None => network,
    }
}

fn networks(random: &mut Random) -> Vec<String> {
    let mut list = if random.one_in(20) { Vec::new() } else { HOME.to_vec() };
    while random.one_in(3) {
        list.push(random.one_of(&NETWORKS));
    }
    list.into_iter().map(str::to_owned).collect()
}

pub(crate) fn heard(random: &mut Random, source: &Source) -> Heard {
    let ip = |text: &str| Peer::At(text.parse::<IpAddr>().unwrap());
    let peer = match random.below(40) {
        0 => Peer::Absent,
        1..4 => Peer::Unix,
        4..11 => ip(random.one_of(&OTHERS)),
        _ => ip(random.one_of(&TRUSTED)),
    };
    Heard { peer, lines: lines(random, source) }
}

/// Returns random header lines, mostly of the header that is read.
pub(crate) fn lines(random: &mut Random, source: &Source) -> Vec<(&'static str, Vec<u8>)> {
    let is_single = source.trust().is_none();
    let number = match random.below(if is_single { 12 } else { 24 }) {
        0 => 0,
        1..10 => 1,
        _ if is_single => 2,
        10..20 => 2,
        _ => 3,
    };
    // The percentage of elements that are trusted. With 100, the search for an untrusted element goes to the end of the
    // list.
    let trusted = random.one_of(&[50, 90, 100, 100]);
    let mut lines = Vec::new();
    for _ in 0..number {
        lines.push((source.name(), line(random, source, trusted)));
    }
    if random.one_in(4) {
        let place = random.within(0..=lines.len() as u64) as usize;
        lines.insert(place, (random.one_of(&NAMES), line(random, source, 50)));
    }
    lines
}

fn line(random: &mut Random, source: &Source, trusted: u64) -> Vec<u8> {
    let mut line = match source {
        Source::Header(_) => element(random, trusted),
        Source::CloudFront => viewer(random),
        Source::XForwardedFor(_) => listed(random, |random| element(random, trusted)),
        Source::Forwarded(_) => listed(random, |random| forwarded(random, trusted)),
    };
    if random.one_in(12) {
        mutate(random, &mut line);
    }
    if random.one_in(400) {
        line.clear();
    }
    line
}

fn listed(random: &mut Random, mut element: impl FnMut(&mut Random) -> Vec<u8>) -> Vec<u8> {
    let mut line = Vec::new();
    for place in 0..random.within(1..=4) {
        if place > 0 {
            line.extend(random.one_of(&[b",".as_slice(), b", ", b", ", b" ,\t", b"\t, "]));
        }
        line.extend(element(random));
    }
    line
}

/// Inserts, removes or changes a few bytes.
fn mutate(random: &mut Random, line: &mut Vec<u8>) {
    for _ in 0..random.within(1..=3) {
        let place = random.within(0..=line.len() as u64) as usize;
        let letter = random.one_of(LETTERS);
        match random.below(3) {
            0 => line.insert(place, letter),
            _ if place == line.len() => line.push(letter),
            1 => line[place] = letter,
            _ => {
                line.remove(place);
            }
        }
    }
}

fn element(random: &mut Random, trusted: u64) -> Vec<u8> {
    if random.one_in(25) {
        return random.one_of(&GARBAGE).to_vec();
    }
    let address = if random.below(100) < trusted { random.one_of(&TRUSTED) } else { random.one_of(&OTHERS) };
    spelled(random, address).into_bytes()
}

/// Returns the same address in one of the ways to write it.
pub(crate) fn spelled(random: &mut Random, address: &str) -> String {
    let port = if random.one_in(20) { random.one_of(&NO_PORTS) } else { random.one_of(&PORTS) };
    let zone = random.one_of(&ZONES);
    if !address.contains(':') {
        return match random.below(8) {
            0 | 1 => format!("{address}:{port}"),
            2 => format!("::ffff:{address}"),
            _ => address.to_owned(),
        };
    }
    match random.below(12) {
        0 | 1 => format!("[{address}]"),
        2 | 3 => format!("[{address}]:{port}"),
        4 => format!("{address}%{zone}"),
        5 => format!("[{address}%{zone}]:{port}"),
        6 => address.to_uppercase(),
        _ => address.to_owned(),
    }
}

fn viewer(random: &mut Random) -> Vec<u8> {
    if random.one_in(12) {
        return element(random, 50);
    }
    let address = if random.one_in(2) { random.one_of(&TRUSTED) } else { random.one_of(&OTHERS) };
    let port = if random.one_in(12) { random.one_of(&NO_PORTS) } else { random.one_of(&PORTS) };
    format!("{address}:{port}").into_bytes()
}

fn forwarded(random: &mut Random, trusted: u64) -> Vec<u8> {
    if random.one_in(60) {
        return random.one_of(&GARBAGE).to_vec();
    }
    let mut pairs: Vec<Vec<u8>> = Vec::new();
    if !random.one_in(60) {
        let name = random.one_of(&[b"for=".as_slice(), b"for=", b"for=", b"For=", b"FOR="]);
        let node = element(random, trusted);
        pairs.push([name, &value(random, &node)].concat());
    }
    while random.one_in(3) {
        let pair: &[u8] = random.one_of(&[
            b"proto=https".as_slice(),
            b"by=10.0.0.1",
            b"by=\"[2001:db8::1]:80\"",
            b"host=\"a, for=6.6.6.6\"",
            b"host=example.com",
            b"x=\"a\\\"b\"",
            b"x=\"\\\\\"",
            b"y=\"\"",
            b"z=\";for=6.6.6.6;\"",
            b"",
        ]);
        // Most pairs have different names.
        if !pairs.iter().any(|other| other.first() == pair.first()) || random.one_in(20) {
            let place = random.within(0..=pairs.len() as u64) as usize;
            pairs.insert(place, pair.to_vec());
        }
    }
    pairs.join(random.one_of(&[b";".as_slice(), b";", b" ; ", b";\t"]))
}

/// Returns the value, in quotes if it needs them. In quotes, some characters are escaped at random.
fn value(random: &mut Random, node: &[u8]) -> Vec<u8> {
    let needs_quotes = node.iter().any(|byte| b":[]% \"".contains(byte));
    if (needs_quotes && random.one_in(30)) || (!needs_quotes && !random.one_in(4)) {
        return node.to_vec();
    }
    let often = random.one_of(&[3, 1_000, 1_000, 1_000]);
    let mut quoted = vec![b'"'];
    for byte in node {
        if *byte == b'"' || random.one_in(often) {
            quoted.push(b'\\');
        }
        quoted.push(*byte);
    }
    quoted.push(b'"');
    quoted
}
