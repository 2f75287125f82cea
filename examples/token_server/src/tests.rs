//! The whole server over real sockets, called by a tonic client as Envoy calls it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tower_throttle::store::redis::RedisStore;

use crate::limiter::Backend;
use crate::protocol::common::RateLimitDescriptor;
use crate::protocol::common::rate_limit_descriptor::{Entry, RateLimitOverride};
use crate::protocol::rate_limit_response::{Code, DescriptorStatus, rate_limit};
use crate::protocol::rate_limit_service_client::RateLimitServiceClient;
use crate::protocol::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use crate::protocol::{RateLimitRequest, RateLimitResponse, RateLimitUnit};
use crate::reload::Source;
use crate::service::Service;

#[path = "../../../tests/support/redis_connection.rs"]
mod redis_connection;
#[path = "../../../tests/support/redis_server/mod.rs"]
mod redis_server;

use redis_server::RedisServer;

type Client = RateLimitServiceClient<Channel>;

/// A server with its file of limits. The server ends when the test ends.
struct TokenServer {
    address: SocketAddr,
    pages: SocketAddr,
    service: Service,
    source: Source,
    file: tempfile::NamedTempFile,
    shutdown: Option<oneshot::Sender<()>>,
    task: Option<tokio::task::JoinHandle<()>>,
}

async fn free_port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

impl TokenServer {
    async fn start(limits: &str) -> Self {
        Self::with(limits, Backend::Memory).await
    }

    async fn with(limits: &str, backend: Backend) -> Self {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        std::fs::write(file.path(), limits).unwrap();
        let service = Service::new(backend);
        let mut source = Source::new(file.path());
        assert!(source.load(&service).unwrap());
        let ((grpc, address), (http, pages)) = (free_port().await, free_port().await);
        let (shutdown, ended) = oneshot::channel();
        let (recorder, served) = (recorder(), service.clone());
        let task = tokio::spawn(async move {
            let ended = async { _ = ended.await };
            let server = super::Listeners { grpc, http, recorder, drain: Duration::from_millis(300) };
            server.serve(served, ended).await.unwrap();
        });
        Self { address, pages, service, source, file, shutdown: Some(shutdown), task: Some(task) }
    }

    async fn client(&self) -> Client {
        Client::connect(format!("http://{}", self.address)).await.unwrap()
    }

    async fn page(&self, path: &str) -> String {
        let mut connection = TcpStream::connect(self.pages).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// Writes the file, and loads the file in the same way as the watch.
    fn change(&mut self, limits: &str) -> Result<bool, String> {
        std::fs::write(self.file.path(), limits).unwrap();
        self.source.load(&self.service).map_err(|error| error.to_string())
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// The recorder of all tests. A process can have only one recorder.
fn recorder() -> PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| PrometheusBuilder::new().install_recorder().unwrap()).clone()
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "test".to_owned(), descriptors, hits_addend: 0 }
}

async fn call(client: &mut Client, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    client.should_rate_limit(request(descriptors)).await.unwrap().into_inner()
}

/// Makes one call with one descriptor. Returns the status of the descriptor.
async fn status(client: &mut Client, entries: &[(&str, &str)]) -> DescriptorStatus {
    let response = call(client, vec![descriptor(entries)]).await;
    let status = response.statuses.into_iter().next().unwrap();
    assert_eq!(response.overall_code, status.code);
    status
}

/// Makes calls until a call is over the limit. Returns the number of calls that were OK.
async fn admitted(client: &mut Client, entries: &[(&str, &str)]) -> usize {
    for n in 0..1_000 {
        if status(client, entries).await.code() == Code::OverLimit {
            return n;
        }
    }
    panic!("no call was over the limit")
}

const DAILY: &str = "
domain: test
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: user
    value: root
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: user
    value: bot*
    rate_limit: {unit: day, requests_per_unit: 2, name: bots}
  - key: path
    value: /login
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 3}
  - key: free
    rate_limit: {unlimited: true}
  - key: trial
    rate_limit: {unit: day, requests_per_unit: 1}
    shadow_mode: true
  - key: vip
    rate_limit:
      unit: day
      requests_per_unit: 4
      replaces: [{name: bots}]
";

