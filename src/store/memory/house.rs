use crate::algorithm::Crowd;

/// What holds for all keys of a limiter.
#[derive(Debug)]
pub(super) struct House {
    /// Those who wait, for whatever key.
    pub(super) crowd: Crowd,
    pub(super) when_closed: WhenClosed,
}

/// What becomes of new calls once a limiter is [closed](crate::limiter::RateLimiter::close).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenClosed {
    /// They are refused: HTTP callers get a 503.
    #[default]
    Refuse,
    /// They pass, and nothing is counted.
    Pass,
}
