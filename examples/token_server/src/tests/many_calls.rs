//! Many calls at the same time are counted exactly, and the time of a call is measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::{Client, TokenServer, descriptor, free_port, request, status};

use crate::protocol::rate_limit_response::{Code, DescriptorStatus};
use crate::protocol::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use crate::protocol::{RateLimitRequest, RateLimitResponse};

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

/// Makes that many calls at the same time on one connection. Returns how many of them failed, and the error of one.
async fn at_once(server: &TokenServer, calls: usize) -> (usize, Option<String>) {
    let client = server.client().await;
    let mut tasks = JoinSet::new();
    for _ in 0..calls {
        let mut client = client.clone();
        tasks
            .spawn(async move { client.should_rate_limit(request(vec![descriptor(&[("all", "x")])])).await });
    }
    let (mut failed, mut last) = (0, None);
    while let Some(answer) = tasks.join_next().await {
        if let Err(error) = answer.unwrap() {
            failed += 1;
            last = Some(format!("{error:?}"));
        }
    }
    (failed, last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_because_many_calls_share_a_connection() {
    let limits =
        "domain: test\ndescriptors:\n- key: all\n  rate_limit: {unit: year, requests_per_unit: 9000}\n";
    let server = TokenServer::start(limits).await;
    for calls in [4_000, 1_000, 4_000] {
        assert_eq!(at_once(&server, calls).await, (0, None));
    }
    assert_eq!(status(&mut server.client().await, &[("all", "x")]).await.code(), Code::OverLimit);
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
