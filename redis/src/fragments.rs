//! The parts of the scripts that decide checks, for each kind of limit. `Fragments` describes their placeholders.

use tower_throttle::store_support::StepKind;

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
  if l$ > 9007199254740992 or g$ >= @2 or n$ > @1 then return 'O' .. stamp .. all end
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
  if l$ > 9007199254740992 or i$ >= @2 or a$ > @1 or n$ > @1 then return 'O' .. stamp .. all end
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
  if l$ > 9007199254740992 or i$ >= @3 or o$ > @1 or z > @4 then return 'O' .. stamp .. all end
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
    if g <= youngest or g > @4 or u == 0 or u > @1 then return 'O' .. stamp .. all end
    youngest = g
    g = g + passed
    if g <= oldest then f$[k$ + 1], f$[k$ + 2], k$, n$ = g, w, k$ + 2, n$ + u end
  end
  n$ = n$ + o$
  if n$ > @1 then return 'O' .. stamp .. all end
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

/// The parts of a script for one limit. `$` stands for the index of the limit, `@1` for its first argument, `@2` for
/// its second, and `cost` for the cost of the call on the key of the limit.
pub(super) struct Fragments {
    /// Reads the state and advances it to `now`.
    pub(super) read: &'static str,
    /// The condition that `cost` units are available.
    pub(super) fits: &'static str,
    pub(super) take: &'static str,
    /// Appends the state to the string `x`.
    pub(super) write: &'static str,
    /// The time to live of the state, in milliseconds and rounded up. It is computed after `write`.
    pub(super) ttl: &'static str,
}

pub(super) const fn fragments(kind: StepKind) -> Fragments {
    match kind {
        StepKind::Bucket => BUCKET,
        StepKind::FixedWindow => FIXED_WINDOW,
        StepKind::SlidingCounter => SLIDING_COUNTER,
        StepKind::SlidingWindow => SLIDING_WINDOW,
    }
}
