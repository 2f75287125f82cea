use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::{RedisError, RedisErrorKind};

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

/// The name of a limiter, which is free again when the limiter is dropped.
#[derive(Debug)]
pub(super) struct Registered {
    names: Names,
    name: String,
}

impl Names {
    fn with<R>(&self, f: impl FnOnce(&mut HashMap<String, Entry>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers a limiter. Returns an error if the limiter has no name, or if the states of a registered limiter with
    /// this name have another unit.
    pub(super) fn register(&self, name: Option<String>, unit: &str) -> Result<Registered, RedisError> {
        let error = |detail: String| RedisError::new(RedisErrorKind::Name, detail);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(error(
                "its keys in Redis are kept under its name: call `RateLimiter::builder(..).name(\"login\")`"
                    .to_owned(),
            ));
        };
        self.with(|names| {
            let entry =
                names.entry(name.clone()).or_insert_with(|| Entry { unit: unit.to_owned(), limiters: 0 });
            if entry.unit != unit {
                return Err(error(format!(
                    "{name:?} is the name of a limiter with another algorithm or quota: {:?} is not {unit:?}",
                    entry.unit
                )));
            }
            entry.limiters += 1;
            Ok(Registered { names: self.clone(), name })
        })
    }
}

impl Registered {
    /// Sets the unit of the states that are kept under this name. This function is called after the algorithm of a
    /// limiter was replaced.
    pub(super) fn set(&self, unit: &str) {
        self.names.with(|names| {
            if let Some(entry) = names.get_mut(&self.name) {
                entry.unit = unit.to_owned();
            }
        });
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.names.with(|names| {
            if let Some(entry) = names.get_mut(&self.name) {
                entry.limiters -= 1;
                if entry.limiters == 0 {
                    names.remove(&self.name);
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
        let first = names.register(Some("login".to_owned()), "1 f:5/1").unwrap();
        let second = names.register(Some("login".to_owned()), "1 f:5/1").unwrap();
        let error = names.register(Some("login".to_owned()), "1 f:6/1").unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Name);
        assert!(error.to_string().contains("\"login\""), "{error}");
        assert!(names.register(Some("search".to_owned()), "1 f:6/1").is_ok());
        drop((first, second));
        assert!(names.register(Some("login".to_owned()), "1 f:6/1").is_ok());
        for none in [None, Some(String::new())] {
            assert!(names.register(none, "").unwrap_err().to_string().contains(".name("));
        }
    }
}
