use ::redis::IntoConnectionInfo;

use super::*;

fn cluster(urls: &[&str]) -> Result<Arc<Cluster>, RedisError> {
    let named = urls.iter().map(|url| url.into_connection_info().unwrap()).collect();
    let time = Duration::from_millis(50);
    Cluster::new(named, time, time).map(Arc::new)
}

fn range(first: u16, last: u16, port: u16) -> Range {
    Range { first, last, master: Address { host: "127.0.0.1".to_owned(), port } }
}

/// Returns the port of the node that the store asks for a key.
fn port_of(cluster: &Cluster, key: &str) -> u16 {
    let link = cluster.link_of(key);
    let nodes = cluster.read();
    nodes.nodes.iter().find(|node| Arc::ptr_eq(&node.link, &link)).unwrap().address.port
}

fn route(cluster: &Cluster, key: &str) -> Route {
    Route { link: cluster.link_of(key), is_asking: false, redirects: 0 }
}

fn counts(late: u64, circuit_openings: u64, is_circuit_open: bool) -> StoreStats {
    let mut stats = StoreStats::default();
    (stats.late, stats.circuit_openings, stats.is_circuit_open) = (late, circuit_openings, is_circuit_open);
    stats
}

// The key `foo` is in slot 12182, and `bar` in 5061.
#[test]
fn a_key_is_asked_of_the_master_that_has_its_slot() {
    let cluster = cluster(&["redis://127.0.0.1:1"]).unwrap();
    assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (1, 1));
    cluster.take_over(&[range(0, 5_999, 1), range(6_000, 12_181, 2), range(12_182, 16_383, 3)]).unwrap();
    assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (3, 1));
    let kept = cluster.link_of("foo");
    cluster.take_over(&[range(0, 5_999, 4), range(6_000, 16_383, 3)]).unwrap();
    assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (3, 4));
    assert!(Arc::ptr_eq(&kept, &cluster.link_of("foo")), "a master that stays keeps its link");
    assert_eq!(cluster.read().nodes.len(), 2, "the others are given up");
    // The keys of a slot without a master are sent to the node that had the slot.
    cluster.take_over(&[range(0, 5_999, 1)]).unwrap();
    assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (3, 1));
    assert_eq!(cluster.read().nodes.len(), 2);
}

#[test]
fn a_slot_that_has_moved_is_remembered_and_one_on_its_way_is_not() {
    let cluster = cluster(&["redis://127.0.0.1:1"]).unwrap();
    let from = route(&cluster, "foo");
    let error = |text: &str| RedisError::from_reply(text);
    let asked = cluster.redirect(&from, &error("ASK 12182 127.0.0.1:2")).unwrap();
    assert!(asked.is_asking && !Arc::ptr_eq(&asked.link, &from.link));
    assert_eq!(port_of(&cluster, "foo"), 1);
    let moved = cluster.redirect(&from, &error("MOVED 12182 127.0.0.1:2")).unwrap();
    assert!(!moved.is_asking && Arc::ptr_eq(&moved.link, &asked.link));
    assert_eq!((port_of(&cluster, "foo"), port_of(&cluster, "bar")), (2, 1));
    // An empty host stands for the host of the node that replied.
    let back = cluster.redirect(&moved, &error("MOVED 12182 :1")).unwrap();
    assert!(Arc::ptr_eq(&back.link, &from.link));
    assert_eq!((moved.redirects, back.redirects), (1, 2));
    assert!(cluster.redirect(&from, &error("OOM")).is_none());
    assert!(cluster.redirect(&from, &error("MOVED 16384 127.0.0.1:2")).is_none());
}

#[test]
fn what_former_masters_have_counted_is_kept() {
    let cluster = cluster(&["redis://127.0.0.1:1"]).unwrap();
    let link = cluster.link_of("foo");
    let error = RedisError::new(RedisErrorKind::Busy, "");
    link.count_if_late(Nanos::ZERO);
    link.failed(error, 0);
    assert_eq!(cluster.stats(), counts(1, 1, true));
    cluster.take_over(&[range(0, 16_383, 2)]).unwrap();
    assert_eq!(cluster.stats(), counts(1, 1, false));
    cluster.take_over(&[range(0, 16_383, 3)]).unwrap();
    assert_eq!(cluster.stats().late, 1);
}

