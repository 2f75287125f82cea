//! The names of the contestants, as printed in the tables.

pub const PLAIN: &str = "no layer";
pub const PASSED: &str = "tower-throttle, not limited";
pub const LEAN: &str = "tower-throttle, no fields";
pub const LEAN_TSC: &str = "tower-throttle, no fields, time stamp counter";
pub const LEAN_PEER: &str = "tower_governor";
pub const FIELDS: &str = "tower-throttle, header fields";
pub const FIELDS_TSC: &str = "tower-throttle, header fields, time stamp counter";
pub const FIELDS_PEER: &str = "tower_governor, use_headers";
pub const KIT_PEER: &str = "throttle-kit (fields)";
pub const TUPLE: &str = "two limits on one key (tuple), no fields";
pub const JOINED: &str = "two limits, joined (and), no fields";
pub const STACKED: &str = "two limits, one layer on another, no fields";