#[tokio::test]
async fn each_value_has_its_own_count_unless_the_file_names_the_value() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    assert_eq!(admitted(client, &[("user", "anna")]).await, 5);
    assert_eq!(admitted(client, &[("user", "bert")]).await, 5);
    assert_eq!(admitted(client, &[("user", "root")]).await, 0);
    assert_eq!(admitted(client, &[("user", "bot-7")]).await, 2);
    // The limit is that of the last entry, and the path is part of the count.
    assert_eq!(admitted(client, &[("path", "/login"), ("user", "anna")]).await, 3);
    assert_eq!(admitted(client, &[("path", "/login"), ("user", "bert")]).await, 3);
}

#[tokio::test]
async fn a_status_has_the_limit_and_what_remains_of_it() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let first = status(client, &[("user", "bot")]).await;
    let limit = first.current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("bots", 2));
    assert_eq!(limit.unit(), rate_limit::Unit::Day);
    assert_eq!(first.limit_remaining, 1);
    let reset = first.duration_until_reset.unwrap();
    assert!((0..=86_400).contains(&reset.seconds), "{reset:?}");
    let free = status(client, &[("free", "x")]).await;
    assert_eq!((free.code(), free.limit_remaining, free.current_limit), (Code::Ok, u32::MAX, None));
}

#[tokio::test]
async fn descriptors_without_a_limit_are_ok() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let unlimited: [&[(&str, &str)]; 5] = [
        &[("other", "x")],
        // deeper than the file, and less deep
        &[("user", "anna"), ("path", "/")],
        &[("path", "/login")],
        &[("path", "/"), ("user", "anna")],
        &[],
    ];
    for entries in unlimited {
        let status = status(client, entries).await;
        assert_eq!((status.code(), status.current_limit), (Code::Ok, None), "{entries:?}");
    }
    let mut other = request(vec![descriptor(&[("user", "root")])]);
    other.domain = "elsewhere".to_owned();
    assert_eq!(client.should_rate_limit(other).await.unwrap().into_inner().overall_code(), Code::Ok);
}

#[tokio::test]
async fn a_request_is_over_the_limit_if_one_of_its_descriptors_is_and_says_when_to_retry() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let both = || vec![descriptor(&[("user", "anna")]), descriptor(&[("user", "bot")])];
    for _ in 0..2 {
        let response = call(client, both()).await;
        assert_eq!(response.overall_code(), Code::Ok);
        assert!(response.response_headers_to_add.is_empty());
    }
    let response = call(client, both()).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    let codes: Vec<_> = response.statuses.iter().map(DescriptorStatus::code).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit]);
    let [header] = &response.response_headers_to_add[..] else { panic!("{response:?}") };
    assert_eq!(header.key, "retry-after");
    assert!((1..=86_400).contains(&header.value.parse::<u64>().unwrap()), "{header:?}");
}

#[tokio::test]
async fn hits_are_counted_together_and_use_up_the_limit_if_they_do_not_fit() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let mut three = request(vec![descriptor(&[("user", "anna")])]);
    three.hits_addend = 3;
    assert_eq!(client.should_rate_limit(three.clone()).await.unwrap().into_inner().overall_code(), Code::Ok);
    assert_eq!(
        client.should_rate_limit(three.clone()).await.unwrap().into_inner().overall_code(),
        Code::OverLimit
    );
    assert_eq!(admitted(client, &[("user", "anna")]).await, 0);
}

#[tokio::test]
async fn a_request_with_0_hits_counts_nothing_and_reports_whether_the_limit_is_used_up() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    // The hits of a descriptor take precedence over the hits of the request.
    let with_hits = |hits| {
        let descriptor = RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(&[("user", "anna")]) };
        RateLimitRequest { hits_addend: 7, ..request(vec![descriptor]) }
    };
    let expected = [
        (0, Code::Ok, 5),
        (4, Code::Ok, 1),
        (0, Code::Ok, 1),
        (9, Code::OverLimit, 0),
        (0, Code::OverLimit, 0),
    ];
    for (hits, code, remaining) in expected {
        let response = client.should_rate_limit(with_hits(hits)).await.unwrap().into_inner();
        let status = &response.statuses[0];
        assert_eq!((status.code(), status.limit_remaining), (code, remaining), "{hits}");
    }
}

#[tokio::test]
async fn shadow_mode_counts_and_rejects_nothing() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    for remaining in [0, 0, 0] {
        let status = status(client, &[("trial", "x")]).await;
        assert_eq!((status.code(), status.limit_remaining), (Code::Ok, remaining));
    }
}

