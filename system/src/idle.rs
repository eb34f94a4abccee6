//! How threads that look for work wait when there is none: they spin, then offer the CPU to others,
//! then nap, longer and longer.
//!
//! The bringer of work may be device code, which raises no interrupt. If it runs on the CPU it
//! calls [`Parking::announce`] after its store, a fence and a load while no thread naps. A thread
//! that is about to nap announces itself, fences, and looks once more: either it sees the store, or
//! the caller sees the announcement.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where threads nap. It is meant for statics, so that threads that bring work need no pointer to
/// it.
#[derive(Debug)]
pub struct Parking {
    /// Threads that nap or are about to. The bringer of work reads it each time, so it shares its
    /// line with nothing that is written.
    parked: CachePadded<AtomicUsize>,
    /// How often they were woken.
    wakes: Mutex<u64>,
    condvar: Condvar,
}

impl Parking {
    /// Returns a place where no thread naps yet.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self { parked: CachePadded::new(AtomicUsize::new(0)), wakes: Mutex::new(0), condvar: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all threads that nap here. Call it after a store that brings work. Without this call
    /// the work is not lost: a thread notices it at the end of its nap.
    #[inline]
    pub fn announce(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        *self.lock() += 1;
        self.condvar.notify_all();
    }

    /// Naps until another thread wakes this one, at most `limit`, unless `ready` finds something to
    /// do. Returns whether there may be something to do.
    pub fn park(&self, limit: Duration, ready: impl FnOnce() -> bool) -> bool {
        let before = *self.lock();
        self.parked.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let woken = ready() || {
            let (wakes, _) = self
                .condvar
                .wait_timeout_while(self.lock(), limit, |wakes| *wakes == before)
                .unwrap_or_else(PoisonError::into_inner);
            *wakes != before
        };
        self.parked.fetch_sub(1, Ordering::SeqCst);
        woken
    }
}

/// How long a thread spins and yields before it naps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Passes without work after which each further pass offers the CPU to others.
    pub spin_passes: u32,
    /// Time without work, from then on, after which the thread naps.
    pub awake: Duration,
    /// The first nap. Naps double as long as nothing happens.
    pub first_nap: Duration,
}

/// What a thread has done since it last found work.
#[derive(Debug)]
pub struct Idler {
    patience: Patience,
    passes: u32,
    since: Option<Instant>,
    nap: Duration,
}

impl Idler {
    /// Returns the state of a thread that has just found work.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        Self { patience, passes: 0, since: None, nap: patience.first_nap }
    }

    /// Notes that the thread has found work.
    #[inline]
    pub fn worked(&mut self) {
        self.passes = 0;
        self.since = None;
        self.nap = self.patience.first_nap;
    }

    /// Notes that the thread has found no work: spins or yields, or returns how long the thread is
    /// to nap.
    pub fn rest(&mut self) -> Option<Duration> {
        if self.passes < self.patience.spin_passes {
            self.passes += 1;
            std::hint::spin_loop();
            return None;
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() < self.patience.awake {
            std::thread::yield_now();
            return None;
        }
        Some(self.nap)
    }

    /// Notes that the thread has napped and found nothing: its next nap is twice as long, up to
    /// `longest`.
    pub fn napped(&mut self, longest: Duration) {
        self.nap = (self.nap * 2).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken_or_wakes_by_itself() {
        static PARKING: Parking = Parking::new();
        assert!(PARKING.park(Duration::ZERO, || true));
        assert!(!PARKING.park(Duration::ZERO, || false));
        let sleeper = std::thread::spawn(|| PARKING.park(Duration::from_secs(60), || false));
        while PARKING.parked.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        PARKING.announce();
        assert!(sleeper.join().is_ok_and(|woken| woken));
    }

    #[test]
    fn naps_come_last_and_grow() {
        let ms = Duration::from_millis;
        let mut idler = Idler::new(Patience { spin_passes: 3, awake: Duration::ZERO, first_nap: ms(1) });
        for _ in 0..2 {
            assert_eq!([idler.rest(), idler.rest(), idler.rest(), idler.rest()], [None, None, None, Some(ms(1))]);
            idler.napped(ms(3));
            assert_eq!(idler.rest(), Some(ms(2)));
            idler.napped(ms(3));
            assert_eq!(idler.rest(), Some(ms(3)));
            idler.worked();
        }
    }
}
