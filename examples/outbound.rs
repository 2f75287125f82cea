//! Limits a client to the rate that another service allows. So calls are queued in the client, and the service does not
//! deny them.
//!
//! The service allows 20 calls a second, and 20 at once. The service is part of this program, so that nothing else is
//! needed:
//!
//! ```text
//! cargo run --example outbound
//! ```
//!
//! The client makes forty calls at once, twice. The first time, you will see that the service denies about twenty of
//! these calls (429). The second time, there is a limit around the client, and the service denies none of the calls.
//! The first call is sent at once, and the others follow 50 ms apart. Finally, the client makes more calls than the
//! queue has places for. The calls for which there is no place are not sent, and return an error that says so.
//!
//! A reqwest client can be limited in the same way, because it is a tower service, too. The service may still deny a
//! call if other clients use the same budget. The client should then wait for as long as `Retry-After` says.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use axum::{Router, routing::get};
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_throttle::algorithm::{LeakyBucket, TokenBucket};
use tower_throttle::key::{self, Global};
use tower_throttle::middleware::Error;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

type Outgoing = Request<Empty<Bytes>>;

/// The quota that the service allows.
const QUOTA: Quota = Quota::per_second(20);

const CALLS: usize = 40;

/// A service that can be called: the client alone, or with a limit around it.
trait Calls<E>:
    Service<Outgoing, Response = Response<Incoming>, Error = E, Future: Send> + Clone + Send + 'static
{
}

impl<E, S> Calls<E> for S where
    S: Service<Outgoing, Response = Response<Incoming>, Error = E, Future: Send> + Clone + Send + 'static
{
}

fn client() -> impl Calls<legacy::Error> {
    Client::builder(TokioExecutor::new()).build_http()
}

fn limited() -> impl Calls<Error<legacy::Error>> {
    // Calls are admitted evenly, without a burst: at most 40 calls are queued, and each for at most 10 seconds.
    let algorithm = LeakyBucket::new(QUOTA).queue(40).max_wait(Duration::from_secs(10));
    // Each host has its own quota.
    let by_host = key::from_fn(|request: &Outgoing| request.uri().authority().map(ToString::to_string));
    // A call that this limit denies is not sent, so there is no response: the call returns an error.
    let limit = RateLimitLayer::new(by_host, algorithm).responder(ErrorResponder);
    ServiceBuilder::new().layer(limit).service(client())
}

/// The outcome of a group of calls that were made at once. `took` is the time from the first call to the last result.
#[derive(Debug, Default)]
struct Outcome {
    served: usize,
    denied_there: usize,
    /// The errors of the calls that were never sent.
    denied_here: Vec<String>,
    took: Duration,
}

async fn at_once<E>(count: usize, client: impl Calls<E>, server: SocketAddr) -> Result<Outcome, BoxError>
where
    E: Into<BoxError> + Send + 'static,
{
    let begin = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let request = Request::get(format!("http://{server}/")).body(Empty::new())?;
        calls.spawn(client.clone().oneshot(request));
    }
    let mut outcome = Outcome::default();
    for answer in calls.join_all().await {
        match answer.map_err(Into::into) {
            Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => outcome.denied_there += 1,
            Ok(response) if response.status() == StatusCode::OK => outcome.served += 1,
            Ok(response) => return Err(response.status().to_string().into()),
            Err(error) => match error.downcast_ref::<Error<legacy::Error>>() {
                Some(Error::Limited(decision)) => outcome.denied_here.push(decision.to_string()),
                _ => return Err(error),
            },
        }
    }
    outcome.took = begin.elapsed();
    Ok(outcome)
}

/// Starts the other service and returns its address.
async fn service() -> std::io::Result<SocketAddr> {
    let limit = RateLimitLayer::new(Global, TokenBucket::new(QUOTA));
    let app = Router::new().route("/", get(|| async { "served\n" })).layer(limit);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outbound: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    println!("the service allows {QUOTA}");
    let print = |what: &str, outcome: &Outcome| {
        let Outcome { served, denied_there, denied_here, took } = outcome;
        println!("{what}: {served} served, {denied_there} denied, in {:.1} s", took.as_secs_f64());
        if let Some(first) = denied_here.first() {
            println!("  and {} not sent: {first}", denied_here.len());
        }
    };
    print("40 calls without a limit", &at_once(CALLS, client(), service().await?).await?);
    print("40 calls with a limit", &at_once(CALLS, limited(), service().await?).await?);
    print("60 calls with a limit", &at_once(60, limited(), service().await?).await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_service_denies_unlimited_calls_and_no_queued_calls() {
        let outcome = at_once(CALLS, client(), service().await.unwrap()).await.unwrap();
        assert_eq!(outcome.served + outcome.denied_there, CALLS);
        assert!(outcome.denied_there > 0, "{outcome:?}");

        let outcome = at_once(CALLS, limited(), service().await.unwrap()).await.unwrap();
        assert_eq!((outcome.served, outcome.denied_here.len()), (CALLS, 0), "{outcome:?}");
        assert!(outcome.took >= Duration::from_millis(50) * (CALLS as u32 - 1), "{outcome:?}");
    }

    #[tokio::test]
    async fn calls_beyond_the_queue_are_not_sent() {
        let outcome = at_once(60, limited(), service().await.unwrap()).await.unwrap();
        // One call is admitted at once, and 40 are queued. On a busy machine, some of these are admitted before the
        // last call is made.
        assert_eq!(outcome.served + outcome.denied_here.len(), 60, "{outcome:?}");
        assert!(outcome.served >= 41, "{outcome:?}");
        assert!(outcome.denied_here.iter().all(|error| error.contains("denied")), "{outcome:?}");
    }
}
