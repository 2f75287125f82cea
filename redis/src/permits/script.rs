//! The script that hands out permits.

/// The key is a hash. A *record* is a call that holds a permit or waits for one. Its name consists of the process and a
/// number.
///
/// | field | contents |
/// |---|---|
/// | `s` | the prefix, the units that are held, the number of waiters, the tickets of the first waiter and of the next one, a time before which no record expires, the longest lease, and the last fencing token |
/// | `r` and a name | `h` if the record holds a permit, `w` if it waits; its units, the time at which it expires, its lease, and its fencing token or ticket |
/// | `q` and a ticket | the name of the waiter that has this ticket |
///
/// Each trip of a process renews some of its records. A record that was not renewed for the time of its lease expires.
/// If the clock was set back so far that no record would expire within the longest lease, the remaining time of each
/// record is lowered to the record's lease. Expired records are removed. Then permits are handed over to the first
/// waiters, and a message is sent to the process of each of these waiters. A record that is given a permit in this way
/// keeps the time at which it expires. A script skips at most 2,000 tickets of waiters that have left the queue, so
/// that it does not block the server. The next script continues there.
///
/// Arguments: the prefix, the process, the limit, the lease in microseconds, the maximum number of waiters, the
/// beginning of the names of channels, and the operations. An operation is a letter, the number of a record, a colon,
/// and the units of the record. `l` removes a record. `k` renews a record. If the operation has fewer units than the
/// record holds, the record keeps only the units of the operation. `q` and `t` renew the record if it exists, and
/// create it otherwise. If there are too few free permits, or if other records wait, the new record of `q` waits, and
/// that of `t` is denied. A `q` that would have to wait is denied if the queue is full, or if its units exceed the
/// limit.
pub(super) const PERMITS: &str = "\
local prefix, own, limit, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local places, channel = tonumber(ARGV[5]), ARGV[6]
local held, waiting, head, tail, first, longest, fence = 0, 0, 0, 0, 0, lease, 0
local s = c('HGET', KEYS[1], 's')
if s then
  held, waiting, head, tail, first, longest, fence =
    string.match(s, '^ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$', #prefix + 1)
  if not held or string.sub(s, 1, #prefix) ~= prefix then return 'O' .. stamp .. s end
  held, waiting, head, tail = held + 0, waiting + 0, head + 0, tail + 0
  first, longest, fence = first + 0, math.max(longest, lease), fence + 0
elseif c('EXISTS', KEYS[1]) == 1 then return 'O' .. stamp .. 'a hash'
end
local changed = false
local function parse(text)
  local state, units, ends, of, mark = string.match(text or '', '^([hw]) (%d+) (%d+) (%d+) (%d+)$')
  if state then return state, units + 0, ends + 0, of + 0, mark + 0 end
end
local function read(name) return parse(c('HGET', KEYS[1], 'r' .. name)) end
local function write(name, state, units, ends, of, mark)
  changed = true
  if first == 0 or ends < first then first = ends end
  c('HSET', KEYS[1], 'r' .. name, string.format('%s %d %d %d %d', state, units, ends, of, mark))
end
local function remove(name, state, units, mark)
  changed = true
  c('HDEL', KEYS[1], 'r' .. name)
  if state == 'h' then held = math.max(held - units, 0)
  else
    waiting = math.max(waiting - 1, 0)
    c('HDEL', KEYS[1], string.format('q%d', mark))
    if mark == tail - 1 then tail = mark end
  end
end
if first > 0 and (now >= first or first > now + longest) then
  local fields = c('HGETALL', KEYS[1])
  first, changed = 0, true
  for i = 1, #fields, 2 do
    local name = string.match(fields[i], '^r(.+)$')
    local state, units, ends, of, mark
    if name then state, units, ends, of, mark = parse(fields[i + 1]) end
    if state then
      if ends <= now then remove(name, state, units, mark)
      elseif ends > now + of then write(name, state, units, now + of, of, mark)
      elseif first == 0 or ends < first then first = ends end
    end
  end
end
local function grant(name, units, ends, of)
  fence, held = math.max(now, fence + 1), held + units
  write(name, 'h', units, ends, of, fence)
end
local function hand_over()
  local free = 2000
  while waiting > 0 and head < tail do
    local place = string.format('q%d', head)
    local name = c('HGET', KEYS[1], place)
    local state, units, ends, of
    if name then state, units, ends, of = read(name) end
    if state == 'w' then
      if held > 0 and held + units > limit then return end
      waiting = waiting - 1
      grant(name, units, ends, of)
      local process, number = string.match(name, '^(.+)%.(%d+)$')
      redis.pcall('PUBLISH', channel .. process, string.format('%s %d %d', number, fence, held))
    end
    if name then c('HDEL', KEYS[1], place) end
    head, changed = head + 1, true
    if state ~= 'w' then
      free = free - 1
      if free == 0 then return end
    end
  end
  if waiting == 0 then head, tail = 0, 0 end
end
for kind, number, units in string.gmatch(ARGV[7], '(%a)(%d+):(%d+)') do
  local name = own .. '.' .. number
  local state, had, _, _, mark = read(name)
  if state and kind == 'l' then remove(name, state, had, mark)
  elseif state then
    if state == 'h' and units + 0 < had then held, had = math.max(held - had + units, 0), units + 0 end
    write(name, state, had, now + lease, lease, mark)
  end
end
hand_over()
local results = ''
for kind, number, units in string.gmatch(ARGV[7], '([kqt])(%d+):(%d+)') do
  local name, result = own .. '.' .. number, nil
  local state, _, _, _, mark = read(name)
  units = units + 0
  if not state and kind ~= 'k' then
    if waiting == 0 and held + units <= limit then
      grant(name, units, now + lease, lease)
      state, mark = 'h', fence
    elseif kind == 'q' and waiting < places and units <= limit then
      state, mark = 'w', tail
      c('HSET', KEYS[1], string.format('q%d', tail), name)
      waiting, tail = waiting + 1, tail + 1
      write(name, state, units, now + lease, lease, mark)
    end
  end
  if state == 'h' then result = string.format(' h%d:%d', mark, held)
  elseif state == 'w' then result = string.format(' w%d', math.max(mark - head, 0))
  else result = ' n' end
  results = results .. result
end
if changed then
  local numbers = string.format(' %d %d %d %d %d %d %d', held, waiting, head, tail, first, longest, fence)
  c('HSET', KEYS[1], 's', prefix .. numbers)
  c('PEXPIRE', KEYS[1], math.ceil(longest / 1000) + 1)
end
local wrote = changed and 1 or 0
return 'D' .. stamp .. string.format('%d %d %d %d', held, waiting, math.max(first - now, 0), wrote) .. results
";

/// The beginning of the field `s`: the version of the format, and the unit of the states.
pub(super) const PREFIX: &str = "1 permits";
