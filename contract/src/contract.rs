use std::any::Any;
use std::fmt;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::case::{Case, Env};
use crate::cases;
use crate::tested::{MakePermits, Subject};

/// The maximum time of a case. A case that takes longer fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The promises of a limiter. Each promise is a *case*: a test that can be run.
///
/// Each case makes limiters of its own. A panic in a case fails only that case. The [crate documentation](crate) has an
/// example.
pub struct Contract<M> {
    make: M,
    cases: Vec<Case<M>>,
}

impl<M: Subject> Contract<M> {
    /// Creates the contract for the limiters that `make` makes. `make` is a [`MakeLimiter`](crate::MakeLimiter) for all
    /// algorithms of the cases: `TokenBucket`, `FixedWindow`, `SlidingWindow`, `SlidingCounter`, `LeakyBucket`,
    /// `(TokenBucket, FixedWindow)`, `Tiered<FixedWindow>` and `Lockout<FixedWindow>`.
    #[must_use]
    pub fn new(make: M) -> Self {
        Self { make, cases: cases::of_units() }
    }
}

impl<M: MakePermits> Contract<M> {
    /// Creates the contract for the limiters of the calls in progress that `make` makes.
    #[must_use]
    pub fn of_permits(make: M) -> Self {
        Self { make, cases: cases::of_permits() }
    }
}

impl<M: Clone + Send + Sync + 'static> Contract<M> {
    /// Returns the names of all cases.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.cases.iter().map(|case| case.name).collect()
    }

    /// Runs all cases at the same time.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, all cases are stopped.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime whose timer is enabled.
    pub async fn run(&self) -> Report {
        self.run_if(|_| true).await
    }

    /// Runs the cases for whose names `is_wanted` returns `true`, all at the same time. Use this method for a limiter
    /// whose docs say that it does not keep some of the promises.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, all cases are stopped.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime whose timer is enabled.
    pub async fn run_if(&self, is_wanted: impl Fn(&str) -> bool) -> Report {
        let mut running = JoinSet::new();
        for &Case { name, run } in self.cases.iter().filter(|case| is_wanted(case.name)) {
            let case = tokio::spawn(timeout(PATIENCE, run(Env { make: self.make.clone() })));
            let case = AbortOnDrop(case);
            running.spawn(async move { (name, case.ended().await) });
        }
        let mut report = Report::default();
        for (case, result) in running.join_all().await {
            match result {
                Ok(()) => report.passed.push(case),
                Err(message) => report.failed.push((case, message)),
            }
        }
        report.passed.sort_unstable();
        report.failed.sort_unstable();
        report
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<Result<(), tokio::time::error::Elapsed>>);

impl AbortOnDrop {
    async fn ended(mut self) -> Result<(), String> {
        match (&mut self.0).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(format!("it has not ended after {PATIENCE:?}")),
            Err(error) => Err(error.try_into_panic().map_or_else(|error| error.to_string(), message)),
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or_else(|_| "a panic without a text".to_owned(), |text| (*text).into()),
    }
}

/// The names of the cases that passed, and the cases that failed.
#[derive(Clone, Debug, Default)]
#[must_use = "a failed case is not an error by itself: call `assert_passed`"]
pub struct Report {
    passed: Vec<&'static str>,
    failed: Vec<(&'static str, String)>,
}

impl Report {
    /// Returns the names of the cases that passed.
    #[must_use]
    pub fn passed(&self) -> &[&'static str] {
        &self.passed
    }

    /// Returns the name of each case that failed, and a message: that of the panic, or a sentence that says that the
    /// case did not end in time.
    #[must_use]
    pub fn failed(&self) -> &[(&'static str, String)] {
        &self.failed
    }

    /// Asserts that all cases passed.
    ///
    /// # Panics
    ///
    /// Panics if any case failed. The message has the names and messages of all cases that failed.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failed.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cases passed, {} failed", self.passed.len(), self.failed.len())?;
        self.failed.iter().try_for_each(|(case, message)| write!(f, "\n{case}: {message}"))
    }
}

impl<M> fmt::Debug for Contract<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contract").field("cases", &self.cases.len()).finish_non_exhaustive()
    }
}
