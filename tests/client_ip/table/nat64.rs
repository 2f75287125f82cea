//! Clients behind a NAT64 or a stateless translator (SIIT). Without conversion, all clients behind one with the
//! well-known prefix would share a /64.
//!
//! RFC 6052, section 2.1, reserves `64:ff9b::/96`, and section 3.1 says: "The Well-Known Prefix MUST NOT be used to
//! represent non-global IPv4 addresses, such as those defined in RFC 1918."

use std::net::{IpAddr, SocketAddr};

use http::Request;
use tower_throttle::key::{ClientIp, KeyExtractor, Networks, PeerIp, TrustedProxies};

use super::{ERROR, Row, cidrs, of, table};
use crate::model::{Model, Mutant, Setup, Source};

/// The prefix of an operator's own NAT64.
const OWN: &str = "2001:db8:64::/96";

fn peer(address: &str) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::new(address.parse().unwrap(), 50_000));
    request
}

fn said(address: &str) -> Request<()> {
    let mut request = peer("127.0.0.1");
    request.headers_mut().insert("x-forwarded-for", address.parse().unwrap());
    request
}

/// Asserts the key of a peer and of a client behind a proxy: without an option, and with a prefix of one's own.
#[test]
fn clients_behind_a_nat64_have_a_budget_each() {
    let behind = || ClientIp::x_forwarded_for(TrustedProxies::loopback());
    let own = (PeerIp::new().nat64_prefix(OWN).unwrap(), behind().nat64_prefix(OWN).unwrap());
    for (address, usual, with_own) in [
        ("192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1"),
        // The well-known prefix, with global addresses.
        ("64:ff9b::8.8.8.8", "8.8.8.8", "8.8.8.8"),
        ("64:ff9b::192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("64:ff9b::198.51.100.1", "198.51.100.1", "198.51.100.1"),
        ("64:ff9b::203.0.113.1", "203.0.113.1", "203.0.113.1"),
        ("64:ff9b::100.128.0.0", "100.128.0.0", "100.128.0.0"),
        ("64:ff9b::172.32.0.0", "172.32.0.0", "172.32.0.0"),
        ("64:ff9b::198.20.0.0", "198.20.0.0", "198.20.0.0"),
        // The well-known prefix, with addresses that are not global.
        ("64:ff9b::0.0.0.1", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::10.0.0.1", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::100.64.0.1", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::127.0.0.1", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::169.254.169.254", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::172.31.255.255", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::192.0.0.1", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::192.88.99.1", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::192.168.0.1", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::198.19.255.255", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::240.0.0.1", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b::255.255.255.255", "64:ff9b::", "64:ff9b::"),
        // The prefix of one's own, with any address.
        ("2001:db8:64::192.0.2.1", "2001:db8:64::", "192.0.2.1"),
        ("2001:db8:64::10.0.0.1", "2001:db8:64::", "10.0.0.1"),
        // Neither prefix: the next network, the prefix for local use (RFC 8215), and 6to4.
        ("64:ff9b::1:c000:201", "64:ff9b::", "64:ff9b::"),
        ("64:ff9b:1::192.0.2.1", "64:ff9b:1::", "64:ff9b:1::"),
        ("2001:db8:64::1:c000:201", "2001:db8:64::", "2001:db8:64::"),
        ("2002:c000:201::1", "2002:c000:201::", "2002:c000:201::"),
    ] {
        let (parsed, [usual, with_own]): (IpAddr, [IpAddr; 2]) =
            (address.parse().unwrap(), [usual, with_own].map(|key| key.parse().unwrap()));
        assert_eq!(PeerIp::new().extract(&peer(address)), Ok(Some(usual)), "{address}");
        assert_eq!(behind().extract(&said(address)), Ok(Some(usual)), "{address}");
        assert_eq!([PeerIp::new().key(parsed), behind().key(parsed)], [usual; 2], "{address}");
        assert_eq!(own.0.extract(&peer(address)), Ok(Some(with_own)), "{address}");
        assert_eq!(own.1.extract(&said(address)), Ok(Some(with_own)), "{address}");
        assert_eq!([own.0.key(parsed), own.1.key(parsed)], [with_own; 2], "{address}");
    }
}

#[test]
fn an_address_of_a_nat64_is_no_trusted_proxy_unless_the_prefix_is_ones_own() {
    let rows: [Row; 6] = [
        ("10.0.0.1", &["6.6.6.6, 64:ff9b::192.0.2.1"], "6.6.6.6"),
        ("64:ff9b::192.0.2.1", &["6.6.6.6"], "6.6.6.6"),
        ("64:ff9b::10.0.0.1", &["6.6.6.6"], "64:ff9b::a00:1"),
        ("10.0.0.1", &["6.6.6.6, 64:ff9b::10.0.0.1"], "64:ff9b::a00:1"),
        ("2001:db8:64::10.0.0.1", &["6.6.6.6"], "2001:db8:64::a00:1"),
        ("10.0.0.1", &["6.6.6.6, [2001:db8:64::10.0.0.1]:80"], "2001:db8:64::a00:1"),
    ];
    let usual = of(Source::XForwardedFor(cidrs(&["10.0.0.0/8", "192.0.2.0/24"])));
    table(&usual, &rows);
    let mut rows = rows;
    rows[4].2 = "6.6.6.6";
    rows[5].2 = "6.6.6.6";
    table(&Setup { nat64: Some(OWN), ..usual.clone() }, &rows);
    // No client has the address 0.0.0.0.
    let unspecified: [Row; 2] =
        [("10.0.0.1", &["2001:db8:64::"], ERROR), ("10.0.0.1", &["64:ff9b::"], "64:ff9b::")];
    table(&Setup { nat64: Some(OWN), ..usual }, &unspecified);
}

#[test]
fn a_list_of_networks_has_the_addresses_that_clients_have() {
    for (entry, listed, contained, others) in [
        (
            "64:ff9b::192.0.2.0/120",
            "192.0.2.0/24",
            ["192.0.2.7", "64:ff9b::192.0.2.7"],
            ["192.0.3.1", "64:ff9b::192.0.3.1"],
        ),
        ("64:ff9b::8.8.8.8", "8.8.8.8", ["8.8.8.8", "64:ff9b::8.8.8.8"], ["8.8.8.9", "64:ff9b::8.8.8.9"]),
        ("8.0.0.0/8", "8.0.0.0/8", ["8.8.8.8", "64:ff9b::8.8.8.8"], ["9.0.0.0", "64:ff9b::9.0.0.0"]),
        // Addresses that are not global stay what they are.
        (
            "64:ff9b::10.0.0.0/104",
            "64:ff9b::a00:0/104",
            ["64:ff9b::10.0.0.1", "64:ff9b::10.255.255.255"],
            ["10.0.0.1", "64:ff9b::11.0.0.1"],
        ),
        ("10.0.0.0/8", "10.0.0.0/8", ["10.0.0.1", "::ffff:10.0.0.1"], ["64:ff9b::10.0.0.1", "11.0.0.0"]),
        // As with IPv4 addresses mapped into IPv6, a larger network has none of them.
        ("::/0", "::/0", ["2001:db8::1", "64:ff9b::10.0.0.1"], ["64:ff9b::192.0.2.1", "192.0.2.1"]),
        (
            "64:ff9b::/64",
            "64:ff9b::/64",
            ["64:ff9b::1:0:0", "64:ff9b::10.0.0.1"],
            ["64:ff9b::192.0.2.1", "192.0.2.1"],
        ),
    ] {
        let networks = Networks::new([entry]).unwrap();
        assert_eq!(networks.list(), [(listed.to_owned(), None)], "{entry}");
        for (addresses, expected) in [(contained, true), (others, false)] {
            for address in addresses {
                assert_eq!(networks.contains(address.parse().unwrap()), expected, "{entry}: {address}");
            }
        }
    }
    // The list knows nothing of a prefix of one's own.
    let networks = Networks::new(["10.0.0.0/8"]).unwrap();
    assert!(!networks.contains("2001:db8:64::10.0.0.1".parse().unwrap()));
    let denied = PeerIp::new().deny(networks).nat64_prefix(OWN).unwrap();
    assert!(denied.extract(&peer("2001:db8:64::10.0.0.1")).unwrap_err().is_forbidden());
}

#[test]
fn an_entry_with_addresses_of_both_kinds_is_an_error_that_says_so() {
    for entry in ["64:ff9b::/96", "64:ff9b::/97", "64:ff9b::172.0.0.0/104"] {
        let error = Networks::new([entry]).unwrap_err().to_string();
        assert!(error.contains(entry) && error.contains("IPv4 addresses within"), "{error}");
        let setup = of(Source::XForwardedFor(cidrs(&[entry])));
        assert!(Model::new(&setup, Mutant::Faithful).is_none(), "the model, {entry}");
    }
}

/// What is left of a network is listed by entries that mean the same.
#[test]
fn the_list_of_what_is_left_of_a_network_can_be_read_again() {
    for (network, removed) in [
        ("::/0", "2001:db8::/32"),
        ("::/0", "64:ff9b::10.1.0.0/112"),
        ("::/0", "64:ff9b:0:0:0:1::/96"),
        ("64:ff9b::/64", "64:ff9b:0:0:0:1::/96"),
        ("64:ff9b::10.0.0.0/104", "64:ff9b::10.1.0.0/112"),
    ] {
        let rest = Networks::new([network]).unwrap();
        rest.remove(removed).unwrap();
        let anew = Networks::new(rest.list().iter().map(|(network, _)| network)).unwrap();
        for address in [
            "64:ff9b::10.0.0.1",
            "64:ff9b::10.1.0.1",
            "64:ff9b::192.168.0.1",
            "64:ff9b::192.0.2.1",
            "64:ff9b::1:0:1",
            "2001:db8::1",
            "2001:db7::1",
            "10.0.0.1",
            "192.0.2.1",
        ] {
            let address = address.parse().unwrap();
            assert_eq!(rest.contains(address), anew.contains(address), "{network} - {removed}: {address}");
        }
        assert!(!anew.contains("192.0.2.1".parse().unwrap()), "{network} - {removed}: {anew:?}");
    }
}

#[test]
fn a_prefix_of_ones_own_has_96_bits() {
    for prefix in
        ["2001:db8:64::", "2001:db8:64::/64", "2001:db8:64::1/96", "10.0.0.0/8", "::/128", "", "x/96"]
    {
        let error = PeerIp::new().nat64_prefix(prefix).unwrap_err().to_string();
        assert!(error.contains("2001:db8:64::/96"), "{error}");
        assert!(ClientIp::cloudfront().nat64_prefix(prefix).is_err(), "{prefix}");
    }
}
