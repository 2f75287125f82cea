use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::iter;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::counts::KeyCounters;
use super::label::Labels;
use super::policies::{Member, Names, Patience, Policies, Receipts, Settle, Verdict, Waited, sealed};
use super::responder::{Report, StoreFailure};
use super::shadow::Shadow;
use super::terms::{One, Settles, Terms};
use super::told::Told;
use crate::algorithm::Algorithm;
use crate::clock::Nanos;
use crate::decision::Decision;
use crate::error::NameError;
use crate::key::{Caller, KeyError, KeyExtractor, MissingKey};
use crate::limiter::RateLimiter;
use crate::observe::Observer;
use crate::store::{Answer, BoxError, Call, Decided, Few, MemoryStore, Part, Permit, Receipt, Store};

/// One policy: who is asking, the limiter, what a request costs, and the name.
pub struct Policy<K, A: Algorithm, C = One, S = MemoryStore<A>> {
    key: K,
    limiter: RateLimiter<A, S>,
    terms: C,
    labels: Labels,
    missing: MissingKey,
    shadow: Option<Shadow>,
    counters: Arc<KeyCounters>,
    observer: Observer,
}

impl<K, A: Algorithm, S> Policy<K, A, One, S> {
    pub(super) fn new(key: K, limiter: RateLimiter<A, S>) -> Self {
        let labels = Labels::unnamed(&*limiter.algorithm());
        Self {
            key,
            limiter,
            terms: One,
            labels,
            missing: MissingKey::default(),
            shadow: None,
            counters: Arc::default(),
            observer: Observer::default(),
        }
    }
}

impl<K, A: Algorithm, C, S> Policy<K, A, C, S> {
    pub(super) fn named(self, name: &str) -> Result<Self, NameError> {
        Ok(Self { labels: self.labels.named(name)?, ..self })
    }

    pub(super) fn on<D>(self, terms: impl FnOnce(C) -> D) -> Policy<K, A, D, S> {
        let Self { key, limiter, terms: old, labels, missing, shadow, counters, observer } = self;
        Policy { key, limiter, terms: terms(old), labels, missing, shadow, counters, observer }
    }

    pub(super) fn by<L>(self, by: impl FnOnce(K) -> L) -> Policy<L, A, C, S> {
        let Self { key, limiter, terms, labels, missing, shadow, counters, observer } = self;
        Policy { key: by(key), limiter, terms, labels, missing, shadow, counters, observer }
    }

    pub(super) fn hidden(self) -> Self {
        Self { labels: self.labels.hidden(), ..self }
    }

    pub(super) fn shadowed(self, shadow: Shadow) -> Self {
        Self { shadow: Some(shadow), ..self }
    }

    pub(super) fn without_key(self, missing: MissingKey) -> Self {
        Self { missing, ..self }
    }

    pub(super) fn counters(&self) -> &KeyCounters {
        &self.counters
    }

    pub(super) fn limiter(&self) -> &RateLimiter<A, S> {
        &self.limiter
    }

    #[inline]
    fn told(&self, decision: Decision, rule: Option<&A>, receipt: Option<Receipt>) -> Told {
        let told = match rule {
            Some(rule) => Told::new(rule, decision, true),
            None => Told::new(&*self.limiter.algorithm(), decision, self.limiter.is_replaced()),
        };
        Told { receipt, ..told }
    }

