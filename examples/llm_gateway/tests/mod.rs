//! Tests of the gateway over real sockets. Their clock stands still, and the model sends what they say.

mod load;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Response, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::{Meter, RateLimiter};

use crate::gateway::{MAX_PROMPT, TOKENS, USUAL_ANSWER, estimate, gateway};
use crate::model::event_stream;

type Outgoing = Client<HttpConnector, Full<Bytes>>;

fn client() -> Outgoing {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn ask(
    client: &Outgoing,
    gateway: SocketAddr,
    headers: &[(&str, &str)],
    prompt: impl Into<Bytes>,
) -> Response<Incoming> {
    let mut request = Request::post(format!("http://{gateway}/")).body(Full::new(prompt.into())).unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    client.request(request).await.unwrap()
}

/// A server, which ends when its connections have ended.
struct Server {
    address: SocketAddr,
    stop: Arc<Notify>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Arc::new(Notify::new()));
        let stopped = stop.clone().notified_owned();
        let serving = axum::serve(listener, app).with_graceful_shutdown(stopped);
        Self { address, stop, task: tokio::spawn(async move { serving.await }) }
    }

    /// Waits until all responses have ended or were dropped.
    async fn stop(self) {
        self.stop.notify_waiters();
        at_last("the end of the server", self.task).await.unwrap().unwrap();
    }
}

async fn at_last<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(Duration::from_secs(20), future).await {
        Ok(output) => output,
        Err(_) => panic!("in vain waited for {what}"),
    }
}

/// The meters of calls that have a number in their header `x-call`.
#[derive(Clone, Default)]
struct Meters(Arc<Mutex<HashMap<String, Meter>>>);

impl Meters {
    /// Puts a meter into each request, so that the gateway's limits use it.
    fn around(&self, gateway: Router) -> Router {
        let meters = self.0.clone();
        gateway.layer(from_fn(move |mut request: Request, next: Next| {
            if let Some(number) = request.headers().get("x-call") {
                let meter = Meter::new();
                meters.lock().unwrap().insert(number.to_str().unwrap().to_owned(), meter.clone());
                request.extensions_mut().insert(meter);
            }
            next.run(request)
        }))
    }

    fn units(&self, call: &str) -> u64 {
        self.0.lock().unwrap()[call].units()
    }
}

/// A call as the model sees it.
struct Call {
    prompt: String,
    max_tokens: Option<String>,
    events: mpsc::Sender<Bytes>,
}

impl Call {
    async fn send(&self, piece: &str) {
        self.events.send(Bytes::copy_from_slice(piece.as_bytes())).await.unwrap();
    }
}

struct Setup {
    gateway: Server,
    tokens: RateLimiter<TokenBucket>,
    clock: ManualClock,
    meters: Meters,
    /// The calls that come to the model.
    calls: mpsc::Receiver<Call>,
    client: Outgoing,
}

impl Setup {
    async fn new() -> Self {
        let (sender, calls) = mpsc::channel(10);
        let model = async |State(calls): State<mpsc::Sender<Call>>, headers: HeaderMap, prompt: String| {
            let max_tokens = headers.get("x-max-tokens").map(|value| value.to_str().unwrap().to_owned());
            let (events, receiver) = mpsc::channel(1);
            calls.send(Call { prompt, max_tokens, events }).await.unwrap();
            event_stream(receiver)
        };
        let model = Server::start(Router::new().route("/", post(model)).with_state(sender)).await;
        Self::in_front_of(model.address, calls).await
    }

    async fn in_front_of(model: SocketAddr, calls: mpsc::Receiver<Call>) -> Self {
        let clock = ManualClock::new();
        let tokens = RateLimiter::builder(TokenBucket::new(TOKENS)).clock(clock.clone()).build();
        let meters = Meters::default();
        let gateway = Server::start(meters.around(gateway(model, tokens.clone()))).await;
        Self { gateway, tokens, clock, meters, calls, client: client() }
    }

