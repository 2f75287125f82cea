//! A rate limit service for Envoy and Istio, with limits from files in the format of envoyproxy/ratelimit.
//!
//! ```text
//! cargo run -p token_server
//! ```
//!
//! The server reads `examples/token_server/limits.yaml`, listens for gRPC on port 8081, and for HTTP on port 8080, where
//! `/metrics` and `/healthcheck` are. `cargo run -p token_server -- --help` lists the options. Changed files are read
//! again within a second. Ctrl-C ends the server.
//!
//! What differs from envoyproxy/ratelimit: a request over the limit counts nothing, `retry-after` is added to rejected
//! responses, wildcards work at each level of the descriptors, and `detailed_metric` has no effect.
//!
//! A request passes through these modules in this order: `service` receives it, `rules` finds the limit of each
//! descriptor, and `limiter` counts.

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

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower_throttle::store::redis::RedisStore;

use limiter::Backend;
use protocol::rate_limit_service_server::RateLimitServiceServer;
use reload::Source;
use service::Service;

const HELP: &str = "\
usage: token_server [--limits PATH] [--grpc ADDRESS] [--http ADDRESS] [--redis URL]

  --limits PATH    a file of limits, or a directory of them [examples/token_server/limits.yaml]
  --grpc ADDRESS   where Envoy calls [127.0.0.1:8081]
  --http ADDRESS   where /metrics and /healthcheck are [127.0.0.1:8080]
  --redis URL      keeps the counts in Redis, for several servers; otherwise they are kept in memory";

struct Options {
    limits: String,
    grpc: SocketAddr,
    http: SocketAddr,
    redis: Option<String>,
}

impl Options {
    /// Returns `None` if help was asked for.
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
        Some(url) => Backend::Redis(RedisStore::connect(url).await?),
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
    let ctrl_c = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    tokio::select! {
        result = serve(service, grpc, http, recorder, ctrl_c) => result,
        () = watch => Ok(()),
    }
}

/// Serves until `shutdown` is ready and the last call has ended. From then on, the health service reports that the
/// server does not serve.
async fn serve(
    service: Service,
    grpc: TcpListener,
    http: TcpListener,
    recorder: PrometheusHandle,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let (health_reporter, health) = tonic_health::server::health_reporter();
    health_reporter.set_serving::<RateLimitServiceServer<Service>>().await;
    let server = Server::builder()
        .add_service(health)
        .add_service(RateLimitServiceServer::new(service))
        .serve_with_incoming_shutdown(TcpIncoming::from(grpc), async {
            shutdown.await;
            health_reporter.set_not_serving::<RateLimitServiceServer<Service>>().await;
        });
    tokio::select! {
        result = server => Ok(result?),
        result = axum::serve(http, pages::pages(recorder)) => Ok(result?),
    }
}
