//! A stand-in for a model: a server that streams its answer as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hyper::body::Frame;
use serde_json::json;
use tokio::sync::mpsc;

use crate::gateway::MAX_TOKENS;

/// Creates a model that sends an event of `words` words after each `pause`. Each word is one token. The number of words
/// of an answer is the first number in the prompt, but at most what the header says.
pub(crate) fn model(words: u64, pause: Duration) -> Router {
    let answer = move |headers: HeaderMap, prompt: String| async move {
        let max = headers.get(MAX_TOKENS).and_then(|value| value.to_str().ok()?.parse().ok());
        let asked = prompt.split_whitespace().find_map(|word| word.parse().ok());
        let mut left: u64 = asked.unwrap_or(50).min(max.unwrap_or(u64::MAX));
        let (sender, events) = mpsc::channel(1);
        tokio::spawn(async move {
            while left > 0 {
                tokio::time::sleep(pause).await;
                let tokens = words.min(left);
                let text = "blah ".repeat(tokens as usize);
                let event = format!("data: {}\n\n", json!({ "text": text, "tokens": tokens }));
                // If the gateway has closed the connection, no more words are made.
                if sender.send(Bytes::from(event)).await.is_err() {
                    return;
                }
                left -= tokens;
            }
        });
        event_stream(events)
    };
    Router::new().route("/", post(answer))
}

/// Returns a response that ends when the sender of the channel is dropped.
pub(crate) fn event_stream(events: mpsc::Receiver<Bytes>) -> Response {
    ([(CONTENT_TYPE, "text/event-stream")], Body::new(Stream(events))).into_response()
}

struct Stream(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}
