//! Extreme quotas, costs and clock readings cause no panic, no spinning and no overtaking.

use tower_throttle::algorithm::*;

use super::{Call, Scene};
use crate::oracle::config::Rule;
use crate::queueing::ns;
use crate::support::Random;

#[test]
fn no_quota_no_cost_and_no_clock_makes_waiting_panic_or_overtake() {
    fn look<A: Algorithm>(random: &mut Random, rule: A) {
        let mut scene = Scene::at(rule, random.one_of(&[0, 1, u64::MAX >> 1, u64::MAX - 1, u64::MAX]));
        let mut line: Vec<Call<A>> = Vec::new();
        for _ in 0..12 {
            match random.below(8) {
                0..4 => {
                    let cost = random.one_of(&[0, 1, 1, 2, 3, 1 << 40, u64::MAX - 1, u64::MAX]);
                    line.push(scene.costing(cost));
                }
                4 => {
                    let cost = random.one_of(&[0, 1, u64::MAX]);
                    let peek = scene.limiter.peek_n("key", cost);
                    assert_eq!(scene.limiter.check_n("key", cost).is_allowed(), peek.is_allowed());
                }
                5 if !line.is_empty() => {
                    line.remove(random.below(line.len() as u64) as usize);
                }
                6 if random.one_in(2) => scene.limiter.refund("key", random.one_of(&[1, u64::MAX])),
                _ => {
                    let far = random.one_of(&[0, 1, 7, 1 << 30, 1 << 62, u64::MAX]);
                    let back = random.one_in(4);
                    let to = if back { scene.now.saturating_sub(far) } else { scene.now.saturating_add(far) };
                    scene.set(to);
                }
            }
            for (nth, call) in line.iter_mut().enumerate() {
                let polls = call.polls;
                while call.alarm.rang() && !call.poll() {
                    assert!(
                        call.polls < polls + 100,
                        "number {nth} spins at {}: {:?}",
                        scene.now,
                        scene.limiter
                    );
                }
            }
            let pending = line.iter().filter(|call| call.is_pending()).count();
            assert!(scene.limiter.queued() <= pending);
        }
        drop(line);
        assert_eq!(scene.limiter.queued(), 0);
    }
    for seed in 0..4_000 {
        let random = &mut Random::new(seed);
        let rule = Rule::extreme(random);
        let (quota, wait) = (rule.quota(), ns(random.one_of(&[0, 1, 1 << 40, i64::MAX as u64, u64::MAX])));
        let (places, bounded) = (random.one_of(&[0, 1, 2, u64::MAX]), random.one_in(2));
        let overflow = random.one_of(&[QueueOverflow::RejectNew, QueueOverflow::DropOldest]);
        macro_rules! any {
            ($rule:expr) => {{
                let rule = $rule.queue(places).overflow(overflow);
                if bounded { rule.max_wait(wait) } else { rule }
            }};
        }
        let slices = rule.slices as usize;
        match random.below(10) {
            0 => look(random, any!(TokenBucket::new(quota))),
            1 => look(random, any!(FixedWindow::new(quota))),
            2 => look(random, any!(FixedWindow::new(quota).aligned())),
            3 => look(random, any!(SlidingWindow::new(quota).slices(slices))),
            4 => look(random, any!(SlidingCounter::new(quota))),
            // A sliding log keeps a record of each call, not of each unit.
            5 => look(random, any!(SlidingLog::new(quota))),
            6 => look(random, any!(LeakyBucket::new(quota))),
            7 => look(random, any!(Smooth::bursty(quota))),
            8 => look(random, (any!(TokenBucket::new(quota).start_empty()), any!(FixedWindow::new(quota)))),
            _ => look(random, (any!(LeakyBucket::new(quota)), any!(SlidingCounter::new(quota)))),
        }
    }
}
