//! Scripts with as many variables as `MAX_LOCALS` allows. Lua limits the variables of a function.

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
