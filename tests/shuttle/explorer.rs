//! Runs many executions of a model, and finds keys whose shards are known.

use std::env;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, Runner, thread};
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::{Clock, Nanos};
use tower_throttle::{Quota, RateLimiter};

/// The number of executions of each model under each of the two schedulers. In all, there are about 20,000.
const EXECUTIONS: usize = 300;

pub(crate) fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    Runner::new(scheduler, config).run(model);
}

/// Runs the model in many orders. One scheduler is random. The other has few preemptions, which finds failures that are
/// rare in random orders.
#[track_caller]
pub(crate) fn explore(model: impl Fn() + Clone + Send + Sync + 'static) {
    let line = Location::caller().line();
    if let Ok(replay) = env::var("REPLAY") {
        let (at, schedule) = replay.split_once(':').expect("REPLAY=<line>:<schedule>");
        if at == line.to_string() {
            run(ReplayScheduler::new_from_encoded(schedule), model);
        }
        return;
    }
    println!("the model of line {line}");
    let executions = env::var("EXECUTIONS").map_or(EXECUTIONS, |number| number.parse().unwrap());
    run(RandomScheduler::new_from_seed(1, executions), model.clone());
    run(PctScheduler::new_from_seed(2, 3, executions), model);
}

/// Returns three keys. The second key is in the shard of the first, and the third is in another shard. Under shuttle,
/// all limiters have the same hash seed.
pub(crate) fn keys() -> [u64; 3] {
    static KEYS: OnceLock<[u64; 3]> = OnceLock::new();
    *KEYS.get_or_init(|| {
        let alike = |alike| (1..).find(|other| in_one_shard(0, *other) == alike).unwrap();
        [0, alike(true), alike(false)]
    })
}

/// Returns whether the two keys are in one shard. If they are, a thread must wait for one key while the other is
/// locked.
pub(crate) fn in_one_shard(one: u64, other: u64) -> bool {
    /// A value that is read while a key is locked. It runs its function at the first read.
    struct Trap(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl std::fmt::Debug for Trap {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Trap")
        }
    }

    #[derive(Clone, Debug)]
    struct Probe(Arc<Trap>);

    impl Clock for Probe {
        fn now(&self) -> Nanos {
            let sprung = self.0.0.lock().unwrap().take();
            sprung.into_iter().for_each(|sprung| sprung());
            Nanos::ZERO
        }

        fn sleep_until(&self, _: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(std::future::pending())
        }
    }

    let came = Arc::new(AtomicUsize::new(0));
    let coming = came.clone();
    run(RandomScheduler::new_from_seed(3, 1), move || {
        let probe = Probe(Arc::new(Trap(Default::default())));
        let bucket = TokenBucket::new(Quota::per_hour(1));
        let limiter = RateLimiter::builder(bucket).clock(probe.clone()).build();
        let (others, coming) = (limiter.clone(), coming.clone());
        *probe.0.0.lock().unwrap() = Some(Box::new(move || {
            let past = Arc::new(AtomicUsize::new(0));
            let passing = past.clone();
            thread::spawn(move || {
                let _ = others.peek(&other);
                passing.store(1, Ordering::SeqCst);
            });
            (0..200).for_each(|_| thread::yield_now());
            coming.store(past.load(Ordering::SeqCst), Ordering::SeqCst);
        }));
        let _ = limiter.peek(&one);
    });
    came.load(Ordering::SeqCst) == 0
}