    /// The switch, if it is on.
    #[inline]
    fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref().filter(|shadow| shadow.is_on())
    }

    /// A call that is let through, whatever was decided.
    fn in_shadow(&self, told: Told, shadow: &Shadow) -> Told {
        let told = Told { is_shadow: true, ..told };
        if let Some(decision) = told.shadow_denial() {
            shadow.count();
            self.observer.shadow(self.labels.first().name(), decision);
        }
        told
    }

    /// The rule that was chosen for the request; `None`: the limiter's.
    #[inline]
    fn rule<Req>(&self, request: &Req, caller: &Caller<K::Key>) -> Option<A>
    where
        K: KeyExtractor<Req>,
        C: Terms<Req, K::Key, A>,
    {
        match caller {
            Caller::Known(key) => self.terms.rule(request, key),
            Caller::Unknown => None,
        }
    }

    /// How long the caller waits at most, if calls by that rule, or the limiter's, may be held.
    #[inline]
    fn patience(&self, rule: Option<&A>, patience: Patience<'_>) -> Option<Duration> {
        match rule {
            Some(rule) if rule.queues() => patience(),
            Some(_) => None,
            // Of a rule that was replaced, asking costs more than the caller does.
            None if self.limiter.is_replaced() => patience(),
            None if self.limiter.algorithm().queues() => patience(),
            None => None,
        }
    }

    fn failure(&self, error: BoxError) -> StoreFailure<'_> {
        StoreFailure { label: self.labels.first(), is_hidden: self.labels.is_hidden(), error }
    }

    fn observe(&self, decision: &Decision) {
        let denied = !decision.is_allowed() && decision.retry_after().is_none();
        if denied && !decision.is_closed() && !self.limiter.algorithm().holds() {
            self.observer.never_fits(self.labels.first().name());
        }
    }

    /// Whose budget the request draws on; `None`: it is not limited.
    #[inline]
    fn caller<Req>(&self, request: &Req) -> Result<Option<Caller<K::Key>>, KeyError>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => Ok(key.map(Caller::Known)),
            Err(error) => self.no_key(error),
        }
    }

    /// The same once more, of a request that was counted.
    fn caller_again<Req>(&self, request: &Req) -> Option<Caller<K::Key>>
    where
        K: KeyExtractor<Req>,
    {
        match self.key.extract(request) {
            Ok(key) => key.map(Caller::Known),
            Err(_) => (self.missing == MissingKey::Shared).then_some(Caller::Unknown),
        }
    }

    #[cold]
    fn no_key<T>(&self, error: KeyError) -> Result<Option<Caller<T>>, KeyError> {
        if error.is_forbidden() {
            self.counters.forbid();
            return Err(error);
        }
        self.counters.miss(self.missing);
        self.observer.no_key(self.labels.first().name(), &error, self.missing);
        match self.missing {
            MissingKey::Reject => Err(error),
            MissingKey::Shared => Ok(Some(Caller::Unknown)),
            MissingKey::Pass => Ok(None),
        }
    }
}

impl<K, A: Algorithm, C, S> Policy<K, A, C, S> {
    #[inline]
    fn decide_for<Req>(
        &self,
        request: &Req,
        caller: &Caller<K::Key>,
        patience: Patience<'_>,
    ) -> Verdict<Told, Waiting<S::Wait, A>>
    where
        K: KeyExtractor<Req>,
        C: Terms<Req, K::Key, A>,
        S: Store<A, Caller<K::Key>>,
    {
        let rule = self.rule(request, caller);
        let (cost, priority) = (self.terms.cost(request), self.terms.has_priority(request));
        let mut call = Call::with(cost, rule.as_ref(), priority);
        let shadow = self.shadow();
        // A call that is let through anyway does not wait.
        let patience: Patience<'_> = if shadow.is_some() { &|| Some(Duration::ZERO) } else { patience };
        if let Some(patience) = self.patience(rule.as_ref(), patience) {
            call = call.within(patience);
        }
        let receipt = match self.terms.is_settled() {
            true => self.limiter.receipt(caller, &call),
            false => None,
        };
        let (decision, permit) = match self.limiter.decide(caller, call) {
            Answer::Now(decision) => (decision, Permit::default()),
            Answer::Holding(decision, permit) => (decision, permit),
            Answer::Later(wait) => {
                return Verdict::Later(Waiting { wait, rule, receipt, permit: S::permit });
            }
        };
        match (decision.is_allowed(), shadow) {
            (true, None) => Verdict::Admitted(self.told(decision, rule.as_ref(), receipt), permit),
            (false, None) => Verdict::Denied(self.told(decision, rule.as_ref(), None)),
            (allowed, Some(shadow)) => {
                let told = self.told(decision, rule.as_ref(), receipt.filter(|_| allowed));
                Verdict::Admitted(self.in_shadow(told, shadow), permit)
            }
        }
    }
}

