//! A token bucket whose units are leased: its arithmetic, and the script that makes the same steps on the server.
//!
//! Leased units have left the bucket, and the server learns only later whether they were spent. Meanwhile, the bucket
//! must not replace them by refilled units, so the number of missing units never falls below the number of leased
//! units. Compare this bucket with a single bucket that decides the same calls. The units that are missing here are
//! always at least the units that are missing from the single bucket, plus the leased units that can still be spent. So
//! no call is admitted that the single bucket would deny.

#[cfg(any(test, feature = "__in-process"))]
use std::collections::BTreeMap;

use crate::connection::Command;
use crate::error::RedisError;
use crate::frame::{foreign, newer_version_in_hash, shown};
use crate::link::{Answer, Route};
use crate::script::{Script, TimeSource};
use tower_throttle::Decision;
use tower_throttle::algorithm::{StoredAlgorithm, TokenBucket};
use tower_throttle::clock::Nanos;
use tower_throttle::store_support::with_next;

/// The time for which the server counts units as leased, in microseconds.
const LEASE: u64 = 3_000_000;

/// A token bucket in integers that are exact in a script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// The grains that are refilled in a microsecond.
    micro: u64,
    /// The grains of a unit.
    unit: u64,
    /// The grains of a full bucket.
    full: u64,
    /// The period in microseconds. If the clock is behind the level by more than this, the clock was set back.
    period: u64,
}

/// The level of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// The grains that are missing from a full bucket, including those of leased units.
    missing: u64,
    /// The server's time at which these grains were missing, in microseconds.
    last: u64,
    /// The number of units that are leased.
    leased: u64,
}

/// The values that a trip finds on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    level: Level,
    /// The units that are leased to the process that makes the trip.
    own: u64,
    /// The units of all leases of other processes that have expired.
    expired: u64,
}

/// The request of a trip. Each trip ends the present lease of the process.
#[derive(Clone, Debug, Default)]
pub(super) struct Ask {
    /// The units of the present lease that were not spent, and are returned.
    unspent: u64,
    /// The units that are refunded.
    refund: u64,
    /// The charges of dropped calls, which are given back as far as they cannot have been refilled.
    undo: Undo,
    /// The costs of the calls, which are charged in this order.
    costs: Vec<u64>,
    /// The units that the process wants to lease.
    want: u64,
}

/// Charges of calls that were dropped.
///
/// If the calls had not been charged, the bucket would be fuller, but it could have been full for some of the time
/// since then. So only the units that cannot have been refilled since the charges are given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Undo {
    /// The grains that could not have been refilled at `charged`.
    grains: u64,
    /// The server's time of the last of these charges, in microseconds.
    charged: u64,
}

/// The changes that a trip has made.
#[derive(Clone, Debug)]
pub(crate) struct Touched {
    /// The level before the refund and the calls, without the units that are leased to other processes.
    used: Level,
    level: Level,
    /// The decision on each call.
    decisions: Vec<Decision>,
    /// The units that are now leased to the process.
    granted: u64,
    /// `true` if the new state must be written.
    has_changed: bool,
}

impl Touched {
    /// Returns the level before the touch without the units that are leased to other processes, the level after it, the
    /// decisions, and the units that were granted.
    pub(super) fn into_parts(self) -> (Level, Level, Vec<Decision>, u64) {
        (self.used, self.level, self.decisions, self.granted)
    }
}

/// The script that leases the units of a limiter's keys.
#[derive(Debug)]
pub(super) struct LeaseScript {
    script: Script,
    bucket: Bucket,
    /// The beginning of the field `s` of a key.
    prefix: String,
}

impl Bucket {
    /// Creates the bucket, or returns `None` if it needs numbers that are not exact in a script.
    pub(super) fn new(algorithm: &TokenBucket) -> Option<Self> {
        let [micro, unit, full, _, period, _] = algorithm.script()?.steps.first()?.arguments;
        Some(Self { micro, unit, full, period })
    }

    pub(super) fn burst(&self) -> u64 {
        self.full / self.unit
    }

    /// Returns the level of a bucket from which nothing is missing.
    const fn new_level(now: u64) -> Level {
        Level { missing: 0, last: now, leased: 0 }
    }

