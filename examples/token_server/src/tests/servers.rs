//! A server rejects invalid requests, reads changed limits, and reports its counts and its health. Several servers
//! share counts in Redis.

use std::time::Duration;

use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tower_throttle_redis::RedisStore;

use super::redis_server::RedisServer;
use super::{DAILY, TokenServer, admitted, descriptor, request, status};

use crate::limiter::Backend;
use crate::protocol::rate_limit_response::Code;
use crate::service::{MAX_DESCRIPTORS, MAX_ENTRIES};

#[tokio::test]
async fn requests_without_a_domain_or_a_descriptor_are_invalid() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let mut nameless = request(vec![descriptor(&[("user", "anna")])]);
    nameless.domain.clear();
    for request in [nameless, request(Vec::new())] {
        let error = client.should_rate_limit(request).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    }
}

#[tokio::test]
async fn requests_with_too_many_descriptors_or_entries_are_invalid_and_count_nothing() {
    let server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let anna = || descriptor(&[("user", "anna")]);
    let too_long = descriptor(&[("user", "anna"); MAX_ENTRIES + 1]);
    for descriptors in [vec![anna(); MAX_DESCRIPTORS + 1], vec![anna(), too_long]] {
        let error = client.should_rate_limit(request(descriptors)).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
        assert!(error.message().contains("100"), "{error}");
    }
    assert_eq!(admitted(client, &[("user", "anna")]).await, 5);
    let longest = descriptor(&[("user", "anna"); MAX_ENTRIES]);
    let most = request(vec![longest; MAX_DESCRIPTORS]);
    assert_eq!(client.should_rate_limit(most).await.unwrap().into_inner().statuses.len(), MAX_DESCRIPTORS);
}

#[tokio::test]
async fn a_request_with_100_000_descriptors_sends_nothing_to_redis() {
    let redis = RedisServer::start();
    let store = RedisStore::builder(&redis.url()).connect().await.unwrap();
    let server = TokenServer::with(DAILY, Backend::Redis(store.clone())).await;
    let users = (0..100_000).map(|user| descriptor(&[("user", &user.to_string())])).collect();
    let before = store.stats();
    let answer = server.client().await.should_rate_limit(request(users)).await;
    assert_eq!(store.stats(), before);
    assert_eq!(answer.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn changed_limits_keep_what_was_counted() {
    let mut server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    assert_eq!(admitted(client, &[("user", "anna")]).await, 5);
    assert_eq!(server.change(DAILY), Ok(false));
    assert_eq!(server.change(&DAILY.replace("requests_per_unit: 5", "requests_per_unit: 7")), Ok(true));
    assert_eq!(admitted(client, &[("user", "anna")]).await, 2);
    assert_eq!(admitted(client, &[("user", "bert")]).await, 7);
}

#[tokio::test]
async fn a_mistake_in_a_changed_file_is_reported_once_and_the_limits_stay() {
    let mut server = TokenServer::start(DAILY).await;
    let client = &mut server.client().await;
    let mistakes = [
        ("unit: hour", "unit: fortnight", "fortnight"),
        ("shadow_mode", "shadow", "shadow"),
        ("value: root", "value: \"\"", "test.user is configured twice"),
        ("key: free", "key: \"\"", "empty key"),
        ("{unlimited: true}", "{unlimited: true, unit: day}", "unlimited"),
        ("requests_per_unit: 1}", "}", "requests_per_unit"),
        ("domain: test", "domain: \"\"", "the domain is empty"),
        ("requests_per_unit: 5", "requests_per_unit: -5", "-5"),
        ("replaces: [{name: bots}]", "name: bots\n      replaces: [{name: bots}]", "replaces itself"),
    ];
    for (from, to, expected) in mistakes {
        let broken = DAILY.replace(from, to);
        assert_ne!(broken, DAILY, "{from}");
        let error = server.change(&broken).unwrap_err();
        assert!(error.contains(expected), "{to}: {error}");
        assert!(error.contains(".yaml"), "{error}");
        assert_eq!(server.change(&broken), Ok(false), "{to}");
    }
    assert_eq!(admitted(client, &[("user", "anna")]).await, 5);
}

#[tokio::test]
async fn the_page_for_prometheus_counts_decisions_by_limit() {
    let limits =
        "domain: counted\ndescriptors:\n- key: user\n  rate_limit: {unit: day, requests_per_unit: 2}\n";
    let server = TokenServer::start(limits).await;
    let client = &mut server.client().await;
    for _ in 0..5 {
        let mut request = request(vec![descriptor(&[("user", "secret-name")])]);
        request.domain = "counted".to_owned();
        client.should_rate_limit(request).await.unwrap();
    }
    let page = server.page("/metrics").await;
    let count =
        |outcome| format!("ratelimit_decisions_total{{limit=\"counted.user\",outcome=\"{outcome}\"}}");
    assert!(page.contains(&format!("{} 2\n", count("ok"))), "{page}");
    assert!(page.contains(&format!("{} 3\n", count("over_limit"))), "{page}");
    assert!(page.contains("ratelimit_config_loads_total{result=\"success\"}"), "{page}");
    assert!(!page.contains("secret-name"), "{page}");
    assert!(server.page("/healthcheck").await.ends_with("OK\n"));
}

#[tokio::test]
async fn the_health_service_reports_the_server_until_it_shuts_down() {
    let mut server = TokenServer::start(DAILY).await;
    let channel =
        Channel::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let service = "envoy.service.ratelimit.v3.RateLimitService".to_owned();
    let watched = HealthClient::new(channel).watch(HealthCheckRequest { service }).await;
    let mut states = watched.unwrap().into_inner();
    assert_eq!(states.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.shutdown.take().unwrap().send(()).unwrap();
    assert_eq!(states.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    // The watch never ends by itself.
    let task = server.task.take().unwrap();
    tokio::time::timeout(Duration::from_secs(60), task).await.expect("the server ends").unwrap();
}

#[tokio::test]
async fn servers_with_one_redis_share_the_counts_and_are_unavailable_without_it() {
    let redis = RedisServer::start();
    let store = || RedisStore::builder(&redis.url()).deadline(Duration::from_secs(10)).connect();
    let one = TokenServer::with(DAILY, Backend::Redis(store().await.unwrap())).await;
    let other = TokenServer::with(DAILY, Backend::Redis(store().await.unwrap())).await;
    let clients = &mut [one.client().await, other.client().await];
    let mut codes = Vec::new();
    for n in 0..6 {
        codes.push(status(&mut clients[n % 2], &[("user", "anna")]).await.code());
    }
    assert_eq!(codes, [[Code::Ok; 5].as_slice(), &[Code::OverLimit]].concat());
    drop(redis);
    let request = request(vec![descriptor(&[("user", "bert")])]);
    let error = clients[0].should_rate_limit(request).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable, "{error}");
}
