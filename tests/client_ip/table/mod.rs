//! Tables of the client's address. A row has the peer, the lines of the header, and the result.
//!
//! Both the model and the crate are tested with these tables.

mod elements;
mod errors;
mod forwarded;
mod nat64;
mod networks;
mod one_address;
mod peers;
mod x_forwarded_for;

use std::net::IpAddr;

use crate::adapter;
use crate::model::{Heard, Model, Mutant, Peer, Setup, Source, Trust};

/// A row: the peer, the lines, and the result.
type Row = (&'static str, &'static [&'static str], &'static str);

/// The result is an error.
const ERROR: &str = "an error";
/// A peer over a Unix socket.
const UNIX: &str = "unix";
/// A peer that the server does not report.
const ABSENT: &str = "absent";

fn peer(text: &str) -> Peer {
    match text {
        UNIX => Peer::Unix,
        ABSENT => Peer::Absent,
        ip => Peer::At(ip.parse().unwrap()),
    }
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn cidrs(list: &[&str]) -> Trust {
    Trust::Cidrs(strings(list))
}

fn of(source: Source) -> Setup {
    Setup { source, only_from: None, nat64: None }
}

fn asked(setup: &Setup, heard: &Heard, answer: &str) {
    let answer: Option<IpAddr> = (answer != ERROR).then(|| answer.parse().unwrap());
    let what = format!("{setup:?}\n{heard:?}");
    let model = Model::new(setup, Mutant::Faithful).unwrap().answer(heard);
    assert_eq!(model.ok().map(|(ip, _)| ip), answer, "the model, {what}");

    let request = adapter::request(heard).unwrap();
    let client = adapter::peer_said(adapter::client_ip(setup).unwrap());
    assert_eq!(client.resolve(&request).ok(), answer, "{what}");
    // The default lookup finds the same peer. Over a Unix socket, it finds none.
    if heard.peer != Peer::Unix {
        let client = adapter::client_ip(setup).unwrap();
        assert_eq!(client.resolve(&request).ok(), answer, "{what}");
    }
}

/// Tests lines of the header that is read.
fn table(setup: &Setup, rows: &[Row]) {
    for (from, lines, answer) in rows {
        let name = setup.source.name();
        let lines = lines.iter().map(|line| (name, line.as_bytes().to_vec())).collect();
        asked(setup, &Heard { peer: peer(from), lines }, answer);
    }
}

/// Tests lines of any header.
fn table_of_lines(setup: &Setup, rows: &[Row]) {
    for (from, lines, answer) in rows {
        let lines = lines.iter().map(|line| line.split_once(": ").unwrap());
        let lines = lines.map(|(name, value)| (name, value.as_bytes().to_vec())).collect();
        asked(setup, &Heard { peer: peer(from), lines }, answer);
    }
}
