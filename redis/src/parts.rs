//! The parts of a store that its limiters share, and the settings of the store.

use std::sync::Arc;
use std::time::Duration;

use super::links::Links;
use super::names::{Name, Names};
use super::settlements::StoreSettlements;
use tower_throttle::limiter::{KeySecret, KeyText};

/// The parts of a store that each of its limiters has.
#[derive(Clone, Debug)]
pub(super) struct StoreParts {
    pub(super) links: Links,
    pub(super) settings: Settings,
    pub(super) settlements: Arc<StoreSettlements>,
    names: Names,
}

/// The settings of a store, which apply to each of its limiters.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) prefix: String,
    pub(super) slot: Option<String>,
    pub(super) secret: Option<KeySecret>,
    pub(super) remember_denials: Duration,
    /// The time for which a call waits for the server.
    pub(super) deadline: Duration,
    /// `true` if scripts decide the calls of each algorithm that has a script.
    pub(super) scripts: bool,
}

impl StoreParts {
    pub(super) fn new(links: Links, settings: Settings) -> Self {
        Self { links, settings, settlements: Arc::default(), names: Names::default() }
    }

    /// Returns the name of a new limiter.
    pub(super) fn name(&self, name: &str) -> Name {
        self.names.name(name, self.settings.key_text(name))
    }
}

impl Settings {
    /// Returns the beginning of the names of the channels for messages of this kind.
    pub(super) fn channel(&self, kind: &str) -> String {
        format!("{}:{kind}:", self.prefix)
    }

    /// Returns the [`KeyText`] that creates the keys of the limiter `name` in Redis.
    pub(super) fn key_text(&self, name: &str) -> KeyText {
        let mut text = KeyText::new(name).prefix(&self.prefix);
        if let Some(slot) = &self.slot {
            text = text.one_slot(slot);
        }
        match self.secret {
            Some(secret) => text.secret(secret),
            None => text,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "throttle".to_owned(),
            slot: None,
            secret: None,
            remember_denials: Duration::from_secs(1),
            deadline: Duration::from_millis(50),
            scripts: true,
        }
    }
}
