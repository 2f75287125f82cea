//! Keys from values that callers send: headers, tokens, cookies.

mod bearer;
mod cookie;
mod field;
mod secret_hash;

pub use bearer::Bearer;
pub use cookie::Cookie;
pub use field::{Header, HeaderKey};
pub use secret_hash::{ProcessSeed, SecretHash};

/// The default maximum length of a value, in bytes.
const DEFAULT_MAX_LEN: usize = 8_192;
