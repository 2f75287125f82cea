//! What a policy has decided, kept until the answer is made.

use std::any::Any;
use std::time::Duration;

use crate::algorithm::{Algorithm, Policy};
use crate::decision::Decision;
use crate::store::Reservation;

/// One policy's decision, with what is told of the rule behind it.
#[derive(Debug)]
pub struct Told {
    pub(super) decision: Decision,
    pub(super) window: Option<Duration>,
    /// The rule's quotas, where they are not those that the policy was built with.
    pub(super) quotas: Option<Box<[Policy]>>,
    /// Whether the call is let through whatever was decided, and nobody is told.
    pub(super) is_shadow: bool,
    /// If the call's cost is to be settled.
    pub(super) charge: Option<Charge>,
}

/// What a call was charged that is to be settled.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) reservation: Reservation,
    /// The rule that was chosen for the call; `None`: the limiter's.
    pub(super) rule: Option<Box<dyn Any + Send + Sync>>,
}

impl Told {
    /// `other`: the rule is not that of the policy's labels.
    #[inline]
    pub(super) fn new(rule: &impl Algorithm, decision: Decision, other: bool) -> Self {
        let quotas = other.then(|| {
            let mut quotas = Vec::new();
            rule.policies(&mut |quota| quotas.push(quota));
            quotas.into()
        });
        // With nothing left, a window of nothing is none: the rule was not asked when the next unit comes.
        let window = rule.window(&decision).filter(|window| !window.is_zero() || decision.remaining() > 0);
        Self { decision, window, quotas, is_shadow: false, charge: None }
    }

    /// What would have been decided, of a call that was let through all the same.
    pub(super) fn shadow_denial(&self) -> Option<&Decision> {
        Some(&self.decision).filter(|decision| self.is_shadow && !decision.is_allowed())
    }
}
