//! Settled and tiered requests are counted exactly while slots move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, Tiered};
use tower_throttle::key::{StoreKey, from_fn};
use tower_throttle::{Quota, RateLimitLayer};

use super::exact::{move_slots, patient};
use super::{MS, keys_of_nodes};
use crate::support::Random;
use crate::support::redis_server::RedisCluster;

const LIMITS: [u64; 2] = [1_000_000_000, 2_000_000_000];

type Http = Request<Full<Bytes>>;

/// A request for a key, with its tier, the cost that is charged, and the actual cost.
#[derive(Clone, Debug)]
struct Call {
    key: String,
    tier: usize,
    cost: u64,
    actual: u64,
}

/// The units of a key that both tiers have counted, once all calls are settled.
#[derive(Debug, Default)]
struct Used([AtomicU64; 2]);

impl Used {
    /// Counts a call. A settlement gives units back only to the call's own tier, and takes units from both.
    fn add(&self, call: &Call) {
        for (tier, used) in self.0.iter().enumerate() {
            let units = if tier == call.tier { call.actual } else { call.actual.max(call.cost) };
            used.fetch_add(units, Ordering::Relaxed);
        }
    }
}

fn call(request: &Http) -> &Call {
    request.extensions().get().unwrap()
}

async fn respond(request: Http) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let mut response = Response::new(Full::default());
    response.extensions_mut().insert(call(&request).actual);
    Ok(response)
}

/// Makes requests by two stores, while the slots of `count` keys move from node to node. The slot of each key makes
/// `moves` moves.
async fn counts_are_exact(count: usize, moves: usize) {
    let cluster = RedisCluster::start();
    let stores = [patient(&cluster).connect().await.unwrap(), patient(&cluster).connect().await.unwrap()];
    let tiers =
        LIMITS.map(|limit| FixedWindow::new(Quota::per(limit, Duration::from_secs(864_000)).unwrap()));
    let limiters =
        stores.each_ref().map(|store| store.limiter("test", Tiered::new(tiers[0].clone())).build().unwrap());
    let services = limiters.each_ref().map(|limiter| {
        let tiers = tiers.clone();
        let by_key = from_fn(|request: &Http| Some(call(request).key.clone()));
        let layer = RateLimitLayer::with_limiter(by_key, limiter.clone())
            .cost(|request: &Http| call(request).cost)
            .tier(move |request: &Http, _: &_| tiers[call(request).tier].clone())
            .settle(|response: &Response<Full<Bytes>>| response.extensions().get::<u64>().copied());
        layer.layer(service_fn(respond))
    });
    let [keys, ..] = keys_of_nodes(&cluster, count);
    let used: Arc<Vec<_>> = Arc::new(keys.iter().map(|_| Used::default()).collect());
    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for (key, used) in keys.iter().zip(&*used) {
        // With these calls, each key exists before it is moved, and has both tiers.
        for tier in [0, 1] {
            let first = Call { key: key.clone(), tier, cost: 1, actual: 1 };
            let request = Request::builder().extension(first.clone()).body(Full::default()).unwrap();
            assert_eq!(services[0].clone().oneshot(request).await.unwrap().status(), 200);
            // The second tier begins with the unit that the first has counted.
            used.add(&first);
        }
    }
    let mut tasks = Vec::new();
    for task in 0..2 * count {
        let (service, key, used) = (services[task % 2].clone(), keys[task / 2].clone(), Arc::clone(&used));
        let (stop, made) = (Arc::clone(&stop), Arc::clone(&made));
        tasks.push(tokio::spawn(async move {
            let mut random = Random::new(task as u64);
            while !stop.load(Ordering::Relaxed) {
                let (tier, cost) = (random.below(2) as usize, 1 + random.below(5));
                let call = Call { key: key.clone(), tier, cost, actual: random.below(8) };
                let request = Request::builder().extension(call.clone()).body(Full::default()).unwrap();
                assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200);
                used[task / 2].add(&call);
                made.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let steps = (0..moves).map(|step| (step % 3, (step + 1) % 3));
    move_slots(&cluster, &keys, steps, || made.load(Ordering::Relaxed)).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    for (key, Used(used)) in keys.iter().zip(&*used) {
        let stored = StoreKey::Key(key.clone());
        for (tier, used) in used.iter().enumerate() {
            let left = LIMITS[tier] - used.load(Ordering::Relaxed);
            // The layer waits for no reply to a settlement.
            let start = Instant::now();
            let mut found = limiters[0].call(&stored).tier(&tiers[tier]).peek().await.unwrap().remaining();
            while found != left && start.elapsed() < Duration::from_secs(10) {
                sleep(MS).await;
                found = limiters[0].call(&stored).tier(&tiers[tier]).peek().await.unwrap().remaining();
            }
            assert_eq!(found, left, "{key}, tier {tier}, after {} calls", made.load(Ordering::Relaxed));
        }
    }
    println!("{} calls, {} moves of slots", made.load(Ordering::Relaxed), count * moves);
    assert!(stores.iter().all(|store| store.stats().late == 0 && store.stats().circuit_openings == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settled_tiers_are_exact_while_slots_move() {
    counts_are_exact(2, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes: .ci/nightly runs it"]
async fn settled_tiers_are_exact_while_slots_move_for_long() {
    counts_are_exact(8, 60).await;
}
