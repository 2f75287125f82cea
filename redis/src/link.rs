//! The part of a store that all its limiters share for one server: the connection, the server's time, the deadline and
//! the circuit breaker. A store in a cluster has a link to each node.
//!
//! The circuit breaker opens after failures. While it is open, calls are not sent to the server: they fail, or the
//! fallback decides them. After each pause, the next call begins a *trial*, which tries the server again. That call and
//! those that arrive during the trial wait for its result. If the server failed to write, the trial is the trip of the
//! call itself. Otherwise the trial is a script of its own, in a task.
//!
//! Processes that change one key by reading and writing its state take turns. Without turns, a process whose trips take
//! longer than those of the other processes might never be the first to write, and its calls would be late. So a
//! process that was not the first takes the next turn, unless another process has already taken it. A turn is a key of
//! its own, which expires.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Notify, oneshot};

use super::connection::{BoxFuture, CallError, Command, Connection, Listened, Reply};
use super::error::{RedisError, RedisErrorKind};
use super::frame::shown;
use super::script::{KeySteps, Packed, Script, TimeSource};
use tower_throttle::algorithm::StateReader;
use tower_throttle::clock::{AnyClock, Nanos};
use tower_throttle::stats::StoreStats;
use tower_throttle::store_support::{Recurrence, random_u64};

/// The number of failed trips in a row that opens the breaker, if the last of these trips was late or had no
/// connection. Any other outage opens the breaker at once.
const MAX_LATE: u64 = 5;
const MILLISECOND: u64 = 1_000_000;
/// The pause before the first trial, and the maximum pause between two trials. The pause doubles after each trial that
/// fails.
const PAUSES: (u64, u64) = (50 * MILLISECOND, 400 * MILLISECOND);
/// The maximum time of a turn, in milliseconds. This time is short, because if a process ends during its turn, no other
/// process can write until the turn expires.
const MAX_TURN: u64 = 100;
/// If a trip ends more than this time after its deadline, its caller was not polled in time. The unit is nanoseconds.
const POLLED_LATE: u64 = 10_000_000;
/// The number of bytes of a reply before the value.
const REPLY_HEAD: usize = 9;

/// A link to a server.
pub(super) struct Link {
    connection: Box<dyn Connection>,
    /// The clock of this process, for deadlines. States contain only the server's time.
    clock: AnyClock,
    deadline: Duration,
    time: ServerTime,
    breaker: Breaker,
    source: TimeSource,
    read: Script,
    swap: Script,
    swap_in_turn: Script,
    /// The script of a trial, which uses no key.
    ping: Script,
    connect: Script,
    /// A random number that identifies this process among the processes that change a key.
    process: u64,
    /// The scripts of joint calls, by the limits of their keys. A script is `None` if it would need too many variables.
    joint: RwLock<HashMap<Vec<KeySteps>, Option<Arc<Script>>>>,
    trips: AtomicU64,
    late: AtomicU64,
    /// The number after that of the last connection whose end was counted as a failure.
    ended: AtomicU64,
}

/// The link to the node of a trip, and how the trip came to that node.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) link: Arc<Link>,
    /// `true` if the trip came to the node because of the reply `ASK`: the slot of the key is still being migrated to
    /// the node. Commands are then sent with `ASKING`.
    pub(super) is_asking: bool,
    /// The number of replies in this trip that said that another node has the key.
    pub(super) redirects: u32,
}

/// The reply of a script: the server's time, and the value of the key, which is empty if there is none. The reply to a
/// joint call contains the values of all keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The script has run to its end.
    Done(Nanos, Vec<u8>),
    /// The script has changed nothing, because it cannot process the value that it found. The reply contains that
    /// value.
    Other(Nanos, Vec<u8>),
    /// The script has changed nothing, because the deadline of a call had passed.
    Late,
}

/// A change of a key's value from `before` to `after`.
#[derive(Clone, Debug)]
pub(super) struct Swap<'a> {
    before: &'a [u8],
    /// The new value. If it is empty, the key is deleted.
    after: &'a [u8],
    /// The time to live of the key, in milliseconds.
    ttl: u64,
}

