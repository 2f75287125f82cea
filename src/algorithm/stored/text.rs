//! The writer and the reader of the numbers in a string.

use std::fmt::Write;

use crate::algorithm::MAX_DEBT;
use crate::clock::Nanos;

/// A writer of the numbers of a state. Each number is written after a space.
#[derive(Clone, Debug, Default)]
pub struct StateWriter {
    text: String,
    is_exact: bool,
}

impl StateWriter {
    /// Writes a number.
    pub fn number(&mut self, number: u64) {
        self.wide(number.into());
    }

    /// Writes a number that may need 128 bits.
    pub fn wide(&mut self, number: u128) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, " {number}");
    }

    /// Writes an instant in microseconds, rounded up.
    pub fn instant(&mut self, instant: Nanos) {
        self.number(instant.0.div_ceil(1_000));
    }

    /// Writes a word, which must contain no space.
    pub fn word(&mut self, word: &str) {
        self.text.push(' ');
        self.text.push_str(word);
    }

    /// Returns what was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Calls `write` with a writer that is [exact](Self::is_exact).
    pub(in crate::algorithm) fn exactly(&mut self, write: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.is_exact, true);
        write(self);
        self.is_exact = before;
    }

    /// Returns whether numbers must not be rounded to microseconds. No script reads such numbers.
    pub(in crate::algorithm) fn is_exact(&self) -> bool {
        self.is_exact
    }
}

/// A reader of the numbers of a state. Each method that reads returns `None` if the next word of the string is not what
/// the method reads.
#[derive(Clone, Debug)]
pub struct StateReader<'a> {
    rest: &'a str,
    is_exact: bool,
}

impl<'a> StateReader<'a> {
    /// Creates a reader of what a [`StateWriter`] wrote.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self { rest: text, is_exact: false }
    }

    /// Reads a word.
    pub fn word(&mut self) -> Option<&'a str> {
        let rest = self.rest.strip_prefix(' ')?;
        let (word, rest) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    /// Reads a number.
    pub fn number(&mut self) -> Option<u64> {
        u64::try_from(self.wide()?).ok()
    }

    /// Reads a number of up to 128 bits.
    pub fn wide(&mut self) -> Option<u128> {
        let word = self.word()?;
        // `parse` would accept a plus sign as well.
        word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
    }

    /// Reads a number that is at most `max`.
    pub fn at_most(&mut self, max: u64) -> Option<u64> {
        self.number().filter(|number| *number <= max)
    }

    /// Reads a number of used units, which is at most `limit` plus the [maximum debt](MAX_DEBT).
    pub fn in_debt(&mut self, limit: u64) -> Option<u64> {
        self.at_most(limit.saturating_add(MAX_DEBT))
    }

    /// Reads an instant.
    pub fn instant(&mut self) -> Option<Nanos> {
        Some(Nanos(self.number()?.checked_mul(1_000)?))
    }

    /// Returns whether the whole string was read.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Calls `read` with a reader of what an [exact](StateWriter::is_exact) writer wrote.
    pub(in crate::algorithm) fn exactly<R>(&mut self, read: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.is_exact, true);
        let result = read(self);
        self.is_exact = before;
        result
    }

    /// Returns whether the writer was [exact](StateWriter::is_exact).
    pub(in crate::algorithm) fn is_exact(&self) -> bool {
        self.is_exact
    }
}

/// Reads the numbers of a [unit of a state](super::StoredAlgorithm::unit), which follow its tag. In the unit
/// `t:10/1000/10`, the tag is `t:`, and the numbers are 10, 1,000 and 10.
pub(in crate::algorithm) fn numbers_of<const N: usize>(unit: &str, tag: &str) -> Option<[u64; N]> {
    let mut words = unit.strip_prefix(tag)?.split('/');
    let mut numbers = [0; N];
    for number in &mut numbers {
        let word = words.next()?;
        *number = word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())??;
    }
    words.next().is_none().then_some(numbers)
}

/// Returns the number of nanoseconds in one unit of the times in a state string that are shorter than the period. The
/// result is 1,000 if the period is a whole number of microseconds, and otherwise 1.
pub(in crate::algorithm) const fn scale_of(period: u64) -> u64 {
    if period.is_multiple_of(1_000) { 1_000 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_numbers_are_read() {
        let numbers = |text: &str| StateReader::new(text).number();
        assert_eq!(numbers(" 18446744073709551615"), Some(u64::MAX));
        for text in
            ["", " ", "1", "  1", " +1", " -1", " 1.0", " 1e3", " 18446744073709551616", " 0x1", " \u{0661}"]
        {
            assert_eq!(numbers(text), None, "{text:?}");
        }
        assert_eq!(StateReader::new(" 18446744073709552").instant(), None, "beyond the end of time");
    }

    #[test]
    fn a_trailing_space_is_not_the_end() {
        let mut reader = StateReader::new(" 1 ");
        assert_eq!(reader.number(), Some(1));
        assert!(!reader.is_at_end());
        assert_eq!(reader.number(), None);
    }
}
