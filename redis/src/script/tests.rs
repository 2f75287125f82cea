//! Scripts with as many variables as `MAX_LOCALS` allows, since Lua limits the variables of a function, and the check
//! before a hash is created.

use super::*;
use crate::tests::redis_server::{RedisServer, Reply};

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
    assert_eq!(counts, [[13, 18], [15, 23], [14, 20], [11, 15]], "joined keys, and limits of one key");
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
