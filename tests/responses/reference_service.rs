//! A service is behind limits, which a plan chooses, names and joins.

use std::convert::Infallible;

use axum::body::Body;
use http::{HeaderMap, Request, Response};
use tower::layer::Layer;
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};
use tower_throttle::algorithm::Algorithm;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::middleware::{self, ResponseBody};
use tower_throttle::{Decision, HttpResponder, RateLimitLayer, RateLimiter};

use crate::generators::{Rule, distinct, made};
use crate::reference_limits::{Level, Limit, Member};

pub(crate) type Boxed<E> = BoxCloneSyncService<Request<Body>, Response<Body>, E>;
pub(crate) type Service = Boxed<Infallible>;

/// The cost of a request, in its extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost(pub(crate) u64);

pub(crate) type CostOf = middleware::types::CostFn<fn(&Request<Body>) -> u64>;

pub(crate) fn cost_of(request: &Request<Body>) -> u64 {
    request.extensions().get().map_or(1, |Cost(cost)| *cost)
}

/// A service that answers with these fields, and returns the decision that it finds in its request.
pub(crate) fn behind(headers: HeaderMap) -> Service {
    BoxCloneSyncService::new(service_fn(move |request: Request<Body>| {
        let mut response = Response::new(Body::from("hello"));
        *response.headers_mut() = headers.clone();
        if let Some(decision) = request.extensions().get::<Decision>() {
            response.extensions_mut().insert(*decision);
        }
        std::future::ready(Ok(response))
    }))
}

/// Returns the service behind the layer. The bodies of its responses are again of the type that the service has.
pub(crate) fn limited<L, E>(layer: L, inner: Boxed<E>) -> Boxed<E>
where
    L: Layer<Boxed<E>>,
    L::Service: tower::Service<Request<Body>, Response = Response<ResponseBody<Body>>, Error = E>,
    L::Service: Clone + Send + Sync + 'static,
    <L::Service as tower::Service<Request<Body>>>::Future: Send,
{
    let service = layer.layer(inner);
    BoxCloneSyncService::new(service.map_response(|response| response.map(Body::new)))
}

/// The combination of the limits of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Single,
    /// A tuple, which is one policy with several limits.
    Tuple(usize),
    /// Layers joined by `and`.
    And(usize),
}

pub(crate) const FORMS: [Form; 12] = [
    Form::Single,
    Form::Tuple(0),
    Form::Tuple(1),
    Form::Tuple(2),
    Form::Tuple(3),
    Form::Tuple(4),
    Form::Tuple(5),
    Form::And(0),
    Form::And(1),
    Form::And(2),
    Form::And(3),
    Form::And(4),
];

impl Form {
    /// Returns the number of rules that the combination needs.
    pub(crate) fn rules(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Tuple(5) | Self::And(3 | 4) => 3,
            Self::Tuple(_) | Self::And(_) => 2,
        }
    }

    /// Returns the policies of the combination. Each policy is a list of indices of rules.
    fn members(self) -> &'static [&'static [usize]] {
        match self {
            Self::Single => &[&[0]],
            Self::Tuple(5) => &[&[0, 1, 2]],
            Self::Tuple(_) => &[&[0, 1]],
            Self::And(3) => &[&[0, 1], &[2]],
            Self::And(4) => &[&[0], &[1], &[2]],
            Self::And(_) => &[&[0], &[1]],
        }
    }
}

/// The configuration of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) form: Form,
    pub(crate) rules: Vec<Rule>,
    /// The names of the policies, as they are configured.
    pub(crate) names: Vec<Option<String>>,
    pub(crate) hidden: Vec<bool>,
    pub(crate) responder: HttpResponder,
}

impl Plan {
    fn policy<A: Algorithm>(
        &self,
        at: usize,
        algorithm: A,
        clock: &ManualClock,
    ) -> RateLimitLayer<Global, A, CostOf> {
        let limiter = RateLimiter::builder(algorithm).clock(clock.clone()).build();
        let layer = RateLimitLayer::with_limiter(Global, limiter).cost(cost_of as fn(&_) -> _);
        let layer = if self.hidden[at] { layer.hidden() } else { layer };
        match &self.names[at] {
            Some(name) => layer.name(name),
            None => layer,
        }
    }

