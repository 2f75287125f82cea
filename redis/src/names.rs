//! The names of limiters, and of their keys in Redis.
//!
//! The name of a key in Redis is its text, which [`KeyText`] creates, a colon, and the *kind* of its value. So a
//! limiter finds only values that it can read, even after a deployment that has changed the algorithm.

use std::any::type_name;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::{RedisError, RedisErrorKind};
use tower_throttle::algorithm::{Algorithm, AlgorithmInfo};
use tower_throttle::limiter::{KeyText, SharedKey};
use tower_throttle::store_support::with_end;

/// The names of the limiters of a store. Two limiters with one name share their keys, so both must have the same
/// algorithm and quota.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<String, Entry>>>);

#[derive(Debug)]
struct Entry {
    /// A colon, and the kind of the values.
    suffix: String,
    /// The beginning of the values that the limiters write. Different algorithms and quotas have different beginnings.
    unit: String,
    /// The algorithm and its quota, as people write them.
    words: String,
    limiters: usize,
}

/// The name of a limiter, and the text of the limiter's keys.
#[derive(Clone, Debug)]
pub(super) struct Name {
    names: Names,
    name: String,
    text: KeyText,
}

/// The name of a limiter that was built. The name is free again when the limiter is dropped.
#[derive(Debug)]
pub(super) struct Registered {
    /// The texts of this name end with the suffix.
    name: Name,
    /// A colon, and the kind of the limiter's values.
    suffix: String,
}

impl Names {
    fn with<R>(&self, f: impl FnOnce(&mut HashMap<String, Entry>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the name of a new limiter. `text` creates the keys of the limiter.
    pub(super) fn name(&self, name: &str, text: KeyText) -> Name {
        Name { names: self.clone(), name: name.to_owned(), text }
    }
}

impl Name {
    /// Registers a limiter of values of this kind, whose algorithm is described by [`words`]. Returns an error if the
    /// name is empty, if the states of a registered limiter with this name have another kind or unit, or if the kind is
    /// not one word without a colon, since two keys could then have one name.
    pub(super) fn register(self, kind: &str, unit: &str, words: String) -> Result<Registered, RedisError> {
        let error = |detail: String| RedisError::new(RedisErrorKind::Name, detail);
        if kind.is_empty() || !kind.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
            let detail = format!("the kind {kind:?} of its states is not one word of ASCII without a colon");
            return Err(RedisError::new(RedisErrorKind::Algorithm, detail));
        }
        let suffix = format!(":{kind}");
        let Self { names, name, .. } = &self;
        if name.is_empty() {
            return Err(error(format!(
                "the name of a limiter, {words}, is \"\": its keys in Redis are kept under a name, such as \"login\""
            )));
        }
        names.with(|names| {
            let unit_of = unit.to_owned();
            let words_of = words.clone();
            let new = || Entry { suffix: suffix.clone(), unit: unit_of, words: words_of, limiters: 0 };
            let entry = names.entry(name.clone()).or_insert_with(new);
            if entry.unit != unit || entry.suffix != suffix {
                // Of a lockout, for example, the words do not say all.
                let (old, new) =
                    if entry.words == words { (&*entry.unit, unit) } else { (&*entry.words, &*words) };
                return Err(error(format!(
                    "{name:?} is the name of a limiter with another algorithm or quota: {old} is not {new}"
                )));
            }
            entry.limiters += 1;
            Ok(())
        })?;
        let text = with_end(self.text, &suffix);
        Ok(Registered { name: Name { text, ..self }, suffix })
    }

    /// Returns the name.
    pub(super) fn as_str(&self) -> &str {
        &self.name
    }
}

impl Registered {
    /// Returns the name.
    pub(super) fn as_str(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the name of a key in Redis.
    pub(super) fn key<K: SharedKey + ?Sized>(&self, key: &K) -> Arc<str> {
        self.name.text.of(key).into()
    }

    /// Returns the text of a key, whose name in Redis [`key`](Self::key) has returned.
    pub(super) fn text_of<'a>(&self, key: &'a str) -> &'a str {
        key.strip_suffix(&*self.suffix).unwrap_or(key)
    }

    /// Sets the unit of the states that are kept under this name, and the words for their algorithm. This function is
    /// called after the algorithm of a limiter was replaced.
    pub(super) fn set(&self, unit: &str, words: String) {
        let Name { names, name, .. } = &self.name;
        names.with(|names| {
            if let Some(entry) = names.get_mut(name) {
                entry.unit = unit.to_owned();
                entry.words = words;
            }
        });
    }

    /// Adds to an error of a key whose value is not one of this limiter which limiter it is.
    pub(super) fn describe(&self, error: RedisError) -> RedisError {
        if error.kind() != RedisErrorKind::Foreign {
            return error;
        }
        let Name { names, name, .. } = &self.name;
        let words = names.with(|names| names.get(name).map(|entry| entry.words.clone()).unwrap_or_default());
        error.and(&format!("; the limiter is {name:?}, {words}"))
    }
}

/// Returns an algorithm and its quotas as people write them, such as `TokenBucket 100/min burst 20`.
pub(super) fn words<A: Algorithm>(info: &AlgorithmInfo) -> String {
    let parts = type_name::<A>().split_inclusive(['(', '<', ' ']);
    let name: String = parts.filter_map(|part| part.rsplit("::").next()).collect();
    let quotas: Vec<_> = info.quotas().iter().map(ToString::to_string).collect();
    format!("{name} {}", quotas.join(" and "))
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Name { names, name, .. } = &self.name;
        names.with(|names| {
            if let Some(entry) = names.get_mut(name) {
                entry.limiters -= 1;
                if entry.limiters == 0 {
                    names.remove(name);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_quota_until_its_limiters_are_dropped() {
        let names = Names::default();
        let register = |name: &str, unit: &str| {
            names.name(name, KeyText::new(name)).register("f", unit, format!("FixedWindow {}", &unit[4..]))
        };
        let first = register("login", "1 f:5/1").unwrap();
        let second = register("login", "1 f:5/1").unwrap();
        let error = register("login", "1 f:6/1").unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Name);
        let text = error.to_string();
        assert!(
            text.contains("\"login\"") && text.contains("FixedWindow 5/1 is not FixedWindow 6/1"),
            "{text}"
        );
        let foreign = second.describe(RedisError::new(RedisErrorKind::Foreign, "the value is \"x\""));
        let text = foreign.to_string();
        assert!(text.contains("the value is \"x\"; the limiter is \"login\", FixedWindow 5/1"), "{text}");
        assert!(register("search", "1 f:6/1").is_ok());
        drop((first, second));
        assert!(register("login", "1 f:6/1").is_ok());
        let unnamed = register("", "1 f:6/1").unwrap_err();
        assert!(
            unnamed.kind() == RedisErrorKind::Name && unnamed.to_string().contains("a name"),
            "{unnamed}"
        );
    }

    #[test]
    fn the_kind_follows_the_text_in_the_names_of_keys() {
        let names = Names::default();
        let register = |kind| names.name("login", KeyText::new("login")).register(kind, "1 x", String::new());
        let registered = register("b(t)").unwrap();
        let key = registered.key("user-42");
        assert_eq!(&*key, "throttle:{user-42}:login:b(t)");
        assert_eq!(registered.text_of(&key), "throttle:{user-42}:login");
        assert_eq!(register("t").unwrap_err().kind(), RedisErrorKind::Name, "the units are the same");
        drop(registered);
        for kind in ["", "a b", "a:b", "é", "a\n"] {
            assert_eq!(register(kind).unwrap_err().kind(), RedisErrorKind::Algorithm, "{kind:?}");
        }
    }
}