/// A circuit breaker. It is closed at first.
#[derive(Debug, Default)]
struct Breaker {
    /// The time of the next trial, or 0 if the breaker is closed.
    next_attempt: AtomicU64,
    /// The number of trips in a row that failed because of an outage.
    late: AtomicU64,
    opened: AtomicU64,
    failures: Recurrence,
    open: Mutex<Open>,
    /// Wakes the calls that wait for a trial.
    trial_ended: Notify,
}

#[derive(Debug, Default)]
struct Open {
    pause: u64,
    /// `true` while a trial is under way. `next_attempt` is then the time at which another trial takes its place.
    is_trying: bool,
    /// The number of the last trial.
    trial: u64,
    reason: Option<RedisError>,
    /// `true` if the server failed to write, so that only a trip that has written shows that the fault is over.
    needs_write: bool,
}

/// What the circuit breaker does with a call.
#[derive(Debug)]
pub(super) enum Admission {
    /// The breaker is closed.
    Closed,
    /// The pause is over, and the call begins the trial with this number. If the server failed to write, the trip of
    /// the call is the trial.
    Trial(u64, bool),
    /// A trial is under way, until this time at the latest.
    Waits(Nanos),
    Fails(RedisError),
}

/// A trial in a task. If this value is dropped before the trial has ended, the next call that waits begins another.
pub(super) struct Trial {
    link: Arc<Link>,
    number: u64,
    has_ended: bool,
}

