//! The stack has the order of the guide, and the effects that the guide describes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::ServiceExt;

use super::{ANNA, BERT, Lines, ORIGIN, Stack, asking, from_here, is_readable, preflight};
use crate::support::{Answer, Client1, VERSIONS, request, send};

/// The stack in the guide is the stack that is tested here.
#[test]
fn the_order_is_that_of_the_guide() {
    // Without comments and without what depends on the width of a line.
    let code = |text: &str, begin: &str, end: &str| -> String {
        let text = &text[text.find(begin).unwrap()..];
        let lines =
            text[..text.find(end).unwrap()].lines().map(str::trim).filter(|line| !line.starts_with("//"));
        let code: String = lines.flat_map(str::chars).filter(|char| !char.is_whitespace()).collect();
        code.replace(",)", ")").replace("cors()", "cors")
    };
    let (guide, tested) = (include_str!("../../../src/guide/ordering.md"), include_str!("mod.rs"));
    let order = code(guide, "ServiceBuilder::new()\n", ");\n```");
    assert_eq!(order.matches(".layer(").count(), 8);
    assert_eq!(order, code(tested, "ServiceBuilder::new()\n", ");\n        Self"));
    let cors = code(guide, "CorsLayer::new()\n", ";\nlet");
    assert!(["origin", "methods", "headers"].iter().all(|what| cors.contains(&format!(".allow_{what}("))));
    assert_eq!(cors, code(tested, "CorsLayer::new()\n", "\n}\n"));
}

#[tokio::test]
async fn preflights_are_answered_with_or_without_units_left_and_not_counted() {
    for version in VERSIONS {
        let stack = Stack::new(2, 9);
        let server = stack.start().await;
        for left in [1, 0] {
            for _ in 0..10 {
                let answer = send(server.address, version, preflight()).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                assert_eq!(answer.header("access-control-allow-origin"), ORIGIN.1);
                assert_eq!(answer.header("access-control-allow-methods"), "GET,POST");
                assert_eq!(answer.header("access-control-allow-headers"), "authorization,content-type");
                assert!(!answer.has("ratelimit"), "{answer:?}");
            }
            let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN, ANNA])).await;
            assert_eq!((answer.status, stack.left(1)), (StatusCode::OK, (left, 7 + left)));
        }
        // tower-http's layer treats each `OPTIONS` request as a preflight.
        for options in [preflight(), request(Method::OPTIONS, "/")] {
            assert_eq!(send(server.address, version, options).await.status, 200);
        }
        assert_eq!(send(server.address, version, request(Method::GET, "/")).await.status, 429);
    }
}

#[tokio::test]
async fn rejections_are_readable_for_pages_and_seen_by_tracing() {
    for (address, user, name) in [(1, 9, "address"), (9, 1, "user")] {
        for version in VERSIONS {
            let stack = Stack::new(address, user);
            let server = stack.start().await;
            for (status, inside) in [(200, 1), (429, 1), (429, 1)] {
                let answer = send(server.address, version, asking(Method::GET, "/", &[ORIGIN, ANNA])).await;
                assert_eq!(answer.status, status);
                assert!(is_readable(&answer), "{answer:?}");
                assert_eq!(answer.has("retry-after"), status == 429, "{answer:?}");
                assert!(answer.items("ratelimit").iter().any(|item| item.name == name), "{answer:?}");
                assert_eq!(stack.inside.requests(), inside);
            }
            assert_eq!(stack.outside.statuses(), [200, 429, 429]);
        }
    }
}

#[tokio::test]
async fn guessed_tokens_are_rejected_before_one_more_is_checked() {
    let stack = Stack::new(5, 9);
    let server = stack.start().await;
    let mut client = Client1::http1(server.address).await;
    for _ in 0..5 {
        let answer = client.send(asking(Method::GET, "/", &[("authorization", "Bearer guessed")])).await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.items("ratelimit")[0].name, "address");
    }
    // From now on, even the right token is not checked.
    let answer = client.send(asking(Method::GET, "/", &[ANNA])).await;
    assert_eq!(
        (answer.status, answer.json()["violated-policies"][0].as_str()),
        (StatusCode::TOO_MANY_REQUESTS, Some("address"))
    );
    assert_eq!((stack.inside.requests(), stack.left(1)), (0, (0, 9)));
}

