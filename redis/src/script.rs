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

#[cfg(any(test, feature = "__in-process"))]
use super::connection::bytes_of;
use super::error::{RedisError, RedisErrorKind};
use super::frame::Frame;
use tower_throttle::store_support::{MAX_LOCALS, ScriptSteps, StepKind};

/// The number of local variables for each key, apart from those of its steps.
const KEY_LOCALS: usize = 5;
/// The maximum number of steps whose numbers are packed by one call, since Lua limits the arguments of a call.
const PACKED_STEPS: usize = 8;

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
/// which are those of a floating-point number with the least significant byte first, because Lua has only such numbers.
/// Each string ends with a zero byte.
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

    /// Creates the script that is executed when a store connects. It writes nothing, and fails if the user may not run
    /// the commands that each limiter of a rate needs, or those in its arguments.
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
    /// frame of the values that this process writes for each key, the arguments of all steps, and the costs of each
    /// call, one for each key. Each number has eight bytes, and each string ends with a zero byte.
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
        script.line(&reply('D', keys.len()));
        Some(Self::of_text(script.text.replace(OTHER, &reply('O', keys.len()))))
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn sha(&self) -> &str {
        &self.sha
    }

    /// Names the command that is renamed or that the user may not run, if `error` has its line. Each line has at most
    /// one command.
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
        format!("local deadline = struct.unpack('<d', ARGV[#ARGV])\n{clock}local stamp = {STAMP}\n")
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
pub(super) fn pack(keys: &[(&ScriptPart, &Frame)], costs: impl Iterator<Item = u64>, last: &mut Packed) {
    for (_, Frame { head, tail }) in keys {
        last.bytes(head);
        last.string(tail);
    }
    for (part, _) in keys {
        last.bytes(&part.arguments);
    }
    costs.for_each(|cost| last.number(cost));
}

/// Returns the bytes of a number in an argument.
fn packed(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
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
        Self { bytes: bytes_of(word), unpacked: 0 }
    }
}

#[cfg(any(test, feature = "__in-process"))]
impl Unpacked {
    pub(super) fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// Removes the first eight bytes, and returns them. Returns `None` if there are fewer.
    pub(super) fn eight(&mut self) -> Option<[u8; 8]> {
        let bytes = *self.rest().first_chunk()?;
        self.unpacked += bytes.len();
        Some(bytes)
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
        self.eight().map(|bytes| f64::from_le_bytes(bytes) as u64)
    }
}

/// Reads the server's time. After the deadline, the script changes nothing, because its callers no longer wait.
const SERVER: &str = "\
local c = redis.call
local t = c('TIME')
local now = t[1] * 1000000 + t[2]
if now > deadline then return 'L' .. struct.pack('<d', now) end
";

/// Defines `refused`, which returns an error if a command is renamed, or if the user may not run it. Each command is a
/// table of its words. Before Redis 7.0, only commands that are renamed are found: a command without its arguments
/// fails.
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

/// Defines `refused_hash`, which returns an error if the user may not run one of the commands that write the first key,
/// a hash, and set its time to live. It is called while the key does not exist, so that nothing is written then.
///
/// Before Redis 7.0, the commands themselves are called, and have no effect. HSET comes first, because it is the only
/// one that a full server refuses, and only as the first write of a script. It fails by its number of arguments at
/// last.
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

