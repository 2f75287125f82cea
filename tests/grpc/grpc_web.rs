//! gRPC-Web: tonic-web outside and inside of the limiter, over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use tonic_web::{GrpcWebClientService, GrpcWebLayer};
use tower::Layer;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer};

use crate::client::{Caller, answer};
use crate::details::{Details, read, reported};
use crate::protobuf::base64;
use crate::service::{Echo, METHODS, SAY, SPELL, Words, builder, limit, serve};
use crate::support::{Answer, Server, VERSIONS, Version, request, send};

/// The content types that a browser may send, and whether each is base64.
const KINDS: [(&str, bool); 4] = [
    ("application/grpc-web", false),
    ("application/grpc-web+proto", false),
    ("application/grpc-web-text", true),
    ("application/grpc-web-text+proto", true),
];

/// Returns the content type of a response. If tonic-web is the outermost layer, it adds the codec to the content type.
fn renamed(kind: &str) -> &str {
    if kind.contains("-text") { "application/grpc-web-text+proto" } else { "application/grpc-web+proto" }
}

/// Allows one call every two seconds.
fn slow(clock: &ManualClock) -> RateLimitLayer<Global, TokenBucket> {
    limit(TokenBucket::new(Quota::per_minute(30).burst(1)), clock).name("slow")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// tonic-web is between the limiter and the services.
    Inside,
    /// tonic-web is around the limiter.
    Outside,
}

/// Starts a server with tonic-web and a limiter, either around all services or around one service.
async fn server(place: Place, around_one: bool, clock: &ManualClock, echo: Echo) -> Server {
    let (web, layer) = (GrpcWebLayer::new(), slow(clock));
    let builder = builder().accept_http1(true);
    match (place, around_one) {
        (Place::Inside, false) => serve!(builder.layer(layer).layer(web).add_service(echo)),
        (Place::Outside, false) => serve!(builder.layer(web).layer(layer).add_service(echo)),
        (Place::Inside, true) => serve!({ builder }.add_service(layer.layer(web.layer(echo)))),
        (Place::Outside, true) => serve!({ builder }.add_service(web.layer(layer.layer(echo)))),
    }
}

const LAYOUTS: [(Place, bool); 4] =
    [(Place::Inside, false), (Place::Outside, false), (Place::Inside, true), (Place::Outside, true)];

fn framed(text: &str) -> Vec<u8> {
    let message = Words::new(text).encode_to_vec();
    [&[0], &u32::try_from(message.len()).unwrap().to_be_bytes()[..], &message].concat()
}

fn asking(method: &str, (kind, is_text): (&'static str, bool)) -> Request<Full<bytes::Bytes>> {
    let mut request = request(Method::POST, method);
    for name in [CONTENT_TYPE, ACCEPT] {
        request.headers_mut().insert(name, HeaderValue::from_static(kind));
    }
    let message = framed("abc");
    *request.body_mut() = Full::from(if is_text { padded(&message).into_bytes() } else { message });
    request
}

fn padded(bytes: &[u8]) -> String {
    let mut text = base64(bytes);
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// Decodes base64 that consists of one part or several parts, each with padding.
fn unpadded(text: &[u8]) -> Vec<u8> {
    let value = |letter: u8| (0..64_u8).find(|&bits| base64(&[bits << 2]).as_bytes()[0] == letter);
    let mut bytes = Vec::new();
    for chunk in text.chunks(4) {
        let values: Vec<_> = chunk.iter().map_while(|&letter| value(letter)).collect();
        assert!(chunk[values.len()..].iter().all(|&letter| letter == b'='), "{}", text.escape_ascii());
        let bits = (0..4).fold(0_u32, |bits, at| bits << 6 | u32::from(*values.get(at).unwrap_or(&0)));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..values.len()]);
    }
    bytes
}

