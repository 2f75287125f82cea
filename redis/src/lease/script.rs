//! The script that leases units. [`Bucket::touch`](super::bucket::Bucket::touch) makes the same steps in Rust.

use super::bucket::{Ask, Bucket, Found, LEASE, Level};
use crate::connection::Command;
use crate::scripts::{Script, TimeSource};

/// The key is a hash. The field `s` has the prefix, the missing grains, the server's time at which they were missing,
/// the leased units, and the time at which the first lease may expire. There is a field for each lease: its number of
/// units, and the time at which it expires. If the clock was set back, each lease expires after at most the duration of
/// a lease.
///
/// Arguments: the prefix, the name of the lease, the grains of a microsecond, of a unit and of a full bucket, the
/// period and the duration of a lease in microseconds, the units that are returned, refunded and wanted, and the costs
/// of the calls.
const LEASING: &str = "\
local prefix, name = ARGV[1], ARGV[2]
local micro, unit, full, period = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local lease, back, refund, want = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local found = c('HMGET', KEYS[1], 's', name)
local s, own = found[1], 0
local missing, last, leased, first = 0, now, 0, 0
if s then
  missing, last, leased, first = string.match(s, '^ (%d+) (%d+) (%d+) (%d+)$', #prefix + 1)
  if not missing or string.sub(s, 1, #prefix) ~= prefix then return 'O' .. stamp .. s end
  missing, last, leased, first = missing + 0, last + 0, leased + 0, first + 0
  if missing > full or last > 9007199254740992 or leased * unit > missing then return 'O' .. stamp .. s end
elseif c('EXISTS', KEYS[1]) == 1 then return 'O' .. stamp .. 'a hash'
end
if found[2] then own = tonumber(string.match(found[2], '^%d+')) end
local expired, changed = 0, false
if leased > 0 and (now >= first or first > now + lease) then
  local fields = c('HGETALL', KEYS[1])
  first, changed = 0, true
  for i = 1, #fields, 2 do
    if fields[i] ~= 's' and fields[i] ~= name then
      local units, ends = string.match(fields[i + 1], '^(%d+) (%d+)$')
      if ends - now > lease then
        ends = now + lease
        c('HSET', KEYS[1], fields[i], string.format('%d %d', units, ends))
      end
      if ends + 0 <= now then
        expired = expired + units
        c('HDEL', KEYS[1], fields[i])
      elseif first == 0 or ends + 0 < first then first = ends + 0 end
    end
  end
end
local reply = 'D' .. stamp .. string.format('%d %d %d %d %d', missing, last, leased, own, expired)
local elapsed, ahead = now - last, 0
if elapsed >= 0 then missing = math.max(missing - elapsed * micro, 0)
elseif -elapsed <= period then ahead = -elapsed
else changed = true end
missing = math.max(missing, leased * unit)
leased = math.max(leased - own - expired, 0)
missing = math.max(missing - (math.min(back, own) + refund) * unit, leased * unit)
for cost in string.gmatch(ARGV[11], '%d+') do
  if missing + cost * unit <= full then missing, changed = missing + cost * unit, true end
end
local free = full - missing
local granted = math.min(want, (free - math.fmod(free, 2 * unit)) / (2 * unit))
missing, leased = missing + granted * unit, leased + granted
if not changed and granted + own + expired + refund == 0 then return reply end
if granted > 0 then
  c('HSET', KEYS[1], name, string.format('%d %d', granted, now + lease))
  if first == 0 or now + lease < first then first = now + lease end
elseif own > 0 then c('HDEL', KEYS[1], name) end
if leased == 0 then first = 0 end
c('HSET', KEYS[1], 's', string.format('%s %d %d %d %d', prefix, missing, now + ahead, leased, first))
local ttl = math.ceil(missing / micro) + ahead
if leased > 0 then ttl = math.max(ttl, lease + math.ceil(leased * unit / micro)) end
c('PEXPIRE', KEYS[1], math.ceil(ttl / 1000) + 1)
return reply
";

/// Creates the script.
pub(super) fn script(source: TimeSource) -> Script {
    Script::new(format!("{}{LEASING}", source.head()))
}

/// Adds the arguments of the script to a command. `name` is the name of the lease.
pub(super) fn add_arguments(command: &mut Command, bucket: &Bucket, prefix: &str, name: &str, ask: &Ask) {
    let Bucket { micro, unit, full, period } = *bucket;
    command.word(prefix).word(name).number(micro).number(unit).number(full).number(period).number(LEASE);
    let refund = ask.refund.min(bucket.burst());
    command.number(ask.unspent).number(refund).number(ask.want);
    let costs: Vec<_> = ask.costs.iter().map(u64::to_string).collect();
    command.word(costs.join(" "));
}

impl Found {
    /// Parses the reply of the script.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let level = Level { missing: next()?, last: next()?, leased: next()? };
        let found = Self { level, own: next()?, expired: next()? };
        numbers.next().is_none().then_some(found)
    }
}
