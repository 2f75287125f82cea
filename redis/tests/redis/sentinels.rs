//! Stores that follow the sentinels: planned failovers under load, a master that is cut off, and sentinels that get the
//! news late.

use std::net::SocketAddr;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{interval, sleep};
use tower_throttle::Quota;
use tower_throttle::algorithm::FixedWindow;
use tower_throttle_redis::{RedisLimiter, RedisPermits, RedisStore, RedisStoreBuilder};

use crate::failover::Group;
use crate::proxy::{Fault, Proxy};
use crate::support::redis_server::RedisServer;

const MS: Duration = Duration::from_millis(1);
const LIMIT: u64 = 1_000_000;

type Limiter = RedisLimiter<FixedWindow>;

/// A builder can be passed through `catch_unwind`.
const _: fn() = || {
    fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
    is_unwind_safe::<RedisStoreBuilder>();
};

fn limiter(store: &RedisStore) -> Limiter {
    store.limiter("test", FixedWindow::new(Quota::per_day(LIMIT))).build().unwrap()
}

fn permits(store: &RedisStore) -> RedisPermits {
    store.permits("exports", 1).build().unwrap()
}

/// What a load of 200 calls per second has seen.
#[derive(Debug)]
struct Seen {
    calls: u64,
    failed: u64,
    /// The time in which the former master did not decide any more, and no sentinel named another.
    undecided: Duration,
    /// The units that were admitted and that no server knows any more.
    lost: u64,
    /// The time in which two servers have decided.
    both: Duration,
    /// The number of permits that were granted while another call held the only permit.
    held_twice: u64,
}

