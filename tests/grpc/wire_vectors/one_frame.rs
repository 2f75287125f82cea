//! Over a connection, a rejection is one frame of known bytes.

use std::time::Duration;

use http::{Request, StatusCode};
use http_body::Body;
use tower_throttle::clock::ManualClock;

use super::{per, rejection, second, through};
use crate::details::reported;
use crate::frames::{self, Says, ask, call, one};
use crate::protobuf::{A_QUARTER, ONE_SECOND, THIRTY_SECONDS_PER_IP, denied};
use crate::service::{Echo, METHODS, SAY, builder, limit, serve};

#[tokio::test]
async fn over_a_connection_each_rejection_is_one_frame_of_known_bytes() {
    let second = Duration::from_secs(1);
    let minute_and_more = Duration::new(60, 1);
    for (layer, details, retry_after, pushback) in [
        (limit(per(1, second), &ManualClock::new()).hidden(), ONE_SECOND.to_owned(), "1", Some("1000")),
        (limit(per(1, second / 4), &ManualClock::new()).hidden(), A_QUARTER.to_owned(), "1", Some("250")),
        (
            limit(per(1, 30 * second), &ManualClock::new()).name("per-ip"),
            THIRTY_SECONDS_PER_IP.to_owned(),
            "30",
            Some("30000"),
        ),
        (
            limit(per(1, minute_and_more), &ManualClock::new()).hidden(),
            denied(Some(minute_and_more), &[]),
            "61",
            Some("-1"),
        ),
        (
            limit(per(1, 60 * second), &ManualClock::new()),
            denied(Some(60 * second), &["default"]),
            "60",
            Some("60000"),
        ),
    ] {
        let server = serve!(builder().layer(layer).add_service(Echo::default()));
        let admitted = ask(server.address, SAY).await;
        assert!(!admitted.has("grpc-status") && admitted.frames.len() > 1, "{admitted:?}");
        for method in METHODS {
            let heard = ask(server.address, method).await;
            heard.assert_is_trailers_only();
            assert_eq!(heard.header("content-type"), "application/grpc");
            assert_eq!(heard.header("grpc-status"), "8");
            assert_eq!(heard.header("grpc-message"), "rate limit exceeded");
            assert_eq!(heard.header("grpc-status-details-bin"), details);
            assert_eq!(heard.header("retry-after"), retry_after);
            assert_eq!(one(&heard.headers, "grpc-retry-pushback-ms"), pushback);
            reported(&heard.headers);
        }
    }
}

#[tokio::test]
async fn a_caller_that_still_sends_gets_the_same_frame_and_no_further_demand() {
    let echo = Echo::default();
    let layer = limit(per(1, Duration::from_secs(1)), &ManualClock::new()).cost(|_: &Request<_>| 2);
    let server = serve!(builder().layer(layer).add_service(echo.clone()));
    for method in METHODS {
        let heard =
            frames::send(server.address, call(method, Some("application/grpc")), Says::AndGoesOn).await;
        heard.assert_is_trailers_only();
        assert!(heard.frames[1..].iter().any(|frame| frame.asks_for_no_more()), "{heard:?}");
    }
    assert_eq!(echo.calls(), 0);
}

/// Some clients accept at most 8 KiB of headers.
#[tokio::test]
async fn even_long_names_leave_space_in_the_header_block() {
    let clock = ManualClock::new();
    let name = |letter: &str| letter.repeat(256);
    let policy = |letter| limit(per(1, Duration::from_secs(100 * 365 * 86_400)), &clock).name(&name(letter));
    let headers = second!(policy("%").and(policy("\"")).and(policy("\\")).and(policy("d")));
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
    assert!(size < 8_192, "{size}");
    assert_eq!(reported(&headers).names.len(), 4);
}
