//! Every reported field can be parsed, and is true, for random names, quotas and states.

use std::thread;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Request, Response};
use tower::Service as _;
use tower_throttle::clock::{Clock, ManualClock, Nanos};
use tower_throttle::middleware::{HeaderFormat as Form, HttpResponder, ResetFormat};
use tower_throttle::{Decision, Quota};

use crate::generators::{KINDS, Kind, Rule, name, nanos};
use crate::header_parser::{Left, ParsedFields, Policy, number};
use crate::reference_service::{Cost, FORMS, Level, Member, Plan, Service, Verdict, behind, tamed};
use crate::support::{PolledByHand, Random, scaled};

const CASES: u64 = 100_000;
const THREADS: u64 = 4;

type Answering = PolledByHand<<Service as tower::Service<Request<Body>>>::Future>;

fn ask(service: &mut Service, cost: u64) -> Answering {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(Cost(cost));
    PolledByHand::new(service.call(request))
}

fn answer(service: &mut Service, cost: u64) -> Response<Body> {
    let mut hand = ask(service, cost);
    assert!(hand.poll(), "no call is queued here");
    hand.output.unwrap().unwrap()
}

/// A service with its layers, from the outermost inward, and the outcomes of the calls so far.
struct World {
    clock: ManualClock,
    service: Service,
    levels: Vec<Level>,
    /// The fields that the inner service has set itself.
    own: ParsedFields,
    legacy: Option<ResetFormat>,
    draft: bool,
    /// The time and the cost of each call.
    calls: Vec<(Nanos, u64)>,
    /// The responses whose bodies have not ended, each with the number of layers that admitted the call, and the cost.
    open: Vec<(Response<Body>, usize, u64)>,
}

impl World {
    fn any(random: &mut Random) -> Self {
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
    fn cost(&self, random: &mut Random) -> u64 {
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

    fn pass_time(&self, random: &mut Random) {
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

    fn end_a_body(&mut self, random: &mut Random) {
        if !self.open.is_empty() {
            let (response, levels, cost) =
                self.open.swap_remove(random.below(self.open.len() as u64) as usize);
            drop(response);
            for level in &self.levels[..levels] {
                level.over(cost);
            }
        }
    }

    /// Makes one call, and asserts that all fields of its response are true. Returns how many calls of cost 1 would be
    /// admitted now.
    fn call(&mut self, cost: u64) -> u64 {
        self.calls.push((self.clock.now(), cost));
        let before = SystemTime::now();
        let response = answer(&mut self.service, cost);
        let after = SystemTime::now();
        let mut verdicts: Vec<Verdict> = Vec::new();
        for level in &self.levels {
            verdicts.push(level.decide(cost));
            if !verdicts.last().unwrap().admitted {
                break;
            }
        }
        let admitted = verdicts.iter().filter(|verdict| verdict.admitted).count();
        let passed = admitted == self.levels.len();
        assert_eq!(response.status().as_u16(), if passed { 200 } else { 429 });
        self.draft_is_true(response.headers(), &verdicts, passed);
        self.legacy_is_true(response.headers(), &verdicts, (before, after));
        let decisions = verdicts.iter().flat_map(|verdict| &verdict.members);
        if passed {
            let known = response.extensions().get::<Decision>().unwrap();
            let remaining = decisions.clone().map(|limits| Member::remaining(limits)).min().unwrap();
            assert_eq!((known.is_allowed(), known.remaining()), (true, remaining));
            if let ([level], [verdict]) = (&self.levels[..], &verdicts[..])
                && let ([_], [decisions]) = (&level.members[..], &verdict.members[..])
                && let [decision] = &decisions[..]
            {
                let reported = |decision: &Decision| {
                    let reset = tamed(nanos_up(decision.reset_after().as_nanos()));
                    (decision.limit(), decision.remaining(), decision.delay(), reset)
                };
                assert_eq!(reported(known), reported(decision));
            }
        }
        let remaining = decisions.map(|limits| Member::remaining(limits)).min().unwrap();
        self.open.push((response, admitted, cost));
        if verdicts.len() == self.levels.len() { remaining } else { 0 }
    }

    fn draft_is_true(&self, headers: &HeaderMap, verdicts: &[Verdict], passed: bool) {
        let mut reported = ParsedFields::read(headers);
        for left in &mut reported.left {
            left.t = left.t.map(tamed);
        }
        let (mut policies, mut left) = (Vec::new(), reported.left.iter());
        if passed {
            policies.extend(self.own.policies.iter().cloned());
            for own in &self.own.left {
                assert_eq!(left.next(), Some(own));
            }
        }
        let levels = if self.draft { &self.levels[..verdicts.len()] } else { &[] };
        for (level, verdict) in levels.iter().zip(verdicts).rev() {
            for (member, decisions) in level.members.iter().zip(&verdict.members) {
                if member.hidden {
                    continue;
                }
                let taken: Vec<_> = policies.iter().map(|policy: &Policy| policy.name.clone()).collect();
                let free = |name: &String| !taken.contains(name);
                policies.extend(member.policies(decisions).into_iter().filter(|policy| free(&policy.name)));
                let options = member.left(decisions, verdict.cost);
                // If the inner service has reported the policy itself, the layer adds nothing.
                if options.iter().any(|left| free(&left.name)) {
                    let next = left.clone().next();
                    if next.is_some_and(|next| options.contains(next) && free(&next.name)) {
                        left.next();
                    } else {
                        assert!(
                            options.iter().any(|left| !free(&left.name)),
                            "{next:?} is none of {options:?}"
                        );
                    }
                }
            }
        }
        assert_eq!(left.next(), None, "nobody's: {reported:?}");
        assert_eq!(reported.policies, policies);
        let denied = verdicts.last().filter(|verdict| !verdict.admitted);
        let waits = denied.map(|verdict| verdict.members.iter().filter_map(|limits| Member::wait(limits)));
        let wait = waits.and_then(|waits| waits.reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)))).flatten();
        // If calls in progress are the reason, the wait is one second, or the longest wait of another policy. There is
        // no wait if waiting does not help.
        let never = |denial: &&Decision| {
            denial.retry_after().is_none() && verdicts.last().unwrap().cost > denial.limit()
        };
        let hint = denied.filter(|_| wait.is_none()).and_then(|verdict| {
            let mut denials = verdict.members.iter().flatten().filter(|decision| !decision.is_allowed());
            let waits = verdict.members.iter().filter_map(|limits| Member::wait(limits)).flatten();
            denials.all(|denial| !never(&denial)).then(|| waits.max().unwrap_or(1))
        });
        assert_eq!(reported.retry_after, wait.or(hint));
    }

