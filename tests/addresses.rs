//! Whose request it is: the peer's or, behind proxies, their client's.
//!
//! Tables to read, a naive model of the rules that random requests are held against, and clients that lie.

#[path = "addresses/any.rs"]
mod any;
#[path = "addresses/ask.rs"]
mod ask;
#[path = "addresses/groups.rs"]
mod groups;
#[path = "addresses/liars.rs"]
mod liars;
#[path = "addresses/long.rs"]
mod long;
#[path = "addresses/model.rs"]
mod model;
#[path = "addresses/random.rs"]
mod random;
#[path = "support/random.rs"]
mod seed;
#[path = "addresses/table.rs"]
mod table;
