//! An allocator that counts the allocations and the live bytes of each thread. It only changes thread-local counters,
//! which is too cheap to affect the measured times.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// Returns the number of bytes that this thread has allocated, less the number of bytes that it has freed.
pub fn live() -> i64 {
    LIVE.get()
}

/// Counts an allocation of `new` bytes that replaces one of `old` bytes. A size of 0 stands for no allocation.
fn add(new: usize, old: usize) {
    COUNT.set(COUNT.get() + u64::from(new > 0));
    LIVE.set(LIVE.get() + new as i64 - old as i64);
}

/// Returns how many times this thread has allocated or reallocated memory.
pub fn count() -> u64 {
    COUNT.get()
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 0);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size(), 0);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size, layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        add(0, layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(old, layout) }
    }
}
