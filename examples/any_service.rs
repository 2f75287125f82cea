//! Limits a tower `Service<String>`, without HTTP, by the first word of its input.
//!
//! ```text
//! cargo run --example any_service
//! ```
//!
//! There are two tenants, `anna` and `bert`. Each of them may make three calls at once, and then one every half second.
//! `root` is not limited. You will see that the fourth call of `anna` is denied with the time to wait, that the same
//! call is admitted after that time, and that `bert` is not affected.

use std::convert::Infallible;

use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key;
use tower_throttle::middleware::Error;
use tower_throttle::{ErrorResponder, Quota, RateLimitLayer};

async fn shout(text: String) -> Result<String, Infallible> {
    Ok(text.to_uppercase())
}

/// Returns the tenant whose budget a call uses, or `None` if the call is not limited.
fn tenant(text: &str) -> Option<String> {
    let first = text.split(' ').next().unwrap_or_default();
    (first != "root").then(|| first.to_owned())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error<Infallible>> {
    let quota = Quota::per_second(2).burst(3);
    let limit = RateLimitLayer::new(key::from_fn(|text: &String| tenant(text)), TokenBucket::new(quota))
        .responder(ErrorResponder);
    let mut service = ServiceBuilder::new().layer(limit).service(service_fn(shout));

    println!("{quota} for each tenant");
    for text in ["anna 1", "anna 2", "anna 3", "anna 4", "bert 1", "root 1", "root 2", "root 3", "root 4"] {
        match service.ready().await?.call(text.to_owned()).await {
            Ok(answer) => println!("{text}: {answer}"),
            Err(Error::Limited(decision)) => {
                println!("{text}: {decision}");
                if let Some(wait) = decision.retry_after() {
                    tokio::time::sleep(wait).await;
                    let answer = service.ready().await?.call(text.to_owned()).await?;
                    println!("{text}: {answer}, after {wait:?}");
                }
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}
