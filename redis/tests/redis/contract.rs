//! The contract of stores, run against a real server, with scripts and with compare-and-set.

use std::time::Duration;

use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::error::BoxError;
use tower_throttle::test_util::{Contract, MakeLimiter};
use tower_throttle_redis::{RedisLimiter, RedisStore, RedisStoreBuilder};

use crate::support::redis_server::{RedisCluster, RedisServer};

/// Makes limiters of this store.
#[derive(Clone)]
struct InRedis(RedisStore);

impl<A: StoredAlgorithm> MakeLimiter<A> for InRedis {
    type Limiter = RedisLimiter<A>;

    fn make(&self, name: &str, algorithm: A) -> Result<RedisLimiter<A>, BoxError> {
        Ok(self.0.limiter(name, algorithm).build()?)
    }
}

async fn keeps_the_contract(change: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder) {
    let server = RedisServer::start();
    // The deadline is tested elsewhere. Here, a slow machine must not make a case fail.
    let builder = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20));
    let store = change(builder).connect().await.unwrap();
    Contract::new(InRedis(store)).run().await.assert_passed();
}

#[tokio::test]
async fn scripts_keep_the_contract() {
    keeps_the_contract(|builder| builder).await;
}

#[tokio::test]
async fn compare_and_set_keeps_the_contract() {
    keeps_the_contract(RedisStoreBuilder::without_scripts).await;
}

#[tokio::test]
async fn one_slot_keeps_the_contract() {
    keeps_the_contract(|builder| builder.one_slot("app")).await;
}

#[tokio::test]
async fn a_cluster_keeps_the_contract() {
    let cluster = RedisCluster::start();
    let builder = RedisStore::cluster(cluster.urls()).deadline(Duration::from_secs(20));
    Contract::new(InRedis(builder.connect().await.unwrap())).run().await.assert_passed();
}
