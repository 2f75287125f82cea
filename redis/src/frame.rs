//! What stands around the numbers in the value of a key.
//!
//! A value begins with its *head*, eight bytes: the version of this format, and the *tag* of the state's
//! [unit](tower_throttle::algorithm::StoredAlgorithm::unit), which is the beginning of the unit's SHA-1. Then come the
//! numbers of the state, as a [`StateWriter`](tower_throttle::algorithm::StateWriter) writes them, and the states of
//! other quotas, if there are any. The end of the value is its *tail*, a line feed and the unit itself.
//!
//! A script compares only the head and the length. Only a process with another quota needs the unit itself, because it
//! cannot read the numbers otherwise. Two units have the same tag with a probability of 2^-56.

use super::error::{RedisError, RedisErrorKind};

/// The length of a head, in bytes.
pub(super) const HEAD: usize = 8;
/// The version of the format, the first byte of a value. Versions are below 32, so that the values of other programs,
/// which are mostly text, have no version. They are not 0, so that scripts can compare heads as floating-point numbers,
/// whose first byte is the exponent: different heads are different numbers.
const VERSION: u8 = 1;
/// The advice on a value that a later release has written.
pub(super) const NEWER: &str = "a newer release of tower-throttle-redis has written the value of the key, which stays \
                                as it is: update this process as well, or set a `prefix`";

/// The head and the tail of the values that a process writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) head: [u8; HEAD],
    pub(super) tail: String,
}

impl Frame {
    /// Creates the frame of states with this unit.
    pub(super) fn new(unit: &str) -> Self {
        let script = ::redis::Script::new(unit);
        // Two digits for each byte.
        let digits = &script.get_hash()[..2 * (HEAD - 1)];
        let tag = u64::from_str_radix(digits, 16).expect("a hash is hexadecimal");
        let head = (u64::from(VERSION) << 56 | tag).to_be_bytes();
        Self { head, tail: format!("\n{unit}") }
    }

    /// Returns the unit of the states.
    pub(super) fn unit(&self) -> &str {
        &self.tail[1..]
    }

    /// Returns a value without its head and its tail, if it has this head and this tail.
    pub(super) fn strip<'a>(&self, value: &'a [u8]) -> Option<&'a [u8]> {
        value.strip_prefix(&self.head)?.strip_suffix(self.tail.as_bytes())
    }
}

/// Returns the version of a value if it is newer than the version of this release.
pub(super) fn newer_version(value: &[u8]) -> Option<u64> {
    let version = value.first().copied().filter(|version| (VERSION + 1..b' ').contains(version));
    version.map(u64::from)
}

/// Returns the version in the field `s` of a hash if it is newer than the version of this release, with which `prefix`
/// begins. A version is the first word of the field.
pub(super) fn newer_version_in_hash(field: &[u8], prefix: &str) -> Option<u64> {
    let version = |text: &str| text.split(' ').next()?.parse::<u64>().ok();
    version(std::str::from_utf8(field).ok()?).filter(|found| Some(*found) > version(prefix))
}

/// Returns the error of a value that is not one of this limiter. `newer` is its version if a later release has written
/// it, and `detail` says what it is otherwise.
pub(super) fn foreign(newer: Option<u64>, detail: impl FnOnce() -> String) -> RedisError {
    match newer {
        Some(version) => RedisError::new(RedisErrorKind::Foreign, format!("the value has version {version}"))
            .with_advice(Some(NEWER)),
        None => RedisError::new(RedisErrorKind::Foreign, detail()),
    }
}

/// Returns the unit of the states of a value, if it has one.
pub(super) fn unit_of(value: &[u8]) -> Option<&str> {
    let line_feed = value.iter().rposition(|byte| *byte == b'\n')?;
    std::str::from_utf8(&value[line_feed + 1..]).ok()
}

/// Returns the beginning of a value, for an error.
pub(super) fn shown(value: &[u8]) -> String {
    format!("\"{}\"", value[..value.len().min(60)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format is the same in each process and each release, so these bytes must not change without a new version.
    #[test]
    fn the_head_is_the_version_and_the_beginning_of_the_sha_1_of_the_unit() {
        // printf t:10/1000000000/10 | sha1sum
        let frame = Frame::new("t:10/1000000000/10");
        assert_eq!(frame.head, [1, 0xd7, 0x83, 0xf6, 0xa9, 0xd9, 0x18, 0xcb]);
        assert_eq!((&*frame.tail, frame.unit()), ("\nt:10/1000000000/10", "t:10/1000000000/10"));
    }

    #[test]
    fn a_version_is_newer_or_the_value_is_not_of_this_crate() {
        for version in 2..32 {
            assert_eq!(newer_version(&[version, 0, 0]), Some(version.into()));
        }
        for other in [&b""[..], &[0, 0], &[1, 0], b" x", b"1 t:5/1/5", &[255]] {
            assert_eq!(newer_version(other), None, "{other:?}");
        }
    }
}