    /// Builds the service behind the layer, and its model.
    pub(crate) fn build(&self, inner: Service, clock: &ManualClock) -> (Service, Level) {
        let (rules, responder) = (&self.rules, self.responder);
        let [a, b, c] = [0, 1, 2].map(|at| rules[at.min(rules.len() - 1)]);
        let service = match self.form {
            Form::Single => {
                made!(a, |rule| limited(self.policy(0, rule, clock).responder(responder), inner))
            }
            Form::Tuple(0) => self.one((a.token_bucket(), b.fixed_window()), clock, inner),
            Form::Tuple(1) => self.one((a.sliding_window(), b.sliding_log()), clock, inner),
            Form::Tuple(2) => self.one((a.sliding_counter(), b.leaky_bucket()), clock, inner),
            Form::Tuple(3) => self.one((a.fixed_window(), b.concurrency()), clock, inner),
            Form::Tuple(4) => self.one((a.bursty(), b.token_bucket()), clock, inner),
            Form::Tuple(_) => {
                self.one((a.token_bucket(), b.fixed_window(), c.sliding_counter()), clock, inner)
            }
            Form::And(0) => {
                let (a, b) = (a.fixed_window(), b.token_bucket());
                let layers = self.policy(0, a, clock).and(self.policy(1, b, clock));
                limited(layers.responder(responder), inner)
            }
            Form::And(1) => {
                let (a, b) = (a.leaky_bucket(), b.sliding_counter());
                let layers = self.policy(0, a, clock).and(self.policy(1, b, clock));
                limited(layers.responder(responder), inner)
            }
            Form::And(2) => {
                let (a, b) = (a.concurrency(), b.sliding_log());
                let layers = self.policy(0, a, clock).and(self.policy(1, b, clock));
                limited(layers.responder(responder), inner)
            }
            Form::And(3) => {
                let (a, b) = ((a.fixed_window(), b.token_bucket()), c.sliding_window());
                let layers = self.policy(0, a, clock).and(self.policy(1, b, clock));
                limited(layers.responder(responder), inner)
            }
            Form::And(_) => {
                let (a, b, c) = (a.bursty(), b.fixed_window(), c.token_bucket());
                let layers = self.policy(0, a, clock).and(self.policy(1, b, clock));
                limited(layers.and(self.policy(2, c, clock)).responder(responder), inner)
            }
        };
        (service, self.model(clock))
    }

    fn one<A: Algorithm>(&self, algorithm: A, clock: &ManualClock, inner: Service) -> Service {
        limited(self.policy(0, algorithm, clock).responder(self.responder), inner)
    }

    /// Returns the kinds of the rules of a combination.
    fn kinds(&self) -> Vec<Rule> {
        use crate::generators::Kind::*;
        let kinds: &[_] = match self.form {
            Form::Single => return self.rules.clone(),
            Form::Tuple(0) => &[TokenBucket, FixedWindow],
            Form::Tuple(1) => &[SlidingWindow, SlidingLog],
            Form::Tuple(2) => &[SlidingCounter, LeakyBucket],
            Form::Tuple(3) => &[FixedWindow, Concurrency],
            Form::Tuple(4) => &[Bursty, TokenBucket],
            Form::Tuple(_) => &[TokenBucket, FixedWindow, SlidingCounter],
            Form::And(0) => &[FixedWindow, TokenBucket],
            Form::And(1) => &[LeakyBucket, SlidingCounter],
            Form::And(2) => &[Concurrency, SlidingLog],
            Form::And(3) => &[FixedWindow, TokenBucket, SlidingWindow],
            Form::And(_) => &[Bursty, FixedWindow, TokenBucket],
        };
        kinds.iter().zip(&self.rules).map(|(kind, rule)| Rule { kind: *kind, ..*rule }).collect()
    }

    fn model(&self, clock: &ManualClock) -> Level {
        let members = self.form.members();
        let given: Vec<_> = members
            .iter()
            .enumerate()
            .flat_map(|(at, limits)| limits.iter().map(move |_| at))
            .map(|at| self.names[at].clone().unwrap_or_else(|| "default".to_owned()))
            .collect();
        let names = distinct(&given).into_iter().zip(given);
        let mut limits = names.zip(self.kinds()).map(|((name, given), rule)| Limit {
            given,
            name,
            rule,
            reference: rule.reference(clock),
        });
        let members = members.iter().enumerate().map(|(at, indices)| Member {
            limits: limits.by_ref().take(indices.len()).collect(),
            hidden: self.hidden[at],
        });
        Level { members: members.collect() }
    }
}