#[tokio::test]
async fn a_limit_that_replaces_another_leaves_the_count_of_the_other_alone() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    for _ in 0..4 {
        let both = vec![descriptor(&[("user", "bot")]), descriptor(&[("vip", "x")])];
        assert_eq!(call(client, both).await.overall_code(), Code::Ok);
    }
    assert_eq!(admitted(client, &[("vip", "x")]).await, 0);
    assert_eq!(admitted(client, &[("user", "bot")]).await, 2);
}

#[tokio::test]
async fn a_request_can_bring_its_limit_along() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let with_limit = |requests_per_unit, unit: RateLimitUnit| {
        let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
        RateLimitDescriptor { limit, ..descriptor(&[("user", "anna")]) }
    };
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(call(client, vec![with_limit(2, RateLimitUnit::Day)]).await.overall_code(), expected);
    }
    let unknown = request(vec![with_limit(2, RateLimitUnit::Unknown)]);
    let error = client.should_rate_limit(unknown).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    // Each rate needs memory, so the oldest rates are dropped.
    for requests in 3..1_003 {
        assert_eq!(
            call(client, vec![with_limit(requests, RateLimitUnit::Day)]).await.overall_code(),
            Code::Ok
        );
    }
    assert_eq!(call(client, vec![with_limit(2, RateLimitUnit::Day)]).await.overall_code(), Code::Ok);
}

#[tokio::test]
async fn a_dot_in_a_key_is_no_level() {
    let limits = "
domain: test
descriptors:
  - key: a.b
    rate_limit: {unit: DAY, requests_per_unit: 1}
  - key: a
    descriptors:
      - key: b
        rate_limit: {unit: day, requests_per_unit: 2}
";
    let server = TokenServer::start(limits).await;
    let client = &mut server.client().await;
    assert_eq!(admitted(client, &[("a.b", "x")]).await, 1);
    assert_eq!(admitted(client, &[("a", "x"), ("b", "x")]).await, 2);
}

#[tokio::test]
async fn requests_without_a_domain_or_a_descriptor_are_invalid() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let mut nameless = request(vec![descriptor(&[("user", "anna")])]);
    nameless.domain.clear();
    for request in [nameless, request(Vec::new())] {
        let error = client.should_rate_limit(request).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    }
}

#[tokio::test]
async fn changed_limits_keep_what_was_counted() {
    let mut server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    assert_eq!(admitted(client, &[("user", "anna")]).await, 5);
    assert_eq!(server.change(DAILY), Ok(false));
    assert_eq!(server.change(&DAILY.replace("requests_per_unit: 5", "requests_per_unit: 7")), Ok(true));
    assert_eq!(admitted(client, &[("user", "anna")]).await, 2);
    assert_eq!(admitted(client, &[("user", "bert")]).await, 7);
}

#[tokio::test]
async fn a_mistake_in_a_changed_file_is_reported_once_and_the_limits_stay() {
    let mut server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let mistakes = [
        ("unit: hour", "unit: fortnight", "fortnight"),
        ("shadow_mode", "shadow", "shadow"),
        ("value: root", "value: \"\"", "test.user is configured twice"),
        ("key: free", "key: \"\"", "empty key"),
        ("{unlimited: true}", "{unlimited: true, unit: day}", "unlimited"),
        ("requests_per_unit: 1}", "}", "requests_per_unit"),
        ("domain: test", "domain: \"\"", "the domain is empty"),
        ("requests_per_unit: 5", "requests_per_unit: -5", "-5"),
        ("replaces: [{name: bots}]", "name: bots\n      replaces: [{name: bots}]", "replaces itself"),
    ];
    for (from, to, expected) in mistakes {
        let broken = DAILY.replace(from, to);
        assert_ne!(broken, DAILY, "{from}");
        let error = server.change(&broken).unwrap_err();
        assert!(error.contains(expected), "{to}: {error}");
        assert!(error.contains(".yaml"), "{error}");
        assert_eq!(server.change(&broken), Ok(false), "{to}");
    }
    assert_eq!(admitted(client, &[("user", "anna")]).await, 5);
}

#[tokio::test]
async fn the_page_for_prometheus_counts_decisions_by_limit() {
    let limits =
        "domain: counted\ndescriptors:\n- key: user\n  rate_limit: {unit: day, requests_per_unit: 2}\n";
    let server = TokenServer::start(limits).await;
    let client = &mut server.client().await;
    for _ in 0..5 {
        let mut request = request(vec![descriptor(&[("user", "secret-name")])]);
        request.domain = "counted".to_owned();
        client.should_rate_limit(request).await.unwrap();
    }
    let page = server.page("/metrics").await;
    let count =
        |outcome| format!("ratelimit_decisions_total{{limit=\"counted.user\",outcome=\"{outcome}\"}}");
    assert!(page.contains(&format!("{} 2\n", count("ok"))), "{page}");
    assert!(page.contains(&format!("{} 3\n", count("over_limit"))), "{page}");
    assert!(page.contains("ratelimit_config_loads_total{result=\"success\"}"), "{page}");
    assert!(!page.contains("secret-name"), "{page}");
    assert!(server.page("/healthcheck").await.ends_with("OK\n"));
}

