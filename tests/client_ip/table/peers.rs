//! The peer decides whether a header is read: over a Unix socket, and with a list of the peers that may send it.

use super::{ABSENT, ERROR, UNIX, asked, cidrs, of, peer, strings, table};
use crate::model::{Heard, Setup, Source, Trust};

#[test]
fn peers_over_unix_sockets() {
    let setup = of(Source::XForwardedFor(cidrs(&["unix", "10.0.0.0/8"])));
    table(
        &setup,
        &[
            (UNIX, &["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
            (UNIX, &["6.6.6.6, 1.2.3.4, 10.0.0.2"], "1.2.3.4"),
            (UNIX, &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            (UNIX, &["garbage"], ERROR),
            // The peer has no address that could be the result.
            (UNIX, &[], ERROR),
            (ABSENT, &["1.2.3.4"], ERROR),
            // The keyword matches only the peer, and never an address in a header.
            (UNIX, &["1.2.3.4, unix"], ERROR),
            ("10.0.0.1", &["1.2.3.4"], "1.2.3.4"),
            ("203.0.113.7", &["1.2.3.4"], "203.0.113.7"),
        ],
    );
    let setup = of(Source::Forwarded(cidrs(&["unix"])));
    table(
        &setup,
        &[
            (UNIX, &["for=6.6.6.6, for=1.2.3.4"], "1.2.3.4"),
            (UNIX, &[], ERROR),
            (UNIX, &["for=unix"], ERROR),
            ("203.0.113.7", &["for=1.2.3.4"], "203.0.113.7"),
        ],
    );
}

#[test]
fn only_from_restricts_the_peers_whose_header_is_read() {
    let only_from = |list: &[&str], source| Setup { source, only_from: Some(strings(list)), nat64: None };
    let sources = [
        (Source::XForwardedFor(Trust::Hops(1)), "1.2.3.4"),
        (Source::XForwardedFor(cidrs(&["0.0.0.0/1", "unix"])), "1.2.3.4"),
        (Source::Forwarded(Trust::Hops(1)), "for=1.2.3.4"),
        (Source::Forwarded(cidrs(&["0.0.0.0/1", "unix"])), "for=1.2.3.4"),
        (Source::Header("x-real-ip"), "1.2.3.4"),
        (Source::CloudFront, "1.2.3.4:80"),
    ];
    for (source, line) in sources {
        let rows = |list, rows: [(&str, &str); 6]| {
            for (from, answer) in rows {
                let lines = vec![(source.name(), line.as_bytes().to_vec())];
                asked(&only_from(list, source.clone()), &Heard { peer: peer(from), lines }, answer);
            }
        };
        rows(
            &["10.0.0.0/8"],
            [
                ("10.0.0.1", "1.2.3.4"),
                ("::ffff:10.0.0.1", "1.2.3.4"),
                ("203.0.113.7", "203.0.113.7"),
                ("::ffff:203.0.113.7", "203.0.113.7"),
                (UNIX, ERROR),
                (ABSENT, ERROR),
            ],
        );
        rows(
            &["unix", "10.0.0.1"],
            [
                ("10.0.0.1", "1.2.3.4"),
                ("10.0.0.2", "10.0.0.2"),
                ("::1", "::1"),
                ("203.0.113.7", "203.0.113.7"),
                (UNIX, "1.2.3.4"),
                (ABSENT, ERROR),
            ],
        );
        rows(
            &[],
            [
                ("10.0.0.1", "10.0.0.1"),
                ("127.0.0.1", "127.0.0.1"),
                ("::1", "::1"),
                ("2001:db8::1", "2001:db8::1"),
                (UNIX, ERROR),
                (ABSENT, ERROR),
            ],
        );
    }
    // The peer must be in both lists: it may send the header, and it is trusted to report another address.
    let setup = only_from(&["10.0.0.0/8"], Source::XForwardedFor(cidrs(&["10.1.0.0/16", "192.0.2.0/24"])));
    table(
        &setup,
        &[
            ("10.1.0.1", &["1.2.3.4, 192.0.2.1"], "1.2.3.4"),
            ("10.2.0.1", &["1.2.3.4, 192.0.2.1"], "10.2.0.1"),
            ("192.0.2.1", &["1.2.3.4, 192.0.2.1"], "192.0.2.1"),
        ],
    );
}
