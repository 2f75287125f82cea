//! Limits a tonic server for each peer: five calls at once, then one every five seconds.
//!
//! ```text
//! cargo run -p example-grpc
//! ```
//!
//! In another terminal, start the same program as a client that makes eight calls:
//!
//! ```text
//! cargo run -p example-grpc -- call
//! ```
//!
//! You will see five greetings, then three times `ResourceExhausted` with the seconds to wait. Ctrl-C ends the server.
//!
//! The service is written by hand, as tonic's code generator would write it, so that no `protoc` is needed.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_throttle::{Quota, RateLimitLayer};

const ADDRESS: &str = "127.0.0.1:50051";
const PATH: &str = "/hello.Greeter/SayHello";

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        None => serve().await,
        Some("call") => call().await,
        Some(other) => Err(format!("unknown argument {other:?}: give none to serve, or `call`").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grpc: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Answer<()> {
    let address: SocketAddr = ADDRESS.parse()?;
    let incoming = TcpIncoming::bind(address).map_err(|error| {
        format!("cannot listen on {address}: {error}. Is another program using that port?")
    })?;
    println!("five calls at once, then one every five seconds, on {address} (Ctrl-C ends it). Try:");
    println!("  cargo run -p example-grpc -- call");
    Server::builder()
        // tonic itself puts the peer's address into the request's extensions.
        .layer(RateLimitLayer::per_ip(Quota::per_minute(12).burst(5)))
        .add_service(Greeter)
        .serve_with_incoming_shutdown(incoming, async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    Ok(())
}

async fn call() -> Answer<()> {
    let channel = Channel::from_static("http://127.0.0.1:50051").connect().await;
    let channel = channel.map_err(|_| format!("no server listens on {ADDRESS}: start the server first"))?;
    let mut client = tonic::client::Grpc::new(channel);
    for n in 1..=8 {
        client.ready().await?;
        let request = Request::new(HelloRequest { name: format!("caller {n}") });
        let answer: Result<Response<HelloReply>, Status> =
            client.unary(request, PathAndQuery::from_static(PATH), ProstCodec::default()).await;
        match answer {
            Ok(reply) => println!("{n}: Ok, {}", reply.into_inner().message),
            Err(status) => {
                let wait = status.metadata().get("retry-after").and_then(|wait| wait.to_str().ok());
                println!(
                    "{n}: {:?}, {}, retry-after: {}",
                    status.code(),
                    status.message(),
                    wait.unwrap_or("-")
                );
            }
        }
    }
    Ok(())
}

#[derive(Clone, PartialEq, prost::Message)]
struct HelloRequest {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HelloReply {
    #[prost(string, tag = "1")]
    message: String,
}

async fn say_hello(request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
    let message = format!("hello, {}", request.into_inner().name);
    Ok(Response::new(HelloReply { message }))
}

#[derive(Clone)]
struct Greeter;

impl tonic::server::NamedService for Greeter {
    const NAME: &'static str = "hello.Greeter";
}

impl tower::Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(grpc.unary(tower::service_fn(say_hello), request).await)
        })
    }
}
