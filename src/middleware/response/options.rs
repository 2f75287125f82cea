//! What an [`HttpResponder`](crate::middleware::HttpResponder) can be told.

use std::time::Duration;

use http::StatusCode;

use crate::middleware::formats::{Draft, FieldNames};

/// A form in which callers are told of their limits, in header fields.
///
/// The draft is still moving: more forms may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderFormat {
    /// `RateLimit` and `RateLimit-Policy`, as draft-ietf-httpapi-ratelimit-headers-11 has them: each policy by its name.
    Draft11,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-ResetFormat`, of the policy that matters most: the one
    /// that denied, for longest; else the one with the least left.
    XRateLimit(ResetFormat),
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-ResetFormat`, of the policy that matters most, and
    /// `RateLimit-Policy`, as draft 6 has them: without names, the time in seconds. Takes the place of
    /// [`Draft11`](Self::Draft11), whose `RateLimit-Policy` is another.
    Draft06,
    /// `RateLimit: limit=10, remaining=0, reset=5`, of the policy that matters most, and `RateLimit-Policy: 10;w=60`, as
    /// draft 7 has them. Takes the place of [`Draft11`](Self::Draft11), whose fields of those names are others.
    Draft07,
    /// Three header fields of other names, with the values of [`XRateLimit`](Self::XRateLimit).
    Custom(FieldNames),
    /// `retry-after-ms` beside each `Retry-After`: the same wait in milliseconds, rounded up, which the SDKs of OpenAI,
    /// Anthropic and Azure read.
    RetryAfterMs,
}

/// How `X-RateLimit-ResetFormat` tells a time, in seconds, rounded up. On an admission it is when the budget is whole again; on a
/// refusal it is when to come back, as in `Retry-After`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetFormat {
    /// As Unix time, by this machine's wall clock. Clients compare it with the `Date` field, which servers add. What
    /// GitHub sends, and clients that know its API expect; so it is the default.
    #[default]
    EpochSeconds,
    /// From now on. Clients that know GitHub's API read it as a Unix time, long ago, and come back at once.
    DeltaSeconds,
}

/// Which answers carry header fields. Redirects (3xx, but 304) never do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendHeaders {
    /// All.
    #[default]
    Always,
    /// Those to calls that were denied.
    OnRejection,
    /// Those to calls that were admitted.
    OnAdmission,
    /// None.
    Never,
}

/// What stands in the body of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyFormat {
    /// A line of text for clients whose `Accept` prefers `text/html` to JSON, as that of a browser does that opens a page;
    /// [problem details](Self::Problem) for all others.
    #[default]
    ByAccept,
    /// Problem details (RFC 9457), of the types that the RateLimit draft registers.
    ProblemJson,
    /// A line of text.
    PlainText,
    /// Nothing.
    Empty,
}

/// Which callers are answered as gRPC has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrpcMode {
    /// Those whose content type says so: `application/grpc`, `application/grpc-web`, and with a `+` or `;` behind.
    #[default]
    ByContentType,
    /// All.
    Always,
    /// None: for services without gRPC, whose clients could not read the answer.
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
    /// `Retry-After` where nothing tells how long.
    pub(in crate::middleware) retry_after_unknown: Option<Duration>,
    /// The longest wait that is reported.
    pub(in crate::middleware) longest_wait: Duration,
    /// The status and the body of a refusal for which no wait helps.
    pub(in crate::middleware) never_fits_status: StatusCode,
    pub(in crate::middleware) never_fits_body: Option<BodyFormat>,
    pub(in crate::middleware) jitter: Duration,
    pub(in crate::middleware) body: BodyFormat,
    pub(in crate::middleware) grpc: GrpcMode,
    pub(in crate::middleware) insert_extension: bool,
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
            longest_wait: Duration::MAX,
            never_fits_status: StatusCode::TOO_MANY_REQUESTS,
            never_fits_body: None,
            jitter: Duration::ZERO,
            body: BodyFormat::ByAccept,
            grpc: GrpcMode::ByContentType,
            insert_extension: true,
        }
    }
}
