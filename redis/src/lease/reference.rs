//! The script that leases units, written again in Rust. A simulated server in this process uses this version, and tests
//! compare it with the script.

use std::collections::BTreeMap;

use super::bucket::{Ask, Bucket, Found, LEASE, Level};

/// The value of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leased {
    /// The prefix, the level, and the time at which the first lease may expire. `None` if the key does not exist.
    state: Option<(String, Level, u64)>,
    /// The units and the end of each lease.
    leases: BTreeMap<String, (u64, u64)>,
    /// The time to live that was last set, in milliseconds.
    ttl: u64,
}

#[cfg(test)]
impl Leased {
    /// Returns the fields of the hash, in order.
    pub(super) fn fields(&self) -> Vec<String> {
        let lease = |(name, (units, ends)): (&String, &(u64, u64))| [name.clone(), format!("{units} {ends}")];
        let mut fields: Vec<_> = self.leases.iter().flat_map(lease).collect();
        if let Some((prefix, Level { missing, last, leased }, first)) = &self.state {
            fields.extend(["s".to_owned(), format!("{prefix} {missing} {last} {leased} {first}")]);
        }
        fields
    }

    pub(super) fn ttl(&self) -> u64 {
        self.ttl
    }
}

/// Executes the script at `now`, in microseconds. `arguments` are the arguments of the script without the deadline.
/// Returns the reply without the verdict and the time. Returns `None` if the value has another prefix.
pub(crate) fn execute(value: &mut Leased, arguments: &[String], now: u64) -> Option<String> {
    let [prefix, name, numbers @ .., costs] = arguments else { return None };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [micro, unit, full, period, _, unspent, refund, want] = numbers[..] else { return None };
    let bucket = Bucket { micro, unit, full, period };
    let costs = costs.split_whitespace().map(|cost| cost.parse().ok()).collect::<Option<_>>()?;
    let ask = Ask { unspent, refund, costs, want };

    let (level, mut first) = match &value.state {
        None => (Bucket::new_level(now), 0),
        Some((present, ..)) if present != prefix => return None,
        Some((_, level, first)) => (*level, *first),
    };
    let own = value.leases.get(name).map_or(0, |(units, _)| *units);
    // If the first lease expires later than a lease that begins now, the clock was set back.
    let must_scan = level.leased > 0 && (now >= first || first > now + LEASE);
    let mut expired = 0;
    if must_scan {
        value.leases.retain(|other, (units, ends)| {
            *ends = (*ends).min(now + LEASE);
            let is_expired = other != name && *ends <= now;
            expired += if is_expired { *units } else { 0 };
            !is_expired
        });
        let others = value.leases.iter().filter(|(other, _)| *other != name);
        first = others.map(|(_, (_, ends))| *ends).min().unwrap_or(0);
    }
    let found = Found { level, own, expired };
    let touched = bucket.touch(&found, now, &ask);
    if touched.has_changed || must_scan {
        value.leases.remove(name);
        if touched.granted > 0 {
            value.leases.insert(name.clone(), (touched.granted, now + LEASE));
            first = if first == 0 { now + LEASE } else { first.min(now + LEASE) };
        }
        if touched.level.leased == 0 {
            first = 0;
        }
        value.ttl = bucket.time_to_live(touched.level, now);
        value.state = Some((prefix.clone(), touched.level, first));
    }
    let Level { missing, last, leased } = level;
    Some(format!("{missing} {last} {leased} {own} {expired}"))
}
