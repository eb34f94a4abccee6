//! The names of kernels that may be running.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Kernels that were launched since all were seen to have ended.
#[derive(Debug, Default)]
pub(super) struct Launched(Mutex<BTreeSet<String>>);

impl Launched {
    fn names_of(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a kernel that was launched.
    pub fn note(&self, kernel: &str) {
        let mut names = self.names_of();
        if !names.contains(kernel) {
            names.insert(kernel.to_owned());
        }
    }

    /// Returns their names.
    pub fn names(&self) -> BTreeSet<String> {
        self.names_of().clone()
    }

    /// Notes that all were seen to have ended.
    pub fn clear(&self) {
        self.names_of().clear();
    }
}
