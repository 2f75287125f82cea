//! A rate limit service for Envoy and Istio, with limits from files in the format of envoyproxy/ratelimit.
//!
//! ```text
//! cargo run -p token_server
//! ```
//!
//! The server reads `examples/token_server/limits.yaml`. It listens for gRPC on port 8081, and for HTTP on port 8080,
//! where it serves the pages `/metrics` and `/healthcheck`. `cargo run -p token_server -- --help` lists the options.
//! Changed files are read again within a second. Ctrl-C ends the server.
//!
//! The server differs from envoyproxy/ratelimit in these ways:
//!
//! - If a request is over the limit, the response has the header `retry-after`.
//! - `detailed_metric` and `value_to_metric` have no effect.
//! - `share_threshold` is an error.
//! - A request with more than 100 descriptors, or with more than 100 entries in a descriptor, is answered with
//!   `INVALID_ARGUMENT`, and counts nothing.
//! - Without Redis, each limit keeps at most 100,000 keys, the default of `max_keys`. If more are in use, a new key
//!   evicts another one, whose requests then count no more.
//! - A descriptor in a request can have a limit of its own, an *override*. Each rate of an override has counts of its
//!   own.
//!
//! A request passes through these modules, in this order: `service` receives the request, `rules` finds the limit of
//! each descriptor, and `limiter` counts the request.

mod config;
mod limiter;
mod pages;
mod protocol;
mod reload;
mod rules;
mod service;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tower_throttle::limiter::KeySecret;
use tower_throttle_redis::RedisStore;

use limiter::Backend;
use protocol::rate_limit_service_server::RateLimitServiceServer;
use reload::Source;
use service::Service;

const HELP: &str = "\
usage: token_server [--limits PATH] [--grpc ADDRESS] [--http ADDRESS] [--redis URL]

  --limits PATH    a file of limits, or a directory of them [examples/token_server/limits.yaml]
  --grpc ADDRESS   where Envoy calls [127.0.0.1:8081]
  --http ADDRESS   where /metrics and /healthcheck are [127.0.0.1:8080]
  --redis URL      keeps the counts in Redis, for several servers; otherwise they are kept in memory

With Redis, set the environment variable RATE_LIMIT_SECRET to at least 16 bytes that are hard to guess, the same for all
servers: descriptors above 100 bytes are then kept as fingerprints.";

/// The maximum time for which connections stay open after the signal to shut down.
const DRAIN: Duration = Duration::from_secs(10);

/// The maximum number of calls in progress on one connection. A client delays its further calls.
///
/// Without a maximum, the messages of many calls may wait unread at the same time. For each DATA frame of less than 256
/// bytes that is unread, h2 counts what is missing to 256 bytes. If the sum exceeds 512 KiB, which is half the window
/// of a connection, h2 ends the connection with the error `too_many_data_frames`, and the calls on the connection fail.
/// With this maximum, the sum stays below 512 KiB even if each message is sent in two such frames.
const MAX_CALLS_OF_CONNECTION: u32 = 1_000;

struct Options {
    limits: String,
    grpc: SocketAddr,
    http: SocketAddr,
    redis: Option<String>,
}

