//! The scripts, which change states on the server.
//!
//! A script is made of fragments, one for each limit. So there is one script for each *combination of kinds* of limits,
//! and quotas are arguments of the script. A script gets a list of the costs of several calls, and decides the calls in
//! the order of this list. The script then writes the resulting state, and returns the server's time and the state that
//! it found. From that time and that state, this process computes the decision of each call, with the algorithm's own
//! arithmetic.
//!
//! Numbers in Lua are floating-point numbers. Integers are exact up to 2^53, and only the format `%d` prints all of
//! their digits. So limits that need larger numbers have no script.

use super::fragments::{Fragments, fragments};
use crate::algorithm::{MAX_LOCALS, StepKind};

/// A script, and the SHA-1 by which the server identifies it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    text: String,
    sha: String,
}

/// The source of a script's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeSource {
    /// The server's clock.
    Server,
    /// The last argument of the script, in tests. Keys do not expire in such tests, and the time to live of each key is
    /// written to a second key, whose name begins with `ttl:`.
    #[cfg(test)]
    Passed,
}

impl TimeSource {
    /// Returns the beginning of a script whose last argument is the deadline.
    pub(super) fn head(self) -> String {
        let clock = self.clock();
        format!("local deadline = struct.unpack('>d', ARGV[#ARGV])\n{clock}local stamp = {STAMP}\n")
    }

    /// Returns the lines that read the clock. The lines before them must define `deadline`.
    const fn clock(self) -> &'static str {
        match self {
            Self::Server => SERVER,
            #[cfg(test)]
            Self::Passed => PASSED,
        }
    }
}

/// Reads the server's time. After the deadline, the script changes nothing, because its callers no longer wait.
const SERVER: &str = "\
local c = redis.call
local t = c('TIME')
local now = t[1] * 1000000 + t[2]
if now > deadline then return 'L' .. t[1] .. ' ' .. t[2] .. ' ' end
";

/// The time as it was read, in seconds and microseconds, because a script takes as long to format a number as to
/// execute a command.
const STAMP: &str = "t[1] .. ' ' .. t[2] .. ' '";

#[cfg(test)]
const PASSED: &str = "\
local c = function(name, ...)
  if name == 'PSETEX' then
    local key, ttl, value = ...
    redis.call('SET', 'ttl:' .. key, ttl)
    return redis.call('SET', key, value)
  elseif name == 'PEXPIRE' then
    local key, ttl = ...
    return redis.call('SET', 'ttl:' .. key, ttl)
  end
  return redis.call(name, ...)
end
local now = deadline
local t = {string.format('%d', math.floor(now / 1000000)), string.format('%d', math.fmod(now, 1000000))}
";

/// Gets the values of all keys, of which there is usually one. A reply has the lengths of all values but the last, and
/// then all values. If a value is an empty string, the script returns an error, because this crate writes no empty
/// value.
const GET: &str = "\
local found, all = {}, ''
for i = 1, #KEYS do
  local s = c('GET', KEYS[i])
  if s == '' then return 'E' .. stamp end
  found[i] = s or ''
  if i < #KEYS then all = all .. #found[i] .. ' ' end
end
all = all .. table.concat(found)
";

/// Returns the states of the keys.
const READ: &str = "\
return 'D' .. stamp .. all
";

/// Writes the states of the keys, unless another process has changed one of them. For each key, the arguments are the
/// old state, the new state, and the time to live. If the new state is empty, the key is deleted.
const SWAP: &str = "\
for i = 1, #KEYS do
  if found[i] ~= ARGV[3 * i - 2] then return 'O' .. stamp .. all end
end
for i = 1, #KEYS do
  local s = ARGV[3 * i - 1]
  if s == '' then c('DEL', KEYS[i]) else c('PSETEX', KEYS[i], ARGV[3 * i], s) end
end
return 'D' .. stamp
";

/// Writes the state of the first key as [`SWAP`] does. The second key says whose turn it is. The fourth argument
/// identifies this process. If this process cannot write, and no process has the turn, this process takes the next
/// turn. The fifth argument is the maximum time of the turn, in milliseconds. During a turn, no other process writes.
const SWAP_IN_TURN: &str = "\
local s = c('GET', KEYS[1])
if s == '' then return 'E' .. stamp end
s = s or ''
local turn = c('GET', KEYS[2])
if s ~= ARGV[1] or turn and turn ~= ARGV[4] then
  if not turn then c('PSETEX', KEYS[2], ARGV[5], ARGV[4]) end
  return 'O' .. stamp .. s
