//! Files of limits, in the format of envoyproxy/ratelimit.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use tower_throttle::Quota;

use crate::protocol::{RateLimitUnit, rate_limit_response::rate_limit::Unit as StatusUnit};

/// One file, with the limits of one domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainFile {
    pub(crate) domain: String,
    #[serde(default)]
    pub(crate) descriptors: Vec<Descriptor>,
}

/// One entry of a descriptor, as a file describes it: the key, the value, the limit, and the entries that may follow.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Descriptor {
    pub(crate) key: String,
    /// If this is empty, the entry matches all values. If it ends with `*`, the entry matches all values that begin
    /// with the part before the `*`. In both cases, each value has a count of its own.
    #[serde(default)]
    pub(crate) value: String,
    pub(crate) rate_limit: Option<RateLimit>,
    /// If this is `true`, calls over the limit are counted, but answered with OK.
    #[serde(default)]
    pub(crate) shadow_mode: bool,
    /// This field has no effect, because values in the labels of a metric would need an unbounded amount of memory.
    #[serde(default, rename = "detailed_metric")]
    pub(crate) _detailed_metric: bool,
    /// This field has no effect, for the same reason.
    #[serde(default, rename = "value_to_metric")]
    pub(crate) _value_to_metric: bool,
    /// The entries that may follow this one.
    #[serde(default)]
    pub(crate) descriptors: Vec<Descriptor>,
}

/// The limit of a descriptor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimit {
    pub(crate) unit: Option<Unit>,
    pub(crate) requests_per_unit: Option<u32>,
    #[serde(default)]
    pub(crate) unlimited: bool,
    #[serde(default)]
    pub(crate) name: String,
    /// The limits that this limit replaces: they do not count a request that this limit counts.
    #[serde(default)]
    pub(crate) replaces: Vec<Replaced>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replaced {
    pub(crate) name: String,
}

/// A unit of time. A month has 30 days, and a year 365, as in envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(try_from = "String")]
pub(crate) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl TryFrom<String> for Unit {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "second" => Self::Second,
            "minute" => Self::Minute,
            "hour" => Self::Hour,
            "day" => Self::Day,
            "week" => Self::Week,
            "month" => Self::Month,
            "year" => Self::Year,
            _ => {
                return Err(format!(
                    "{name:?} is no unit: give second, minute, hour, day, week, month or year"
                ));
            }
        })
    }
}

impl Unit {
    fn period(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }

    /// Converts the unit of a limit in a request. Returns `None` if the unit is unknown.
    pub(crate) fn of_request(unit: RateLimitUnit) -> Option<Self> {
        Some(match unit {
            RateLimitUnit::Second => Self::Second,
            RateLimitUnit::Minute => Self::Minute,
            RateLimitUnit::Hour => Self::Hour,
            RateLimitUnit::Day => Self::Day,
            RateLimitUnit::Month => Self::Month,
            RateLimitUnit::Year => Self::Year,
            RateLimitUnit::Unknown => return None,
        })
    }

    /// Converts the unit to the type that responses contain.
    pub(crate) fn of_status(self) -> StatusUnit {
        match self {
            Self::Second => StatusUnit::Second,
            Self::Minute => StatusUnit::Minute,
            Self::Hour => StatusUnit::Hour,
            Self::Day => StatusUnit::Day,
            Self::Week => StatusUnit::Week,
            Self::Month => StatusUnit::Month,
            Self::Year => StatusUnit::Year,
        }
    }
}

/// A number of requests per unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) requests: u32,
    pub(crate) unit: Unit,
}

impl Rate {
    /// Returns the rate as a quota, or `None` if the rate admits nothing.
    pub(crate) fn quota(self) -> Option<Quota> {
        Quota::per(u64::from(self.requests), self.unit.period()).ok()
    }
}

impl RateLimit {
    /// Returns the rate, or `None` if the limit is unlimited.
    ///
    /// # Errors
    ///
    /// Returns a text that says what is missing or contradictory.
    pub(crate) fn rate(&self) -> Result<Option<Rate>, String> {
        if self.replaces.iter().any(|replaced| replaced.name.is_empty()) {
            return Err("an entry of `replaces` has an empty name".to_owned());
        }
        if self.replaces.iter().any(|replaced| replaced.name == self.name) {
            return Err(format!("the limit {:?} replaces itself", self.name));
        }
        match (self.unlimited, self.unit, self.requests_per_unit) {
            (true, None, None) => Ok(None),
            (true, ..) => Err("an unlimited limit has no `unit` and no `requests_per_unit`".to_owned()),
            (false, Some(unit), Some(requests)) => Ok(Some(Rate { requests, unit })),
            (false, None, _) => Err("the limit has no `unit`: give second, minute, hour or day".to_owned()),
            (false, _, None) => Err("the limit has no `requests_per_unit`".to_owned()),
        }
    }
}

/// A mistake in a file of limits. The message names the file.
#[derive(Debug)]
pub(crate) struct ConfigError {
    file: String,
    what: String,
}

impl ConfigError {
    pub(crate) fn new(file: &str, what: impl fmt::Display) -> Self {
        Self { file: file.to_owned(), what: what.to_string() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}

impl Error for ConfigError {}

/// Parses one file.
///
/// # Errors
///
/// Returns an error if the text is not YAML, has a key that the format does not have, or has an empty domain. In the
/// first two cases, the error names the line.
pub(crate) fn parse(file: &str, text: &str) -> Result<DomainFile, ConfigError> {
    let domain: DomainFile = serde_saphyr::from_str(text).map_err(|error| ConfigError::new(file, error))?;
    if domain.domain.is_empty() {
        return Err(ConfigError::new(file, "the domain is empty"));
    }
    Ok(domain)
}
