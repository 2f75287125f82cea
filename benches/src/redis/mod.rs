//! Measurements of limits in Redis: decisions per second, compared with `PING` commands of the same client to the same
//! server.
//!
//! A server is started for the measurements, on a free port. The client has one thread. The server and the client have
//! a core each. The contestants run alternately, so the ratios change little if the machine is busy with something
//! else.

mod alone;
mod counted;
mod effort;
mod peers;

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response};
use core_affinity::CoreId;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_throttle::algorithm::{FixedWindow, SlidingCounter, SlidingWindow, StoredAlgorithm, TokenBucket};
use tower_throttle::key::{Global, from_fn};
use tower_throttle::{Quota, RateLimitLayer};
use tower_throttle_redis::{RedisLimiter, RedisStore};

pub use self::counted::run as run_counted;
use self::effort::{Effort, Efforts, observed};
use self::peers::{PEERS, Peers, THROTTLE_KIT};
use crate::interleave::{Contestant, Rounds, median};
use crate::redis_server::RedisServer;
use crate::table;

const CALLERS: usize = 64;
const KEYS: usize = 10_000;
/// The number of calls in a run. A run calls each key once.
const CALLS: usize = KEYS;
const PING: &str = "PING";
/// A script with only the commands that every decision needs.
const BARE: &str = "a script of TIME, GET and PSETEX";
/// A quota that admits all calls. The state of a key is kept for a minute after a call, as by the peers, so that most
/// calls find a state.
const PLENTY: Quota = Quota::per_hour(60).burst(1_000_000);
/// The same for windows.
const PLENTY_A_MINUTE: Quota = Quota::per_minute(1_000_000);

async fn hello(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

/// The values that the contestants share.
#[derive(Clone)]
struct Setting {
    runtime: Rc<Runtime>,
    keys: Rc<[String]>,
    store: RedisStore,
    connection: MultiplexedConnection,
}

/// Measures only one caller: first with the server on a core of its own, then with both on one core.
pub fn run_alone(rounds: usize, with_peers: bool) {
    if with_peers {
        peers::build();
    }
    for place in [Place::OwnCore, Place::ClientsCore] {
        let (server, setting) = start(place);
        let peers = with_peers.then(|| Peers::start(&server.url()));
        alone::run(&setting, &server, place, peers.as_ref(), rounds);
    }
}

/// The cores of the machine. They must be read before this thread is restricted to one of them.
pub static CORES: LazyLock<Vec<CoreId>> = LazyLock::new(|| core_affinity::get_core_ids().unwrap_or_default());

/// The core of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Another core than the client's, if the machine has several.
    OwnCore,
    ClientsCore,
}

/// Starts a server, and connects to it. Without fixed cores, the kernel would move the server to the client's core
/// whenever other processes are busy, and `PING` would take a fifth of its time.
fn start(place: Place) -> (RedisServer, Setting) {
    let [servers, clients] = match place {
        Place::OwnCore => [CORES.first(), CORES.last()],
        Place::ClientsCore => [CORES.last(); 2],
    };
    let set = |core: Option<&CoreId>| core.is_some_and(|core| core_affinity::set_for_current(*core));
    // The process of the server inherits the core of this thread.
    set(servers);
    let server = RedisServer::start();
    set(clients);
    let setting = Setting::new(&server.url());
    (server, setting)
}

