//! The details of a rejection, as `prost` and `tonic-types` read them. The results are compared with each other.

use std::time::Duration;

use http::HeaderMap;
use prost::Message;
use prost::bytes::Bytes;
use tonic::{Code, Status};
use tonic_types::{StatusExt, pb};

use crate::frames::one;
use crate::protobuf;

const TYPES: &str = "type.googleapis.com/google.rpc.";

/// The parsed details of a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Details {
    pub(crate) wait: Option<Duration>,
    pub(crate) names: Vec<String>,
    /// The pushback in milliseconds. A negative pushback forbids a retry.
    pub(crate) pushback: Option<i32>,
}

impl Details {
    pub(crate) fn new(wait: Option<Duration>, names: &[&str], pushback: Option<i32>) -> Self {
        Self { wait, names: names.iter().map(|&name| name.to_owned()).collect(), pushback }
    }
}

/// Reads the headers of a rejection with the code `RESOURCE_EXHAUSTED`. All parts of the rejection must agree.
#[track_caller]
pub(crate) fn reported(headers: &HeaderMap) -> Details {
    // The protocol requires a decimal status, and base64 without padding.
    assert_eq!(one(headers, "grpc-status"), Some("8"), "{headers:?}");
    let encoded = one(headers, "grpc-status-details-bin").unwrap_or_else(|| panic!("{headers:?}"));
    assert!(!encoded.ends_with('='), "{headers:?}");
    let status = Status::from_header_map(headers).unwrap();
    let reported = read(&status);
    assert_eq!(protobuf::base64(status.details()), encoded);
    let names: Vec<_> = reported.names.iter().map(String::as_str).collect();
    assert_eq!(protobuf::denied(reported.wait, &names), encoded, "{reported:?}");
    reported
}

/// Reads a rejection as a client received it.
#[track_caller]
pub(crate) fn read(status: &Status) -> Details {
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "rate limit exceeded"));
    let details = pb::Status::decode(Bytes::copy_from_slice(status.details())).unwrap();
    assert_eq!((details.code, details.message.as_str()), (8, status.message()));

    // The details are only a delay and names, in this order, and never the caller's key.
    let mut rest = details.details.as_slice();
    let mut wait = None;
    if let [first, others @ ..] = rest
        && first.type_url == format!("{TYPES}RetryInfo")
    {
        let delay = pb::RetryInfo::decode(first.value.as_slice()).unwrap().retry_delay.unwrap();
        wait = Some(Duration::new(delay.seconds.try_into().unwrap(), delay.nanos.try_into().unwrap()));
        assert!(delay.nanos < 1_000_000_000, "{delay:?}");
        rest = others;
    }
    let mut names = Vec::new();
    if let [first, others @ ..] = rest {
        assert_eq!(first.type_url, format!("{TYPES}QuotaFailure"));
        for violation in pb::QuotaFailure::decode(first.value.as_slice()).unwrap().violations {
            names.push(violation.description.clone());
            let described = pb::quota_failure::Violation {
                description: violation.description.clone(),
                ..Default::default()
            };
            assert_eq!(violation, described);
        }
        assert!(!names.is_empty());
        rest = others;
    }
    assert!(rest.is_empty(), "{details:?}");

    let richer = status.check_error_details().unwrap();
    assert_eq!(richer.retry_info().and_then(|info| info.retry_delay), wait);
    let violations = richer.quota_failure().map(|failure| failure.violations.as_slice()).unwrap_or_default();
    assert!(violations.iter().map(|violation| &violation.description).eq(&names), "{violations:?}");

    let headers = status.metadata().clone().into_headers();
    let pushback = one(&headers, "grpc-retry-pushback-ms").map(|text| {
        let pushback: i32 = text.parse().unwrap();
        assert_eq!(pushback.to_string(), text);
        pushback
    });
    if let Some(wait) = wait {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        if let Some(reported) = one(&headers, "retry-after") {
            assert_eq!(reported, seconds.clamp(1, i32::MAX as u64).to_string(), "{wait:?}");
        }
        // The pushback has waits of up to a minute, in milliseconds, rounded up.
        let is_short = wait <= Duration::from_secs(60);
        let millis = if is_short { wait.as_nanos().div_ceil(1_000_000) as i32 } else { -1 };
        assert_eq!(pushback, Some(millis), "{wait:?}");
    } else {
        assert_eq!(one(&headers, "retry-after"), None, "{headers:?}");
    }
    Details { wait, names, pushback }
}
