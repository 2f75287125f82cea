//! Permits of a shared bucket, when the key table is full.

use super::*;

fn in_a_full_table(max_keys: usize, limit: u64, at_most_the_limit: bool) {
    for seed in 0..1_000 {
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        let rule = Concurrency::per_key(limit).total(100);
        let limiter = RateLimiter::builder(rule)
            .clock(clock.clone())
            .max_keys(max_keys)
            .on_full(OnFull::ShareBuckets)
            .build();
        let mut held: Vec<(u64, _)> = Vec::new();
        for _ in 0..60 {
            let key = random.below(5);
            match random.below(5) {
                0..=2 => {
                    let reported = limiter.peek(&key).is_allowed();
                    let permit = limiter.try_acquire_permit(&key);
                    if at_most_the_limit {
                        assert_eq!(reported, permit.is_ok(), "seed {seed}: a peek reports what a call would");
                    }
                    held.extend(permit.ok().map(|permit| (key, permit)));
                }
                3 if !held.is_empty() => {
                    drop(held.swap_remove(random.below(held.len() as u64) as usize));
                }
                _ => clock.advance(Duration::from_secs(random.below(12))),
            }
            assert!(limiter.len() <= max_keys, "seed {seed}");
            let of_the_key = held.iter().filter(|(other, _)| *other == key).count() as u64;
            assert!(!at_most_the_limit || of_the_key <= limit, "seed {seed}: {of_the_key} of key {key}");
            assert!(held.len() <= 100);
        }
        while !held.is_empty() {
            drop(held.swap_remove(random.below(held.len() as u64) as usize));
        }
        for key in 0..5_u64 {
            let free: Vec<_> =
                std::iter::from_fn(|| limiter.try_acquire_permit(&key).ok()).take(10).collect();
            assert_eq!(free.len() as u64, limit, "seed {seed}: key {key} is free");
        }
        let all: Vec<_> = (0..300_u64).filter_map(|key| limiter.try_acquire_permit(&key).ok()).collect();
        assert!(all.len() <= 100 && limiter.len() <= max_keys, "{}", all.len());
        drop(all);
        limiter.replace(limiter.algorithm().total(1));
        assert!(limiter.try_acquire_permit(&9).is_ok(), "seed {seed}: no call counts in the total");
    }
}

#[test]
fn permits_of_a_shared_bucket_are_released_there() {
    in_a_full_table(1, 2, false);
    in_a_full_table(2, 3, false);
}

#[test]
fn a_key_that_moves_out_of_a_shared_bucket_holds_no_more_than_the_limit() {
    in_a_full_table(1, 1, true);
    in_a_full_table(2, 2, true);
}
