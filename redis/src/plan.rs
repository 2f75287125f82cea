use std::sync::Arc;

use super::decide_script::KeySteps;
use super::error::{RedisError, RedisErrorKind};
use super::packed::{Packed, packed};
use super::scripts::{Script, TimeSource};
use tower_throttle::algorithm::StoredAlgorithm;
use tower_throttle::clock::Nanos;
use tower_throttle::error::ConfigError;
use tower_throttle::store_support::{ScriptSteps, Step, StepKind};

/// The version of the format of a key's value in Redis. It is the first word of the value.
pub(super) const VERSION: &str = "1";

/// An algorithm, with the script that decides its checks, and the beginning of the values that it writes.
#[derive(Debug)]
pub(super) struct Plan<A> {
    pub(super) algorithm: A,
    /// The beginning of the values that this process writes: the version, and the algorithm's
    /// [`unit`](StoredAlgorithm::unit).
    prefix: String,
    script: Option<PlannedScript>,
    /// `true` if a call that waits is charged at once, for the time of its release.
    pub(super) hands_out_times: bool,
}

#[derive(Debug)]
struct PlannedScript {
    script: Script,
    part: ScriptPart,
}

/// The part of a limiter in a script.
#[derive(Clone, Debug)]
pub(super) struct ScriptPart {
    pub(super) kinds: Vec<StepKind>,
    /// The arguments of the steps, each as eight bytes.
    pub(super) arguments: Vec<u8>,
    max_cost: u64,
}

impl<A: StoredAlgorithm> Plan<A> {
    /// Creates the plan, or returns an error if the states of the algorithm cannot be kept in Redis.
    pub(super) fn new(algorithm: A, source: TimeSource, scripts: bool) -> Result<Arc<Self>, RedisError> {
        let unstorable = |error: ConfigError| RedisError::new(RedisErrorKind::Algorithm, error.to_string());
        algorithm.check_storable().map_err(unstorable)?;
        let prefix = format!("{VERSION} {}", algorithm.unit());
        // In the argument of a script, a zero byte ends the prefix.
        let has_script = scripts && !prefix.contains('\0');
        let script = algorithm.script().filter(|_| has_script).map(ScriptPart::new).and_then(|part| {
            let script = Script::decide(source, &[part.steps(false)])?;
            Some(PlannedScript { script, part })
        });
        let mut fresh = algorithm.new_state(Nanos::ZERO, Nanos::ZERO);
        let hands_out_times = algorithm.reserve_slot(&mut fresh, Nanos::ZERO, 0, 0).is_some();
        Ok(Arc::new(Self { algorithm, prefix, script, hands_out_times }))
    }

    /// Returns the beginning of the values that this process writes. Algorithms with different units have different
    /// beginnings.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the script that decides calls of these costs, and the function that packs the rest of its argument,
    /// after the deadline. Returns `None` if no script can decide these calls.
    pub(super) fn script<'a>(
        &'a self,
        costs: &'a [u64],
    ) -> Option<(&'a Script, impl Fn(&mut Packed) + use<'a, A>)> {
        let PlannedScript { script, part } = self.script.as_ref()?;
        if !costs.iter().all(|cost| part.decides(*cost)) {
            return None;
        }
        let pack = move |last: &mut Packed| pack(&[(part, &self.prefix)], costs.iter().copied(), last);
        Some((script, pack))
    }

    /// Returns the part of this plan in the script of a joint call, or `None` if no script can decide calls of this
    /// cost.
    pub(super) fn script_part(&self, cost: u64) -> Option<&ScriptPart> {
        self.script.as_ref().map(|planned| &planned.part).filter(|part| part.decides(cost))
    }

    /// Returns the numbers of a state that is written as a string. Returns `None` if the
    /// [`unit`](StoredAlgorithm::unit) of the state is not that of this plan's algorithm.
    pub(super) fn own_numbers<'a>(&self, text: &'a str) -> Option<&'a str> {
        let unit = self.prefix.strip_prefix(VERSION)?.strip_prefix(' ')?;
        text.strip_prefix(unit).filter(|numbers| numbers.starts_with(' '))
    }
}

