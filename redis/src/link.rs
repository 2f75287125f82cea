//! The part of a store that all its limiters share for one server: the connection, the server's time, the deadline and
//! the circuit breaker. A store in a cluster has a link to each node.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use super::answer::{Answer, Verdict};
use super::breaker::Breaker;
use super::connection::{BoxFuture, CallError, Command, Connection, OnMessage, Reply};
use super::decide_script::KeySteps;
use super::error::{RedisError, RedisErrorKind};
use super::packed::Packed;
use super::scripts::{Script, TimeSource};
use super::server_time::ServerTime;
use tower_throttle::clock::{AnyClock, Nanos};
use tower_throttle::stats::StoreStats;
use tower_throttle::store_support::random_u64;

pub(super) struct Link {
    connection: Box<dyn Connection>,
    /// The clock of this process, for deadlines. States contain only the server's time.
    clock: AnyClock,
    pub(super) deadline: Duration,
    time: ServerTime,
    pub(super) breaker: Breaker,
    pub(super) source: TimeSource,
    read: Script,
    swap: Script,
    pub(super) swap_in_turn: Script,
    /// A random number that identifies this process among the processes that change a key.
    pub(super) process: u64,
    /// The scripts of joint calls, by the limits of their keys. A script is `None` if it would need too many variables.
    joint: RwLock<HashMap<Vec<KeySteps>, Option<Arc<Script>>>>,
    trips: AtomicU64,
    late: AtomicU64,
    /// The number after that of the last connection whose end was counted as a failure.
    ended: AtomicU64,
    /// The time that tests pass to scripts as an argument, in microseconds.
    #[cfg(test)]
    pub(super) passed: AtomicU64,
}

/// The keys of a trip, and whether they are requested with `ASKING`. Only a joint call has several keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys<'a> {
    pub(super) texts: &'a [&'a str],
    /// `true` if the slot of the keys is being migrated to the node that is asked.
    pub(super) is_asking: bool,
}

/// A change of a key's value from `before` to `after`.
#[derive(Clone, Debug)]
pub(super) struct Swap<'a> {
    pub(super) before: &'a str,
    /// The new value. If it is empty, the key is deleted.
    pub(super) after: &'a str,
    /// The time to live of the key, in milliseconds.
    pub(super) ttl: u64,
}

impl Link {
    /// Creates a link. The links of a store have clones of one clock, so that their readings can be compared.
    pub(super) fn new(
        connection: Box<dyn Connection>,
        clock: AnyClock,
        deadline: Duration,
        source: TimeSource,
    ) -> Self {
        Self {
            connection,
            clock,
            deadline,
            time: ServerTime::default(),
            breaker: Breaker::default(),
            source,
            read: Script::read(source),
            swap: Script::swap(source),
            swap_in_turn: Script::swap_in_turn(source),
            process: random_u64(),
            joint: RwLock::default(),
            trips: AtomicU64::default(),
            late: AtomicU64::default(),
            ended: AtomicU64::default(),
            #[cfg(test)]
            passed: AtomicU64::default(),
        }
    }

    /// Returns the script that decides joint calls on keys with these limits. Returns `None` if that script would need
    /// too many variables.
    pub(super) fn joint_script(&self, keys: Vec<KeySteps>) -> Option<Arc<Script>> {
        if let Some(known) = self.joint.read().unwrap_or_else(PoisonError::into_inner).get(&keys) {
            return known.clone();
        }
        let script = Script::decide(self.source, &keys).map(Arc::new);
        self.joint.write().unwrap_or_else(PoisonError::into_inner).entry(keys).or_insert(script).clone()
    }

    pub(super) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns the deadline of a call that begins now.
    pub(super) fn deadline(&self) -> Nanos {
        self.now().saturating_add(Nanos::from(self.deadline).0)
    }

    pub(super) fn sleep_until(&self, time: Nanos) -> tower_throttle::clock::Sleep {
        self.clock.sleep_until(time)
    }

    /// Awaits `future` until `deadline`. Returns `None` if `future` is not ready by then.
    pub(super) async fn until<F: Future>(&self, deadline: Nanos, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep_until(deadline));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Counts a call that failed at its deadline.
    pub(super) fn count_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn deadline_error(&self) -> RedisError {
        // If there is no connection, the error of the last attempt to connect explains the failure better.
        let late = || RedisError::new(RedisErrorKind::Late, format!("after {:?}", self.deadline));
        self.connection.problem().unwrap_or_else(late)
    }

    pub(super) fn stats(&self) -> StoreStats {
        let mut stats = StoreStats::default();
        stats.trips = self.trips.load(Ordering::Relaxed);
        stats.late = self.late.load(Ordering::Relaxed);
        stats.circuit_openings = self.breaker.opened();
        stats.is_circuit_open = self.breaker.is_open();
        stats
    }

    pub(super) async fn read(&self, keys: Keys<'_>, not_after: Nanos) -> Result<Answer, RedisError> {
        self.eval(&self.read, keys, not_after, |_, _| {}).await
    }