#[test]
fn addresses_that_no_node_can_have_are_errors() {
    for urls in [&[][..], &["redis://127.0.0.1:1/3"], &["redis://127.0.0.1:1", "unix:///tmp/redis.sock"]] {
        assert_eq!(cluster(urls).unwrap_err().kind(), RedisErrorKind::Config, "{urls:?}");
    }
}

#[test]
fn keys_are_in_the_slots_of_the_specification() {
    assert_eq!(crc16("123456789"), 0x31c3);
    for (key, expected) in
        [("foo", 12_182), ("bar", 5_061), ("{foo}.x", 12_182), ("a{foo}b{bar}", 12_182), ("", 0)]
    {
        assert_eq!(slot(key), expected, "{key}");
    }
    assert_eq!(slot("throttle:{foo}:login"), 12_182);
    assert_eq!(slot("throttle:{foo}:login:b(t)"), 12_182, "the kind is not hashed");
    // If there is no text in the first pair of braces, the whole key determines the slot.
    assert_eq!(slot("foo{}{bar}"), crc16("foo{}{bar}") % 16_384);
    assert_eq!(slot("foo{bar"), crc16("foo{bar") % 16_384);
    assert_eq!(slot("foo{{bar}}"), slot("{bar"));
}

#[test]
fn redirects_are_parsed() {
    let parse = |text: &str| Redirect::parse(&RedisError::from_reply(text));
    let address = |host: &str, port| Address { host: host.to_owned(), port };
    let redirect =
        |is_asking, slot, host: &str, port| Some(Redirect { is_asking, slot, address: address(host, port) });
    assert_eq!(parse("MOVED 3999 127.0.0.1:6381"), redirect(false, 3_999, "127.0.0.1", 6_381));
    assert_eq!(parse("ASK 0 ::1:1"), redirect(true, 0, "::1", 1));
    assert_eq!(parse("MOVED 16383 :6381"), redirect(false, 16_383, "", 6_381));
    for text in
        ["MOVED", "MOVED 3999", "MOVED x y:1", "MOVED 16384 a:1", "MOVED 1 a:x", "MOVED 1 a", "ERR 1 a:1"]
    {
        assert_eq!(parse(text), None, "{text}");
    }
}

#[test]
fn the_reply_to_cluster_slots_is_parsed() {
    let text = |text: &str| Value::BulkString(text.into());
    let node = |host, port| Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
    let range = |first, last, master| {
        Value::Array(vec![Value::Int(first), Value::Int(last), master, node(text("replica"), 7)])
    };
    let reply = Value::Array(vec![
        range(0, 5_460, node(text("10.0.0.1"), 6_379)),
        range(5_461, 10_922, node(Value::Nil, 6_380)),
        range(10_923, 10_923, node(text(""), 6_381)),
        range(10_924, 16_383, node(text("?"), 6_382)),
    ]);
    let found = parse_slots(&reply, "own").unwrap();
    let found: Vec<_> =
        found.iter().map(|range| (range.first, range.last, &*range.master.host, range.master.port)).collect();
    assert_eq!(
        found,
        [(0, 5_460, "10.0.0.1", 6_379), (5_461, 10_922, "own", 6_380), (10_923, 10_923, "own", 6_381)]
    );
    for wrong in [
        Value::Nil,
        Value::Array(vec![Value::Int(1)]),
        Value::Array(vec![range(-1, 5, node(text("a"), 1))]),
        Value::Array(vec![range(0, 16_384, node(text("a"), 1))]),
        Value::Array(vec![range(10, 5, node(text("a"), 1))]),
        Value::Array(vec![range(0, 5, node(text("a"), 65_536))]),
        Value::Array(vec![range(0, 5, Value::Array(vec![]))]),
    ] {
        assert_eq!(parse_slots(&wrong, "own").unwrap_err().kind(), RedisErrorKind::Server, "{wrong:?}");
    }
}
