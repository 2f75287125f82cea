//! Measurements of a call of an axum app in process, without a socket or a runtime. The app has no layer, a layer that
//! does nothing, or a limit.

use axum::{Router, routing::get};
use tower::util::MapRequestLayer;
use tower_governor::GovernorLayer;
use tower_throttle::middleware::SendHeaders;
use tower_throttle::{HttpResponder, Quota, RateLimitLayer};

use crate::check::{FEW, PLENTY};
use crate::interleave::Rounds;
use crate::layer::names::{FIELDS, FIELDS_PEER, KIT_PEER, LEAN, LEAN_PEER, PLAIN};
use crate::layer::{Run, allocations, governor_builder, run_of, throttle_kit, timed};
use crate::table;

const NOTHING: &str = "a layer that does nothing";
const LEAN_AXUM_BODY: &str = "tower-throttle, no fields, axum_body";
const AXUM_BODY: &str = "tower-throttle, header fields, axum_body";

pub fn run(rounds: usize) {
    let (admitted, admitted_counts) = column(PLENTY, rounds);
    let (denied, denied_counts) = column(FEW, rounds);
    let names = [PLAIN, NOTHING, LEAN, LEAN_AXUM_BODY, LEAN_PEER, FIELDS, AXUM_BODY, FIELDS_PEER, KIT_PEER];
    let rows: Vec<_> = (names.into_iter().enumerate())
        .map(|(at, name)| {
            vec![
                name.to_owned(),
                table::ratio(admitted.ratio(name, NOTHING)),
                table::ratio(admitted.extra(name, LEAN_PEER, NOTHING)),
                table::ratio(denied.ratio(name, NOTHING)),
                format!("{:.1}", admitted_counts[at]),
                format!("{:.1}", denied_counts[at]),
            ]
        })
        .collect();
    table::print(
        "a call of an axum app in process: time to that with a layer that does nothing, and the time added to it, to \
         what tower_governor adds without fields",
        &["", "admitted", "added, admitted", "denied", "allocations, admitted", "denied"],
        &rows,
    );
}

fn column(limit: u32, rounds: usize) -> (Rounds, Vec<f64>) {
    let mut contestants = field(limit);
    let counts = contestants.iter_mut().map(|(_, run)| {
        // The first run creates the state of the key.
        run();
        allocations(run)
    });
    let counts = counts.collect();
    (Rounds::of(timed(contestants), rounds), counts)
}

fn field(limit: u32) -> Vec<(String, Run)> {
    let app = || Router::new().route("/", get(|| async { "Hello, World!" }));
    let ours = |responder| RateLimitLayer::per_ip(Quota::per_hour(limit.into())).responder(responder);
    let silent = HttpResponder::new().send_headers(SendHeaders::Never).insert_extension(false);
    let peer = governor_builder(limit).finish().expect("a quota");
    let peer_with_fields = governor_builder(limit).use_headers().finish().expect("a quota");
    let apps = [
        (PLAIN, app()),
        (NOTHING, app().layer(MapRequestLayer::new(|request: axum::extract::Request| request))),
        (LEAN, app().layer(ours(silent))),
        (LEAN_AXUM_BODY, app().layer(ours(silent).axum_body())),
        (LEAN_PEER, app().layer(GovernorLayer::new(peer))),
        (FIELDS, app().layer(ours(HttpResponder::new()))),
        (AXUM_BODY, app().layer(ours(HttpResponder::new()).axum_body())),
        (FIELDS_PEER, app().layer(GovernorLayer::new(peer_with_fields))),
        (KIT_PEER, app().layer(throttle_kit(limit))),
    ];
    // `with_state` is called here, as axum's server does, so that layers are applied once and not for each request.
    apps.map(|(name, app)| (name.to_owned(), run_of(app.with_state(())))).into()
}
