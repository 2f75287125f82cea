//! A call that a handler or a task makes is seen as a request of a layer is: one denial is one event, one count of the
//! limiter and, if the handler records it, one entry of the top keys. The tasks are those in which users had seen nothing.
#![cfg(all(feature = "axum", feature = "metrics"))]

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::{Router, routing::post};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tower::ServiceExt;
use tower_throttle::algorithm::{Algorithm, Concurrency, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, Header};
use tower_throttle::middleware::GrpcMode;
use tower_throttle::stats::TopKeys;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter, Rejecter};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::Log;

/// What is seen of calls: the log with the spans that end, the metrics and the top keys.
struct Seen {
    log: Log,
    recorder: PrometheusRecorder,
    top: TopKeys,
    _guard: tracing::subscriber::DefaultGuard,
}

impl Seen {
    fn start() -> Self {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(log.clone());
        let _guard = subscriber.set_default();
        Self { log, recorder: PrometheusBuilder::new().build_recorder(), top: TopKeys::new(), _guard }
    }

    /// Returns how many events have this name, and are of this limiter or policy: `limiter="mail"`.
    fn events(&self, event: &str, of: &str) -> usize {
        let event = format!("event=\"{event}\" {of}");
        self.log.lines().iter().filter(|line| line.contains(&event)).count()
    }

    /// Returns the value of a metric, and 0 if it is not there.
    fn metric(&self, name: &str, labels: &str) -> u64 {
        let page = self.recorder.handle().render();
        let line = format!("tower_throttle_{name}{{{labels}}} ");
        page.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |value| value.parse().unwrap())
    }

    /// Returns the numbers of denials of a limiter: the events, the metric, and the counts of the top keys.
    fn denials<A: Algorithm>(&self, limiter: &RateLimiter<A>, name: &str) -> (usize, u64, Vec<u64>) {
        metrics::with_local_recorder(&self.recorder, || limiter.record_metrics());
        let outcome = |outcome: &str| {
            self.metric("limiter_calls_total", &format!("limiter=\"{name}\",outcome=\"{outcome}\""))
        };
        let events = self.events("denied", &format!("limiter=\"{name}\""));
        let top = self.top.list().iter().map(|key| key.denied).collect();
        (events, outcome("denied") + outcome("queue_full"), top)
    }

    /// Returns the fields of the requests' spans, all of which have ended.
    fn spans(&self) -> Vec<String> {
        let log = String::from_utf8(self.log.0.lock().unwrap().clone()).unwrap();
        let closed = log.lines().filter(|line| line.contains(": close") && !line.contains("sign_in"));
        let fields = |line: &str| Some(line.split_once('{')?.1.split_once('}')?.0.to_owned());
        closed.map(|line| fields(line).unwrap_or_default()).collect()
    }
}

/// The span that an access log shows.
fn span() -> tracing::Span {
    tracing::info_span!(
        "request",
        rate_limit.decision = tracing::field::Empty,
        rate_limit.rejected_by = tracing::field::Empty
    )
}

/// Sends a request in a span of its own. Returns the status.
fn status(app: &Router, body: &str) -> u16 {
    let span = span();
    span.in_scope(|| {
        let request = Request::post("/").body(Body::from(body.to_owned())).unwrap();
        let mut answer = crate::support::PolledByHand::new(app.clone().oneshot(request));
        assert!(answer.poll());
        answer.output.take().unwrap().unwrap().status().as_u16()
    })
}

fn named<A: Algorithm>(name: &str, algorithm: A) -> RateLimiter<A> {
    RateLimiter::builder(algorithm).clock(ManualClock::new()).name(name).build()
}

fn per_hour(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_hour(limit))
}

/// Task 1: the account is in the body, so the handler limits it, inside of a layer that limits addresses.
#[tokio::test]
async fn sign_ins_per_account_of_a_form() {
    let seen = Seen::start();
    type App = (RateLimiter<FixedWindow>, TopKeys);
    async fn sign_in(
        rejecter: Rejecter,
        State((accounts, top)): State<App>,
        account: String,
    ) -> Result<(), Response> {
        // The handler is in a span of its own, as with `#[instrument]`.
        let _inner = tracing::info_span!("sign_in").entered();
        accounts.check(&account).into_result().map_err(|denied| {
            top.record_as(&account, || account.clone());
            rejecter.reject(&accounts, denied)
        })
    }
    let accounts = named("accounts", per_hour(2));
    let app = |state: App| Router::new().route("/", post(sign_in)).with_state(state);
    let layer = RateLimitLayer::new(Global, per_hour(100)).name("address");
    let limited = app((accounts.clone(), seen.top.clone())).layer(layer.clone());
    let statuses = ["ann", "ann", "ann", "bob", "ann"].map(|account| status(&limited, account));
    assert_eq!(statuses, [200, 200, 429, 200, 429]);
    assert_eq!(seen.denials(&accounts, "accounts"), (2, 2, vec![2]));
    assert_eq!((seen.top.list()[0].label.as_str(), seen.events("denied", "policy=")), ("ann", 0));
    let (admitted, rejected) = (
        "rate_limit.decision=\"admitted\"",
        "rate_limit.decision=\"admitted\" rate_limit.rejected_by=\"accounts\"",
    );
    assert_eq!(seen.spans(), [admitted, admitted, rejected, admitted, rejected]);
    // Without a layer, only the current span could have the field.
    let seen = Seen::start();
    let alone = app((named("alone", per_hour(1)), seen.top.clone()));
    assert_eq!([status(&alone, "ann"), status(&alone, "ann")], [200, 429]);
    assert_eq!(seen.spans(), [""; 2], "the handler's own span has no such field");
}

