//! A server in this process, for simulations in virtual time.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::connection::{BoxFuture, CallError, Command, Connection, Reply, bytes_of};
use super::error::RedisError;
use super::frame::Frame;
use super::lease::Leased;
use super::script::{TimeSource, Unpacked};
use super::states::{Action, Operation, Plan};
use super::store::{RedisStore, RedisStoreBuilder};
use tower_throttle::Quota;
use tower_throttle::algorithm::{StoredAlgorithm, TokenBucket};
use tower_throttle::clock::Nanos;

/// A Redis server in this process, for simulations and tests in tokio's paused time.
///
/// The server executes the scripts of [leases](super::RedisLeases) and of token buckets. The states of other algorithms
/// are read and written by scripts, so a call of these algorithms makes at least two trips if it is admitted. The
/// server keeps all keys for ever, and its clock is tokio's. Processes that change one key take no turns. Layers that
/// are [joined](tower_throttle::middleware::RateLimitLayer::and) are not supported: their calls on several keys fail
/// with an error that says so. [Permits](super::RedisPermits) are not supported either: their calls fail with
/// [`RedisErrorKind::Foreign`](super::RedisErrorKind::Foreign).
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::Quota;
/// use tower_throttle::algorithm::TokenBucket;
/// use tower_throttle_redis::RedisInProcess;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = RedisInProcess::new(Duration::from_millis(1));
/// let bucket = TokenBucket::new(Quota::per_second(100));
/// for machine in [server.machine(), server.machine()] {
///     let limiter = machine.connect().limiter("api", bucket.clone()).lease(10).build()?;
///     assert!(limiter.check("user:42").await?.is_allowed());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisInProcess {
    server: Arc<Inner>,
    /// `true` if the commands of this machine are lost.
    is_cut_off: Arc<AtomicBool>,
}

struct Inner {
    round_trip: Duration,
    started: Instant,
    keys: Mutex<Keys>,
    is_running: watch::Sender<bool>,
}

#[derive(Default)]
struct Keys {
    values: HashMap<String, Vec<u8>>,
    leased: HashMap<String, Leased>,
    trips: u64,
}

impl RedisInProcess {
    /// Creates a server whose replies take `round_trip`.
    #[must_use]
    pub fn new(round_trip: Duration) -> Self {
        let (is_running, _) = watch::channel(true);
        let inner = Inner { round_trip, started: Instant::now(), keys: Mutex::default(), is_running };
        Self { server: Arc::new(inner), is_cut_off: Arc::default() }
    }

    /// Returns another machine's access to the same server.
    #[must_use]
    pub fn machine(&self) -> Self {
        Self { server: Arc::clone(&self.server), is_cut_off: Arc::default() }
    }

