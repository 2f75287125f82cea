//! What callers say of themselves: header values, tokens, cookies.

mod bearer;
mod cookie;
mod header;
mod secret;

pub use bearer::Bearer;
pub use cookie::Cookie;
pub use header::{Header, HeaderKey};
pub use secret::Secret;

/// The longest value that is a key, in bytes, unless set.
const LONGEST: usize = 8_192;
