//! The scripts, which read and change states on the server.

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
    /// The deadline of the script, in tests. Keys do not expire in such tests, and the time to live of each key is
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
    pub(super) const fn clock(self) -> &'static str {
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

/// The server's time in a reply. It is in seconds and microseconds, as it was read, because formatting a number takes
/// almost as long as executing a command.
pub(super) const STAMP: &str = "t[1] .. ' ' .. t[2] .. ' '";

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

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn sha(&self) -> &str {
        &self.sha
    }
}
