//! The turns of processes that change one key by reading and writing its state.
//!
//! Without turns, a process whose trips take longer than those of the other processes might never be the first to
//! write, and its calls would be late. So a process that was not the first takes the next turn, unless another process
//! has already taken it. A turn is a key of its own, which expires.

use super::answer::Answer;
use super::error::RedisError;
use super::link::{Keys, Link, Swap};
use tower_throttle::clock::Nanos;

/// The maximum time of a turn, in milliseconds. This time is short, because if a process ends during its turn, no other
/// process can write until the turn expires.
const MAX_TURN: u64 = 100;

/// Returns the key that says whose turn it is to change `key`. The text of a limiter's key ends with the limiter's
/// name, which has no colon. So it is not a turn.
pub(super) fn turn_of(key: &str) -> String {
    format!("{key}:turn:")
}

impl Link {
    /// Makes the change of a key as [`swap`](Self::swap) does, unless it is the turn of another process. If the change
    /// is not made, this process takes the next turn, unless another process has already taken it.
    pub(super) async fn swap_in_turn(
        &self,
        key: &str,
        not_after: Nanos,
        Swap { before, after, ttl }: Swap<'_>,
    ) -> Result<Answer, RedisError> {
        let turn = turn_of(key);
        let turn_millis = (self.deadline.as_millis() as u64 / 2).clamp(1, MAX_TURN);
        let keys = Keys { texts: &[key, &turn], is_asking: false };
        self.eval(&self.swap_in_turn, keys, not_after, |command, _| {
            command.word(before).word(after).number(ttl).number(self.process).number(turn_millis);
        })
        .await
    }

    /// Waits for 1/64 of the deadline, because another process has its turn.
    pub(super) async fn wait_for_turn(&self) {
        let pause = Nanos::from(self.deadline).0 / 64;
        self.sleep_until(self.now().saturating_add(pause)).await;
    }
}