    /// Returns what a trip changes at `now`, a time of the server's clock in microseconds.
    fn touch(&self, found: &Found, now: u64, ask: &Ask) -> Touched {
        let Found { own, expired, .. } = *found;
        let was_set_back = found.level.last.saturating_sub(now) > self.period;
        let mut level = self.after_return(self.at(found.level, now), own + expired, ask.unspent.min(own));
        let used = Level { missing: level.missing - level.leased * self.unit, leased: 0, ..level };
        level = self.after_return(level, 0, ask.refund.min(self.burst()));
        let undone = self.undone(ask.undo, level.last);
        level.missing = level.missing.saturating_sub(undone).max(level.leased * self.unit);
        let mut is_charged = false;
        let mut decide = |cost: &u64| {
            let fits = level.missing + cost * self.unit <= self.full;
            if fits {
                level.missing += cost * self.unit;
                is_charged = true;
                self.allow(level, now, 0)
            } else {
                self.deny(level, now, *cost)
            }
        };
        let decisions = ask.costs.iter().map(&mut decide).collect();
        // Half of the units stay in the bucket for other processes. So the fewer units are left, the smaller a lease
        // is.
        let granted = ask.want.min((self.full - level.missing) / (2 * self.unit));
        level.missing += granted * self.unit;
        level.leased += granted;
        let has_changed = is_charged || was_set_back || [granted, own, expired, ask.refund, undone] != [0; 5];
        Touched { used, level, decisions, granted, has_changed }
    }

    /// Returns the grains that are given back at `last`, the time of the level.
    fn undone(&self, undo: Undo, last: u64) -> u64 {
        // If the level is older than the charge, the clock was set back, and nobody knows what was refilled.
        let elapsed = last.checked_sub(undo.charged).unwrap_or(u64::MAX);
        undo.grains.min(self.full).saturating_sub(elapsed.saturating_mul(self.micro))
    }

    /// Returns the undo of a charge that is part of `level`.
    pub(super) fn undo(&self, units: u64, level: Level) -> Undo {
        Undo { grains: units * self.unit, charged: level.last }
    }

    /// Returns the undo of both charges: the grains of the later one, and those of the earlier one that cannot have
    /// been refilled by then.
    pub(super) fn undo_both(&self, first: Undo, second: Undo) -> Undo {
        let [earlier, later] = if first.charged < second.charged { [first, second] } else { [second, first] };
        Undo { grains: later.grains.saturating_add(self.undone(earlier, later.charged)), ..later }
    }

    /// Returns the level after leases with `ended` units in total have ended. `back` is the number of units that are
    /// given back.
    pub(super) fn after_return(&self, level: Level, ended: u64, back: u64) -> Level {
        let leased = level.leased.saturating_sub(ended);
        let missing = level.missing.saturating_sub(back * self.unit).max(leased * self.unit);
        Level { missing, leased, ..level }
    }

    /// Returns the level at a later time, if no process changes it until then.
    pub(super) fn at(&self, mut level: Level, now: u64) -> Level {
        match now.checked_sub(level.last) {
            Some(elapsed) => {
                level.missing = level.missing.saturating_sub(elapsed.saturating_mul(self.micro));
                level.last = now;
            }
            // The clock was set back.
            None if level.last - now > self.period => level.last = now,
            None => {}
        }
        level.missing = level.missing.max(level.leased * self.unit);
        level
    }

    /// Returns how long the server keeps the level, in milliseconds: until the bucket would be full if all leased units
    /// were spent at the end of their leases.
    #[cfg(any(test, feature = "__in-process"))]
    fn time_to_live(&self, level: Level, now: u64) -> u64 {
        let time = |grains: u64| grains.div_ceil(self.micro);
        let ahead = level.last - now;
        let leases = if level.leased > 0 { LEASE + time(level.leased * self.unit) } else { 0 };
        (time(level.missing) + ahead).max(leases).div_ceil(1_000) + 1
    }

    /// Returns the decision on a call that is admitted at `now`. After the call, the process holds `left` units.
    pub(super) fn allow(&self, level: Level, now: u64, left: u64) -> Decision {
        let remaining = left + (self.full - level.missing) / self.unit;
        let next = if remaining == 0 { self.wait(level, now, 1) } else { Some(0) };
        with_next(Decision::allow(self.burst(), remaining, self.reset(level, now)), next.unwrap_or(0))
    }

    /// Returns the decision on a call that is denied at `now`. The wait is unknown if the call has to wait for the end
    /// of a lease.
    pub(super) fn deny(&self, level: Level, now: u64, cost: u64) -> Decision {
        let remaining = (self.full - level.missing) / self.unit;
        Decision::deny(self.burst(), remaining, self.wait(level, now, cost), self.reset(level, now))
            .with_unknown_wait(cost <= self.burst())
    }

