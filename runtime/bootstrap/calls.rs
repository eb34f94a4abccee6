//! How far this PE's calls at the rendezvous have come, for dumps.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The calls of one PE.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<Progress>);

/// Where a PE's calls stand.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Collective calls of all PEs that this PE has begun.
    pub begun: u64,
    /// What the newest call is for; empty before the first.
    pub label: String,
    /// When the newest call began, while it waits.
    pub since: Option<Instant>,
    /// The newest call is one of all PEs, and not of some of them.
    pub of_all: bool,
}

impl Calls {
    /// Notes that a call begins, which is number `sequence` of those of all PEs, or 0.
    pub(super) fn begin(&self, sequence: u64, label: &str) {
        self.change(|progress| {
            let begun = progress.begun.max(sequence);
            *progress = Progress { begun, label: label.to_owned(), since: Some(Instant::now()), of_all: sequence != 0 };
        });
    }

    /// Notes that the call has ended.
    pub(super) fn end(&self) {
        self.change(|progress| progress.since = None);
    }

    /// Returns where the calls stand.
    pub fn progress(&self) -> Progress {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
