//! The clock of the guide's recipe, which reads the time stamp counter of the processor, as governor's default does.
//! The default clock of tower-throttle takes several times as long on some machines, and so hides what else differs.

macro_rules! counter {
    ($revision:ident) => {
        pub mod $revision {
            use std::future::Future;
            use std::pin::Pin;
            use std::time::{Duration, SystemTime, UNIX_EPOCH};

            use $revision::clock::{Clock, Nanos};

            #[derive(Clone, Debug)]
            pub struct Counter {
                counter: quanta::Clock,
                /// The reading of the counter when this clock was created, and the Unix time then.
                started: u64,
                unix: u64,
            }

            impl Counter {
                pub fn new() -> Self {
                    let counter = quanta::Clock::new();
                    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                    Self { started: counter.raw(), unix: unix.as_nanos() as u64, counter }
                }
            }

            impl Clock for Counter {
                #[inline]
                fn now(&self) -> Nanos {
                    let passed = self.counter.delta_as_nanos(self.started, self.counter.raw());
                    Nanos(self.unix.saturating_add(passed))
                }

                fn is_monotonic(&self) -> bool {
                    true
                }

                fn sleep_until(&self, deadline: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
                    let left = deadline.saturating_since(self.now());
                    Box::pin(tokio::time::sleep(Duration::from_nanos(left)))
                }
            }
        }
    };
}

counter!(base);
counter!(change);
