//! A list of networks contains the documented addresses, and an invalid list is an error.

use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::{Instant, advance};
use tower_throttle::key::{Networks, TrustedProxies};

use super::{asked, cidrs, of, peer};
use crate::model::{Heard, Model, Mutant, Source};

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
        (
            &["::/0"],
            &["::", "::1", "ffff::", "64:ff9b:1::1.2.3.4"],
            &["1.2.3.4", "::ffff:1.2.3.4", "0.0.0.0"],
        ),
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

/// A change of a set of networks of sixteen addresses, or time that passes.
#[derive(Clone, Copy, Debug)]
enum Change {
    Insert(Range),
    InsertFor(Range, u64),
    Remove(Range),
    /// Adds this many networks that are not looked up, so that the set looks for networks whose time has ended.
    Many(u32, u64),
    Pass(u64),
}

/// A network in `10.0.0.0/28` or in `2001:db8::/124`: its family, its prefix length of 28 to 32 and its number.
#[derive(Clone, Copy, Debug)]
struct Range(bool, u8, u8);

impl Range {
    fn text(self) -> String {
        let Self(is_v6, length, number) = self;
        let first = number << (32 - length);
        match is_v6 {
            true => format!("2001:db8::{first:x}/{}", length + 96),
            false => format!("10.0.0.{first}/{length}"),
        }
    }

    fn contains(self, is_v6: bool, address: u8) -> bool {
        self.0 == is_v6 && address >> (32 - self.1) == self.2
    }
}

/// Whether an address is in the set for ever, and until when it is in the set.
type Presence = (bool, Option<Instant>);

fn any_change() -> impl Strategy<Value = Change> {
    let range = || {
        (any::<bool>(), 28_u8..=32).prop_flat_map(|(is_v6, length)| {
            (0..1_u8 << (length - 28)).prop_map(move |number| Range(is_v6, length, number))
        })
    };
    prop_oneof![
        2 => range().prop_map(Change::Insert),
        4 => (range(), 0_u64..30).prop_map(|(range, seconds)| Change::InsertFor(range, seconds)),
        3 => range().prop_map(Change::Remove),
        1 => (1_u32..100, 0_u64..30).prop_map(|(count, seconds)| Change::Many(count, seconds)),
        3 => (0_u64..15).prop_map(Change::Pass),
    ]
}

