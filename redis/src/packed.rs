//! The last argument of a script. It contains numbers and strings, which the script gets by `struct.unpack`.

use smallvec::SmallVec;

/// The bytes of an argument. Each number has eight bytes, which are those of a floating-point number, because Lua has
/// only such numbers. Each string ends with a zero byte.
#[derive(Clone, Debug, Default)]
// This capacity is enough for a call on two token buckets.
pub(super) struct Packed(SmallVec<[u8; 192]>);

impl Packed {
    pub(super) fn number(&mut self, number: u64) {
        self.bytes(&packed(number));
    }

    /// Adds a string, which must not contain a zero byte.
    pub(super) fn string(&mut self, string: &str) {
        debug_assert!(!string.contains('\0'), "{string:?}");
        self.bytes(string.as_bytes());
        self.bytes(b"\0");
    }

    /// Adds bytes that are packed already.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the bytes of a number in an argument.
pub(super) fn packed(number: u64) -> [u8; 8] {
    (number as f64).to_be_bytes()
}

/// Returns the bytes of an argument. Each character of `word` stands for one byte.
#[cfg(any(test, feature = "test-util"))]
pub(super) fn bytes_of(word: &str) -> Vec<u8> {
    word.chars().map(|byte| byte as u8).collect()
}

/// An argument that is unpacked as by a script, for servers in this process.
#[cfg(any(test, feature = "test-util"))]
pub(super) struct Unpacked<'a>(pub(super) &'a [u8]);

#[cfg(any(test, feature = "test-util"))]
impl<'a> Unpacked<'a> {
    /// Removes the number at the beginning, and returns it. Returns `None` if fewer than eight bytes are left.
    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(f64::from_be_bytes(*number) as u64)
    }

    /// Removes the string at the beginning, and returns its bytes. Returns `None` if no string ends in these bytes.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (string, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(string)
    }
}