end
if turn then c('DEL', KEYS[2]) end
if ARGV[2] == '' then c('DEL', KEYS[1]) else c('PSETEX', KEYS[1], ARGV[3], ARGV[2]) end
return 'D' .. stamp
";

/// The number of local variables for each key, apart from those of its steps.
const KEY_LOCALS: usize = 4;

/// The limits of one key in a script.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeySteps {
    pub(super) kinds: Vec<StepKind>,
    /// `true` if the limits of the key are in shadow mode: they do not decide whether a call is admitted. If the other
    /// keys admit the call, these limits are charged, provided that they would admit the call as well.
    pub(super) is_in_shadow: bool,
}

impl Script {
    pub(super) fn new(text: String) -> Self {
        let sha = ::redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    /// Creates the script that reads states.
    pub(super) fn read(source: TimeSource) -> Self {
        Self::new(format!("{}{GET}{READ}", source.head()))
    }

    /// Creates the script that writes states, unless another process has changed one of them.
    pub(super) fn swap(source: TimeSource) -> Self {
        Self::new(format!("{}{GET}{SWAP}", source.head()))
    }

    /// Creates the script that writes a state, unless another process has changed the state or has the turn.
    pub(super) fn swap_in_turn(source: TimeSource) -> Self {
        Self::new(format!("{}{SWAP_IN_TURN}", source.head()))
    }

    /// Creates the script that decides checks, or returns `None` if it would need too many variables. Usually `keys`
    /// has one key. A joint call has several keys, and is charged to all of them or to none. The script has one
    /// argument, because the server reads one long argument faster than many short ones. It contains the deadline, the
    /// beginnings of the values that this process writes, one for each key, the arguments of all steps, and the costs of
    /// each call, one for each key. Each number has eight bytes, and each string ends with a zero byte.
    pub(super) fn decide(source: TimeSource, keys: &[KeySteps]) -> Option<Self> {
        let locals =
            |key: &KeySteps| KEY_LOCALS + key.kinds.iter().map(|kind| kind.local_count()).sum::<usize>();
        if keys.iter().map(locals).sum::<usize>() > MAX_LOCALS {
            return None;
        }
        let mut script = Decide::default();
        script.unpack(keys);
        script.text.push_str(source.clock());
        script.get(keys.len());
        for (at, key) in keys.iter().enumerate() {
            script.read(at, key);
        }
        script.take(keys);
        for at in 0..keys.len() {
            script.write(at);
        }
        script.text.push_str("return 'D' .. stamp .. all\n");
        // A variable `stamp` would be one more string, and most calls need it only once.
        Some(Self::new(script.text.replace("stamp", STAMP)))
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn sha(&self) -> &str {
        &self.sha
    }
}

/// The script that decides checks, while its text is made.
#[derive(Default)]
struct Decide {
    text: String,
    /// The number of steps so far.
    steps: usize,
    /// For each key, the fragments of its steps.
    fragments: Vec<Vec<Filled>>,
}

/// The fragments of a step, with the names of variables filled in.
struct Filled {
    fits: String,
    take: String,
    write: String,
    ttl: String,
}

impl Decide {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Unpacks the argument up to the costs of the first call. `i` is the index at which the costs of the next call
    /// begin.
    fn unpack(&mut self, keys: &[KeySteps]) {
        let kinds = keys.iter().flat_map(|key| &key.kinds).enumerate();
        let arguments =
            kinds.flat_map(|(step, kind)| (0..kind.argument_count()).map(move |at| argument(step, at)));
        let numbers: Vec<_> = arguments.chain(costs(keys.len())).collect();
        let prefixes: Vec<_> = (0..keys.len()).map(|at| format!("prefix{at}")).collect();
        let format = format!(">d{}{}", "s".repeat(prefixes.len()), "d".repeat(numbers.len()));
        let names = [&["deadline".to_owned()], &prefixes[..], &numbers].concat().join(", ");
        self.line(&format!("local packed = ARGV[1]\nlocal {names}, i = struct.unpack('{format}', packed)"));
    }

    /// Gets the value of each key, as [`GET`] does, but without a table.
    fn get(&mut self, keys: usize) {
        for at in 0..keys {
            self.line(&format!("local value{at} = c('GET', KEYS[{}])", at + 1));
            self.line(&format!("if value{at} == '' then return 'E' .. stamp end"));
        }
        let lengths = (0..keys - 1).map(|at| format!("#(value{at} or '') .. ' '"));
        let values = (0..keys).map(|at| format!("(value{at} or '')"));
        let all: Vec<_> = lengths.chain(values).collect();
        self.line(&format!("local all = {}", all.join(" .. ")));
        self.line("local s, p, back");
    }

    /// Adds the lines that read the state of a key, and advance the state to the present time.
    fn read(&mut self, at: usize, key: &KeySteps) {
        self.line(&format!("s, p, back = value{at}, #prefix{at} + 1, false"));
        self.line(&format!(
            "if s and string.find(s, prefix{at}, 1, true) ~= 1 then return 'O' .. stamp .. all end"
        ));
        let mut filled = Vec::with_capacity(key.kinds.len());
        for kind in &key.kinds {
            let step = self.steps;
            let fill = |fragment: &str| {
                let mut text = fragment.replace('$', &step.to_string()).replace("cost", &format!("cost{at}"));
                for place in 0..kind.argument_count() {
                    text = text.replace(&format!("@{}", place + 1), &argument(step, place));
                }
                text
            };
            let Fragments { read, fits, take, write, ttl } = fragments(*kind);
            self.text.push_str(&fill(read));
            filled.push(Filled { fits: fill(fits), take: fill(take), write: fill(write), ttl: fill(ttl) });
            self.steps += 1;
        }
        self.line("if s and p ~= #s + 1 then return 'O' .. stamp .. all end");
        // The state of a key must be written if the clock was set back, even if nothing is charged.
        self.line(&format!("local must{at} = back"));
        self.fragments.push(filled);
    }

    /// Decides the calls in order, and charges those that are admitted.
    fn take(&mut self, keys: &[KeySteps]) {
        let count = keys.len();
        self.line("while true do");
        let deciding = |at: &usize| !keys[*at].is_in_shadow;
        let fits: Vec<_> = (0..count).filter(deciding).map(|at| self.fits(at)).collect();
        self.line(&format!(
            "if {} then",
            if fits.is_empty() { "true".to_owned() } else { fits.join(" and ") }
        ));
        for (at, key) in keys.iter().enumerate() {
            if key.is_in_shadow {
                self.line(&format!("if {} then", self.fits(at)));
            }
            let takes: Vec<_> = self.fragments[at].iter().map(|step| step.take.clone()).collect();
            takes.iter().for_each(|take| self.line(take));
            self.line(&format!("must{at} = true"));
            if key.is_in_shadow {
                self.line("end");
            }
        }
        let (format, costs) = ("d".repeat(count), costs(count).collect::<Vec<_>>().join(", "));
        self.line("end\nif i > #packed then break end");
        self.line(&format!("{costs}, i = struct.unpack('>{format}', packed, i)\nend"));
    }

    fn fits(&self, at: usize) -> String {
        let fits: Vec<_> = self.fragments[at].iter().map(|step| step.fits.as_str()).collect();
        fits.join(" and ")
    }

    /// Adds the lines of the script that write the state of a key, if the state must be written.
    fn write(&mut self, at: usize) {
        self.line(&format!("if must{at} then\nlocal x, ttl = prefix{at}"));
        for (step, Filled { write, ttl, .. }) in std::mem::take(&mut self.fragments[at]).iter().enumerate() {
            let ttl = if step == 0 { ttl.clone() } else { format!("math.max(ttl, {ttl})") };
            // Each fragment is in a block of its own, since a function can have at most 200 local variables.
            self.line(&format!("do\n{write}ttl = {ttl}\nend"));
        }
        self.line(&format!("c('PSETEX', KEYS[{}], ttl + 1, x)\nend", at + 1));
    }
}

/// Returns the name of the variable of an argument.
fn argument(step: usize, at: usize) -> String {
    format!("a{step}_{at}")
}

/// Returns the names of the variables of a call's costs, one for each key.
fn costs(keys: usize) -> impl Iterator<Item = String> {
    (0..keys).map(|at| format!("cost{at}"))
}
