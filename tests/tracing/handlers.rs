//! A call that a handler or a task makes is seen as a request of a layer is: one denial is one event, one count of the
//! limiter and, if the handler records it, one entry of the top keys. The tasks are those in which users had seen
//! nothing.
#![cfg(all(feature = "axum", feature = "metrics"))]

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::{Router, routing::post};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, QueueOverflow, TokenBucket,
};
use tower_throttle::clock::ManualClock;
use tower_throttle::key::{Global, Header};
use tower_throttle::limiter::FairLimiter;
use tower_throttle::middleware::{GrpcMode, Shadow};
use tower_throttle::stats::TopKeys;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer, RateLimiter, Rejecter};
use tracing::span;
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
        let closed = log.lines().filter(|line| line.contains(": close") && !line.contains(":handler:"));
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
        let _inner = tracing::info_span!("handler").entered();
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

/// Task 3: the messages of a stream of tonic, in a handler that returns a `Status`, inside of a layer that limits
/// calls.
#[tokio::test]
async fn messages_of_a_grpc_stream() {
    let seen = Seen::start();
    let talk = named("talk", TokenBucket::new(Quota::per_minute(4)));
    let responder = HttpResponder::new().grpc(GrpcMode::Always);
    let answers = RateLimitLayer::with_limiter(Global, talk.clone()).responder(responder);
    let (top, limiter) = (seen.top.clone(), talk.clone());
    let say = service_fn(move |request: tonic::Request<tonic::Streaming<()>>| {
        let (top, limiter, answers) = (top.clone(), limiter.clone(), answers.clone());
        async move {
            // The head has the extensions of the request, in which the layer has left its span.
            let mut head = http::Request::new(());
            *head.extensions_mut() = request.extensions().clone();
            let mut messages = request.into_inner();
            while messages.message().await?.is_some() {
                let _inner = tracing::info_span!("handler").entered();
                limiter.check("ann").into_result().map_err(|denied| {
                    top.record("ann");
                    Status::from_header_map(answers.reject(&head, denied).headers()).unwrap()
                })?;
            }
            Ok(tonic::Response::new(()))
        }
    });
    let service = service_fn(move |request: http::Request<tonic::body::Body>| {
        let mut grpc = Grpc::new(ProstCodec::<(), ()>::default());
        let say = say.clone();
        async move { Ok::<_, Infallible>(grpc.client_streaming(say, request).await) }
    });
    let service = RateLimitLayer::new(Global, per_hour(100)).name("calls").layer(service);
    let mut codes = Vec::new();
    for messages in [4, 1] {
        let body = http_body_util::Full::from(vec![0; 5 * messages]);
        let request = http::Request::post("/test.Talk/Say").header("content-type", "application/grpc");
        let request = request.body(tonic::body::Body::new(body)).unwrap();
        let answer = tracing::Instrument::instrument(service.clone().oneshot(request), span()).await.unwrap();
        codes.push(Status::from_header_map(answer.headers()).map(|status| status.code()));
    }
    assert_eq!(codes, [None, Some(tonic::Code::ResourceExhausted)]);
    assert_eq!(seen.denials(&talk, "talk"), (1, 1, vec![1]));
    let admitted = "rate_limit.decision=\"admitted\"";
    assert_eq!(seen.spans(), [admitted.to_owned(), format!("{admitted} rate_limit.rejected_by=\"talk\"")]);
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

/// A clone that is joined may get a number in its name. It shares the counts, which must not be split between two
/// names.
#[tokio::test]
async fn a_layer_and_its_joined_clone_are_recorded_under_one_name() {
    let seen = Seen::start();
    let layer = || RateLimitLayer::new(Global, per_hour(9)).name("site");
    let clone = layer();
    let joined = layer().and(clone.clone());
    assert_eq!(joined.stats()[1].name, "site-2");
    let app = Router::new().route("/", post(async || ())).layer(joined.clone());
    for is_joined in [true, false, true, false] {
        assert_eq!(status(&app, ""), 200);
        metrics::with_local_recorder(&seen.recorder, || {
            if is_joined {
                joined.record_metrics();
            } else {
                clone.record_metrics();
            }
        });
    }
    let admitted = ["site-2", "site"]
        .map(|policy| seen.metric("calls_total", &format!("policy=\"{policy}\",outcome=\"admitted\"")));
    assert_eq!(admitted, [4, 3], "three of the other policy, until the last call of `joined.record_metrics`");
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
    assert!(line.contains("FairLimiter::builder(..).name(..)"), "{line}");
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
                outcome=\"denied\" locked_out=false";
    assert_eq!(line, text);
}

/// The requests of layers are events of their policies, and calls of their limiters.
#[tokio::test]
async fn requests_of_joined_layers_and_of_shadow_mode_are_no_events_of_limiters() {
    let seen = Seen::start();
    let (user, all, tried) =
        (named("user", per_hour(1)), named("all", per_hour(9)), named("tried", per_hour(1)));
    let joined = RateLimitLayer::with_limiter(Global, user.clone())
        .and(RateLimitLayer::with_limiter(Global, all.clone()))
        .and(RateLimitLayer::with_limiter(Global, tried.clone()).shadow(&Shadow::on()));
    assert!(tried.check(&()).is_allowed());
    let app = Router::new().route("/", post(async || ())).layer(joined.clone());
    assert_eq!([status(&app, ""), status(&app, ""), status(&app, "")], [200, 429, 429]);
    metrics::with_local_recorder(&seen.recorder, || joined.record_metrics());
    assert_eq!(seen.denials(&user, "user"), (0, 2, vec![]));
    assert_eq!(seen.denials(&all, "all"), (0, 0, vec![]));
    assert_eq!(seen.denials(&tried, "tried"), (0, 0, vec![]));
    assert_eq!((seen.events("denied", "policy=\"user\""), seen.events("denied", "")), (2, 2));
    let of = |limiter: &str, outcome: &str| {
        let labels = [("limiter_calls_total", "limiter"), ("calls_total", "policy")];
        labels.map(|(name, label)| seen.metric(name, &format!("{label}=\"{limiter}\",outcome=\"{outcome}\"")))
    };
    assert_eq!((of("user", "denied"), of("user", "admitted")), ([2, 2], [1, 1]));
    assert_eq!((of("all", "denied_by_others"), of("all", "admitted")), ([2, 2], [1, 1]));
    assert_eq!((of("tried", "shadow_denied"), of("tried", "admitted")), ([1, 1], [1, 0]));
    // A call of a handler is an event, and counts once more.
    assert!(!user.check(&()).is_allowed());
    assert_eq!(seen.denials(&user, "user"), (1, 3, vec![]));
}

/// Each call that waits has one end, which is seen once: it is admitted, displaced, denied by `close`, or cancelled.
#[tokio::test(start_paused = true)]
async fn the_end_of_each_wait_is_seen_once() {
    let seen = Seen::start();
    let bucket = LeakyBucket::new(Quota::per_second(1)).queue(2).overflow(QueueOverflow::DropOldest);
    let jobs = RateLimiter::builder(bucket.clone()).name("jobs").build();
    let outcome = |outcome: &str| seen.events("denied", &format!("limiter=\"jobs\" outcome=\"{outcome}\""));
    let queued = || seen.events("queued", "limiter=\"jobs\"");
    let call = async || {
        let call = [tokio::spawn(jobs.acquire("all"))];
        tokio::task::yield_now().await;
        call
    };
    assert!(jobs.acquire("all").await.is_allowed());
    let calls = [call().await, call().await, call().await];
    let [[displaced], [cancelled], [admitted]] = calls;
    assert!(!displaced.await.unwrap().is_allowed());
    assert_eq!((seen.events("denied", "limiter=\"jobs\""), queued()), (1, 0));
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    // A new limit lets the call pass at once, and a reset is no call.
    tokio::time::advance(Duration::from_millis(10)).await;
    jobs.replace(bucket.max_wait(Duration::from_secs(60)));
    assert!(jobs.reset("all"));
    let admitted = admitted.await.unwrap();
    assert!(admitted.is_allowed() && admitted.delay() < Duration::from_secs(1), "{admitted}");
    assert_eq!((seen.events("denied", "limiter=\"jobs\""), queued()), (1, 1));
    let closed = [call().await, call().await];
    jobs.close();
    for [call] in closed {
        assert!(!call.await.unwrap().is_allowed());
    }
    assert!(!jobs.check("all").is_allowed());
    assert_eq!((outcome("closed"), seen.events("denied", "limiter=\"jobs\""), queued()), (3, 4, 1));
    metrics::with_local_recorder(&seen.recorder, || jobs.record_metrics());
    let count = |outcome: &str| {
        seen.metric("limiter_calls_total", &format!("limiter=\"jobs\",outcome=\"{outcome}\""))
    };
    let counts = ["admitted", "queue_full", "denied", "cancelled", "closed"].map(count);
    assert_eq!(counts, [2, 1, 0, 1, 3]);
    assert_eq!(seen.metric("limiter_queued_total", "limiter=\"jobs\""), 5);
}

/// The name in the span is that of the events and of the metrics, also if the layer has another one, or if no header
/// field can carry it.
#[tokio::test]
async fn a_request_is_rejected_by_the_limiter_that_the_events_name() {
    let seen = Seen::start();
    async fn send(rejecter: Rejecter, State(mail): State<RateLimiter<FixedWindow>>) -> Result<(), Response> {
        mail.check(&()).into_result().map_err(|denied| rejecter.reject(&mail, denied))
    }
    let app = Router::new().route("/", post(send)).with_state(named("größe", per_hour(1)));
    assert_eq!([status(&app, ""), status(&app, "")], [200, 429]);
    let layers = [
        RateLimitLayer::with_limiter(Global, named("mail", per_hour(1))).name("policy"),
        RateLimitLayer::new(Global, per_hour(1)).name("policy"),
    ];
    for layer in layers {
        let denied = [0, 1].map(|_| layer.limiter().check(&()).into_result())[1].unwrap_err();
        let answer = span().in_scope(|| layer.reject(&http::Request::new(()), denied));
        assert_eq!(answer.headers()["ratelimit-policy"], "\"policy\";q=1;w=3600");
    }
    let rejected_by = ["größe", "mail", "policy"].map(|name| format!("rate_limit.rejected_by=\"{name}\""));
    assert_eq!(seen.spans(), [vec![String::new()], rejected_by.to_vec()].concat());
}

/// A subscriber that calls a function at each event of a limiter.
struct AtEvent(Arc<dyn Fn() + Send + Sync>);

impl tracing::Subscriber for AtEvent {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "tower_throttle"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        unreachable!("spans are not enabled")
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        (self.0)();
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A subscriber may call the limiter for the same key, and may panic: no lock is held, and the call has been decided.
#[tokio::test(start_paused = true)]
async fn an_event_is_logged_when_its_call_has_ended() {
    let window = FixedWindow::new(Quota::per_hour(1)).queue(1);
    let (calls, places) =
        (RateLimiter::builder(window).name("calls").build(), Concurrency::per_key(1).queue(1));
    let places = RateLimiter::builder(places).name("places").build();
    let (events, panics) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(false)));
    let at_event = {
        let (calls, places, events, panics) = (calls.clone(), places.clone(), events.clone(), panics.clone());
        move || {
            events.fetch_add(1, Ordering::Relaxed);
            assert!(!calls.peek("a").is_allowed() && calls.stats().calls.denied < 9);
            let _ = (places.try_acquire_permit("a"), places.stats());
            assert!(!*panics.lock().unwrap(), "on purpose");
        }
    };
    let _guard = tracing::subscriber::set_default(AtEvent(Arc::new(at_event)));
    assert!(calls.check("a").is_allowed());
    for should_panic in [false, true] {
        *panics.lock().unwrap() = should_panic;
        let seen = |call: &dyn Fn() -> bool| {
            let admitted = catch_unwind(AssertUnwindSafe(call));
            assert_eq!(admitted.is_err(), should_panic);
            assert!(!admitted.unwrap_or(false));
        };
        seen(&|| calls.check("a").is_allowed());
        seen(&|| calls.call("a").check().is_allowed());
        seen(&|| calls.call("a").permit().is_ok());
        seen(&|| calls.call("a").reserve().is_ok());
        // The first call waits for the only place until the permit is dropped, and the second one finds no room.
        let permit = places.acquire_permit("a").await.unwrap();
        let waits = [places.acquire_permit("a"), places.acquire_permit("a")].map(tokio::spawn);
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(permit);
        for wait in waits {
            assert_eq!(wait.await.is_err(), should_panic);
        }
        assert!(places.try_acquire_permit("a").is_ok(), "a panic gives the place back");
    }
    assert_eq!(events.load(Ordering::Relaxed), 12);
    assert_eq!(calls.stats().calls.denied, 8);
}

