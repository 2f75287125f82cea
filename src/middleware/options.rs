//! What an [`HttpResponder`](super::HttpResponder) can be told.

use std::time::Duration;

/// A form in which callers are told of their limits, in header fields.
///
/// The draft is still moving: more forms may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fields {
    /// `RateLimit` and `RateLimit-Policy`, as draft-ietf-httpapi-ratelimit-headers-11 has them: each policy by its name.
    Draft11,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the policy that matters most: the one
    /// that denied, for longest; else the one with the least left.
    XRateLimit(Reset),
}

/// How `X-RateLimit-Reset` tells when the budget is whole again, in seconds, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// From now on.
    DeltaSeconds,
    /// As Unix time, by this machine's wall clock. Clients compare it with the `Date` field, which servers add.
    EpochSeconds,
}

/// Which answers carry header fields. Redirects (3xx) never do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// All.
    #[default]
    Always,
    /// Those to calls that were denied.
    OnRejection,
    /// None.
    Never,
}

/// What stands in the body of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyFormat {
    /// Problem details (RFC 9457), of the types that the RateLimit draft registers.
    #[default]
    Problem,
    /// A line of text.
    Plain,
    /// Nothing.
    Empty,
}

/// Which callers are answered as gRPC has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grpc {
    /// Those whose content type says so: `application/grpc`, `application/grpc-web`, and with a `+` or `;` behind.
    #[default]
    ByContentType,
    /// All.
    Always,
    /// None: for services without gRPC, whose clients could not read the answer.
    Never,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) draft: bool,
    pub(super) legacy: Option<Reset>,
    pub(super) when: When,
    pub(super) retry_after: bool,
    pub(super) jitter: Duration,
    pub(super) body: BodyFormat,
    pub(super) grpc: Grpc,
    pub(super) extension: bool,
}

impl Options {
    pub(super) const fn new() -> Self {
        Self {
            draft: true,
            legacy: None,
            when: When::Always,
            retry_after: true,
            jitter: Duration::ZERO,
            body: BodyFormat::Problem,
            grpc: Grpc::ByContentType,
            extension: true,
        }
    }
}
