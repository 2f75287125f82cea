use super::TestedStore;
use crate::algorithm::StoredAlgorithm;
use crate::store::BoxError;
use crate::store::redis::RedisLimit;

impl<A: StoredAlgorithm> TestedStore<A> for RedisLimit<A> {
    async fn reply<T: Send + 'static>(reply: Self::Reply<T>) -> Result<T, BoxError> {
        Ok(reply.await?)
    }

    fn result<T>(output: Self::Output<T>) -> Result<T, BoxError> {
        Ok(output?)
    }
}
