//! A fuzzer of `ClientIp`. For each input, `ClientIp` must return the same address as its naive model, or an error if
//! the model has one. The tests in `tests/client_ip` compare the model with tables.
#![no_main]

#[path = "../../tests/client_ip/adapter.rs"]
mod adapter;
#[path = "../../tests/client_ip/model.rs"]
mod model;

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use model::{Heard, Model, Mutant, Peer, Setup, Source, Trust};

const PEERS: [&str; 8] = [
    "10.0.0.1",
    "::ffff:10.0.0.1",
    "fd00::1",
    "127.0.0.1",
    "::1",
    "203.0.113.7",
    "::ffff:203.0.113.7",
    "2001:db8::1",
];
const NAMES: [&str; 4] = ["x-forwarded-for", "forwarded", "x-real-ip", "cloudfront-viewer-address"];

/// Decodes an input. The first three bytes are the source, the trust and the peer. Lines of text follow. The first byte
/// of a line tells what the line is: a trusted network (`+`), an entry of `only_from` (`-`), a peer (`!`), a value of a
/// header field with another name (`@`), or, with any other byte, a value of the source's header field. Returns `None`
/// if there are fewer than three bytes.
fn decoded(data: &[u8]) -> Option<(Setup, Heard)> {
    let [source, trust, peer, text @ ..] = data else { return None };
    let peer = match peer {
        b'-' => Peer::Absent,
        b'u' => Peer::Unix,
        number => Peer::At(PEERS[usize::from(*number) % PEERS.len()].parse().ok()?),
    };
    let name = NAMES[usize::from(*source) % NAMES.len()];
    let (mut trusted, mut only_from) = (Vec::new(), None);
    let mut heard = Heard { peer, lines: Vec::new() };
    for line in text.split(|byte| *byte == b'\n') {
        // Only the bytes that HTTP allows in a field value are kept.
        let line: Vec<u8> =
            line.iter().copied().filter(|byte| *byte >= b' ' && *byte != 0x7f || *byte == b'\t').collect();
        let rest = String::from_utf8_lossy(line.get(1..).unwrap_or_default()).into_owned();
        match line.first() {
            Some(b'+') => trusted.push(rest),
            Some(b'-') if rest.is_empty() => only_from = Some(Vec::new()),
            Some(b'-') => only_from.get_or_insert_default().push(rest),
            Some(b'!') => heard.peer = rest.parse::<IpAddr>().map_or(heard.peer, Peer::At),
            Some(b'@') => heard.lines.push((NAMES[rest.len() % NAMES.len()], line[1..].to_vec())),
            _ => heard.lines.push((name, line)),
        }
    }
    let trust = match trust % 16 {
        hops @ 0..4 => Trust::Hops(hops.into()),
        4 => Trust::Hops(usize::MAX),
        5..12 => {
            trusted.extend(["10.0.0.0/8", "fd00::/8"].map(str::to_owned));
            Trust::Cidrs(trusted)
        }
        _ => Trust::Cidrs(trusted),
    };
    let source = match name {
        "x-forwarded-for" => Source::XForwardedFor(trust),
        "forwarded" => Source::Forwarded(trust),
        "x-real-ip" => Source::Header(name),
        _ => Source::CloudFront,
    };
    Some((Setup { source, only_from, nat64: None }, heard))
}

fuzz_target!(|data: &[u8]| {
    let Some((setup, heard)) = decoded(data) else { return };
    let (model, client) = (Model::new(&setup, Mutant::Faithful), adapter::client_ip(&setup));
    assert_eq!(client.is_some(), model.is_some(), "{setup:?}");
    let (Some(client), Some(model)) = (client, model) else { return };
    let request = adapter::request(&heard).expect("the header is valid");
    let (found, expected) = (adapter::peer_said(client).resolve(&request), model.answer(&heard));
    assert_eq!(
        found.as_ref().ok(),
        expected.as_ref().ok().map(|(ip, _)| ip),
        "{setup:?}\n{heard:?}\nexpected: {expected:?}\nfound: {found:?}"
    );
});
