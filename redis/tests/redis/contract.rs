//! The contract of stores, run against a real server, with scripts and with compare-and-set.

use std::time::Duration;

use tower_throttle::test_util::Contract;
use tower_throttle_redis::{RedisStore, RedisStoreBuilder};

use crate::support::redis_server::{RedisCluster, RedisServer};

async fn keeps_the_contract(change: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder) {
    let server = RedisServer::start();
    // The deadline is tested elsewhere. Here, a slow machine must not make a case fail.
    let builder = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20));
    let store = change(builder).connect().await.unwrap();
    Contract::new(store).run().await.assert_passed();
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
    Contract::new(builder.connect().await.unwrap()).run().await.assert_passed();
}
