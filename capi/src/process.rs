//! The process's PE and its lock.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use api::Pe;

use crate::error::Failure;
use crate::units::{self, RawUnit};

static PE: Mutex<Option<Pe>> = Mutex::new(None);

/// How long a library that comes waits for the PE, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The process's PE, locked. Translation units that have come meanwhile get the PE's state before
/// another thread has the lock.
#[derive(Debug)]
pub(crate) struct Held(MutexGuard<'static, Option<Pe>>);

impl Deref for Held {
    type Target = Option<Pe>;
    fn deref(&self) -> &Option<Pe> {
        &self.0
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Option<Pe> {
        &mut self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if units::are_pending()
            && !std::thread::panicking()
            && let Some(pe) = &*self.0
        {
            // The error is in the log: the call that ends has nothing to do with the unit.
            let _ = units::install(pe);
        }
    }
}

pub(crate) fn pe() -> Held {
    Held(PE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Takes a translation unit in, and gives it the PE's state if there is a PE.
///
/// The caller is a constructor, so its thread has the loader's lock, which a call that has the PE
/// may wait for. So the wait for the PE is short; after it the call that has the PE does the rest.
///
/// # Safety
/// `raw` stays what it is until it is unregistered.
pub(crate) unsafe fn register_unit(raw: *const RawUnit) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { units::add(raw) };
    let until = Instant::now() + PATIENCE;
    loop {
        let held = match PE.try_lock() {
            Ok(held) => Held(held),
            Err(TryLockError::Poisoned(held)) => Held(held.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(LOOK_AGAIN);
                continue;
            }
            Err(TryLockError::WouldBlock) => {
                tracing::info!("kernels of a library that was loaded while a call waits can be used after that call");
                return Ok(());
            }
        };
        return held.as_ref().map_or(Ok(()), units::install);
    }
}