#[derive(Default)]
struct Load {
    stop: AtomicBool,
    calls: AtomicU64,
    failed: AtomicU64,
    admitted: AtomicU64,
    holders: AtomicU64,
    held_twice: AtomicU64,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    async fn check(&self, limiter: &Limiter) {
        let decided = limiter.check("a").await;
        self.calls.fetch_add(1, Ordering::Relaxed);
        match decided {
            Ok(decision) => self.admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed),
            Err(_) => self.failed.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Makes 200 calls per second, until the load ends.
    async fn check_often(self: Arc<Self>, limiter: Limiter) {
        let (mut ticks, mut calls) = (interval(5 * MS), Vec::new());
        while self.goes_on() {
            ticks.tick().await;
            let (load, limiter) = (Arc::clone(&self), limiter.clone());
            calls.push(tokio::spawn(async move { load.check(&limiter).await }));
        }
        for call in calls {
            call.await.unwrap();
        }
    }

    /// Holds the permit for 50 ms at a time, until the load ends.
    async fn hold(self: Arc<Self>, permits: RedisPermits) {
        while self.goes_on() {
            if let Ok(Ok(permit)) = permits.acquire_permit("a").await {
                if self.holders.fetch_add(1, Ordering::SeqCst) > 0 {
                    self.held_twice.fetch_add(1, Ordering::Relaxed);
                }
                sleep(50 * MS).await;
                self.holders.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            }
            sleep(5 * MS).await;
        }
    }

    /// Makes calls as a new process, again and again, until the load ends.
    async fn start_processes(self: Arc<Self>, build: impl Fn() -> RedisStoreBuilder + Send) {
        while self.goes_on() {
            if let Ok(store) = build().connect().await {
                self.check(&limiter(&store)).await;
                if let Ok(Ok(permit)) = permits(&store).try_acquire_permit("a").await {
                    if self.holders.fetch_add(1, Ordering::SeqCst) > 0 {
                        self.held_twice.fetch_add(1, Ordering::Relaxed);
                    }
                    sleep(50 * MS).await;
                    self.holders.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            }
            sleep(250 * MS).await;
        }
    }
}

/// A server, and when it was seen to write charges itself.
struct Watched<'a> {
    server: &'a RedisServer,
    charges: Option<u64>,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl<'a> Watched<'a> {
    fn new(server: &'a RedisServer) -> Self {
        Self { server, charges: None, first: None, last: None }
    }

    fn look(&mut self) {
        // A server that becomes a master, or a replica, closes connections.
        let Ok(charges) = self.server.try_calls_of("psetex") else { return };
        if self.charges.is_some_and(|known| charges > known) {
            self.first = self.first.or(Some(Instant::now()));
            self.last = Some(Instant::now());
        }
        self.charges = Some(charges);
    }
}

/// Makes 200 calls per second during a planned failover and the time that it takes until the former master is a
/// replica. Meanwhile, calls of two processes hold a permit one after another, and further processes start.
async fn fail_over_under_load(group: &Group) -> Seen {
    let urls = group.urls();
    let build = move || RedisStore::sentinel(&urls, "mymaster");
    let stores = [build().connect().await.unwrap(), build().connect().await.unwrap()];
    let load = Arc::new(Load::default());
    let mut tasks = vec![tokio::spawn(Arc::clone(&load).check_often(limiter(&stores[0])))];
    for store in stores.iter().cycle().take(4) {
        tasks.push(tokio::spawn(Arc::clone(&load).hold(permits(store))));
    }
    tasks.push(tokio::spawn(Arc::clone(&load).start_processes(build)));
    sleep(1_000 * MS).await;
    group.sentinels[0].call(&["SENTINEL", "FAILOVER", "mymaster"]).ok();
    let mut former = Watched::new(&group.master);
    let mut others: Vec<_> = group.replicas.iter().map(Watched::new).collect();
    let (start, mut named) = (Instant::now(), None);
    let address =
        |sentinel: &RedisServer| sentinel.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
    let before = address(&group.sentinels[0]);
    while start.elapsed() < 20_000 * MS {
        if named.is_none() && group.sentinels.iter().any(|sentinel| address(sentinel) != before) {
            named = Some(Instant::now());
        }
        former.look();
        others.iter_mut().for_each(Watched::look);
        sleep(10 * MS).await;
    }
    load.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    group.master.until_role("slave");
    let first = others.iter().find_map(|other| other.first).expect("a replica has taken over");
    let (named, last) = (named.expect("a replica is named"), former.last.unwrap_or(start));
    let limiter = limiter(&stores[1]);
    let left = loop {
        if let Ok(decision) = limiter.peek("a").await {
            break decision.remaining();
        }
        assert!(start.elapsed() < 40_000 * MS);
    };
    let seen = Seen {
        calls: load.calls.load(Ordering::Relaxed),
        failed: load.failed.load(Ordering::Relaxed),
        undecided: named.saturating_duration_since(last),
        lost: load.admitted.load(Ordering::Relaxed).saturating_sub(LIMIT - left),
        both: last.saturating_duration_since(first),
        held_twice: load.held_twice.load(Ordering::Relaxed),
    };
    println!("{seen:?}, the other decided after {:?}, the former until {:?}", first - start, last - start);
    assert!(seen.both < 1_500 * MS, "{seen:?}");
    // The circuit breaker, which a refusal opens, tries again after 400 ms.
    assert!(seen.calls > 4_000 && seen.failed <= 100 + seen.undecided.as_millis() as u64 / 5, "{seen:?}");
    seen
}

/// The sentinels and the replicas cannot reach the master any more, since they log in as the default user. The store
/// still can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_cut_off_and_refuses_to_write_is_left_once_there_is_another() {
    let group = Group::start();
    for server in group.replicas.iter().chain([&group.master]) {
        server
            .call(&["ACL", "SETUSER", "app", "on", ">secret", "allkeys", "allchannels", "allcommands"])
            .ok();
    }
    require_a_replica(&group.master);
    let like = ::redis::Client::open("redis://app:secret@127.0.0.1").unwrap();
    let sentinels = group.urls().map(|url| ::redis::Client::open(url).unwrap());
    let store = RedisStoreBuilder::from_sentinel_clients(sentinels, "mymaster", &like);
    let limiter = limiter(&store.connect().await.unwrap());
    let load = Arc::new(Load::default());
    let calls = tokio::spawn(Arc::clone(&load).check_often(limiter.clone()));
    sleep(100 * MS).await;
    assert_eq!(load.failed.load(Ordering::Relaxed), 0);
    let mut side = group.master.connect();
    side.call(&["AUTH", "app", "secret"]).ok();
    side.call(&["ACL", "SETUSER", "default", "off"]).ok();
    let start = Instant::now();
    for kind in ["replica", "pubsub", "normal"] {
        side.call(&["CLIENT", "KILL", "TYPE", kind, "USER", "default"]);
    }
    group.replicas[0].until_role("master");
    let replaced = start.elapsed();
    let mut used = 0;
    while used < 100 {
        sleep(50 * MS).await;
        assert!(start.elapsed() < 20_000 * MS, "{:?}", limiter.check("a").await);
        used = group.replicas[0].calls_of("psetex");
    }
    let took = start.elapsed();
    load.stop.store(true, Ordering::Relaxed);
    calls.await.unwrap();
    let failed = load.failed.load(Ordering::Relaxed);
    println!("replaced after {replaced:?}, a hundred calls there after {took:?}, {failed} failed");
    assert!(took < replaced + 5_000 * MS, "{replaced:?}, {took:?}, {failed} failed");
}

fn require_a_replica(server: &RedisServer) {
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]).ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes half a minute: .ci/nightly runs it"]
async fn a_planned_failover_is_followed_within_seconds() {
    let seen = fail_over_under_load(&Group::of(1)).await;
    // A second until the sentinels notice it, and another until they are asked.
    assert!(seen.failed <= 50 && seen.lost < 600, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes half a minute: .ci/nightly runs it"]
async fn a_planned_failover_of_a_master_that_requires_a_replica_loses_nothing() {
    let group = Group::of(1);
    require_a_replica(&group.master);
    let seen = fail_over_under_load(&group).await;
    assert_eq!((seen.lost, seen.held_twice), (0, 0), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes half a minute: .ci/nightly runs it"]
async fn a_planned_failover_between_three_servers_that_require_a_replica_fails_few_calls() {
    let group = Group::of(2);
    group.replicas.iter().chain([&group.master]).for_each(require_a_replica);
    let seen = fail_over_under_load(&group).await;
    assert!(seen.failed <= 50 && seen.lost < 400, "{seen:?}");
    assert_eq!(seen.held_twice, 0);
}

/// A server that answers like a sentinel, until it is dropped.
pub(crate) struct FakeSentinel {
    address: SocketAddr,
    says: Arc<Says>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Says {
    /// The epoch and the port of the master. The port is 0 if the sentinel knows no master. `None` if the sentinel does
    /// not answer.
    master: Mutex<Option<(u64, u16)>>,
    /// The numbers of connections and of questions.
    asked: [AtomicU64; 2],
}

impl FakeSentinel {
    pub(crate) async fn start(epoch: u64, master: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let says = Arc::new(Says::default());
        let task = tokio::spawn(answer_all(listener, Arc::clone(&says)));
        let sentinel = Self { address, says, task };
        sentinel.name(epoch, master);
        sentinel
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn name(&self, epoch: u64, master: &RedisServer) {
        self.name_port(epoch, master.port());
    }

    pub(crate) fn name_port(&self, epoch: u64, port: u16) {
        *self.says.master.lock().unwrap() = Some((epoch, port));
    }

    /// Lets the sentinel know no master.
    fn forget(&self) {
        self.name_port(0, 0);
    }

    fn hang(&self) {
        *self.says.master.lock().unwrap() = None;
    }
}

impl Drop for FakeSentinel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer_all(listener: TcpListener, says: Arc<Says>) {
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let says = Arc::clone(&says);
        says.asked[0].fetch_add(1, Ordering::Relaxed);
        connections.spawn(async move {
            let mut request = [0; 4_096];
            while let Ok(length @ 1..) = stream.read(&mut request).await {
                let Some((epoch, port)) = *says.master.lock().unwrap() else { continue };
                let mut replies = String::new();
                // Each command is an array, and no word of a command contains an asterisk.
                for command in String::from_utf8_lossy(&request[..length]).split('*').skip(1) {
                    let words = if port == 0 && command.contains("MASTER") {
                        replies.push_str("*-1\r\n");
                        continue;
                    } else if command.contains("GET-MASTER-ADDR-BY-NAME") {
                        vec!["127.0.0.1".to_owned(), port.to_string()]
                    } else if command.contains("MASTER") {
                        says.asked[1].fetch_add(1, Ordering::Relaxed);
                        // In the middle of a failover, this address is the former one.
                        ["ip", "10.0.0.1", "config-epoch", &epoch.to_string()].map(str::to_owned).into()
                    } else {
                        vec!["OK".to_owned()]
                    };
                    let texts: String =
                        words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
                    replies.push_str(&format!("*{}\r\n{texts}", words.len()));
                }
                // Writing may fail, because the client may have found a master by another sentinel. The kernel may
                // delay a second write.
                let _ = stream.write_all(replies.as_bytes()).await;
            }
        });
    }
}

/// Makes calls until the server decides them, for at most `limit`. Returns how long this took.
async fn until_decides(limiter: &Limiter, server: &RedisServer, limit: Duration) -> Duration {
    let (start, before) = (Instant::now(), server.calls_of("psetex"));
    while server.calls_of("psetex") == before {
        assert!(start.elapsed() < limit, "{:?}", limiter.check("a").await);
        let _ = limiter.check("a").await;
        sleep(5 * MS).await;
    }
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_sentinels_that_has_the_news_is_followed_though_both_servers_say_that_they_are_masters()
{
    let (former, new) = (RedisServer::start(), RedisServer::start());
    let mut sentinels = Vec::new();
    for _ in 0..3 {
        sentinels.push(FakeSentinel::start(4, &former).await);
    }
    let build = || {
        RedisStore::sentinel(sentinels.iter().map(FakeSentinel::url), "mymaster")
            .deadline(10_000 * MS)
            .connect()
    };
    let limiter = limiter(&build().await.unwrap());
    until_decides(&limiter, &former, 5_000 * MS).await;
    sentinels[2].name(5, &new);
    let took = until_decides(&limiter, &new, 5_000 * MS).await;
    println!("followed after {took:?}");
    let decided = former.calls_of("psetex");
    for _ in 0..10 {
        let store = build().await.unwrap();
        let _ = self::limiter(&store).check("a").await.unwrap();
    }
    assert_eq!(former.calls_of("psetex"), decided, "a new process does not begin with the former master");
    // Nor does a new connection, even if only the others answer.
    for hangs in [false, true] {
        if hangs {
            sentinels[2].hang();
        }
        new.call(&["CLIENT", "KILL", "TYPE", "normal"]);
        let start = Instant::now();
        while start.elapsed() < 1_500 * MS {
            let _ = limiter.check("a").await;
            sleep(20 * MS).await;
        }
        assert_eq!(former.calls_of("psetex"), decided);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_under_way_end_on_the_former_master_and_fail_in_no_case() {
    let (former, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(former.address()).await;
    let sentinel = FakeSentinel::start(0, &former).await;
    sentinel.name_port(0, proxy.port());
    let builder = RedisStore::sentinel([sentinel.url()], "mymaster").deadline(10_000 * MS);
    let limiter = limiter(&builder.connect().await.unwrap());
    let _ = limiter.check("a").await.unwrap();
    proxy.set(Fault::DelayReplies(3_000 * MS));
    let slow = tokio::spawn(limiter.check("slow"));
    sleep(100 * MS).await;
    sentinel.name(1, &new);
    let start = Instant::now();
    while new.calls_of("psetex") == 0 {
        assert!(start.elapsed() < 2_500 * MS);
        // The calls that still begin on the former master are slow as well.
        drop(tokio::spawn(limiter.check(&format!("b-{:?}", start.elapsed()))));
        sleep(20 * MS).await;
    }
    assert!(!slow.is_finished());
    assert!(slow.await.unwrap().unwrap().is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_hang_or_are_gone_change_nothing() {
    let server = RedisServer::start();
    let sentinels = [FakeSentinel::start(0, &server).await, FakeSentinel::start(0, &server).await];
    let urls = sentinels.each_ref().map(FakeSentinel::url);
    let limiter =
        limiter(&RedisStore::sentinel(urls, "mymaster").deadline(1_000 * MS).connect().await.unwrap());
    let _ = limiter.check("a").await.unwrap();
    let calls_on_new_connections = || async {
        for _ in 0..2 {
            server.call(&["CLIENT", "KILL", "TYPE", "normal"]);
            let killed = Instant::now();
            // A call that begins before the limiter has seen the end of its connections may fail.
            while limiter.check("a").await.is_err() {
                assert!(killed.elapsed() < 1_000 * MS, "a call has waited for a sentinel until its deadline");
                sleep(20 * MS).await;
            }
            for _ in 0..30 {
                let _ = limiter.check("a").await.unwrap();
                sleep(20 * MS).await;
            }
        }
    };
    sentinels.iter().for_each(FakeSentinel::hang);
    calls_on_new_connections().await;
    drop(sentinels);
    calls_on_new_connections().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_has_forgotten_the_master_does_not_outvote_those_that_are_down() {
    let server = RedisServer::start();
    let mut sentinels = Vec::new();
    for _ in 0..3 {
        sentinels.push(FakeSentinel::start(0, &server).await);
    }
    let urls = sentinels.iter().map(FakeSentinel::url);
    let builder = RedisStore::sentinel(urls, "mymaster").deadline(1_000 * MS);
    let limiter = limiter(&builder.connect().await.unwrap());
    let _ = limiter.check("a").await.unwrap();
    sentinels[0].forget();
    sentinels.truncate(1);
    server.call(&["CLIENT", "KILL", "TYPE", "normal"]);
    let killed = Instant::now();
    // A call that begins before the limiter has seen the end of its connections may fail.
    while let Err(error) = limiter.check("a").await {
        assert!(killed.elapsed() < 2_000 * MS, "{error}");
        sleep(20 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_a_master_takes_no_longer_than_the_connect_timeout() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.address()).await;
    let sentinel = FakeSentinel::start(0, &server).await;
    sentinel.name_port(0, proxy.port());
    // Both the sign-in and the question for the role take a second.
    proxy.set(Fault::DelayReplies(1_000 * MS));
    let builder = RedisStore::sentinel([sentinel.url()], "mymaster").connect_timeout(1_500 * MS);
    let start = Instant::now();
    let error = builder.connect().await.unwrap_err();
    assert!(error.to_string().contains("no connection within the `connect_timeout`"), "{error}");
    assert!(start.elapsed() < 1_900 * MS, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_asked_once_a_second_on_one_connection_and_not_while_idle() {
    let server = RedisServer::start();
    let sentinel = FakeSentinel::start(0, &server).await;
    let builder = RedisStore::sentinel([sentinel.url()], "mymaster").deadline(10_000 * MS);
    let limiter = limiter(&builder.connect().await.unwrap());
    let _ = limiter.check("a").await;
    sleep(1_500 * MS).await;
    let asked = || sentinel.says.asked.each_ref().map(|asked| asked.load(Ordering::Relaxed));
    let before = asked();
    sleep(2_000 * MS).await;
    assert_eq!(asked(), before, "idle");
    let start = Instant::now();
    while start.elapsed() < 2_500 * MS {
        let _ = limiter.check("a").await;
        sleep(5 * MS).await;
    }
    let after = asked();
    assert_eq!(after[0], before[0], "the connection was kept");
    assert!((2..=3).contains(&(after[1] - before[1])), "{before:?} {after:?}");
}
