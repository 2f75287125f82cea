//! A connection whose replies and faults are set by a test.

use std::collections::HashMap;
use std::future::{pending, ready};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::connection::{BoxFuture, CallError, Command, Connection, Reply, bytes_of};
use crate::error::{RedisError, RedisErrorKind};
use crate::script::Unpacked;

/// A server that knows only the scripts that read and swap states. Its clock advances with tokio's time, and can be set
/// ahead.
#[derive(Clone)]
pub(super) struct Staged(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    started: Instant,
    /// Wakes the calls that are on hold.
    go: Notify,
}

#[derive(Default)]
struct State {
    /// The behaviour of the server for the next calls.
    mode: Mode,
    /// The values, whose characters stand for one byte each.
    texts: HashMap<String, String>,
    commands: Vec<Vec<String>>,
    renewed: usize,
    /// The number of the present connection.
    connection: u64,
    /// The time by which the server's clock is ahead of tokio's, in microseconds.
    ahead: i64,
    /// `true` if the server fails to write.
    is_full: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) enum Mode {
    #[default]
    Serve,
    /// There is no reply.
    Hang,
    /// Calls are executed after `resume`.
    Hold,
    /// Calls are executed at once, and the replies are sent after `resume`.
    Withhold,
    NoScript,
    Fail(&'static str),
    /// The present connection has ended.
    End,
    Answer(Reply),
}

impl Staged {
    pub(super) fn new() -> Self {
        let state = Mutex::default();
        Self(Arc::new(Inner { state, started: Instant::now(), go: Notify::new() }))
    }

    pub(super) fn set(&self, mode: Mode) {
        self.0.state.lock().unwrap().mode = mode;
    }

    pub(super) fn set_ahead(&self, ahead: i64) {
        self.0.state.lock().unwrap().ahead = ahead;
    }

    pub(super) fn set_full(&self, is_full: bool) {
        self.0.state.lock().unwrap().is_full = is_full;
    }

    /// Lets all calls on hold continue.
    pub(super) fn resume(&self) {
        self.set(Mode::Serve);
        self.0.go.notify_waiters();
    }

    pub(super) fn texts(&self) -> HashMap<String, String> {
        self.0.state.lock().unwrap().texts.clone()
    }

    pub(super) fn put(&self, key: &str, text: &str) {
        self.0.state.lock().unwrap().texts.insert(key.to_owned(), text.to_owned());
    }

    /// Returns the commands since the previous call of this method.
    pub(super) fn commands(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut self.0.state.lock().unwrap().commands)
    }

    pub(super) fn renewed(&self) -> usize {
        self.0.state.lock().unwrap().renewed
    }

    pub(super) fn micros(&self) -> u64 {
        let ahead = self.0.state.lock().unwrap().ahead;
        (1_700_000_000_000_000 + ahead + self.0.started.elapsed().as_micros() as i64) as u64
    }

    /// Returns the reply of a script that has done what it was to do, and has found no value.
    pub(super) fn done(&self) -> Reply {
        reply(b'D', self.micros(), "")
    }

    fn execute(&self, command: &[String]) -> Result<Reply, CallError> {
        let mut command = command.to_vec();
        if command[2] == "2" {
            // This key says whose turn it is. It has no effect here, because this server has one client.
            command.remove(4);
        }
        let command = &command[..];
        let now = self.micros();
        let (last, key) = (command.last().unwrap(), &command[3]);
        let done = |value: &str| Ok(reply(b'D', now, value));
        let other = |value: &str| Ok(reply(b'O', now, value));
        let mut last = Unpacked::from(last.as_str());
        if now > last.next().unwrap() {
            return Ok(reply(b'L', now, ""));
        }
        let mut state = self.0.state.lock().unwrap();
        let writes = !last.is_empty() || command.len() > 5 && !command[5].is_empty();
        if state.is_full && writes {
            let error = RedisError::from_reply("OOM command not allowed when used memory > 'maxmemory'.");
            return Err(CallError::Failed(error));
        }
        let text = state.texts.get(key).cloned().unwrap_or_default();
        match command {
            [_, _, _, _, _] if last.is_empty() => done(&text),
            // This server decides nothing.
            [_, _, _, _, _] => other(&text),
            [_, _, _, _, before, ..] if *before != text => other(&text),
            [_, _, _, _, _, after, ..] => {
                match after.as_str() {
                    "" => drop(state.texts.remove(key)),
                    _ => drop(state.texts.insert(key.clone(), after.clone())),
                }
                done("")
            }
            _ => panic!("{command:?}"),
        }
    }
}

/// Returns a reply with this verdict, the server's time in microseconds, and a value.
fn reply(verdict: u8, now: u64, value: &str) -> Reply {
    Reply::Text([&[verdict], &(now as f64).to_le_bytes()[..], &bytes_of(value)].concat())
}

impl Connection for Staged {
    fn call(&self, command: Command) -> BoxFuture<Result<Reply, CallError>> {
        let command = command.words();
        let mode = {
            let mut state = self.0.state.lock().unwrap();
            state.commands.push(command.clone());
            state.mode.clone()
        };
        match mode {
            Mode::Serve => {
                let server = self.clone();
                Box::pin(async move {
                    // The reply of a real server never arrives at once.
                    tokio::task::yield_now().await;
                    server.execute(&command)
                })
            }
            Mode::Hang => Box::pin(pending()),
            Mode::Hold => {
                let server = self.clone();
                Box::pin(async move {
                    server.0.go.notified().await;
                    server.execute(&command)
                })
            }
            Mode::Withhold => {
                let (server, reply) = (self.clone(), self.execute(&command));
                Box::pin(async move {
                    server.0.go.notified().await;
                    reply
                })
            }
            Mode::NoScript => Box::pin(ready(match command[0].as_str() {
                "EVAL" => self.execute(&command),
                _ => Err(CallError::NoScript),
            })),
            Mode::Fail(text) => Box::pin(ready(Err(CallError::Failed(RedisError::from_reply(text))))),
            Mode::End => {
                let error = RedisError::new(RedisErrorKind::Unreachable, "it has ended");
                Box::pin(ready(Err(CallError::Ended(self.number(), error))))
            }
            Mode::Answer(reply) => Box::pin(async move {
                tokio::task::yield_now().await;
                Ok(reply)
            }),
        }
    }

    fn problem(&self) -> Option<RedisError> {
        None
    }

    fn number(&self) -> u64 {
        self.0.state.lock().unwrap().connection
    }

    fn renew(&self, number: u64) {
        let mut state = self.0.state.lock().unwrap();
        if state.connection == number {
            (state.renewed, state.connection) = (state.renewed + 1, number + 1);
        }
    }
}