#[tokio::test]
async fn the_health_service_reports_the_server_until_it_shuts_down() {
    let mut server = TokenServer::start(DAILY).await;
    let channel =
        Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let service = "envoy.service.ratelimit.v3.RateLimitService".to_owned();
    let watched = HealthClient::new(channel).watch(HealthCheckRequest { service }).await;
    let mut states = watched.unwrap().into_inner();
    assert_eq!(states.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.shutdown.take().unwrap().send(()).unwrap();
    assert_eq!(states.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    // The watch never ends by itself.
    let task = server.task.take().unwrap();
    tokio::time::timeout(Duration::from_secs(60), task).await.expect("the server ends").unwrap();
}

#[tokio::test]
async fn servers_with_one_redis_share_the_counts_and_are_unavailable_without_it() {
    let redis = RedisServer::start();
    let store = || RedisStore::builder(&redis.url()).deadline(Duration::from_secs(10)).connect();
    let one = TokenServer::with(DAILY, Backend::Redis(store().await.unwrap())).await;
    let other = TokenServer::with(DAILY, Backend::Redis(store().await.unwrap())).await;
    let clients = &mut [one.client().await, other.client().await];
    let mut codes = Vec::new();
    for n in 0..6 {
        codes.push(status(&mut clients[n % 2], &[("user", "anna")]).await.code());
    }
    assert_eq!(codes, [[Code::Ok; 5].as_slice(), &[Code::OverLimit]].concat());
    drop(redis);
    let request = request(vec![descriptor(&[("user", "bert")])]);
    let error = clients[0].should_rate_limit(request).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
}

/// Makes calls from four clients, each with 25 calls in flight. Returns the number of calls that were OK, and the time
/// that all calls took.
async fn flood(server: SocketAddr, calls: u64) -> (u64, Duration) {
    let ok = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let client = Client::connect(format!("http://{server}")).await.unwrap();
        for _ in 0..25 {
            let (mut client, ok) = (client.clone(), Arc::clone(&ok));
            tasks.spawn(async move {
                for _ in 0..calls / 100 {
                    let code = status(&mut client, &[("all", "x")]).await.code();
                    ok.fetch_add(u64::from(code == Code::Ok), Ordering::Relaxed);
                }
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    (ok.load(Ordering::Relaxed), start.elapsed())
}

async fn four_clients(calls: u64, limit: u64) -> Duration {
    let limits = format!(
        "domain: test\ndescriptors:\n- key: all\n  rate_limit: {{unit: year, requests_per_unit: {limit}}}\n"
    );
    let server = TokenServer::start(&limits).await;
    let (ok, time) = flood(server.address, calls).await;
    assert_eq!(ok, limit.min(calls));
    time
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_clients_get_exactly_the_limit() {
    four_clients(10_000, 3_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long without optimization"]
async fn four_clients_get_exactly_the_limit_in_100_000_calls() {
    four_clients(100_000, 30_000).await;
}

/// A service that answers OK without a decision.
struct Undecided;

#[tonic::async_trait]
impl RateLimitService for Undecided {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let ok = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        let statuses = vec![ok; request.get_ref().descriptors.len()];
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses,
            ..RateLimitResponse::default()
        }))
    }
}

/// To run this test, use `cargo test --release -p token_server -- --ignored --nocapture throughput`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures time"]
async fn throughput_to_a_server_without_decisions() {
    let (grpc, address) = free_port().await;
    let server = Server::builder().add_service(RateLimitServiceServer::new(Undecided));
    let task = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(grpc)));
    let mut ratios = Vec::new();
    for _ in 0..9 {
        let (ok, undecided) = flood(address, 20_000).await;
        assert_eq!(ok, 20_000);
        let decided = four_clients(20_000, 1_000_000).await;
        ratios.push(undecided.as_secs_f64() / decided.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    println!("throughput: {:.2} of a server that does not decide ({ratios:.2?})", ratios[ratios.len() / 2]);
    task.abort();
}
