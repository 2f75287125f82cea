//! Scripts with as many variables as `MAX_LOCALS` allows, since Lua limits the variables of a function, the check
//! before a hash is created, and values of other versions and tags.

use super::*;
use crate::tests::redis_server::{RedisServer, Reply};
use tower_throttle::Quota;
use tower_throttle::algorithm::{StoredAlgorithm, TokenBucket};

/// Loads the largest script among those of `keys(1)`, `keys(2)` and so on. Returns its number.
fn load_largest(server: &RedisServer, keys: impl Fn(usize) -> Vec<KeySteps>) -> usize {
    let scripts = (1..).map_while(|count| Script::of_checks(TimeSource::Server, &keys(count)));
    let (count, largest) = scripts.enumerate().last().expect("one key has a script");
    let loaded = server.call(&["SCRIPT", "LOAD", largest.text()]);
    assert!(matches!(&loaded, Reply::Text(sha) if *sha == largest.sha().as_bytes()), "{loaded:?}");
    count + 1
}

#[test]
fn the_largest_script_of_each_kind_can_be_loaded() {
    let server = RedisServer::start();
    let counts: Vec<_> = StepKind::ALL
        .iter()
        .map(|&kind| {
            let key = |kinds, is_in_shadow| KeySteps { kinds, is_in_shadow };
            let keys = load_largest(&server, |count| {
                (0..count).map(|number| key(vec![kind], number % 2 == 1)).collect()
            });
            let steps = load_largest(&server, |count| vec![key(vec![kind; count], false)]);
            [keys, steps]
        })
        .collect();
    assert_eq!(counts, [[13, 20], [15, 27], [14, 23], [10, 15]], "joined keys, and limits of one key");
}

#[test]
fn without_a_check_of_the_server_the_commands_of_a_new_hash_are_tried_without_an_effect() {
    let server = RedisServer::start();
    let body = format!("local c = redis.call\n{REFUSED}{REFUSED_HASH}return refused_hash() or 'may'");
    for of_server in [true, false] {
        let text = if of_server { body.clone() } else { body.replace("redis.acl_check_cmd", "nil") };
        let result = |rules: &[&str]| {
            server
                .call(&[&["ACL", "SETUSER", "app", "reset", "on", "nopass", "~*", "+@all"], rules].concat())
                .ok();
            let mut connection = server.connect();
            connection.call(&["AUTH", "app", ""]).ok();
            connection.call(&["EVAL", &text, "1", "key"])
        };
        assert_eq!(result(&[]), Reply::Text(b"may".to_vec()));
        for missing in ["-hset", "-hdel", "-pexpire"] {
            let Reply::Error(text) = result(&[missing]) else { panic!("{missing} is not missed") };
            let error = RedisError::from_reply(&text);
            assert_eq!(error.kind(), RedisErrorKind::Permission, "{missing}: {error}");
        }
        assert_eq!(server.call(&["EXISTS", "key"]), Reply::Integer(0));
    }
    // HSET is the first write of the script, so that a full server refuses it.
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let tried = server.call(&["EVAL", &body.replace("redis.acl_check_cmd", "nil"), "1", "key"]);
    assert!(matches!(&tried, Reply::Error(text) if text.starts_with("OOM")), "{tried:?}");
}

#[test]
fn a_script_decides_only_values_of_its_own_version_and_tag() {
    let server = RedisServer::start();
    let bucket = TokenBucket::new(Quota::per_day(10));
    let (part, frame) = (ScriptPart::new(bucket.script().unwrap()), Frame::new(&bucket.unit()));
    let script = Script::of_checks(TimeSource::Server, &[part.steps(false)]).unwrap();
    // Without this comparison, a script would decide values of any version and tag.
    let mutant = script.text().replace("h ~= head0", "false");
    assert_ne!(mutant, script.text());
    let mut last = Packed::default();
    last.number(1 << 53);
    pack(&[(&part, &frame)], [1].into_iter(), &mut last);
    let mut side = server.connect();
    let mut verdict = |text: &str, value: &[u8]| {
        side.try_call(&[b"SET", "key".as_bytes(), value]).unwrap().ok();
        let evaluated = side.try_call(&[b"EVAL", text.as_bytes(), b"1", b"key", last.as_ref()]).unwrap();
        let Reply::Text(reply) = evaluated else { panic!("{evaluated:?}") };
        let Reply::Text(after) = side.call(&["GET", "key"]) else { panic!("no value") };
        (reply[0], after != value)
    };
    let own = crate::tests::value(&bucket.unit(), &[0, 1_700_000_000_000_000]);
    assert_eq!(verdict(script.text(), &own), (b'D', true));
    for byte in 0..frame.head.len() {
        for bit in 0..8 {
            let mut other = own.clone();
            other[byte] ^= 1 << bit;
            assert_eq!(verdict(script.text(), &other), (b'O', false), "bit {bit} of byte {byte}");
            assert_eq!(verdict(&mutant, &other), (b'D', true), "bit {bit} of byte {byte}");
        }
    }
}
