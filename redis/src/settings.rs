//! The settings of a store.

use std::time::Duration;

use tower_throttle::store::{KeySecret, KeyText};

/// The settings of a store, which apply to each of its limiters.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) prefix: String,
    pub(super) slot: Option<String>,
    pub(super) secret: Option<KeySecret>,
    pub(super) remember_denials: Duration,
    pub(super) permit_lease: Duration,
    /// `true` if scripts decide the calls of each algorithm that has a script.
    pub(super) scripts: bool,
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
            permit_lease: Duration::from_secs(10),
            scripts: true,
        }
    }
}
