//! Envoy's rate limit protocol, version 3, as generated from the files in `proto`.

#[allow(dead_code, missing_docs, unreachable_pub, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/protocol.rs"));
}

pub(crate) use generated::envoy::config::core::v3::HeaderValue;
pub(crate) use generated::envoy::extensions::common::ratelimit::v3 as common;
pub(crate) use generated::envoy::service::ratelimit::v3::*;
pub(crate) use generated::envoy::r#type::v3::RateLimitUnit;