    /// Cuts this machine off: all further commands of its stores are lost, as if the machine had failed.
    pub fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::SeqCst);
    }

    /// Returns a new store on this server. Each such store acts as the store of another process.
    #[must_use]
    pub fn connect(&self) -> RedisStore {
        let store = RedisStoreBuilder::over(self.clone(), TimeSource::Server).connect_lazily();
        store.expect("a server in this process has no URL that could be wrong")
    }

    /// Stops the server, or lets it run again. A stopped server receives commands, and executes them once it runs
    /// again.
    pub fn set_running(&self, is_running: bool) {
        self.server.is_running.send_replace(is_running);
    }

    /// Returns the number of commands that the server has executed.
    #[must_use]
    pub fn trips(&self) -> u64 {
        self.keys().trips
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.server.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn execute(&self, command: &[String]) -> Result<Reply, CallError> {
        let error = |text: &str| Err(CallError::Failed(RedisError::from_reply(text)));
        let [_, _, keys, key, arguments @ .., last] = command else { return error("ERR arguments") };
        let arguments = match (keys.as_str(), arguments) {
            ("1", _) => arguments,
            // A change in turn. In this server, no process takes a turn, so the key and the two arguments of the turn
            // are left out.
            ("2", [turn, arguments @ .., _, _]) if turn.strip_prefix(&**key) == Some(":turn:") => arguments,
            _ => return error("ERR joined calls are not supported by a server in this process"),
        };
        let elapsed = u64::try_from(self.server.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let now = elapsed.saturating_add(1_700_000_000_000_000);
        let reply = |verdict: u8, value: &[u8]| {
            Ok(Reply::Text([&[verdict], &(now as f64).to_le_bytes()[..], value].concat()))
        };
        let mut keys = self.keys();
        let keys = &mut *keys;
        keys.trips += 1;
        let mut last = Unpacked::from(last.as_str());
        let Some(deadline) = last.next() else { return error("ERR arguments") };
        if now > deadline {
            return reply(b'L', b"");
        }
        let value = keys.values.get(key).map_or(&b""[..], Vec::as_slice);
        match arguments {
            [] if last.is_empty() => reply(b'D', value),
            // Calls of token buckets are decided here. The verdict `O` makes the limiters of other algorithms write the
            // state.
            [] => match decide_bucket(last, value, now) {
                Some(after) => {
                    let found = reply(b'D', value);
                    keys.values.insert(key.clone(), after);
                    found
                }
                None => reply(b'O', value),
            },
            [before, _, _] if bytes_of(before) != value => reply(b'O', value),
            [_, after, _] if after.is_empty() => {
                keys.values.remove(key);
                reply(b'D', b"")
            }
            [_, after, _] => {
                keys.values.insert(key.clone(), bytes_of(after));
                reply(b'D', b"")
            }
            _ => match keys.leased.entry(key.clone()).or_default().execute(arguments, now) {
                Some(found) => reply(b'D', found.as_bytes()),
                None => reply(b'O', b"another prefix"),
            },
        }
    }
}

/// Decides calls as the script of a token bucket does, and returns the new value. Returns `None` if the frame is not
/// that of a token bucket, or if the value has another frame.
fn decide_bucket(mut packed: Unpacked, value: &[u8], now: u64) -> Option<Vec<u8>> {
    let frame = Frame { head: packed.eight()?, tail: packed.string()? };
    let unit = frame.unit();
    let bucket = TokenBucket::new(Quota::per_second(1)).with_unit(unit)?;
    if !value.is_empty() && frame.strip(value).is_none_or(|numbers| numbers.len() != 16) {
        return None;
    }
    for step in bucket.script()?.steps {
        for argument in &step.arguments[..step.kind.argument_count()] {
            let packed = packed.next();
            debug_assert_eq!(packed, Some(*argument), "the arguments are those of the bucket {unit:?}");
            packed.filter(|packed| packed == argument)?;
        }
    }
    let plan = Plan::new(bucket, TimeSource::Server, false).ok().filter(|plan| *plan.frame() == frame)?;
    let now = Nanos(now * 1_000);
    let mut states = plan.decode(value, now).ok()?;
    for cost in packed {
        let _ = states.apply(&plan, &Operation::new(Action::Check, cost, None), now);
    }
    Some(states.write(&plan, now).unwrap_or_default())
}

impl Connection for RedisInProcess {
    fn call(&self, command: Command) -> BoxFuture<Result<Reply, CallError>> {
        let server = self.clone();
        let command = command.words();
        Box::pin(async move {
            sleep(server.server.round_trip / 2).await;
            // The sender lives in `server`, so this does not fail.
            let _ = server.server.is_running.subscribe().wait_for(|is_running| *is_running).await;
            if server.is_cut_off.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            let reply = server.execute(&command);
            sleep(server.server.round_trip - server.server.round_trip / 2).await;
            reply
        })
    }

    fn problem(&self) -> Option<RedisError> {
        None
    }

    fn number(&self) -> u64 {
        0
    }

    fn renew(&self, _: u64) {}
}

impl fmt::Debug for RedisInProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisInProcess").field("round_trip", &self.server.round_trip).finish_non_exhaustive()
    }
}
