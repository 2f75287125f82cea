//! The layer around services that are not HTTP, and the properties of its types.

mod errors;
mod responders;
mod types;

use std::io;

use tower_throttle::key::{KeyExtractor, from_fn};

/// Returns an extractor for lines of a protocol, `<user> <command>`. The key is the user.
fn by_user() -> impl KeyExtractor<String, Key = String> + Copy {
    from_fn(|line: &String| line.split(' ').next().filter(|user| *user != "root").map(str::to_owned))
}

async fn shout(line: String) -> Result<String, io::Error> {
    match line.contains("fail") {
        true => Err(io::Error::other("it failed")),
        false => Ok(line.to_uppercase()),
    }
}