/// The server's time in a reply, in microseconds.
const STAMP: &str = "struct.pack('<d', now)";

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
    /// The format and the names of the numbers of the state.
    format: String,
    numbers: String,
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
        let frames: Vec<_> = (0..keys.len()).map(|at| format!("head{at}, tail{at}")).collect();
        let format = format!("<d{}{}", ">d<s".repeat(frames.len()), "d".repeat(numbers.len()));
        let names = [&["deadline".to_owned()], &frames[..], &numbers].concat().join(", ");
        self.line(&format!("local packed = ARGV[1]\nlocal {names}, i = struct.unpack('{format}', packed)"));
    }

    /// Gets the value of each key.
    fn get(&mut self, keys: usize) {
        for at in 0..keys {
            self.line(&format!("local value{at} = c('GET', KEYS[{}])", at + 1));
        }
        self.line("local s, h, p, back");
    }

    /// Adds the lines that read the state of a key, and advance the state to the present time. The value must have the
    /// head and the length of the values that this process writes.
    fn read(&mut self, at: usize, key: &KeySteps) {
        let fragments: Vec<_> = key.kinds.iter().map(|kind| fragments(*kind)).collect();
        let numbers: usize = fragments.iter().map(|fragments| fragments.numbers.len()).sum();
        let has_slices = fragments.iter().any(|fragments| fragments.slices.is_some());
        let first = self.steps;
        let mut advance = String::new();
        let mut filled = Vec::with_capacity(key.kinds.len());
        for (kind, fragments) in key.kinds.iter().zip(&fragments) {
            let step = self.steps;
            let fill = |fragment: &str| {
                let mut text = fragment.replace('$', &step.to_string()).replace("cost", &format!("cost{at}"));
                for index in 0..kind.argument_count() {
                    text = text.replace(&format!("@{}", index + 1), &argument(step, index));
                }
                text
            };
            let names = |variables: &[(&str, &str)]| {
                fill(&variables.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))
            };
            let variables = [fragments.numbers, fragments.others].concat();
            let new: Vec<_> = variables.iter().map(|(_, new)| *new).collect();
            self.line(&format!("local {} = {}", names(&variables), new.join(", ")));
            let numbers = names(fragments.numbers);
            let mut format = "d".repeat(fragments.numbers.len());
            advance += &if step == first {
                format!(
                    "h, {numbers}, p = struct.unpack('>d<{format}', s)\nif h ~= head{at} then {OTHER} end\n"
                )
            } else {
                format!("{numbers}, p = struct.unpack('<{format}', s, p)\n")
            };
            // In a block of its own, since a function can have at most 200 local variables.
            advance += &format!("do\n{}end\n", fill(fragments.advance));
            let mut written = numbers;
            if let Some(slices) = fragments.slices {
                format += "c0";
                written += &fill(&format!(", {slices}"));
            }
            filled.push(Filled {
                format,
                numbers: written,
                fits: fill(fragments.fits),
                take: fill(fragments.take),
                write: fill(fragments.write),
                ttl: fill(fragments.ttl),
            });
            self.steps += 1;
        }
        let differs = if has_slices { "<" } else { "~=" };
        let length = 8 * (1 + numbers);
        self.line(&format!(
            "s, back = value{at}, false\nif s then\nif #s {differs} {length} + #tail{at} then\n\
             if s == '' then return 'E' end\n{OTHER}\nend"
        ));
        self.text += &advance;
        if has_slices {
            self.line(&format!("if p + #tail{at} ~= #s + 1 then {OTHER} end"));
        }
        // The state of a key must be written if the clock was set back, even if nothing is charged.
        self.line(&format!("end\nlocal must{at} = back"));
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
        self.line(&format!("{costs}, i = struct.unpack('<{format}', packed, i)\nend"));
    }

    fn fits(&self, at: usize) -> String {
        let fits: Vec<_> = self.fragments[at].iter().map(|step| step.fits.as_str()).collect();
        fits.join(" and ")
    }

    /// Adds the lines of the script that write the state of a key, if the state must be written.
    fn write(&mut self, at: usize) {
        self.line(&format!("if must{at} then\nlocal ttl"));
        let steps = std::mem::take(&mut self.fragments[at]);
        for (step, Filled { write, ttl, .. }) in steps.iter().enumerate() {
            let ttl = if step == 0 { ttl.clone() } else { format!("math.max(ttl, {ttl})") };
            self.line(&format!("do\n{write}ttl = {ttl}\nend"));
        }
        let chunks = steps.chunks(PACKED_STEPS);
        let last = chunks.len() - 1;
        let pack = |(index, steps): (usize, &[Filled])| {
            let (start, head) =
                if index == 0 { (">d<", format!("head{at}, ")) } else { ("<", String::new()) };
            let (end, tail) = if index == last { ("c0", format!(", tail{at}")) } else { ("", String::new()) };
            let format: String = steps.iter().map(|step| step.format.as_str()).collect();
            let numbers: Vec<_> = steps.iter().map(|step| step.numbers.as_str()).collect();
            format!("struct.pack('{start}{format}{end}', {head}{}{tail})", numbers.join(", "))
        };
        let packed = chunks.enumerate().map(pack).collect::<Vec<_>>().join(" .. ");
        // The number is cut off to an integer, and the server formats integers in half the time.
        let ttl = "string.format('%d', ttl / 1000 + 2)";
        self.line(&format!("c('PSETEX', KEYS[{}], {ttl}, {packed})\nend", at + 1));
    }
}

