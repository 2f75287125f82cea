//! No HTTP: a tower `Service<String>`, limited by the first word of its input.
//!
//! ```text
//! cargo run --example any_service
//! ```
//!
//! Two tenants have three calls at once each, and one more every half second; `root` is not limited. You will see the fourth
//! call of `anna` refused with the time to wait, `bert` unharmed by that, and `anna` served again after that time.

use std::convert::Infallible;

use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::from_fn;
use tower_throttle::middleware::Error;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

async fn shout(line: String) -> Result<String, Infallible> {
    Ok(line.to_uppercase())
}

/// Whose budget a call draws on. `None`: it is not limited.
fn tenant(line: &str) -> Option<String> {
    let first = line.split(' ').next().unwrap_or_default();
    (first != "root").then(|| first.to_owned())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error<Infallible>> {
    let quota = Quota::per_second(2).burst(3);
    let limit = RateLimitLayer::new(from_fn(|line: &String| tenant(line)), TokenBucket::new(quota))
        .responder(ErrorResponder);
    let mut service = ServiceBuilder::new().layer(limit).service(service_fn(shout));

    println!("{quota} for each tenant");
    for line in ["anna 1", "anna 2", "anna 3", "anna 4", "bert 1", "root 1", "root 2", "root 3", "root 4"] {
        match service.ready().await?.call(line.to_owned()).await {
            Ok(answer) => println!("{line}: {answer}"),
            Err(Error::Limited(decision)) => {
                println!("{line}: {decision}");
                if let Some(wait) = decision.retry_after() {
                    tokio::time::sleep(wait).await;
                    let answer = service.ready().await?.call(line.to_owned()).await?;
                    println!("{line}: {answer}, after {wait:?}");
                }
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}