    fn legacy_is_true(
        &self,
        headers: &HeaderMap,
        verdicts: &[Verdict],
        (before, after): (SystemTime, SystemTime),
    ) {
        let reported = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
            .map(|name| number(headers, name));
        // The innermost layer that is not hidden reports its limits.
        let visible = |level: &Level, verdict: &Verdict| {
            let members = level.members.iter().zip(verdict.members.clone());
            let visible = members.filter(|(member, _)| !member.hidden);
            visible.map(|(member, decisions)| (member.policies(&decisions), decisions)).collect::<Vec<_>>()
        };
        let levels = self.levels.iter().zip(verdicts).rev();
        let speaks = levels
            .map(|(level, verdict)| (visible(level, verdict), verdict))
            .find(|(all, _)| !all.is_empty());
        let (Some(reset), Some((members, verdict))) = (self.legacy, speaks) else {
            assert_eq!(reported, [None; 3]);
            return;
        };
        let denials: Vec<_> = members.iter().filter_map(|(_, decisions)| Member::wait(decisions)).collect();
        let longest = denials.iter().copied().reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)));
        let least = members.iter().map(|(_, decisions)| Member::remaining(decisions)).min().unwrap();
        let speaks = |decisions: &[Decision]| match longest {
            Some(_) => Member::wait(decisions) == longest,
            None => Member::remaining(decisions) == least,
        };
        let fits = members.iter().filter(|(_, decisions)| speaks(decisions)).any(|(policies, decisions)| {
            let nearest = Member::nearest(decisions);
            let is_whole = decisions.iter().map(|decision| decision.reset_after()).max().unwrap();
            // A rejection reports the wait, if the waits of all policies that denied the call are known.
            let denials = verdict.members.iter().flatten().filter(|decision| !decision.is_allowed());
            let comes_back =
                denials.map(|denial| denial.retry_after()).reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)));
            let time = if verdict.admitted { is_whole } else { comes_back.flatten().unwrap_or_default() };
            let in_seconds = |span: Duration| nanos_up(span.as_nanos());
            let epoch =
                |now: SystemTime| now.duration_since(SystemTime::UNIX_EPOCH).unwrap().saturating_add(time);
            nearest.into_iter().any(|at| {
                let unknown = match verdict.admitted {
                    true => policies[at].qu.is_some(),
                    false => comes_back.flatten().is_none(),
                };
                let reset = match (reset, reported[2]) {
                    (_, None) => unknown,
                    (ResetFormat::DeltaSeconds, Some(reported)) => {
                        !unknown && tamed(reported) == tamed(in_seconds(time))
                    }
                    (ResetFormat::EpochSeconds, Some(reported)) => {
                        !unknown
                            && (tamed(in_seconds(epoch(before)))..=in_seconds(epoch(after)))
                                .contains(&tamed(reported))
                    }
                };
                let limit =
                    reported[0].is_some_and(|limit| limit.min(crate::header_parser::MOST) == policies[at].q);
                reset && limit && reported[1] == Some(Member::remaining(decisions))
            })
        });
        assert!(fits, "{reported:?} is none of {members:?}");
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

