//! The limits are exact on many threads.

use super::*;
use crate::support::on_threads;
use tower_throttle::limiter::Denied;

const THREADS: u64 = 8;

fn together(work: impl Fn(u64) + Sync) {
    on_threads(THREADS, work);
}

/// The number of calls in progress, and whether it ever exceeded the limit.
#[derive(Debug, Default)]
struct Gauge {
    now: AtomicU64,
    most: AtomicU64,
}

impl Gauge {
    fn up(&self) {
        self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    fn down(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn threads_hold_no_more_than_the_limit_of_a_key_nor_the_total() {
    for round in 0..scaled(20) {
        let limiter = RateLimiter::new(Concurrency::per_key(2).total(4));
        let (all, each) =
            (Gauge::default(), [const { Gauge { now: AtomicU64::new(0), most: AtomicU64::new(0) } }; 3]);
        let passed = AtomicU64::new(0);
        together(|thread| {
            let mut random = Random::new(round * THREADS + thread);
            let mut held = Vec::new();
            for _ in 0..2_000 {
                let key = random.below(3) as usize;
                if let Ok(permit) = limiter.try_acquire_permit(&key) {
                    all.up();
                    each[key].up();
                    passed.fetch_add(1, Ordering::Relaxed);
                    held.push((key, permit));
                }
                if random.below(2) == 0 {
                    thread::yield_now();
                }
                while held.len() as u64 > random.below(3) {
                    let (key, permit) = held.pop().unwrap();
                    each[key].down();
                    all.down();
                    drop(permit);
                }
            }
            for (key, permit) in held {
                each[key].down();
                all.down();
                drop(permit);
            }
        });
        assert!(all.most.into_inner() <= 4);
        assert!(each.into_iter().all(|each| each.most.into_inner() <= 2));
        assert!(passed.into_inner() > 100);
        let free: Vec<_> =
            [0_usize, 0, 1, 1, 2].map(|key| limiter.try_acquire_permit(&key)).into_iter().collect();
        assert_eq!(free.iter().filter(|permit| permit.is_ok()).count(), 4, "all are free");
        assert!(free[4].is_err());
    }
}

#[test]
fn waiting_threads_all_get_a_permit_within_the_limit() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let limiter = RateLimiter::new(Concurrency::per_key(2).queue(100).total(1_000));
        let gauges: Arc<[Gauge; 3]> = Arc::default();
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..24_u64 {
            let (limiter, gauges) = (limiter.clone(), gauges.clone());
            tasks.spawn(async move {
                let mut random = Random::new(task);
                for _ in 0..200 {
                    let key = random.below(3) as usize;
                    let wait = limiter.acquire_permit(&key);
                    let permit = match random.below(4) {
                        // The call is cancelled, possibly at the instant at which it is admitted.
                        0 => match tokio::time::timeout(Duration::ZERO, wait).await {
                            Ok(permit) => permit.unwrap(),
                            Err(_) => continue,
                        },
                        _ => wait.await.unwrap(),
                    };
                    gauges[key].up();
                    tokio::task::yield_now().await;
                    gauges[key].down();
                    drop(permit);
                }
            });
        }
        let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
        tokio::time::timeout(Duration::from_secs(30), all).await.expect("no call is left waiting");
        assert!(gauges.iter().all(|gauge| gauge.most.load(Ordering::SeqCst) <= 2));
        assert_eq!(limiter.queued(), 0);
        for key in 0..3_usize {
            let free = [(); 3].map(|()| limiter.try_acquire_permit(&key).ok());
            assert_eq!(free.iter().flatten().count(), 2);
        }
    });
}

#[test]
fn joined_limits_report_a_denial_as_one() {
    let one = RateLimiter::new(Concurrency::per_key(9).total(1));
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_day(100_000)));
    let by_key = from_fn(|key: &u64| Some(*key));
    let layer = RateLimitLayer::with_limiter(by_key, one.clone())
        .and(RateLimitLayer::with_limiter(by_key, bucket))
        .responder(ErrorResponder);
    together(|thread| {
        let mut service = layer.layer(service_fn(|_| ready(Ok::<_, Infallible>(()))));
        for _ in 0..scaled(20_000) {
            if let Err(error) = service.call(thread).now() {
                assert!(matches!(error, Error::Limited(denied) if !denied.is_allowed()));
            }
        }
    });
    assert!(one.try_acquire_permit(&0_u64).is_ok());
}

