use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::{RedisError, RedisErrorKind};
use tower_throttle::limiter::{KeyText, SharedKey};

/// The names of the limiters of a store. Two limiters with one name share their keys, so both must have the same
/// algorithm and quota.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<String, Entry>>>);

#[derive(Debug)]
struct Entry {
    /// The beginning of the values that the limiters write. Different algorithms and quotas have different beginnings.
    unit: String,
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
pub(super) struct Registered(Name);

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
    /// Registers a limiter. Returns an error if the name is empty, or if the states of a registered limiter with this
    /// name have another unit.
    pub(super) fn register(self, unit: &str) -> Result<Registered, RedisError> {
        let error = |detail: String| RedisError::new(RedisErrorKind::Name, detail);
        let Self { names, name, .. } = &self;
        if name.is_empty() {
            return Err(error(
                "its keys in Redis are kept under its name: give a name, such as \"login\"".to_owned(),
            ));
        }
        names.with(|names| {
            let entry =
                names.entry(name.clone()).or_insert_with(|| Entry { unit: unit.to_owned(), limiters: 0 });
            if entry.unit != unit {
                return Err(error(format!(
                    "{name:?} is the name of a limiter with another algorithm or quota: {:?} is not {unit:?}",
                    entry.unit
                )));
            }
            entry.limiters += 1;
            Ok(())
        })?;
        Ok(Registered(self))
    }

    /// Returns the name.
    pub(super) fn as_str(&self) -> &str {
        &self.name
    }
}

impl Registered {
    /// Returns the name.
    pub(super) fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns the text of a key, which is its name in Redis.
    pub(super) fn key<K: SharedKey + ?Sized>(&self, key: &K) -> Arc<str> {
        self.0.text.of(key).into()
    }

    /// Sets the unit of the states that are kept under this name. This function is called after the algorithm of a
    /// limiter was replaced.
    pub(super) fn set(&self, unit: &str) {
        let Name { names, name, .. } = &self.0;
        names.with(|names| {
            if let Some(entry) = names.get_mut(name) {
                entry.unit = unit.to_owned();
            }
        });
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Name { names, name, .. } = &self.0;
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
        let register = |name: &str, unit| names.name(name, KeyText::new(name)).register(unit);
        let first = register("login", "1 f:5/1").unwrap();
        let second = register("login", "1 f:5/1").unwrap();
        let error = register("login", "1 f:6/1").unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Name);
        assert!(error.to_string().contains("\"login\""), "{error}");
        assert!(register("search", "1 f:6/1").is_ok());
        drop((first, second));
        assert!(register("login", "1 f:6/1").is_ok());
        let unnamed = register("", "").unwrap_err();
        assert!(
            unnamed.kind() == RedisErrorKind::Name && unnamed.to_string().contains("a name"),
            "{unnamed}"
        );
    }
}