/// Without a layer and without a span of the handler, the span of the request is the current one.
#[tokio::test]
async fn a_rejection_without_a_layer_is_recorded_in_the_current_span() {
    let seen = Seen::start();
    async fn send(rejecter: Rejecter, State(mail): State<RateLimiter<FixedWindow>>) -> Result<(), Response> {
        mail.check(&()).into_result().map_err(|denied| rejecter.reject(&mail, denied))
    }
    let app = Router::new().route("/", post(send)).with_state(named("mail", per_hour(1)));
    assert_eq!([status(&app, ""), status(&app, "")], [200, 429]);
    assert_eq!(seen.spans(), ["", "rate_limit.rejected_by=\"mail\""].map(str::to_owned));
}

/// Task 3: the messages of a stream of tonic, in a handler that returns a `Status`.
#[tokio::test]
async fn messages_of_a_grpc_stream() {
    let seen = Seen::start();
    let talk = named("talk", TokenBucket::new(Quota::per_minute(4)));
    let responder = HttpResponder::new().grpc(GrpcMode::Always);
    let layer = RateLimitLayer::with_limiter(Global, talk.clone()).responder(responder);
    let span = span();
    let codes: Vec<_> = span.in_scope(|| {
        let message = |_| {
            let denied = talk.check("ann").into_result().err()?;
            seen.top.record("ann");
            let answer = layer.reject(&http::Request::new(()), denied);
            Some(tonic::Status::from_header_map(answer.headers()).unwrap().code())
        };
        (0..5).map(message).collect()
    });
    drop(span);
    assert_eq!(codes, [None, None, None, None, Some(tonic::Code::ResourceExhausted)]);
    assert_eq!(seen.denials(&talk, "talk"), (1, 1, vec![1]));
    assert_eq!(seen.spans(), ["rate_limit.rejected_by=\"talk\""]);
}

/// Task 8: the cost of a GraphQL query is known in the execution, whose result the handler turns into a response.
#[tokio::test]
async fn queries_by_complexity() {
    let seen = Seen::start();
    type Points = RateLimiter<TokenBucket>;
    async fn graphql(
        rejecter: Rejecter,
        State(points): State<Points>,
        query: String,
    ) -> Result<(), Response> {
        let execute = || points.call("ann").cost(query.len() as u64).reserve();
        execute().map(drop).map_err(|denied| rejecter.reject(&points, denied))
    }
    let points = named("points", TokenBucket::new(Quota::per_minute(10)));
    let app = Router::new().route("/", post(graphql)).with_state(points.clone());
    assert_eq!(["123456", "123456", "1234567890123"].map(|query| status(&app, query)), [200, 429, 429]);
    assert_eq!(seen.denials(&points, "points"), (2, 2, vec![]));
}

/// Task 9: messages of a chat, and the sockets of a user, which are calls in progress.
#[tokio::test]
async fn messages_and_sockets_of_a_chat() {
    let seen = Seen::start();
    let (messages, sockets) = (named("messages", per_hour(5)), named("sockets", Concurrency::per_key(1)));
    let socket = sockets.try_acquire_permit("ann").unwrap();
    assert!(sockets.call("ann").permit().is_err());
    for _ in 0..8 {
        if !messages.call("ann").check().is_allowed() {
            seen.top.record("ann");
        }
    }
    drop(socket);
    assert_eq!(seen.denials(&messages, "messages"), (3, 3, vec![3]));
    assert_eq!(seen.denials(&sockets, "sockets").0, 1);
}

