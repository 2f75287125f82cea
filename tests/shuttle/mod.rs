//! Models of what threads do to a limiter at once, and all that they need.

pub(crate) mod explorer;
pub(crate) mod line;
pub(crate) mod models;
pub(crate) mod pair;
pub(crate) mod stage;
pub(crate) mod time;
pub(crate) mod twin;
