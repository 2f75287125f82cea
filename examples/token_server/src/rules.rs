//! The limits of all domains, and the search for the limit of a descriptor.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::config::{ConfigError, Descriptor, DomainFile, Rate};
use crate::limiter::{Backend, Limiter};
use crate::protocol::common::rate_limit_descriptor::Entry;

/// The limits of all domains.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    domains: HashMap<String, Level>,
    /// The same limits, by the [`id`](Place::id) of their places.
    by_id: HashMap<String, Arc<Rule>>,
}

/// The entries at one level of a file: those of a domain, or those that may follow another entry.
#[derive(Debug, Default)]
struct Level {
    by_value: HashMap<(String, String), Node>,
    /// The entries whose values end with `*`, in the order of the file: the key, the part of the value before the `*`,
    /// and the node.
    by_prefix: Vec<(String, String, Node)>,
    by_key: HashMap<String, Node>,
}

#[derive(Debug)]
struct Node {
    rule: Option<Arc<Rule>>,
    next: Level,
}

/// One limit.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The domain, and the keys and values that lead to the limit in the file. This text is for people.
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
    pub(crate) shadow: bool,
    /// `None` if the limit is unlimited.
    pub(crate) limit: Option<Limit>,
}

/// The rate of a limit, and its counts.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) rate: Rate,
    /// `None` if the limit admits nothing.
    pub(crate) limiter: Option<Limiter>,
}

impl Rules {
    /// Builds the limits of these files. A limit keeps its counts if `previous` has a limit at the same place.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file and the limit. `previous` then stays as it is.
    pub(crate) fn new(
        files: &[(String, DomainFile)],
        backend: &Backend,
        previous: &Self,
    ) -> Result<Self, ConfigError> {
        let mut rules = Self::default();
        for (file, domain) in files {
            if rules.domains.contains_key(&domain.domain) {
                return Err(ConfigError::new(
                    file,
                    format_args!("another file has the domain {:?} as well", domain.domain),
                ));
            }
            let mut builder = Build { file, backend, previous, by_id: &mut rules.by_id };
            let place = Place { id: part(&domain.domain), path: domain.domain.clone() };
            let level = builder.level(&place, &domain.descriptors)?;
            rules.domains.insert(domain.domain.clone(), level);
        }
        // Quotas are replaced only after all files have been found to be valid.
        for (id, rule) in &rules.by_id {
            let Some(former) = previous.limit(id) else { continue };
            if let Some(Limit { rate, limiter: Some(limiter) }) = &rule.limit
                && *rate != former.rate
                && let Some(quota) = rate.quota()
            {
                limiter.replace(quota);
            }
        }
        Ok(rules)
    }

    fn limit(&self, id: &str) -> Option<&Limit> {
        self.by_id.get(id)?.limit.as_ref()
    }

    /// Returns whether a file has this domain.
    pub(crate) fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Returns the number of limits.
    pub(crate) fn count(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the limit of a descriptor, which is the limit of its last entry. Several entries of a file may match an
    /// entry of the descriptor. The entry with the exact value then takes precedence over entries whose value ends with
    /// `*`, and these take precedence over the entry without a value. Of several entries whose value ends with `*`, the
    /// first in the file applies.
    pub(crate) fn find(&self, domain: &str, entries: &[Entry]) -> Option<&Arc<Rule>> {
        let mut level = self.domains.get(domain)?;
        let (last, first) = entries.split_last()?;
        for entry in first {
            level = &level.find(entry)?.next;
        }
        level.find(last)?.rule.as_ref()
    }
}

impl Level {
    fn find(&self, entry: &Entry) -> Option<&Node> {
        let with_value = self.by_value.get(&(entry.key.clone(), entry.value.clone()));
        let with_prefix = || {
            let found = self
                .by_prefix
                .iter()
                .find(|(key, prefix, _)| *key == entry.key && entry.value.starts_with(prefix));
            found.map(|(_, _, node)| node)
        };
        with_value.or_else(with_prefix).or_else(|| self.by_key.get(&entry.key))
    }
}

struct Build<'a> {
    file: &'a str,
    backend: &'a Backend,
    previous: &'a Rules,
    by_id: &'a mut HashMap<String, Arc<Rule>>,
}

/// A place in a file: the domain, and the keys and values that lead to an entry.
struct Place {
    /// A string that differs from those of all other places.
    id: String,
    path: String,
}

fn part(text: &str) -> String {
    format!("{}:{text}", text.len())
}

impl Build<'_> {
    fn level(&mut self, place: &Place, descriptors: &[Descriptor]) -> Result<Level, ConfigError> {
        let mut level = Level::default();
        let mut seen = HashSet::new();
        for descriptor in descriptors {
            let Descriptor { key, value, .. } = descriptor;
            if key.is_empty() {
                return Err(ConfigError::new(
                    self.file,
                    format_args!("{}: a descriptor has an empty key", place.path),
                ));
            }
            let path = match value.is_empty() {
                true => format!("{}.{key}", place.path),
                false => format!("{}.{key}_{value}", place.path),
            };
            let place = Place { id: format!("{} {} {}", place.id, part(key), part(value)), path };
            if !seen.insert((key, value)) {
                return Err(ConfigError::new(self.file, format_args!("{} is configured twice", place.path)));
            }
            let rule = self.rule(&place, descriptor)?;
            let node = Node { rule, next: self.level(&place, &descriptor.descriptors)? };
            match value.strip_suffix('*') {
                Some(prefix) => level.by_prefix.push((key.clone(), prefix.to_owned(), node)),
                None if value.is_empty() => _ = level.by_key.insert(key.clone(), node),
                None => _ = level.by_value.insert((key.clone(), value.clone()), node),
            }
        }
        Ok(level)
    }

    fn rule(
        &mut self,
        Place { id, path }: &Place,
        descriptor: &Descriptor,
    ) -> Result<Option<Arc<Rule>>, ConfigError> {
        let error =
            |what: &dyn std::fmt::Display| ConfigError::new(self.file, format_args!("{path}: {what}"));
        let Some(config) = &descriptor.rate_limit else { return Ok(None) };
        let limit = match config.rate().map_err(|what| error(&what))? {
            None => None,
            Some(rate) => {
                let limiter =
                    match (self.previous.limit(id).and_then(|limit| limit.limiter.clone()), rate.quota()) {
                        (_, None) => None,
                        (Some(limiter), Some(_)) => Some(limiter),
                        (None, Some(quota)) => Some(self.backend.limiter(id, quota).map_err(|e| error(&e))?),
                    };
                Some(Limit { rate, limiter })
            }
        };
        let rule = Arc::new(Rule {
            path: path.clone(),
            name: config.name.clone(),
            replaces: config.replaces.iter().map(|replaced| replaced.name.clone()).collect(),
            shadow: descriptor.shadow_mode,
            limit,
        });
        self.by_id.insert(id.clone(), Arc::clone(&rule));
        Ok(Some(rule))
    }
}