impl ScriptPart {
    pub(super) fn new(steps: ScriptSteps) -> Self {
        let ScriptSteps { steps, max_cost, .. } = steps;
        let arguments = |step: &Step| step.arguments[..step.kind.argument_count()].to_vec();
        Self {
            kinds: steps.iter().map(|step| step.kind).collect(),
            arguments: steps.iter().flat_map(arguments).flat_map(packed).collect(),
            max_cost,
        }
    }

    /// Returns the steps for the limiter's key.
    pub(super) fn steps(&self, is_in_shadow: bool) -> KeySteps {
        KeySteps { kinds: self.kinds.clone(), is_in_shadow }
    }

    fn decides(&self, cost: u64) -> bool {
        cost <= self.max_cost
    }
}

/// Packs what a script for these keys unpacks after the deadline. `costs` are the costs of all calls, one call after
/// another.
pub(super) fn pack(keys: &[(&ScriptPart, &str)], costs: impl Iterator<Item = u64>, last: &mut Packed) {
    for (_, prefix) in keys {
        last.string(prefix);
    }
    for (part, _) in keys {
        last.bytes(&part.arguments);
    }
    costs.for_each(|cost| last.number(cost));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::States;
    use std::time::Duration;
    use tower_throttle::Quota;
    use tower_throttle::algorithm::{
        Algorithm, FixedWindow, LeakyBucket, SlidingCounter, SlidingLog, SlidingWindow, Smooth, Tiered,
        TokenBucket,
    };

    const MINUTE: u64 = 60_000_000_000;
    const NOW: Nanos = Nanos(30_000_000 * MINUTE);

    fn plan<A: StoredAlgorithm>(algorithm: A) -> Arc<Plan<A>> {
        Plan::new(algorithm, TimeSource::Server, true).unwrap()
    }

    fn encode<A: StoredAlgorithm>(plan: &Plan<A>, state: &A::State, now: Nanos) -> String {
        States::new(state.clone()).write(plan, now).unwrap_or_default()
    }

    /// Writes and reads the state after each of several calls, and compares the decisions of both states.
    fn survives<A: StoredAlgorithm>(algorithm: A) {
        let plan = plan(algorithm.clone());
        let mut state = algorithm.new_state(Nanos::ZERO, NOW);
        for (step, cost) in [3, 1, 2, 5, 1, 1, 1, 2, 100, 1].into_iter().enumerate() {
            let now = Nanos(NOW.0 + (step as u64).pow(3) * 77_777_000);
            let _ = algorithm.check(&mut state, now, cost);
            let text = encode(&plan, &state, now);
            let mut read = plan.decode(&text, now).unwrap().own;
            for later in [0, 1_000, MINUTE / 7 / 1_000 * 1_000, MINUTE, 3 * MINUTE] {
                for cost in [0, 1, 3] {
                    let at = Nanos(now.0 + later);
                    let (a, b) =
                        (algorithm.peek(&mut state.clone(), at, cost), algorithm.peek(&mut read, at, cost));
                    assert_eq!(format!("{a:?}"), format!("{b:?}"), "{text}");
                    read = plan.decode(&text, now).unwrap().own;
                }
            }
            assert_eq!(encode(&plan, &read, now), text);
        }
    }

    #[test]
    fn every_state_survives_as_text() {
        let quota = Quota::per_minute(7);
        survives(TokenBucket::new(quota.burst(4)));
        survives(LeakyBucket::new(quota));
        survives(FixedWindow::new(quota));
        survives(FixedWindow::new(quota).aligned());
        survives(SlidingWindow::new(quota));
        survives(SlidingWindow::new(quota).slices(7));
        survives(SlidingCounter::new(quota));
        survives(SlidingLog::new(quota));
        survives(Smooth::bursty(quota));
        survives(Smooth::warming_up(quota, Duration::from_secs(3)));
        survives((TokenBucket::new(quota), (FixedWindow::new(quota), SlidingLog::new(quota))));
        survives(TokenBucket::new(quota).block_for(Duration::from_secs(90)).after(2));
        survives(Tiered::new(TokenBucket::new(quota)));
        survives(
            Tiered::new((FixedWindow::new(quota), SlidingCounter::new(quota)))
                .block_for(Duration::from_secs(1))
                .after(1),
        );
    }

    #[test]
    fn tiers_survive_with_their_units() {
        let (free, paid) =
            (TokenBucket::new(Quota::per_minute(10)), TokenBucket::new(Quota::per_minute(100)).queue(3));
        let (free, paid) = (Tiered::new(free), Tiered::new(paid));
        let plan = plan(free.clone());
        let mut text = String::new();
        for (tier, remaining) in [(&free, 9), (&paid, 98), (&free, 7), (&paid, 96), (&paid, 95)] {
            let mut state = plan.decode(&text, NOW).unwrap().own;
            tier.adopt(&mut state);
            assert_eq!(tier.check(&mut state, NOW, 1).remaining(), remaining, "{text}");
            text = encode(&plan, &state, NOW);
        }
        assert_eq!(text.matches("t:").count(), 3, "one in the unit, and two tiers: {text}");
    }

    #[test]
    fn another_quota_reads_the_units_and_gives_nothing_back() {
        let (large, small) = (Quota::per_minute(1_000).burst(100), Quota::per_minute(1).burst(100));
        let (from, to) = (plan(TokenBucket::new(large)), plan(TokenBucket::new(small)));
        let mut state = from.decode("", NOW).unwrap();
        assert!(from.algorithm.check(&mut state.own, NOW, 100).is_allowed());
        let text = state.write(&from, NOW).unwrap();
        let mut state = to.decode(&text, NOW).unwrap();
        assert_eq!(to.algorithm.peek(&mut state.own, NOW, 1).remaining(), 0);
        let back = from.decode(&state.write(&to, NOW).unwrap(), NOW);
        assert_eq!(from.algorithm.peek(&mut back.unwrap().own, NOW, 1).remaining(), 0);
    }

    #[test]
    fn what_is_no_state_is_foreign() {
        let plan = plan(FixedWindow::new(Quota::per_minute(5)));
        let good = "1 f:5/60000000000 1700000000000000 1000 3";
        assert!(plan.decode(good, NOW).is_ok());
        for bad in [
            "hello",
            "1",
            "1 ",
            "1 f:5/60000000000",
            "2 f:5/60000000000 1700000000000000 1000 3",
            "1 f:5/60000000000 1700000000000000 1000 3 ",
            "1 f:5/60000000000 1700000000000000 1000 3 4",
            "1 f:5/60000000000 1700000000000000 1000 -3",
            "1 f:5/60000000000 1700000000000000 1000 6",
            "1 f:5/60000000000 1700000000000000 60000000 1",
            "1 f:5/60000000000 17000000000000000000000 1000 3",
            "1 f:5/600000000001700000000000000 1000 3",
            "1 t:5/60000000000/5 0 1700000000000000",
            "1 f:0/60000000000 1700000000000000 1000 3",
            "1 f:5/60000000000 1700000000000000 1000 3 | ",
            "1 f:5/60000000000 1700000000000000 1000 3 | f:6/60000000000 1700000000000000 1000 3",
            "1 f:5/60000000000 1700000000000000 1000 3 | 1700000000000000 f:6/60000000000 1700000000000000 1000",
        ] {
            assert_eq!(plan.decode(bad, NOW).unwrap_err().kind(), RedisErrorKind::Foreign, "{bad}");
        }
    }

    #[test]
    fn long_logs_cannot_be_kept() {
        let log = SlidingLog::new(Quota::per_minute(101));
        let error =
            Plan::new((log, FixedWindow::new(Quota::per_minute(1))), TimeSource::Server, true).unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Algorithm);
        assert!(error.to_string().contains("SlidingWindow"), "{error}");
    }
}
