use std::fmt;

use super::writer::{escape, is_plain};
use super::{KeySecret, KeyWriter, SharedKey};

/// Creates the text of a key, which names the key in a store on another machine: for example,
/// `throttle:{user-42}:login`.
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
/// use tower_throttle::store::KeyText;
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
    /// use tower_throttle::store::KeyText;
    ///
    /// assert_eq!(KeyText::new("login").one_slot("app").of("user-42"), "throttle:{app}:user-42:login");
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

    /// Returns the text of `key`.
    #[must_use]
    pub fn of<K: SharedKey + ?Sized>(&self, key: &K) -> String {
        let mut writer = KeyWriter::new();
        key.write_to(&mut writer);
        let mut key = writer.finish();
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

fn escaped(text: &str, is_plain: impl Fn(u8) -> bool) -> String {
    let mut escaped = String::new();
    escape(text.as_bytes(), is_plain, &mut escaped);
    escaped
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
