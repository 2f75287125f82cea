//! A comparison of tower-throttle with its peers, in one run.
//!
//! Most tables have ratios of times, because ratios can be compared between machines and times cannot. All contestants
//! of a table run once per round. A ratio is computed within each round, and the table has the median of all rounds.

mod alloc;
mod check;
mod client;
mod interleave;
mod layer;
#[path = "../../tests/support/random.rs"]
mod random;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
#[path = "../../tests/support/redis_connection.rs"]
mod redis_connection;
#[cfg(feature = "redis")]
#[path = "../../tests/support/redis_server/mod.rs"]
mod redis_server;
mod router;
mod server;
mod store;
mod table;
mod tsc;

use std::env;
use std::process::exit;

const HELP: &str = "\
tower-throttle beside governor and tower_governor, as ratios

    cargo bench [-- OPTIONS] [SECTION...]

sections: check, layer, server, store (check by table size, threads, memory and part), waits (a part of store: the times
          of single calls of eight threads, and of calls that are cancelled in a queue), redis (limits in Redis, to PING;
          needs redis-server), alone (a part of redis: the times of single calls of one caller), and counted (the
          instructions of a Redis server per decision; needs redis-server and valgrind). The first three if none is named.
    --quick    a tenth of the rounds
    --markdown of store: also a table of all rows, and their numbers in benches/store.tsv
    --peers    of redis and alone: also limitador and tower-rate-limiter, which take minutes to build
    --help     this text";

fn main() {
    #[cfg(feature = "redis")]
    std::sync::LazyLock::force(&redis::CORES);
    let mut sections = Vec::new();
    let (mut quick, mut markdown, mut peers) = (false, false, false);
    for argument in env::args().skip(1) {
        match argument.as_str() {
            "--quick" => quick = true,
            "--markdown" => markdown = true,
            "--peers" => peers = true,
            "--help" | "-h" => return println!("{HELP}"),
            "check" | "layer" | "server" | "store" | "waits" | "redis" | "alone" | "counted" => {
                sections.push(argument);
            }
            other => {
                eprintln!("unknown argument: {other}\n\n{HELP}");
                exit(2);
            }
        }
    }
    if sections.is_empty() {
        sections = ["check", "layer", "server"].map(str::to_owned).into();
    }
    let rounds = if quick { 10 } else { 100 };
    for section in sections {
        match section.as_str() {
            "check" => check::run(10 * rounds),
            "layer" => {
                layer::run(2 * rounds);
                router::run(2 * rounds);
            }
            "server" => server::run(rounds / 2),
            "store" => store::run(rounds / 9, markdown),
            "waits" => {
                store::waits();
                store::cancellations();
            }
            _ => in_redis(&section, (rounds / 5).max(20), peers),
        }
    }
}

#[cfg(feature = "redis")]
fn in_redis(section: &str, rounds: usize, peers: bool) {
    match section {
        "alone" => redis::run_alone(rounds, peers),
        "counted" => redis::run_counted(),
        _ => redis::run(rounds, peers),
    }
}

#[cfg(not(feature = "redis"))]
fn in_redis(_: &str, _: usize, _: bool) {
    panic!("this was built without the feature `redis`");
}
