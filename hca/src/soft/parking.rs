//! How idle engines sleep and how a doorbell wakes them.
//!
//! A store to a register of the software HCA raises no interrupt, so whoever stores calls [`doorbell_rung`] after it. That costs a fence
//! and a load while no engine sleeps. An engine that is about to sleep announces itself, fences, and looks at the registers once
//! more: either it sees the store, or the caller sees the announcement.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Engines of this process that sleep or are about to.
static PARKED: AtomicUsize = AtomicUsize::new(0);
/// How often sleepers were woken.
static WAKES: Mutex<u64> = Mutex::new(0);
static CONDVAR: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, u64> {
    WAKES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tell the software HCAs of this process that a doorbell register was written. Call it after the store.
///
/// A doorbell without this call is not lost; it is noticed some milliseconds later.
#[inline]
pub fn doorbell_rung() {
    fence(Ordering::SeqCst);
    if PARKED.load(Ordering::Relaxed) != 0 {
        wake();
    }
}

/// Wake every sleeping engine.
#[cold]
pub(super) fn wake() {
    *lock() += 1;
    CONDVAR.notify_all();
}

/// Sleep until woken, at most `limit`, unless `ready` says that there is something to do. Returns false if nothing happened in time.
pub(super) fn park(limit: Duration, ready: impl FnOnce() -> bool) -> bool {
    let before = *lock();
    PARKED.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let woken = ready() || {
        let (wakes, _) =
            CONDVAR.wait_timeout_while(lock(), limit, |wakes| *wakes == before).unwrap_or_else(PoisonError::into_inner);
        *wakes != before
    };
    PARKED.fetch_sub(1, Ordering::SeqCst);
    woken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken_or_wakes_by_itself() {
        assert!(park(Duration::ZERO, || true));
        let sleeper = std::thread::spawn(|| park(Duration::from_secs(60), || false));
        // Another test may wake it first; that is as good.
        while PARKED.load(Ordering::SeqCst) == 0 && !sleeper.is_finished() {
            std::thread::yield_now();
        }
        doorbell_rung();
        assert!(sleeper.join().is_ok_and(|woken| woken));
    }
}