proptest! {
    #[test]
    fn a_changed_set_contains_what_was_inserted_and_neither_removed_nor_has_ended(
        changes in prop::collection::vec(any_change(), 1..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let networks = Networks::new::<[&str; 0]>([]).unwrap();
            let clone = networks.clone();
            // The addresses of both families.
            let mut model: [[Presence; 16]; 2] = [[(false, None); 16]; 2];
            for change in changes {
                let mut change_all = |range: Range, change: &dyn Fn(&mut Presence)| {
                    for (is_v6, family) in [false, true].into_iter().zip(&mut model) {
                        for (address, state) in (0..).zip(family) {
                            if range.contains(is_v6, address) {
                                change(state);
                            }
                        }
                    }
                };
                match change {
                    Change::Insert(range) => {
                        networks.insert(range.text()).unwrap();
                        change_all(range, &|state| state.0 = true);
                    }
                    Change::InsertFor(range, seconds) => {
                        networks.insert_for(range.text(), Duration::from_secs(seconds)).unwrap();
                        let end = Instant::now() + Duration::from_secs(seconds);
                        change_all(range, &|state| state.1 = state.1.max(Some(end)));
                    }
                    Change::Remove(range) => {
                        networks.remove(range.text()).unwrap();
                        change_all(range, &|state| *state = (false, None));
                    }
                    Change::Many(count, seconds) => {
                        for number in 0..count {
                            let other = IpAddr::from([172, 16, 0, number as u8]);
                            networks.insert_for(other, Duration::from_secs(seconds)).unwrap();
                        }
                    }
                    Change::Pass(seconds) => advance(Duration::from_secs(seconds)).await,
                }
                let listed = Networks::new(networks.list().iter().map(|(network, _)| network)).unwrap();
                for (prefix, family) in ["10.0.0.", "2001:db8::"].into_iter().zip(&model) {
                    for (number, (is_lasting, end)) in family.iter().enumerate() {
                        let address = match prefix {
                            "10.0.0." => format!("{prefix}{number}"),
                            _ => format!("{prefix}{number:x}"),
                        };
                        let expected = *is_lasting || end.is_some_and(|end| end > Instant::now());
                        prop_assert_eq!(clone.contains(address.parse().unwrap()), expected, "{}", address);
                        prop_assert_eq!(listed.contains(address.parse().unwrap()), expected, "{}", address);
                    }
                }
            }
            Ok(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_has_the_rest_of_each_time() {
    let networks = Networks::new(["10.0.0.128/25", "10.0.0.0/25", "unix"]).unwrap();
    for (entry, seconds) in [("::1", 20), ("192.0.2.7", 10), ("unix", 5), ("192.0.2.6", 4)] {
        networks.insert_for(entry, Duration::from_secs(seconds)).unwrap();
    }
    let list = || {
        let list = networks.clone().list();
        list.into_iter().map(|(network, rest)| (network, rest.map(|rest| rest.as_secs()))).collect::<Vec<_>>()
    };
    let listed = |entries: &[(&str, Option<u64>)]| -> Vec<_> {
        entries.iter().map(|(network, rest)| ((*network).to_owned(), *rest)).collect()
    };
    let (lasting, unix) = (("10.0.0.0/24", None), ("unix", None));
    advance(Duration::from_secs(4)).await;
    let temporary = [("192.0.2.7", Some(6)), ("::1", Some(16)), ("unix", Some(1))];
    assert_eq!(list(), listed(&[lasting, unix, temporary[0], temporary[1], temporary[2]]));
    advance(Duration::from_secs(6)).await;
    assert_eq!(list(), listed(&[lasting, unix, ("::1", Some(10))]));
    networks.remove("10.0.0.0/25").unwrap();
    networks.remove("::1").unwrap();
    // What is left of this network includes mapped IPv4 addresses, which as an entry would be IPv4 addresses.
    let rest = Networks::new(["::/0"]).unwrap();
    rest.remove("::fffe:0:0/96").unwrap();
    let anew = Networks::new(rest.list().iter().map(|(network, _)| network)).unwrap();
    assert!(!anew.contains(IpAddr::from([192, 0, 2, 1])) && anew.contains("2001:db8::1".parse().unwrap()));
    assert_eq!(list(), listed(&[("10.0.0.128/25", None), unix]));
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_removed_network_does_not_shorten_the_time_of_a_part() {
    let networks = Networks::new::<[&str; 0]>([]).unwrap();
    networks.insert_for("10.0.0.0/31", Duration::from_secs(20)).unwrap();
    networks.insert_for("10.0.0.0/30", Duration::from_secs(10)).unwrap();
    networks.remove("10.0.0.2/31").unwrap();
    let contains = |last| networks.contains(IpAddr::from([10, 0, 0, last]));
    assert!(contains(0) && contains(1) && !contains(2));
    advance(Duration::from_secs(19)).await;
    assert!(contains(0));
    advance(Duration::from_secs(1)).await;
    assert!(!contains(0));
}

#[tokio::test(start_paused = true)]
async fn a_network_whose_time_has_ended_has_no_rest() {
    let networks = Networks::new::<[&str; 0]>([]).unwrap();
    networks.insert_for("::/0", Duration::from_secs(1)).unwrap();
    advance(Duration::from_secs(1)).await;
    networks.remove("2001:db8::1").unwrap();
    assert_eq!(format!("{networks:?}"), "{}");
}

#[test]
fn an_invalid_entry_changes_nothing() {
    let networks = Networks::new(["10.0.0.0/8"]).unwrap();
    for entry in ["10.0.0.1/8", "ten", ""] {
        let hour = Duration::from_secs(3_600);
        for error in [networks.insert(entry), networks.insert_for(entry, hour), networks.remove(entry)] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("is no network"), "{error}");
        }
    }
    assert_eq!(format!("{networks:?}"), "{10.0.0.0/8}");
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
