//! The scripts, which change states on the server.
//!
//! A script is made of fragments, one for each limit, so that there is one script for each *combination of kinds*; quotas are
//! arguments. A script decides the costs of several calls in order, writes the state that they leave, and returns the state
//! that it found and the time. From these, Rust computes what each call is answered, with the algorithm's own arithmetic.
//!
//! Numbers in Lua are floating-point: integers are exact up to 2^53, and only `%d` prints them all. What does not fit is not
//! decided by a script.

use std::fmt::Write;

use crate::algorithm::{Step, StepKind};

/// A script, and its SHA-1 by which a server knows it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    text: String,
    sha: String,
}

/// Where a script takes the time from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeSource {
    /// The server's clock.
    Server,
    /// The last argument, in tests. Keys do not expire: their time to live is written beside them.
    #[cfg(test)]
    Passed,
}

impl TimeSource {
    const fn head(self) -> &'static str {
        match self {
            Self::Server => SERVER,
            #[cfg(test)]
            Self::Passed => PASSED,
        }
    }
}

/// The last argument is the time after which a call charges nothing, since nobody waits for it any more.
const SERVER: &str = "\
local c = redis.call
local t = c('TIME')
local now = t[1] * 1000000 + t[2]
local stamp = string.format('%d ', now)
if now > tonumber(ARGV[#ARGV]) then return 'L' .. stamp end
";

#[cfg(test)]
const PASSED: &str = "\
local c = function(name, ...)
  if name == 'PSETEX' then
    local key, ttl, value = ...
    redis.call('SET', 'ttl:' .. key, ttl)
    return redis.call('SET', key, value)
  end
  return redis.call(name, ...)
end
local now = tonumber(ARGV[#ARGV])
local stamp = string.format('%d ', now)
";

/// Returns the state.
const READ: &str = "\
return 'D' .. stamp .. (c('GET', KEYS[1]) or '')
";

/// Before, after, time to live: writes a state if nobody else has written one. Without a state after it, the key is deleted.
const SWAP: &str = "\
local s = c('GET', KEYS[1]) or ''
if s ~= ARGV[1] then return 'O' .. stamp .. s end
if ARGV[2] == '' then c('DEL', KEYS[1]) else c('PSETEX', KEYS[1], ARGV[3], ARGV[2]) end
return 'D' .. stamp
";

/// The first argument is what the text begins with.
const OPEN: &str = "\
local s = c('GET', KEYS[1])
local prefix, back, any = ARGV[1], false, false
local p = #prefix + 1
if s and string.sub(s, 1, #prefix) ~= prefix then return 'O' .. stamp .. s end
";

/// Grains of a microsecond, grains of a unit, capacity, grains of a unit that must fit, period, maximum.
const BUCKET: Fragments = Fragments {
    read: "\
local m$, h$, l$ = 0, 0, nil
if s then
  m$, l$, p = string.match(s, '^ (%d+) (%d+)()', p)
  if not p then return 'O' .. stamp .. s end
  m$, l$ = tonumber(m$), tonumber(l$)
  if m$ > @6 or l$ > 9007199254740992 then return 'O' .. stamp .. s end
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
x = x .. string.format(' %d %d', m$, now + h$)
ttl = math.max(ttl, math.ceil((m$ / @1 + h$) / 1000))
",
};

/// Limit, period, 1 if aligned.
const FIXED_WINDOW: Fragments = Fragments {
    read: "\
local l$, g$, n$, h$ = now, 0, 0, 0
if s then
  l$, g$, n$, p = string.match(s, '^ (%d+) (%d+) (%d+)()', p)
  if not p then return 'O' .. stamp .. s end
  l$, g$, n$ = tonumber(l$), tonumber(g$), tonumber(n$)
  if l$ > 9007199254740992 or g$ >= @2 or n$ > @1 then return 'O' .. stamp .. s end
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
x = x .. string.format(' %d %d %d', l$, g$, n$)
ttl = math.max(ttl, math.ceil(((n$ > 0 and @2 - g$ or 0) + h$) / 1000))
",
};

/// Limit, period.
const SLIDING_COUNTER: Fragments = Fragments {
    read: "\
local l$, i$, a$, n$, h$, v$ = now, 0, 0, 0, 0, 0
if s then
  l$, i$, a$, n$, p = string.match(s, '^ (%d+) (%d+) (%d+) (%d+)()', p)
  if not p then return 'O' .. stamp .. s end
  l$, i$, a$, n$ = tonumber(l$), tonumber(i$), tonumber(a$), tonumber(n$)
  if l$ > 9007199254740992 or i$ >= @2 or a$ > @1 or n$ > @1 then return 'O' .. stamp .. s end
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
x = x .. string.format(' %d %d %d %d', l$, i$, a$, n$)
local rest = 0
if n$ > 0 then rest = 2 * @2 - i$ elseif a$ > 0 then rest = @2 - i$ end
ttl = math.max(ttl, math.ceil((rest + h$) / 1000))
",
};

/// Limit, period, width, slices; spans in nanoseconds.
const SLIDING_WINDOW: Fragments = Fragments {
    read: "\
local l$, i$, o$, n$, h$, f$, k$ = now, 0, 0, 0, 0, {}, 0
if s then
  local z
  l$, i$, o$, z, p = string.match(s, '^ (%d+) (%d+) (%d+) (%d+)()', p)
  if not p then return 'O' .. stamp .. s end
  l$, i$, o$, z = tonumber(l$), tonumber(i$), tonumber(o$), tonumber(z)
  if l$ > 9007199254740992 or i$ >= @3 or o$ > @1 or z > @4 then return 'O' .. stamp .. s end
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
    if o$ > 0 and passed <= oldest then k$ = 2; f$[1], f$[2], n$ = passed, o$, o$ end
    o$ = 0
  end
  local youngest = 0
  for _ = 1, z do
    local g, u
    g, u, p = string.match(s, '^ (%d+) (%d+)()', p)
    if not p then return 'O' .. stamp .. s end
    g, u = tonumber(g), tonumber(u)
    if g <= youngest or g > @4 or u == 0 or u > @1 then return 'O' .. stamp .. s end
    youngest = g
    g = g + passed
    if g <= oldest then f$[k$ + 1], f$[k$ + 2], k$, n$ = g, u, k$ + 2, n$ + u end
  end
  n$ = n$ + o$
  if n$ > @1 then return 'O' .. stamp .. s end
end
",
    fits: "cost <= @1 - n$",
    take: "\
if n$ == 0 then i$ = @3 - 1 end
n$, o$ = n$ + cost, o$ + cost",
    write: "\
if n$ == 0 then i$, o$ = 0, 0 end
x = x .. string.format(' %d %d %d %d', l$, i$, o$, k$ / 2)
for j = 1, k$ do x = x .. string.format(' %d', f$[j]) end
local rest = 0
if n$ > 0 then rest = @2 + @3 - 1 - i$ - (o$ > 0 and 0 or f$[1] * @3) end
ttl = math.max(ttl, math.ceil((rest / 1000 + h$) / 1000))
",
};

/// The parts of a script for one limit. `$` stands for its index, `@1` for its first argument.
struct Fragments {
    /// Reads the state and brings it up to `now`.
    read: &'static str,
    /// Whether `cost` fits.
    fits: &'static str,
    take: &'static str,
    /// Appends the state to `x`, and extends `ttl`.
    write: &'static str,
}

const fn fragments(kind: StepKind) -> Fragments {
    match kind {
        StepKind::Bucket => BUCKET,
        StepKind::FixedWindow => FIXED_WINDOW,
        StepKind::SlidingCounter => SLIDING_COUNTER,
        StepKind::SlidingWindow => SLIDING_WINDOW,
    }
}

impl Script {
    fn new(text: String) -> Self {
        let sha = ::redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    /// Creates the script that reads a state.
    pub(super) fn read(source: TimeSource) -> Self {
        Self::new(format!("{}{READ}", source.head()))
    }

    /// Creates the script that writes a state if nobody else has.
    pub(super) fn swap(source: TimeSource) -> Self {
        Self::new(format!("{}{SWAP}", source.head()))
    }

    /// Creates the script that decides checks by these steps. Its arguments are the prefix of the text, those of the steps,
    /// and the costs.
    pub(super) fn decide(source: TimeSource, steps: &[Step]) -> Self {
        let mut text = format!("{}{OPEN}", source.head());
        let mut first = 2;
        let mut parts = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            for argument in 0..step.kind.argument_count() {
                let _ = writeln!(text, "local a{index}_{argument} = tonumber(ARGV[{}])", first + argument);
            }
            first += step.kind.argument_count();
            let fill = |fragment: &str| {
                let mut filled = fragment.replace('$', &index.to_string());
                for argument in 0..step.kind.argument_count() {
                    filled = filled.replace(&format!("@{}", argument + 1), &format!("a{index}_{argument}"));
                }
                filled
            };
            let Fragments { read, fits, take, write } = fragments(step.kind);
            parts.push((fill(read), fill(fits), fill(take), fill(write)));
        }
        parts.iter().for_each(|(read, ..)| text.push_str(read));
        text.push_str("if s and p ~= #s + 1 then return 'O' .. stamp .. s end\n");
        let _ = writeln!(text, "for i = {first}, #ARGV - 1 do\nlocal cost = tonumber(ARGV[i])");
        let fits: Vec<_> = parts.iter().map(|(_, fits, ..)| fits.as_str()).collect();
        let _ = writeln!(text, "if {} then", fits.join(" and "));
        parts.iter().for_each(|(_, _, take, _)| {
            let _ = writeln!(text, "{take}");
        });
        text.push_str("any = true\nend\nend\nif any or back then\nlocal x, ttl = prefix, 0\n");
        parts.iter().for_each(|(.., write)| {
            // A block of its own, since locals of a function are limited to 200.
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
