//! Joint calls, checked against a naive model: random calls on several keys of several limiters, through layers that are
//! joined by `.and`.

mod cases;
mod model;
mod oracle;
mod subjects;
