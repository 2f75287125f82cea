//! A reverse proxy, as small as it can be while it is honest: it says whom it serves, after whatever was said before.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::Body;
use axum::http::header::{CONNECTION, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, Version};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

type Upstream = Client<HttpConnector, Incoming>;

/// Passes requests on to `app`, for ever.
pub(crate) async fn serve(listener: TcpListener, app: SocketAddr) -> std::io::Result<()> {
    let upstream: Upstream = Client::builder(TokioExecutor::new()).build_http();
    loop {
        let (stream, peer) = listener.accept().await?;
        let upstream = upstream.clone();
        let service = service_fn(move |request| {
            let upstream = upstream.clone();
            async move { Ok::<_, Infallible>(pass(&upstream, app, peer, request).await) }
        });
        tokio::spawn(async move {
            // A client that hangs up is no error of ours.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn pass(
    upstream: &Upstream,
    app: SocketAddr,
    peer: SocketAddr,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let Ok(uri) = Uri::try_from(format!("http://{app}{path}")) else {
        return (StatusCode::BAD_REQUEST, "no such path\n").into_response();
    };
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    // First of all: a client may name any field in `Connection`, even the one that is added next.
    remove_what_is_for_one_hop(request.headers_mut());
    append_peer(request.headers_mut(), peer);
    match upstream.request(request).await {
        Ok(mut response) => {
            remove_what_is_for_one_hop(response.headers_mut());
            response.map(Body::new)
        }
        Err(error) => (StatusCode::BAD_GATEWAY, format!("the app at {app}: {error}\n")).into_response(),
    }
}

/// The one thing that counts: the peer comes last. What the client sent stays, and stays left of it.
fn append_peer(headers: &mut HeaderMap, peer: SocketAddr) {
    let peer = HeaderValue::try_from(peer.ip().to_string()).expect("an address is ASCII");
    headers.append("x-forwarded-for", peer);
}

/// What `Connection` names, and what is always meant for the next hop only (RFC 9110, section 7.6.1).
fn remove_what_is_for_one_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let always = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, HeaderName::from_static("keep-alive")];
    for name in named.into_iter().chain(always) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_on(lines: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        remove_what_is_for_one_hop(&mut headers);
        append_peer(&mut headers, "192.0.2.1:4711".parse().unwrap());
        let lines = headers.get_all("x-forwarded-for");
        lines.iter().map(|line| line.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_peer_comes_last_whatever_the_client_says() {
        assert_eq!(passed_on(&[]), ["192.0.2.1"]);
        let forged = ("x-forwarded-for", "198.51.100.7");
        assert_eq!(passed_on(&[forged]), ["198.51.100.7", "192.0.2.1"]);
        assert_eq!(passed_on(&[forged, forged]), ["198.51.100.7", "198.51.100.7", "192.0.2.1"]);
        assert_eq!(passed_on(&[("connection", "x-forwarded-for")]), ["192.0.2.1"]);
        assert_eq!(passed_on(&[forged, ("connection", "close, X-Forwarded-For")]), ["192.0.2.1"]);
    }
}
