//! The whole server over real sockets, called by a tonic client as Envoy calls it.

mod limits;
mod many_calls;
mod servers;

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tonic::transport::Channel;

use crate::limiter::Backend;
use crate::protocol::common::RateLimitDescriptor;
use crate::protocol::common::rate_limit_descriptor::Entry;
use crate::protocol::rate_limit_response::{Code, DescriptorStatus};
use crate::protocol::rate_limit_service_client::RateLimitServiceClient;
use crate::protocol::{RateLimitRequest, RateLimitResponse};
use crate::reload::Source;
use crate::service::Service;

#[path = "../../../../tests/support/redis_connection.rs"]
mod redis_connection;
#[path = "../../../../tests/support/redis_server/mod.rs"]
mod redis_server;

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
