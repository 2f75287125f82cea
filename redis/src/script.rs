//! The scripts that servers execute, and their last argument.
//!
//! Scripts that decide checks are made of fragments, one for each limit. So there is one script for each *combination
//! of kinds* of limits, and quotas are arguments of the script. Such a script gets a list of the costs of several
//! calls, and decides the calls in the order of this list. The script then writes the resulting state, and returns the
//! server's time and the state that it found. From that time and that state, this process computes the decision of each
//! call, with the algorithm's own arithmetic.
//!
//! Numbers in Lua are floating-point numbers. Integers are exact up to 2^53, and only the format `%d` prints all of
//! their digits. So limits that need larger numbers have no script, and a state that has larger numbers because its key
//! is in debt is decided by this process.

#[cfg(test)]
use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

use super::error::{RedisError, RedisErrorKind};
use tower_throttle::store_support::{MAX_LOCALS, ScriptSteps, StepKind};

/// The number of local variables for each key, apart from those of its steps.
const KEY_LOCALS: usize = 4;

/// A script, and the SHA-1 by which the server identifies it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    text: String,
    sha: String,
}

/// The source of a script's time.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeSource {
    /// The server's clock.
    Server,
    /// The deadline of the script, in tests, which set the deadline of all scripts in microseconds. Keys do not expire
    /// in such tests, and the time to live of each key is written to a second key, whose name begins with `ttl:`.
    #[cfg(test)]
    Passed(&'static AtomicU64),
}

/// The bytes of the last argument of a script, which the script gets by `struct.unpack`. Each number has eight bytes,
/// which are those of a floating-point number, because Lua has only such numbers. Each string ends with a zero byte.
#[derive(Clone, Debug, Default)]
// This capacity is enough for a call on two token buckets.
pub(super) struct Packed(SmallVec<[u8; 192]>);

/// The limits of one key in a script.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeySteps {
    kinds: Vec<StepKind>,
    /// `true` if the limits of the key are in shadow mode: they do not decide whether a call is admitted. If the other
    /// keys admit the call, these limits are charged, provided that they would admit the call as well.
    is_in_shadow: bool,
}

/// The part of a limiter in a script.
#[derive(Clone, Debug)]
pub(super) struct ScriptPart {
    kinds: Vec<StepKind>,
    /// The arguments of the steps, each as eight bytes.
    arguments: Vec<u8>,
    max_cost: u64,
}

impl Script {
    /// Creates a script whose last argument is the deadline. `body` is what the script does after it has read the time.
    pub(super) fn new(source: TimeSource, body: &str) -> Self {
        Self::of_text(format!("{}{body}", source.head()))
    }

    /// Creates a script whose body may create a hash, and calls `refused_hash` before it does.
    pub(super) fn of_hash(source: TimeSource, body: &str) -> Self {
        Self::new(source, &format!("{REFUSED}{REFUSED_HASH}{body}"))
    }

    /// Creates the script that is executed when a store connects. It writes nothing, and fails if the user may not run the
    /// commands that each limiter of a rate needs, or those in its arguments.
    pub(super) fn of_connect(source: TimeSource, get: &str) -> Self {
        Self::new(source, &format!("{REFUSED}{get}{CONNECT}"))
    }

