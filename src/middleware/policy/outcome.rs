//! What a policy has decided, kept until the answer is made.

use std::any::Any;
use std::time::Duration;

use crate::algorithm::{Algorithm, QuotaPolicy};
use crate::decision::Decision;
use crate::store::Reservation;

/// One policy's decision, with what is told of the rule behind it.
#[derive(Debug)]
pub struct Outcome {
    pub(in crate::middleware) decision: Decision,
    pub(in crate::middleware) window: Option<Duration>,
    /// The rule's quotas, where they are not those that the policy was built with.
    pub(in crate::middleware) quotas: Option<Box<[QuotaPolicy]>>,
    /// Whether the call is let through whatever was decided, and nobody is told.
    pub(in crate::middleware) is_shadow: bool,
    /// If the call's cost is to be settled.
    pub(in crate::middleware) charge: Option<Charge>,
}

/// What a call was charged that is to be settled.
#[derive(Debug)]
pub(in crate::middleware) struct Charge {
    pub(in crate::middleware) reservation: Reservation,
    /// The rule that was chosen for the call; `None`: the limiter's.
    pub(in crate::middleware) algorithm: Option<Box<dyn Any + Send + Sync>>,
}

impl Outcome {
    /// `other`: the rule is not that of the policy's labels.
    #[inline]
    pub(in crate::middleware) fn new(algorithm: &impl Algorithm, decision: Decision, other: bool) -> Self {
        let quotas = other.then(|| {
            let mut quotas = Vec::new();
            algorithm.for_each_policy(&mut |quota| quotas.push(quota));
            quotas.into()
        });
        // With nothing left, a window of nothing is none: the rule was not asked when the next unit comes.
        let window =
            algorithm.header_window(&decision).filter(|window| !window.is_zero() || decision.remaining() > 0);
        Self { decision, window, quotas, is_shadow: false, charge: None }
    }

    /// What would have been decided, of a call that was let through all the same.
    pub(in crate::middleware) fn shadow_denial(&self) -> Option<&Decision> {
        Some(&self.decision).filter(|decision| self.is_shadow && !decision.is_allowed())
    }
}