    /// Returns the decision on a call of `cost` at `now`, without a charge.
    pub(super) fn peek(&self, level: Level, now: u64, cost: u64) -> Decision {
        if cost.saturating_mul(self.unit) <= self.full - level.missing {
            self.allow(level, now, 0)
        } else {
            self.deny(level, now, cost)
        }
    }

    /// Returns the time in which `units` are refilled, in nanoseconds.
    pub(super) fn time_of(&self, units: u64) -> u64 {
        self.nanos(units * self.unit, Self::new_level(0), 0)
    }

    /// Returns the time until a call of `cost` fits, in nanoseconds, if no process changes the level until then.
    /// Returns `None` if leases must end first, or if the cost exceeds the burst.
    fn wait(&self, level: Level, now: u64, cost: u64) -> Option<u64> {
        let room = self.burst().checked_sub(cost).filter(|room| *room >= level.leased)?;
        Some(self.nanos(level.missing.saturating_sub(room * self.unit), level, now))
    }

    fn reset(&self, level: Level, now: u64) -> u64 {
        self.nanos(level.missing, level, now)
    }

    /// Returns the time until `grains` are refilled, in nanoseconds, rounded up. If the clock is behind the level, this
    /// includes the time by which it is behind.
    fn nanos(&self, grains: u64, level: Level, now: u64) -> u64 {
        if grains == 0 {
            return 0;
        }
        let nanos = (u128::from(grains) * 1_000).div_ceil(u128::from(self.micro));
        u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add((level.last - now).saturating_mul(1_000))
    }
}

impl Ask {
    pub(super) fn new(unspent: u64, refund: u64, undo: Undo, costs: Vec<u64>, want: u64) -> Self {
        Self { unspent, refund, undo, costs, want }
    }
}

impl Undo {
    pub(super) fn is_empty(&self) -> bool {
        self.grains == 0
    }
}

impl LeaseScript {
    pub(super) fn new(source: TimeSource, bucket: Bucket, prefix: String) -> Self {
        Self { script: Script::of_hash(source, LEASING), bucket, prefix }
    }

    /// Executes the script for a key. `name` is the name of the lease. Returns the server's time in microseconds, and
    /// the changes that the trip has made. Returns `None` if the server has executed the script too late for one of its
    /// calls, and has changed nothing.
    pub(super) async fn execute(
        &self,
        route: &Route,
        key: &str,
        not_after: Nanos,
        name: &str,
        ask: &Ask,
    ) -> Result<Option<(u64, Touched)>, RedisError> {
        let add = |command: &mut Command, _: &mut _| self.add_arguments(command, name, ask);
        let (found, newer, reply) = match route.eval(&self.script, &[key], not_after, add).await? {
            Answer::Late => return Ok(None),
            Answer::Done(now, reply) => {
                (Found::parse(&reply, &self.bucket).map(|found| (now, found)), None, reply)
            }
            Answer::Other(_, reply) => (None, newer_version_in_hash(&reply, &self.prefix), reply),
        };
        let Some((now, found)) = found else {
            let shown = shown(&reply);
            let detail = || format!("the value is {shown}, not that of a limiter with leases and this quota");
            return Err(foreign(newer, detail));
        };
        // The script has made the same changes on the server.
        let touched = self.bucket.touch(&found, now.0 / 1_000, ask);
        // A full server still deletes leases, and then refuses no write of the script.
        let has_deleted = found.expired > 0 || touched.granted == 0 && found.own > 0;
        if touched.has_changed && !has_deleted {
            route.link.wrote();
        }
        Ok(Some((now.0 / 1_000, touched)))
    }

    /// Adds the arguments of the script to a command.
    fn add_arguments(&self, command: &mut Command, name: &str, ask: &Ask) {
        let Bucket { micro, unit, full, period } = self.bucket;
        command.word(&self.prefix).word(name).number(micro).number(unit).number(full).number(period);
        command.number(LEASE).number(ask.unspent).number(ask.refund.min(self.bucket.burst()));
        command.number(ask.undo.grains.min(full)).number(ask.undo.charged).number(ask.want);
        let costs: Vec<_> = ask.costs.iter().map(u64::to_string).collect();
        command.word(costs.join(" "));
    }
}

impl Found {
    /// Parses the reply of the script, if the level is one of `bucket`.
    fn parse(reply: &[u8], bucket: &Bucket) -> Option<Self> {
        let mut numbers = std::str::from_utf8(reply).ok()?.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let level = Level { missing: next()?, last: next()?, leased: next()? };
        let found = Self { level, own: next()?, expired: next()? };
        let in_leases = level.leased.checked_mul(bucket.unit)?;
        let is_level = level.missing <= bucket.full && level.last <= 1 << 53 && in_leases <= level.missing;
        found.own.checked_add(found.expired)?;
        (is_level && numbers.next().is_none()).then_some(found)
    }
}

