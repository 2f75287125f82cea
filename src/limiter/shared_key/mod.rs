//! Keys as strings that are the same on all machines: the *texts* of the keys.
//!
//! A limiter in memory hashes a key with a random seed of its own, so the hash identifies the key only in that limiter.
//! A limiter that keeps its state on another machine needs the text of the key. Different keys of a type must have
//! different texts, whatever values callers send.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::{self, Write};
use std::hash::Hash;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use siphasher::sip128::SipHasher24;

use crate::error::ConfigError;

/// A key that can be written as a string which is the same on all machines, in all processes and after each restart.
/// This string is the *text* of the key.
///
/// A limiter that keeps its state on another machine, such as in Redis, requires keys that implement this trait.
/// Strings, integers, IP addresses, tuples of these, and the keys of most extractors of this crate implement the trait.
/// The keys of [`Bearer`](crate::key::Bearer) and [`Cookie`](crate::key::Cookie) implement it only if
/// [`keyed_by`](crate::key::Bearer::keyed_by) gives the extractor a secret that all processes know. Without a secret,
/// these keys are hashed with a random number, which differs from process to process. [`KeyText`] creates the text.
///
/// For a key of your own type, write each field as a part. For an enum, write the variant:
///
/// ```
/// use tower_throttle::limiter::{KeyText, KeyWriter, SharedKey};
///
/// #[derive(Hash)]
/// enum Caller {
///     User { region: String, id: u64 },
///     Guest,
/// }
///
/// impl SharedKey for Caller {
///     fn write_to(&self, text: &mut KeyWriter) {
///         match self {
///             Self::User { region, id } => text.variant("user", &(region, id)),
///             Self::Guest => text.variant("guest", &()),
///         };
///     }
/// }
///
/// let text = KeyText::new("login");
/// let user = Caller::User { region: "eu".to_owned(), id: 42 };
/// assert_eq!(text.of(&user), "throttle:{user~(eu,#42)}:login");
/// assert_eq!(text.of(&Caller::Guest), "throttle:{guest~}:login");
/// ```
///
/// The key of a [`Bearer`](crate::key::Bearer) without a secret does not implement the trait, so this does not compile:
///
/// ```compile_fail,E0277
/// use tower_throttle::key::Bearer;
/// use tower_throttle::limiter::KeyText;
///
/// KeyText::new("login").of(&Bearer::new().key("mF_9.B5f-4.1JqM"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no text that is the same on all machines",
    label = "this key cannot be shared with other machines",
    note = "the keys of `Bearer` and `Cookie` are hashed with a random number of this process: give the extractor a \
            secret that all processes know, with `.keyed_by(secret)`",
    note = "for a type of your own, implement `tower_throttle::limiter::SharedKey`"
)]
pub trait SharedKey {
    /// Writes the parts of the key.
    ///
    /// Two different keys of a type must write different parts. The writer separates the parts, and escapes special
    /// characters in them. For an enum, write a [`variant`](KeyWriter::variant). For a list whose length can vary,
    /// write the length first.
    fn write_to(&self, text: &mut KeyWriter);
}

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

/// Creates the text of a key, which names the key in a store: for example, `throttle:{user-42}:login`. In Redis, a
/// colon and the [kind](crate::algorithm::StoredAlgorithm::kind) of the algorithm follow.
///
/// By default, a text consists of a prefix, the caller's key in braces, and the name of the limiter. Redis Cluster
/// hashes only the part in braces, the hash tag. So all limits of one caller are on one node, and different callers are
/// spread over all nodes. In prefixes, keys and names, special characters such as braces and line breaks are escaped,
/// as [`KeyWriter`] describes. In names, colons are escaped as well.
///
/// Texts with different prefixes or names are different. With the same prefix and name, different keys of a type have
/// different texts: see [`KeyWriter`]. If long keys are hashed, two long keys have the same text only if they have the
/// same 128-bit hash.
///
/// ```
/// use tower_throttle::limiter::KeyText;
///
/// let text = KeyText::new("login");
/// assert_eq!(text.of("user-42"), "throttle:{user-42}:login");
/// assert_eq!(text.of(&("a", 7)), "throttle:{a,#7}:login");
/// assert_eq!(text.of("{a}\0\n"), "throttle:{%7Ba%7D%00%0A}:login");
/// assert_eq!(text.prefix("shop:prod").of("user-42"), "shop:prod:{user-42}:login");
/// ```
///
/// # Memory
///
/// If there is a [secret](KeyText::secret), a key whose text has more than [100](KeyText::MAX_LEN) bytes is replaced by
/// its hash. Without a secret, the whole text is stored, so callers that choose their keys determine how much is
/// stored.
#[derive(Clone)]
#[must_use = "this makes texts, and does nothing by itself"]
pub struct KeyText {
    prefix: String,
    slot: Option<String>,
    name: String,
    secret: Option<KeySecret>,
}

