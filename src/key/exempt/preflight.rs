use http::header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, ORIGIN};
use http::{Method, Request};
use http_body::Body;

use super::predicate::RequestPredicate;

/// A predicate for CORS preflights: `OPTIONS` requests with `Origin` and `Access-Control-Request-Method` (the Fetch
/// standard, section 4.8). A request with a body, a `Content-Type` or an `X-HTTP-Method-Override` does not match.
///
/// Before some cross-origin requests, a browser sends a preflight without credentials. If the preflight is rejected,
/// the browser reports a network error to the page. A `CorsLayer` outside of the limit answers preflights before the
/// limit counts them. This predicate is for services that answer preflights inside of the limit.
///
/// Anyone can send preflights. So do not use this predicate if a preflight could reach a handler that treats the
/// preflight as a call (`any(..)`, a fallback, a tonic server). Make sure that preflights are answered at little cost.
///
/// ```
/// use tower_throttle::key::Preflight;
/// use tower_throttle::{Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::per_ip(Quota::per_minute(100)).unless(Preflight);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Preflight;

impl<B: Body> RequestPredicate<Request<B>> for Preflight {
    fn matches(&self, request: &Request<B>) -> bool {
        let headers = request.headers();
        request.method() == Method::OPTIONS
            && headers.contains_key(ORIGIN)
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            // Some servers treat a request of any method as a call if the request has a body.
            && request.body().is_end_stream()
            && !headers.contains_key(CONTENT_TYPE)
            // Other servers take the method from this header.
            && !headers.contains_key("x-http-method-override")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::Full;

    #[test]
    fn a_preflight_has_all_three_marks() {
        let with = |method: &str, headers: &[&str], body: &'static [u8]| {
            let mut request = Request::builder().method(method);
            for name in headers {
                request = request.header(*name, "x");
            }
            Preflight.matches(&request.body(Full::<Bytes>::from(body)).unwrap())
        };
        let request = |method: &str, headers: &[&str]| with(method, headers, b"");
        assert!(request("OPTIONS", &["origin", "access-control-request-method"]));
        assert!(!request("OPTIONS", &["origin", "access-control-request-method", "content-type"]));
        let overriding = ["origin", "access-control-request-method", "x-http-method-override"];
        assert!(!request("OPTIONS", &overriding));
        assert!(!with("OPTIONS", &["origin", "access-control-request-method"], b"\0"));
        assert!(!request("GET", &["origin", "access-control-request-method"]));
        assert!(!request("OPTIONS", &["origin"]));
        assert!(!request("OPTIONS", &["access-control-request-method"]));
    }
}
