//! The list of the algorithms of this crate.

/// Passes the algorithms of this crate to the macro `list`: those that are neither combined nor contain another
/// algorithm. An algorithm that a script can decide has a *kind of step* in brackets, with the numbers of its arguments
/// and of its own local variables. Several algorithms may have the same kind, which is in the row of the first of them.
macro_rules! for_each_algorithm {
    ($list:ident) => {
        $list! {
            TokenBucket [
                /// A token bucket or a leaky bucket. The arguments are the grains in a microsecond, the grains that
                /// each unit of the cost adds, the capacity in grains, the grains that must be free for each unit of
                /// the cost (0 for a leaky bucket), the period in microseconds, and the maximum number of grains in a
                /// state.
                Bucket 6 2
            ];
            LeakyBucket [];
            FixedWindow [
                /// The arguments are the limit, the period in microseconds, and whether windows are aligned: 1 or 0.
                FixedWindow 3 3
            ];
            SlidingCounter [
                /// The arguments are the limit, and the period in microseconds.
                SlidingCounter 2 5
            ];
            SlidingWindow [
                /// The arguments are the limit, the period in nanoseconds, the length of a slice in nanoseconds, and
                /// the number of slices.
                SlidingWindow 4 7
            ];
            SlidingLog [];
            Smooth [];
            Concurrency [];
        }
    };
}
