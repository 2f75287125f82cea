//! The addresses that share one key.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::{HeaderValue, Request};
use tower_throttle::key::{ClientIp, KeyExtractor, PeerIp, TrustedProxies};

fn peer(ip: IpAddr) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::new(ip, 50_000));
    request
}

fn said(ip: IpAddr) -> Request<()> {
    let mut request = peer([127, 0, 0, 1].into());
    let line = HeaderValue::from_str(&format!("6.6.6.6, {ip}")).unwrap();
    request.headers_mut().insert("x-forwarded-for", line);
    request
}

fn number<K: KeyExtractor<Request<()>>>(
    extractor: &K,
    request: fn(IpAddr) -> Request<()>,
    ips: impl IntoIterator<Item = IpAddr>,
) -> usize
where
    K::Key: Eq + Hash,
{
    let keys = ips.into_iter().map(|ip| extractor.extract(&request(ip)).unwrap().unwrap());
    keys.collect::<HashSet<_>>().len()
}

/// Asserts that both the peers and the clients behind a proxy have this number of keys.
fn is(keys: usize, [of_peers, of_clients]: [usize; 2]) {
    assert_eq!([of_peers, of_clients], [keys; 2]);
}

fn client_ip() -> ClientIp {
    ClientIp::x_forwarded_for(TrustedProxies::loopback())
}

fn keys(ips: impl IntoIterator<Item = IpAddr> + Clone) -> [usize; 2] {
    [number(&PeerIp::new(), peer, ips.clone()), number(&client_ip(), said, ips)]
}

fn keys_by(v6: u8, v4: u8, ips: impl IntoIterator<Item = IpAddr> + Clone) -> [usize; 2] {
    let peers = PeerIp::new().ipv6_prefix(v6).ipv4_prefix(v4);
    let clients = client_ip().ipv6_prefix(v6).ipv4_prefix(v4);
    [number(&peers, peer, ips.clone()), number(&clients, said, ips)]
}

/// Returns 65,536 addresses that differ only in 16 bits, of which the lowest has the number `shift`.
fn v6(shift: u32) -> impl Iterator<Item = IpAddr> + Clone {
    let network = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).to_bits();
    (0..1 << 16).map(move |n: u128| Ipv6Addr::from_bits(network | n << shift).into())
}

fn ips(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

#[test]
fn all_of_a_64_are_one() {
    is(1, keys(v6(0)));
    is(1, keys(v6(16)));
    is(1, keys(v6(48)));
    // The addresses differ in all four lower groups.
    let network = u128::from(0x2001_0db8_u32) << 96;
    let spread = (0..1 << 16).map(|n: u128| Ipv6Addr::from_bits(network | (n * 0x1_0001_0001_0001)).into());
    is(1, keys(spread));
}

#[test]
fn each_64_is_another() {
    is(1 << 16, keys(v6(64)));
    is(2, keys(ips(&["2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::"])));
    is(2, keys(ips(&["2001:db8::1", "2001:db9::1"])));
}

#[test]
fn each_address_of_ipv4_is_a_separate_key() {
    let all = (0..1 << 16).map(|n| Ipv4Addr::from_bits(0x0101_0001 + n).into());
    is(1 << 16, keys(all));
}

#[test]
fn a_mapped_address_is_its_ipv4_address() {
    is(1, keys(ips(&["1.2.3.4", "::ffff:1.2.3.4", "::ffff:102:304"])));
    is(2, keys(ips(&["::ffff:1.2.3.4", "::ffff:5.6.7.8"])));
    is(2, keys(ips(&["::ffff:1.2.3.4", "::ffff:1.2.3.5"])));
    is(2, keys(ips(&["1.2.3.4", "::1.2.3.4"])));
    // The same is true of other prefixes.
    is(2, keys_by(56, 32, ips(&["::ffff:1.2.3.4", "::ffff:5.6.7.8"])));
    is(1, keys_by(128, 24, ips(&["::ffff:1.2.3.4", "1.2.3.5"])));
    is(2, keys_by(64, 24, ips(&["::ffff:1.2.3.4", "1.2.4.4"])));
}

#[test]
fn other_prefixes_group_by_their_bits() {
    // The addresses differ in the 16 bits from bit 64 on, and have `number` keys.
    for (prefix, number) in
        [(64, 1 << 16), (63, 1 << 15), (60, 1 << 12), (56, 1 << 8), (49, 2), (48, 1), (32, 1)]
    {
        is(number, keys_by(prefix, 32, v6(64)));
    }
    is(1 << 16, keys_by(128, 32, v6(16)));
    is(1, keys_by(112, 32, ips(&["2001:db8::", "2001:db8::ffff"])));
    is(2, keys_by(112, 32, ips(&["2001:db8::ffff", "2001:db8::1:0"])));
    let all = || (0..1 << 10).map(|n| Ipv4Addr::from_bits(0x0101_0000 + n).into());
    for (prefix, number) in [(32, 1 << 10), (31, 1 << 9), (24, 4), (23, 2), (22, 1), (8, 1)] {
        is(number, keys_by(64, prefix, all()));
    }
}

#[test]
fn families_never_share_a_key() {
    is(2, keys(ips(&["0.0.0.2", "::2"])));
    is(2, keys(ips(&["32.1.13.184", "2001:db8::"])));
    is(2, keys_by(1, 1, ips(&["1.2.3.4", "::2"])));
}

/// Tests that the spelling, the port and the zone of an address make no difference.
#[test]
fn the_spelling_does_not_change_the_key() {
    let spelled = |lines: &[&str]| {
        let keys = lines.iter().map(|line| {
            let mut request = peer([127, 0, 0, 1].into());
            request.headers_mut().insert("x-forwarded-for", HeaderValue::from_str(line).unwrap());
            client_ip().extract(&request).unwrap().unwrap()
        });
        keys.collect::<HashSet<_>>().len()
    };
    let v6 = [
        "2001:db8::1",
        "2001:DB8:0::2",
        "[2001:db8::3]",
        "[2001:0db8::4]:80",
        "2001:db8::5%eth0",
        "[2001:db8::6%a]:7",
    ];
    assert_eq!(spelled(&v6), 1);
    assert_eq!(
        spelled(&["1.2.3.4", "1.2.3.4:80", "::ffff:1.2.3.4", "[::ffff:102:304]:9", "6.6.6.6 ,\t1.2.3.4 "]),
        1
    );
}
