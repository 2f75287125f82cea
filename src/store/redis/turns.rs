//! The turns of processes that change one key by reading and writing its state.
//!
//! Without turns, a process whose answers take longer than those of the others would never be the first to write, and its
//! calls would be late. So a process that was not the first several times takes the next turn. A turn is a key of its own,
//! which expires.

use super::answer::Answer;
use super::error::RedisError;
use super::link::{Keys, Link, Swap};
use crate::clock::Nanos;

/// The number of times that other processes may change a value first before a process takes the next turn.
const MAX_LOST: u32 = 2;

impl Link {
    /// Makes the change of a key as [`swap`](Self::swap) does, unless it is the turn of another process. If this process
    /// has `lost` too often, because other processes have changed the value first, it takes the next turn.
    pub(super) async fn swap_in_turn(
        &self,
        key: &str,
        not_after: Nanos,
        Swap { before, after, ttl }: Swap<'_>,
        lost: u32,
    ) -> Result<Answer, RedisError> {
        let turn = format!("{key}:turn");
        // The turn of a process that has ended must not make the calls of others late.
        let turn_millis = if lost < MAX_LOST { 0 } else { (self.deadline.as_millis() as u64 / 2).max(1) };
        let keys = Keys { texts: &[key, &turn], is_asking: false };
        self.eval(&self.swap_in_turn, keys, not_after, |command| {
            command.word(before).word(after).number(ttl).number(self.process).number(turn_millis);
        })
        .await
    }

    /// Waits for a moment while another process has its turn.
    pub(super) async fn wait_for_turn(&self) {
        let pause = Nanos::from(self.deadline).0 / 64;
        self.sleep_until(self.now().saturating_add(pause)).await;
    }
}