#[tokio::test]
async fn each_user_has_a_budget_and_rejected_calls_use_up_that_of_their_address() {
    let stack = Stack::new(9, 2);
    let server = stack.start().await;
    let mut client = Client1::http1(server.address).await;
    let mut ask = async |user| client.send(asking(Method::GET, "/", &[user])).await.status.as_u16();
    for (user, status) in
        [(ANNA, 200), (ANNA, 200), (ANNA, 429), (BERT, 200), (ANNA, 429), (BERT, 200), (BERT, 429)]
    {
        assert_eq!(ask(user).await, status, "{user:?}");
    }
    assert_eq!(stack.left(1), (2, 0));
    assert_eq!(stack.left(2), (2, 0));
    assert_eq!(stack.left(3), (2, 2));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_counted_and_a_rejection_comes_first() {
    for version in VERSIONS {
        let stack = Stack::new(9, 2);
        let server = stack.start().await;
        for status in [413, 413, 429] {
            let mut upload = asking(Method::POST, "/upload", &[ANNA]);
            *upload.body_mut() = Full::from(vec![0; 64 * 1_024 + 1]);
            let answer = send(server.address, version, upload).await;
            assert_eq!(answer.status, status, "{version:?}");
            assert_eq!(answer.items("ratelimit").len(), 2, "{answer:?}");
        }
        assert_eq!((stack.inside.requests(), stack.left(1)), (0, (6, 0)));
    }
}

#[tokio::test]
async fn responses_are_compressed_and_rejections_are_not() {
    for version in VERSIONS {
        let stack = Stack::new(9, 1);
        let server = stack.start().await;
        let lines: Lines<'_> = &[ANNA, ("accept-encoding", "gzip")];
        let answer = send(server.address, version, asking(Method::GET, "/long", lines)).await;
        assert_eq!((answer.status, answer.header("content-encoding")), (StatusCode::OK, "gzip"));
        assert!(answer.body.len() < 600 && answer.items("ratelimit").len() == 2, "{answer:?}");
        let answer = send(server.address, version, asking(Method::GET, "/long", lines)).await;
        assert_eq!((answer.status, answer.has("content-encoding")), (StatusCode::TOO_MANY_REQUESTS, false));
        assert_eq!(answer.json()["violated-policies"][0], "user");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_too_slow_times_out_with_the_fields_of_the_outer_layers() {
    let stack = Stack::new(9, 9);
    let mut request = from_here("/slow");
    request.headers_mut().insert("authorization", HeaderValue::from_static(ANNA.1));
    let begin = tokio::time::Instant::now();
    let answer = Answer::read(stack.app.clone().oneshot(request).await.unwrap()).await;
    assert_eq!((answer.status, begin.elapsed().as_secs()), (StatusCode::GATEWAY_TIMEOUT, 10));
    assert_eq!(
        answer.items("ratelimit").iter().map(|item| item.name.as_str()).collect::<Vec<_>>(),
        ["address"]
    );
    // Both limits have counted the request.
    assert_eq!(stack.left(1), (8, 8));
}

#[tokio::test]
async fn bodies_of_rejected_uploads_are_not_read_by_a_limit_on_them() {
    let stack = Stack::new(1, 1);
    let polled = Arc::new(AtomicUsize::new(0));
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let counted = polled.clone();
        let body = Full::from("body").map_frame(move |frame| {
            counted.fetch_add(1, Ordering::SeqCst);
            frame
        });
        let mut upload = from_here("/upload");
        *upload.method_mut() = Method::POST;
        upload.headers_mut().insert("authorization", HeaderValue::from_static(ANNA.1));
        *upload.body_mut() = Body::new(body);
        assert_eq!(stack.app.clone().oneshot(upload).await.unwrap().status(), status);
        assert_eq!(polled.load(Ordering::SeqCst), 1);
    }
}
