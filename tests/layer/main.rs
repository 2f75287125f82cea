//! The layer around services: alone, joined with others, between tower's own layers, and with limiters of one's own.

mod and_with_queue;
mod built_keys;
mod enabled;
mod full_table;
mod headers;
mod joint_edge_cases;
mod key_texts;
mod keys;
mod lockout;
mod metered;
mod mistakes;
mod observed;
mod own_limiter;
mod permit_release;
mod readiness;
#[cfg(feature = "metrics")]
mod recorded;
mod replaced;
mod service;
mod shared_keys;
mod shutdown;
#[path = "../support/mod.rs"]
mod support;
mod top_keys;
mod unread;
mod with_tower_layers;
