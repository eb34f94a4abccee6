//! What may be running on a stream.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a stream does without a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    /// A copy engine copies memory.
    Copy,
    /// The stream stores a word.
    Store,
}

/// What the PE has queued on a stream since all of it was seen to have ended.
#[derive(Debug, Default)]
pub(super) struct Launched {
    kernels: Mutex<BTreeSet<String>>,
    transfers: AtomicBool,
    /// The last that was queued is a copy by a copy engine.
    ends_with_copy: AtomicBool,
}

impl Launched {
    fn kernels(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a kernel that was launched.
    pub fn note(&self, kernel: &str) {
        self.ends_with_copy.store(false, Ordering::Relaxed);
        let mut kernels = self.kernels();
        if !kernels.contains(kernel) {
            kernels.insert(kernel.to_owned());
        }
    }

    /// Notes what was queued without a kernel. `captures`: it is a part of a graph, and not on the
    /// stream.
    pub fn note_transfer(&self, transfer: Transfer, captures: bool) {
        self.transfers.store(true, Ordering::Relaxed);
        self.ends_with_copy.store(transfer == Transfer::Copy && !captures, Ordering::Relaxed);
    }

    /// Returns whether the last that the PE has queued is a copy by a copy engine. The program may
    /// have queued more.
    pub fn ends_with_copy(&self) -> bool {
        self.ends_with_copy.load(Ordering::Relaxed)
    }

    /// Returns the names of what may be running.
    pub fn names(&self) -> BTreeSet<String> {
        let mut names = self.kernels().clone();
        if self.transfers.load(Ordering::Relaxed) {
            names.insert("copies or stores".to_owned());
        }
        names
    }

    /// Notes that all was seen to have ended.
    pub fn clear(&self) {
        self.kernels().clear();
        self.transfers.store(false, Ordering::Relaxed);
        self.ends_with_copy.store(false, Ordering::Relaxed);
    }
}