/// Returns the messages of a response, and its trailers as text.
fn frames(answer: &Answer, is_text: bool) -> (Vec<String>, String) {
    let bytes = if is_text { unpadded(&answer.body) } else { answer.body.to_vec() };
    let (mut messages, mut trailers, mut rest) = (Vec::new(), String::new(), bytes.as_slice());
    while let Some(([flags, length @ ..], behind)) = rest.split_first_chunk::<5>() {
        let (frame, behind) = behind.split_at(u32::from_be_bytes(*length) as usize);
        match flags {
            0 => messages.push(Words::decode(frame).unwrap().text),
            0x80 => trailers.push_str(std::str::from_utf8(frame).unwrap()),
            _ => panic!("{flags}"),
        }
        rest = behind;
    }
    assert!(rest.is_empty(), "{answer:?}");
    (messages, trailers)
}

/// Asserts that the headers have the whole rejection.
#[track_caller]
fn assert_is_rejected(answer: &Answer, content_type: &str) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), content_type);
    assert!(answer.body.is_empty(), "{answer:?}");
    assert_eq!(reported(&answer.headers), Details::new(Some(Duration::from_secs(2)), &["slow"], Some(2_000)));
    assert_eq!(answer.header("ratelimit"), "\"slow\";r=0;t=2");
}

async fn assert_is_served(address: SocketAddr, version: Version, method: &str, kind: (&'static str, bool)) {
    let answered = send(address, version, asking(method, kind)).await;
    assert_eq!(answered.header("content-type"), renamed(kind.0), "{answered:?}");
    let (messages, trailers) = frames(&answered, kind.1);
    assert_eq!(messages, answer(method, "abc"), "{answered:?}");
    assert_eq!(trailers.trim_end(), "grpc-status:0");
    assert_eq!(answered.header("ratelimit"), "\"slow\";r=0;t=2");
}

#[tokio::test]
async fn browsers_get_their_own_content_type_wherever_tonic_web_is_placed() {
    for (place, around_one) in LAYOUTS {
        let (clock, echo) = (ManualClock::new(), Echo::default());
        let server = server(place, around_one, &clock, echo.clone()).await;
        for version in VERSIONS {
            for kind in KINDS {
                for method in [SAY, SPELL] {
                    assert_is_served(server.address, version, method, kind).await;
                    let rejected = send(server.address, version, asking(method, kind)).await;
                    assert_is_rejected(
                        &rejected,
                        if place == Place::Inside { kind.0 } else { renamed(kind.0) },
                    );
                    clock.advance(Duration::from_secs(2));
                }
            }
        }
        assert_eq!(echo.calls(), 2 * 4 * 2, "{place:?}");
    }
}

#[tokio::test]
async fn other_clients_are_served_beside_browsers() {
    for (place, around_one) in LAYOUTS {
        let clock = ManualClock::new();
        let server = server(place, around_one, &clock, Echo::default()).await;
        let mut caller = Caller::connect(server.address).await;
        for method in METHODS {
            assert_eq!(caller.call(method, "abc").await.unwrap(), answer(method, "abc"));
            let status = caller.call(method, "abc").await.unwrap_err();
            let wait = Duration::from_secs(2);
            assert_eq!(read(&status), Details::new(Some(wait), &["slow"], Some(2_000)), "{place:?}");
            clock.advance(wait);
        }
    }
}

/// Tests tonic's own gRPC-Web client, over HTTP/1.1.
#[tokio::test]
async fn a_web_client_reads_the_wait() {
    for (place, around_one) in LAYOUTS {
        let clock = ManualClock::new();
        let server = server(place, around_one, &clock, Echo::default()).await;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut caller = Caller::over(GrpcWebClientService::new(client), server.address);
        for method in [SAY, SPELL] {
            assert_eq!(caller.call(method, "abc").await.unwrap(), answer(method, "abc"));
            let status = caller.call(method, "abc").await.unwrap_err();
            let wait = Duration::from_secs(2);
            assert_eq!(read(&status), Details::new(Some(wait), &["slow"], Some(2_000)), "{place:?}");
            clock.advance(wait);
        }
    }
}
