use super::*;
use crate::client::{Client, Server};
use crate::tests::redis_server::{RedisServer, Reply};

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

/// Returns whether a call is sent at `now`, also as a trial.
fn admits(breaker: &Breaker, now: Nanos) -> bool {
    let until = Nanos(now.0 + 60 * MILLISECOND);
    matches!(breaker.admit(now, until), Admission::Closed | Admission::Trial(..))
}

fn open_error(breaker: &Breaker, now: Nanos) -> RedisError {
    let Admission::Fails(error) = breaker.admit(now, now) else { panic!("the call does not fail") };
    error
}

#[test]
fn late_calls_open_it_and_one_call_tries() {
    let breaker = Breaker::default();
    for _ in 1..MAX_LATE {
        assert!(!breaker.failed(&error(RedisErrorKind::Late), at(0)));
    }
    assert!(admits(&breaker, at(0)));
    assert!(breaker.failed(&error(RedisErrorKind::Late), at(0)));
    assert_eq!(open_error(&breaker, at(49)).kind(), RedisErrorKind::Open);
    assert!(admits(&breaker, at(50)), "the attempt");
    assert!(!admits(&breaker, at(50)), "there is one at a time");
    assert!(breaker.failed(&error(RedisErrorKind::Late), at(100)));
    assert!(!admits(&breaker, at(199)), "the pause has doubled");
    assert!(admits(&breaker, at(200)));
    breaker.replied();
    assert!(admits(&breaker, at(200)) && admits(&breaker, at(200)));
    assert_eq!(breaker.opened(), 1);
}

#[test]
fn an_error_of_the_server_opens_it_at_once_and_a_foreign_value_never() {
    let breaker = Breaker::default();
    for _ in 0..100 {
        assert!(!breaker.failed(&error(RedisErrorKind::Foreign), at(0)));
    }
    assert!(breaker.failed(&error(RedisErrorKind::ReadOnly), at(0)));
    assert!(open_error(&breaker, at(1)).to_string().contains("replica"));
}

#[test]
fn trips_that_were_on_their_way_do_not_delay_the_attempt() {
    let breaker = Breaker::default();
    breaker.failed(&error(RedisErrorKind::Busy), at(0));
    for _ in 0..100 {
        breaker.failed(&error(RedisErrorKind::Busy), at(20));
    }
    assert!(admits(&breaker, at(50)));
}

#[test]
fn a_success_between_late_calls_keeps_it_closed() {
    let breaker = Breaker::default();
    for _ in 0..100 {
        breaker.failed(&error(RedisErrorKind::Late), at(0));
        breaker.replied();
    }
    assert!(!breaker.is_open());
}

#[test]
fn a_reply_does_not_close_it_while_writes_fail() {
    for kind in [RedisErrorKind::OutOfMemory, RedisErrorKind::ReadOnly, RedisErrorKind::NoReplicas] {
        let breaker = Breaker::default();
        assert!(breaker.failed(&error(kind), at(0)));
        breaker.replied();
        assert!(breaker.needs_write() && !admits(&breaker, at(49)), "{kind:?}");
        assert!(admits(&breaker, at(50)));
        breaker.replied();
        assert!(admits(&breaker, at(51)), "the attempt has shown nothing, so the next call is one");
        assert!(!admits(&breaker, at(51)));
        assert!(breaker.failed(&error(kind), at(60)), "it reads first, and then writes");
        assert!(!admits(&breaker, at(159)) && admits(&breaker, at(160)), "a pause of 100 ms");
        breaker.wrote();
        assert!(!breaker.is_open() && !breaker.needs_write());
    }
}

#[test]
fn errors_that_concern_all_calls_open_it_and_no_others() {
    for (kind, fewest) in [
        (RedisErrorKind::ReadOnly, Some(1)),
        (RedisErrorKind::NoReplicas, Some(1)),
        (RedisErrorKind::OutOfMemory, Some(1)),
        (RedisErrorKind::Busy, Some(1)),
        (RedisErrorKind::Loading, Some(1)),
        (RedisErrorKind::Auth, Some(1)),
        (RedisErrorKind::Late, Some(MAX_LATE)),
        (RedisErrorKind::Unreachable, Some(MAX_LATE)),
        (RedisErrorKind::Permission, None),
        (RedisErrorKind::Foreign, None),
        (RedisErrorKind::Moved, None),
        (RedisErrorKind::Unserved, None),
        (RedisErrorKind::Server, None),
    ] {
        let breaker = Breaker::default();
        let opened = (1..=100).find(|_| breaker.failed(&error(kind), at(0)));
        assert_eq!(opened, fewest, "{kind:?}");
    }
}

#[test]
fn another_trial_takes_the_place_of_one_without_a_result() {
    let breaker = Breaker::default();
    breaker.failed(&error(RedisErrorKind::Busy), at(0));
    let begin = |millis| match breaker.admit(at(millis), at(millis + 60)) {
        Admission::Trial(number, false) => number,
        other => panic!("{other:?}"),
    };
    let waits = |millis| matches!(breaker.admit(at(millis), at(millis)), Admission::Waits(_));
    let first = begin(50);
    assert!(waits(109));
    let second = begin(110);
    breaker.end_trial(first, None);
    breaker.end_trial(first, Some(at(111)));
    assert!(waits(112), "the first trial changes nothing any more");
    breaker.end_trial(second, None);
    let third = begin(112);
    breaker.end_trial(third, Some(at(113)));
    assert!(!admits(&breaker, at(212)) && admits(&breaker, at(213)), "it counts as one that failed");
}

#[tokio::test]
async fn a_joint_change_that_may_not_delete_writes_nothing() {
    let server = RedisServer::start();
    server.call(&["SET", "old", "was"]).ok();
    server.call(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-del"]).ok();
    let url = format!("redis://app:secret@{}", server.address());
    let deadline = Duration::from_secs(10);
    let client = Client::new(Server::At(::redis::Client::open(url).unwrap().into(), ""), deadline);
    let link = Link::new(Box::new(client), AnyClock::default(), deadline, TimeSource::Server);
    let route = Route { link: link.into(), is_asking: false, redirects: 0 };
    let swaps = [Swap::new(b"", b"charged", 10_000), Swap::new(b"was", b"", 0)];
    let error = route.swap(&["new", "old"], route.link.deadline(), &swaps).await.unwrap_err();
    assert_eq!(error.kind(), RedisErrorKind::Permission, "{error}");
    assert_eq!(server.call(&["KEYS", "*"]), Reply::List(vec![Reply::Text(b"old".to_vec())]));
}