/// A secret in the configuration of all processes that share limits.
///
/// The secret is part of the configuration, because a random secret would differ in each process. Keys that must not be
/// readable, and keys that are too long to be stored, are hashed with the secret and
/// [SipHash-2-4](https://www.aumasson.jp/siphash/siphash.pdf), to 128 bits. Someone who can read the store but does not
/// know the secret can neither recover such a key nor verify a guess of the key. A caller who does not know the secret
/// cannot find two keys with the same hash. If the secret changes, the limits of all hashed keys start over.
///
/// The `Debug` form of a secret shows nothing.
///
/// ```
/// use tower_throttle::key::{Bearer, PeerIp};
/// use tower_throttle::limiter::KeySecret;
///
/// # let from_environment = "3e5f0d6c9a1b48d7a2c4e6f801234567";
/// let secret = KeySecret::new(from_environment)?;
/// let by_token = Bearer::new().keyed_by(secret).or(PeerIp::new());
/// # Ok::<(), tower_throttle::error::ConfigError>(())
/// ```
#[derive(Clone, Copy)]
pub struct KeySecret {
    of_values: HashKey,
    of_texts: HashKey,
}

type HashKey = (u64, u64);

/// The 128-bit hash of a value, keyed with a [`KeySecret`]. Without the secret, the value cannot be recovered from the
/// hash. The hash is the same in all processes with the same secret.
///
/// The `Debug` form of a hash shows nothing of the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyedHash(u128);

impl KeyWriter {
    fn new() -> Self {
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
    fn finish(mut self) -> String {
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
        let outer = mem::replace(&mut self.parts, 0);
        key.write_to(self);
        (start, mem::replace(&mut self.parts, outer))
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

/// Returns the text of a key alone, which a [`KeyText`] puts into braces.
pub(crate) fn text_of<K: SharedKey + ?Sized>(key: &K) -> String {
    let mut writer = KeyWriter::new();
    key.write_to(&mut writer);
    writer.finish()
}

impl KeyText {
    /// The length, in bytes, above which the text of a key is replaced by its hash, if there is a secret. The prefix
    /// and the name of the limiter do not count towards this length. Without a secret, a text can have any length.
    pub const MAX_LEN: usize = 100;

    /// Creates a `KeyText` for the limiter `name`, with the prefix `throttle`.
    pub fn new(name: &str) -> Self {
        let is_plain = |byte| byte != b':' && is_plain(byte);
        Self { prefix: "throttle:".to_owned(), slot: None, name: escaped(name, is_plain), secret: None }
    }

    /// Sets the prefix. The default is `throttle`. With an empty prefix, the texts begin with the brace.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = if prefix.is_empty() { String::new() } else { escaped(prefix, is_plain) + ":" };
        self
    }

    /// Puts all keys into the cluster slot of `tag`: `throttle:{tag}:user-42:login`.
    ///
    /// One script can then change keys of different callers, but one node of the cluster does all the work.
    ///
    /// ```
    /// use tower_throttle::limiter::KeyText;
    ///
    /// assert_eq!(
    ///     KeyText::new("login").one_slot("app").of("user-42"),
    ///     "throttle:{app}:user-42:login"
    /// );
    /// ```
    pub fn one_slot(mut self, tag: &str) -> Self {
        self.slot = Some(escaped(tag, is_plain));
        self
    }

    /// Sets the secret with which keys whose texts have more than [100](KeyText::MAX_LEN) bytes are hashed.
    pub fn secret(mut self, secret: KeySecret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Appends `end` to each text, as it is.
    pub(crate) fn with_end(mut self, end: &str) -> Self {
        self.name.push_str(end);
        self
    }

    /// Returns the text of `key`.
    #[must_use]
    pub fn of<K: SharedKey + ?Sized>(&self, key: &K) -> String {
        let mut key = text_of(key);
        if let Some(secret) = self.secret.filter(|_| key.len() > Self::MAX_LEN) {
            // The text of a caller's key never begins with `~`, because an empty name of a variant is written as `%`.
            // Only the text of `StoreKey::Missing` begins with `~`, and that text is too short to be hashed.
            key = format!("~{:032x}", secret.hash_text(&key));
        }
        let Self { prefix, name, .. } = self;
        // A text is made for each call. `concat` computes its length first, so that it allocates once.
        match &self.slot {
            None => [prefix, "{", &key, "}:", name].concat(),
            Some(slot) => [prefix, "{", slot, "}:", &key, ":", name].concat(),
        }
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, slot, name, secret } = self;
        f.debug_struct("KeyText")
            .field("prefix", prefix)
            .field("slot", slot)
            .field("name", name)
            .field("secret", secret)
            .finish()
    }
}

impl KeySecret {
    /// The minimum length of a secret, in bytes.
    pub const MIN_LEN: usize = 16;

    /// Creates a secret from bytes that are hard to guess, such as the output of `openssl rand -hex 16`.
    ///
    /// # Errors
    ///
    /// Returns an error if `secret` has fewer than 16 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        let secret = secret.as_ref();
        if secret.len() < Self::MIN_LEN {
            return Err(short_secret(secret.len()));
        }
        // Each purpose has its own hash key, so that the hash of a value differs from the hash of a key's text with the
        // same bytes.
        let derive = |purpose| {
            let hash = SipHasher24::new_with_keys(u64::from_be_bytes(*b"throttle"), purpose).hash(secret);
            (hash.h1, hash.h2)
        };
        Ok(Self { of_values: derive(1), of_texts: derive(2) })
    }

    /// Returns the 128-bit hash of a value that must not be readable, such as a token. The hash is a key that
    /// implements [`SharedKey`], and is the same in all processes with the same secret. Its `Debug` form shows nothing
    /// of the value.
    #[must_use]
    pub fn hash(&self, value: &[u8]) -> KeyedHash {
        KeyedHash(hash(self.of_values, value))
    }

    /// Returns the hash of the text of a key.
    fn hash_text(&self, text: &str) -> u128 {
        hash(self.of_texts, text.as_bytes())
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

impl SharedKey for KeyedHash {
    fn write_to(&self, text: &mut KeyWriter) {
        text.marked("hash~", format_args!("{:032x}", self.0));
    }
}

impl fmt::Debug for KeyedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyedHash(..)")
    }
}

macro_rules! pointer {
    ($($pointer:ty),+) => {$(
        impl<K: SharedKey + ?Sized> SharedKey for $pointer {
            fn write_to(&self, text: &mut KeyWriter) {
                (**self).write_to(text);
            }
        }
    )+};
}

pointer!(&K, &mut K, Box<K>, Rc<K>, Arc<K>);

impl<K: SharedKey + ToOwned + ?Sized> SharedKey for Cow<'_, K> {
    fn write_to(&self, text: &mut KeyWriter) {
        (**self).write_to(text);
    }
}

