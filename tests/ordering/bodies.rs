//! Bodies of all kinds, in hyper servers and in process. The layer passes them on unchanged.

use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Either, Empty, Full, Limited};
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_throttle::RateLimitLayer;
use tower_throttle::key::Method as ByMethod;

use crate::hyper_only::{Connection, KINDS, boxed, end, serve, text};
use crate::support::{Server, VERSIONS, read_until, request, send};
use crate::{Fed, at_last, data, limit, limiter, trailers, used_up};

/// Asserts that two calls with this body are admitted, and that the next call is rejected. hyper serves the calls over
/// both versions of HTTP.
async fn works_with<B>(text: &'static str, body: fn() -> B)
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    for (kind, version) in KINDS {
        let service =
            service_fn(move |_: Request<Incoming>| async move { Ok::<_, Infallible>(Response::new(body())) });
        let server = serve(kind, boxed(limit(2).layer(service))).await;
        for left in [1, 0] {
            let answer = send(server.address, version, request(Method::GET, "/")).await;
            assert_eq!((answer.status, answer.text()), (StatusCode::OK, text), "{kind:?}");
            assert_eq!(answer.header("ratelimit"), format!("\"default\";r={left};t=3600"));
        }
        let answer = send(server.address, version, request(Method::GET, "/")).await;
        assert_eq!((answer.status, answer.retry_after()), (StatusCode::TOO_MANY_REQUESTS, 3_600));
        assert_eq!(answer.json()["status"], 429, "{kind:?}");
    }
}

#[tokio::test]
async fn a_layer_works_in_bare_hyper_servers() {
    for (kind, version) in KINDS {
        let hello = |_: Request<Incoming>| async { Ok(Response::new(Full::<Bytes>::from("hello"))) };
        let server = serve(kind, limit(1).layer(service_fn(hello))).await;
        for status in [200, 429, 429] {
            let answer = send(server.address, version, request(Method::GET, "/")).await;
            assert_eq!(
                (answer.status.as_u16(), answer.has("retry-after")),
                (status, status == 429),
                "{kind:?}"
            );
            assert_eq!(answer.header("ratelimit"), "\"default\";r=0;t=3600");
        }
    }
}

#[tokio::test]
async fn response_bodies_of_all_types_work_in_bare_hyper_servers() {
    works_with("full", || Full::from("full")).await;
    works_with("", Empty::<Bytes>::new).await;
    works_with("text", || String::from("text")).await;
    works_with("boxed", || BoxBody::new(Full::from("boxed"))).await;
    works_with("boxed", || UnsyncBoxBody::new(Full::from("boxed").map_err(|never| match never {}))).await;
    works_with("left", || Either::<_, Empty<Bytes>>::Left(Full::from("left"))).await;
    works_with("limited", || Limited::new(Full::from("limited"), 10)).await;
    works_with("axum", || Body::from("axum")).await;
    works_with("fed", || {
        let (feed, fed) = Fed::new();
        feed.send(data("f")).unwrap();
        feed.send(data("ed")).unwrap();
        fed
    })
    .await;
}

