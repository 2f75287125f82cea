//! The master of a group of servers that Redis Sentinel watches.
//!
//! During a failover, the former master goes on deciding for about ten seconds, and the sentinels learn one after
//! another which server replaces it. Each failover has an epoch, which is higher than those before. So the master with
//! the highest epoch that a sentinel has named is used, and no other sentinel, and no role of a server, leads back to
//! the former master.
//!
//! The epochs start over if the sentinels are set up again. Otherwise, a lower epoch only means that a sentinel does
//! not know the latest failover yet, which takes a few seconds. So what most of the sentinels say for longer counts,
//! even if the epoch is lower.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisResult, Value, from_redis_value,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{at_address, completed};
use super::error::{RedisError, RedisErrorKind, convert};
use super::url;
use tower_throttle::clock::{AnyClock, Nanos};

/// The time after which a master of a lower epoch is used, in nanoseconds. For this time, more than half of the
/// sentinels must have named it, and no sentinel a master of the known epoch.
const LOWER_AFTER: u64 = 10_000_000_000;
/// The time for which the answers to a question are awaited.
const ROUND: Duration = Duration::from_secs(1);
/// The time for which a connection to a master waits for sentinels that have not answered yet. They may name a newer
/// master.
const GRACE: Duration = Duration::from_millis(20);
/// The time, in nanoseconds, for which a connection to a sentinel is kept without a question.
const KEPT: u64 = 10_000_000_000;

/// The advice on a panic, whose message no error may have, since this crate does not know what it says.
const PANICKED: &str = "a task that connects to Redis has panicked: read the message of the panic";

/// The sentinels of a group. Clones share what is known of the master.
#[derive(Clone)]
pub(super) struct Sentinels(Arc<Group>);

struct Group {
    sentinels: Vec<Sentinel>,
    /// The name under which the sentinels know the master.
    name: String,
    /// The settings with which the master is reached, apart from its address.
    like: ConnectionInfo,
    clock: AnyClock,
    known: Mutex<Known>,
}

struct Sentinel {
    client: Client,
    /// The connection that is kept, and the time of its last reply. `None` while the sentinel is asked.
    kept: Mutex<Option<(MultiplexedConnection, Nanos)>>,
    /// `true` if the sentinel did not answer the last question.
    is_silent: AtomicBool,
}

/// A master, as a sentinel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Master {
    epoch: u64,
    host: String,
    port: u16,
}

/// What is known of the master.
#[derive(Debug, Default)]
struct Known {
    /// The master that is used.
    master: Option<Master>,
    /// The number of times that the address of the master has changed.
    version: u64,
    /// The master of a lower epoch that most sentinels name, and since when.
    lower: Option<(Master, Nanos)>,
}

/// A step of an attempt to connect to the master.
enum Step<C> {
    /// A sentinel was asked. The Boolean is `true` if its answer was expected soon.
    Asked(bool, Result<Master, NoMaster>),
    /// The master of this version was connected to.
    Connected(u64, Result<C, RedisError>),
}

/// Why a sentinel has named no master.
enum NoMaster {
    /// The sentinel knows no master of the name.
    Unknown(RedisError),
    Failed(RedisError),
}