/// The time by which the server's clock is ahead of this process's clock, in microseconds. Both clocks show
/// approximately the time since the Unix epoch. The difference can be negative, so [`BIAS`] is added to it.
///
/// A reply is received some time after the server read its clock for the reply. So each reply shows by how much the
/// server's clock is ahead *at least*, and the largest of these differences is nearest to the truth. The request was
/// sent before the server read its clock. So each reply also shows by how much the server's clock is ahead *at most*.
/// If this maximum is less than the minimum that an earlier reply has shown, the server's clock was set back.
#[derive(Debug, Default)]
struct ServerTime {
    /// The difference plus [`BIAS`], or 0 if the difference is not known.
    ahead: AtomicU64,
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
            read: Script::new(source, &format!("{GET}{READ}")),
            swap: Script::new(source, &format!("{GET}{SWAP}")),
            swap_in_turn: Script::new(source, SWAP_IN_TURN),
            ping: Script::new(source, PING),
            connect: Script::of_connect(source, GET),
            process: random_u64(),
            joint: RwLock::default(),
            trips: AtomicU64::default(),
            late: AtomicU64::default(),
            ended: AtomicU64::default(),
        }
    }

    /// Returns the script that decides joint calls on keys with these limits. Returns `None` if that script would need
    /// too many variables.
    pub(super) fn joint_script(&self, keys: Vec<KeySteps>) -> Option<Arc<Script>> {
        if let Some(known) = self.joint.read().unwrap_or_else(PoisonError::into_inner).get(&keys) {
            return known.clone();
        }
        let script = Script::of_checks(self.source, &keys).map(Arc::new);
        self.joint.write().unwrap_or_else(PoisonError::into_inner).entry(keys).or_insert(script).clone()
    }

    pub(super) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns the source of the time of scripts.
    pub(super) fn source(&self) -> TimeSource {
        self.source
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

    /// Returns an error if the circuit breaker is open at `now`, so that a trip is not made. If the pause is over, the
    /// trip is the trial. Callers wait for a trial instead, by [`Links::admit`](super::links::Links::admit).
    pub(super) fn admit(&self, now: Nanos) -> Result<(), RedisError> {
        match self.admission(now) {
            Admission::Closed | Admission::Trial(..) => Ok(()),
            Admission::Waits(_) => Err(self.breaker.lock().error()),
            Admission::Fails(error) => Err(error),
        }
    }

    /// Returns what the circuit breaker does with a call at `now`.
    pub(super) fn admission(&self, now: Nanos) -> Admission {
        self.breaker.admit(now, self.deadline().saturating_add(POLLED_LATE))
    }

    /// Returns whether the circuit breaker is open.
    pub(super) fn is_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// Returns a future that is ready when a trial ends. It must be enabled before [`admission`](Self::admission).
    pub(super) fn trial_ended(&self) -> Notified<'_> {
        self.breaker.trial_ended.notified()
    }

    /// Records a trip that has written, which closes the circuit breaker.
    pub(super) fn wrote(&self) {
        self.breaker.wrote();
    }

    /// Returns whether the circuit breaker is open, and only a trip that writes can close it.
    pub(super) fn needs_write(&self) -> bool {
        self.breaker.needs_write()
    }

    /// Counts a call that has failed, if its deadline has passed.
    pub(super) fn count_if_late(&self, deadline: Nanos) {
        if self.now() >= deadline {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the result of a call. `received` is what was received from `answer`, or `None` if nothing was received
    /// before the deadline.
    pub(super) fn result_of<T>(
        &self,
        deadline: Nanos,
        received: Option<Result<Result<T, RedisError>, RecvError>>,
        answer: &mut oneshot::Receiver<Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let result = match received {
            Some(Ok(result)) => result,
            Some(Err(_)) => {
                Err(RedisError::new(RedisErrorKind::NoRuntime, "the runtime that had the call has ended"))
            }
            None => {
                // The call may have been decided just at the deadline.
                answer.close();
                answer.try_recv().unwrap_or_else(|_| Err(self.deadline_error()))
            }
        };
        if result.is_err() {
            self.count_if_late(deadline);
        }
        result
    }

    pub(super) fn deadline_error(&self) -> RedisError {
        // If there is no connection, the error of the last attempt to connect explains the failure better.
        self.connection.problem().unwrap_or_else(|| {
            self.named(RedisError::new(RedisErrorKind::Late, format!("no reply within {:?}", self.deadline)))
        })
    }

    /// Adds the name of the server to an error, if it is known.
    fn named(&self, error: RedisError) -> RedisError {
        match self.connection.server() {
            Some(server) => error.at(&server),
            None => error,
        }
    }

    pub(super) fn stats(&self) -> StoreStats {
        let mut stats = StoreStats::default();
        stats.trips = self.trips.load(Ordering::Relaxed);
        stats.late = self.late.load(Ordering::Relaxed);
        self.breaker.add_to(&mut stats);
        stats
    }

    /// Executes a script that reads a key, and that asks whether the user may run the commands of a limiter, and
    /// `others`. The reply contains the server's time. From then on, this process sends each deadline in the server's
    /// time, so the server can detect calls that arrive after their deadline.
    pub(super) async fn verify(
        self: &Arc<Self>,
        key: &str,
        others: &[&str],
        timeout: Duration,
    ) -> Result<(), RedisError> {
        let limit = self.now().saturating_add(Nanos::from(timeout.max(self.deadline)).0);
        let route = Route { link: Arc::clone(self), is_asking: false, redirects: 0 };
        let add = |command: &mut Command, _: &mut Packed| {
            others.iter().for_each(|other| {
                command.word(other);
            });
        };
        match self.until(limit, route.eval(&self.connect, &[key], limit, add)).await {
            Some(Ok(Answer::Late)) => {
                Err(self.named(RedisError::new(RedisErrorKind::Late, "while connecting")))
            }
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(self.named(error)),
            None => {
                let late = || self.named(RedisError::new(RedisErrorKind::Late, "while connecting"));
                Err(self.connection.problem().unwrap_or_else(late))
            }
        }
    }

    /// Makes an attempt to make a trip on this link. The attempt ends at `deadline`. `trip` is pinned by the caller: an
    /// asynchronous function that takes a future and passes it on needs room for the future twice.
    pub(super) async fn attempt<T>(
        &self,
        deadline: Nanos,
        trip: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    ) -> Result<T, RedisError> {
        let connection = self.connection.number();
        match self.until(deadline, trip).await {
            Some(result) => result,
            None => {
                self.end_silent(connection);
                if self.now() > deadline.saturating_add(POLLED_LATE) {
                    // The caller was not polled in time, which says nothing about the server.
                    Err(self.deadline_error())
                } else {
                    Err(self.failed_late(connection))
                }
            }
        }
    }

    /// Passes the messages on a channel to `on_message`, until no more messages can arrive.
    pub(super) fn listen(
        &self,
        channel: String,
        on_message: Box<dyn Fn(&str) + Send + Sync>,
    ) -> BoxFuture<Listened> {
        self.connection.listen(channel, on_message)
    }

    /// Records the failure of a trip that began on the connection with the number `connection`. Drops that connection
    /// if the breaker is open and a new connection may help.
    pub(super) fn failed(&self, error: RedisError, connection: u64) -> RedisError {
        if matches!(
            error.kind(),
            RedisErrorKind::Moved | RedisErrorKind::Unserved | RedisErrorKind::Permission
        ) {
            // The server works: the error is about the slot of the key, or about the user.
            self.breaker.replied();
            return error;
        }
        let is_open = self.breaker.failed(&error, self.now());
        if is_open && needs_connection(error.kind()) {
            self.connection.renew(connection);
        }
        error
    }

    /// Records that a trip on the connection with the number `connection` had no reply at its deadline. Drops that
    /// connection if the breaker is open. The missing reply counts as an outage, whatever caused it, because the next
    /// trip would probably fail as well.
    fn failed_late(&self, connection: u64) -> RedisError {
        let error = self.deadline_error();
        if self.breaker.record_outage(&error, self.now()) {
            self.connection.renew(connection);
        }
        error
    }

    /// Drops the connection with the number `connection`, on which a trip had no reply at its deadline, if the
    /// connection was silent for long. Only the next trips find out whether the server or the path is at fault.
    fn end_silent(&self, connection: u64) {
        if self.connection.is_silent() {
            self.connection.renew(connection);
        }
    }

    /// Returns a lower bound of the server's time, in microseconds, when this process's clock reads `not_after`.
    /// Returns a time in the distant future if the server's time is not known yet.
    fn server_deadline(&self, not_after: Nanos) -> u64 {
        #[cfg(test)]
        if let TimeSource::Passed(deadline) = self.source {
            return deadline.load(Ordering::SeqCst);
        }
        self.time.at(not_after.0 / 1_000).unwrap_or(1 << 53)
    }
}

impl Trial {
    pub(super) fn new(link: &Arc<Link>, number: u64) -> Self {
        Self { link: Arc::clone(link), number, has_ended: false }
    }

    /// Ends the trial. If it has no result, it counts as one that failed.
    pub(super) fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let now = self.has_ended.then(|| self.link.now());
        self.link.breaker.end_trial(self.number, now);
    }
}

