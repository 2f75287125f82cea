//! A header that one proxy writes has exactly one address, and other headers are not read.

use super::{ABSENT, ERROR, UNIX, cidrs, of, table, table_of_lines};
use crate::model::{Source, Trust};

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