    /// Executes a script that reads a key. The reply contains the server's time. From then on, this process sends each
    /// deadline in the server's time, so the server can detect calls that arrive after their deadline.
    pub(super) async fn verify(&self, key: &str, timeout: Duration) -> Result<(), RedisError> {
        let limit = self.now().saturating_add(Nanos::from(timeout).0);
        match self.until(limit, self.read(Keys { texts: &[key], is_asking: false }, limit)).await {
            Some(Ok(answer)) if answer.verdict == Verdict::Done => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok(_)) => Err(RedisError::new(RedisErrorKind::Late, "while connecting")),
            None => {
                let late = || RedisError::new(RedisErrorKind::Late, "while connecting");
                Err(self.connection.problem().unwrap_or_else(late))
            }
        }
    }

    /// Makes all `swaps`, one for each key. Changes nothing if another process has changed the value of any of the
    /// keys.
    pub(super) async fn swap(
        &self,
        keys: Keys<'_>,
        not_after: Nanos,
        swaps: &[Swap<'_>],
    ) -> Result<Answer, RedisError> {
        self.eval(&self.swap, keys, not_after, |command, _| {
            for Swap { before, after, ttl } in swaps {
                command.word(before).word(after).number(*ttl);
            }
        })
        .await
    }

    /// Executes a script, even if the breaker is open. Records the success or failure of the script in the breaker. The
    /// caller must bound the time for which it waits for the result.
    ///
    /// The last argument of the script begins with the deadline. `arguments` may add more to it, and adds the other
    /// arguments to the command.
    pub(super) async fn eval(
        &self,
        script: &Script,
        keys: Keys<'_>,
        not_after: Nanos,
        arguments: impl Fn(&mut Command, &mut Packed),
    ) -> Result<Answer, RedisError> {
        let command = |name: &str, script: &str| {
            let mut command = Command::new(keys.is_asking);
            command.word(name).word(script).number(keys.texts.len() as u64);
            keys.texts.iter().for_each(|text| {
                command.word(text);
            });
            let mut last = Packed::default();
            last.number(self.server_deadline(not_after));
            arguments(&mut command, &mut last);
            command.word(last);
            command
        };
        let (connection, sent) = (self.connection.number(), self.now());
        self.trips.fetch_add(1, Ordering::Relaxed);
        let mut reply = self.connection.call(command("EVALSHA", script.sha())).await;
        if let Err(CallError::NoScript) = reply {
            // The server does not have the script, for example because the server has restarted. `EVAL` sends the
            // source of the script, which the server then keeps.
            self.trips.fetch_add(1, Ordering::Relaxed);
            reply = self.connection.call(command("EVAL", script.text())).await;
        }
        let text = match reply {
            Ok(Reply::Text(text)) => text,
            Ok(Reply::Other(other)) => {
                return Err(self.failed(RedisError::new(RedisErrorKind::Server, other), connection));
            }
            Err(CallError::Failed(error)) => return Err(self.failed(error, connection)),
            // A command that was not sent at first was sent on another connection.
            Err(CallError::FailedOn(connection, error)) => return Err(self.failed(error, connection)),
            // The end of a connection is one failure, however many trips it fails.
            Err(CallError::Ended(connection, error)) => {
                let is_counted = self.ended.fetch_max(connection + 1, Ordering::Relaxed) > connection;
                return Err(if is_counted { error } else { self.failed(error, connection) });
            }
            Err(CallError::NoScript) => {
                let error = RedisError::new(RedisErrorKind::Server, "NOSCRIPT in reply to EVAL");
                return Err(self.failed(error, connection));
            }
        };
        if text.starts_with(b"E") {
            self.breaker.replied(self.now());
            return Err(RedisError::new(RedisErrorKind::Foreign, "the value is empty"));
        }
        let answer = Answer::parse(text).map_err(|text| {
            let shown: String = String::from_utf8_lossy(&text).chars().take(60).collect();
            RedisError::new(RedisErrorKind::Foreign, shown)
        })?;
        let received = self.now();
        self.time.observe(answer.now.0 / 1_000, sent.0 / 1_000, received.0 / 1_000);
        self.breaker.replied(received);
        Ok(answer)
    }

    /// Passes the messages on a channel to `on_message`, until the connection for messages ends.
    pub(super) fn listen(&self, channel: String, on_message: OnMessage) -> BoxFuture<()> {
        self.connection.listen(channel, on_message)
    }

    /// Returns the number of the present connection.
    pub(super) fn connection(&self) -> u64 {
        self.connection.number()
    }

    /// Records the failure of a trip that began on the connection with the number `connection`. Drops that connection
    /// if the breaker is open and a new connection may help.
    pub(super) fn failed(&self, error: RedisError, connection: u64) -> RedisError {
        if matches!(error.kind(), RedisErrorKind::Moved | RedisErrorKind::Unserved) {
            // The server works: the error is about the slot of the key.
            self.breaker.replied(self.now());
            return error;
        }
        let is_open = self.breaker.failed(&error, self.now());
        if is_open && error.kind().needs_connection() {
            self.connection.renew(connection);
        }
        error
    }

    /// Records that a trip on the connection with the number `connection` had no reply at its deadline. Drops that
    /// connection if the breaker is open. The missing reply counts as an outage, whatever caused it, because the next
    /// trip would probably fail as well.
    pub(super) fn failed_late(&self, connection: u64) -> RedisError {
        let error = self.deadline_error();
        if self.breaker.record_outage(&error, self.now()) {
            self.connection.renew(connection);
        }
        error
    }

    /// Drops the connection with the number `connection`, on which a trip had no reply at its deadline, if the
    /// connection was silent for long. Only the next trips find out whether the server or the path is at fault.
    pub(super) fn end_silent(&self, connection: u64) {
        if self.connection.is_silent() {
            self.connection.renew(connection);
        }
    }

    /// Returns a lower bound of the server's time, in microseconds, when this process's clock reads `not_after`.
    /// Returns a time in the distant future if the server's time is not known yet.
    fn server_deadline(&self, not_after: Nanos) -> u64 {
        #[cfg(test)]
        if self.source == TimeSource::Passed {
            return self.passed.load(Ordering::SeqCst);
        }
        self.time.at(not_after.0 / 1_000).unwrap_or(1 << 53)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