/// The calls of a fair limiter are seen as well: each denial and each wait is one event and one count.
#[tokio::test(start_paused = true)]
async fn calls_of_a_fair_limiter() {
    let seen = Seen::start();
    let exports = FairLimiter::builder(Concurrency::per_key(1).total(1).queue(1)).name("exports").build();
    let unnamed = FairLimiter::new(Concurrency::per_key(1).total(1));
    let held = [&exports, &unnamed].map(|limiter| limiter.try_acquire_permit("a").unwrap());
    assert!(exports.try_acquire_permit("a").is_err() && unnamed.try_acquire_permit("a").is_err());
    let waits = tokio::spawn(exports.acquire_permit("a"));
    tokio::task::yield_now().await;
    assert!(exports.acquire_permit("a").await.unwrap_err().decision().is_queue_full());
    tokio::time::advance(Duration::from_secs(2)).await;
    drop(held);
    assert!(waits.await.unwrap().is_ok());
    assert_eq!(seen.events("denied", "limiter=\"exports\""), 2);
    assert_eq!(seen.events("queued", "limiter=\"exports\""), 1);
    assert_eq!(seen.log.lines().len(), 3, "nothing is seen of a limiter without a name");
    metrics::with_local_recorder(&seen.recorder, || exports.record_metrics());
    let counts = ["admitted", "denied", "queue_full"].map(|outcome| {
        seen.metric("limiter_calls_total", &format!("limiter=\"exports\",outcome=\"{outcome}\""))
    });
    assert_eq!(counts, [2, 1, 1]);
}
