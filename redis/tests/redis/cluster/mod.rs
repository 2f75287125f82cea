//! Limits in a cluster. They are exact over all nodes and while slots move, also with settled calls and tiers. If a
//! master fails, only calls for its keys fail.

mod exact;
mod failing_nodes;
mod settled_tiers;

use std::time::Duration;

use tower_throttle::Quota;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle_redis::{RedisLimiter, RedisStore};

use crate::support::redis_server::RedisCluster;

const MS: Duration = Duration::from_millis(1);

type Limiter = RedisLimiter<FixedWindow>;

fn limiter(store: &RedisStore, limit: u64) -> Limiter {
    let window = FixedWindow::new(Quota::per_day(limit));
    store.limiter("test", window).build().unwrap()
}

fn text_of(key: &str) -> String {
    format!("throttle:{{{key}}}:test")
}

/// Returns some keys of each node.
pub(crate) fn keys_of_nodes(cluster: &RedisCluster, each: usize) -> [Vec<String>; 3] {
    let mut keys = [const { Vec::new() }; 3];
    for key in (0..).map(|number| format!("key-{number}")) {
        let of_node = &mut keys[cluster.node_of(&text_of(&key))];
        if of_node.len() < each {
            of_node.push(key);
        }
        if keys.iter().all(|keys| keys.len() == each) {
            break;
        }
    }
    keys
}
