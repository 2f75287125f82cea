//! The response to each call reports exactly what the reference limiters decide.

use std::time::{Duration, SystemTime};

use axum::body::Body;
use http::{HeaderMap, Response};
use tower_throttle::Decision;
use tower_throttle::clock::Clock;
use tower_throttle::middleware::ResetFormat;

use super::world::{World, ask};
use crate::generators::unlike;
use crate::header_parser::{ParsedFields, Policy, number};
use crate::reference_limits::{Level, Member, Verdict, tamed};
use crate::reference_service::Service;

fn answer(service: &mut Service, cost: u64) -> Response<Body> {
    let mut hand = ask(service, cost);
    assert!(hand.poll(), "no call is queued here");
    hand.output.unwrap().unwrap()
}

impl World {
    /// Makes one call, and asserts that all fields of its response are true. Returns how many calls of cost 1 would be
    /// admitted now.
    pub(super) fn call(&mut self, cost: u64) -> u64 {
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
        // The names in the `RateLimit` of the inner service, which may have no `RateLimit-Policy`.
        let mut own = Vec::new();
        if passed {
            own.extend(self.own.left.iter().map(|left| left.name.clone()));
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
                // If a limit of the same name has been reported already, this one gets a number.
                let known = policies.len();
                for (limit, mut policy) in member.limits.iter().zip(member.policies()) {
                    let of_own = own.iter().cloned();
                    let taken: Vec<_> =
                        policies.iter().map(|policy: &Policy| policy.name.clone()).chain(of_own).collect();
                    policy.name = unlike(&taken, &limit.name, &limit.given);
                    policies.push(policy);
                }
                let reported_name = |name: &String| {
                    let at = member.limits.iter().position(|limit| limit.name == *name).unwrap();
                    policies[known + at].name.clone()
                };
                let mut options = member.left(decisions, verdict.cost);
                for option in &mut options {
                    option.name = reported_name(&option.name);
                }
                let next = left.next();
                assert!(next.is_some_and(|next| options.contains(next)), "{next:?} is none of {options:?}");
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
            visible.map(|(member, decisions)| (member.policies(), decisions)).collect::<Vec<_>>()
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
                    (other, _) => panic!("{other:?}"),
                };
                let limit =
                    reported[0].is_some_and(|limit| limit.min(crate::header_parser::MOST) == policies[at].q);
                reset && limit && reported[1] == Some(Member::remaining(decisions))
            })
        });
        assert!(fits, "{reported:?} is none of {members:?}");
    }
}

fn nanos_up(nanos: u128) -> u64 {
    u64::try_from(nanos.div_ceil(1_000_000_000)).unwrap()
}
