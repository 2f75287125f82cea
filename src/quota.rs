//! A limit per period, and a burst.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::beginning;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// The longest period: 292 years.
const MAX_PERIOD: u64 = i64::MAX as u64;

/// A limit per period, and a burst.
///
/// `Quota::per_minute(100)` is a limit of one hundred calls a minute. The limit and the period set the rate. The burst
/// is the capacity of a [`TokenBucket`](crate::algorithm::TokenBucket), and the default length of the queue of a
/// [`LeakyBucket`](crate::algorithm::LeakyBucket) or a [`Smooth`](crate::algorithm::Smooth). Windows do not use the
/// burst. Unless [`burst`](Quota::burst) is called, the burst equals the limit.
///
/// A quota is always valid: its limit and burst are from 1 to `u64::MAX`, and its period is from one nanosecond to 292
/// years.
///
/// ```
/// use std::time::Duration;
/// use tower_throttle::Quota;
///
/// const API: Quota = Quota::per_minute(100).burst(20);
/// let from_config = Quota::per(5, Duration::from_millis(200))?;
/// let from_text: Quota = "100/min burst 20".parse()?;
/// assert_eq!(API, from_text);
/// assert_eq!(from_config.to_string(), "5 per 200ms");
/// # Ok::<(), tower_throttle::error::QuotaError>(())
/// ```
///
/// With the feature `serde`, a quota in a configuration file is such a text as well.
///
/// A limit of 0 does not compile in a `const`:
///
/// ```compile_fail
/// const NONE: tower_throttle::Quota = tower_throttle::Quota::per_second(0);
/// # let _ = NONE;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    period: u64,
    burst: u64,
}

impl Quota {
    /// Returns a quota of `limit` calls per second.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. For a limit from outside the program, use [`per`](Quota::per) or parse a string.
    #[must_use]
    #[track_caller]
    pub const fn per_second(limit: u64) -> Self {
        Self::checked(limit, SECOND)
    }

    /// Returns a quota of `limit` calls per minute.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0.
    #[must_use]
    #[track_caller]
    pub const fn per_minute(limit: u64) -> Self {
        Self::checked(limit, MINUTE)
    }

    /// Returns a quota of `limit` calls per hour.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0.
    #[must_use]
    #[track_caller]
    pub const fn per_hour(limit: u64) -> Self {
        Self::checked(limit, HOUR)
    }

    /// Returns a quota of `limit` calls per day of 24 hours.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0.
    #[must_use]
    #[track_caller]
    pub const fn per_day(limit: u64) -> Self {
        Self::checked(limit, DAY)
    }

    /// Returns a quota of `limit` calls per `period`, for values from configuration.
    ///
    /// # Errors
    ///
    /// Returns an error if `limit` or `period` is 0, or `period` is over 292 years.
    pub fn per(limit: u64, period: Duration) -> Result<Self, QuotaError> {
        if limit == 0 {
            return Err(QuotaError::zero_limit());
        }
        match u64::try_from(period.as_nanos()) {
            Ok(0) => Err(QuotaError::zero_period()),
            Ok(period) if period <= MAX_PERIOD => Ok(Self { limit, period, burst: limit }),
            _ => Err(QuotaError::long_period()),
        }
    }

    #[track_caller]
    const fn checked(limit: u64, period: u64) -> Self {
        assert!(limit > 0, "a limit of 0 admits nothing: give a limit of at least 1");
        Self { limit, period, burst: limit }
    }

    /// Sets the burst. A [`TokenBucket`](crate::algorithm::TokenBucket) can admit this number of units at one instant.
    /// The default is the limit.
    ///
    /// # Panics
    ///
    /// Panics if `burst` is 0.
    #[must_use]
    #[track_caller]
    pub const fn burst(mut self, burst: u64) -> Self {
        assert!(burst > 0, "a burst of 0 admits nothing: give a burst of at least 1");
        self.burst = burst;
        self
    }

    /// Returns the number of units per period.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// Returns the burst. Without a call of [`burst`](Quota::burst), this is the limit.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.burst
    }

    /// Returns whether the burst differs from the limit.
    pub(crate) const fn has_burst(&self) -> bool {
        self.burst != self.limit
    }

    pub(crate) const fn period_nanos(&self) -> u64 {
        self.period
    }
}