#[test]
fn of_joined_limits_neither_is_charged_for_what_the_other_denies() {
    let calls = scaled(8_000);
    for total_first in [true, false] {
        // However long the test takes, no unit is refilled.
        let clock = ManualClock::new();
        let one = limiter(Concurrency::per_key(2).total(3), &clock);
        let bucket = limiter(TokenBucket::new(Quota::per_day(20_000)), &clock);
        let by_key = from_fn(|request: &Asks| Some(request.body().0));
        let passed = AtomicU64::new(0);
        let work = |thread: u64, call: &dyn Fn(Asks) -> Call| {
            let mut random = Random::new(thread);
            let mut held = Vec::new();
            for _ in 0..calls {
                let mut call = PolledByHand::new(call(Request::new((random.below(3), 1))));
                assert!(call.poll(), "no call is queued");
                if let Some(Ok(holder)) = call.output {
                    passed.fetch_add(1, Ordering::Relaxed);
                    held.push(holder);
                }
                held.truncate(random.below(2) as usize);
                if random.below(4) == 0 {
                    thread::yield_now();
                }
            }
        };
        let conc = RateLimitLayer::with_limiter(by_key, one.clone());
        let rate = RateLimitLayer::with_limiter(Global, bucket.clone());
        macro_rules! run {
            ($layer:expr) => {{
                let layer = $layer;
                together(|thread| {
                    let service = layer.layer(service_fn(answers));
                    work(thread, &|request| {
                        let call = service.clone().call(request);
                        Box::pin(async move { kept(call.await) })
                    });
                });
            }};
        }
        match total_first {
            true => run!(conc.and(rate)),
            false => run!(rate.and(conc)),
        }
        let passed = passed.into_inner();
        assert!(passed > calls / 4, "{passed}");
        assert_eq!(bucket.peek(&()).remaining(), 20_000 - passed.min(20_000), "as many as passed");
        let all: Vec<_> = (0..9_u64).filter_map(|key| one.try_acquire_permit(&key).ok()).collect();
        assert_eq!(all.len(), 3);
    }
}

/// The total belongs to no single key, so a call for another key may take the last unit of the total between a peek and
/// a charge.
#[test]
fn a_tuple_is_charged_only_for_calls_that_its_total_admits() {
    for total_last in [true, false].repeat(scaled(10) as usize) {
        let one = || Concurrency::per_key(4).total(1);
        let tokens = || TokenBucket::new(Quota::per_day(20_000));
        let passed = [const { AtomicU64::new(0) }; THREADS as usize];
        let count = |permit: Result<_, Denied>, thread: u64| {
            if permit.is_ok() {
                passed[thread as usize].fetch_add(1, Ordering::Relaxed);
            }
        };
        let (wide, three) = (|| Concurrency::per_key(u64::MAX), || Concurrency::per_key(3));
        // Returns the number of units that are charged to the key, and the number of free permits, of three. The units
        // are counted with the second algorithm, and the permits with the third.
        macro_rules! reported {
            ($limit:expr, $wide:expr, $three:expr) => {{
                let limiter = limiter($limit, &ManualClock::new());
                together(|thread| {
                    (0..5_000).for_each(|_| count(limiter.try_acquire_permit(&thread), thread));
                });
                limiter.replace($wide);
                let charged: Vec<_> =
                    (0..THREADS).map(|key| 20_000 - limiter.peek(&key).remaining()).collect();
                limiter.replace($three);
                let free =
                    |key| [(); 4].map(|()| limiter.try_acquire_permit(&key).ok()).iter().flatten().count();
                charged.into_iter().zip((0..THREADS).map(free)).collect::<Vec<(u64, usize)>>()
            }};
        }
        let reported = match total_last {
            true => reported!(
                (tokens(), three(), one()),
                (tokens(), wide(), wide()),
                (tokens(), three(), three())
            ),
            false => reported!(
                (one(), tokens(), three()),
                (wide(), tokens(), wide()),
                (three(), tokens(), three())
            ),
        };
        let passed: Vec<_> = passed.iter().map(|passed| (passed.load(Ordering::Relaxed), 3)).collect();
        assert_eq!(reported, passed, "{total_last}");
    }
}
