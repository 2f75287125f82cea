//! An app that serves the counts of its rate limits to Prometheus.
//!
//! ```sh
//! cargo run -p example-metrics
//! for _ in $(seq 12); do curl -s -o /dev/null -w '%{http_code}\n' localhost:3000; done
//! curl -s localhost:3000/metrics
//! ```

use std::net::SocketAddr;

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tower_throttle::algorithm::SlidingWindow;
use tower_throttle::key::Global;
use tower_throttle::{Quota, RateLimitLayer};

/// Returns an app with two limits, and a page for Prometheus.
fn app(recorder: PrometheusHandle) -> Router {
    let limits = RateLimitLayer::per_ip(Quota::per_minute(10))
        .name("per-ip")
        .and(RateLimitLayer::new(Global, SlidingWindow::new(Quota::per_second(1_000))).name("all"));
    let counted = limits.clone();
    let page = move || async move {
        counted.record_metrics();
        recorder.render()
    };
    let hello = Router::new().route("/", get(|| async { "hello\n" })).layer(limits);
    // The page for Prometheus is not limited, because the page must be served even during an overload. Expose this page
    // to your own network only.
    hello.route("/metrics", get(page))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recorder = PrometheusBuilder::new().install_recorder()?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/metrics", listener.local_addr()?);
    let service = app(recorder).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn request(server: SocketAddr, path: &str) -> String {
        let mut connection = TcpStream::connect(server).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_page_shows_the_traffic() {
        let recorder = PrometheusBuilder::new().install_recorder().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let service = app(recorder).into_make_service_with_connect_info::<SocketAddr>();
        let serving = tokio::spawn(async move { axum::serve(listener, service).await });
        let mut admitted = 0;
        for _ in 0..13 {
            admitted += u32::from(request(server, "/").await.starts_with("HTTP/1.1 200"));
        }
        // If the test takes longer than six seconds, the bucket gets a token back.
        let denied = 13 - admitted;
        assert!((10..13).contains(&admitted), "{admitted}");
        for _ in 0..2 {
            let page = request(server, "/metrics").await;
            for line in [
                format!("tower_throttle_calls_total{{policy=\"per-ip\",outcome=\"admitted\"}} {admitted}"),
                format!("tower_throttle_calls_total{{policy=\"per-ip\",outcome=\"denied\"}} {denied}"),
                format!("tower_throttle_calls_total{{policy=\"all\",outcome=\"admitted\"}} {admitted}"),
                format!("tower_throttle_calls_total{{policy=\"all\",outcome=\"denied_by_others\"}} {denied}"),
                "tower_throttle_keys{policy=\"per-ip\"} 1".to_owned(),
            ] {
                assert!(page.lines().any(|found| found == line), "{line}\n{page}");
            }
            assert!(!page.contains("127.0.0.1"), "no key is in it: {page}");
        }
        serving.abort();
    }
}
