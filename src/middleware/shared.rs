//! The part that the clones of a service share, and the steps before and after the call of the inner service.

use std::sync::Arc;
use std::task::{Poll, ready};

use super::policy::info::PolicyInfo;
use super::policy::outcome::{limited, record_decisions, record_end, shadow_denial, take_permit, word};
use super::policy::set::{Policies, PolicySet, RejectReason, SettlePolicies, Verdict};
use super::response::report::reports;
use super::response::{Rejection, Responder, StoreError};
use crate::clock::Nanos;
use crate::observe;
use crate::store::BoxError;

/// The part that the clones of a service share.
pub(super) struct Shared<P, R> {
    pub(super) policies: Arc<Policies<P>>,
    pub(super) responder: R,
    has_timeline: bool,
    watches_keys: bool,
}

impl<P, R> Shared<P, R> {
    pub(super) fn new(policies: Arc<Policies<P>>, responder: R) -> Self {
        let has_timeline = policies.infos.iter().any(|info| info.timeline.is_some());
        let watches_keys = policies.infos.iter().any(|info| info.watches_keys);
        Self { policies, responder, has_timeline, watches_keys }
    }

    /// Returns the verdict on a request that had to wait for its decision. If the store could not decide the request,
    /// the request is admitted only if all policies admit such requests.
    pub(super) fn unless_allowed_on_error(&self, verdict: Verdict) -> Verdict {
        match verdict {
            Err(RejectReason::StoreError(error)) if self.admits_undecided(&error) => Ok(()),
            verdict => verdict,
        }
    }

    /// Prepares an admitted request for the inner service. Returns the clock reading from which the response time is
    /// measured, or zero if none of the policies that decided the request has a timeline.
    #[inline(always)]
    pub(super) fn admit<Req, Res, Err>(&self, request: &mut Req, outcomes: &P::Outcomes) -> Nanos
    where
        P: PolicySet<Req>,
        R: Responder<Req, Res, Err>,
    {
        let (infos, outcomes) = (&*self.policies.infos, outcomes.as_ref());
        observe::record_decision(|| word(outcomes));
        let started = match self.has_timeline {
            true => record_decisions(infos, outcomes, true),
            false => Nanos::ZERO,
        };
        if outcomes.iter().any(Option::is_some) {
            self.responder.on_admit(request, &reports(infos, outcomes));
        }
        if let Some(denial) = shadow_denial(outcomes) {
            if self.watches_keys {
                self.policies.set.watch(infos, request, outcomes);
            }
            self.responder.on_shadow_deny(request, denial);
        }
        started
    }

    /// Counts and logs a request that the store could not decide. Returns whether the request is admitted.
    fn admits_undecided(&self, error: &BoxError) -> bool {
        // Joined policies have one store, which fails for all of them.
        let infos = &self.policies.infos;
        infos.iter().for_each(|info| info.record_store_error(error));
        observe::record_decision(|| Some("store_error"));
        infos.iter().all(PolicyInfo::admits_on_store_error)
    }

    /// Returns the response to a rejected request.
    pub(super) fn reject<Req, Res, Err>(
        &self,
        rejected: RejectReason,
        request: &Req,
        outcomes: &P::Outcomes,
    ) -> Result<R::Response, R::Error>
    where
        P: PolicySet<Req>,
        R: Responder<Req, Res, Err>,
    {
        let (infos, outcomes) = (&*self.policies.infos, outcomes.as_ref());
        match rejected {
            RejectReason::Denied => {
                if self.watches_keys {
                    self.policies.set.watch(infos, request, outcomes);
                }
                observe::record_decision(|| word(outcomes));
                if self.has_timeline {
                    record_decisions(infos, outcomes, false);
                }
                limited(infos, outcomes).for_each(|(info, outcome)| info.log_denial(&outcome.decision));
                self.responder.reject(request, Rejection::Limited(&reports(infos, outcomes)))
            }
            RejectReason::KeyError(error) => {
                observe::record_decision(|| Some(error.label()));
                self.responder.reject(request, Rejection::Key(error))
            }
            RejectReason::StoreError(error) => {
                let info = &infos[0];
                self.responder.reject(request, Rejection::Store(StoreError { info, error }))
            }
        }
    }

    /// Makes the response to an admitted call, as soon as the inner service has returned its result.
    // Responses are large. This function is not inlined, and takes and returns a `Poll`, because the compiler otherwise
    // copies each response several times.
    #[inline(never)]
    pub(super) fn finish<Req, Res, Err>(
        &self,
        answered: Poll<Result<Res, Err>>,
        admitted: &mut Admitted<P::Outcomes>,
    ) -> Poll<Result<R::Response, R::Error>>
    where
        P: PolicySet<Req> + SettlePolicies<Res>,
        R: Responder<Req, Res, Err>,
    {
        let answered = ready!(answered);
        let (infos, outcomes) = (&*self.policies.infos, admitted.outcomes.as_mut());
        // If the inner service returned an error, the permit is released when this function returns.
        let permit = take_permit(outcomes);
        if self.has_timeline {
            record_end(infos, outcomes, admitted.started, answered.is_ok());
        }
        if let Ok(response) = &answered {
            self.policies.set.settle(outcomes, response);
        }
        Poll::Ready(match answered {
            Ok(response) => {
                let mut response = self.responder.map_response(&reports(infos, outcomes), response);
                if !permit.is_empty() {
                    response = self.responder.hold_permit(response, permit);
                }
                Ok(response)
            }
            Err(error) => Err(self.responder.map_error(error)),
        })
    }
}

/// An admitted call whose response has not been made yet.
pub(super) struct Admitted<O> {
    pub(super) outcomes: O,
    /// The clock reading from which the response time is measured. Zero if none of the policies that decided the call
    /// has a timeline.
    pub(super) started: Nanos,
}
