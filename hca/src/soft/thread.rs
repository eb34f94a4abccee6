//! The engine's thread: gives the engine passes while there is work, and naps when there is none.

use super::state::Engine;
use crossbeam_utils::{Backoff, CachePadded};
use oxshmem_system::idle::{Idler, Parking, Patience};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where the idle engines of this process nap.
pub(super) static ENGINES: Parking = Parking::new();

/// Tells the software HCAs of this process that a doorbell register was written: a store to one
/// raises no interrupt. Call it after the store.
///
/// A doorbell without this call is not lost; an engine notices it some milliseconds later.
#[inline]
pub fn doorbell_rung() {
    ENGINES.announce();
}

/// How the engine's thread waits for work. The longest nap is [`LONGEST_PARK`].
const PATIENCE: Patience =
    Patience { spin_passes: 64, awake: Duration::from_micros(50), first_nap: Duration::from_millis(1) };
/// The same where no caller announces doorbells, with the longest nap.
const WATCHFUL: Patience = Patience { first_nap: Duration::from_micros(50), ..PATIENCE };
const LONGEST_WATCHFUL_NAP: Duration = Duration::from_millis(1);
/// How often the thread looks after peers and lost doorbells while there is work.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_millis(1);
/// The longest the thread parks while a QP waits for time to pass.
const SHORT_PARK: Duration = Duration::from_micros(100);
/// The longest it parks when there is nothing to do.
const LONGEST_PARK: Duration = Duration::from_millis(16);
/// Time without work after which a kernel's slices no longer follow each other at once.
const BUSY_TIME: Duration = Duration::from_millis(2);
/// The longest time without a slice.
const LONGEST_NAP: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) engine: Mutex<Engine>,
    /// Callers that wait for the engine; its thread steps aside for them.
    pub(super) waiting: CachePadded<AtomicUsize>,
    pub(super) stop: AtomicBool,
}

impl Shared {
    pub(super) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    /// Has the engine's thread wait until no caller waits for the engine.
    fn step_aside(&self) {
        let backoff = Backoff::new();
        while self.waiting.load(Ordering::Relaxed) != 0 {
            backoff.snooze();
        }
    }
}

/// Runs the engine's thread.
pub(super) fn drive(shared: &Shared, card_doorbells: bool) {
    let (patience, longest) = if card_doorbells { (WATCHFUL, LONGEST_WATCHFUL_NAP) } else { (PATIENCE, LONGEST_PARK) };
    let mut idler = Idler::new(patience);
    let mut passes = 0u32;
    let mut kept_house = Instant::now();
    while !shared.stop.load(Ordering::Acquire) {
        let mut engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let mut work = engine.progress();
        let waiting = engine.is_waiting();
        passes = passes.wrapping_add(1);
        // A clock is not read in every pass.
        if work > 0 || passes.is_multiple_of(PATIENCE.spin_passes) {
            let now = Instant::now();
            if now.duration_since(kept_house) >= HOUSEKEEPING_PERIOD {
                kept_house = now;
                work += engine.housekeeping();
            }
        }
        drop(engine);
        shared.step_aside();
        if work > 0 {
            idler.worked();
            continue;
        }
        let Some(nap) = idler.rest() else { continue };
        let limit = if waiting { SHORT_PARK } else { nap };
        let woken = ENGINES.park(limit, || shared.stop.load(Ordering::Acquire) || shared.engine().doorbell_pending());
        if woken {
            idler.worked();
        } else if waiting {
            shared.engine().end_reordering();
        } else {
            idler.napped(longest);
        }
        // A lost doorbell or a dead peer is found here at the latest.
        if kept_house.elapsed() >= HOUSEKEEPING_PERIOD {
            kept_house = Instant::now();
            if shared.engine().housekeeping() > 0 {
                idler.worked();
            }
        }
    }
}

/// Runs the engine's thread where a kernel executes: launches slice after slice while there is
/// work, and fewer of them when there is none.
pub(super) fn drive_kernel(shared: &Shared, card_doorbells: bool) {
    let Some(pace) = shared.engine().pace() else { return };
    let mut kept_house = Instant::now();
    let mut worked = Instant::now();
    let mut nap = pace.look;
    let mut news = true;
    while !shared.stop.load(Ordering::Acquire) {
        let mut engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let mut work = engine.progress();
        if kept_house.elapsed() >= HOUSEKEEPING_PERIOD {
            kept_house = Instant::now();
            work += engine.housekeeping();
        }
        if work > 0 {
            worked = Instant::now();
            nap = pace.look;
        }
        let busy = worked.elapsed() < BUSY_TIME;
        let running = if busy || news {
            engine.keep_running(if busy { pace.ahead } else { 1 }, pace.idle)
        } else {
            engine.running()
        };
        let waiting = engine.is_waiting();
        let copying = engine.is_copying();
        drop(engine);
        shared.step_aside();
        if copying && work > 0 {
            continue;
        }
        // While slices run, see when they end; between them, sleep longer and longer.
        let running = if copying { 0 } else { running };
        let limit = if running > 0 || busy { pace.look } else { nap };
        let ready = || card_doorbells && shared.engine().doorbell_pending();
        let woken = ENGINES.park(limit, || shared.stop.load(Ordering::Acquire) || ready());
        news = woken || running == 0;
        if !(running > 0 || busy || waiting || woken) {
            nap = (nap * 2).min(LONGEST_NAP);
        }
    }
}