/// Stands for the statement that returns the values because the script cannot process one of them.
const OTHER: &str = "OTHER";

/// Returns the statement that returns this verdict, the server's time, the lengths of the values of all keys but the
/// last, and all values. Lua joins strings faster than it packs them.
fn reply(verdict: char, keys: usize) -> String {
    let lengths: String = (0..keys - 1).map(|at| format!(", #(value{at} or '')")).collect();
    let values: String = (0..keys).map(|at| format!(" .. (value{at} or '')")).collect();
    let format = "d".repeat(keys);
    format!("return '{verdict}' .. struct.pack('<{format}', now{lengths}){values}")
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
    /// The variables of the numbers of the state, in their order, with their values in a new state.
    numbers: &'static [(&'static str, &'static str)],
    /// Further variables, with their values in a new state.
    others: &'static [(&'static str, &'static str)],
    /// The variable of a string that follows the numbers in the value.
    slices: Option<&'static str>,
    /// Checks the numbers, and advances the state to `now`. The numbers may be any, also fractions or no numbers at
    /// all. `s` is the value, and `p` the index of what follows the numbers.
    advance: &'static str,
    /// The condition that `cost` units are available.
    fits: &'static str,
    take: &'static str,
    /// Prepares the numbers for the value.
    write: &'static str,
    /// The time to live of the state, in microseconds. It is computed after `write`.
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
    numbers: &[("m$", "0"), ("l$", "now")],
    others: &[],
    slices: None,
    advance: "\
if not (m$ >= 0 and m$ <= @6 and l$ >= 0 and l$ <= 9007199254740992 and m$ % 1 + l$ % 1 == 0) then OTHER end
local e = now - l$
if e >= 0 then
  m$, l$ = m$ - e * @1, now
  if m$ < 0 then m$ = 0 end
elseif -e > @5 then l$, back = now, true end
",
    fits: "m$ <= @3 - cost * @4",
    take: "m$ = m$ + cost * @2",
    write: "",
    ttl: "m$ / @1 + l$ - now",
};

/// Arguments: the limit, the period in microseconds, and 1 if windows are aligned, otherwise 0.
const FIXED_WINDOW: Fragments = Fragments {
    numbers: &[("l$", "now"), ("g$", "0"), ("n$", "0")],
    others: &[],
    slices: None,
    advance: "\
if not (l$ >= 0 and l$ <= 9007199254740992 and g$ >= 0 and g$ < @2 and n$ >= 0 and n$ <= 9007199254740992
  and l$ % 1 + g$ % 1 + n$ % 1 == 0) then OTHER end
local e = now - l$
if e >= 0 then g$, l$ = g$ + e, now
elseif -e > @2 then
  l$, back = now, true
  if @3 == 1 and g$ < @2 then g$ = math.fmod(now, @2) end
end
if g$ >= @2 then n$ = 0 end
",
    fits: "cost <= @1 - n$",
    take: "\
if n$ == 0 then g$ = @3 == 1 and math.fmod(l$, @2) or 0 end
n$ = n$ + cost",
    write: "\
if n$ == 0 then g$ = 0 end
",
    ttl: "(n$ > 0 and @2 - g$ or 0) + l$ - now",
};

