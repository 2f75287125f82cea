//! The part of a single policy in a joint decision.

use std::time::Duration;

use super::Policy;
use super::info::PolicyInfo;
use super::outcome::Outcome;
use super::request_options::RequestOptions;
use super::set::{JointOutcomes, JointParts, JointPolicy};
use crate::algorithm::Algorithm;
use crate::key::{KeyError, KeyExtractor, MissingKey, StoreKey};
use crate::store::{Decided, JointKind, JointStore};

impl<K, A: Algorithm, C, S> Policy<K, A, C, S> {
    /// Lets the extractor count the key of a request that this policy denied, if the extractor counts denied keys.
    pub(super) fn watch_key<Req>(&self, info: &PolicyInfo, request: &Req, outcome: Option<&Outcome>)
    where
        K: KeyExtractor<Req>,
    {
        if info.watches_keys
            && outcome.is_some_and(|outcome| !outcome.decision.is_allowed())
            && let Some(StoreKey::Key(key)) = self.key_uncounted(info, request)
        {
            self.key.on_denied(&key);
        }
    }

    /// Returns the key of the request, as [`key`](Self::key) does, but neither counts nor logs an error, because `key`
    /// has already done so. If the key cannot be extracted, returns the shared key if the request is charged to this
    /// key, and otherwise `None`.
    pub(super) fn key_uncounted<Req>(&self, info: &PolicyInfo, request: &Req) -> Option<StoreKey<K::Key>>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => key.map(StoreKey::Key),
            Err(error) if error.is_forbidden() || error.is_invalid() => None,
            Err(_) => (info.missing == MissingKey::Shared).then_some(StoreKey::Missing),
        }
    }
}

impl<Req, K, A, C, S> JointPolicy<Req> for Policy<K, A, C, S>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: RequestOptions<Req, K::Key, A>,
    S: JointStore<A, StoreKey<K::Key>>,
{
    type Kind = S::Kind;

    fn gather<'a>(
        &'a self,
        infos: &'a [PolicyInfo],
        request: &Req,
        max_wait: Option<Duration>,
        parts: &mut JointParts<'a, S::Kind>,
    ) -> Result<(), KeyError> {
        let (info, in_shadow) = (&infos[0], infos[0].is_in_shadow());
        let key = self.key(info, request)?.filter(|_| !in_shadow || S::Kind::DECIDES_SHADOWS);
        parts.push(key.map(|key| {
            let options = self.options.options(request, key.key());
            let attempt = self.attempt(&options, in_shadow, max_wait);
            self.limiter.store().joint_part(&key, attempt, &info.calls)
        }));
        Ok(())
    }

    fn finish(&self, decided: &mut [Option<Decided>], outcomes: &mut JointOutcomes) {
        outcomes.push(decided[0].take().map(
            |Decided { decision, algorithm, reservation, borrowed, is_shadow }| {
                let algorithm = algorithm.as_deref().and_then(|algorithm| algorithm.downcast_ref());
                let details = self.details(algorithm);
                let mut outcome = Outcome { decision, is_shadow, reservation, details };
                outcome.set_borrowed(borrowed);
                outcome
            },
        ));
    }

    fn decide_shadows(&self, infos: &[PolicyInfo], request: &Req, outcomes: &mut [Option<Outcome>]) {
        let info = &infos[0];
        if let [Some(outcome)] = outcomes
            && outcome.is_shadow
            && !outcome.decision.is_allowed()
        {
            info.record_shadow_denial(&outcome.decision);
        } else if !S::Kind::DECIDES_SHADOWS
            && info.is_in_shadow()
            && let [outcome @ None] = outcomes
            && let Some(key) = self.key_uncounted(info, request)
        {
            // A policy in shadow mode neither rejects nor queues the request.
            let _ = self.decide_alone(info, request, &key, None, outcome);
        }
    }

    fn watch_each(&self, infos: &[PolicyInfo], request: &Req, outcomes: &[Option<Outcome>]) {
        self.watch_key(&infos[0], request, outcomes[0].as_ref());
    }
}
