//! Mistakes of those who configure a store. Each error says which server it is about, why, and what to change, and has
//! no part of a password.

use std::time::Duration;

use redis::Client;
use tower_throttle_redis::{RedisError, RedisErrorKind, RedisStore, RedisStoreBuilder};

use crate::connect;
use crate::faults::build;
use crate::permits::{acquire, leasing, limiter};
use crate::sentinels::FakeSentinel;
use crate::support::redis_server::{RedisCluster, RedisServer, free_port};

const MS: Duration = Duration::from_millis(1);
/// A port of 127.0.0.1 at which nothing listens.
const GONE: &str = "redis://127.0.0.1:1";

/// A mistake, its error, and parts of the error's text.
type Row = (&'static str, RedisError, RedisErrorKind, Vec<String>);

/// Returns a row of the table.
fn row<const N: usize>(what: &'static str, error: RedisError, kind: RedisErrorKind, says: [&str; N]) -> Row {
    (what, error, kind, says.map(str::to_owned).into())
}

fn assert_texts(table: Vec<Row>) {
    for (what, error, kind, says) in table {
        println!("| {what} | {error} |");
        assert_eq!(error.kind(), kind, "{what}: {error}");
        for part in says {
            assert!(error.to_string().contains(&part), "{what}: {part} is not in: {error}");
        }
        let all = format!("{error} {error:?}");
        assert!(!all.contains("S3cr"), "{what}: {all}");
    }
}

async fn error_of(builder: RedisStoreBuilder) -> RedisError {
    builder.deadline(5_000 * MS).connect().await.unwrap_err()
}

async fn error_at(url: &str) -> RedisError {
    error_of(RedisStore::builder(url)).await
}

/// Returns a builder whose connections begin with no other command than `AUTH`.
fn without_library_name(url: &str) -> RedisStoreBuilder {
    let info = Client::open(url).unwrap().get_connection_info().clone();
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    RedisStoreBuilder::from_client(Client::open(info.set_redis_settings(settings)).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_mistakes_each_say_which_server_and_what_to_change() {
    let of_clusters = tokio::spawn(clusters());
    let mut table = urls().await;
    table.extend(users().await);
    table.extend(sentinels().await);
    table.extend(servers().await);
    table.extend(of_clusters.await.unwrap());
    assert!(table.len() >= 20, "{}", table.len());
    assert_texts(table);
}

async fn urls() -> Vec<Row> {
    use RedisErrorKind::{Config, Unreachable};
    let server = RedisServer::start();
    let (url, address) = (server.url(), server.address().to_string());
    let long = "x".repeat(64);
    let socket = std::env::temp_dir().join("tower-throttle-no-socket").display().to_string();
    let mut rows = vec![
        row("nothing listens", error_at(GONE).await, Unreachable, ["check the address", "127.0.0.1:1: "]),
        row(
            "the host has no address",
            error_at(&format!("redis://:S3cret@{long}")).await,
            Unreachable,
            ["check its name in the URL", &long],
        ),
        row("no scheme", error_at("localhost:6379").await, Config, ["begin with `redis://`"]),
        row(
            "a password that is not encoded",
            error_at("redis://:S3cr/et@127.0.0.1").await,
            Config,
            ["percent-encoded", "`%2F` for `/`"],
        ),
        row(
            "the database has a name",
            error_at(&format!("{url}/cache")).await,
            Config,
            ["must be the number of a database"],
        ),
        row(
            "the server has no such database",
            error_at(&format!("{url}/99")).await,
            Config,
            ["database of the URL", "out of range", &address],
        ),
    ];
    if cfg!(unix) {
        let error = error_at(&format!("redis+unix://{socket}")).await;
        rows.push(row("there is no socket", error, Unreachable, ["check the address", &socket]));
    }
    let encrypted = RedisStore::builder(&url.replace("redis:", "rediss:"));
    let error = encrypted.connect_timeout(300 * MS).connect().await.unwrap_err();
    rows.push(match cfg!(feature = "tls") {
        true => row("TLS to a port without it", error, Unreachable, ["use `redis://`", &address]),
        false => row("TLS without the feature", error, Config, ["the feature `tls`"]),
    });
    rows
}

async fn users() -> Vec<Row> {
    use RedisErrorKind::{Auth, Permission};
    let server = RedisServer::with(&["--requirepass", "S3cret"]);
    let (url, address) = (server.url(), server.address().to_string());
    let command = ["ACL", "SETUSER", "app", "on", ">S3cret", "~*", "+@all", "-time"];
    server.call(&command).ok();
    let user = |user: &str| url.replace("://", &format!("://{user}@"));
    let form = "`redis://user:password@host`";
    let renamed = RedisServer::with(&["--rename-command", "HELLO", "", "--rename-command", "AUTH", ""]);
    let of_renamed = renamed.url().replace("://", "://:S3cret@");
    vec![
        row("no password", error_at(&url).await, Auth, [form, "NOAUTH", &address]),
        row("no password, and a database", error_at(&format!("{url}/3")).await, Auth, [form, &address]),
        row("a wrong password", error_at(&user(":S3cre")).await, Auth, [form, &address]),
        row(
            "a wrong password, and no name of the library",
            error_of(without_library_name(&user(":S3cre"))).await,
            Auth,
            [form, &address],
        ),
        row(
            "HELLO was renamed",
            error_at(&format!("{of_renamed}?protocol=resp3")).await,
            Permission,
            ["a command was renamed", "'HELLO'", &renamed.address().to_string()],
        ),
        row(
            "AUTH was renamed",
            error_of(without_library_name(&of_renamed)).await,
            Auth,
            [form, &renamed.address().to_string()],
        ),
        row(
            "a missing permission",
            error_at(&user("app:S3cret")).await,
            Permission,
            ["allow EVALSHA", &address],
        ),
    ]
}

async fn sentinels() -> Vec<Row> {
    use RedisErrorKind::{Auth, Config, Unreachable};
    let server = RedisServer::start();
    let sentinel = RedisServer::sentinel(&server);
    let locked = RedisServer::with(&["--sentinel", "--requirepass", "S3cret"]);
    let stale = FakeSentinel::start(0, &server).await;
    stale.name_port(0, 1);
    let group = async |url: &str, name| error_of(RedisStore::sentinel([url], name)).await;
    let [of_sentinel, of_server, of_locked] =
        [&sentinel, &server, &locked].map(|server| server.address().to_string());
    vec![
        row(
            "a sentinel as the server",
            error_at(&sentinel.url()).await,
            Config,
            ["`RedisStore::sentinel`", &of_sentinel],
        ),
        row(
            "a server as the sentinel",
            group(&server.url(), "mymaster").await,
            Config,
            ["`RedisStore::connect`", &of_server],
        ),
        row("a wrong name", group(&sentinel.url(), "other").await, Config, ["\"other\"", &of_sentinel]),
        row(
            "no sentinel answers",
            group(GONE, "mymaster").await,
            Unreachable,
            ["no sentinel answers", "the sentinel at 127.0.0.1:1"],
        ),
        row(
            "a sentinel with a password",
            group(&locked.url(), "mymaster").await,
            Auth,
            [&format!("the sentinel at {of_locked}"), "NOAUTH"],
        ),
        row(
            "the master cannot be reached",
            group(&stale.url(), "mymaster").await,
            Unreachable,
            ["127.0.0.1:1, which the sentinels announce", "`replica-announce-ip`"],
        ),
    ]
}

async fn clusters() -> Vec<Row> {
    use RedisErrorKind::{Config, Moved, Unreachable};
    let server = RedisServer::start();
    let cluster = RedisCluster::start();
    let other = &cluster.nodes[(cluster.node_of("throttle:{()}:connect") + 1) % 3];
    let bus = free_port().to_string();
    let announces = RedisServer::with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-announce-ip",
        "127.0.0.2",
        "--cluster-announce-port",
        "1",
    ]);
    announces.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).ok();
    let unreachable = RedisStore::cluster([announces.url()]).deadline(2_000 * MS);
    vec![
        row(
            "a node of a cluster",
            error_at(&other.url()).await,
            Moved,
            ["`RedisStore::cluster`", &other.address().to_string()],
        ),
        row(
            "a server as a cluster",
            error_of(RedisStore::cluster([server.url()])).await,
            Config,
            ["`RedisStore::connect`", &server.address().to_string()],
        ),
        row(
            "a cluster announces another address",
            unreachable.connect().await.unwrap_err(),
            Unreachable,
            ["127.0.0.2:1, which the cluster announces", "`cluster-announce-ip`"],
        ),
    ]
}

