//! Headers that are longer than any server accepts. If the work were quadratic in their length, these tests would not
//! finish.

use std::iter;

use crate::adapter;
use crate::model::{Heard, Model, Mutant, Peer, Setup, Source, Trust};
use crate::scale::scaled;

/// The sizes of headers, in bytes: a smaller and a larger one.
fn sizes() -> [usize; 2] {
    [100 << 10, 1 << 20].map(|size| scaled(size) as usize)
}

/// The parts of which the headers are made by repetition.
const PARTS: [&str; 30] = [
    ",",
    ", ",
    " ",
    "\t",
    ";",
    "\"",
    "\\",
    "\\\"",
    "\"\\",
    "\"\\\\\"",
    "\",",
    ",\"",
    "=",
    "for=",
    "for=,",
    "for=1;",
    "a=1;",
    "a=\"\";",
    "[",
    "]",
    ":",
    "::,",
    "%",
    "1",
    "1.",
    "10.0.0.1,",
    "10.0.0.1:80 ,\t",
    "for=10.0.0.1,",
    "for=\"10.0.0.1\", ",
    "for=10.0.0.1;x=\"\\\"\\\\,\", ",
];

/// The text to the left and to the right of the parts.
const ENDS: [(&str, &str); 8] = [
    ("", ""),
    ("1.2.3.4, ", "10.0.0.2"),
    ("", ", 1.2.3.4"),
    ("for=1.2.3.4, ", "for=10.0.0.2"),
    ("", ", for=\"1.2.3.4\""),
    ("\"", ""),
    ("", "\""),
    ("for=\"", "\", for=10.0.0.2"),
];

fn setups() -> Vec<Setup> {
    let trusts = || [Trust::Cidrs(vec!["10.0.0.0/8".into()]), Trust::Hops(1), Trust::Hops(5_000)];
    let mut sources = vec![Source::Header("x-real-ip"), Source::CloudFront];
    sources.extend(trusts().map(Source::XForwardedFor));
    sources.extend(trusts().map(Source::Forwarded));
    sources.into_iter().map(|source| Setup { source, only_from: None, nat64: None }).collect()
}

fn agree(what: &str, lines: &[Vec<u8>]) {
    for setup in setups() {
        let lines = lines.iter().map(|line| (setup.source.name(), line.clone())).collect();
        let heard = Heard { peer: Peer::At([10, 0, 0, 1].into()), lines };
        let found = adapter::peer_said(adapter::client_ip(&setup).unwrap())
            .resolve(&adapter::request(&heard).unwrap());
        let expected = Model::new(&setup, Mutant::Faithful).unwrap().answer(&heard);
        assert_eq!(found.ok(), expected.ok().map(|(ip, _)| ip), "{what}, {setup:?}");
    }
}

#[test]
fn a_long_line_is_read_as_by_the_model_and_to_its_end() {
    for size in sizes() {
        for part in PARTS {
            let ends = if size == sizes()[0] { &ENDS[..] } else { &ENDS[2..3] };
            for (left, right) in ends {
                let line = [left, part.repeat(size / part.len()).as_str(), right].concat();
                agree(&format!("{size} of {left:?}, {part:?}, {right:?}"), &[line.into_bytes()]);
            }
        }
    }
}

#[test]
fn many_lines_are_read_as_by_the_model_and_to_their_end() {
    for part in
        ["", ",", "\"", "\\", "10.0.0.1", "for=10.0.0.1", "for=\"10.0.0.1\"", "for=\"10.0.0.1", "garbage"]
    {
        for first in ["1.2.3.4", "for=1.2.3.4", "for=\"", ","] {
            let lines = iter::once(first).chain(iter::repeat_n(part, scaled(20_000) as usize));
            let lines: Vec<Vec<u8>> = lines.map(|line| line.as_bytes().to_vec()).collect();
            agree(&format!("{first:?}, {part:?}"), &lines);
        }
    }
}