impl Sentinels {
    /// Creates sentinels from their settings. The master is reached with those of `like`, apart from the address.
    pub(super) fn new(
        sentinels: Vec<ConnectionInfo>,
        name: &str,
        like: ConnectionInfo,
    ) -> Result<Self, RedisError> {
        if sentinels.is_empty() {
            return Err(no_sentinels());
        }
        let open = |info| Client::open(completed(info)).map(Sentinel::new).map_err(|error| convert(&error));
        let sentinels = sentinels.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Group {
            sentinels,
            name: name.to_owned(),
            like,
            clock: AnyClock::default(),
            known: Mutex::default(),
        })))
    }

    /// Creates sentinels from their addresses. The master is reached with the settings of the first sentinel.
    pub(super) fn from_infos(infos: Vec<ConnectionInfo>, name: &str) -> Result<Self, RedisError> {
        let like = infos.first().cloned().ok_or_else(no_sentinels)?;
        // A sentinel has no databases.
        let without_database = |info: ConnectionInfo| {
            let settings = info.redis_settings().clone().set_db(0);
            info.set_redis_settings(settings)
        };
        Self::new(infos.into_iter().map(without_database).collect(), name, like)
    }

    /// Returns the version of the master: the number of times that its address has changed.
    pub(super) fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// Returns the server that is known to be the master, and its version. Returns `None` if no sentinel has named a
    /// master yet.
    pub(super) fn master(&self) -> Result<Option<(u64, Client)>, RedisError> {
        let (version, master) = {
            let known = self.0.lock();
            (known.version, known.master.clone())
        };
        master
            .map(|Master { host, port, .. }| {
                let client = Client::open(at_address(&self.0.like, host, port));
                Ok((version, client.map_err(|error| convert(&error))?))
            })
            .transpose()
    }

    /// Asks all sentinels at once, each within `limit`. Returns when one of them has named another master, when all
    /// have answered, or after a second.
    pub(super) async fn ask(&self, limit: Duration) {
        let mut asked = JoinSet::new();
        let version = self.version();
        for index in 0..self.0.sentinels.len() {
            let group = Arc::clone(&self.0);
            asked.spawn(async move { group.ask(index, limit).await });
        }
        let mut answers = Vec::new();
        let end = self.0.after(ROUND);
        while let Ok(Some(asked)) = timeout(self.0.until(end), asked.join_next()).await {
            answers.extend(asked.ok().and_then(Result::ok));
            if self.version() != version {
                break;
            }
        }
        // The others may have to be connected to first.
        asked.detach_all();
        self.0.conclude(&answers);
    }

    /// Connects to the present master by `connect`, which fails if the server is not a master. Also returns the version
    /// of the master.
    ///
    /// Asks all sentinels at once, and meanwhile connects to the known master, all within `limit`. A sentinel that did
    /// not answer before is not waited for, and the others not for long, once there is a connection.
    pub(super) async fn connect<C, F>(
        &self,
        limit: Duration,
        config: &AsyncConnectionConfig,
        connect: fn(Client, AsyncConnectionConfig, Duration) -> F,
    ) -> Result<(u64, C), RedisError>
    where
        C: Send + 'static,
        F: Future<Output = Result<C, RedisError>> + Send + 'static,
    {
        let end = self.0.after(limit);
        let mut steps = JoinSet::new();
        let mut expected = 0_usize;
        for (index, sentinel) in self.0.sentinels.iter().enumerate() {
            let group = Arc::clone(&self.0);
            let is_expected = !sentinel.is_silent.load(Ordering::Relaxed);
            expected += usize::from(is_expected);
            steps.spawn(async move { Step::Asked(is_expected, group.ask(index, limit).await) });
        }
        // The connection to the master of the version `tried`, and since when there is one.
        let mut tried = 0;
        let mut connected = None::<(Nanos, C)>;
        let mut answers = Vec::new();
        let mut unknown = Vec::new();
        // If most sentinels know no master of the name, what was said before does not count.
        let is_known = |answers: &[Master], unknown: &[RedisError]| {
            !answers.is_empty() || 2 * unknown.len() <= self.0.sentinels.len()
        };
        let mut unanswered = Vec::new();
        let mut failed = None;
        let mut panicked = None;
        loop {
            if let Some((version, server)) = self.master()?
                && version > tried
            {
                let connecting = connect(server, config.clone(), self.0.until(end));
                steps.spawn(async move { Step::Connected(version, connecting.await) });
                tried = version;
                connected = None;
            }
            let next = match &connected {
                Some((since, _)) if is_known(&answers, &unknown) => {
                    let grace = if expected == 0 { Duration::ZERO } else { GRACE };
                    let end = since.saturating_add(Nanos::from(grace).0);
                    timeout(self.0.until(end), steps.join_next()).await.unwrap_or(None)
                }
                _ => steps.join_next().await,
            };
            match next {
                Some(Ok(Step::Asked(is_expected, answer))) => {
                    expected -= usize::from(is_expected);
                    match answer {
                        Ok(master) => answers.push(master),
                        Err(NoMaster::Unknown(error)) => unknown.push(error),
                        Err(NoMaster::Failed(error)) => unanswered.push(error),
                    }
                }
                Some(Ok(Step::Connected(version, result))) if version == tried => match result {
                    Ok(connection) => connected = Some((self.0.clock.now(), connection)),
                    Err(error) => failed = Some(error),
                },
                Some(Err(error)) if error.is_panic() => {
                    let error = RedisError::new(RedisErrorKind::Unreachable, "");
                    panicked = Some(error.with_advice(Some(PANICKED)));
                }
                Some(_) => {}
                None => {
                    if connected.is_none() {
                        self.0.conclude(&answers);
                    }
                    if self.version() == tried {
                        break;
                    }
                }
            }
        }
        steps.detach_all();
        match connected {
            Some((_, connection)) if is_known(&answers, &unknown) => Ok((tried, connection)),
            // The user can correct a wrong name, so this error is returned rather than another.
            _ => Err(match (unknown.pop(), failed) {
                (Some(unknown), _) => unknown,
                (None, Some(failed)) if !answers.is_empty() => failed,
                (None, failed) => panicked.unwrap_or_else(|| no_answer(&unanswered, failed)),
            }),
        }
    }
}

