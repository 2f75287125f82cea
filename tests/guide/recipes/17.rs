fn main() {
    // the block
    let once_a_second = TokenBucket::new(tower_throttle::Quota::per_second(1));
    assert!(wait_for_turn(&RateLimiter::new(once_a_second), "key"));
}
