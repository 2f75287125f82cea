//! The contract of limiters, run against a real server, with scripts and with compare-and-set.

use std::sync::Arc;
use std::time::Duration;

use tower_throttle::Decision;
use tower_throttle::algorithm::{AlgorithmInfo, StoredAlgorithm};
use tower_throttle::error::BoxError;
use tower_throttle::limiter::{Acquired, Attempt, Limiter, LimiterFor, Settles, SharedKey};
use tower_throttle::stats::LimiterStats;
use tower_throttle_contract::{Contract, MakeLimiter, MakePermits, TestedLimiter};
use tower_throttle_redis::{RedisError, RedisLimiter, RedisPermits, RedisStore, RedisStoreBuilder};

use crate::support::redis_server::{RedisCluster, RedisServer};

/// Makes limiters of this store.
#[derive(Clone)]
struct InRedis(RedisStore);

/// The limiter as a type of this crate, so that the trait of another crate can be implemented for it.
#[derive(Clone)]
struct Tested<A: StoredAlgorithm>(RedisLimiter<A>);

impl<A: StoredAlgorithm> MakeLimiter<A> for InRedis {
    type Limiter = Tested<A>;

    fn make(&self, name: &str, algorithm: A) -> Result<Tested<A>, BoxError> {
        Ok(Tested(self.0.limiter(name, algorithm).build()?))
    }
}

impl MakePermits for InRedis {
    type Limiter = RedisPermits;

    fn make(&self, name: &str, limit: u64) -> Result<RedisPermits, BoxError> {
        Ok(self.0.permits(name, limit).lease(Duration::from_secs(86_400)).build()?)
    }
}

impl<A: StoredAlgorithm> Limiter for Tested<A> {
    type Algorithm = A;
    type Error = RedisError;
    type Wait = <RedisLimiter<A> as Limiter>::Wait;

    fn info(&self) -> Arc<AlgorithmInfo> {
        self.0.info()
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn stats(&self) -> LimiterStats {
        self.0.stats()
    }

    fn close(&self) {
        self.0.close();
    }
}

impl<A: StoredAlgorithm, K: SharedKey + ?Sized> LimiterFor<K> for Tested<A> {
    fn acquire(&self, key: &K, attempt: Attempt<'_, A>) -> Acquired<Self::Wait> {
        LimiterFor::acquire(&self.0, key, attempt)
    }
}

impl<A: StoredAlgorithm> Settles for Tested<A> {}

impl<A: StoredAlgorithm> TestedLimiter for Tested<A> {
    async fn check(&self, key: &str, cost: u64) -> Result<Decision, BoxError> {
        Ok(self.0.call(key).cost(cost).check().await?)
    }

    async fn peek(&self, key: &str, cost: u64) -> Result<Decision, BoxError> {
        Ok(self.0.call(key).cost(cost).peek().await?)
    }

    async fn refund(&self, key: &str, cost: u64) -> Result<(), BoxError> {
        Ok(self.0.refund(key, cost).await?)
    }

    async fn reset(&self, key: &str) -> Result<(), BoxError> {
        self.0.reset(key).await?;
        Ok(())
    }

    fn replace(&self, algorithm: A) {
        self.0.replace(algorithm);
    }
}

async fn keeps_the_contract(change: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder) {
    let server = RedisServer::start();
    // The deadline is tested elsewhere. Here, a slow machine must not make a case fail.
    let builder = RedisStore::builder(&server.url()).deadline(Duration::from_secs(20));
    let store = change(builder).connect().await.unwrap();
    Contract::new(InRedis(store.clone())).run().await.assert_passed();
    Contract::of_permits(InRedis(store)).run().await.assert_passed();
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
    let store = builder.connect().await.unwrap();
    Contract::new(InRedis(store.clone())).run().await.assert_passed();
    Contract::of_permits(InRedis(store)).run().await.assert_passed();
}
