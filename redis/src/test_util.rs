//! A simulated server, for tests and simulations in virtual time. This module needs the feature `test-util`.

use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::error::BoxError;
use tower_throttle::test_util::TestedStore;

use super::limit::RedisLimit;

pub use super::in_process::RedisInProcess;

impl<A: StoredAlgorithm> TestedStore<A> for RedisLimit<A> {
    async fn reply<T: Send + 'static>(reply: Self::Reply<T>) -> Result<T, BoxError> {
        Ok(reply.await?)
    }

    fn result<T>(output: Self::Output<T>) -> Result<T, BoxError> {
        Ok(output?)
    }
}
