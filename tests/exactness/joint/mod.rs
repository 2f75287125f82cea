//! Joint calls, checked against a naive model: random calls on several keys of several limiters, through layers that are
//! joined by `.and`. Threads that join limiters in both orders are in the program `limiter`, in `multi_key_threads`.

mod cases;
mod model;
mod oracle;
mod subjects;