    fn of_text(text: String) -> Self {
        let sha = ::redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    /// Creates the script that decides checks, or returns `None` if it would need too many variables. Usually `keys`
    /// has one key. A joint call has several keys, and is charged to all of them or to none. The script has one
    /// argument, because the server reads one long argument faster than many short ones. It contains the deadline, the
    /// beginnings of the values that this process writes, one for each key, the arguments of all steps, and the costs
    /// of each call, one for each key. Each number has eight bytes, and each string ends with a zero byte.
    pub(super) fn of_checks(source: TimeSource, keys: &[KeySteps]) -> Option<Self> {
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
        // With a variable `stamp`, Lua would create one more string for each call.
        Some(Self::of_text(script.text.replace("stamp", STAMP)))
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn sha(&self) -> &str {
        &self.sha
    }

    /// Names the command that is renamed or that the user may not run, if `error` has its line. Each line has at most one
    /// command.
    pub(super) fn with_command(&self, error: RedisError) -> RedisError {
        let command = || {
            // Before Redis 7.0, the number of the line is repeated after a space.
            let (_, rest) = error.detail().rsplit_once("user_script:")?;
            let digits = rest.trim_start().split(|letter: char| !letter.is_ascii_digit()).next()?;
            let line = self.text.lines().nth(digits.parse::<usize>().ok()?.checked_sub(1)?)?;
            line.split_once("c('")?.1.split_once('\'')
        };
        match command().filter(|_| error.kind() == RedisErrorKind::Permission) {
            Some((command, _)) => RedisError::new(error.kind(), format!("{command}: {}", error.detail())),
            None => error,
        }
    }
}

impl TimeSource {
    /// Returns the beginning of a script whose last argument is the deadline.
    fn head(self) -> String {
        let clock = self.clock();
        format!("local deadline = struct.unpack('>d', ARGV[#ARGV])\n{clock}local stamp = {STAMP}\n")
    }

    /// Returns the lines that read the clock. The lines before them must define `deadline`.
    const fn clock(self) -> &'static str {
        match self {
            Self::Server => SERVER,
            #[cfg(test)]
            Self::Passed(_) => PASSED,
        }
    }
}

impl Packed {
    pub(super) fn number(&mut self, number: u64) {
        self.bytes(&packed(number));
    }

    /// Adds a string, which must not contain a zero byte.
    fn string(&mut self, string: &str) {
        debug_assert!(!string.contains('\0'), "{string:?}");
        self.bytes(string.as_bytes());
        self.bytes(b"\0");
    }

    /// Adds bytes that are packed already.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl ScriptPart {
    pub(super) fn new(steps: ScriptSteps) -> Self {
        let ScriptSteps { steps, max_cost, .. } = steps;
        let arguments = steps.iter().flat_map(|step| step.arguments[..step.kind.argument_count()].to_vec());
        Self {
            kinds: steps.iter().map(|step| step.kind).collect(),
            arguments: arguments.flat_map(packed).collect(),
            max_cost,
        }
    }

    /// Returns the steps for the limiter's key.
    pub(super) fn steps(&self, is_in_shadow: bool) -> KeySteps {
        KeySteps { kinds: self.kinds.clone(), is_in_shadow }
    }

    /// Returns whether a script can decide a call of this cost.
    pub(super) fn decides(&self, cost: u64) -> bool {
        cost <= self.max_cost
    }
}

/// Packs what a script for these keys unpacks after the deadline. `costs` are the costs of all calls, one call after
/// another.
pub(super) fn pack(keys: &[(&ScriptPart, &str)], costs: impl Iterator<Item = u64>, last: &mut Packed) {
    for (_, prefix) in keys {
        last.string(prefix);
    }
    for (part, _) in keys {
        last.bytes(&part.arguments);
    }
    costs.for_each(|cost| last.number(cost));
}

/// Returns the bytes of a number in an argument.
fn packed(number: u64) -> [u8; 8] {
    (number as f64).to_be_bytes()
}

/// The last argument of a script, which is unpacked as by the script, for servers in this process. As an iterator, it
/// removes the number at the beginning and returns it, until fewer than eight bytes are left.
#[cfg(any(test, feature = "__in-process"))]
pub(super) struct Unpacked {
    bytes: Vec<u8>,
    /// The number of bytes that were unpacked.
    unpacked: usize,
}

#[cfg(any(test, feature = "__in-process"))]
/// A word of a command. Each of its characters stands for one byte.
impl From<&str> for Unpacked {
    fn from(word: &str) -> Self {
        Self { bytes: word.chars().map(|byte| byte as u8).collect(), unpacked: 0 }
    }
}

#[cfg(any(test, feature = "__in-process"))]
impl Unpacked {
    pub(super) fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// Removes the string at the beginning, and returns it. Returns `None` if no string ends in these bytes.
    pub(super) fn string(&mut self) -> Option<String> {
        let end = self.rest().iter().position(|byte| *byte == 0)?;
        let string = String::from_utf8(self.rest()[..end].to_vec()).ok()?;
        self.unpacked += end + 1;
        Some(string)
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.unpacked..]
    }
}