impl Options {
    /// Parses the arguments. Returns `None` if one of them asks for help.
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            limits: concat!(env!("CARGO_MANIFEST_DIR"), "/limits.yaml").to_owned(),
            grpc: SocketAddr::from(([127, 0, 0, 1], 8081)),
            http: SocketAddr::from(([127, 0, 0, 1], 8080)),
            redis: None,
        };
        while let Some(name) = args.next() {
            if name == "--help" || name == "-h" {
                return Ok(None);
            }
            let mut value = || args.next().ok_or_else(|| format!("{name} needs a value\n{HELP}"));
            let address = |value: String| {
                value.parse().map_err(|_| format!("{name} {value}: give an address such as 127.0.0.1:8081"))
            };
            match name.as_str() {
                "--limits" => options.limits = value()?,
                "--grpc" => options.grpc = address(value()?)?,
                "--http" => options.http = address(value()?)?,
                "--redis" => options.redis = Some(value()?),
                _ => return Err(format!("unknown option {name}\n{HELP}")),
            }
        }
        Ok(Some(options))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("token_server: {error}");
            return ExitCode::from(2);
        }
    };
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("token_server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("cannot listen on {address}: {error}"))
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let recorder = PrometheusBuilder::new().install_recorder()?;
    let backend = match &options.redis {
        Some(url) => {
            let mut store = RedisStore::builder(url);
            if let Ok(secret) = std::env::var("RATE_LIMIT_SECRET") {
                store = store.key_secret(KeySecret::new(secret)?);
            }
            Backend::Redis(store.connect().await?)
        }
        None => Backend::Memory,
    };
    let service = Service::new(backend);
    let mut source = Source::new(options.limits);
    source.load(&service)?;
    let (grpc, http) = (listen(options.grpc).await?, listen(options.http).await?);
    println!(
        "{} limits; gRPC on {}, http://{}/metrics (Ctrl-C ends the server)",
        service.rules().count(),
        grpc.local_addr()?,
        http.local_addr()?
    );
    let watch = source.watch(service.clone());
    let server = Listeners { grpc, http, recorder, drain: DRAIN };
    tokio::select! {
        result = server.serve(service, shutdown()) => result,
        () = watch => Ok(()),
    }
}

/// Waits for Ctrl-C or, on Unix, for SIGTERM.
async fn shutdown() {
    let ctrl_c = tokio::signal::ctrl_c();
    #[cfg(unix)]
    if let Ok(mut terminate) = signal(SignalKind::terminate()) {
        tokio::select! {
            _ = ctrl_c => {}
            _ = terminate.recv() => {}
        }
        return;
    }
    let _ = ctrl_c.await;
}

/// The sockets of the server.
struct Listeners {
    grpc: TcpListener,
    http: TcpListener,
    recorder: PrometheusHandle,
    /// The maximum time for which connections stay open after the signal to shut down.
    drain: Duration,
}

impl Listeners {
    /// Serves until `shutdown` is ready. From then on, the health checks report that the server does not serve. The
    /// future is ready when the last gRPC connection has ended, but at most `drain` after `shutdown`.
    async fn serve(self, service: Service, shutdown: impl Future<Output = ()>) -> Result<(), Box<dyn Error>> {
        let (health_reporter, health) = tonic_health::server::health_reporter();
        // The empty name stands for all services. The third name is the one by which clients check
        // envoyproxy/ratelimit.
        let names = ["", RateLimitServiceServer::<Service>::NAME, "ratelimit"];
        for name in names {
            health_reporter.set_service_status(name, ServingStatus::Serving).await;
        }
        let (serving, is_serving) = watch::channel(true);
        let mut stopped = is_serving.clone();
        let server = Server::builder()
            .max_concurrent_streams(MAX_CALLS_OF_CONNECTION)
            .add_service(health)
            .add_service(RateLimitServiceServer::new(service))
            // A small response does not wait for the next one.
            .serve_with_incoming_shutdown(TcpIncoming::from(self.grpc).with_nodelay(Some(true)), async {
                shutdown.await;
                for name in names {
                    health_reporter.set_service_status(name, ServingStatus::NotServing).await;
                }
                serving.send_replace(false);
            });
        // A client that watches the health keeps its connection open for ever.
        let overdue = async {
            let _ = stopped.wait_for(|is_serving| !is_serving).await;
            tokio::time::sleep(self.drain).await;
        };
        tokio::select! {
            result = server => Ok(result?),
            result = axum::serve(self.http, pages::pages(self.recorder, is_serving)) => Ok(result?),
            () = overdue => Ok(()),
        }
    }
}