impl Route {
    /// Executes a script that uses no key, to try the server. `key` says which node of a cluster is tried.
    pub(super) async fn ping(&self, key: &str, not_after: Nanos) -> Result<Option<()>, RedisError> {
        self.eval(&self.link.ping, &[key], not_after, |_, _| {}).await.map(|_| Some(()))
    }

    /// Returns the server's time, and the value of the key or the values of several keys. Returns `None` if the
    /// deadline of a call had passed.
    pub(super) async fn read(
        &self,
        keys: &[&str],
        not_after: Nanos,
    ) -> Result<Option<(Nanos, Vec<u8>)>, RedisError> {
        Ok(match self.eval(&self.link.read, keys, not_after, |_, _| {}).await? {
            Answer::Done(now, value) | Answer::Other(now, value) => Some((now, value)),
            Answer::Late => None,
        })
    }

    /// Makes all `swaps`, one for each key. Changes nothing if another process has changed the value of any of the
    /// keys.
    pub(super) async fn swap(
        &self,
        keys: &[&str],
        not_after: Nanos,
        swaps: &[Swap<'_>],
    ) -> Result<Answer, RedisError> {
        let add = |command: &mut Command, _: &mut Packed| {
            for Swap { before, after, ttl } in swaps {
                command.word(before).word(after).number(*ttl);
            }
        };
        let answer = self.eval(&self.link.swap, keys, not_after, add).await?;
        // A server that is out of memory can still delete keys, so a deletion does not close the breaker.
        if matches!(answer, Answer::Done(..)) && swaps.iter().any(|swap| !swap.after.is_empty()) {
            self.link.wrote();
        }
        Ok(answer)
    }

    /// Makes the change of a key as [`swap`](Self::swap) does, unless it is the turn of another process. If the change
    /// is not made, this process takes the next turn, unless another process has already taken it.
    pub(super) async fn swap_in_turn(
        &self,
        key: &str,
        not_after: Nanos,
        swap: Swap<'_>,
    ) -> Result<Answer, RedisError> {
        let Swap { before, after, ttl } = swap;
        let turn = turn_of(key);
        let turn_millis = (self.link.deadline.as_millis() as u64 / 2).clamp(1, MAX_TURN);
        let add = |command: &mut Command, _: &mut Packed| {
            command.word(before).word(after).number(ttl).number(self.link.process).number(turn_millis);
        };
        let answer = self.eval(&self.link.swap_in_turn, &[key, &turn], not_after, add).await?;
        match &answer {
            Answer::Done(..) if !after.is_empty() => self.link.wrote(),
            // The value is unchanged, so another process has its turn.
            Answer::Other(_, value) if value == before => {
                let pause = Nanos::from(self.link.deadline).0 / 64;
                self.link.sleep_until(self.link.now().saturating_add(pause)).await;
            }
            _ => {}
        }
        Ok(answer)
    }

    /// Executes a script, even if the breaker is open. Records the success or failure of the script in the breaker. The
    /// caller must bound the time for which it waits for the result.
    ///
    /// The last argument of the script begins with the deadline. `arguments` may add more to it, and adds the other
    /// arguments to the command.
    pub(super) async fn eval(
        &self,
        script: &Script,
        keys: &[&str],
        not_after: Nanos,
        arguments: impl Fn(&mut Command, &mut Packed),
    ) -> Result<Answer, RedisError> {
        let link = &*self.link;
        let command = |name: &str, script: &str| {
            let mut command = Command::new(self.is_asking);
            command.word(name).word(script).number(keys.len() as u64);
            keys.iter().for_each(|text| {
                command.word(text);
            });
            let mut last = Packed::default();
            last.number(link.server_deadline(not_after));
            arguments(&mut command, &mut last);
            command.word(last);
            command
        };
        let connection = link.connection.number();
        let sent = link.now();
        link.trips.fetch_add(1, Ordering::Relaxed);
        let mut reply = link.connection.call(command("EVALSHA", script.sha())).await;
        if let Err(CallError::NoScript) = reply {
            // The server does not have the script, for example because the server has restarted. `EVAL` sends the
            // source of the script, which the server then keeps.
            link.trips.fetch_add(1, Ordering::Relaxed);
            reply = link.connection.call(command("EVAL", script.text())).await;
        }
        let reply = match reply {
            Ok(Reply::Text(reply)) => reply,
            Ok(Reply::Other(other)) => {
                return Err(link.failed(RedisError::new(RedisErrorKind::Server, other), connection));
            }
            Err(CallError::Failed(error)) => {
                return Err(link.failed(script.with_command(error), connection));
            }
            // A command that was not sent at first was sent on another connection.
            Err(CallError::FailedOn(connection, error)) => {
                return Err(link.failed(script.with_command(error), connection));
            }
            // The end of a connection is one failure, however many trips it fails.
            Err(CallError::Ended(connection, error)) => {
                let is_counted = link.ended.fetch_max(connection + 1, Ordering::Relaxed) > connection;
                return Err(if is_counted { error } else { link.failed(error, connection) });
            }
            Err(CallError::NoScript) => {
                let error = RedisError::new(RedisErrorKind::Server, "NOSCRIPT in reply to EVAL");
                return Err(link.failed(error, connection));
            }
        };
        if reply.starts_with(b"E") {
            link.breaker.replied();
            return Err(RedisError::new(RedisErrorKind::Foreign, "the value is empty"));
        }
        let (answer, now) =
            Answer::parse(reply).map_err(|reply| RedisError::new(RedisErrorKind::Foreign, shown(&reply)))?;
        let received = link.now();
        link.time.observe(now.0 / 1_000, sent.0 / 1_000, received.0 / 1_000);
        link.breaker.replied();
        Ok(answer)
    }
}

impl Answer {
    /// Parses a reply: the letter of the verdict, the server's time in microseconds as a [`StateReader`] reads it, and
    /// the value. Also returns the server's time. Returns the reply itself if it has another form.
    fn parse(mut reply: Vec<u8>) -> Result<(Self, Nanos), Vec<u8>> {
        let time = reply.get(1..REPLY_HEAD);
        let Some(now) = time.and_then(|time| StateReader::new(time).instant()) else { return Err(reply) };
        let answer = match reply[0] {
            b'D' => Self::Done,
            b'O' => Self::Other,
            b'L' => return Ok((Self::Late, now)),
            _ => return Err(reply),
        };
        reply.drain(..REPLY_HEAD);
        Ok((answer(now, reply), now))
    }
}

impl<'a> Swap<'a> {
    pub(super) fn new(before: &'a [u8], after: &'a [u8], ttl: u64) -> Self {
        Self { before, after, ttl }
    }
}

impl Breaker {
    /// Returns what is done with a call at `now`. If the call begins a trial, the trial ends at `until` at the latest.
    fn admit(&self, now: Nanos, until: Nanos) -> Admission {
        if !self.is_open() {
            return Admission::Closed;
        }
        let mut open = self.lock();
        match self.next_attempt.load(Ordering::Relaxed) {
            // A trip has closed it meanwhile.
            0 => Admission::Closed,
            next if now.0 >= next => {
                open.is_trying = true;
                open.trial += 1;
                self.next_attempt.store(until.0, Ordering::Release);
                Admission::Trial(open.trial, open.needs_write)
            }
            next if open.is_trying => Admission::Waits(Nanos(next)),
            _ => Admission::Fails(open.error()),
        }
    }