#[cfg(any(test, feature = "__in-process"))]
impl Iterator for Unpacked {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let number = f64::from_be_bytes(*self.rest().first_chunk()?) as u64;
        self.unpacked += 8;
        Some(number)
    }
}

/// Reads the server's time. After the deadline, the script changes nothing, because its callers no longer wait.
const SERVER: &str = "\
local c = redis.call
local t = c('TIME')
local now = t[1] * 1000000 + t[2]
if now > deadline then return 'L' .. t[1] .. ' ' .. t[2] .. ' ' end
";

/// Defines `refused`, which returns an error if a command is renamed, or if the user may not run it. Each command is a
/// table of its words. Before Redis 7.0, only commands that are renamed are found: a command without its arguments fails.
const REFUSED: &str = "\
local function refused(commands)
  for _, words in ipairs(commands) do
    local is_known, may = true, nil
    if redis.acl_check_cmd then is_known, may = pcall(redis.acl_check_cmd, unpack(words))
    else may = not string.find(tostring(redis.pcall(words[1]).err), 'nknown') end
    if not is_known or not may then
      return redis.error_reply('NOPERM ' .. words[1] .. ' is renamed, or the user may not run it')
    end
  end
end
";

/// Asks for the commands that are not executed when a store connects.
const CONNECT: &str = "\
local commands = {{'EVAL', '', '0'}, {'PSETEX', KEYS[1], '1', '1'}, {'DEL', KEYS[1]}}
for i = 1, #ARGV - 1 do commands[3 + i] = {ARGV[i]} end
return refused(commands) or 'D' .. stamp .. all
";

/// Defines `refused_hash`, which returns an error if the user may not run one of the commands that write the first key, a
/// hash, and set its time to live. It is called while the key does not exist, so that nothing is written then.
///
/// Before Redis 7.0, the commands themselves are called, and have no effect. HSET comes first, because it is the only one
/// that a full server refuses, and only as the first write of a script. It fails by its number of arguments at last.
const REFUSED_HASH: &str = "\
local function refused_hash()
  if redis.acl_check_cmd then
    return refused({{'HSET', KEYS[1], 's', ''}, {'HDEL', KEYS[1], 's'}, {'PEXPIRE', KEYS[1], '1'}})
  end
  local failed = redis.pcall('HSET', KEYS[1], 's', '', 's')
  if not string.find(failed.err, 'number of arguments') then c('HSET', KEYS[1], 's', '', 's') end
  c('HDEL', KEYS[1], 's')
  c('PEXPIRE', KEYS[1], 1)
end
";