async fn servers() -> Vec<Row> {
    use RedisErrorKind::{Late, OutOfMemory, ReadOnly, Unreachable};
    let full = RedisServer::with(&["--maxclients", "1"]);
    let _only_client = full.connect();
    let server = RedisServer::start();
    let (_, bucket) = build(connect(&server).await);
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    let of_memory = bucket.check("a").await.unwrap_err();
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    server.call(&["REPLICAOF", "127.0.0.1", "1"]).ok();
    let (_, bucket) = build(connect(&server).await);
    let of_replica = bucket.check("a").await.unwrap_err();
    let busy = RedisServer::start();
    let store = RedisStore::builder(&busy.url()).deadline(500 * MS).connect().await;
    busy.suspend();
    let of_busy = build(store.unwrap()).1.check("a").await.unwrap_err();
    vec![
        row(
            "too many clients",
            error_at(&full.url()).await,
            Unreachable,
            ["raise `maxclients`", &full.address().to_string()],
        ),
        row(
            "too many clients, and a password",
            error_of(without_library_name(&full.url().replace("://", "://:S3cret@"))).await,
            Unreachable,
            ["raise `maxclients`", &full.address().to_string()],
        ),
        row("a full server", of_memory, OutOfMemory, ["raise `maxmemory`"]),
        row("a replica", of_replica, ReadOnly, ["connect to the master"]),
        row("a server that hangs", of_busy, Late, ["a longer `deadline`", &busy.address().to_string()]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_place_has_expired_learns_why() {
    let lease = 2_000 * MS;
    let mut server = RedisServer::start();
    let one = limiter(&leasing(&server.url(), lease).connect().await.unwrap(), lease, 1);
    let other = limiter(&leasing(&server.url(), lease).connect().await.unwrap(), lease, 1);
    let _permit = acquire(&one).await;
    let mut waiter = Box::pin(other.acquire_permit("a"));
    let begun = tokio::time::timeout(200 * MS, &mut waiter).await;
    assert!(begun.is_err(), "it waits");
    server.kill();
    let error = waiter.await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("cannot be reached") && text.contains(&server.address().to_string()), "{text}");
}
