//! A layer chooses the tier of each request, and reports the quota of that tier.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, SlidingLog, Tiered, TokenBucket};
use tower_throttle::key::{Extension, Global, from_fn};
use tower_throttle::{Error, ErrorResponder, Quota, RateLimitLayer, RateLimiter};

use super::{tiered, waits};
use crate::support::{Item, Now};

#[derive(Clone, Copy, Debug)]
struct User {
    id: u64,
    pays: bool,
}

type Body = Empty<&'static [u8]>;

fn of(user: User) -> Request<Body> {
    let mut request = Request::new(Body::new());
    request.extensions_mut().insert(user);
    request
}

async fn hello(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::new()))
}

/// Returns the status, name, quota, window and remaining units.
async fn reported<S, B>(service: &S, user: User) -> (u16, String, u64, u64, u64)
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
{
    let answer = service.clone().oneshot(of(user)).await.unwrap();
    let item = |field: &str| {
        let mut lines = answer.headers().get_all(field).iter();
        let item = Item::read(lines.next().unwrap().to_str().unwrap());
        assert!(lines.next().is_none());
        item
    };
    let (policy, limit) = (item("ratelimit-policy"), item("ratelimit"));
    assert_eq!(policy.name, limit.name);
    (answer.status().as_u16(), limit.name.clone(), policy.get("q"), policy.get("w"), limit.get("r"))
}

#[tokio::test]
async fn a_user_gets_the_tier_of_the_request_and_its_quota_in_the_headers() {
    let (free, paid) = (TokenBucket::new(Quota::per_minute(3)), TokenBucket::new(Quota::per_hour(50)));
    let (limiter, _clock) = tiered(free.clone());
    let by_user = Extension::<User, _>::new(|user: &User| user.id);
    let layer = RateLimitLayer::with_limiter(by_user, limiter.clone()).name("api").tier(
        move |request: &Request<Body>, _: &_| {
            let pays = request.extensions().get::<User>().is_some_and(|user| user.pays);
            if pays { paid.clone() } else { free.clone() }
        },
    );
    let service = layer.layer(service_fn(hello));
    let (ann, bob) = (User { id: 1, pays: false }, User { id: 2, pays: true });
    let api = |status, quota, window, left| (status, "api".to_owned(), quota, window, left);
    assert_eq!(reported(&service, ann).await, api(200, 3, 60, 2));
    assert_eq!(reported(&service, bob).await, api(200, 50, 3_600, 49));
    assert_eq!(reported(&service, ann).await, api(200, 3, 60, 1));
    assert_eq!(reported(&service, ann).await, api(200, 3, 60, 0));
    assert_eq!(reported(&service, ann).await, api(429, 3, 60, 0));
    // Ann has become a paying user. The three units that she has used stay used.
    let ann = User { pays: true, ..ann };
    assert_eq!(reported(&service, ann).await, api(200, 50, 3_600, 46));
    assert_eq!(reported(&service, bob).await, api(200, 50, 3_600, 48));
}

#[tokio::test]
async fn a_tier_is_chosen_by_key_and_cost_alike() {
    let (small, large) = (FixedWindow::new(Quota::per_hour(10)), FixedWindow::new(Quota::per_hour(100)));
    let (limiter, _clock) = tiered(small.clone());
    let by_tenant = from_fn(|line: &String| line.split(' ').next().map(str::to_owned));
    let layer = RateLimitLayer::with_limiter(by_tenant, limiter.clone())
        .cost(|line: &String| line.len() as u64)
        .tier(move |line: &String, tenant: &String| {
            assert!(line.starts_with(tenant.as_str()));
            if tenant == "big" { large.clone() } else { small.clone() }
        })
        .responder(ErrorResponder);
    let service = layer.layer(service_fn(async |_: String| Ok::<_, ()>(())));
    let call = async |line: &str| match service.clone().oneshot(line.to_owned()).await {
        Ok(()) => None,
        Err(Error::Limited(decision)) => Some((decision.limit(), decision.remaining())),
        Err(other) => panic!("{other:?}"),
    };
    assert_eq!(call("big and a line of 21").await, None);
    assert_eq!(call("ann and a line of 21").await, Some((10, 10)));
    assert_eq!(call("ann and").await, None);
    assert_eq!(call("ann and").await, Some((10, 3)));
    assert_eq!(limiter.check("ann").remaining(), 2);
}

