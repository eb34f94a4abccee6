//! How an idle proxy sleeps, and how it is woken.
//!
//! Device code on the CPU can wake it: whoever has written a descriptor calls [`wake_sleepers`], a fence and a load while nobody sleeps. A
//! proxy that is about to sleep announces itself, fences, and looks at the ring once more: either it sees the descriptor, or the
//! caller sees the announcement. A GPU wakes nobody, so there naps are short; the host wakes the proxy when it launches a kernel.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Proxies of this process that sleep or are about to.
static SLEEPERS: AtomicUsize = AtomicUsize::new(0);
static WAKES: Mutex<u64> = Mutex::new(0);
static CONDVAR: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, u64> {
    WAKES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the proxies of this process that sleep. Call it after a descriptor was written.
#[inline]
pub fn wake_sleepers() {
    fence(Ordering::SeqCst);
    if SLEEPERS.load(Ordering::Relaxed) != 0 {
        *lock() += 1;
        CONDVAR.notify_all();
    }
}

/// Sleeps until woken, at most `limit`, unless `ready` says that there is something to do. Whether it was woken.
pub(crate) fn sleep(limit: Duration, ready: impl FnOnce() -> bool) -> bool {
    let before = *lock();
    SLEEPERS.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let woken = ready() || {
        let (wakes, _) =
            CONDVAR.wait_timeout_while(lock(), limit, |wakes| *wakes == before).unwrap_or_else(PoisonError::into_inner);
        *wakes != before
    };
    SLEEPERS.fetch_sub(1, Ordering::SeqCst);
    woken
}
