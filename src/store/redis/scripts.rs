//! The scripts, which change states on the server.
//!
//! A script is made of fragments, one for each limit. So there is one script for each *combination of kinds* of limits,
//! and quotas are arguments of the script. A script decides several calls in order by their costs, writes the resulting
//! state, and returns the server's time and the state that it found. From that time and that state, this process
//! computes the decision of each call, with the algorithm's own arithmetic.
//!
//! Numbers in Lua are floating-point numbers. Integers are exact up to 2^53, and only the format `%d` prints all of
//! their digits. So limits that need larger numbers have no script.

use std::fmt::Write;

use super::fragments::{Fragments, fragments};
use crate::algorithm::Step;

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
    /// The last argument, in tests. Keys do not expire in such tests: the time to live of each key is written to a
    /// second key, whose name begins with `ttl:`.
    #[cfg(test)]
    Passed,
}

impl TimeSource {
    pub(super) const fn head(self) -> &'static str {
        match self {
            Self::Server => SERVER,
            #[cfg(test)]
            Self::Passed => PASSED,
        }
    }
}

/// Reads the server's time. The last argument of a script is a deadline. After the deadline, the script changes
/// nothing, because its callers no longer wait. The time is returned as it was read, in seconds and microseconds,
/// because formatting a number takes as long as a command.
const SERVER: &str = "\
local c = redis.call
local t = c('TIME')
local now = t[1] * 1000000 + t[2]
local stamp = t[1] .. ' ' .. t[2] .. ' '
if now > tonumber(ARGV[#ARGV]) then return 'L' .. stamp end
";

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
local now = tonumber(ARGV[#ARGV])
local stamp = string.format('%d %d ', math.floor(now / 1000000), math.fmod(now, 1000000))
";

/// Gets the value of the key. An empty value was not written by this crate.
const GET: &str = "\
local s = c('GET', KEYS[1])
if s == '' then return 'E' .. stamp end
";

/// Returns the state of the key.
const READ: &str = "\
return 'D' .. stamp .. (s or '')
";

/// Writes the state of the key if no other process has changed it. The arguments are the old state, the new state, and
/// the time to live. If the new state is empty, the key is deleted.
const SWAP: &str = "\
s = s or ''
if s ~= ARGV[1] then return 'O' .. stamp .. s end
if ARGV[2] == '' then c('DEL', KEYS[1]) else c('PSETEX', KEYS[1], ARGV[3], ARGV[2]) end
return 'D' .. stamp
";

/// Begins to read the state. The first argument is the beginning of the values that this process writes. The second
/// contains numbers of eight bytes each.
const OPEN: &str = "\
local prefix, numbers, back, any = ARGV[1], ARGV[2], false, false
local p = #prefix + 1
if s and string.find(s, prefix, 1, true) ~= 1 then return 'O' .. stamp .. s end
";

impl Script {
    pub(super) fn new(text: String) -> Self {
        let sha = ::redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    /// Creates the script that reads a state.
    pub(super) fn read(source: TimeSource) -> Self {
        Self::new(format!("{}{GET}{READ}", source.head()))
    }

    /// Creates the script that writes a state if no other process has changed it.
    pub(super) fn swap(source: TimeSource) -> Self {
        Self::new(format!("{}{GET}{SWAP}", source.head()))
    }

    /// Creates the script that decides checks by these steps. The first argument of the script is the beginning of the
    /// values that this process writes. The second argument contains the arguments of the steps and then the costs of
    /// the calls, each as eight bytes. These bytes are one argument, because the server reads one long argument faster
    /// than many short ones.
    pub(super) fn decide(source: TimeSource, steps: &[Step]) -> Self {
        let mut text = format!("{}{GET}{OPEN}", source.head());
        let mut first = 1;
        let mut parts = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let count = step.kind.argument_count();
            let names: Vec<_> = (0..count).map(|argument| format!("a{index}_{argument}")).collect();
            let (names, format) = (names.join(", "), format!(">{}", "d".repeat(count)));
            let _ = writeln!(text, "local {names} = struct.unpack('{format}', numbers, {first})");
            first += 8 * count;
            let fill = |fragment: &str| {
                let mut filled = fragment.replace('$', &index.to_string());
                for argument in 0..count {
                    filled = filled.replace(&format!("@{}", argument + 1), &format!("a{index}_{argument}"));
                }
                filled
            };
            let Fragments { read, fits, take, write } = fragments(step.kind);
            parts.push((fill(read), fill(fits), fill(take), fill(write)));
        }
        parts.iter().for_each(|(read, ..)| text.push_str(read));
        text.push_str("if s and p ~= #s + 1 then return 'O' .. stamp .. s end\n");
        let _ =
            writeln!(text, "for i = {first}, #numbers, 8 do\nlocal cost = struct.unpack('>d', numbers, i)");
        let fits: Vec<_> = parts.iter().map(|(_, fits, ..)| fits.as_str()).collect();
        let _ = writeln!(text, "if {} then", fits.join(" and "));
        parts.iter().for_each(|(_, _, take, _)| {
            let _ = writeln!(text, "{take}");
        });
        text.push_str("any = true\nend\nend\nif any or back then\nlocal x, ttl = prefix, 0\n");
        parts.iter().for_each(|(.., write)| {
            // Each fragment is in a block of its own, since a function can have at most 200 local variables.
            let _ = writeln!(text, "do\n{write}end");
        });
        text.push_str("c('PSETEX', KEYS[1], ttl + 1, x)\nend\nreturn 'D' .. stamp .. (s or '')\n");
        Self::new(text)
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn sha(&self) -> &str {
        &self.sha
    }
}
