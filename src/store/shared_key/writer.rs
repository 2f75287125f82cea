use std::fmt::{self, Write};

use super::SharedKey;

/// A writer of the text of a key, part by part.
///
/// The text consists of parts that are separated by commas. A part that itself consists of several parts is in
/// parentheses. ASCII letters, digits and the characters `-._:/@+=` are written as they are. All other bytes of a part
/// are written as `%` and two hexadecimal digits, as in a URL. A part without any bytes is written as `%`. So no value
/// that a caller sends can look like two parts, end a hash tag of Redis, or match other keys as a pattern of Redis's
/// `SCAN`.
///
/// | key | text |
/// |---|---|
/// | `"user-42"` | `user-42` |
/// | `"a,b"`, `""` | `a%2Cb`, `%` |
/// | `42_u64`, `true` | `#42`, `#true` |
/// | `()` | `()` |
/// | an address | `ip~203.0.113.7` |
/// | `("a", "bc")`, `(("a", 1), "b")` | `a,bc`, `(a,#1),b` |
/// | `Some("a")`, `None` | `some~a`, `none~` |
/// | the first or second extractor of [`first_of`](crate::key::first_of()) | `1~a`, `2~b` |
///
/// Different keys of one type have different texts. Keys of different types have different texts as well, with these
/// exceptions:
///
/// - equal integers of different types,
/// - values of text types, such as a string, a character, a byte slice, a `Method` and a `HeaderValue`, with the same
///   bytes,
/// - the same IP address as an `IpAddr` and as an `Ipv4Addr` or `Ipv6Addr`,
/// - a value, and a reference or smart pointer to it,
/// - a tuple or struct with a single field, and that field,
/// - types of your own that write the same parts.
pub struct KeyWriter {
    text: String,
    parts: usize,
}

impl KeyWriter {
    pub(super) fn new() -> Self {
        Self { text: String::new(), parts: 0 }
    }

    /// Writes a string as one part.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// Writes bytes as one part. The part is the same as that of a string with these bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.begin_part();
        escape(bytes, is_plain, &mut self.text);
        self
    }

    /// Writes another key as one part, even if that key consists of several parts.
    pub fn part<K: SharedKey + ?Sized>(&mut self, key: &K) -> &mut Self {
        self.begin_part();
        let (start, parts) = self.write_inner(key);
        if parts != 1 {
            self.parenthesize(start);
        }
        self
    }

    /// Writes the name of a variant, `~`, and the variant's content as one part. For a variant without fields, pass
    /// `&()`: nothing is written after the `~`.
    pub fn variant<K: SharedKey + ?Sized>(&mut self, name: &str, content: &K) -> &mut Self {
        self.begin_part();
        escape(name.as_bytes(), is_plain, &mut self.text);
        self.text.push('~');
        let (start, parts) = self.write_inner(content);
        if parts > 1 {
            self.parenthesize(start);
        }
        self
    }

    /// Writes a mark and the `Display` form of `content` as one part. The mark contains a character that is escaped in
    /// strings, so no string looks like a mark.
    pub(crate) fn marked(&mut self, mark: &str, content: impl fmt::Display) {
        self.begin_part();
        self.text.push_str(mark);
        // Writing to a `String` never fails.
        let _ = write!(self.text, "{content}");
    }

    /// Returns the text of the key, which is never empty.
    pub(super) fn finish(mut self) -> String {
        if self.parts == 0 {
            self.text.push_str("()");
        }
        self.text
    }

    fn begin_part(&mut self) {
        if self.parts > 0 {
            self.text.push(',');
        }
        self.parts += 1;
    }

    /// Appends the text of `key`. Returns the position at which that text begins, and the number of its parts.
    fn write_inner<K: SharedKey + ?Sized>(&mut self, key: &K) -> (usize, usize) {
        let start = self.text.len();
        let outer = std::mem::replace(&mut self.parts, 0);
        key.write_to(self);
        (start, std::mem::replace(&mut self.parts, outer))
    }

    fn parenthesize(&mut self, start: usize) {
        self.text.insert(start, '(');
        self.text.push(')');
    }
}

/// The `Debug` form does not show the text, which may contain a secret.
impl fmt::Debug for KeyWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyWriter").finish_non_exhaustive()
    }
}

/// Returns whether a byte is written as it is.
pub(super) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:/@+=".contains(&byte)
}

/// Appends `bytes` to `text`. Bytes for which `is_plain` returns `false` are written as `%` and two hexadecimal digits.
/// If `bytes` is empty, a single `%` is written.
pub(super) fn escape(bytes: &[u8], is_plain: impl Fn(u8) -> bool, text: &mut String) {
    if bytes.is_empty() {
        text.push('%');
    }
    text.reserve(bytes.len());
    for byte in bytes {
        if is_plain(*byte) {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
}