    async fn ask(&self, headers: &[(&str, &str)], prompt: impl Into<Bytes>) -> Response<Incoming> {
        let headers = [&[("x-api-key", "key-1"), ("x-call", "1")], headers].concat();
        at_last("a response", ask(&self.client, self.gateway.address, &headers, prompt)).await
    }

    /// Starts an answer.
    async fn stream(&mut self, headers: &[(&str, &str)], prompt: &'static str) -> (Call, Response<Incoming>) {
        let response = self.ask(headers, prompt).await;
        assert_eq!(response.status(), StatusCode::OK);
        (self.calls.recv().await.unwrap(), response)
    }

    /// Returns the number of tokens that the first user has used.
    fn used(&self) -> u64 {
        // The key that the extractor returns is the number of the user.
        TOKENS.limit() - self.tokens.peek(&1_u64).remaining()
    }

    async fn until_used(&self, tokens: u64) {
        let settled = async {
            while self.used() != tokens {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        at_last("the settlement", settled).await;
    }
}

async fn piece(response: &mut Response<Incoming>) -> Bytes {
    let frame = at_last("a piece", response.frame()).await.expect("the answer has not ended");
    frame.unwrap().into_data().unwrap()
}

fn retry_after(response: &Response<Incoming>) -> u64 {
    response.headers()["retry-after"].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn an_answer_arrives_piece_by_piece_and_costs_the_tokens_of_its_events() {
    let mut setup = Setup::new().await;
    let (call, mut response) = setup.stream(&[], "Why is the sky blue?").await;
    assert_eq!((&*call.prompt, &call.max_tokens), ("Why is the sky blue?", &None));
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (prompt, in_advance) = (5, 5 + USUAL_ANSWER);
    // What the model sends next, and the tokens that are counted then.
    let pieces = [
        ("data: {\"text\":\"Because\",\"tokens\":2}\n\n", 2),
        (": a comment, which keeps the connection open\n\n", 2),
        ("data: {\"text\":\" of\",\"tok", 2),
        ("ens\":30}", 2),
        ("\r\n\r\ndata: {\"tokens\":400}\n\ndata:{\"tokens\":600}\n\nda", 1_032),
        ("ta: {\"tokens\":1}\n\n", 1_033),
        ("data: [DONE]\n\n", 1_033),
    ];
    for (text, tokens) in pieces {
        call.send(text).await;
        assert_eq!(piece(&mut response).await, text);
        assert_eq!((setup.meters.units("1"), setup.used()), (prompt + tokens, in_advance), "{text}");
    }
    drop(call);
    assert!(at_last("the end", response.frame()).await.is_none());
    assert_eq!(setup.used(), prompt + 1_033);
    let units = setup.tokens.stats().units;
    assert_eq!((units.charged, units.refunded), (1_033 - USUAL_ANSWER, 0));
}

#[tokio::test]
async fn a_client_that_hangs_up_pays_the_prompt_and_what_was_streamed() {
    let mut setup = Setup::new().await;
    let (call, mut response) = setup.stream(&[("x-max-tokens", "9000")], "A long story, please.").await;
    assert_eq!(call.max_tokens.as_deref(), Some("9000"));
    assert_eq!(setup.used(), 6 + 9_000);
    for _ in 0..3 {
        call.send("data: {\"tokens\":7}\n\n").await;
        piece(&mut response).await;
    }
    drop(response);
    setup.until_used(6 + 21).await;
    at_last("the model to notice", call.events.closed()).await;
    assert_eq!(setup.used(), 27);

    // A client that hangs up before the first event pays the prompt.
    let (call, response) = setup.stream(&[], "eight ch").await;
    drop(response);
    at_last("the model to notice", call.events.closed()).await;
    setup.until_used(27 + 2).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_answer_begins_pays_the_prompt() {
    let (sender, mut calls) = mpsc::channel(1);
    let thinks = async move || {
        sender.send(()).await.unwrap();
        std::future::pending::<()>().await;
    };
    let model = Server::start(Router::new().route("/", post(thinks))).await;
    let setup = Arc::new(Setup::in_front_of(model.address, mpsc::channel(1).1).await);
    let asking = setup.clone();
    let call = tokio::spawn(async move { asking.ask(&[("x-max-tokens", "700")], "eight ch").await });
    at_last("the prompt", calls.recv()).await;
    assert_eq!(setup.used(), 2 + 700);
    call.abort();
    setup.until_used(2).await;
}

#[tokio::test]
async fn the_wait_of_a_user_in_debt_is_true() {
    let mut setup = Setup::new().await;
    let (call, mut response) = setup.stream(&[], "and so on").await;
    call.send("data: {\"tokens\":130000}\n\n").await;
    piece(&mut response).await;
    drop((call, response));
    let debt = async {
        while setup.tokens.stats().units.charged == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    at_last("the debt", debt).await;

    let denied = setup.ask(&[], "and so on").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    // A debt of 30,003 tokens, and 503 for the next call.
    let wait = retry_after(&denied);
    assert_eq!(wait, (30_003 + 503) * 60 / 100_000 + 1);
    setup.clock.advance(Duration::from_secs(wait - 1));
    let denied = setup.ask(&[], "and so on").await;
    assert_eq!((denied.status(), retry_after(&denied)), (StatusCode::TOO_MANY_REQUESTS, 1));
    // Another user has tokens.
    setup.stream(&[("x-api-key", "key-2")], "and so on").await;
    setup.clock.advance(Duration::from_secs(1));
    setup.stream(&[], "and so on").await;
}

#[tokio::test]
async fn a_fifth_stream_is_denied_until_one_ends() {
    let mut setup = Setup::new().await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(setup.stream(&[], "tell me more").await);
    }
    let used = setup.used();
    let denied = setup.ask(&[], "tell me more").await;
    assert_eq!((denied.status(), retry_after(&denied)), (StatusCode::TOO_MANY_REQUESTS, 1));
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("\"violated-policies\":[\"streams\"]"), "{body:?}");
    assert_eq!(setup.used(), used, "the limit of tokens has charged nothing");

    let (call, mut response) = streams.pop().unwrap();
    drop(call);
    assert!(at_last("the end", response.frame()).await.is_none());
    let fifth = setup.stream(&[], "tell me more").await;
    assert_eq!(setup.ask(&[], "tell me more").await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(fifth);
}

#[tokio::test]
async fn a_call_that_has_no_answer_is_free() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let setup = Setup::in_front_of(gone, mpsc::channel(1).1).await;
    let unanswered = setup.ask(&[], "hello").await;
    assert_eq!((unanswered.status(), setup.meters.units("1")), (StatusCode::BAD_GATEWAY, 0));
    let too_long = setup.ask(&[], vec![b'a'; MAX_PROMPT + 1]).await;
    assert_eq!(too_long.status(), StatusCode::PAYLOAD_TOO_LARGE);
    setup.until_used(0).await;
    assert_eq!(setup.tokens.stats().units.charged, 0);
}

#[tokio::test]
async fn keys_that_were_never_issued_have_no_budget() {
    let setup = Setup::new().await;
    for key in ["key-100", "key-", "1", ""] {
        let response = ask(&setup.client, setup.gateway.address, &[("x-api-key", key)], "hello").await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{key}");
    }
    assert!(setup.tokens.is_empty());
}

#[test]
fn the_estimate_comes_from_the_head() {
    let cases: [(&[(&str, &str)], u64); 6] = [
        (&[("content-length", "20")], 5 + USUAL_ANSWER),
        (&[("content-length", "21"), ("x-max-tokens", "300")], 6 + 300),
        (&[("content-length", "0"), ("x-max-tokens", "0")], 1),
        (&[("content-length", "99999999"), ("x-max-tokens", "1")], MAX_PROMPT as u64 / 4 + 1),
        (&[("transfer-encoding", "chunked"), ("x-max-tokens", "many")], MAX_PROMPT as u64 / 4 + USUAL_ANSWER),
        (&[("x-max-tokens", "18446744073709551615")], u64::MAX),
    ];
    for (headers, expected) in cases {
        let mut request = Request::post("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        assert_eq!(estimate(&request.body(axum::body::Body::empty()).unwrap()), expected, "{headers:?}");
    }
}