macro_rules! marked {
    ($mark:literal: $($number:ty),+) => {$(
        impl SharedKey for $number {
            fn write_to(&self, text: &mut KeyWriter) {
                text.marked($mark, self);
            }
        }
    )+};
}

marked!("#": u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, bool);
marked!("ip~": IpAddr, Ipv4Addr, Ipv6Addr);

impl SharedKey for str {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self);
    }
}

impl SharedKey for String {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self);
    }
}

impl SharedKey for char {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self.encode_utf8(&mut [0; 4]));
    }
}

impl SharedKey for [u8] {
    fn write_to(&self, text: &mut KeyWriter) {
        text.bytes(self);
    }
}

impl SharedKey for Vec<u8> {
    fn write_to(&self, text: &mut KeyWriter) {
        text.bytes(self);
    }
}

impl<const N: usize> SharedKey for [u8; N] {
    fn write_to(&self, text: &mut KeyWriter) {
        text.bytes(self);
    }
}

impl<K: SharedKey> SharedKey for Option<K> {
    fn write_to(&self, text: &mut KeyWriter) {
        match self {
            Some(key) => text.variant("some", key),
            None => text.variant("none", &()),
        };
    }
}

/// `Infallible` has no values, so its method is never called.
impl SharedKey for Infallible {
    fn write_to(&self, _: &mut KeyWriter) {
        match *self {}
    }
}

/// The key of [`Global`](crate::key::Global).
impl SharedKey for () {
    fn write_to(&self, _: &mut KeyWriter) {}
}

macro_rules! tuple {
    ($($part:ident)+) => {
        impl<$($part: SharedKey),+> SharedKey for ($($part,)+) {
            #[allow(non_snake_case, reason = "type parameters name the parts")]
            fn write_to(&self, text: &mut KeyWriter) {
                let ($($part,)+) = self;
                $(text.part($part);)+
            }
        }
    };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);
tuple!(A B C D E F G);
tuple!(A B C D E F G H);

/// Returns whether a byte is written as it is.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:/@+=".contains(&byte)
}

/// Appends `bytes` to `text`. Bytes for which `is_plain` returns `false` are written as `%` and two hexadecimal digits.
/// If `bytes` is empty, a single `%` is written.
fn escape(bytes: &[u8], is_plain: impl Fn(u8) -> bool, text: &mut String) {
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

fn escaped(text: &str, is_plain: impl Fn(u8) -> bool) -> String {
    let mut escaped = String::new();
    escape(text.as_bytes(), is_plain, &mut escaped);
    escaped
}

fn hash((first, second): HashKey, bytes: &[u8]) -> u128 {
    SipHasher24::new_with_keys(first, second).hash(bytes).as_u128()
}

fn short_secret(len: usize) -> ConfigError {
    ConfigError::new(format!(
        "a secret of {len} bytes can be guessed: give at least 16 bytes, such as `openssl rand -hex 16` prints"
    ))
}
