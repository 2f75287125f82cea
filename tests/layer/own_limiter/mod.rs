//! Limiters of one's own, written with the public API only. They decide at once, or reply later.

mod at_once;
mod contract;
mod contract_of_permits;
mod later;
mod permits;
