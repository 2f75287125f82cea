//! Measurements of an HTTP server on the loopback interface. The apps are served by axum, and respond with "Hello,
//! World!".
//!
//! The server has one thread, which has a core of its own. The client has another core, and 64 connections with one
//! request in flight on each, so that the server never waits for the client. On Linux, the requests per second are
//! computed from the time that the server's thread spent on its core. This time excludes the time that other programs
//! took. On other systems, they are computed from the elapsed time. The last column has the thread's time on its core
//! as a share of the elapsed time. The share is nearly 100 %, unless other programs were running.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

use axum::response::IntoResponse;
use axum::{Router, routing::get};
use tower_governor::GovernorLayer;
use tower_throttle::middleware::SendHeaders;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer};

use crate::check::{FEW, PLENTY};
use crate::client::Client;
use crate::interleave::{Contestant, Rounds, median};
use crate::layer::{governor_builder, throttle_kit};
use crate::table;

const CONNECTIONS: usize = 64;
/// The number of requests in a run.
const REQUESTS: usize = 3_200;

const PLAIN: &str = "plain handler";

/// Returns the apps, each with its name and the status that it must respond with.
fn apps() -> Vec<(&'static str, Router, u16)> {
    let hello = || Router::new().route("/", get(|| async { "Hello, World!" }));
    let ours = |limit: u32| RateLimitLayer::per_ip(Quota::per_hour(limit.into()));
    let silent = HttpResponder::new().send_headers(SendHeaders::Never).insert_extension(false);
    let peer = |limit| GovernorLayer::new(governor_builder(limit).finish().expect("a quota"));
    let with_fields =
        |limit| GovernorLayer::new(governor_builder(limit).use_headers().finish().expect("a quota"));
    vec![
        (PLAIN, hello(), 200),
        ("a layer that does nothing", hello().layer(tower::layer::util::Identity::new()), 200),
        ("tower-throttle, no fields, admits everything", hello().layer(ours(PLENTY).responder(silent)), 200),
        ("tower-throttle, admits everything", hello().layer(ours(PLENTY)), 200),
        ("tower-throttle, axum_body, admits everything", hello().layer(ours(PLENTY).axum_body()), 200),
        ("tower-throttle, rejects everything", hello().layer(ours(FEW)), 429),
        ("tower-throttle, axum_body, rejects everything", hello().layer(ours(FEW).axum_body()), 429),
        ("a layer that rejects with the same bytes", hello().layer(axum::middleware::from_fn(reject)), 429),
        ("tower_governor, admits everything", hello().layer(peer(PLENTY)), 200),
        ("tower_governor, use_headers, admits everything", hello().layer(with_fields(PLENTY)), 200),
        ("tower_governor, rejects everything", hello().layer(peer(FEW)), 429),
        ("throttle-kit, admits everything", hello().layer(throttle_kit(PLENTY)), 200),
        ("throttle-kit, rejects everything", hello().layer(throttle_kit(FEW)), 429),
    ]
}

/// Responds as a rejection does, but without a decision. This measures the cost of such a response alone.
async fn reject(_: axum::extract::Request, _: axum::middleware::Next) -> axum::response::Response {
    const BODY: &str = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
        r#""status":429,"violated-policies":["default"]}"#
    );
    let fields = [
        ("content-type", "application/problem+json"),
        ("retry-after", "515"),
        ("ratelimit-policy", r#""default";q=7;w=3600"#),
        ("ratelimit", r#""default";r=0;t=515"#),
    ];
    (axum::http::StatusCode::TOO_MANY_REQUESTS, fields, BODY).into_response()
}

pub fn run(rounds: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (report, reported) = mpsc::channel();
    let server_core = cores.first().copied();
    thread::spawn(move || {
        server_core.map(core_affinity::set_for_current);
        serve(&report);
    });
    if let (Some(core), true) = (cores.last(), cores.len() > 1) {
        core_affinity::set_for_current(*core);
    }
    let (thread, addresses) = reported.recv().expect("the server starts");
    let names: Vec<_> = apps().iter().map(|(name, _, _)| *name).collect();
    let busy = std::cell::RefCell::new(vec![Vec::new(); names.len()]);
    let contestants =
        apps().into_iter().zip(&addresses).enumerate().map(|(at, ((name, _, status), address))| {
            let mut client = Client::connect(*address, CONNECTIONS);
            client.run(CONNECTIONS, None);
            let (busy, thread) = (&busy, &thread);
            Contestant::new(name, move || {
                let before = on_core(thread);
                let took = client.run(REQUESTS, Some(status));
                let (Some(before), Some(after)) = (before, on_core(thread)) else { return took };
                let spent = after - before;
                busy.borrow_mut()[at].push(spent.as_secs_f64() / took.as_secs_f64());
                spent
            })
        });
    let rounds = Rounds::of(contestants.collect(), rounds);
    let rows = names.iter().enumerate().map(|(at, name)| {
        let busy = median(busy.borrow()[at].iter().copied());
        vec![(*name).to_owned(), table::ratio(rounds.ratio(PLAIN, name)), format!("{:.0} %", busy * 100.0)]
    });
    table::print(
        "an HTTP server: requests per second to those of the plain handler (higher is better)",
        &["", "requests per second", "server on its core"],
        &rows.collect::<Vec<_>>(),
    );
}

/// Serves all apps from this thread, each on its own port. Sends the path of the file with the thread's times, and the
/// addresses of the apps.
fn serve(report: &mpsc::Sender<(Option<String>, Vec<SocketAddr>)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut addresses = Vec::new();
        for (_, app, _) in apps() {
            let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            addresses.push(listener.local_addr().expect("an address"));
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            tokio::spawn(async move { axum::serve(listener, app).await });
        }
        let thread = fs::read_link("/proc/thread-self").ok();
        let times = thread.map(|thread| format!("/proc/{}/schedstat", thread.display()));
        report.send((times, addresses)).expect("the receiver waits");
        std::future::pending::<()>().await;
    });
}

/// Returns the time that a thread has spent on a core. `times` is the path of the file with that time. Returns `None`
/// if there is no such file, as on all systems except Linux.
fn on_core(times: &Option<String>) -> Option<Duration> {
    let text = fs::read_to_string(times.as_ref()?).ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}