impl Group {
    /// Asks a sentinel for the master, within `limit`, and takes note of the answer.
    async fn ask(&self, index: usize, limit: Duration) -> Result<Master, NoMaster> {
        let sentinel = &self.sentinels[index];
        let answer = timeout(limit, sentinel.ask(&self.name, &self.clock)).await.unwrap_or_else(|_| {
            let detail = format!("no answer within the `connect_timeout`: {limit:?}");
            Err(NoMaster::Failed(sentinel.unconnected(RedisError::new(RedisErrorKind::Unreachable, detail))))
        });
        let is_silent =
            matches!(&answer, Err(NoMaster::Failed(error)) if error.kind() == RedisErrorKind::Unreachable);
        sentinel.is_silent.store(is_silent, Ordering::Relaxed);
        if let Ok(master) = &answer {
            self.lock().hear(master.clone());
        }
        answer
    }

    /// Returns the time after now by `duration`.
    fn after(&self, duration: Duration) -> Nanos {
        self.clock.now().saturating_add(Nanos::from(duration).0)
    }

    /// Returns the duration from now to `end`.
    fn until(&self, end: Nanos) -> Duration {
        Duration::from_nanos(end.saturating_since(self.clock.now()))
    }

    fn conclude(&self, answers: &[Master]) {
        self.lock().conclude(answers, self.sentinels.len(), self.clock.now());
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sentinel {
    fn new(client: Client) -> Self {
        Self { client, kept: Default::default(), is_silent: AtomicBool::new(false) }
    }

    async fn ask(&self, name: &str, clock: &AnyClock) -> Result<Master, NoMaster> {
        let kept = self.lock_kept().take();
        // If the answer is not awaited, the connection is dropped.
        let replies = match kept {
            Some((mut connection, since)) if clock.now().saturating_since(since) < KEPT => {
                question(&mut connection, name).await.ok().map(|replies| (connection, replies))
            }
            _ => None,
        };
        let (connection, replies) = match replies {
            Some(replied) => replied,
            None => self
                .connect_and_ask(name)
                .await
                .map_err(|error| NoMaster::Failed(self.unconnected(convert(&error))))?,
        };
        *self.lock_kept() = Some((connection, clock.now()));
        let parsed = Master::parse(replies).map_err(|error| NoMaster::Failed(self.is_no_sentinel(&error)))?;
        parsed.ok_or_else(|| {
            let detail = format!("no master is called {name:?}, check the name");
            NoMaster::Unknown(RedisError::new(RedisErrorKind::Config, detail).at(&self.to_string()))
        })
    }

    fn lock_kept(&self) -> MutexGuard<'_, Option<(MultiplexedConnection, Nanos)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect_and_ask(&self, name: &str) -> RedisResult<(MultiplexedConnection, Vec<Value>)> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        let replies = question(&mut connection, name).await?;
        Ok((connection, replies))
    }

    fn unconnected(&self, error: RedisError) -> RedisError {
        url::unconnected(error, self.address(), &self.to_string())
    }

    /// Returns the error of a server whose reply is not that of a sentinel.
    fn is_no_sentinel(&self, error: &::redis::RedisError) -> RedisError {
        let error = convert(error);
        if error.detail().contains("unknown command") {
            let detail = format!(
                "{} is no sentinel: create the store with `RedisStore::connect`, or use the ports of the sentinels",
                self.address()
            );
            RedisError::new(RedisErrorKind::Config, detail)
        } else {
            error.at(&self.to_string())
        }
    }

    fn address(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }
}

impl fmt::Display for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the sentinel at {}", self.address())
    }
}

