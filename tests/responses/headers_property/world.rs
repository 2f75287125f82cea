//! A service with random layers is built, time passes for it, and the bodies of its responses end.

use std::thread;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Request, Response};
use tower::Service as _;
use tower_throttle::clock::{Clock, ManualClock, Nanos};
use tower_throttle::middleware::{HeaderFormat as Form, HttpResponder, ResetFormat};

use crate::generators::{KINDS, Rule, name, nanos};
use crate::header_parser::ParsedFields;
use crate::reference_limits::Level;
use crate::reference_service::{Cost, FORMS, Plan, Service, behind};
use crate::support::{PolledByHand, Random};

pub(super) type Answering = PolledByHand<<Service as tower::Service<Request<Body>>>::Future>;

pub(super) fn ask(service: &mut Service, cost: u64) -> Answering {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(Cost(cost));
    PolledByHand::new(service.call(request))
}

/// A service with its layers, from the outermost inward, and the outcomes of the calls so far.
pub(super) struct World {
    pub(super) clock: ManualClock,
    pub(super) service: Service,
    pub(super) levels: Vec<Level>,
    /// The fields that the inner service has set itself.
    pub(super) own: ParsedFields,
    pub(super) legacy: Option<ResetFormat>,
    pub(super) draft: bool,
    /// The time and the cost of each call.
    pub(super) calls: Vec<(Nanos, u64)>,
    /// The responses whose bodies have not ended, each with the number of layers that admitted the call, and the cost.
    pub(super) open: Vec<(Response<Body>, usize, u64)>,
}

impl World {
    pub(super) fn any(random: &mut Random) -> Self {
        let clock = ManualClock::new();
        clock.set(Duration::from_nanos(random.any_size() >> 2));
        let own = if random.one_in(8) { own_fields(random) } else { HeaderMap::new() };
        let draft = !random.one_in(8);
        let legacy =
            random.one_of(&[None, None, Some(ResetFormat::DeltaSeconds), Some(ResetFormat::EpochSeconds)]);
        let forms = draft.then_some(Form::Draft11).into_iter().chain(legacy.map(Form::XRateLimit));
        let responder = HttpResponder::new().headers(forms);
        let layers = if random.one_in(4) { 2 + random.below(2) } else { 1 };
        // The set of names is small, so that some names are repeated.
        let names: Vec<_> = (0..3).map(|_| name(random)).chain(["own".to_owned()]).collect();
        let (mut service, mut levels) = (behind(own.clone()), Vec::new());
        for _ in 0..layers {
            let form = if random.one_in(2) { FORMS[0] } else { random.one_of(&FORMS) };
            let rule = |_| {
                let kind = random.one_of(&KINDS);
                Rule::any(random, kind, false)
            };
            let rules = (0..form.rules()).map(rule).collect();
            let names = (0..3).map(|_| match random.one_in(5) {
                true => None,
                false => Some(names[random.below(4) as usize].clone()),
            });
            let names = names.collect();
            let hidden = (0..3).map(|_| random.one_in(12)).collect();
            let plan = Plan { form, rules, names, hidden, responder };
            let (limited, level) = plan.build(service, &clock);
            service = limited;
            levels.insert(0, level);
        }
        let own = ParsedFields::read(&own);
        Self { clock, service, levels, own, legacy, draft, calls: Vec::new(), open: Vec::new() }
    }

    /// Returns a random cost near one of the limits.
    pub(super) fn cost(&self, random: &mut Random) -> u64 {
        let level = &self.levels[random.below(self.levels.len() as u64) as usize];
        let limits: Vec<_> = level.members.iter().flat_map(|member| &member.limits).collect();
        let limit = limits[random.below(limits.len() as u64) as usize];
        let left = limit.reference.peek(0).remaining();
        match random.below(8) {
            0 => 0,
            1 => left,
            2 => left.saturating_add(1),
            3 => left.saturating_sub(1 + random.below(3)),
            4 => limit.rule.quota.limit().saturating_add(1),
            5 => random.any_size(),
            _ => 1,
        }
    }

    pub(super) fn pass_time(&self, random: &mut Random) {
        let level = &self.levels[random.below(self.levels.len() as u64) as usize];
        let limit = &level.members[0].limits[0];
        let wait = limit.reference.peek(1).retry_after().map_or(0, nanos);
        let period = nanos(limit.rule.quota.period());
        let span = match random.below(8) {
            0 => wait,
            1 => wait.saturating_sub(1),
            2 => random.below(period) + 1,
            3 => random.below(1_000_000_000),
            4 => random.any_size(),
            5 => random.below(period) / 10,
            _ => 0,
        };
        // The last nanosecond of the clock is not tested here.
        self.clock.advance(Duration::from_nanos(span.min((u64::MAX / 2).saturating_sub(self.clock.now().0))));
    }

    pub(super) fn end_a_body(&mut self, random: &mut Random) {
        if !self.open.is_empty() {
            let (response, levels, cost) =
                self.open.swap_remove(random.below(self.open.len() as u64) as usize);
            drop(response);
            for level in &self.levels[..levels] {
                level.over(cost);
            }
        }
    }
}

/// Prints the state of a failed test.
impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("calls {:?} of {:#?}", self.calls, self.levels);
        }
    }
}

/// Returns the fields of a service that reports limits of its own.
fn own_fields(random: &mut Random) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let names = ["\"own\"", "\"default\"", "\"x,\"", "\";q\"", r#""a\"b""#];
    let some: Vec<_> = names.into_iter().filter(|_| random.one_in(2)).collect();
    for name in some {
        let mut append = |field, value: String| headers.append(field, HeaderValue::from_str(&value).unwrap());
        append("ratelimit-policy", format!("{name};q=7;w=7"));
        append("ratelimit", format!("{name};r=7;t=7"));
    }
    headers
}
