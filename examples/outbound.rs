//! A client that keeps to what another service allows: its calls wait their turn instead of being refused.
//!
//! The service allows 20 calls a second, and 20 at once. It is built in, so that this can be tried alone:
//!
//! ```text
//! cargo run --example outbound
//! ```
//!
//! Forty calls at once, twice. You will see some twenty of them refused by the service (429), and then, through a
//! stack that limits itself, none: the first is sent at once, and one every 50 ms after it. Last, more calls than may
//! wait: those are not sent at all, and say so.
//!
//! A client of reqwest is limited in the same way: it is a tower service, too. One that was refused all the same,
//! since others draw on the same budget, should wait for as long as `Retry-After` says.

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
use tower_throttle::key::{Global, from_fn};
use tower_throttle::middleware::Error;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

type Outgoing = Request<Empty<Bytes>>;

/// What the service allows.
const TERMS: Quota = Quota::per_second(20);

const CALLS: usize = 40;

/// Whatever can be called: the client alone, or with a limit around it.
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
    // Evenly, with no burst: at most 40 may wait, none longer than 10 seconds.
    let line = LeakyBucket::new(TERMS).queue(40).max_wait(Duration::from_secs(10));
    // Each host has terms of its own.
    let by_host = from_fn(|request: &Outgoing| request.uri().authority().map(ToString::to_string));
    // What is refused here was not sent, and so has no response: it is an error.
    let limit = RateLimitLayer::new(by_host, line).responder(ErrorResponder);
    ServiceBuilder::new().layer(limit).service(client())
}

/// What became of calls that were made at once, and how long all of them took.
#[derive(Debug, Default)]
struct Outcome {
    served: usize,
    refused_there: usize,
    /// What the limit said of those that were never sent.
    refused_here: Vec<String>,
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
            Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => outcome.refused_there += 1,
            Ok(response) if response.status() == StatusCode::OK => outcome.served += 1,
            Ok(response) => return Err(response.status().to_string().into()),
            Err(error) => match error.downcast_ref::<Error<legacy::Error>>() {
                Some(Error::Limited(decision)) => outcome.refused_here.push(decision.to_string()),
                _ => return Err(error),
            },
        }
    }
    outcome.took = begin.elapsed();
    Ok(outcome)
}

/// Somebody else's service.
async fn service() -> std::io::Result<SocketAddr> {
    let limit = RateLimitLayer::new(Global, TokenBucket::new(TERMS));
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
    println!("the service allows {TERMS}");
    let tell = |what: &str, outcome: &Outcome| {
        let Outcome { served, refused_there, refused_here, took } = outcome;
        println!("{what}: {served} served, {refused_there} refused, in {:.1} s", took.as_secs_f64());
        if let Some(first) = refused_here.first() {
            println!("  and {} not sent: {first}", refused_here.len());
        }
    };
    tell("40 calls as they come", &at_once(CALLS, client(), service().await?).await?);
    tell("40 calls in line", &at_once(CALLS, limited(), service().await?).await?);
    tell("60 calls in line", &at_once(60, limited(), service().await?).await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_as_they_come_are_refused_and_calls_in_line_are_not() {
        let outcome = at_once(CALLS, client(), service().await.unwrap()).await.unwrap();
        assert_eq!(outcome.served + outcome.refused_there, CALLS);
        assert!(outcome.refused_there > 0, "{outcome:?}");

        let outcome = at_once(CALLS, limited(), service().await.unwrap()).await.unwrap();
        assert_eq!((outcome.served, outcome.refused_here.len()), (CALLS, 0), "{outcome:?}");
        assert!(outcome.took >= Duration::from_millis(50) * (CALLS as u32 - 1), "{outcome:?}");
    }

    #[tokio::test]
    async fn what_may_not_wait_is_not_sent() {
        let outcome = at_once(60, limited(), service().await.unwrap()).await.unwrap();
        // One passes, and 40 wait. A machine that is busy has let some of them go before the last one comes.
        assert_eq!(outcome.served + outcome.refused_here.len(), 60, "{outcome:?}");
        assert!(outcome.served >= 41, "{outcome:?}");
        assert!(outcome.refused_here.iter().all(|said| said.contains("denied")), "{outcome:?}");
    }
}
