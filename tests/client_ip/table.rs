//! Tables of the client's address. A row has the peer, the lines of the header, and the result.
//!
//! Both the model and the crate are tested with these tables.

use std::net::IpAddr;

use tower_throttle::key::{ClientIp, Networks, TrustedProxies};

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
    Setup { source, only_from: None }
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

/// Tests header lines of one element each, as one proxy writes them.
fn elements(rows: &[(&'static [u8], &str)]) {
    let setup = of(Source::XForwardedFor(Trust::Hops(1)));
    for (element, answer) in rows {
        for line in
            [element.to_vec(), [b"  \t".as_slice(), element, b"\t "].concat(), [b"x,", *element].concat()]
        {
            let lines = vec![("x-forwarded-for", line)];
            asked(&setup, &Heard { peer: Peer::Absent, lines }, answer);
        }
    }
}

#[test]
fn valid_elements() {
    elements(&[
        (b"1.2.3.4", "1.2.3.4"),
        (b"0.0.0.1", "0.0.0.1"),
        (b"255.255.255.255", "255.255.255.255"),
        (b"127.0.0.1", "127.0.0.1"),
        (b"2001:db8::1", "2001:db8::1"),
        (b"2001:DB8::A", "2001:db8::a"),
        (b"2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::1"),
        (b"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"),
        (b"1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:0"),
        (b"::2:3:4:5:6:7:8", "0:2:3:4:5:6:7:8"),
        (b"::1", "::1"),
        (b"1::", "1::"),
        // Ports and brackets are removed.
        (b"1.2.3.4:1", "1.2.3.4"),
        (b"1.2.3.4:65535", "1.2.3.4"),
        (b"1.2.3.4:00080", "1.2.3.4"),
        (b"[2001:db8::1]", "2001:db8::1"),
        (b"[2001:db8::1]:443", "2001:db8::1"),
        // Without brackets, a port cannot be distinguished from a group.
        (b"2001:db8::1:443", "2001:db8::1:443"),
        // A zone is removed, too, because it has a meaning only on the machine that wrote it.
        (b"fe80::1%eth0", "fe80::1"),
        (b"fe80::1%25eth0", "fe80::1"),
        (b"fe80::1%2", "fe80::1"),
        (b"fe80::1%a-b.c_d~e", "fe80::1"),
        (b"[fe80::1%eth0]", "fe80::1"),
        (b"[fe80::1%eth0]:443", "fe80::1"),
        // An IPv4-mapped IPv6 address is treated as the IPv4 address.
        (b"::ffff:1.2.3.4", "1.2.3.4"),
        (b"::ffff:102:304", "1.2.3.4"),
        (b"::FFFF:1.2.3.4", "1.2.3.4"),
        (b"0:0:0:0:0:ffff:1.2.3.4", "1.2.3.4"),
        (b"[::ffff:1.2.3.4]:80", "1.2.3.4"),
        (b"::ffff:1.2.3.4%eth0", "1.2.3.4"),
        // These addresses contain an IPv4 address, but are not IPv4 addresses.
        (b"64:ff9b::1.2.3.4", "64:ff9b::102:304"),
        (b"2002:102:304::", "2002:102:304::"),
        (b"::1.2.3.4", "::102:304"),
        (b"::ffff:0:1.2.3.4", "::ffff:0:102:304"),
    ]);
}

#[test]
fn invalid_elements() {
    elements(&[
        (b"", ERROR),
        (b"unknown", ERROR),
        (b"_hidden", ERROR),
        (b"localhost", ERROR),
        (b"-", ERROR),
        (b"null", ERROR),
        // No client has these addresses.
        (b"0.0.0.0", ERROR),
        (b"::", ERROR),
        (b"[::]:80", ERROR),
        (b"::%eth0", ERROR),
        (b"::ffff:0.0.0.0", ERROR),
        // Some parsers read this as 8.8.8.8, others as 10.8.8.8.
        (b"010.8.8.8", ERROR),
        (b"1.2.3.04", ERROR),
        (b"00.0.0.1", ERROR),
        (b"0x1.0x2.0x3.0x4", ERROR),
        (b"0x01020304", ERROR),
        (b"16909060", ERROR),
        (b"1.2.3", ERROR),
        (b"127.1", ERROR),
        (b"1.2.3.4.5", ERROR),
        (b"1.2.3.4.", ERROR),
        (b".1.2.3.4", ERROR),
        (b"1..3.4", ERROR),
        (b"1.2.3.256", ERROR),
        (b"1.2.3.-4", ERROR),
        (b"+1.2.3.4", ERROR),
        (b"1.2.3.4/32", ERROR),
        (b"1.2.3. 4", ERROR),
        (b"1.2.3.4 5.6.7.8", ERROR),
        (b"1.2.3.4;5.6.7.8", ERROR),
        (b"for=1.2.3.4", ERROR),
        (b"http://1.2.3.4", ERROR),
        (b"\"1.2.3.4\"", ERROR),
        (b"\"[::1]:80\"", ERROR),
        // Invalid ports.
        (b"1.2.3.4:", ERROR),
        (b"1.2.3.4:0", ERROR),
        (b"1.2.3.4:00000", ERROR),
        (b"1.2.3.4:65536", ERROR),
        (b"1.2.3.4:70000", ERROR),
        (b"1.2.3.4:000080", ERROR),
        (b"1.2.3.4:+80", ERROR),
        (b"1.2.3.4:8o", ERROR),
        (b"1.2.3.4:http", ERROR),
        (b"1.2.3.4: 80", ERROR),
        (b"1.2.3.4 :80", ERROR),
        (b"1.2.3.4:80:80", ERROR),
        (b"[2001:db8::1]:0", ERROR),
        (b"[2001:db8::1]:70000", ERROR),
        (b"[2001:db8::1]:", ERROR),
        (b"[2001:db8::1]443", ERROR),
        (b"[2001:db8::1] :443", ERROR),
        // Invalid brackets.
        (b"[1.2.3.4]", ERROR),
        (b"[1.2.3.4]:80", ERROR),
        (b"[2001:db8::1", ERROR),
        (b"2001:db8::1]", ERROR),
        (b"2001:db8::1]:80", ERROR),
        (b"[]", ERROR),
        (b"[]:80", ERROR),
        (b"[[::1]]", ERROR),
        (b"[::1]]", ERROR),
        (b"[ ::1 ]", ERROR),
        (b"(::1)", ERROR),
        // Invalid zones.
        (b"1.2.3.4%eth0", ERROR),
        (b"1.2.3.4%eth0:80", ERROR),
        (b"fe80::1%", ERROR),
        (b"[fe80::1%]:80", ERROR),
        (b"[fe80::1]%eth0", ERROR),
        (b"fe80::1%eth 0", ERROR),
        (b"fe80::1%eth0/64", ERROR),
        (b"fe80::1%eth0:1", ERROR),
        (b"%eth0", ERROR),
        // Invalid IPv6.
        (b":", ERROR),
        (b":::", ERROR),
        (b"1::2::3", ERROR),
        (b"1:2:3:4:5:6:7", ERROR),
        (b"1:2:3:4:5:6:7:8:9", ERROR),
        (b"1:2:3:4::5:6:7:8", ERROR),
        (b":1:2:3:4:5:6:7:8", ERROR),
        (b"1:2:3:4:5:6:7:8:", ERROR),
        (b":1::", ERROR),
        (b"12345::", ERROR),
        (b"00001::", ERROR),
        (b"g::1", ERROR),
        (b"::1.2.3", ERROR),
        (b"::01.2.3.4", ERROR),
        (b"::ffff:1.2.3.256", ERROR),
        (b"1.2.3.4::", ERROR),
        (b"1:2:3:4:5:6:7:1.2.3.4", ERROR),
        (b"0x1::", ERROR),
        // Bytes that are not text, or not ASCII.
        (b"\xff", ERROR),
        (b"1.2.3.4\xff", ERROR),
        (b"\xa01.2.3.4", ERROR),
        (b"1\xc2\xb72.3.4", ERROR),
        // Characters that are digits in Unicode only.
        ("١.٢.٣.٤".as_bytes(), ERROR),
        ("１.2.3.4".as_bytes(), ERROR),
        ("fe80::1%é".as_bytes(), ERROR),
        (b"\xef\xbb\xbf1.2.3.4", ERROR),
    ]);
}

#[test]
fn x_forwarded_for_behind_trusted_networks() {
    let setup = of(Source::XForwardedFor(cidrs(&["10.0.0.0/8", "fd00::/8", "192.0.2.1"])));
    table(
        &setup,
        &[
            // A peer that is not trusted is treated as the client, and its header is not read.
            ("203.0.113.7", &[], "203.0.113.7"),
            ("203.0.113.7", &["1.2.3.4"], "203.0.113.7"),
            ("203.0.113.7", &["garbage, , \u{ff}"], "203.0.113.7"),
            ("203.0.113.7", &["10.0.0.1"], "203.0.113.7"),
            ("192.0.2.2", &["1.2.3.4"], "192.0.2.2"),
            ("::ffff:203.0.113.7", &["1.2.3.4"], "203.0.113.7"),
            ("2001:db8::1", &["1.2.3.4"], "2001:db8::1"),
            // A trusted peer without a header is treated as the client.
            ("10.0.0.1", &[], "10.0.0.1"),
            ("::ffff:10.0.0.1", &[], "10.0.0.1"),
            // The client is the first address from the right that is not trusted.
            ("10.0.0.1", &["1.2.3.4"], "1.2.3.4"),
            ("192.0.2.1", &["1.2.3.4"], "1.2.3.4"),
            ("::ffff:10.0.0.1", &["1.2.3.4"], "1.2.3.4"),
            ("fd00::1", &["1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6, 1.2.3.4, 10.0.0.2"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6, 1.2.3.4, 10.0.0.2, fd00::2, 192.0.2.1"], "1.2.3.4"),
            ("10.0.0.1", &["10.0.0.9, 1.2.3.4, 10.0.0.2"], "1.2.3.4"),
            ("10.0.0.1", &["1.2.3.4:5678,10.0.0.2:80"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6, ::ffff:1.2.3.4, ::ffff:10.0.0.2"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6, 2001:db8::1, [fd00::2]:80, fd00::3%eth0"], "2001:db8::1"),
            ("10.0.0.1", &[" \t1.2.3.4\t ,\t10.0.0.2 "], "1.2.3.4"),
            // Several lines are one list.
            ("10.0.0.1", &["6.6.6.6", "1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6, 1.2.3.4", "10.0.0.2"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6", "1.2.3.4", "10.0.0.2", "10.0.0.3, 10.0.0.4"], "1.2.3.4"),
            ("10.0.0.1", &["garbage", "1.2.3.4"], "1.2.3.4"),
            // The text to the left of the client's element can be anything.
            ("10.0.0.1", &["garbage, 1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &[",,,, 1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["\u{ff}\"\\, 1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["", "1.2.3.4"], "1.2.3.4"),
            // A broken element to the right of the client's element is an error, and is never skipped.
            ("10.0.0.1", &["garbage"], ERROR),
            ("10.0.0.1", &["1.2.3.4, garbage"], ERROR),
            ("10.0.0.1", &["1.2.3.4, unknown"], ERROR),
            ("10.0.0.1", &["1.2.3.4, garbage, 10.0.0.2"], ERROR),
            ("10.0.0.1", &["1.2.3.4, 0.0.0.0, 10.0.0.2"], ERROR),
            ("10.0.0.1", &["1.2.3.4,"], ERROR),
            ("10.0.0.1", &["1.2.3.4, "], ERROR),
            ("10.0.0.1", &["1.2.3.4,, 10.0.0.2"], ERROR),
            ("10.0.0.1", &[", 10.0.0.2"], ERROR),
            ("10.0.0.1", &[""], ERROR),
            ("10.0.0.1", &[" \t"], ERROR),
            ("10.0.0.1", &[","], ERROR),
            ("10.0.0.1", &["1.2.3.4", ""], ERROR),
            ("10.0.0.1", &["1.2.3.4", "", "10.0.0.2"], ERROR),
            ("10.0.0.1", &["1.2.3.4", "garbage", "10.0.0.2"], ERROR),
            // If all addresses are trusted, the leftmost one is the result.
            ("10.0.0.1", &["10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["10.0.0.4, 10.0.0.3, 10.0.0.2"], "10.0.0.4"),
            ("10.0.0.1", &["fd00::4%eth0", "10.0.0.3", "10.0.0.2"], "fd00::4"),
            // Without the address of the peer, it is not known whether the header can be trusted.
            (ABSENT, &["1.2.3.4"], ERROR),
            (UNIX, &["1.2.3.4"], ERROR),
            (ABSENT, &[], ERROR),
            (UNIX, &[], ERROR),
        ],
    );
}

#[test]
fn x_forwarded_for_of_hops() {
    table(
        &of(Source::XForwardedFor(Trust::Hops(1))),
        &[
            // The peer is the only trusted hop.
            ("203.0.113.7", &["1.2.3.4"], "1.2.3.4"),
            (ABSENT, &["1.2.3.4"], "1.2.3.4"),
            (UNIX, &["1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6", "1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["garbage,,", "\u{ff}, 1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &[], ERROR),
            ("10.0.0.1", &[""], ERROR),
            ("10.0.0.1", &["1.2.3.4,"], ERROR),
            ("10.0.0.1", &["1.2.3.4", ""], ERROR),
            ("10.0.0.1", &["1.2.3.4, unknown"], ERROR),
        ],
    );
    table(
        &of(Source::XForwardedFor(Trust::Hops(3))),
        &[
            ("10.0.0.1", &["6.6.6.6, 1.2.3.4, 5.6.7.8, 10.0.0.2"], "1.2.3.4"),
            ("10.0.0.1", &["6.6.6.6, 1.2.3.4", "5.6.7.8", "10.0.0.2"], "1.2.3.4"),
            ("10.0.0.1", &["1.2.3.4, 5.6.7.8", "10.0.0.2"], "1.2.3.4"),
            // Only the client's element is read, but all elements to its right are counted.
            ("10.0.0.1", &["1.2.3.4, garbage, \u{ff}"], "1.2.3.4"),
            ("10.0.0.1", &["1.2.3.4, , "], "1.2.3.4"),
            ("10.0.0.1", &["1.2.3.4", "", ""], "1.2.3.4"),
            ("10.0.0.1", &["1.2.3.4, garbage, 5.6.7.8, 10.0.0.2"], ERROR),
            ("10.0.0.1", &["1.2.3.4, , 5.6.7.8, 10.0.0.2"], ERROR),
            // Fewer elements than hops are an error.
            ("10.0.0.1", &["1.2.3.4, 5.6.7.8"], ERROR),
            ("10.0.0.1", &["1.2.3.4", "5.6.7.8"], ERROR),
            ("10.0.0.1", &["1.2.3.4"], ERROR),
            ("10.0.0.1", &[], ERROR),
        ],
    );
    table(&of(Source::XForwardedFor(Trust::Hops(usize::MAX))), &[("10.0.0.1", &["1.2.3.4,,,"], ERROR)]);
}

#[test]
fn forwarded_behind_trusted_networks() {
    let setup = of(Source::Forwarded(cidrs(&["10.0.0.0/8", "fd00::/8"])));
    table(
        &setup,
        &[
            ("203.0.113.7", &["for=1.2.3.4"], "203.0.113.7"),
            ("203.0.113.7", &["for=\""], "203.0.113.7"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["For=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["for=\"1.2.3.4\""], "1.2.3.4"),
            ("10.0.0.1", &["for=\"1.2.3.4:80\""], "1.2.3.4"),
            ("10.0.0.1", &["for=\"[2001:db8::1]\""], "2001:db8::1"),
            ("10.0.0.1", &["for=\"[2001:db8::1]:443\""], "2001:db8::1"),
            ("10.0.0.1", &["for=\"2001:db8::1\""], "2001:db8::1"),
            ("10.0.0.1", &["for=\"[fe80::1%eth0]:443\""], "fe80::1"),
            ("10.0.0.1", &["for=\"[::ffff:1.2.3.4]\""], "1.2.3.4"),
            ("10.0.0.1", &["for=6.6.6.6, for=1.2.3.4, for=10.0.0.2"], "1.2.3.4"),
            ("10.0.0.1", &["for=6.6.6.6", "for=1.2.3.4", "for=\"[fd00::2]\""], "1.2.3.4"),
            ("10.0.0.1", &["for=10.0.0.3, for=10.0.0.2"], "10.0.0.3"),
            // Other parameters, in any order.
            ("10.0.0.1", &["for=1.2.3.4;proto=https;by=10.0.0.1;host=example.com"], "1.2.3.4"),
            ("10.0.0.1", &["by=6.6.6.6;for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["proto=https ; \t for=1.2.3.4 ;host=\"a;b,c=d\""], "1.2.3.4"),
            ("10.0.0.1", &["secret=\"a\\\"b, for=6.6.6.6\";for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["x=\"\";for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["!#$%&'*+-.^_`|~=1;for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["x=\"\u{ff}\";for=1.2.3.4"], "1.2.3.4"),
            (
                "10.0.0.1",
                &["a=1;b=1;c=1;d=1;e=1;f=1;g=1;h=1;i=1;j=1;k=1;l=1;m=1;n=1;o=1;for=1.2.3.4"],
                "1.2.3.4",
            ),
            // Empty pairs are ignored.
            ("10.0.0.1", &[";for=1.2.3.4;;proto=https;"], "1.2.3.4"),
            ("10.0.0.1", &[" ; ; for=1.2.3.4"], "1.2.3.4"),
            // Escapes that are not necessary.
            ("10.0.0.1", &["for=\"1.2\\.3.4\""], "1.2.3.4"),
            ("10.0.0.1", &["for=\"\\1\\.\\2\\.\\3\\.\\4\""], "1.2.3.4"),
            // An extra quote or backslash does not affect the elements to its right.
            ("10.0.0.1", &["\", for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["for=\", for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["for=\"6.6.6.6, for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["for=\"6.6.6.6", "for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["x\\, for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["x=\"\\, for=1.2.3.4"], "1.2.3.4"),
            ("10.0.0.1", &["x=\"\\\", for=\"1.2.3.4\""], "1.2.3.4"),
            ("10.0.0.1", &["\", for=\"[2001:db8::1]:80\""], "2001:db8::1"),
            ("10.0.0.1", &["for=\", for=\"[2001:db8::1]:80\", for=10.0.0.2"], "2001:db8::1"),
            ("10.0.0.1", &["for=6.6.6.6;x=\"a, for=\"1.2.3.4\";y=\"b\""], "1.2.3.4"),
            ("10.0.0.1", &["garbage, , ==, for=1.2.3.4"], "1.2.3.4"),
            // Elements without an address, as the standard allows.
            ("10.0.0.1", &["for=unknown"], ERROR),
            ("10.0.0.1", &["for=_hidden"], ERROR),
            ("10.0.0.1", &["for=\"_gazonk\""], ERROR),
            ("10.0.0.1", &["for=\"1.2.3.4:_port\""], ERROR),
            ("10.0.0.1", &["for=6.6.6.6, for=unknown"], ERROR),
            ("10.0.0.1", &["for=6.6.6.6, for=unknown, for=10.0.0.2"], ERROR),
            // Invalid addresses, or invalid elements.
            ("10.0.0.1", &[""], ERROR),
            ("10.0.0.1", &[" "], ERROR),
            ("10.0.0.1", &["for=1.2.3.4,"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4, , for=10.0.0.2"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4", ""], ERROR),
            ("10.0.0.1", &[";"], ERROR),
            ("10.0.0.1", &["for"], ERROR),
            ("10.0.0.1", &["for="], ERROR),
            ("10.0.0.1", &["for=\"\""], ERROR),
            ("10.0.0.1", &["=1.2.3.4"], ERROR),
            ("10.0.0.1", &["1.2.3.4"], ERROR),
            ("10.0.0.1", &["proto=https"], ERROR),
            ("10.0.0.1", &["by=1.2.3.4"], ERROR),
            ("10.0.0.1", &["forr=1.2.3.4"], ERROR),
            ("10.0.0.1", &["for=0.0.0.0"], ERROR),
            ("10.0.0.1", &["for=\"[::]\""], ERROR),
            ("10.0.0.1", &["for=\"[1.2.3.4]\""], ERROR),
            ("10.0.0.1", &["for=1.2.3.4;for=1.2.3.4"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4;FOR=5.6.7.8"], ERROR),
            ("10.0.0.1", &["proto=http;for=1.2.3.4;Proto=https"], ERROR),
            (
                "10.0.0.1",
                &["a=1;b=1;c=1;d=1;e=1;f=1;g=1;h=1;i=1;j=1;k=1;l=1;m=1;n=1;o=1;p=1;for=1.2.3.4"],
                ERROR,
            ),
            ("10.0.0.1", &["for=1.2.3.4 proto=https"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4;proto"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4;proto="], ERROR),
            ("10.0.0.1", &["for=1.2.3.4;pr oto=https"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4;@=1"], ERROR),
            ("10.0.0.1", &["for =1.2.3.4"], ERROR),
            ("10.0.0.1", &["for= 1.2.3.4"], ERROR),
            ("10.0.0.1", &["for=\" 1.2.3.4\""], ERROR),
            // A colon or a bracket needs quotes.
            ("10.0.0.1", &["for=1.2.3.4:80"], ERROR),
            ("10.0.0.1", &["for=2001:db8::1"], ERROR),
            ("10.0.0.1", &["for=[2001:db8::1]"], ERROR),
            ("10.0.0.1", &["for=[2001:db8::1]:80"], ERROR),
            // Invalid quotes.
            ("10.0.0.1", &["\""], ERROR),
            ("10.0.0.1", &["for=\"1.2.3.4"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4\""], ERROR),
            ("10.0.0.1", &["for=\"1.2.3.4\"\""], ERROR),
            ("10.0.0.1", &["for=\"\"1.2.3.4\""], ERROR),
            ("10.0.0.1", &["for=\"1.2.3.4\"x"], ERROR),
            ("10.0.0.1", &["for=x\"1.2.3.4\""], ERROR),
            ("10.0.0.1", &["for='1.2.3.4'"], ERROR),
            ("10.0.0.1", &["for=\\1.2.3.4"], ERROR),
            ("10.0.0.1", &["for=\"1.2.3.4\\\""], ERROR),
            ("10.0.0.1", &["\"for\"=1.2.3.4"], ERROR),
            ("10.0.0.1", &["for=6.6.6.6, for=10.0.0.2, \""], ERROR),
            ("10.0.0.1", &["for=6.6.6.6, for=10.0.0.2;x=\""], ERROR),
            ("10.0.0.1", &["for=6.6.6.6", "for=\""], ERROR),
            ("10.0.0.1", &["for=6.6.6.6;x=\"\u{ff}\";for=1.2.3.4"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4;\u{ff}=1"], ERROR),
            (ABSENT, &["for=1.2.3.4"], ERROR),
            (UNIX, &["for=1.2.3.4"], ERROR),
        ],
    );
}

#[test]
fn forwarded_of_hops() {
    table(
        &of(Source::Forwarded(Trust::Hops(2))),
        &[
            ("203.0.113.7", &["for=1.2.3.4, for=5.6.7.8"], "1.2.3.4"),
            (UNIX, &["for=6.6.6.6, for=1.2.3.4, for=5.6.7.8"], "1.2.3.4"),
            (ABSENT, &["for=6.6.6.6", "for=1.2.3.4", "for=5.6.7.8"], "1.2.3.4"),
            ("10.0.0.1", &["for=\", for=\"[2001:db8::1]\"", "for=5.6.7.8"], "2001:db8::1"),
            // The text to the right of the client's element need not be well formed. Only its quotes matter, since they
            // decide how many elements there are.
            ("10.0.0.1", &["for=6.6.6.6, for=1.2.3.4, garbage"], "1.2.3.4"),
            ("10.0.0.1", &["for=6.6.6.6, for=1.2.3.4,"], "1.2.3.4"),
            ("10.0.0.1", &["for=6.6.6.6, for=1.2.3.4", ""], "1.2.3.4"),
            ("10.0.0.1", &["for=6.6.6.6, for=1.2.3.4, x=\"a, b\""], "1.2.3.4"),
            ("10.0.0.1", &["for=6.6.6.6, for=1.2.3.4", "x=\"a"], "1.2.3.4"),
            ("10.0.0.1", &["for=6.6.6.6, for=1.2.3.4", "x=\", a"], ERROR),
            ("10.0.0.1", &["for=6.6.6.6, for=1.2.3.4, x=\"a, b"], ERROR),
            ("10.0.0.1", &["for=6.6.6.6, for=unknown, for=5.6.7.8"], ERROR),
            ("10.0.0.1", &["for=6.6.6.6, proto=http, for=5.6.7.8"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4"], ERROR),
            ("10.0.0.1", &["for=1.2.3.4;for=5.6.7.8"], ERROR),
            ("10.0.0.1", &["for=\"1.2.3.4, for=5.6.7.8\""], ERROR),
            ("10.0.0.1", &[], ERROR),
        ],
    );
}

#[test]
fn a_header_with_one_address() {
    table(
        &of(Source::Header("cf-connecting-ip")),
        &[
            ("203.0.113.7", &["1.2.3.4"], "1.2.3.4"),
            (ABSENT, &["1.2.3.4"], "1.2.3.4"),
            (UNIX, &["1.2.3.4"], "1.2.3.4"),
            ("203.0.113.7", &[" 1.2.3.4\t"], "1.2.3.4"),
            ("203.0.113.7", &["2001:db8::1"], "2001:db8::1"),
            ("203.0.113.7", &["[2001:db8::1]:443"], "2001:db8::1"),
            ("203.0.113.7", &["1.2.3.4:80"], "1.2.3.4"),
            ("203.0.113.7", &["::ffff:1.2.3.4"], "1.2.3.4"),
            ("203.0.113.7", &[], ERROR),
            ("203.0.113.7", &[""], ERROR),
            ("203.0.113.7", &["unknown"], ERROR),
            ("203.0.113.7", &["0.0.0.0"], ERROR),
            ("203.0.113.7", &["1.2.3.4:0"], ERROR),
            // Whichever of the two the proxy wrote, the other one was forged.
            ("203.0.113.7", &["1.2.3.4", "5.6.7.8"], ERROR),
            ("203.0.113.7", &["1.2.3.4", "1.2.3.4"], ERROR),
            ("203.0.113.7", &["1.2.3.4", ""], ERROR),
            ("203.0.113.7", &["", "1.2.3.4"], ERROR),
            ("203.0.113.7", &["1.2.3.4, 5.6.7.8"], ERROR),
            ("203.0.113.7", &["1.2.3.4,"], ERROR),
            ("203.0.113.7", &[", 1.2.3.4"], ERROR),
        ],
    );
}

#[test]
fn the_header_of_cloudfront() {
    table(
        &of(Source::CloudFront),
        &[
            ("203.0.113.7", &["1.2.3.4:46532"], "1.2.3.4"),
            (ABSENT, &["1.2.3.4:46532"], "1.2.3.4"),
            ("203.0.113.7", &[" 1.2.3.4:46532 "], "1.2.3.4"),
            ("203.0.113.7", &["2001:db8::1:46532"], "2001:db8::1"),
            ("203.0.113.7", &["2001:db8:1:2:3:4:5:6:46532"], "2001:db8:1:2:3:4:5:6"),
            ("203.0.113.7", &["::1:1"], "::1"),
            ("203.0.113.7", &["::ffff:1.2.3.4:46532"], "1.2.3.4"),
            ("203.0.113.7", &["1:::80"], "1::"),
            ("203.0.113.7", &[":::80"], ERROR),
            ("203.0.113.7", &["0.0.0.0:80"], ERROR),
            // The port is mandatory.
            ("203.0.113.7", &["1.2.3.4"], ERROR),
            ("203.0.113.7", &["1.2.3.4:"], ERROR),
            ("203.0.113.7", &["1.2.3.4:0"], ERROR),
            ("203.0.113.7", &["1.2.3.4:65536"], ERROR),
            ("203.0.113.7", &["2001:db8:1:2:3:4:5:6"], ERROR),
            ("203.0.113.7", &["2001:db8::1:abcd"], ERROR),
            ("203.0.113.7", &["2001:db8::1:0"], ERROR),
            ("203.0.113.7", &["[2001:db8::1]:46532"], ERROR),
            ("203.0.113.7", &["1.2.3.4:80, 5.6.7.8:80"], ERROR),
            ("203.0.113.7", &["1.2.3.4:80", "1.2.3.4:80"], ERROR),
            ("203.0.113.7", &["unknown:80"], ERROR),
            ("203.0.113.7", &[":80"], ERROR),
            ("203.0.113.7", &["1.2.3.4:80\u{ff}"], ERROR),
            ("203.0.113.7", &[""], ERROR),
            ("203.0.113.7", &[], ERROR),
        ],
    );
}

#[test]
fn other_headers_are_not_read() {
    let lines: &[&str] = &[
        "x-forwarded-for: 6.6.6.1",
        "forwarded: for=6.6.6.2",
        "cf-connecting-ip: 6.6.6.3",
        "cloudfront-viewer-address: 6.6.6.4:80",
        "x-real-ip: 6.6.6.5",
        "true-client-ip: 6.6.6.6",
    ];
    let trust = || cidrs(&["10.0.0.0/8"]);
    table_of_lines(&of(Source::XForwardedFor(trust())), &[("10.0.0.1", lines, "6.6.6.1")]);
    table_of_lines(&of(Source::XForwardedFor(trust())), &[("10.0.0.1", &lines[1..], "10.0.0.1")]);
    table_of_lines(&of(Source::XForwardedFor(Trust::Hops(1))), &[("10.0.0.1", &lines[1..], ERROR)]);
    table_of_lines(&of(Source::Forwarded(trust())), &[("10.0.0.1", lines, "6.6.6.2")]);
    table_of_lines(&of(Source::Forwarded(trust())), &[("10.0.0.1", &lines[2..], "10.0.0.1")]);
    table_of_lines(&of(Source::Header("cf-connecting-ip")), &[("10.0.0.1", lines, "6.6.6.3")]);
    table_of_lines(&of(Source::Header("x-client-ip")), &[("10.0.0.1", lines, ERROR)]);
    table_of_lines(&of(Source::CloudFront), &[("10.0.0.1", lines, "6.6.6.4")]);
    table_of_lines(&of(Source::CloudFront), &[("10.0.0.1", &lines[..3], ERROR)]);
}

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
    let only_from = |list: &[&str], source| Setup { source, only_from: Some(strings(list)) };
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

/// The networks of a list, addresses that are in it, and addresses that are not.
type Held = (&'static [&'static str], &'static [&'static str], &'static [&'static str]);

#[test]
fn the_addresses_that_networks_contain() {
    let rows: &[Held] = &[
        (&[], &[], &["0.0.0.0", "127.0.0.1", "::1"]),
        (&["192.0.2.1"], &["192.0.2.1", "::ffff:192.0.2.1"], &["192.0.2.0", "192.0.2.2", "::c000:201"]),
        (&["2001:db8::1"], &["2001:db8::1"], &["2001:db8::", "2001:db8::2"]),
        (
            &["10.0.0.0/8"],
            &["10.0.0.0", "10.255.255.255", "::ffff:10.0.0.1"],
            &["9.255.255.255", "11.0.0.0", "::a00:1", "::ffff:11.0.0.0"],
        ),
        (&["10.128.0.0/9"], &["10.128.0.0", "10.255.255.255"], &["10.127.255.255", "11.0.0.0"]),
        (&["192.0.2.0/31"], &["192.0.2.0", "192.0.2.1"], &["192.0.2.2"]),
        (&["192.0.2.1/32"], &["192.0.2.1"], &["192.0.2.0"]),
        // All of one family, and none of the other.
        (&["0.0.0.0/0"], &["0.0.0.0", "255.255.255.255", "::ffff:1.2.3.4"], &["::", "::1", "::102:304"]),
        (&["::/0"], &["::", "::1", "ffff::", "64:ff9b::1.2.3.4"], &["1.2.3.4", "::ffff:1.2.3.4", "0.0.0.0"]),
        (&["2001:db8::/32"], &["2001:db8::", "2001:db8:ffff::1"], &["2001:db7::", "2001:db9::"]),
        (
            &["2001:db8:8000::/33"],
            &["2001:db8:8000::", "2001:db8:ffff::"],
            &["2001:db8:7fff::", "2001:db9::"],
        ),
        (&["::1/128"], &["::1"], &["::", "::2", "127.0.0.1"]),
        // A network of IPv4-mapped addresses is an IPv4 network.
        (&["::ffff:10.0.0.0/104"], &["10.1.2.3", "::ffff:10.1.2.3"], &["11.0.0.0", "::1"]),
        (&["::ffff:10.0.0.1"], &["10.0.0.1"], &["10.0.0.2"]),
        (&["::ffff:a00:0/104"], &["10.1.2.3"], &["11.0.0.0"]),
        (&["::ffff:0:0/96"], &["1.2.3.4", "::ffff:1.2.3.4"], &["::1", "2001:db8::1"]),
        (&["::ffff:0.0.0.0/97"], &["1.2.3.4", "127.0.0.1"], &["128.0.0.1"]),
        // Keywords.
        (
            &["loopback"],
            &["127.0.0.0", "127.255.255.255", "::1", "::ffff:127.0.0.1"],
            &["126.255.255.255", "128.0.0.0", "::", "::2", "10.0.0.1"],
        ),
        (
            &["private"],
            &[
                "127.0.0.1",
                "::1",
                "10.0.0.0",
                "10.255.255.255",
                "172.16.0.0",
                "172.31.255.255",
                "192.168.0.0",
                "192.168.255.255",
                "169.254.0.0",
                "169.254.255.255",
                "fc00::",
                "fdff::1",
                "fe80::",
                "febf::1",
                "::ffff:192.168.0.1",
            ],
            &[
                "0.0.0.0",
                "9.255.255.255",
                "11.0.0.0",
                "100.64.0.1",
                "169.253.255.255",
                "169.255.0.0",
                "172.15.255.255",
                "172.32.0.0",
                "192.167.255.255",
                "192.169.0.0",
                "::",
                "::2",
                "fbff::1",
                "fe00::1",
                "fe7f::1",
                "fec0::1",
                "2001:db8::1",
            ],
        ),
        (&["unix"], &[], &["0.0.0.0", "127.0.0.1", "::", "::1"]),
        (&["unix", "10.0.0.0/8", "::1"], &["10.0.0.1", "::1"], &["::2", "11.0.0.1"]),
        (&[" 10.0.0.0/8", "::1 ", "\tloopback\n"], &["10.1.0.0", "::1", "127.0.0.1"], &["11.1.0.0"]),
        (&["10.0.0.0/8", "10.0.0.0/8", "10.1.0.0/16"], &["10.1.0.0", "10.2.0.0"], &["11.1.0.0"]),
    ];
    for (list, held, others) in rows {
        let networks = Networks::new(list.iter().copied()).unwrap();
        for (ips, is_held) in [(held, true), (others, false)] {
            for ip in *ips {
                assert_eq!(networks.contains(ip.parse().unwrap()), is_held, "{list:?}, {ip}");
                if [&["0.0.0.0/0"][..], &["::/0"], &["::ffff:0:0/96"]].contains(list) {
                    assert!(TrustedProxies::cidrs(*list).is_err(), "{list:?} is everybody");
                    continue;
                }
                // The list of trusted proxies contains the same peers.
                let lines = vec![("x-forwarded-for", b"64:ff9b:1::1".to_vec())];
                let own = ip.parse::<IpAddr>().unwrap().to_canonical().to_string();
                let answer = if is_held { "64:ff9b:1::1" } else { &own };
                asked(&of(Source::XForwardedFor(cidrs(list))), &Heard { peer: peer(ip), lines }, answer);
            }
        }
    }
}

#[test]
fn invalid_networks() {
    for text in [
        "",
        " ",
        "/",
        "/8",
        "ten",
        "localhost",
        "example.com",
        "unix:",
        "10",
        "10.0.0",
        "10.0.0.0.0",
        "10.0.0.256",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/256",
        "10.0.0.0/08",
        "10.0.0.0/008",
        "10.0.0.0/00",
        "10.0.0.0/4294967304",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
        "10.0.0.0/8.0",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/0x8",
        "10.0.0.0 /8",
        "10.0.0.0/ 8",
        "010.0.0.0/8",
        "0x0a000000/8",
        "10.0.0.1:80",
        "10.0.0.0-10.0.0.9",
        "10.0.0.*",
        "10.0.0.1, 10.0.0.2",
        "[::1]",
        "[::1]:80",
        "[fd00::]/8",
        "fe80::1%eth0",
        "fd00::/129",
        "fd00::/-1",
        "fd00:/8",
        "::1::/128",
        // Bits beyond the prefix are an error in the address or in the prefix.
        "10.0.0.5/8",
        "10.0.0.1/31",
        "0.0.0.1/0",
        "2001:db8::1/64",
        "2001:db8::/31x",
        "2001:db8:8000::/32",
        "::1/0",
        // Networks that contain IPv4 and a part of IPv6.
        "::ffff:10.0.0.0/8",
        "::ffff:0:0/95",
        "::ffff:0.0.0.0/0",
        "::ffff:10.0.0.0/129",
        "::ffff:10.0.0.5/104",
    ] {
        assert!(Networks::new([text]).is_err(), "{text:?}");
        assert!(TrustedProxies::cidrs([text]).is_err(), "{text:?}");
        // An invalid network is not skipped.
        assert!(TrustedProxies::cidrs(["10.0.0.0/8", text, "::1"]).is_err(), "{text:?}");
        let setup = of(Source::XForwardedFor(cidrs(&[text])));
        assert!(Model::new(&setup, Mutant::Faithful).is_none(), "the model, {text:?}");
    }
}

#[test]
fn proxies_cannot_be_a_whole_family() {
    for (networks, are_all) in [
        (&["0.0.0.0/0"][..], true),
        (&["::/0"], true),
        (&["::ffff:0:0/96"], true),
        (&["0.0.0.0/1", "128.0.0.0/1"], true),
        (&["128.0.0.0/2", "192.0.0.0/2", "10.0.0.0/8", "0.0.0.0/1"], true),
        (&["8000::/1", "fd00::/8", "::/1"], true),
        (&["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/3"], false),
        (&["::/1", "8000::/2"], false),
        (&["0.0.0.0/1", "8000::/1"], false),
        (&["private", "unix"], false),
    ] {
        assert_eq!(TrustedProxies::cidrs(networks).is_err(), are_all, "{networks:?}");
        assert!(Networks::new(networks).is_ok(), "{networks:?}");
        let setup = of(Source::Forwarded(cidrs(networks)));
        assert_eq!(Model::new(&setup, Mutant::Faithful).is_none(), are_all, "the model, {networks:?}");
    }
}

#[test]
fn invalid_setups() {
    assert!(TrustedProxies::hops(0).is_err());
    assert!(TrustedProxies::hops(1).is_ok());
    assert!(TrustedProxies::hops(usize::MAX).is_ok());
    for name in [
        "x-forwarded-for",
        "X-Forwarded-For",
        "forwarded",
        "FORWARDED",
        "cloudfront-viewer-address",
        "CloudFront-Viewer-Address",
        "",
        "x real ip",
        "x-real-ip:",
        "x-réal-ip",
        "x\n",
    ] {
        assert!(ClientIp::header(name).is_err(), "{name:?}");
    }
    for name in
        ["cf-connecting-ip", "X-Real-IP", "True-Client-IP", "fly-client-ip", "x-envoy-external-address"]
    {
        assert!(ClientIp::header(name).is_ok(), "{name:?}");
    }
}

/// Tests that errors, which are logged, contain nothing that a caller wrote.
#[test]
fn errors_repeat_nothing_of_a_request() {
    let secrets = [
        "hunter2",
        "203.0.113.99",
        "198.51.100.77",
        "2001:db8:bad::1",
        "zqzq",
        "54321",
        "\u{ff}",
        "\u{fffd}",
    ];
    let lines: [&[u8]; 10] = [
        b"hunter2",
        b"203.0.113.99, hunter2",
        b"203.0.113.99:54321:54321",
        b"[2001:db8:bad::1]zqzq",
        b"for=hunter2;host=zqzq",
        b"for=203.0.113.99;for=198.51.100.77",
        b"for=\"hunter2",
        b"203.0.113.99%zqzq",
        b"198.51.100.77\xff",
        b"\xffzqzq, \xff",
    ];
    let trusts = || [cidrs(&["10.0.0.0/8"]), cidrs(&["unix"]), Trust::Hops(1), Trust::Hops(9)];
    let mut sources = vec![Source::Header("x-real-ip"), Source::CloudFront];
    sources.extend(trusts().map(Source::XForwardedFor));
    sources.extend(trusts().map(Source::Forwarded));
    let mut errors = 0;
    for source in sources {
        let setup = of(source);
        for peer in [Peer::Absent, Peer::Unix, peer("10.0.0.1")] {
            for line in lines {
                for times in [1, 2] {
                    let lines = vec![(setup.source.name(), line.to_vec()); times];
                    let request = adapter::request(&Heard { peer, lines }).unwrap();
                    let client = adapter::peer_said(adapter::client_ip(&setup).unwrap());
                    let Err(error) = client.resolve(&request) else { continue };
                    errors += 1;
                    let said = format!("{error} {error:?} {error:#?}").to_lowercase();
                    assert!(!secrets.iter().any(|secret| said.contains(secret)), "{said}");
                    assert!(!error.is_forbidden(), "{said}");
                }
            }
        }
    }
    assert!(errors > 300, "{errors}");
}
