//! Pages for Prometheus and for load balancers.

use axum::http::StatusCode;
use axum::{Router, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;

/// Returns an app with the pages `/metrics` and `/healthcheck`.
pub(crate) fn pages(recorder: PrometheusHandle, is_serving: watch::Receiver<bool>) -> Router {
    let health = move || async move {
        match *is_serving.borrow() {
            true => (StatusCode::OK, "OK\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "the server shuts down\n"),
        }
    };
    Router::new()
        .route("/metrics", get(move || async move { recorder.render() }))
        .route("/healthcheck", get(health))
}