fn nanos_up(nanos: u128) -> u64 {
    u64::try_from(nanos.div_ceil(1_000_000_000)).unwrap()
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

/// Calls that are decided immediately.
fn immediate(random: &mut Random) {
    let mut world = World::any(random);
    let mut left = 0;
    for _ in 0..1 + random.below(6) {
        world.pass_time(random);
        if random.one_in(3) {
            world.end_a_body(random);
        }
        let cost = world.cost(random);
        left = world.call(cost);
    }
    // Exactly the reported number of calls is admitted.
    if left <= 30 {
        for n in 0..left {
            let remaining = world.call(1);
            assert_eq!(remaining, left - n - 1);
            assert_eq!(world.open.last().unwrap().1, world.levels.len());
        }
    }
}

/// Calls that are queued, or rejected because the queue is full.
fn queued(random: &mut Random) {
    let clock = ManualClock::new();
    let kind = random.one_of(&[Kind::LeakyBucket, Kind::Bursty, Kind::WarmingUp]);
    let quota =
        Quota::per(1 + random.below(20), Duration::from_nanos(1 + random.below(100_000_000_000))).unwrap();
    let rule = Rule { quota, ..Rule::any(random, kind, true) };
    let name = name(random);
    let plan = Plan {
        form: FORMS[0],
        rules: vec![rule],
        names: vec![Some(name.clone())],
        hidden: vec![false],
        responder: HttpResponder::new(),
    };
    let (mut service, _) = plan.build(behind(HeaderMap::new()), &clock);
    let reference = rule.reference(&clock);
    let mut calls = Vec::new();
    for _ in 0..4 + random.below(10) {
        if random.one_in(3) {
            let interval = nanos(quota.period()) / quota.limit();
            clock.advance(Duration::from_nanos(random.below(2 * interval + 2)));
        } else {
            let cost = 1 + random.below(2);
            calls.push((ask(&mut service, cost), PolledByHand::new(reference.acquire(cost))));
        }
        calls.retain_mut(|(call, expected)| {
            let ended = call.poll();
            assert_eq!(ended, expected.poll());
            if ended {
                let response = call.output.take().unwrap().unwrap();
                let decision = expected.output.take().unwrap();
                assert_reported(rule, &name, &response, &decision, || {
                    let mut next = PolledByHand::new(reference.acquire(1));
                    assert!(next.poll(), "no units were reported as left");
                    next.output.unwrap().retry_after()
                });
            }
            !ended
        });
    }
}

fn assert_reported(
    rule: Rule,
    name: &str,
    response: &Response<Body>,
    decision: &Decision,
    next: impl FnOnce() -> Option<Duration>,
) {
    let reported = ParsedFields::read(response.headers());
    assert_eq!(response.status().as_u16(), if decision.is_allowed() { 200 } else { 429 });
    assert_eq!(reported.policies, [rule.policy(name, decision.limit())]);
    // While a call was queued, other calls may have been admitted.
    let has_waited = decision.is_allowed() && decision.remaining() == 0 && !decision.delay().is_zero();
    let t = if has_waited { reported.left[0].t } else { rule.t(decision, next) };
    assert_eq!(reported.left, [Left { name: name.to_owned(), r: decision.remaining(), t }]);
    assert!(t >= Some(1));
    let wait = if decision.is_allowed() { None } else { t };
    assert_eq!(reported.retry_after, wait);
    if decision.is_allowed() {
        assert_eq!(response.extensions().get(), Some(decision));
    }
}

/// Runs `count` cases. A failure prints its seed.
fn cases(count: u64, case: fn(&mut Random)) {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for seed in (thread..count).step_by(THREADS as usize) {
                    let reported = FailingSeed(seed);
                    case(&mut Random::new(seed));
                    drop(reported);
                }
            });
        }
    });
}

struct FailingSeed(u64);

impl Drop for FailingSeed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("with seed {}", self.0);
        }
    }
}

#[test]
fn all_reported_fields_parse_and_are_true() {
    cases(scaled(CASES), immediate);
}

#[test]
fn fields_are_true_for_queued_calls_and_for_a_full_queue() {
    cases(scaled(CASES) / 5, queued);
}
