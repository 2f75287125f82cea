use super::*;

#[test]
fn the_quickest_reply_counts_until_the_clock_is_set_back() {
    let time = ServerTime::default();
    assert_eq!(time.at(5), None);
    time.observe(1_000, 200, 300);
    assert_eq!(time.at(400), Some(1_100));
    time.observe(2_000, 1_280, 1_290);
    assert_eq!(time.at(1_290), Some(2_000), "a quicker reply");
    time.observe(3_000, 2_285, 2_330);
    assert_eq!(time.at(2_330), Some(3_040), "a slower one");
    time.observe(3_000, 2_990, 3_000);
    assert_eq!(time.at(3_000), Some(3_000), "the clock was set back");
    time.observe(10, 2_990, 3_000);
    assert_eq!(time.at(3_000), Some(10), "it may be behind the own one");
}

#[test]
fn a_reply_that_is_read_late_is_no_step_of_the_clock() {
    let time = ServerTime::default();
    time.observe(1_000, 290, 300);
    time.observe(2_000, 1_295, 900_000);
    assert_eq!(time.at(900_000), Some(900_700));
    time.observe(2_000, 1_300, 1_305);
    assert_eq!(time.at(1_305), Some(2_005), "a difference of rounding");
}

fn error(kind: RedisErrorKind) -> RedisError {
    RedisError::new(kind, "")
}

fn at(millis: u64) -> Nanos {
    Nanos(1 + millis * MILLISECOND)
}

#[test]
fn late_calls_open_it_and_one_call_tries() {
    let breaker = Breaker::default();
    for _ in 1..MAX_LATE {
        assert!(!breaker.failed(&error(RedisErrorKind::Late), at(0)));
    }
    assert!(breaker.admit(at(0)).is_ok());
    assert!(breaker.failed(&error(RedisErrorKind::Late), at(0)));
    assert_eq!(breaker.admit(at(49)).unwrap_err().kind(), RedisErrorKind::Open);
    assert!(breaker.admit(at(50)).is_ok(), "the attempt");
    assert!(breaker.admit(at(50)).is_err(), "there is one at a time");
    assert!(breaker.failed(&error(RedisErrorKind::Late), at(100)));
    assert!(breaker.admit(at(199)).is_err(), "the pause has doubled");
    assert!(breaker.admit(at(200)).is_ok());
    breaker.replied(at(200));
    assert!(breaker.admit(at(200)).is_ok() && breaker.admit(at(200)).is_ok());
    assert_eq!(breaker.opened(), 1);
}

#[test]
fn an_error_of_the_server_opens_it_at_once_and_a_foreign_value_never() {
    let breaker = Breaker::default();
    for _ in 0..100 {
        assert!(!breaker.failed(&error(RedisErrorKind::Foreign), at(0)));
    }
    assert!(breaker.failed(&error(RedisErrorKind::ReadOnly), at(0)));
    assert!(breaker.admit(at(1)).unwrap_err().to_string().contains("replica"));
}

#[test]
fn trips_that_were_on_their_way_do_not_delay_the_attempt() {
    let breaker = Breaker::default();
    breaker.failed(&error(RedisErrorKind::Busy), at(0));
    for _ in 0..100 {
        breaker.failed(&error(RedisErrorKind::Busy), at(20));
    }
    assert!(breaker.admit(at(50)).is_ok());
}

#[test]
fn a_success_between_late_calls_keeps_it_closed() {
    let breaker = Breaker::default();
    for _ in 0..100 {
        breaker.failed(&error(RedisErrorKind::Late), at(0));
        breaker.replied(at(0));
    }
    assert!(!breaker.is_open());
}

#[test]
fn a_reply_does_not_close_it_while_writes_fail() {
    for kind in [RedisErrorKind::OutOfMemory, RedisErrorKind::ReadOnly, RedisErrorKind::Permission] {
        let breaker = Breaker::default();
        assert!(breaker.failed(&error(kind), at(0)));
        breaker.replied(at(1));
        assert!(breaker.needs_write() && breaker.admit(at(49)).is_err(), "{kind:?}");
        assert!(breaker.admit(at(50)).is_ok());
        breaker.replied(at(51));
        assert!(breaker.admit(at(51)).is_ok(), "the attempt has shown nothing, so the next call is one");
        assert!(breaker.admit(at(51)).is_err());
        assert!(breaker.failed(&error(kind), at(60)), "it reads first, and then writes");
        assert!(breaker.admit(at(159)).is_err() && breaker.admit(at(160)).is_ok(), "a pause of 100 ms");
        breaker.wrote();
        assert!(!breaker.is_open() && !breaker.needs_write());
    }
}
