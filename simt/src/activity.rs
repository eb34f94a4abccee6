//! Whether the kernels of this process go on, for checks of jobs that stand still.

use std::sync::atomic::{AtomicU64, Ordering};

static RUNNING: AtomicU64 = AtomicU64::new(0);
static BUSY: AtomicU64 = AtomicU64::new(0);
static QUIET: AtomicU64 = AtomicU64::new(0);

/// What the kernels of this process have done so far.
///
/// A worker resumes its threads in sweeps. While it is in the middle of one, nothing is counted.
///
/// ```
/// let before = oxshmem_simt::activity();
/// assert!(oxshmem_simt::activity().busy >= before.busy);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activity {
    /// Workers that have blocks now.
    pub running: u64,
    /// Sweeps in which a thread did something other than to pause.
    pub busy: u64,
    /// Sweeps in which every thread paused in a loop that waits.
    pub quiet: u64,
}

/// Returns what the kernels of this process have done so far.
#[must_use]
pub fn activity() -> Activity {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Activity { running: load(&RUNNING), busy: load(&BUSY), quiet: load(&QUIET) }
}

/// Counts a sweep in which threads were resumed, of which some paused.
#[inline]
pub(super) fn swept(resumes: u64, pauses: u64) {
    let counter = if pauses != 0 && pauses == resumes { &QUIET } else { &BUSY };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A worker has blocks, until this is dropped.
pub(super) struct Running(());

impl Running {
    pub fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}