pub fn run(rounds: usize, with_peers: bool) {
    if with_peers {
        peers::build();
    }
    let (server, setting) = start(Place::OwnCore);
    let peers = with_peers.then(|| Peers::start(&server.url()));
    let trips = Rc::new(Cell::new((0, 0)));
    let mut contestants = vec![
        setting.clone().ping(),
        setting.clone().bare_script(),
        setting.limiter("token bucket", TokenBucket::new(PLENTY)),
        setting.limiter("fixed window", FixedWindow::new(PLENTY_A_MINUTE)),
        setting.limiter("sliding counter", SlidingCounter::new(PLENTY_A_MINUTE)),
        setting.limiter("sliding window", SlidingWindow::new(PLENTY_A_MINUTE)),
        setting.layer("token bucket, through the layer"),
        setting.joined("token bucket and fixed window, joined layers"),
        setting.one_key("token bucket, one key", &trips),
        setting.throttle_kit(THROTTLE_KIT, &server.url(), setting.keys.clone()),
        setting.throttle_kit(&format!("{THROTTLE_KIT}, one key"), &server.url(), ["one".to_owned()].into()),
    ];
    let own = contestants.len();
    for (peer, name) in PEERS {
        contestants.extend(peers.as_ref().map(|peers| peers.contestant(name.to_owned(), peer, "keys")));
        contestants
            .extend(peers.as_ref().map(|peers| peers.contestant(format!("{name}, one key"), peer, "one")));
    }
    let names: Vec<_> = contestants.iter().map(|contestant| contestant.name.clone()).collect();
    let efforts: Vec<_> = names.iter().map(|_| Rc::default()).collect();
    let contestants = contestants.into_iter().zip(&efforts).enumerate().map(|(at, (contestant, efforts))| {
        let peers = peers.as_ref().filter(|_| at >= own).map(Peers::pid);
        observed(contestant, efforts, server.pid(), peers)
    });
    let rounds_of_64 = Rounds::of(contestants.collect(), rounds);
    let row = |(name, efforts): (&String, &Efforts)| {
        let effort = |of: fn(&Effort) -> f64| {
            let effort = median(efforts.borrow().iter().map(of)) / CALLS as f64;
            if effort.is_nan() { String::new() } else { format!("{effort:.2}") }
        };
        vec![
            name.clone(),
            format!("{:.0}", CALLS as f64 / rounds_of_64.median(name) / 1e3),
            table::ratio(rounds_of_64.ratio(PING, name)),
            table::ratio(rounds_of_64.ratio(BARE, name)),
            effort(|effort| effort.client),
            effort(|effort| effort.allocations.map_or(f64::NAN, |count| count as f64)),
            effort(|effort| effort.server),
        ]
    };
    let rows: Vec<_> = names.iter().zip(&efforts).map(row).collect();
    let title =
        format!("{CALLERS} callers on {KEYS} keys in Redis: decisions per second, and effort per decision");
    let head =
        ["", "thousands", "to PING", "to a bare script", "client CPU us", "allocations", "server CPU us"];
    table::print(&title, &head, &rows);
    let (sent, decided) = trips.get();
    println!("\ntrips per decision on one key: {:.3}", sent as f64 / decided as f64);
    drop((peers, setting, server));
    run_alone(rounds, with_peers);
}

impl Setting {
    fn new(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Rc::new(runtime.expect("a runtime"));
        // The deadline is long, so that a busy machine does not cause an error.
        let store = RedisStore::builder(url).deadline(Duration::from_secs(10));
        let store = runtime.block_on(store.connect()).expect("the server answers");
        let client = redis::Client::open(url).expect("the URL is valid");
        let connection = runtime.block_on(client.get_multiplexed_async_connection());
        let keys = (0..KEYS).map(|number| format!("user-{number}")).collect();
        Self { runtime, keys, store, connection: connection.expect("the server answers") }
    }

    fn build<A: StoredAlgorithm>(&self, name: &str, algorithm: A) -> RedisLimiter<A> {
        let name = name.replace([' ', ','], "-");
        self.store.limiter(&name, algorithm).build().expect("a limiter")
    }

    /// Makes all calls, by several callers at the same time, and returns the time until the last call ends.
    fn time<F>(&self, call: impl Fn(usize) -> F + Clone + 'static) -> Duration
    where
        F: Future<Output = ()> + 'static,
    {
        let tasks = LocalSet::new();
        for caller in 0..CALLERS {
            let call = call.clone();
            tasks.spawn_local(async move {
                for number in (caller..CALLS).step_by(CALLERS) {
                    call(number).await;
                }
            });
        }
        let start = Instant::now();
        self.runtime.block_on(tasks);
        start.elapsed()
    }

    fn ping(self) -> Contestant<'static> {
        Contestant::new(PING, move || {
            let connection = self.connection.clone();
            self.time(move |_| ping(connection.clone()))
        })
    }