impl<K, A: Algorithm, C, S> sealed::Sealed for Policy<K, A, C, S> {}

impl<Req, K, A, C, S> Policies<Req> for Policy<K, A, C, S>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: Terms<Req, K::Key, A>,
    S: Store<A, Caller<K::Key>>,
{
    type Told = Told;
    type Waited = Ended<A>;
    type Error = S::Error;
    type Wait = Waiting<S::Wait, A>;

    #[inline]
    fn decide(&self, request: &Req, patience: Patience<'_>) -> Verdict<Told, Self::Wait> {
        let caller = match self.caller(request) {
            Ok(Some(caller)) => caller,
            Ok(None) => return Verdict::Pass,
            Err(error) => return Verdict::NoKey(error),
        };
        self.decide_for(request, &caller, patience)
    }

    fn waited(&self, ended: Ended<A>, _: &Req) -> Waited<Told> {
        let Ended { decision, rule, receipt, permit } = ended;
        let allowed = decision.is_allowed();
        let told = self.told(decision, rule.as_ref(), receipt.filter(|_| allowed));
        match (allowed, self.shadow()) {
            (true, None) => Waited::Admitted(told, permit),
            (false, None) => Waited::Denied(told),
            (_, Some(shadow)) => Waited::Admitted(self.in_shadow(told, shadow), permit),
        }
    }

    #[inline]
    fn report<T>(&self, told: &Told, tell: impl FnOnce(&[Report<'_>]) -> T) -> T {
        if told.is_shadow { tell(&[]) } else { tell(&[Report::new(&self.labels, told)]) }
    }

    fn shadow_denial<'a>(&self, told: &'a Told) -> Option<&'a Decision> {
        told.shadow_denial()
    }

    fn each(told: &Told, look: &mut dyn FnMut(&mut dyn Iterator<Item = Option<&Told>>)) {
        look(&mut iter::once(Some(told)));
    }

    fn observe_denial(&self, told: &Told) {
        self.observe(&told.decision);
    }

    fn observe_wait(&self, told: &Told) {
        self.observer.waited(self.labels.first().name(), &told.decision);
    }

    fn observe_failure(&self, error: BoxError) -> StoreFailure<'_> {
        self.observer.no_store(self.labels.first().name(), &error);
        self.failure(error)
    }
}

