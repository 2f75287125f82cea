//! Limits of a file or of a request decide descriptors, and statuses say what remains.

use super::{DAILY, TokenServer, admitted, call, descriptor, request, status};

use crate::protocol::common::RateLimitDescriptor;
use crate::protocol::common::rate_limit_descriptor::RateLimitOverride;
use crate::protocol::rate_limit_response::{Code, DescriptorStatus, rate_limit};
use crate::protocol::{RateLimitRequest, RateLimitUnit};

#[tokio::test]
async fn each_value_has_its_own_count_unless_the_file_names_the_value() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    assert_eq!(admitted(client, &[("user", "anna")]).await, 5);
    assert_eq!(admitted(client, &[("user", "bert")]).await, 5);
    assert_eq!(admitted(client, &[("user", "root")]).await, 0);
    assert_eq!(admitted(client, &[("user", "bot-7")]).await, 2);
    // The limit is that of the last entry, and the path is part of the count.
    assert_eq!(admitted(client, &[("path", "/login"), ("user", "anna")]).await, 3);
    assert_eq!(admitted(client, &[("path", "/login"), ("user", "bert")]).await, 3);
}

#[tokio::test]
async fn a_status_has_the_limit_and_what_remains_of_it() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let first = status(client, &[("user", "bot")]).await;
    let limit = first.current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("bots", 2));
    assert_eq!(limit.unit(), rate_limit::Unit::Day);
    assert_eq!(first.limit_remaining, 1);
    let reset = first.duration_until_reset.unwrap();
    assert!((0..=86_400).contains(&reset.seconds), "{reset:?}");
    let free = status(client, &[("free", "x")]).await;
    assert_eq!((free.code(), free.limit_remaining, free.current_limit), (Code::Ok, u32::MAX, None));
}

#[tokio::test]
async fn descriptors_without_a_limit_are_ok() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let unlimited: [&[(&str, &str)]; 5] = [
        &[("other", "x")],
        // deeper than the file, and less deep
        &[("user", "anna"), ("path", "/")],
        &[("path", "/login")],
        &[("path", "/"), ("user", "anna")],
        &[],
    ];
    for entries in unlimited {
        let status = status(client, entries).await;
        assert_eq!((status.code(), status.current_limit), (Code::Ok, None), "{entries:?}");
    }
    let mut other = request(vec![descriptor(&[("user", "root")])]);
    other.domain = "elsewhere".to_owned();
    assert_eq!(client.should_rate_limit(other).await.unwrap().into_inner().overall_code(), Code::Ok);
}

#[tokio::test]
async fn a_request_is_over_the_limit_if_one_of_its_descriptors_is_and_says_when_to_retry() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let both = || vec![descriptor(&[("user", "anna")]), descriptor(&[("user", "bot")])];
    for _ in 0..2 {
        let response = call(client, both()).await;
        assert_eq!(response.overall_code(), Code::Ok);
        assert!(response.response_headers_to_add.is_empty());
    }
    let response = call(client, both()).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    let codes: Vec<_> = response.statuses.iter().map(DescriptorStatus::code).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit]);
    let [header] = &response.response_headers_to_add[..] else { panic!("{response:?}") };
    assert_eq!(header.key, "retry-after");
    assert!((1..=86_400).contains(&header.value.parse::<u64>().unwrap()), "{header:?}");
}

#[tokio::test]
async fn hits_are_counted_together_and_use_up_the_limit_if_they_do_not_fit() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let mut three = request(vec![descriptor(&[("user", "anna")])]);
    three.hits_addend = 3;
    assert_eq!(client.should_rate_limit(three.clone()).await.unwrap().into_inner().overall_code(), Code::Ok);
    assert_eq!(
        client.should_rate_limit(three.clone()).await.unwrap().into_inner().overall_code(),
        Code::OverLimit
    );
    assert_eq!(admitted(client, &[("user", "anna")]).await, 0);
}

#[tokio::test]
async fn a_request_with_0_hits_counts_nothing_and_reports_whether_the_limit_is_used_up() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    // The hits of a descriptor take precedence over the hits of the request.
    let with_hits = |hits| {
        let descriptor = RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(&[("user", "anna")]) };
        RateLimitRequest { hits_addend: 7, ..request(vec![descriptor]) }
    };
    let expected = [
        (0, Code::Ok, 5),
        (4, Code::Ok, 1),
        (0, Code::Ok, 1),
        (9, Code::OverLimit, 0),
        (0, Code::OverLimit, 0),
    ];
    for (hits, code, remaining) in expected {
        let response = client.should_rate_limit(with_hits(hits)).await.unwrap().into_inner();
        let status = &response.statuses[0];
        assert_eq!((status.code(), status.limit_remaining), (code, remaining), "{hits}");
    }
}

#[tokio::test]
async fn shadow_mode_counts_and_rejects_nothing() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    for remaining in [0, 0, 0] {
        let status = status(client, &[("trial", "x")]).await;
        assert_eq!((status.code(), status.limit_remaining), (Code::Ok, remaining));
    }
}

#[tokio::test]
async fn a_limit_that_replaces_another_leaves_the_count_of_the_other_alone() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    for _ in 0..4 {
        let both = vec![descriptor(&[("user", "bot")]), descriptor(&[("vip", "x")])];
        assert_eq!(call(client, both).await.overall_code(), Code::Ok);
    }
    assert_eq!(admitted(client, &[("vip", "x")]).await, 0);
    assert_eq!(admitted(client, &[("user", "bot")]).await, 2);
}

#[tokio::test]
async fn a_request_can_bring_its_limit_along() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let with_limit = |requests_per_unit, unit: RateLimitUnit| {
        let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
        RateLimitDescriptor { limit, ..descriptor(&[("user", "anna")]) }
    };
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(call(client, vec![with_limit(2, RateLimitUnit::Day)]).await.overall_code(), expected);
    }
    let unknown = request(vec![with_limit(2, RateLimitUnit::Unknown)]);
    let error = client.should_rate_limit(unknown).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    // Each rate needs memory, so the oldest rates are dropped.
    for requests in 3..1_003 {
        assert_eq!(
            call(client, vec![with_limit(requests, RateLimitUnit::Day)]).await.overall_code(),
            Code::Ok
        );
    }
    assert_eq!(call(client, vec![with_limit(2, RateLimitUnit::Day)]).await.overall_code(), Code::Ok);
}

#[tokio::test]
async fn a_dot_in_a_key_is_no_level() {
    let limits = "
domain: test
descriptors:
  - key: a.b
    rate_limit: {unit: DAY, requests_per_unit: 1}
  - key: a
    descriptors:
      - key: b
        rate_limit: {unit: day, requests_per_unit: 2}
";
    let server = TokenServer::start(limits).await;
    let client = &mut server.client().await;
    assert_eq!(admitted(client, &[("a.b", "x")]).await, 1);
    assert_eq!(admitted(client, &[("a", "x"), ("b", "x")]).await, 2);
}