/// Returns the error of an attempt to connect for which no sentinel has named a master. `failed` is the error of the
/// last known master.
fn no_answer(unanswered: &[RedisError], failed: Option<RedisError>) -> RedisError {
    // An error reply says more than a missing reply.
    let silent = |error: &&RedisError| error.kind() == RedisErrorKind::Unreachable;
    let Some(error) = unanswered.iter().find(|error| !silent(error)).or(unanswered.first()) else {
        return failed.unwrap_or_else(|| RedisError::new(RedisErrorKind::NoRuntime, ""));
    };
    match failed {
        _ if !silent(&error) => error.clone(),
        None => error.clone().at("no sentinel answers"),
        Some(failed) => failed.at("no sentinel answers, and the last known master cannot be used"),
    }
}

/// Asks for the epoch and the address of the master. In the middle of a failover, `SENTINEL MASTER` has the new epoch
/// and still the former address.
async fn question(connection: &mut MultiplexedConnection, name: &str) -> RedisResult<Vec<Value>> {
    let mut question = ::redis::pipe();
    question.cmd("SENTINEL").arg("MASTER").arg(name);
    question.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    connection.send_packed_commands(&question, 0, 2).await
}

impl Master {
    /// Parses the replies to a question. Returns `None` if the sentinel knows no master of the name.
    fn parse(replies: Vec<Value>) -> RedisResult<Option<Self>> {
        let [fields, address] =
            <[Value; 2]>::try_from(replies).map_err(|replies| no_sentinel(format!("{replies:?}")))?;
        if address == Value::Nil {
            return Ok(None);
        }
        let fields: HashMap<String, String> = from_redis_value(fields.extract_error()?)?;
        let (host, port) = from_redis_value(address.extract_error()?)?;
        let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let epoch = epoch.ok_or_else(|| no_sentinel(format!("{fields:?}")))?;
        Ok(Some(Self { epoch, host, port }))
    }

    fn is_at_address_of(&self, other: &Self) -> bool {
        self.host == other.host && self.port == other.port
    }
}

impl Known {
    /// Takes note of the answer of a sentinel. A higher epoch counts at once.
    fn hear(&mut self, master: Master) {
        if self.master.as_ref().is_none_or(|known| master.epoch > known.epoch) {
            self.replace(master);
        }
    }

    /// Draws the conclusion from the answers of one round, at `now`. `sentinels` is the number of all sentinels.
    ///
    /// Most sentinels are right if the epoch is the known one, since each failover has an epoch of its own: the master
    /// was configured again. They are right about a lower epoch after a while, unless any sentinel knows better.
    fn conclude(&mut self, answers: &[Master], sentinels: usize, now: Nanos) {
        let Some(known) = &self.master else { return };
        let is_confirmed = answers.iter().any(|answer| answer.epoch >= known.epoch);
        let named_by_most = answers.iter().filter(|answer| {
            2 * answers.iter().filter(|other| other.is_at_address_of(answer)).count() > sentinels
        });
        match named_by_most.max_by_key(|answer| answer.epoch) {
            Some(most) if most.epoch >= known.epoch => self.replace(most.clone()),
            Some(most) if !is_confirmed => match &self.lower {
                Some((lower, since)) if lower.is_at_address_of(most) => {
                    if now.saturating_since(*since) >= LOWER_AFTER {
                        self.replace(most.clone());
                    }
                }
                _ => self.lower = Some((most.clone(), now)),
            },
            _ if is_confirmed => self.lower = None,
            // Too few sentinels have answered.
            _ => {}
        }
    }

    fn replace(&mut self, master: Master) {
        if self.master.as_ref().is_none_or(|known| !known.is_at_address_of(&master)) {
            self.version += 1;
        }
        self.master = Some(master);
        self.lower = None;
    }
}

fn no_sentinels() -> RedisError {
    RedisError::new(RedisErrorKind::Config, "at least one sentinel is needed")
}

