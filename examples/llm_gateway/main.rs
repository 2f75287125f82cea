//! A gateway in front of a language model. Each user has 100,000 tokens a minute, and 4 streams at a time.
//!
//! How many tokens a call uses is known only when its answer has ended. So a call is charged an estimate when it is
//! admitted, and its own tokens at the end. The gateway counts them while it passes the answer on. The model is part of
//! this program, as a server with a port of its own, which streams server-sent events. Start both:
//!
//! ```text
//! cargo run --example llm_gateway
//! ```
//!
//! In another terminal, ask for an answer of thirty words, twice:
//!
//! ```text
//! ask() { curl -sN -H 'x-api-key: key-1' "$@" http://127.0.0.1:3008/; }
//! ask -i -d 'a story of 30 words'
//! ask -i -d 'a story of 30 words'
//! ```
//!
//! Both responses have `"tokens";r=99495` in their field `RateLimit`: five tokens for the prompt and 500 for an answer
//! of unknown length are charged in advance. At the end of the first answer, which has 30 tokens, 470 are given back.
//!
//! A client that tells the maximum length of the answer is charged for it in advance. While the first of these calls is
//! in progress, the second is denied, and `Retry-After` tells when there will be enough tokens. The first client hangs
//! up after a second. It pays the prompt and the words that were streamed until then, so the third call is admitted:
//!
//! ```text
//! timeout 1 curl -sN -o /dev/null -H 'x-api-key: key-2' -H 'x-max-tokens: 90000' -d '90000 words' http://127.0.0.1:3008/ &
//! sleep 0.5; curl -isN -H 'x-api-key: key-2' -H 'x-max-tokens: 90000' -d '9 words' http://127.0.0.1:3008/
//! sleep 1; curl -isN -H 'x-api-key: key-2' -H 'x-max-tokens: 90000' -d '9 words' http://127.0.0.1:3008/
//! ```
//!
//! Of five calls at once, one is denied by the limit of streams. You will see 429 once, and 200 four times:
//!
//! ```text
//! for i in 1 2 3 4 5; do ask -o /dev/null -w '%{http_code}\n' -d '50 words' & done; wait
//! ```
//!
//! Ctrl-C ends the gateway and the model.

mod gateway;
mod model;
#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::time::Duration;

use tokio::net::TcpListener;
use tower_throttle::RateLimiter;
use tower_throttle::algorithm::TokenBucket;

const GATEWAY: &str = "127.0.0.1:3008";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("llm_gateway: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let model_listener = listen("127.0.0.1:0").await?;
    let model_address = model_listener.local_addr().map_err(|error| error.to_string())?;
    let listener = listen(GATEWAY).await?;

    let tokens = RateLimiter::new(TokenBucket::new(gateway::TOKENS));
    let gateway = gateway::gateway(model_address, tokens.clone());
    let model = model::model(5, Duration::from_millis(50));

    println!("tokens: {}, streams: {} at a time, for each user", gateway::TOKENS, gateway::STREAMS);
    println!("http://{GATEWAY}/, in front of the model at http://{model_address}/ (Ctrl-C ends both). Try:");
    let ask = |options: &str, prompt: &str| {
        println!("  curl -iN -H 'x-api-key: key-1' {options}-d '{prompt}' http://{GATEWAY}/");
    };
    ask("", "a story of 30 words");
    println!("Charged 90,000 tokens in advance. Press Ctrl-C after some words, and only those are charged:");
    ask("-H 'x-max-tokens: 90000' ", "a story of 90000 words");
    println!("Meanwhile, in a third terminal, this call is denied for lack of tokens:");
    ask("-H 'x-max-tokens: 20000' ", "a story of 30 words");

    tokio::select! {
        ended = axum::serve(model_listener, model) => ended.map_err(|error| format!("the model: {error}"))?,
        ended = axum::serve(listener, gateway) => ended.map_err(|error| format!("the gateway: {error}"))?,
        _ = tokio::signal::ctrl_c() => {}
    }
    let units = tokens.stats().units;
    println!("the ends of calls have charged {} tokens more, and refunded {}", units.charged, units.refunded);
    Ok(())
}

async fn listen(address: &str) -> Result<TcpListener, String> {
    TcpListener::bind(address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}. Is another program using that port?"))
}
