//! The text of a decision, for logs and for debugging.

use std::fmt;

use super::Decision;

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("is_allowed", &self.is_allowed())
            .field("is_closed", &self.is_closed())
            .field("is_table_full", &self.is_table_full())
            .field("is_queue_full", &self.is_queue_full())
            .field("is_locked_out", &self.is_locked_out())
            .field("index", &self.index)
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("delay", &self.delay())
            .finish()
    }
}

/// Writes one line for a log, without the key.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_closed() {
            return f.write_str("denied, the limiter is closed");
        }
        if self.is_table_full() {
            return f.write_str("denied, there is no room for the key");
        }
        let verdict = if self.is_allowed() { "allowed" } else { "denied" };
        write!(f, "{verdict}, {} of {} left", self.remaining, self.limit)?;
        match self.retry_after() {
            Some(wait) => write!(f, ", retry after {wait:?}"),
            None if !self.is_allowed() => f.write_str(", no wait is known to help"),
            None if self.delay > 0 => write!(f, ", held for {:?}", self.delay()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_one_line() {
        assert_eq!(Decision::allow(3, 2, 9).to_string(), "allowed, 2 of 3 left");
        assert_eq!(Decision::deny(3, 0, Some(4), 9).to_string(), "denied, 0 of 3 left, retry after 4ns");
        assert_eq!(
            Decision::deny(3, 3, None, 9).to_string(),
            "denied, 3 of 3 left, no wait is known to help"
        );
        assert_eq!(Decision::table_full(3).to_string(), "denied, there is no room for the key");
    }
}