/// The key is a hash. The field `s` has the prefix, the missing grains, the server's time at which they were missing,
/// the leased units, and the time at which the first lease may expire. There is a field for each lease: its number of
/// units, and the time at which it expires. If the clock was set back, each lease expires after at most the duration of
/// a lease.
///
/// Arguments: the prefix, the name of the lease, the grains of a microsecond, of a unit and of a full bucket, the
/// period and the duration of a lease in microseconds, the units that are returned and refunded, the grains that are
/// undone, the time at which the latter were charged, the units that are wanted, and the costs of the calls.
const LEASING: &str = "\
local prefix, name = ARGV[1], ARGV[2]
local micro, unit, full, period = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local lease, back, refund = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local undo, charged, want = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
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
local since, undone = now + ahead - charged, 0
if since >= 0 then undone = math.max(undo - since * micro, 0) end
missing = math.max(missing - (math.min(back, own) + refund) * unit - undone, leased * unit)
for cost in string.gmatch(ARGV[13], '%d+') do
  if missing + cost * unit <= full then missing, changed = missing + cost * unit, true end
end
local free = full - missing
local granted = math.min(want, (free - math.fmod(free, 2 * unit)) / (2 * unit))
missing, leased = missing + granted * unit, leased + granted
if not changed and granted + own + expired + refund + undone == 0 then return reply end
local refusal = not s and refused_hash()
if refusal then return refusal end
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

/// The value of a key, and the script written again in Rust. A simulated server in this process uses this version, and
/// tests compare it with the script.
#[cfg(any(test, feature = "__in-process"))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leased {
    /// The prefix, the level, and the time at which the first lease may expire. `None` if the key does not exist.
    state: Option<(String, Level, u64)>,
    /// The units and the end of each lease.
    leases: BTreeMap<String, (u64, u64)>,
    /// The time to live that was last set, in milliseconds.
    ttl: u64,
}

#[cfg(any(test, feature = "__in-process"))]
impl Leased {
    /// Executes the script at `now`, in microseconds. `arguments` are the arguments of the script without the deadline.
    /// Returns the reply without the verdict and the time. Returns `None` if the value has another prefix.
    pub(crate) fn execute(&mut self, arguments: &[String], now: u64) -> Option<String> {
        let [prefix, name, numbers @ .., costs] = arguments else { return None };
        let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [micro, unit, full, period, _, unspent, refund, grains, charged, want] = numbers[..] else {
            return None;
        };
        let bucket = Bucket { micro, unit, full, period };
        let costs = costs.split_whitespace().map(|cost| cost.parse().ok()).collect::<Option<_>>()?;
        let ask = Ask { unspent, refund, undo: Undo { grains, charged }, costs, want };

        let (level, mut first) = match &self.state {
            None => (Bucket::new_level(now), 0),
            Some((present, ..)) if present != prefix => return None,
            Some((_, level, first)) => (*level, *first),
        };
        let own = self.leases.get(name).map_or(0, |(units, _)| *units);
        // If the first lease expires later than a lease that begins now, the clock was set back.
        let must_scan = level.leased > 0 && (now >= first || first > now + LEASE);
        let mut expired = 0;
        if must_scan {
            self.leases.retain(|other, (units, ends)| {
                *ends = (*ends).min(now + LEASE);
                let is_expired = other != name && *ends <= now;
                expired += if is_expired { *units } else { 0 };
                !is_expired
            });
            let others = self.leases.iter().filter(|(other, _)| *other != name);
            first = others.map(|(_, (_, ends))| *ends).min().unwrap_or(0);
        }
        let found = Found { level, own, expired };
        let touched = bucket.touch(&found, now, &ask);
        if touched.has_changed || must_scan {
            self.leases.remove(name);
            if touched.granted > 0 {
                self.leases.insert(name.clone(), (touched.granted, now + LEASE));
                first = if first == 0 { now + LEASE } else { first.min(now + LEASE) };
            }
            if touched.level.leased == 0 {
                first = 0;
            }
            self.ttl = bucket.time_to_live(touched.level, now);
            self.state = Some((prefix.clone(), touched.level, first));
        }
        let Level { missing, last, leased } = level;
        Some(format!("{missing} {last} {leased} {own} {expired}"))
    }
}

#[cfg(test)]
mod tests;
