//! A rejection names the policies that denied the call, with their fields.

use std::time::Duration;

use http::StatusCode;
use http_body::Body;
use tower::Layer;
use tower_throttle::clock::ManualClock;
use tower_throttle::middleware::{HttpResponder, SendHeaders};

use super::{per, rejection, second, through};
use crate::details::{Details, reported};
use crate::frames::one;
use crate::protobuf::denied;
use crate::service::limit;

#[tokio::test]
async fn a_name_is_reported_unchanged() {
    let longest: String = ('!'..='~').cycle().take(256).collect();
    let long = |length| "x".repeat(length);
    let names = ["per ip", "a\"b\\c", "100%", "%25 %", " ", "a,b;c=d", "%E2%82%AC", "~", &longest];
    let lengths = [1, 117, 118, 119, 127, 128, 129, 255, 256].map(long);
    for name in names.into_iter().chain(lengths.iter().map(String::as_str)) {
        let headers = second!(limit(per(1, Duration::from_millis(1_500)), &ManualClock::new()).name(name));
        let wait = Some(Duration::from_millis(1_500));
        assert_eq!(one(&headers, "grpc-status-details-bin"), Some(denied(wait, &[name]).as_str()), "{name}");
        assert_eq!(reported(&headers), Details::new(wait, &[name], Some(1_500)));
    }
}

#[tokio::test]
async fn of_several_policies_those_that_denied_are_named() {
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let a = || limit(per(1, second), &clock).name("a");
    let b = || limit(per(1, 3 * second), &clock).name("b");
    let ample = || limit(per(9, second), &clock).name("ample");

    // The rejection reports the longest wait, since all policies must allow the call.
    let headers = second!(a().and(ample()).and(b()));
    assert_eq!(reported(&headers), Details::new(Some(3 * second), &["a", "b"], Some(3_000)));
    let headers = second!(ample().and(b()));
    assert_eq!(reported(&headers), Details::new(Some(3 * second), &["b"], Some(3_000)));
    // The wait of a hidden policy is included.
    let headers = second!(a().and(b().hidden()));
    assert_eq!(reported(&headers), Details::new(Some(3 * second), &["a"], Some(3_000)));
    let headers = second!(a().hidden().and(ample()).and(b().hidden()));
    assert_eq!(reported(&headers), Details::new(Some(3 * second), &[], Some(3_000)));
    // Policies with the same name get different names.
    let headers = second!(a().and(a()));
    assert_eq!(reported(&headers), Details::new(Some(second), &["a", "a-2"], Some(1_000)));
}

#[tokio::test]
async fn of_several_limits_on_one_key_the_decisive_one_is_named() {
    let second = Duration::from_secs(1);
    let limits = (per(1, second), per(2, 60 * second));
    let clock = ManualClock::new();
    let layer = limit(limits, &clock).name("user");
    let headers = second!(layer.clone());
    assert_eq!(reported(&headers), Details::new(Some(second), &["user"], Some(1_000)));
    clock.advance(second);
    let headers = second!(layer);
    assert_eq!(reported(&headers), Details::new(Some(29 * second), &["user-2"], Some(29_000)));
}

#[tokio::test]
async fn fields_and_retry_after_can_be_omitted_and_details_stay() {
    let second = Duration::from_secs(1);
    let responder = HttpResponder::new().retry_after(false).send_headers(SendHeaders::Never);
    let headers = second!(limit(per(1, second), &ManualClock::new()).responder(responder));
    assert_eq!(reported(&headers), Details::new(Some(second), &["default"], Some(1_000)));
    let names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "content-type",
            "grpc-status",
            "grpc-message",
            "grpc-status-details-bin",
            "grpc-retry-pushback-ms",
            "cache-control",
        ]
    );
}

#[tokio::test]
async fn an_outer_layer_changes_nothing_in_the_rejection_of_an_inner_one() {
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let inner = limit(per(1, second), &clock).name("inner");
    let outer = limit(per(9, second), &clock).name("outer");
    let stack = tower::layer::layer_fn(|service| outer.layer(inner.layer(service)));
    let headers = second!(stack);
    assert_eq!(reported(&headers), Details::new(Some(second), &["inner"], Some(1_000)));
    let lines: Vec<_> = headers.get_all("ratelimit").iter().collect();
    assert_eq!(lines, ["\"inner\";r=0;t=1", "\"outer\";r=7;t=1"]);
}
