//! One element of a header is read as an address, or is an error.

use super::{ERROR, asked, of};
use crate::model::{Heard, Peer, Source, Trust};

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
        (b"64:ff9b:1::1.2.3.4", "64:ff9b:1::102:304"),
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
