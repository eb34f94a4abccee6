//! The last error that a call of this library returned to the process: why it most likely ends
//! without finalize.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};

static LAST: Mutex<Option<String>> = Mutex::new(None);

fn last() -> MutexGuard<'static, Option<String>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers an error that is about to be returned.
pub(crate) fn note(error: &impl Display) {
    *last() = Some(error.to_string());
}

/// Returns the error that was remembered last, and forgets it.
pub(crate) fn take() -> Option<String> {
    last().take()
}
