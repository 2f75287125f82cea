//! Threads that begin at once, and tests that must end.

use std::panic::resume_unwind;
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

/// Calls `run` in `count` threads at once, with the number of the thread.
pub(crate) fn on_threads(count: u64, run: impl Fn(u64) + Sync) {
    let start = Barrier::new(count as usize);
    thread::scope(|scope| {
        for number in 0..count {
            let (start, run) = (&start, &run);
            scope.spawn(move || {
                start.wait();
                run(number);
            });
        }
    });
}

/// Runs `test` in a thread of its own. If `test` does not end, because of a deadlock, fails instead of hanging.
pub(crate) fn ends_within(limit: Duration, test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let runs = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
        _ => runs.join().unwrap_or_else(|panic| resume_unwind(panic)),
    }
}