/// Arguments: the limit, and the period in microseconds.
const SLIDING_COUNTER: Fragments = Fragments {
    numbers: &[("l$", "now"), ("i$", "0"), ("a$", "0"), ("n$", "0")],
    others: &[("v$", "0")],
    slices: None,
    advance: "\
if not (l$ >= 0 and l$ <= 9007199254740992 and i$ >= 0 and i$ < @2 and a$ >= 0 and a$ * @2 < 9007199254740992
  and n$ >= 0 and n$ * @2 < 9007199254740992 and l$ % 1 + i$ % 1 + a$ % 1 + n$ % 1 == 0) then OTHER end
local e = now - l$
if e >= 0 then i$, l$ = i$ + e, now
elseif -e > @2 then l$, back = now, true end
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
",
    fits: "cost <= @1 - v$",
    take: "\
if v$ == 0 then i$ = 0 end
n$, v$ = n$ + cost, v$ + cost",
    write: "\
if a$ == 0 and n$ == 0 then i$ = 0 end
local rest = 0
if n$ > 0 then rest = 2 * @2 - i$ elseif a$ > 0 then rest = @2 - i$ end
",
    ttl: "rest + l$ - now",
};

/// Arguments: the limit, the period, the length of a slice, and the number of slices. The period and the length are in
/// nanoseconds. The number of a closed slice is its age, plus 1,024 for each of its units. `y$` is the age of the
/// youngest closed slice.
const SLIDING_WINDOW: Fragments = Fragments {
    numbers: &[("l$", "now"), ("i$", "0"), ("o$", "0"), ("z$", "0")],
    others: &[("n$", "0"), ("y$", "0"), ("f$", "''")],
    slices: Some("f$"),
    advance: "\
if not (l$ >= 0 and l$ <= 9007199254740992 and i$ >= 0 and i$ < @3 and o$ >= 0 and o$ < 8796093022208
  and z$ >= 0 and z$ <= @4 and l$ % 1 + i$ % 1 + o$ % 1 + z$ % 1 == 0 and p + 8 * z$ <= #s + 1) then OTHER end
local e, passed = now - l$, 0
if e >= 0 then
  l$ = now
  if e * 1000 > 2 * @2 then i$, passed = 0, @4 + 1
  else
    i$ = i$ + e * 1000
    if i$ >= @3 then
      local r = math.fmod(i$, @3)
      passed, i$ = (i$ - r) / @3, r
    end
  end
elseif -e * 1000 > @2 then l$, back = now, true end
local oldest = @4
if i$ >= @2 - 1 - (@4 - 1) * @3 then oldest = @4 - 1 end
local slices, k = z$ > 0 and {struct.unpack('<' .. string.rep('d', z$), s, p)}, 0
local youngest = 0
for j = 1, z$ do
  local x = slices[j]
  local g = x % 1024
  if not (g > youngest and g <= @4 and x > g and x <= 9007199254740992 and x % 1 == 0) then OTHER end
  youngest = g
  if g + passed <= oldest then
    k, n$, slices[j] = j, n$ + (x - g) / 1024, x + passed
    if j == 1 then y$ = g + passed end
  end
end
if passed == 0 then
  if k > 0 then f$ = string.sub(s, p, p + 8 * k - 1) end
else
  if k > 0 then f$ = struct.pack('<' .. string.rep('d', k), unpack(slices, 1, k)) end
  if o$ > 0 and passed <= oldest then
    k, n$, y$, f$ = k + 1, n$ + o$, passed, struct.pack('<d', o$ * 1024 + passed) .. f$
  end
  o$ = 0
end
p, z$ = p + 8 * z$, k
n$ = n$ + o$
if n$ > 9007199254740992 then OTHER end
",
    fits: "cost <= @1 - n$",
    take: "\
if n$ == 0 then i$ = @3 - 1 end
n$, o$ = n$ + cost, o$ + cost",
    write: "\
if n$ == 0 then i$, o$ = 0, 0 end
local rest = 0
if n$ > 0 then rest = @2 + @3 - 1 - i$ - (o$ > 0 and 0 or y$ * @3) end
",
    ttl: "rest / 1000 + l$ - now",
};

#[cfg(test)]
mod tests;
