//! The effort of a contestant, apart from the time.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;

use crate::alloc;
use crate::interleave::Contestant;

/// The processor time and the allocations of a run. They change little if the machine is busy with something else.
pub(super) struct Effort {
    /// The processor time of the client's main thread, in microseconds.
    pub(super) client: f64,
    /// The processor time of the server's main thread, in microseconds.
    pub(super) server: f64,
    /// `None` for a client in another process.
    pub(super) allocations: Option<u64>,
}

pub(super) type Efforts = Rc<RefCell<Vec<Effort>>>;

/// Records the effort of each run of a contestant. `client` is the process of the client, if it is not this process.
pub(super) fn observed<'a>(
    mut contestant: Contestant<'a>,
    efforts: &Efforts,
    server: u32,
    client: Option<u32>,
) -> Contestant<'a> {
    let efforts = Rc::clone(efforts);
    let thread = client.map_or_else(|| "thread-self".to_owned(), |client| client.to_string());
    Contestant::new(contestant.name, move || {
        let read = || (cpu_micros(&thread), cpu_micros(&server.to_string()), alloc::count());
        let before = read();
        let time = (contestant.run)();
        let after = read();
        let (client, server) = (after.0 - before.0, after.1 - before.1);
        let allocations = thread.starts_with("thread").then(|| after.2 - before.2);
        efforts.borrow_mut().push(Effort { client, server, allocations });
        time
    })
}

/// Returns the processor time that a thread has used, in microseconds.
fn cpu_micros(thread: &str) -> f64 {
    let path = format!("/proc/{thread}/schedstat");
    let stat = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let nanos: f64 = stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number");
    nanos / 1e3
}