/// Returns a service with two layers, which have one limiter and one key, but different tiers.
fn two_tiers(
    limiter: &RateLimiter<Tiered<FixedWindow>>,
    first: &FixedWindow,
    second: &FixedWindow,
) -> impl Service<(), Response = (), Error = Error<()>, Future: Send + 'static> + Clone {
    let by = |rule: &FixedWindow| {
        let rule = rule.clone();
        RateLimitLayer::with_limiter(Global, limiter.clone()).tier(move |(): &(), (): &()| rule.clone())
    };
    let layers = by(first).and(by(second)).responder(ErrorResponder);
    layers.layer(service_fn(|()| std::future::ready(Ok::<_, ()>(()))))
}

/// Two layers have one limiter and one key, but different tiers. Both tiers must allow a call.
#[tokio::test]
async fn two_tiers_on_one_key_must_both_allow() {
    let (small, large) = (FixedWindow::new(Quota::per_minute(4)), FixedWindow::new(Quota::per_minute(1_000)));
    for [first, second] in [[&small, &large], [&large, &small]] {
        let (limiter, _clock) = tiered(small.clone());
        let service = two_tiers(&limiter, first, second);
        let mut admitted = 0;
        for _ in 0..100 {
            admitted += u64::from(service.clone().oneshot(()).await.is_ok());
        }
        assert!(admitted <= 4, "{admitted} admitted, where one of the rules allows 4");
    }
}

/// If one of the tiers queues a call that the other would admit, the call waits, in either order of the layers.
#[test]
fn a_call_of_two_tiers_on_one_key_waits_for_the_one_that_must() {
    let (small, large) =
        (FixedWindow::new(Quota::per_minute(4)).queue(5), FixedWindow::new(Quota::per_minute(1_000)));
    for [first, second] in [[&small, &large], [&large, &small]] {
        let (limiter, clock) = tiered(small.clone());
        let service = two_tiers(&limiter, first, second);
        assert!((0..2).all(|_| service.clone().oneshot(()).now().is_ok()));
        let mut third = waits(service.clone().oneshot(()));
        clock.advance(Duration::from_secs(60));
        assert!(third.run() && third.output.unwrap().is_ok());
        assert_eq!(limiter.call(&()).tier(&large).peek().remaining(), 1_000 - 2);
    }
}

#[tokio::test]
async fn a_chosen_tier_joins_other_layers() {
    let (free, paid) = (TokenBucket::new(Quota::per_minute(2)), TokenBucket::new(Quota::per_minute(5)));
    let (limiter, clock) = tiered(free.clone());
    let all = RateLimiter::builder(SlidingLog::new(Quota::per_minute(6))).clock(clock.clone()).build();
    let layer = RateLimitLayer::with_limiter(Extension::<User, _>::new(|user: &User| user.id), limiter)
        .tier(move |request: &Request<Body>, _: &_| {
            let pays = request.extensions().get::<User>().is_some_and(|user| user.pays);
            if pays { paid.clone() } else { free.clone() }
        })
        .and(RateLimitLayer::with_limiter(Global, all.clone()).name("all"));
    let service = layer.layer(service_fn(hello));
    let fields = async |user: User| {
        let answer = service.clone().oneshot(of(user)).await.unwrap();
        let lines = answer.headers().get_all("ratelimit-policy").iter();
        let quotas: Vec<_> = lines.map(|line| Item::read(line.to_str().unwrap()).get("q")).collect();
        (answer.status().as_u16(), quotas)
    };
    let (ann, bob) = (User { id: 1, pays: false }, User { id: 2, pays: true });
    assert_eq!(fields(ann).await, (200, vec![2, 6]));
    assert_eq!(fields(ann).await, (200, vec![2, 6]));
    assert_eq!(fields(ann).await, (429, vec![2, 6]));
    assert_eq!(all.peek(&()).remaining(), 4);
    for _ in 0..4 {
        assert_eq!(fields(bob).await, (200, vec![5, 6]));
    }
    assert_eq!(fields(bob).await, (429, vec![5, 6]));
    // All other units are used, and Bob's last unit is still there.
    clock.advance(Duration::from_secs(60));
    assert_eq!(fields(bob).await, (200, vec![5, 6]));
}