/// Task 12: workers wait for their turns.
#[tokio::test(start_paused = true)]
async fn jobs_that_wait() {
    let seen = Seen::start();
    let bucket = LeakyBucket::new(Quota::per_second(50)).queue(2);
    let jobs = RateLimiter::builder(bucket).name("jobs").build();
    let calls: Vec<_> = (0..5).map(|_| tokio::spawn(jobs.acquire("all"))).collect();
    for call in calls {
        let _ = call.await.unwrap();
    }
    assert_eq!(seen.denials(&jobs, "jobs"), (2, 2, vec![]));
    assert_eq!(seen.events("queued", "limiter=\"jobs\" delay="), 2);
    assert_eq!(seen.metric("limiter_queued_total", "limiter=\"jobs\""), 2);
    assert_eq!(seen.metric("limiter_waiting", "limiter=\"jobs\""), 0);
    let dropped = jobs.acquire("all");
    drop(dropped);
}

/// Task 17: a body is paced piece by piece.
#[tokio::test(start_paused = true)]
async fn pieces_of_a_body() {
    let seen = Seen::start();
    let bytes = RateLimiter::builder(TokenBucket::new(Quota::per_second(1_000))).name("bytes").build();
    for _ in 0..4 {
        assert!(bytes.call("ann").cost(500).acquire().await.is_allowed());
    }
    let late = bytes.call("ann").cost(900).max_wait(Duration::from_millis(100)).acquire().await;
    assert!(!late.is_allowed());
    assert!(!bytes.acquire_n("ann", 2_000).await.is_allowed());
    assert_eq!(seen.denials(&bytes, "bytes"), (2, 2, vec![]));
    assert_eq!(seen.events("queued", "limiter=\"bytes\""), 2);
}

/// A limiter with a layer: its metrics count the calls of both, those of the layer count its requests, and no event is
/// logged twice.
#[tokio::test]
async fn a_layer_and_a_handler_on_one_limiter_are_in_no_metric_twice() {
    let seen = Seen::start();
    let mail = named("mail", per_hour(3));
    let layer = RateLimitLayer::with_limiter(Global, mail.clone());
    let app = Router::new().route("/", post(async || ())).layer(layer.clone());
    assert_eq!([status(&app, ""), status(&app, "")], [200, 200]);
    assert!(mail.check(&()).is_allowed());
    assert!(!mail.check(&()).is_allowed());
    assert_eq!(status(&app, ""), 429);
    for _ in 0..3 {
        metrics::with_local_recorder(&seen.recorder, || layer.record_metrics());
        assert_eq!(seen.denials(&mail, "mail"), (1, 2, vec![]));
    }
    assert_eq!(seen.events("denied", "policy=\"mail\""), 1);
    let of = |metric: &str, owner: &str, outcome: &str| {
        seen.metric(metric, &format!("{owner}=\"mail\",outcome=\"{outcome}\""))
    };
    assert_eq!((of("calls_total", "policy", "admitted"), of("calls_total", "policy", "denied")), (2, 1));
    assert_eq!(of("limiter_calls_total", "limiter", "admitted"), 3);
    assert_eq!(seen.events("same_name", ""), 0, "a policy and a limiter may have one name");
}

#[tokio::test]
async fn a_limiter_without_a_name_is_not_seen_which_is_logged_once() {
    let seen = Seen::start();
    let limiter = RateLimiter::new(per_hour(1));
    assert!(limiter.check(&()).is_allowed() && !limiter.check(&()).is_allowed());
    metrics::with_local_recorder(&seen.recorder, || (0..3).for_each(|_| limiter.clone().record_metrics()));
    let lines = seen.log.lines();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("WARN") && line.contains("[T11]") && line.contains("event=\"no_name\""), "{line}");
    assert_eq!(seen.recorder.handle().render(), "");
    // Two limiters of one name add up, and a warning says so.
    let twins = [named("twin", per_hour(1)), named("twin", per_hour(1))];
    for twin in &twins {
        let _ = twin.check(&());
        metrics::with_local_recorder(&seen.recorder, || twin.record_metrics());
    }
    assert_eq!(seen.metric("limiter_calls_total", "limiter=\"twin\",outcome=\"admitted\""), 2);
    assert_eq!(seen.events("same_name", "limiter=\"twin\""), 1);
}

/// The events contain no key.
#[tokio::test]
async fn an_event_of_a_limiter_has_the_wait_and_no_key() {
    let seen = Seen::start();
    let limiter = named("by key", per_hour(1));
    let key = Header::new("x-api-key").unwrap().key(&"recognisable".parse().unwrap());
    assert!(limiter.check(&key).is_allowed() && !limiter.check(&key).is_allowed());
    let lines = seen.log.lines();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    let text = "DEBUG tower_throttle: tower-throttle: denied event=\"denied\" limiter=\"by key\" retry_after=3600s \
                outcome=\"denied\"";
    assert_eq!(line, text);
}
