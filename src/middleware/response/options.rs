//! The options of an [`HttpResponder`](crate::middleware::HttpResponder).

use std::time::Duration;

use http::StatusCode;

use crate::middleware::formats::{Draft, FieldNames, ResetFormat};

/// A format of the header fields that report limits to callers.
///
/// draft-ietf-httpapi-ratelimit-headers still changes, so more formats may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderFormat {
    /// `RateLimit` and `RateLimit-Policy`, as in draft-ietf-httpapi-ratelimit-headers-11. Each policy is reported with
    /// its name.
    Draft11,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` of the policy that matters most. If
    /// policies denied the request, this is the one with the longest wait. Otherwise, it is the policy with the fewest
    /// remaining units.
    XRateLimit(ResetFormat),
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` of the same policy as in
    /// [`XRateLimit`](Self::XRateLimit), and `RateLimit-Policy`, as in draft 6. In this format, policies have no names,
    /// and the time is in seconds. This format cannot be combined with [`Draft11`](Self::Draft11), which has another
    /// form of `RateLimit-Policy`.
    Draft06,
    /// `RateLimit` of the policy that matters most (`limit=10, remaining=0, reset=5`), and `RateLimit-Policy`
    /// (`10;w=60`), as in draft 7. This format cannot be combined with [`Draft11`](Self::Draft11), which has another
    /// form of these fields.
    Draft07,
    /// Three header fields with custom names and the values of [`XRateLimit`](Self::XRateLimit).
    Custom(FieldNames),
    /// `retry-after-ms`, which has the wait of `Retry-After` in milliseconds, rounded up. This field is added to each
    /// rejection that reports a wait. The SDKs of OpenAI, Anthropic and Azure read this field.
    RetryAfterMs,
}

/// The responses that have the header fields that report limits. With any of these values, the fields are left out of
/// redirects (3xx except 304), and out of rejections for another reason than a limit, such as a missing key or a closed
/// limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendHeaders {
    /// Responses to admitted calls and to denied calls.
    #[default]
    Always,
    /// Responses to denied calls.
    OnRejection,
    /// Responses to admitted calls.
    OnAdmission,
    /// No responses.
    Never,
}

/// The body of a rejection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyFormat {
    /// One line of text for clients whose `Accept` prefers `text/html` to JSON, such as a browser that opens a page.
    /// All other clients get [problem details](Self::ProblemJson).
    #[default]
    ByAccept,
    /// Problem details (RFC 9457), with the types that the RateLimit draft registers.
    ProblemJson,
    /// One line of text.
    PlainText,
    /// An empty body.
    Empty,
}

/// The requests that are rejected with a gRPC response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrpcMode {
    /// Requests whose content type is `application/grpc`, alone or with a suffix that begins with `+` or `;`, and
    /// requests whose content type begins with `application/grpc-web`, such as `application/grpc-web-text`.
    #[default]
    ByContentType,
    /// All requests.
    Always,
    /// No requests. This value is for services without gRPC, whose clients cannot read a gRPC response.
    Never,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::middleware) struct Options {
    pub(in crate::middleware) draft: Option<Draft>,
    pub(in crate::middleware) legacy: Option<ResetFormat>,
    pub(in crate::middleware) custom: Option<FieldNames>,
    pub(in crate::middleware) retry_after_ms: bool,
    pub(in crate::middleware) send_headers: SendHeaders,
    pub(in crate::middleware) retry_after: bool,
    /// The value of `Retry-After` if the wait is unknown.
    pub(in crate::middleware) retry_after_unknown: Option<Duration>,
    /// The maximum wait that is reported.
    pub(in crate::middleware) max_reported_wait: Duration,
    /// The status of a rejection if waiting does not help. `never_fits_body` is the format of the body of such a
    /// rejection.
    pub(in crate::middleware) never_fits_status: StatusCode,
    pub(in crate::middleware) never_fits_body: Option<BodyFormat>,
    pub(in crate::middleware) jitter: Duration,
    pub(in crate::middleware) body: BodyFormat,
    pub(in crate::middleware) grpc: GrpcMode,
    pub(in crate::middleware) insert_extension: bool,
    pub(in crate::middleware) insert_details: bool,
}

impl Options {
    pub(in crate::middleware) const fn new() -> Self {
        Self {
            draft: Some(Draft::V11),
            legacy: None,
            custom: None,
            retry_after_ms: false,
            send_headers: SendHeaders::Always,
            retry_after: true,
            retry_after_unknown: Some(Duration::from_secs(1)),
            max_reported_wait: Duration::MAX,
            never_fits_status: StatusCode::TOO_MANY_REQUESTS,
            never_fits_body: None,
            jitter: Duration::ZERO,
            body: BodyFormat::ByAccept,
            grpc: GrpcMode::ByContentType,
            insert_extension: true,
            insert_details: false,
        }
    }
}

/// The status and the body format of a rejection.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(in crate::middleware) status: StatusCode,
    /// The format of the body. It is never `ByAccept`, because this value has already been replaced by the format that
    /// the client prefers.
    pub(in crate::middleware) format: BodyFormat,
}
