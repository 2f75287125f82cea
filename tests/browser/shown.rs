//! The text that a person sees of a rejection: in a page, and in a frame of a page.

use axum::Router;
use axum::response::Html;
use axum::routing::get;

use tower_throttle::clock::ManualClock;

use crate::cached::limit;
use crate::chromium::shown;
use crate::support::Server;

#[tokio::test]
async fn a_rejected_page_or_frame_shows_a_line_of_text() {
    const FRAME: &str = "<!doctype html><p id=seen></p><iframe src='/' onload=\
        'seen.append(this.contentDocument.contentType, \": \", this.contentDocument.body.innerText)'></iframe>";
    let limit = limit(1, &ManualClock::new());
    assert!(limit.limiter().check(&()).is_allowed());
    let limited = Router::new().route("/", get(|| async { "hello" })).layer(limit);
    let server = Server::start(limited.route("/frame", get(|| async { Html(FRAME) }))).await;
    let page = shown(&format!("http://{}/", server.address)).await;
    assert!(page.contains(">rate limit exceeded\n</pre>"), "{page}");
    let page = shown(&format!("http://{}/frame", server.address)).await;
    assert!(page.contains("text/plain: rate limit exceeded\n</p>"), "{page}");
}