    /// Ends the trial with this number, unless it has had a result, or another trial has taken its place. At `now`, it
    /// counts as one that failed. With `None`, the next call begins another trial.
    fn end_trial(&self, number: u64, now: Option<Nanos>) {
        let mut open = self.lock();
        if !self.is_open() || !open.is_trying || open.trial != number {
            return;
        }
        match now {
            Some(now) => self.postpone(&mut open, now),
            None => self.allow_trial(&mut open),
        }
    }

    /// Lets the next call begin a trial.
    fn allow_trial(&self, open: &mut Open) {
        open.is_trying = false;
        self.next_attempt.store(1, Ordering::Release);
        self.trial_ended.notify_waiters();
    }

    /// Records a reply. The reply closes the breaker, unless only a trip that writes can close it.
    fn replied(&self) {
        if self.late.load(Ordering::Relaxed) > 0 {
            self.late.store(0, Ordering::Relaxed);
        }
        if self.is_open() {
            let mut open = self.lock();
            if !open.needs_write {
                self.close(&mut open);
            } else if open.is_trying {
                // A reply to a trip that did not write says nothing about the fault, so the next call may be another
                // trial.
                self.allow_trial(&mut open);
            }
        }
    }

    /// Records a trip that has written, which closes the breaker.
    fn wrote(&self) {
        if self.is_open() {
            self.close(&mut self.lock());
        }
    }

