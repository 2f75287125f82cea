//! Keys as strings that are the same on all machines: the *texts* of the keys.
//!
//! A store in memory hashes a key with a random seed of its own, so the hash identifies the key only in that store. A
//! store on another machine needs the text of the key. Different keys of a type must have different texts, whatever
//! values callers send.

mod key_text;
mod secret;
#[cfg(test)]
mod tests;
mod types;
mod writer;

pub use key_text::KeyText;
pub use secret::{KeySecret, KeyedHash};
pub use writer::KeyWriter;

/// A key that can be written as a string which is the same on all machines, in all processes and after each restart.
/// This string is the *text* of the key.
///
/// A store on another machine, such as Redis, requires keys that implement this trait. Strings, integers, IP addresses,
/// tuples of these, and the keys of most extractors of this crate implement the trait. The keys of
/// [`Bearer`](crate::key::Bearer) and [`Cookie`](crate::key::Cookie) implement it only if
/// [`keyed_by`](crate::key::Bearer::keyed_by) gives the extractor a secret that all processes know. Without a secret,
/// these keys are hashed with a random number, which differs from process to process. [`KeyText`] creates the text.
///
/// For a key of your own type, write each field as a part. For an enum, write the variant:
///
/// ```
/// use tower_throttle::store::{KeyText, KeyWriter, SharedKey};
///
/// #[derive(Hash)]
/// enum Caller {
///     User { region: String, id: u64 },
///     Guest,
/// }
///
/// impl SharedKey for Caller {
///     fn write_to(&self, text: &mut KeyWriter) {
///         match self {
///             Self::User { region, id } => text.variant("user", &(region, id)),
///             Self::Guest => text.variant("guest", &()),
///         };
///     }
/// }
///
/// let text = KeyText::new("login");
/// let user = Caller::User { region: "eu".to_owned(), id: 42 };
/// assert_eq!(text.of(&user), "throttle:{user~(eu,#42)}:login");
/// assert_eq!(text.of(&Caller::Guest), "throttle:{guest~}:login");
/// ```
///
/// The key of a [`Bearer`](crate::key::Bearer) without a secret does not implement the trait, so this does not compile:
///
/// ```compile_fail,E0277
/// use tower_throttle::key::Bearer;
/// use tower_throttle::store::KeyText;
///
/// KeyText::new("login").of(&Bearer::new().key("mF_9.B5f-4.1JqM"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no text that is the same on all machines",
    label = "this key cannot be shared with other machines",
    note = "the keys of `Bearer` and `Cookie` are hashed with a random number of this process: give the extractor a \
            secret that all processes know, with `.keyed_by(secret)`",
    note = "for a type of your own, implement `tower_throttle::store::SharedKey`"
)]
pub trait SharedKey {
    /// Writes the parts of the key.
    ///
    /// Two different keys of a type must write different parts. The writer separates the parts, and escapes special
    /// characters in them. For an enum, write a [`variant`](KeyWriter::variant). For a list whose length can vary,
    /// write the length first.
    fn write_to(&self, text: &mut KeyWriter);
}
