//! The outcome of a policy, kept until the response is made.

use std::any::Any;

use crate::algorithm::{Algorithm, QuotaPolicy};
use crate::decision::Decision;
use crate::store::Reservation;

/// One policy's decision, with what is reported of its algorithm.
#[derive(Debug)]
pub struct Outcome {
    pub(in crate::middleware) decision: Decision,
    /// The quotas of the algorithm, if they differ from those that the policy was created with.
    pub(in crate::middleware) quotas: Option<Box<[QuotaPolicy]>>,
    /// `true` if the call is admitted whatever was decided, and nothing is reported to the caller.
    pub(in crate::middleware) is_shadow: bool,
    /// The charge to settle, if the call's cost is settled.
    pub(in crate::middleware) charge: Option<Charge>,
}

/// The charge of a call that is to be settled.
#[derive(Debug)]
pub(in crate::middleware) struct Charge {
    pub(in crate::middleware) reservation: Reservation,
    /// The algorithm that was chosen for the call, or `None` for the limiter's own.
    pub(in crate::middleware) algorithm: Option<Box<dyn Any + Send + Sync>>,
}

impl Outcome {
    /// Creates the outcome of `decision`. `other` is `true` if `algorithm` is not that of the policy's labels.
    #[inline]
    pub(in crate::middleware) fn new(algorithm: &impl Algorithm, decision: Decision, other: bool) -> Self {
        let quotas = other.then(|| {
            let mut quotas = Vec::new();
            algorithm.for_each_policy(&mut |quota| quotas.push(quota));
            quotas.into()
        });
        Self { decision, quotas, is_shadow: false, charge: None }
    }

    /// Returns the decision, if it is a denial in shadow mode: the call was admitted nevertheless.
    pub(in crate::middleware) fn shadow_denial(&self) -> Option<&Decision> {
        Some(&self.decision).filter(|decision| self.is_shadow && !decision.is_allowed())
    }
}
