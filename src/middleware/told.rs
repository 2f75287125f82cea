//! What a policy has decided, kept until the answer is made.

use std::time::Duration;

use crate::algorithm::{Algorithm, Policy};
use crate::decision::Decision;

/// One policy's decision, with what is told of the rule behind it.
#[derive(Clone, Debug)]
pub struct Told {
    pub(super) decision: Decision,
    pub(super) window: Option<Duration>,
    /// The rule's quotas, where they are not those that the policy was built with.
    pub(super) quotas: Option<Box<[Policy]>>,
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
        Self { decision, window: rule.window(&decision), quotas }
    }
}