/// The server's time in a reply. It is in seconds and microseconds, as it was read, because formatting a number takes
/// almost as long as executing a command.
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
            kinds.flat_map(|(step, kind)| (0..kind.argument_count()).map(move |index| argument(step, index)));
        let numbers: Vec<_> = arguments.chain(costs(keys.len())).collect();
        let prefixes: Vec<_> = (0..keys.len()).map(|at| format!("prefix{at}")).collect();
        let format = format!(">d{}{}", "s".repeat(prefixes.len()), "d".repeat(numbers.len()));
        let names = [&["deadline".to_owned()], &prefixes[..], &numbers].concat().join(", ");
        self.line(&format!("local packed = ARGV[1]\nlocal {names}, i = struct.unpack('{format}', packed)"));
    }

    /// Gets the value of each key, as the script that only reads does, but without a table.
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
                for index in 0..kind.argument_count() {
                    text = text.replace(&format!("@{}", index + 1), &argument(step, index));
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
        let format = "d".repeat(count);
        let costs = costs(count).collect::<Vec<_>>().join(", ");
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
fn argument(step: usize, index: usize) -> String {
    format!("a{step}_{index}")
}

/// Returns the names of the variables of a call's costs, one for each key.
fn costs(keys: usize) -> impl Iterator<Item = String> {
    (0..keys).map(|at| format!("cost{at}"))
}

/// The parts of a script for one limit. `$` stands for the index of the limit, `@1` for its first argument, `@2` for
/// its second, and `cost` for the cost of the call on the key of the limit.
struct Fragments {
    /// Reads the state and advances it to `now`.
    read: &'static str,
    /// The condition that `cost` units are available.
    fits: &'static str,
    take: &'static str,
    /// Appends the state to the string `x`.
    write: &'static str,
    /// The time to live of the state, in milliseconds and rounded up. It is computed after `write`.
    ttl: &'static str,
}

const fn fragments(kind: StepKind) -> Fragments {
    match kind {
        StepKind::Bucket => BUCKET,
        StepKind::FixedWindow => FIXED_WINDOW,
        StepKind::SlidingCounter => SLIDING_COUNTER,
        StepKind::SlidingWindow => SLIDING_WINDOW,
    }
}

/// Arguments: the number of grains that leave the bucket per microsecond, the number of grains that a unit adds, the
/// capacity in grains, the number of grains that must be free for each unit of the cost (0 for a leaky bucket), the
/// period in microseconds, and the maximum number of grains in a state.
const BUCKET: Fragments = Fragments {
    read: "\
local m$, h$, l$ = 0, 0, nil
if s then
  m$, l$, p = string.match(s, '^ (%d+) (%d+)()', p)
  if not p then return 'O' .. stamp .. all end
  m$, l$ = m$ + 0, l$ + 0
  if m$ > @6 or l$ > 9007199254740992 then return 'O' .. stamp .. all end
  local e = now - l$
  if e >= 0 then
    m$ = m$ - e * @1
    if m$ < 0 then m$ = 0 end
  elseif -e <= @5 then h$ = -e
  else back = true end
end
",
    fits: "m$ <= @3 - cost * @4",
    take: "m$ = m$ + cost * @2",
    write: "\
x = string.format('%s %d %d', x, m$, now + h$)
",
    ttl: "math.ceil((m$ / @1 + h$) / 1000)",
};

/// Arguments: the limit, the period in microseconds, and 1 if windows are aligned, otherwise 0.
const FIXED_WINDOW: Fragments = Fragments {
    read: "\
local l$, g$, n$, h$ = now, 0, 0, 0
if s then
  l$, g$, n$, p = string.match(s, '^ (%d+) (%d+) (%d+)()', p)
  if not p then return 'O' .. stamp .. all end
  l$, g$, n$ = l$ + 0, g$ + 0, n$ + 0
  if l$ > 9007199254740992 or g$ >= @2 or n$ > 9007199254740992 then return 'O' .. stamp .. all end
  local e = now - l$
  if e >= 0 then g$, l$ = g$ + e, now
  elseif -e <= @2 then h$ = -e
  else
    l$, back = now, true
    if @3 == 1 and g$ < @2 then g$ = math.fmod(now, @2) end
  end
  if g$ >= @2 then n$ = 0 end
end
",
    fits: "cost <= @1 - n$",
    take: "\
if n$ == 0 then g$ = @3 == 1 and math.fmod(l$, @2) or 0 end
n$ = n$ + cost",
    write: "\
if n$ == 0 then g$ = 0 end
x = string.format('%s %d %d %d', x, l$, g$, n$)
",
    ttl: "math.ceil(((n$ > 0 and @2 - g$ or 0) + h$) / 1000)",
};

/// Arguments: the limit, and the period in microseconds.
const SLIDING_COUNTER: Fragments = Fragments {
    read: "\
local l$, i$, a$, n$, h$, v$ = now, 0, 0, 0, 0, 0
if s then
  l$, i$, a$, n$, p = string.match(s, '^ (%d+) (%d+) (%d+) (%d+)()', p)
  if not p then return 'O' .. stamp .. all end
  l$, i$, a$, n$ = l$ + 0, i$ + 0, a$ + 0, n$ + 0
  if l$ > 9007199254740992 or i$ >= @2 or math.max(a$, n$) * @2 >= 9007199254740992 then return 'O' .. stamp .. all end
  local e = now - l$
  if e >= 0 then i$, l$ = i$ + e, now
  elseif -e <= @2 then h$ = -e
  else l$, back = now, true end
  if i$ >= @2 then
    i$ = i$ - @2
    if i$ < @2 then a$, n$ = n$, 0 else i$, a$, n$ = 0, 0, 0 end
  end
  v$ = n$
  if a$ > 0 then
    local w = a$ * (@2 - i$)
    local r = math.fmod(w, @2)
    v$ = v$ + (w - r) / @2
    if r > 0 then v$ = v$ + 1 end
  end
end
",
    fits: "cost <= @1 - v$",
    take: "\
if v$ == 0 then i$ = 0 end
n$, v$ = n$ + cost, v$ + cost",
    write: "\
if a$ == 0 and n$ == 0 then i$ = 0 end
x = string.format('%s %d %d %d %d', x, l$, i$, a$, n$)
local rest = 0
if n$ > 0 then rest = 2 * @2 - i$ elseif a$ > 0 then rest = @2 - i$ end
",
    ttl: "math.ceil((rest + h$) / 1000)",
};

/// Arguments: the limit, the period, the length of a slice, and the number of slices. The period and the length are in
/// nanoseconds.
const SLIDING_WINDOW: Fragments = Fragments {
    read: "\
local l$, i$, o$, n$, h$, f$, k$ = now, 0, 0, 0, 0, {}, 0
if s then
  local z
  l$, i$, o$, z, p = string.match(s, '^ (%d+) (%d+) (%d+) (%d+)()', p)
  if not p then return 'O' .. stamp .. all end
  l$, i$, o$, z = l$ + 0, i$ + 0, o$ + 0, z + 0
  if l$ > 9007199254740992 or i$ >= @3 or o$ > 9007199254740992 or z > @4 then return 'O' .. stamp .. all end
  local e, passed = now - l$, 0
  if e >= 0 then
    l$ = now
    if e * 1000 > 2 * @2 then i$, passed = 0, @4 + 1
    else
      i$ = i$ + e * 1000
      local r = math.fmod(i$, @3)
      passed, i$ = (i$ - r) / @3, r
    end
  elseif -e * 1000 <= @2 then h$ = -e
  else l$, back = now, true end
  local oldest = @4
  if i$ >= @2 - 1 - (@4 - 1) * @3 then oldest = @4 - 1 end
  if passed > 0 then
    if o$ > 0 and passed <= oldest then k$ = 2; f$[1], f$[2], n$ = passed, string.format('%d', o$), o$ end
    o$ = 0
  end
  local youngest = 0
  for _ = 1, z do
    local g, w
    g, w, p = string.match(s, '^ (%d+) (%d+)()', p)
    if not p then return 'O' .. stamp .. all end
    g = g + 0
    local u = w + 0
    if g <= youngest or g > @4 or u == 0 or u > 9007199254740992 then return 'O' .. stamp .. all end
    youngest = g
    g = g + passed
    if g <= oldest then f$[k$ + 1], f$[k$ + 2], k$, n$ = g, w, k$ + 2, n$ + u end
  end
  n$ = n$ + o$
  if n$ > 9007199254740992 then return 'O' .. stamp .. all end
end
",
    fits: "cost <= @1 - n$",
    take: "\
if n$ == 0 then i$ = @3 - 1 end
n$, o$ = n$ + cost, o$ + cost",
    write: "\
if n$ == 0 then i$, o$ = 0, 0 end
x = string.format('%s %d %d %d %d', x, l$, i$, o$, k$ / 2)
if k$ > 0 then x = x .. ' ' .. table.concat(f$, ' ') end
local rest = 0
if n$ > 0 then rest = @2 + @3 - 1 - i$ - (o$ > 0 and 0 or f$[1] * @3) end
",
    ttl: "math.ceil((rest / 1000 + h$) / 1000)",
};

#[cfg(test)]
mod tests;
