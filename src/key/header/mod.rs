//! What callers say of themselves: header values, tokens, cookies.

mod bearer;
mod cookie;
mod field;
mod secret_hash;

pub use bearer::Bearer;
pub use cookie::Cookie;
pub use field::{Header, HeaderKey};
pub use secret_hash::SecretHash;

/// The longest value that is a key, in bytes, unless set.
const DEFAULT_MAX_LEN: usize = 8_192;
