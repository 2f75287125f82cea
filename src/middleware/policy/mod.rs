//! The policies of a layer. Each policy has a key extractor, a limiter and options, whose types are generic. Each
//! policy also has a [`PolicyInfo`](info), whose type is the same for all policies. The `PolicyInfo` contains the name,
//! the settings and the counters of the policy.

pub(in crate::middleware) mod and;
pub(in crate::middleware) mod info;
mod joint;
mod key_stats;
pub(in crate::middleware) mod on_store_error;
pub(in crate::middleware) mod outcome;
pub(in crate::middleware) mod policy_name;
pub(in crate::middleware) mod request_options;
pub(in crate::middleware) mod set;
pub(in crate::middleware) mod shadow;
mod single;
mod wait;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use self::info::PolicyInfo;
use self::outcome::OutcomeDetails;
use self::request_options::{Options, UnitCost};
use self::set::{Policies, PolicyCount};
use crate::algorithm::{Algorithm, holds_requests};
use crate::key::{KeyError, KeyExtractor, StoreKey};
use crate::limiter::RateLimiter;
use crate::stats::StoreStats;
use crate::store::{Attempt, MemoryStore, Store};

/// One policy: the extractor of the key, the limiter, and the functions that return the options of a request, such as
/// its cost.
pub struct Policy<K, A: Algorithm, C = UnitCost, S = MemoryStore<A>> {
    pub(super) key: K,
    pub(super) limiter: RateLimiter<A, S>,
    pub(super) options: C,
}

impl<K, A: Algorithm, S: Store<A>> Policy<K, A, UnitCost, S> {
    pub(super) fn new(key: K, limiter: RateLimiter<A, S>) -> Policies<Self> {
        let info = PolicyInfo::new(&*limiter.algorithm(), limiter.store().new_counts());
        Policies::single(info, Self { key, limiter, options: UnitCost })
    }
}

impl<K, A: Algorithm, C, S: Store<A>> Policy<K, A, C, S> {
    /// Returns the key to which the request is charged, or `None` if the request is not limited.
    #[inline(always)]
    fn key<Req>(&self, info: &PolicyInfo, request: &Req) -> Result<Option<StoreKey<K::Key>>, KeyError>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => Ok(key.map(StoreKey::Key)),
            Err(error) => info.without_key(error),
        }
    }

    /// Returns the [`Attempt`] that is passed to the store for a request. If the algorithm queues the request, the
    /// request waits at most `max_wait`. With `None`, only the algorithm's own maximum applies.
    #[inline]
    fn attempt<'a>(
        &self,
        options: &'a Options<A>,
        in_shadow: bool,
        max_wait: Option<Duration>,
    ) -> Attempt<'a, A> {
        let algorithm = options.algorithm.as_ref();
        let mut attempt = Attempt::with(options.cost, algorithm, options.has_priority);
        attempt = attempt.of_layer(S::OWNS_COUNTS, in_shadow);
        if let Some(max_wait) = max_wait {
            attempt = attempt.with_max_wait(max_wait);
        }
        if options.is_settled { attempt.with_reservation() } else { attempt }
    }

    /// Returns the details of an outcome, with the quotas of the algorithm that decided the request. That is
    /// `algorithm` or, if this is `None`, the limiter's own algorithm. Returns `None` if the quotas are still those of
    /// the policy's `PolicyInfo`.
    #[inline(always)]
    fn details(&self, algorithm: Option<&A>) -> Option<Box<OutcomeDetails>> {
        match (algorithm, self.limiter.algorithm()) {
            (Some(algorithm), _) => Some(OutcomeDetails::boxed(algorithm, true)),
            (None, Cow::Owned(replacement)) => Some(OutcomeDetails::boxed(&replacement, false)),
            (None, Cow::Borrowed(_)) => None,
        }
    }
}

impl<K, A: Algorithm, C, S: Store<A>> PolicyCount for Policy<K, A, C, S> {
    const COUNT: usize = 1;
    const CAN_FAIL: bool = S::CAN_FAIL;

    #[inline]
    fn may_queue(&self, infos: &[PolicyInfo]) -> bool {
        infos[0].is_tiered || holds_requests(&*self.limiter.algorithm())
    }

    fn store_stats(&self, all: &mut Vec<StoreStats>) {
        all.push(self.limiter.store().stats());
    }
}

impl<K: Clone, A: Algorithm, C: Clone, S: Clone> Clone for Policy<K, A, C, S> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), limiter: self.limiter.clone(), options: self.options.clone() }
    }
}

impl<K, A: Algorithm, C, S: Store<A>> fmt::Debug for Policy<K, A, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