impl<Req, K, A, C> Member<Req> for Policy<K, A, C>
where
    K: KeyExtractor<Req>,
    A: Algorithm,
    C: Terms<Req, K::Key, A>,
{
    fn gather<'a>(
        &'a self,
        request: &Req,
        patience: Patience<'_>,
        parts: &mut Few<Option<Part<'a>>>,
        receipts: &mut Receipts,
    ) -> Result<(), KeyError> {
        let caller = self.caller(request)?.filter(|_| self.shadow().is_none());
        let mut receipt = None;
        parts.push(caller.map(|caller| {
            let (cost, rule) = (self.terms.cost(request), self.rule(request, &caller));
            let priority = self.terms.has_priority(request);
            if self.terms.is_settled() {
                receipt = self.limiter.receipt(&caller, &Call::with(cost, rule.as_ref(), priority));
            }
            let patience = self.patience(rule.as_ref(), patience);
            let patience = patience.map_or(u64::MAX, |patience| Nanos::from(patience).0);
            self.limiter.part(&caller, cost, rule, priority, patience)
        }));
        receipts.push(receipt);
        Ok(())
    }

    fn shadow(&self, request: &Req, told: &mut dyn Iterator<Item = &mut Option<Told>>, permit: &mut Permit) {
        let told = told.next();
        if self.shadow().is_some()
            && let Some(caller) = self.caller_again(request)
            && let (Verdict::Admitted(shadow, held), Some(told)) =
                (self.decide_for(request, &caller, &|| None), told)
        {
            *told = Some(shadow);
            *permit = mem::take(permit).and(held);
        }
    }

    fn tell(&self, decided: &mut dyn Iterator<Item = Option<Decided>>, told: &mut Vec<Option<Told>>) {
        let decided = decided.next().flatten();
        told.push(decided.map(|Decided { decision, rule }| {
            let rule = rule.as_deref().and_then(|rule| rule.downcast_ref());
            self.told(decision, rule, None)
        }));
    }

    fn reports<'a>(
        &'a self,
        told: &mut dyn Iterator<Item = &'a Option<Told>>,
        reports: &mut Few<Report<'a>>,
    ) {
        if let Some(Some(told)) = told.next()
            && !told.is_shadow
        {
            reports.push(Report::new(&self.labels, told));
        }
    }

    fn observe_denials(&self, told: &mut dyn Iterator<Item = &Option<Told>>) {
        if let Some(Some(told)) = told.next() {
            self.observe(&told.decision);
        }
    }

    fn observe_waits(&self, told: &mut dyn Iterator<Item = &Option<Told>>) {
        if let Some(Some(told)) = told.next() {
            self.observer.waited(self.labels.first().name(), &told.decision);
        }
    }

    fn blame(&self, error: BoxError) -> StoreFailure<'_> {
        self.failure(error)
    }
}

impl<K, A: Algorithm, C, S> Names for Policy<K, A, C, S> {
    fn distinct(self, taken: &mut HashSet<String>) -> Self {
        Self { labels: self.labels.distinct(taken), ..self }
    }
}

impl<K: Clone, A: Algorithm, C: Clone, S> Clone for Policy<K, A, C, S> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            limiter: self.limiter.clone(),
            terms: self.terms.clone(),
            labels: self.labels.clone(),
            missing: self.missing,
            shadow: self.shadow.clone(),
            counters: Arc::clone(&self.counters),
            observer: Observer::default(),
        }
    }
}

impl<K, A: Algorithm, C, S> fmt::Debug for Policy<K, A, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.labels.first().name())
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

impl<Res, K, A: Algorithm, C: Settles<Res>, S> Settle<Res> for Policy<K, A, C, S> {
    #[inline]
    fn settles(&self) -> bool {
        self.terms.settles()
    }

    fn settle(&self, told: &mut dyn Iterator<Item = Option<&Told>>, response: &Res) {
        if let Some(Some(told)) = told.next()
            && told.receipt.is_some()
        {
            told.settle(self.terms.actual(response));
        }
    }
}

/// What a wait ended with.
#[derive(Debug)]
pub struct Ended<A> {
    decision: Decision,
    rule: Option<A>,
    receipt: Option<Receipt>,
    permit: Permit,
}

pin_project! {
    /// A store's answer to come, the rule that the call goes by, and how to ask what it holds.
    #[derive(Debug)]
    pub struct Waiting<W, A> {
        #[pin]
        wait: W,
        rule: Option<A>,
        receipt: Option<Receipt>,
        permit: fn(Pin<&mut W>) -> Permit,
    }
}

impl<W, A, E> Future for Waiting<W, A>
where
    W: Future<Output = Result<Decision, E>>,
{
    type Output = Result<Ended<A>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let decision = ready!(this.wait.as_mut().poll(cx))?;
        let permit = if decision.is_allowed() { (this.permit)(this.wait) } else { Permit::default() };
        Poll::Ready(Ok(Ended { decision, rule: this.rule.take(), receipt: this.receipt.take(), permit }))
    }
}
