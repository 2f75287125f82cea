//! Tests of the Redis servers that other tests use.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use crate::support::redis_server::{RedisCluster, RedisServer, Reply};

fn is_open(server: &RedisServer) -> bool {
    TcpStream::connect(server.address()).is_ok()
}

#[test]
fn a_server_answers_and_ends_when_dropped() {
    let server = RedisServer::start();
    assert_eq!(server.call(&["SET", "key", "value"]).text(), "OK");
    assert_eq!(server.call(&["GET", "key"]).text(), "value");
    assert_eq!(server.call(&["GET", "other"]), Reply::Nil);
    assert!(matches!(server.call(&["GET"]), Reply::Error(_)));
    assert_eq!(server.calls_of("set"), 1);
    let address = server.address();
    drop(server);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_restarted_server_is_empty_and_has_its_port_and_arguments() {
    let mut server = RedisServer::with(&["--requirepass", "secret", "--maxmemory", "3mb"]);
    let (port, pid) = (server.address().port(), server.pid());
    server.call(&["SET", "key", "value"]).ok();
    server.kill();
    assert!(!is_open(&server));
    server.restart();
    assert_eq!(server.address().port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.call(&["GET", "key"]), Reply::Nil);
    assert!(server.info("memory").contains("maxmemory:3145728"));
}

#[test]
fn a_suspended_server_answers_once_it_is_resumed() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    server.suspend();
    let waiting = std::thread::spawn(move || connection.call(&["PING"]));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    server.resume();
    assert_eq!(waiting.join().unwrap().text(), "PONG");
    server.suspend();
    // The server ends when it is dropped, even so.
}

#[test]
fn a_replica_follows_its_master_and_takes_no_writes() {
    let master = RedisServer::start();
    master.call(&["SET", "key", "value"]).ok();
    let replica = master.replica();
    assert_eq!(replica.call(&["GET", "key"]).text(), "value");
    match replica.call(&["SET", "key", "other"]) {
        Reply::Error(error) => assert!(error.starts_with("READONLY"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cluster_has_a_node_for_each_key_and_redirects_from_the_others() {
    let cluster = RedisCluster::start();
    for key in ["a", "b", "c", "{user-42}:login"] {
        let owner = cluster.node_of(key);
        for (index, node) in cluster.nodes.iter().enumerate() {
            match node.call(&["SET", key, "value"]) {
                Reply::Error(error) => {
                    assert_ne!(index, owner);
                    assert!(error.starts_with("MOVED"), "{error}");
                }
                other => assert_eq!((index, other.text().as_str()), (owner, "OK")),
            }
        }
    }
}
