//! The operations on a key.

use super::config::Rule;

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Call(u64),
    Look(u64),
    Refund(u64),
    /// Charges a number of units after the fact, up to a maximum debt.
    Charge(u64, u64),
    /// Settles one of the calls that were admitted, at a cost of its own, and up to a maximum debt.
    Settle {
        call: u64,
        actual: u64,
        max_debt: u64,
    },
    Replace(Box<Rule>),
}