fn no_sentinel(reply: String) -> ::redis::RedisError {
    (::redis::ErrorKind::UnexpectedReturnType, "the reply is not that of a sentinel", reply).into()
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings may have a password.
        f.debug_struct("Sentinels").field("name", &self.0.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(epoch: u64, port: u16) -> Master {
        Master { epoch, host: "10.0.0.1".into(), port }
    }

    /// Lets three sentinels answer at these seconds. Returns the ports of the masters that are used then.
    fn ports<const N: usize>(rounds: [(u64, &[(u64, u16)]); N]) -> [u16; N] {
        let mut known = Known::default();
        rounds.map(|(seconds, answers)| {
            let answers: Vec<_> = answers.iter().map(|(epoch, port)| master(*epoch, *port)).collect();
            answers.iter().for_each(|answer| known.hear(answer.clone()));
            known.conclude(&answers, 3, Nanos(seconds * 1_000_000_000));
            known.master.as_ref().unwrap().port
        })
    }

    #[test]
    fn a_connection_to_a_sentinel_of_a_client_is_kept_alive_as_any_other() {
        let info = Client::open("redis://127.0.0.1:1").unwrap().get_connection_info().clone();
        let sentinels = Sentinels::new(vec![info.clone()], "mymaster", info).unwrap();
        let info = sentinels.0.sentinels[0].client.get_connection_info();
        // The provider for encryption is installed by the same function as the keepalive.
        assert!(info.tcp_settings().keepalive().is_some());
    }

    #[test]
    fn a_panic_while_a_sentinel_is_asked_is_not_reported_as_a_missing_runtime() {
        let info = Client::open("redis://127.0.0.1:1").unwrap().get_connection_info().clone();
        let sentinels = Sentinels::from_infos(vec![info], "mymaster").unwrap();
        // Without a timer, tokio panics in the task that asks.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let config = AsyncConnectionConfig::new();
        let connecting = sentinels.connect(ROUND, &config, |_, _, _| async { Ok(()) });
        let error = runtime.block_on(connecting).unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("has panicked"), "{error}");
    }

    #[test]
    fn the_highest_epoch_counts_even_if_one_sentinel_names_it() {
        assert_eq!(ports([(0, &[(0, 1), (0, 1), (0, 1)]), (1, &[(0, 1), (1, 2), (0, 1)])]), [1, 2]);
        assert_eq!(
            ports([(0, &[(3, 2), (2, 1), (2, 1)]), (1, &[(2, 1), (2, 1)]), (2, &[(3, 2)])]),
            [2, 2, 2]
        );
        assert_eq!(ports([(0, &[(1, 1)]), (1, &[(2, 2)]), (2, &[(1, 1)]), (3, &[(4, 1)])]), [1, 2, 2, 1]);
    }

    #[test]
    fn most_sentinels_are_believed_about_a_lower_epoch_after_ten_seconds() {
        let late: &[_] = &[(0, 1), (0, 1)];
        assert_eq!(
            ports([(0, &[(1, 2)]), (1, late), (10, late), (11, late), (12, &[(1, 2)])]),
            [2, 2, 2, 1, 2]
        );
        // One of them knows the latest failover meanwhile.
        let newer: &[_] = &[(1, 2), (0, 1), (0, 1)];
        assert_eq!(
            ports([(0, newer), (9, late), (18, newer), (20, late), (29, late), (30, late)]),
            [2, 2, 2, 2, 2, 1]
        );
        // One of three is not most of them, however long it says so.
        assert_eq!(ports([(0, &[(1, 2)]), (1, &[(0, 1)]), (99, &[(0, 1)]), (999, &[(0, 1)])]), [2; 4]);
        // They must agree.
        assert_eq!(
            ports([(0, &[(1, 2)]), (1, late), (11, &[(0, 3), (0, 3), (0, 1)]), (21, &[(0, 3), (0, 3)])]),
            [2, 2, 2, 3]
        );
    }

    #[test]
    fn sentinels_that_are_set_up_anew_are_followed() {
        let (before, anew): (&[_], &[_]) = (&[(7, 1), (7, 1), (7, 1)], &[(0, 1), (0, 1), (0, 1)]);
        // The address is the same, so that the next failover counts at once.
        assert_eq!(ports([(0, before), (1, anew), (11, anew), (12, &[(1, 2), (0, 1)])]), [1, 1, 1, 2]);
        // The epoch is the same.
        assert_eq!(
            ports([(0, anew), (1, &[(0, 2), (0, 1), (0, 1)]), (2, &[(0, 2), (0, 2), (0, 1)])]),
            [1, 1, 2]
        );
    }
}
