//! Pages for Prometheus and for load balancers.

use axum::{Router, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;

/// Returns an app with the pages `/metrics` and `/healthcheck`.
pub(crate) fn pages(recorder: PrometheusHandle) -> Router {
    Router::new()
        .route("/metrics", get(move || async move { recorder.render() }))
        .route("/healthcheck", get(|| async { "OK\n" }))
}
