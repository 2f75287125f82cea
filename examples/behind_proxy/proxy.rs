//! A minimal reverse proxy that appends the address of its peer to `X-Forwarded-For`.

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

/// Forwards all requests to `app`. Returns only if the listener fails.
pub(crate) async fn serve(listener: TcpListener, app: SocketAddr) -> std::io::Result<()> {
    let upstream: Upstream = Client::builder(TokioExecutor::new()).build_http();
    loop {
        let (stream, peer) = listener.accept().await?;
        let upstream = upstream.clone();
        let service = service_fn(move |request| {
            let upstream = upstream.clone();
            async move { Ok::<_, Infallible>(forward(&upstream, app, peer, request).await) }
        });
        tokio::spawn(async move {
            // A client that disconnects is not an error.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn forward(
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
    // Headers are removed before the peer's address is appended, because a client may name any header in `Connection`,
    // even `X-Forwarded-For`.
    remove_hop_by_hop_headers(request.headers_mut());
    append_peer(request.headers_mut(), peer);
    match upstream.request(request).await {
        Ok(mut response) => {
            remove_hop_by_hop_headers(response.headers_mut());
            response.map(Body::new)
        }
        Err(error) => (StatusCode::BAD_GATEWAY, format!("the app at {app}: {error}\n")).into_response(),
    }
}

/// Appends the peer's address. Entries that the client sent stay to the left of this address.
fn append_peer(headers: &mut HeaderMap, peer: SocketAddr) {
    let peer = HeaderValue::try_from(peer.ip().to_string()).expect("an address is ASCII");
    headers.append("x-forwarded-for", peer);
}

/// Removes the headers that `Connection` names, and those that are always hop-by-hop (RFC 9110, section 7.6.1).
fn remove_hop_by_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
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

    fn forwarded(headers_sent: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in headers_sent {
            headers.append(*name, HeaderValue::from_static(value));
        }
        remove_hop_by_hop_headers(&mut headers);
        append_peer(&mut headers, "192.0.2.1:4711".parse().unwrap());
        let values = headers.get_all("x-forwarded-for");
        values.iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_peer_comes_last_whatever_the_client_sends() {
        assert_eq!(forwarded(&[]), ["192.0.2.1"]);
        let forged = ("x-forwarded-for", "198.51.100.7");
        assert_eq!(forwarded(&[forged]), ["198.51.100.7", "192.0.2.1"]);
        assert_eq!(forwarded(&[forged, forged]), ["198.51.100.7", "198.51.100.7", "192.0.2.1"]);
        assert_eq!(forwarded(&[("connection", "x-forwarded-for")]), ["192.0.2.1"]);
        assert_eq!(forwarded(&[forged, ("connection", "close, X-Forwarded-For")]), ["192.0.2.1"]);
    }
}
