//! Log events for the operator of a service. Each kind of mistake is logged at most once a minute.
#![cfg(feature = "tracing")]

mod again;
mod decisions;
mod handlers;
mod keys_are_secret;
mod mistakes;
mod names;
mod proxies;
#[path = "../support/mod.rs"]
mod support;
mod switches;

use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// A recorder of all events in this thread, for as long as the recorder exists.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(log.clone());
        (log, subscriber.set_default())
    }

    /// Returns the log lines about rate limits.
    fn lines(&self) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|line| line.contains("tower-throttle")).map(str::to_owned).collect()
    }

    /// Returns the counts of the events with this name.
    fn counts(&self, event: &str) -> Vec<u64> {
        let event = format!("event=\"{event}\"");
        let counts = self.lines().into_iter().filter(|line| line.contains(&event));
        counts.map(|line| line.split_once("count=").unwrap().1.parse().unwrap()).collect()
    }

    /// Returns the log lines, without the events of denials.
    fn mistakes(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| !line.contains("tower-throttle: denied"));
        lines
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

type Http = Request<Full<Bytes>>;

async fn hello(_: Http) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    Ok(Response::new(Full::from("hello")))
}

fn get() -> Http {
    Request::new(Full::default())
}