    /// Sets the time of the next trial. The pause is twice as long as the last pause, within [`PAUSES`].
    fn postpone(&self, open: &mut Open, now: Nanos) {
        open.is_trying = false;
        open.pause = PAUSES.1.min(open.pause.saturating_mul(2)).max(PAUSES.0);
        self.next_attempt.store(now.0.saturating_add(open.pause).max(1), Ordering::Release);
        self.trial_ended.notify_waiters();
    }

    /// Returns whether the breaker is open and only a trip that writes can close it.
    fn needs_write(&self) -> bool {
        self.is_open() && self.lock().needs_write
    }

    fn close(&self, open: &mut Open) {
        if self.next_attempt.swap(0, Ordering::AcqRel) > 0 {
            *open = Open { trial: open.trial, ..Open::default() };
            self.trial_ended.notify_waiters();
            log_closed();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a trip that failed at `now`. Returns whether the breaker is open.
    fn failed(&self, error: &RedisError, now: Nanos) -> bool {
        if error.kind().is_outage() { self.record_outage(error, now) } else { self.is_open() }
    }

    /// Records a trip that failed at `now` for a reason that concerns other trips as well. Returns whether the breaker
    /// is open.
    fn record_outage(&self, error: &RedisError, now: Nanos) -> bool {
        let is_slow = matches!(error.kind(), RedisErrorKind::Late | RedisErrorKind::Unreachable);
        let late = self.late.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.lock();
        let was_open = self.is_open();
        if is_slow && !was_open && late < MAX_LATE {
            return false;
        }
        // A trip may read first, and fail only when it writes. Trips that began before the breaker opened must not
        // prolong the pause.
        let writes = concerns_writes(error.kind());
        let has_failed_to_write = writes && now.0 >= self.next_attempt.load(Ordering::Relaxed);
        if !was_open || open.is_trying || has_failed_to_write {
            // A closed breaker has no pause, so the first pause is the shortest.
            self.postpone(&mut open, now);
        }
        if !was_open {
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(count) = self.failures.due(!was_open) {
            log_failed(error, count);
        }
        // If writes fail, a reply to a trip that only reads must not close the breaker.
        open.needs_write |= writes;
        open.reason = Some(error.clone());
        true
    }

    /// Writes the breaker's two figures into `stats`.
    fn add_to(&self, stats: &mut StoreStats) {
        stats.circuit_openings = self.opened();
        stats.is_circuit_open = self.is_open();
    }

    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    fn is_open(&self) -> bool {
        self.next_attempt.load(Ordering::Relaxed) > 0
    }
}

impl Open {
    /// Returns the error of a call that is not sent.
    fn error(&self) -> RedisError {
        let reason = self.reason.as_ref().map(ToString::to_string).unwrap_or_default();
        RedisError::new(RedisErrorKind::Open, reason)
    }
}

/// See [`ServerTime`].
const BIAS: u64 = 1 << 62;
/// The maximum error, in microseconds, when two differences between the clocks are compared. It arises because each
/// reading is rounded down to a microsecond.
const ROUNDING: u64 = 2;

impl ServerTime {
    /// Records a reading of the server's clock. This process's clock read `sent` when the request was sent, and
    /// `received` when the reply was read. All arguments are in microseconds, and each is rounded down.
    fn observe(&self, server: u64, sent: u64, received: u64) {
        let at_least = BIAS.saturating_add(server).saturating_sub(received).max(1);
        let at_most = BIAS.saturating_add(server).saturating_add(ROUNDING).saturating_sub(sent);
        let known = self.ahead.load(Ordering::Relaxed);
        if at_least > known || known > at_most {
            self.ahead.store(at_least, Ordering::Relaxed);
        }
    }

    /// Returns a lower bound of the server's time when this process's clock reads `local`. Both times are in
    /// microseconds. Returns `None` if no reading of the server's clock was recorded yet.
    fn at(&self, local: u64) -> Option<u64> {
        match self.ahead.load(Ordering::Relaxed) {
            0 => None,
            ahead => Some(local.saturating_add(ahead).saturating_sub(BIAS)),
        }
    }
}

/// Returns whether a server that replies with an error of this kind may still be able to read.
const fn concerns_writes(kind: RedisErrorKind) -> bool {
    matches!(kind, RedisErrorKind::ReadOnly | RedisErrorKind::NoReplicas | RedisErrorKind::OutOfMemory)
}

/// Returns whether a new connection may help after an error of this kind, because it reaches another server, or the
/// same server in another state.
const fn needs_connection(kind: RedisErrorKind) -> bool {
    matches!(
        kind,
        RedisErrorKind::Late
            | RedisErrorKind::Unreachable
            | RedisErrorKind::ReadOnly
            | RedisErrorKind::NoReplicas
            | RedisErrorKind::Auth
            | RedisErrorKind::Loading
    )
}

/// Returns the key that says whose turn it is to change `key`. The name of a limiter's key ends with the kind of its
/// state, which is not empty and has no colon. So it is not a turn.
fn turn_of(key: &str) -> String {
    format!("{key}:turn:")
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

#[cfg(feature = "tracing")]
fn log_failed(error: &RedisError, count: u64) {
    tracing::error!(target: "tower_throttle", event = "redis_failed", reason = %error, count,
        "tower-throttle[R01]: limits in Redis are not decided there until it answers again");
}

#[cfg(feature = "tracing")]
fn log_closed() {
    tracing::info!(target: "tower_throttle", event = "redis_recovered",
        "tower-throttle: limits are decided in Redis again");
}

#[cfg(not(feature = "tracing"))]
fn log_failed(_: &RedisError, _: u64) {}

#[cfg(not(feature = "tracing"))]
fn log_closed() {}

/// Gets the values of all keys, of which there is usually one. A reply has the lengths of all values but the last, and
/// then all values. If a value is an empty string, the script returns an error, because this crate writes no empty
/// value.
const GET: &str = "\
local found, all = {}, ''
for i = 1, #KEYS do
  local s = c('GET', KEYS[i])
  if s == '' then return 'E' end
  found[i] = s or ''
  if i < #KEYS then all = all .. struct.pack('<d', #found[i]) end
end
all = all .. table.concat(found)
";

/// Shows that the server executes scripts.
const PING: &str = "\
return 'D' .. stamp
";

/// Returns the states of the keys.
const READ: &str = "\
return 'D' .. stamp .. all
";

/// Writes the states of the keys, unless another process has changed one of them. For each key, the arguments are the
/// old state, the new state, and the time to live. If the new state is empty, the key is deleted. Deletions come first:
/// if the user may not run one of the two commands, no state is charged. The state of a key that is deleted is fresh.
const SWAP: &str = "\
for i = 1, #KEYS do
  if found[i] ~= ARGV[3 * i - 2] then return 'O' .. stamp .. all end
end
for i = 1, #KEYS do
  if ARGV[3 * i - 1] == '' then c('DEL', KEYS[i]) end
end
for i = 1, #KEYS do
  local s = ARGV[3 * i - 1]
  if s ~= '' then c('PSETEX', KEYS[i], ARGV[3 * i], s) end
end
return 'D' .. stamp
";

/// Writes the state of the first key as [`SWAP`] does. The second key says whose turn it is. The fourth argument
/// identifies this process. If this process cannot write, and no process has the turn, this process takes the next
/// turn. The fifth argument is the maximum time of the turn, in milliseconds. During a turn, no other process writes.
const SWAP_IN_TURN: &str = "\
local s = c('GET', KEYS[1])
if s == '' then return 'E' end
s = s or ''
local turn = c('GET', KEYS[2])
if s ~= ARGV[1] or turn and turn ~= ARGV[4] then
  if not turn then c('PSETEX', KEYS[2], ARGV[5], ARGV[4]) end
  return 'O' .. stamp .. s
end
if turn then c('DEL', KEYS[2]) end
if ARGV[2] == '' then c('DEL', KEYS[1])
else c('PSETEX', KEYS[1], ARGV[3], ARGV[2]) end
return 'D' .. stamp
";

#[cfg(test)]
mod tests;