/// Parses a quota such as `100/minute`, `10/s`, `1000 per day`, `5 per 2s` or `100/min burst 20`.
///
/// The limit and the period are separated by `/` or `per`, and `burst` with a number may follow. The period is an
/// optional whole number and a unit of time: `ns`, `us`, `µs`, `ms`, `s`, `sec`, `secs`, `m`, `min`, `mins`, `h`, `hr`,
/// `hrs`, `d`, or the full name of one of these, in the singular or plural. Upper case is accepted, and so are
/// additional spaces between the parts. Digits may be grouped by `_`.
impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let lower = text.to_ascii_lowercase();
        let wrong = |reason| QuotaError::text(text, reason);
        let (rate, burst) = match lower.split_once("burst") {
            Some((rate, burst)) => (rate, Some(burst)),
            None => (lower.as_str(), None),
        };
        let (limit, period) = rate
            .split_once('/')
            .or_else(|| rate.split_once(" per "))
            .ok_or_else(|| wrong("there is no `/` or `per` between the limit and the time"))?;
        let limit = number(limit).ok_or_else(|| wrong("the limit is no whole number up to 2^64 - 1"))?;
        let period = span(period).ok_or_else(|| wrong("the time is not one that is known"))?;
        let quota = Self::per(limit, period)?;
        match burst.map(number) {
            None => Ok(quota),
            Some(None) => Err(wrong("the burst is no whole number up to 2^64 - 1")),
            Some(Some(0)) => Err(QuotaError::zero_burst()),
            Some(Some(burst)) => Ok(quota.burst(burst)),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits: String = text.split('_').collect();
    let plain = text.starts_with(|c: char| c.is_ascii_digit()) && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

fn span(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
    let count = &text[..text.len() - unit.len()];
    let count = if count.is_empty() { 1 } else { number(count)? };
    let nanos = match unit.trim() {
        "ns" | "nanosecond" | "nanoseconds" => 1,
        "us" | "µs" | "microsecond" | "microseconds" => 1_000,
        "ms" | "millisecond" | "milliseconds" => 1_000_000,
        "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => MINUTE,
        "h" | "hr" | "hrs" | "hour" | "hours" => HOUR,
        "d" | "day" | "days" => DAY,
        _ => return None,
    };
    // A product that does not fit is above the longest period, so `per` returns an error for it.
    Some(Duration::from_nanos(count.saturating_mul(nanos)))
}

/// Writes a string that parses to the same quota.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] =
            [(DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"), (1_000_000, "ms"), (1_000, "us")];
        let (unit, name) =
            UNITS.into_iter().find(|(unit, _)| self.period.is_multiple_of(*unit)).unwrap_or((1, "ns"));
        match self.period / unit {
            1 => write!(f, "{}/{name}", self.limit)?,
            count => write!(f, "{} per {count}{name}", self.limit)?,
        }
        if self.burst == self.limit { Ok(()) } else { write!(f, " burst {}", self.burst) }
    }
}

/// Writes the text that [`Display`](fmt::Display) writes, such as `100/min burst 20`. Requires the feature `serde`.
#[cfg(feature = "serde")]
impl serde_core::Serialize for Quota {
    fn serialize<S: serde_core::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses a text, as [`FromStr`] does. Requires the feature `serde`.
///
/// The error has the text of [`QuotaError`], and formats such as JSON and TOML add the place in the file.
#[cfg(feature = "serde")]
impl<'de> serde_core::Deserialize<'de> for Quota {
    fn deserialize<D: serde_core::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl serde_core::de::Visitor<'_> for Text {
            type Value = Quota;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quota such as \"100/minute\" or \"100/min burst 20\"")
            }

            fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<Quota, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// The error of a [`Quota`] that cannot be created.
///
/// The error's text says which values are accepted. If a string does not have the form of a quota, the text also shows
/// the beginning of that string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError {
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    ZeroLimit,
    ZeroBurst,
    ZeroPeriod,
    LongPeriod,
    Text { text: String, reason: &'static str },
}

impl QuotaError {
    fn zero_limit() -> Self {
        Self { problem: Problem::ZeroLimit }
    }

    fn zero_burst() -> Self {
        Self { problem: Problem::ZeroBurst }
    }

    fn zero_period() -> Self {
        Self { problem: Problem::ZeroPeriod }
    }

    fn long_period() -> Self {
        Self { problem: Problem::LongPeriod }
    }

    fn text(text: &str, reason: &'static str) -> Self {
        Self { problem: Problem::Text { text: beginning(text), reason } }
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Problem::ZeroLimit => f.write_str("a limit of 0 admits nothing: give a limit of at least 1"),
            Problem::ZeroBurst => f.write_str("a burst of 0 admits nothing: give a burst of at least 1"),
            Problem::ZeroPeriod => {
                f.write_str("a period of 0 has no rate: give a period of at least one nanosecond")
            }
            Problem::LongPeriod => f.write_str(
                "the period is too long: give a period of at most 292 years (2^63 - 1 nanoseconds)",
            ),
            Problem::Text { text, reason } => write!(
                f,
                "{text:?} is no quota: {reason}; accepted are a limit, `/` or `per`, and a time, \
                 such as \"100/minute\", \"10/s\", \"1000 per day\", \"5 per 2s\" or \"100/min burst 20\""
            ),
        }
    }
}

