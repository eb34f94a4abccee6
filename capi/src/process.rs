//! The process's PE, and its lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::Pe;

static PE: Mutex<Option<Pe>> = Mutex::new(None);

pub fn pe() -> MutexGuard<'static, Option<Pe>> {
    PE.lock().unwrap_or_else(PoisonError::into_inner)
}
