//! Several policies, on keys of their own, that are charged all or none.

use std::collections::HashSet;
use std::convert::Infallible;

use super::policies::{Member, Names, Patience, Policies, Settle, Verdict, Waited, sealed};
use super::responder::{Report, StoreFailure};
use super::told::Told;
use crate::decision::Decision;
use crate::key::KeyError;
use crate::store::{
    AllDecided, BoxError, Decided, Few, Part, Permit, Together, TogetherWait, decide_together,
};

/// Two policies, or more: each may be two again. Made by [`and`](super::RateLimitLayer::and).
///
/// A request passes if both let it pass, and is then charged by both. If one denies it, neither is charged.
#[derive(Clone, Debug)]
pub struct Both<P, Q>(P, Q);

impl<P: Names, Q: Names> Both<P, Q> {
    pub(super) fn new(first: P, second: Q) -> Self {
        let mut taken = HashSet::new();
        let first = first.distinct(&mut taken);
        Self(first, second.distinct(&mut taken))
    }
}

impl<P, Q> sealed::Sealed for Both<P, Q> {}

impl<P: Names, Q: Names> Names for Both<P, Q> {
    fn distinct(self, taken: &mut HashSet<String>) -> Self {
        let first = self.0.distinct(taken);
        Self(first, self.1.distinct(taken))
    }
}

impl<Req, P: Member<Req>, Q: Member<Req>> Member<Req> for Both<P, Q> {
    fn gather<'a>(
        &'a self,
        request: &Req,
        patience: Patience<'_>,
        parts: &mut Few<Option<Part<'a>>>,
    ) -> Result<(), KeyError> {
        let first = self.0.gather(request, patience, parts);
        if matches!(&first, Err(error) if error.is_forbidden()) {
            return first;
        }
        // Asked in any case: whoever is not served is told so, and not that a key is missing.
        match self.1.gather(request, patience, parts) {
            Err(error) if error.is_forbidden() => Err(error),
            second => first.and(second),
        }
    }

    fn tell(&self, decided: &mut dyn Iterator<Item = Option<Decided>>, told: &mut Vec<Option<Told>>) {
        self.0.tell(decided, told);
        self.1.tell(decided, told);
    }

    fn shadow(&self, request: &Req, told: &mut dyn Iterator<Item = &mut Option<Told>>, permit: &mut Permit) {
        self.0.shadow(request, told, permit);
        self.1.shadow(request, told, permit);
    }

    fn reports<'a>(
        &'a self,
        told: &mut dyn Iterator<Item = &'a Option<Told>>,
        reports: &mut Few<Report<'a>>,
    ) {
        self.0.reports(told, reports);
        self.1.reports(told, reports);
    }

    fn observe_denials(&self, told: &mut dyn Iterator<Item = &Option<Told>>) {
        self.0.observe_denials(told);
        self.1.observe_denials(told);
    }

    fn observe_waits(&self, told: &mut dyn Iterator<Item = &Option<Told>>) {
        self.0.observe_waits(told);
        self.1.observe_waits(told);
    }

    fn blame(&self, error: BoxError) -> StoreFailure<'_> {
        self.0.blame(error)
    }
}

impl<P, Q> Both<P, Q> {
    fn told<Req>(&self, decided: Few<Option<Decided>>) -> Vec<Option<Told>>
    where
        Self: Member<Req>,
    {
        let mut told = Vec::with_capacity(decided.len());
        self.tell(&mut decided.into_iter(), &mut told);
        told
    }

    /// Of a call that all let pass which are not in shadow mode.
    fn admitted<Req>(&self, request: &Req, (decided, mut permit): AllDecided) -> (Vec<Option<Told>>, Permit)
    where
        Self: Member<Req>,
    {
        let mut told = self.told(decided);
        self.shadow(request, &mut told.iter_mut(), &mut permit);
        (told, permit)
    }
}

impl<Req, P: Member<Req>, Q: Member<Req>> Policies<Req> for Both<P, Q> {
    type Told = Vec<Option<Told>>;
    type Waited = AllDecided;
    type Error = Infallible;
    type Wait = Box<TogetherWait>;

    fn decide(&self, request: &Req, patience: Patience<'_>) -> Verdict<Self::Told, Self::Wait> {
        let mut parts = Few::new();
        if let Err(error) = self.gather(request, patience, &mut parts) {
            return Verdict::NoKey(error);
        }
        if parts.iter().all(Option::is_none) {
            let nothing = parts.iter().map(|_| None).collect();
            let (told, permit) = self.admitted(request, (nothing, Permit::default()));
            let in_shadow = told.iter().any(Option::is_some);
            return if in_shadow { Verdict::Admitted(told, permit) } else { Verdict::Pass };
        }
        match decide_together(parts) {
            Together::Admitted(decided) => {
                let (told, permit) = self.admitted(request, decided);
                Verdict::Admitted(told, permit)
            }
            Together::Denied(decided) => Verdict::Denied(self.told(decided)),
            Together::Later(wait) => Verdict::Later(wait),
        }
    }

    fn waited(&self, decided: AllDecided, request: &Req) -> Waited<Self::Told> {
        if decided.0.iter().flatten().all(|decided| decided.decision.is_allowed()) {
            let (told, permit) = self.admitted(request, decided);
            Waited::Admitted(told, permit)
        } else {
            Waited::Denied(self.told(decided.0))
        }
    }

    fn report<T>(&self, told: &Self::Told, tell: impl FnOnce(&[Report<'_>]) -> T) -> T {
        let mut reports = Few::new();
        self.reports(&mut told.iter(), &mut reports);
        tell(&reports)
    }

    fn shadow_denial<'a>(&self, told: &'a Self::Told) -> Option<&'a Decision> {
        told.iter().flatten().filter_map(Told::shadow_denial).next_back()
    }

    fn each(told: &mut Self::Told, look: &mut dyn FnMut(&mut dyn Iterator<Item = Option<&mut Told>>)) {
        look(&mut told.iter_mut().map(Option::as_mut));
    }

    fn observe_denial(&self, told: &Self::Told) {
        self.observe_denials(&mut told.iter());
    }

    fn observe_wait(&self, told: &Self::Told) {
        self.observe_waits(&mut told.iter());
    }

    fn observe_failure(&self, error: BoxError) -> StoreFailure<'_> {
        self.blame(error)
    }
}

impl<Res, P: Settle<Res>, Q: Settle<Res>> Settle<Res> for Both<P, Q> {
    fn settles(&self) -> bool {
        self.0.settles() || self.1.settles()
    }

    fn settle(&self, told: &mut dyn Iterator<Item = Option<&mut Told>>, response: &Res) {
        self.0.settle(told, response);
        self.1.settle(told, response);
    }
}