impl Error for QuotaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_quotas() {
        let per = |limit, period| Quota::per(limit, Duration::from_nanos(period)).unwrap();
        for (text, quota) in [
            ("100/minute", per(100, MINUTE)),
            ("10/s", per(10, SECOND)),
            ("7/min", per(7, MINUTE)),
            ("1000 per day", per(1000, DAY)),
            ("5 per 2s", per(5, 2 * SECOND)),
            ("100/min burst 20", per(100, MINUTE).burst(20)),
            ("  1_000 / 2 Hours   BURST 1  ", per(1000, 2 * HOUR).burst(1)),
            ("1/ns", per(1, 1)),
            ("3 per 250 ms", per(3, 250_000_000)),
            ("18446744073709551615/us", per(u64::MAX, 1_000)),
        ] {
            assert_eq!(text.parse(), Ok(quota), "{text}");
        }
    }

    #[test]
    fn texts_that_are_none_say_what_is_accepted() {
        for text in [
            "",
            "10",
            "10/",
            "/s",
            "ten/s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "10/month",
            "10/0x",
            "10 s",
            "10per s",
            "10/s burst",
            "10/s burst -1",
            "10/s/s",
            "18446744073709551616/s",
            "10/s burst 1 burst 2",
            "_1/s",
            "10/2 2s",
        ] {
            let error = text.parse::<Quota>().expect_err(text).to_string();
            assert!(error.contains("100/minute"), "{error}");
        }
        for (text, part) in [
            ("0/s", "limit of 0"),
            ("1/0s", "period of 0"),
            ("1/s burst 0", "burst of 0"),
            ("1 per 200000000 days", "292 years"),
        ] {
            let error = text.parse::<Quota>().expect_err(text).to_string();
            assert!(error.contains(part), "{error}");
        }
        let long = "x".repeat(1 << 20).parse::<Quota>().unwrap_err().to_string();
        assert!(long.len() < 400, "a wrong text is not repeated whole");
    }

    #[test]
    fn the_range_is_checked() {
        assert!(Quota::per(1, Duration::from_nanos(MAX_PERIOD)).is_ok());
        assert_eq!(Quota::per(1, Duration::from_nanos(MAX_PERIOD + 1)), Err(QuotaError::long_period()));
        assert_eq!(Quota::per(1, Duration::MAX), Err(QuotaError::long_period()));
        assert_eq!(Quota::per(1, Duration::ZERO), Err(QuotaError::zero_period()));
        assert_eq!(Quota::per(0, Duration::from_secs(1)), Err(QuotaError::zero_limit()));
    }

    #[test]
    #[should_panic(expected = "burst of 0")]
    fn a_burst_of_zero_panics() {
        let _ = Quota::per_second(1).burst(0);
    }

    #[test]
    fn display_parses_back() {
        for seed in 0..10_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (limit, burst) = (random.u64(1..), random.u64(1..));
            let (period, unit) = (random.u64(1..=MAX_PERIOD), 10u64.pow(random.u32(..12)));
            let period = Duration::from_nanos((period / unit).max(1) * unit.min(MAX_PERIOD));
            if let Ok(quota) = Quota::per(limit, period) {
                assert_eq!(quota.to_string().parse(), Ok(quota), "seed {seed}");
                let quota = quota.burst(burst);
                assert_eq!(quota.to_string().parse(), Ok(quota), "seed {seed}");
            }
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_quota_in_a_configuration_file_is_a_text() {
        let parse = |file: &str| serde_json::from_str::<Vec<Quota>>(file);
        let quotas = [Quota::per_minute(100).burst(20), Quota::per(5, Duration::from_nanos(7)).unwrap()];
        let file = serde_json::to_string(&quotas).unwrap();
        assert_eq!(file, r#"["100/min burst 20","5 per 7ns"]"#);
        assert_eq!(parse(&file).unwrap(), quotas);
        // From a reader, a text is not borrowed, and an escape sequence cannot be.
        assert_eq!(serde_json::from_reader::<_, Vec<Quota>>(file.as_bytes()).unwrap(), quotas);
        assert_eq!(parse(r#"["\u0031/s"]"#).unwrap(), [Quota::per_second(1)]);

        for (file, part) in [
            ("[\n\"5/fortnight\"]", "\"5/fortnight\" is no quota"),
            ("[\n\"0/s\"]", "a limit of 0 admits nothing"),
            ("[\n100]", "invalid type: integer `100`, expected a quota such as \"100/minute\""),
            ("[\nnull]", "expected a quota such as \"100/minute\""),
        ] {
            let error = parse(file).expect_err(file).to_string();
            assert!(error.contains(part) && error.contains("line 2"), "{error}");
        }
    }
}
