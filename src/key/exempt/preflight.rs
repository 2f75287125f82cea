use http::header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, TRANSFER_ENCODING};
use http::{Method, Request};

use super::condition::Condition;

/// CORS preflights: `OPTIONS` with `Origin` and `Access-Control-Request-Method` (the Fetch standard, section 4.8), and
/// without a body.
///
/// A browser sends them before a request of another origin, without credentials, and takes a refusal for a failure of
/// the network. A `CorsLayer` outside the limiter answers them before they are counted; this is for services that
/// answer them inside.
///
/// Anybody can send them. So not where a handler takes them for calls: `any(..)`, a fallback, a tonic server; and where
/// they are answered, that should be cheap.
#[derive(Clone, Copy, Debug)]
pub struct Preflight;

impl<B> Condition<Request<B>> for Preflight {
    fn holds(&self, request: &Request<B>) -> bool {
        let headers = request.headers();
        request.method() == Method::OPTIONS
            && headers.contains_key(ORIGIN)
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            && ![CONTENT_TYPE, TRANSFER_ENCODING].iter().any(|name| headers.contains_key(name))
            && headers.get(CONTENT_LENGTH).is_none_or(|length| length == "0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preflight_has_all_three() {
        let request = |method: &str, headers: &[&str]| {
            let mut request = Request::builder().method(method);
            for name in headers {
                request = request.header(*name, "x");
            }
            Preflight.holds(&request.body(()).unwrap())
        };
        assert!(request("OPTIONS", &["origin", "access-control-request-method"]));
        for name in ["content-type", "content-length", "transfer-encoding"] {
            assert!(!request("OPTIONS", &["origin", "access-control-request-method", name]), "{name}");
        }
        assert!(!request("GET", &["origin", "access-control-request-method"]));
        assert!(!request("OPTIONS", &["origin"]));
        assert!(!request("OPTIONS", &["access-control-request-method"]));
    }
}
