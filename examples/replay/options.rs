//! The options of the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use tower_throttle::Quota;

pub(crate) const USAGE: &str = "usage: replay <access log> [--limit <quota>]

The log is in Apache's common or combined format. A quota is a limit per time and perhaps a burst,
such as 10/min, \"5 per 2s\" or \"100/min burst 20\"; without one, 10/min.";

const LIMIT: Quota = Quota::per_minute(10);

#[derive(Debug, PartialEq)]
pub(crate) enum Options {
    Help,
    Replay { path: PathBuf, quota: Quota },
}

impl Options {
    /// Parses the arguments after the program's name.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let (mut path, mut quota) = (None, None);
        while let Some(argument) = arguments.next() {
            let limit = match argument.to_str() {
                Some("--help" | "-h") => return Ok(Self::Help),
                Some("--limit") => {
                    Some(arguments.next().ok_or_else(|| wrong("--limit wants a quota after it"))?)
                }
                Some(text) if text.starts_with("--limit=") => Some(text["--limit=".len()..].into()),
                Some(text) if text.starts_with('-') => return Err(wrong(&format!("unknown option {text}"))),
                _ => None,
            };
            match limit {
                Some(_) if quota.is_some() => return Err(wrong("--limit is given twice")),
                Some(text) => {
                    quota = Some(text.to_string_lossy().parse::<Quota>().map_err(|error| error.to_string())?);
                }
                None if path.is_some() => return Err(wrong("one log at a time, please")),
                None => path = Some(PathBuf::from(argument)),
            }
        }
        let path = path.ok_or_else(|| wrong("no access log is given"))?;
        Ok(Self::Replay { path, quota: quota.unwrap_or(LIMIT) })
    }
}

fn wrong(problem: &str) -> String {
    format!("{problem}\n{USAGE}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, String> {
        Options::parse(arguments.iter().map(OsString::from))
    }

    #[test]
    fn a_path_and_a_quota_in_any_order() {
        let replay = |quota| Ok(Options::Replay { path: PathBuf::from("a.log"), quota });
        let quota = Quota::per_second(5).burst(9);
        assert_eq!(parse(&["a.log"]), replay(LIMIT));
        assert_eq!(parse(&["a.log", "--limit", "5/s burst 9"]), replay(quota));
        assert_eq!(parse(&["--limit=5/s burst 9", "a.log"]), replay(quota));
        assert_eq!(parse(&["a.log", "--help"]), Ok(Options::Help));
    }

    #[test]
    fn errors_name_the_problem() {
        for (arguments, part) in [
            (&[][..], "no access log"),
            (&["--limit", "5/s"], "no access log"),
            (&["a.log", "--limit"], "wants a quota"),
            (&["a.log", "--limit", "0/s"], "limit of 0"),
            (&["a.log", "--limit", "soon"], "100/minute"),
            (&["a.log", "--limit=5/s", "--limit=6/s"], "twice"),
            (&["a.log", "--fast"], "unknown option --fast"),
            (&["a.log", "b.log"], "one log"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
    }
}
