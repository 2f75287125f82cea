//! The replies of scripts.

use tower_throttle::clock::Nanos;
use tower_throttle::store_support::Few;

/// The reply of a script: a verdict, the server's time, and the value of the key or an empty string. The reply to a
/// joint call contains the values of all keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    pub(super) now: Nanos,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The script has run to its end.
    Done,
    /// The script has changed nothing, because it cannot process the value that it found. The reply contains that
    /// value.
    Other,
    /// The script has changed nothing, because the deadline of a call had passed.
    Late,
}

impl Answer {
    pub(super) fn is_late(&self) -> bool {
        self.verdict == Verdict::Late
    }

    /// Sets the verdict to [`Verdict::Other`]. This method is for the answer of the script that only reads. This
    /// process then decides the calls, as it does if a script cannot process a value. A late answer stays late.
    pub(super) fn into_other(self) -> Self {
        if self.is_late() { self } else { Self { verdict: Verdict::Other, ..self } }
    }

    /// Returns the values of `count` keys. Returns `None` if the reply has another form.
    pub(super) fn values(&self, count: usize) -> Option<Few<&str>> {
        let (mut lengths, mut rest) = (Few::new(), &*self.text);
        for _ in 1..count {
            let (length, after) = rest.split_once(' ')?;
            lengths.push(length.parse::<usize>().ok()?);
            rest = after;
        }
        let mut values = Few::new();
        for length in lengths {
            let (value, after) = rest.split_at_checked(length)?;
            values.push(value);
            rest = after;
        }
        values.push(rest);
        Some(values)
    }

    /// Parses a reply such as `D1700000000 123456 text`: the letter of the verdict, the server's time in seconds and
    /// microseconds, and the value after the space. Returns the reply itself if it has another form.
    pub(super) fn parse(reply: Vec<u8>) -> Result<Self, Vec<u8>> {
        let mut text = String::from_utf8(reply).map_err(|error| error.into_bytes())?;
        let Some((verdict, now, start)) = Self::head(&text) else { return Err(text.into_bytes()) };
        text.drain(..start);
        Ok(Self { verdict, now, text })
    }

    /// Parses the verdict and the time of a reply. The third part of the result is the index at which the value begins.
    fn head(reply: &str) -> Option<(Verdict, Nanos, usize)> {
        let verdict = match reply.as_bytes().first()? {
            b'D' => Verdict::Done,
            b'O' => Verdict::Other,
            b'L' => Verdict::Late,
            _ => return None,
        };
        let (seconds, rest) = reply[1..].split_once(' ')?;
        let (micros, text) = rest.split_once(' ')?;
        let micros =
            seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)?;
        Some((verdict, Nanos(micros.checked_mul(1_000)?), reply.len() - text.len()))
    }
}