/// Asserts that the layer accepts requests with any type of body.
async fn takes<B>(body: fn() -> B) {
    let service = service_fn(|request: Request<B>| async {
        drop(request);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("taken")))
    });
    let limited = limit(1).layer(service);
    for status in [200, 429] {
        assert_eq!(limited.clone().oneshot(Request::new(body())).await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn requests_with_bodies_of_all_types_are_accepted() {
    takes(Full::<Bytes>::default).await;
    takes(Empty::<&[u8]>::new).await;
    takes(String::new).await;
    takes(Body::empty).await;
    takes(|| BoxBody::new(Full::<Bytes>::default())).await;
    takes(|| Limited::new(String::new(), 10)).await;
    takes(|| Fed::new().1).await;
    // These types are not bodies, or are not `Send`.
    takes(|| ()).await;
    takes(|| Rc::new(1)).await;
}

#[tokio::test]
async fn responses_are_passed_on_unchanged() {
    #[derive(Clone, Debug, PartialEq)]
    struct Mark(u8);

    let service = service_fn(|request: Request<Full<Bytes>>| async move {
        let mut response = Response::new(Full::from("as it is"));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        *response.version_mut() = http::Version::HTTP_3;
        response.headers_mut().append("set-cookie", "a=1".parse().unwrap());
        response.headers_mut().append("set-cookie", "b=2".parse().unwrap());
        response.extensions_mut().insert(Mark(7));
        assert_eq!(request.extensions().get(), Some(&Mark(6)));
        assert_eq!((request.method().as_str(), request.version()), ("BREW", http::Version::HTTP_09));
        assert_eq!(request.headers().len(), 1);
        Ok::<_, Infallible>(response)
    });
    let mut request = Request::new(Full::from("coffee"));
    *request.method_mut() = Method::from_bytes(b"BREW").unwrap();
    *request.version_mut() = http::Version::HTTP_09;
    request.extensions_mut().insert(Mark(6));
    request.headers_mut().insert("x-cups", "2".parse().unwrap());
    let response = limit(1).layer(service).oneshot(request).await.unwrap();
    assert_eq!((response.status(), response.version()), (StatusCode::IM_A_TEAPOT, http::Version::HTTP_3));
    assert_eq!(response.extensions().get(), Some(&Mark(7)));
    assert_eq!(response.headers().get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    let mut names: Vec<_> = response.headers().keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["ratelimit", "ratelimit-policy", "set-cookie"]);
    assert_eq!(response.body().size_hint().exact(), Some(8));
    assert!(!response.body().is_end_stream());
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "as it is");
}

#[tokio::test]
async fn frames_trailers_and_failures_are_passed_on_unchanged() {
    let (feed, fed) = Fed::new();
    let fed = std::sync::Mutex::new(Some(fed));
    let service = service_fn(|_: Request<()>| {
        let fed = fed.lock().unwrap().take().unwrap();
        async move { Ok::<_, Infallible>(Response::new(fed)) }
    });
    let response = limit(1).layer(service).oneshot(Request::new(())).await.unwrap();
    let mut body = pin!(response.into_body());
    let mut next = async || body.frame().await;
    feed.send(data("one")).unwrap();
    assert_eq!(next().await.unwrap().unwrap().into_data().unwrap(), "one");
    // An empty frame is passed on, too.
    feed.send(data("")).unwrap();
    assert_eq!(next().await.unwrap().unwrap().into_data().unwrap(), "");
    feed.send(trailers()).unwrap();
    assert_eq!(next().await.unwrap().unwrap().into_trailers().unwrap()["x-sum"], "42");
    feed.send(Err(std::io::Error::other("the source is gone"))).unwrap();
    assert_eq!(next().await.unwrap().unwrap_err().to_string(), "the source is gone");
    drop(feed);
    assert!(next().await.is_none());
}

/// An app whose response body the test feeds.
async fn streaming() -> (Server, crate::Feed) {
    let (feed, fed) = Fed::new();
    let fed = std::sync::Arc::new(std::sync::Mutex::new(Some(fed)));
    let handler = move || {
        let fed = fed.lock().unwrap().take().unwrap();
        async move { ([("trailer", "x-sum")], Body::new(fed)) }
    };
    (Server::start(Router::new().route("/", get(handler)).layer(limit(1))).await, feed)
}

#[tokio::test]
async fn a_stream_arrives_piece_by_piece_and_its_trailers_after_it() {
    for version in VERSIONS {
        let (server, feed) = streaming().await;
        let mut connection = Connection::<Full<Bytes>>::open(server.address, version).await;
        let mut asked = request(Method::GET, "/");
        asked.headers_mut().insert("te", "trailers".parse().unwrap());
        let response = connection.send(asked).await;
        assert_eq!(response.headers()["ratelimit"], "\"default\";r=0;t=3600");
        assert_eq!(response.headers()["trailer"], "x-sum");
        let mut body = response.into_body();
        // Each piece is sent when the previous one has arrived.
        for piece in ["one", "two", "three"] {
            feed.send(data(piece)).unwrap();
            assert_eq!(text(&mut body).await.unwrap(), piece, "{version:?}");
        }
        feed.send(trailers()).unwrap();
        let trailers = end(&mut body).await;
        assert_eq!((trailers.len(), &trailers["x-sum"]), (1, &"42".parse().unwrap()), "{version:?}");
        drop(feed);
        assert!(at_last("the end", body.frame()).await.is_none());
    }
}

#[tokio::test]
async fn a_stream_that_fails_fails_for_the_client() {
    for version in VERSIONS {
        let (server, feed) = streaming().await;
        let mut connection = Connection::<Full<Bytes>>::open(server.address, version).await;
        let mut body = connection.send(request(Method::GET, "/")).await.into_body();
        feed.send(data("one")).unwrap();
        assert_eq!(text(&mut body).await.unwrap(), "one");
        feed.send(Err(std::io::Error::other("the source is gone"))).unwrap();
        assert!(at_last("the failure", body.frame()).await.unwrap().is_err(), "{version:?}");
    }
}

fn uploads() -> Router {
    Router::new().route("/", post(|body: Bytes| async move { body.len().to_string() })).layer(used_up())
}

#[tokio::test]
async fn a_rejection_does_not_wait_for_a_body_that_never_ends() {
    for version in VERSIONS {
        let server = Server::start(uploads()).await;
        let mut connection = Connection::open(server.address, version).await;
        let (feed, fed) = Fed::new();
        feed.send(data("the first of many")).unwrap();
        let mut upload = Request::new(fed);
        *upload.method_mut() = Method::POST;
        let response = connection.send(upload).await;
        assert_eq!(response.status(), 429, "{version:?}");
        assert_eq!(response.headers()["retry-after"], "3600");
        let body = at_last("its end", response.into_body().collect()).await.unwrap().to_bytes();
        assert!(body.starts_with(b"{\"type\":"), "{body:?}");
        drop(feed);
    }
}

#[tokio::test]
async fn beside_a_rejected_upload_other_streams_go_on() {
    let server = Server::start(
        Router::new()
            .route("/up", post(|| async {}))
            .route_layer(used_up())
            .route("/", get(|| async { "hello" })),
    )
    .await;
    let mut connection = Connection::open(server.address, crate::support::Version::Http2).await;
    let mut feeds = Vec::new();
    for _ in 0..20 {
        let (feed, fed) = Fed::new();
        feed.send(data("the first of many")).unwrap();
        feeds.push(feed);
        let upload = Request::post("/up").body(fed).unwrap();
        assert_eq!(connection.send(upload).await.status(), 429);
        let (none, fed) = Fed::new();
        drop(none);
        let mut body = connection.send(Request::get("/").body(fed).unwrap()).await.into_body();
        assert_eq!(text(&mut body).await.unwrap(), "hello");
    }
}

#[tokio::test]
async fn a_chunked_upload_without_an_end_is_rejected_immediately() {
    let server = Server::start(uploads()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    stream.write_all(head).await.unwrap();
    let answer = at_last("429", read_until(&mut stream, "[\"default\"]}")).await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}

#[tokio::test]
async fn a_head_gets_the_same_response_as_a_get_except_for_the_body() {
    for version in VERSIONS {
        let app = || Router::new().route("/", get(|| async { "hello" }));
        let server = Server::start(app().layer(limit(4))).await;
        let ask = |method| send(server.address, version, request(method, "/"));
        let reported = |answer: &crate::support::Answer| {
            let length = answer.header("content-length").to_owned();
            (answer.status, length, answer.header("ratelimit-policy").to_owned(), answer.has("retry-after"))
        };
        for status in [200, 200, 429, 429] {
            let [got, head] = [ask(Method::GET).await, ask(Method::HEAD).await];
            assert_eq!((got.status.as_u16(), reported(&got)), (status, reported(&head)), "{version:?}");
            assert_eq!(got.body.len().to_string(), got.header("content-length"));
            assert!(head.body.is_empty(), "{head:?}");
            if version == crate::support::Version::Http2 {
                assert!(head.ended_with_headers);
            }
        }
        // With the key `ByMethod`, `GET` and `HEAD` share a budget.
        let by_method = limiter(2);
        let layer = RateLimitLayer::with_limiter(ByMethod::new(), by_method.clone());
        let server = Server::start(app().layer(layer)).await;
        for (method, status) in
            [(Method::GET, 200), (Method::HEAD, 200), (Method::HEAD, 429), (Method::GET, 429)]
        {
            assert_eq!(send(server.address, version, request(method, "/")).await.status, status);
        }
    }
}
