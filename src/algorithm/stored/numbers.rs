//! The writer and the reader of the numbers of a state, as bytes.
//!
//! A number has eight bytes, which are those of a floating-point number with the least significant byte first, because
//! the scripts of servers have only such numbers. They are exact up to 2^53. A larger number is written as infinity,
//! which no script accepts, followed by the 16 bytes of the integer. A word ends with a zero byte.

use crate::algorithm::MAX_DEBT;
use crate::algorithm::stored::MAX_EXACT;
use crate::clock::Nanos;

/// A writer of the numbers of a state, each of which becomes eight bytes or, above 2^53, 24 bytes.
#[derive(Clone, Debug, Default)]
pub struct StateWriter {
    bytes: Vec<u8>,
    is_exact: bool,
}

impl StateWriter {
    /// Writes a number.
    pub fn number(&mut self, number: u64) {
        self.wide(number.into());
    }

    /// Writes a number that may need 128 bits.
    pub fn wide(&mut self, number: u128) {
        if number <= MAX_EXACT {
            self.bytes.extend((number as f64).to_le_bytes());
        } else {
            self.bytes.extend(f64::INFINITY.to_le_bytes());
            self.bytes.extend(number.to_le_bytes());
        }
    }

    /// Writes an instant in microseconds, rounded up, unless no later one can be read.
    pub fn instant(&mut self, instant: Nanos) {
        self.number(instant.0.div_ceil(1_000).min(u64::MAX / 1_000));
    }

    /// Writes a word, which must contain no zero byte.
    pub fn word(&mut self, word: &str) {
        self.bytes.extend(word.as_bytes());
        self.bytes.push(0);
    }

    /// Returns what was written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
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

/// A reader of the numbers of a state. Each method that reads returns `None` if the next bytes are not what the method
/// reads.
#[derive(Clone, Debug)]
pub struct StateReader<'a> {
    rest: &'a [u8],
    is_exact: bool,
}

impl<'a> StateReader<'a> {
    /// Creates a reader of what a [`StateWriter`] wrote.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, is_exact: false }
    }

    /// Reads a word.
    pub fn word(&mut self) -> Option<&'a str> {
        let end = self.rest.iter().position(|byte| *byte == 0)?;
        let word = std::str::from_utf8(&self.rest[..end]).ok()?;
        self.rest = &self.rest[end + 1..];
        Some(word)
    }

    /// Reads a number.
    pub fn number(&mut self) -> Option<u64> {
        u64::try_from(self.wide()?).ok()
    }

    /// Reads a number of up to 128 bits.
    pub fn wide(&mut self) -> Option<u128> {
        let number = f64::from_le_bytes(self.array()?);
        if number == f64::INFINITY {
            return Some(u128::from_le_bytes(self.array()?)).filter(|number| *number > MAX_EXACT);
        }
        // Neither a fraction, a negative number, nor what is no number.
        let integer = number as u128;
        (integer <= MAX_EXACT && integer as f64 == number).then_some(integer)
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

    /// Returns whether all bytes were read.
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

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*array)
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

/// Returns the number of nanoseconds in one unit of the times in a stored state that are shorter than the period. The
/// result is 1,000 if the period is a whole number of microseconds, and otherwise 1.
pub(in crate::algorithm) const fn scale_of(period: u64) -> u64 {
    if period.is_multiple_of(1_000) { 1_000 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(number: u128) -> Vec<u8> {
        let mut numbers = StateWriter::default();
        numbers.wide(number);
        numbers.as_bytes().to_vec()
    }

    #[test]
    fn each_number_is_read_as_it_was_written() {
        for number in [0, 1, 1_000_000, MAX_EXACT - 1, MAX_EXACT, MAX_EXACT + 1, u64::MAX.into(), u128::MAX] {
            let bytes = written(number);
            assert_eq!(bytes.len(), if number <= MAX_EXACT { 8 } else { 24 }, "{number}");
            let mut reader = StateReader::new(&bytes);
            assert_eq!((reader.wide(), reader.is_at_end()), (Some(number), true), "{number}");
            for end in 0..bytes.len() {
                assert_eq!(StateReader::new(&bytes[..end]).wide(), None, "{number}, {end} bytes");
            }
        }
    }

    #[test]
    fn only_whole_numbers_are_read() {
        let number = |number: f64| StateReader::new(&number.to_le_bytes()).number();
        assert_eq!(number(3.0), Some(3));
        assert_eq!(number(-0.0), Some(0), "as for a script");
        for other in [0.5, 3.000_000_000_000_1, -1.0, 1e16, f64::NAN, f64::NEG_INFINITY, f64::MAX, 5e-324] {
            assert_eq!(number(other), None, "{other}");
        }
        // Small numbers have one form, and larger ones than 64 bits are only read by `wide`.
        let wide = |number: u128| [&f64::INFINITY.to_le_bytes()[..], &number.to_le_bytes()].concat();
        assert_eq!(StateReader::new(&wide(3)).wide(), None);
        assert_eq!(StateReader::new(&wide(1 << 64)).number(), None);
        assert_eq!(
            StateReader::new(&written(18_446_744_073_709_552)).instant(),
            None,
            "beyond the end of time"
        );
    }

    #[test]
    fn each_instant_that_is_written_can_be_read() {
        for (written, read) in [
            (0, 0),
            (1, 1_000),
            (1_000, 1_000),
            (1_001, 2_000),
            (u64::MAX - 615, u64::MAX - 615),
            (u64::MAX, u64::MAX - 615),
        ] {
            let mut numbers = StateWriter::default();
            numbers.instant(Nanos(written));
            assert_eq!(StateReader::new(numbers.as_bytes()).instant(), Some(Nanos(read)), "{written}");
        }
    }

    #[test]
    fn a_word_ends_with_a_zero_byte() {
        let mut numbers = StateWriter::default();
        numbers.word("t:1/2/3");
        numbers.number(7);
        let mut reader = StateReader::new(numbers.as_bytes());
        assert_eq!((reader.word(), reader.number(), reader.word()), (Some("t:1/2/3"), Some(7), None));
        assert!(reader.is_at_end());
        assert_eq!(StateReader::new(b"t:1/2/3").word(), None);
        assert_eq!(StateReader::new(b"\xff\0").word(), None);
    }
}
