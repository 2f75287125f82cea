//! The operations on a key.

use super::config::Rule;

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Call(u64),
    Look(u64),
    Refund(u64),
    /// Charges a number of units after the fact, up to a maximum debt.
    Charge(u64, u64),
    Replace(Box<Rule>),
}