    fn bare_script(self) -> Contestant<'static> {
        let script = Rc::new(bare());
        Contestant::new(BARE, move || {
            let (connection, keys) = (self.connection.clone(), Rc::clone(&self.keys));
            let script = Rc::clone(&script);
            self.time(move |number| {
                let key = format!("bare:{}", keys[number % KEYS]);
                run_bare(connection.clone(), Rc::clone(&script), key)
            })
        })
    }

    fn limiter<A: StoredAlgorithm>(&self, name: &str, algorithm: A) -> Contestant<'static> {
        let (setting, limiter) = (self.clone(), self.build(name, algorithm));
        Contestant::new(name, move || {
            let (keys, limiter) = (Rc::clone(&setting.keys), limiter.clone());
            setting.time(move |number| check(limiter.check(&*keys[number % KEYS])))
        })
    }

    fn layer(&self, name: &str) -> Contestant<'static> {
        let by_path = from_fn(|request: &Request<Body>| Some(request.uri().path().to_owned()));
        let layer = RateLimitLayer::with_limiter(by_path, self.build(name, TokenBucket::new(PLENTY)));
        self.requests(name, layer.layer(service_fn(hello)))
    }

    /// Creates a contestant that calls `service` with one path per key.
    fn requests<S, B>(&self, name: &str, service: S) -> Contestant<'static>
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + 'static,
        S::Future: 'static,
    {
        let setting = self.clone();
        Contestant::new(name, move || {
            let (keys, service) = (Rc::clone(&setting.keys), service.clone());
            setting.time(move |number| {
                let request = Request::get(format!("/{}", keys[number % KEYS])).body(Body::empty());
                let response = service.clone().oneshot(request.expect("a request"));
                async move { assert_eq!(response.await.expect("a response").status(), 200) }
            })
        })
    }

    /// Creates a contestant with two joined layers: one limits each path, and the other limits all requests together.
    fn joined(&self, name: &str) -> Contestant<'static> {
        let by_path = from_fn(|request: &Request<Body>| Some(request.uri().path().to_owned()));
        let all = self.build("all", FixedWindow::new(PLENTY_A_MINUTE));
        let layer = RateLimitLayer::with_limiter(by_path, self.build(name, TokenBucket::new(PLENTY)))
            .and(RateLimitLayer::with_limiter(Global, all));
        self.requests(name, layer.layer(service_fn(hello)))
    }

    /// Creates a contestant that makes all calls with one key, and adds the numbers of trips and decisions to `trips`.
    fn one_key(&self, name: &str, trips: &Rc<Cell<(u64, u64)>>) -> Contestant<'static> {
        let (setting, trips) = (self.clone(), Rc::clone(trips));
        let limiter = self.build(name, TokenBucket::new(PLENTY));
        Contestant::new(name, move || {
            let (limiter, before) = (limiter.clone(), setting.store.stats().trips);
            let time = setting.time(move |_| check(limiter.check("one")));
            let (sent, decided) = trips.get();
            trips.set((sent + setting.store.stats().trips - before, decided + CALLS as u64));
            time
        })
    }
}

async fn ping(mut connection: MultiplexedConnection) {
    let answered = redis::cmd("PING").query_async::<String>(&mut connection).await;
    assert_eq!(answered.as_deref(), Ok("PONG"));
}

fn bare() -> redis::Script {
    redis::Script::new(
        "redis.call('TIME') redis.call('GET', KEYS[1]) redis.call('PSETEX', KEYS[1], 60000, ARGV[1]) return 1",
    )
}

async fn run_bare(mut connection: MultiplexedConnection, script: Rc<redis::Script>, key: String) {
    let mut call = script.key(key);
    assert_eq!(call.arg("1 1700000000000000").invoke_async::<i64>(&mut connection).await, Ok(1));
}

async fn check<E: std::fmt::Debug>(call: impl Future<Output = Result<tower_throttle::Decision, E>>) {
    assert!(call.await.expect("the server answers").is_allowed());
}
