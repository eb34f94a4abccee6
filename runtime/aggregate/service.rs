//! The service of an aggregating context: a thread that has the device run a kernel again and
//! again, for a short while each time, which sends and applies records.
//!
//! A kernel that does not end would keep device-wide synchronisation from returning. So each launch
//! is a slice: it ends when it has found nothing to do for a few rounds, or after a millisecond.
//! The thread naps between slices, for longer while there is nothing to do.
//!
//! On a GPU a slice waits for room, and a grid that occupies the GPU until its records have been
//! applied would wait for the slice in turn. A second thread looks after that: while a slice is
//! late and there is work, it runs slices in a context of their own ([`Aside`]), which takes turns
//! with what occupies the GPU. A slice that finds another one at work leaves the service to it
//! (`serve` of `detail/aggregate/service.h`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::AggregateError;
use crate::Result;
use crate::device::{Aside, Device, DeviceError, LaunchConfig, LoadedModule, Stream, Wait};

/// The threads of one context. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Service {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// When the slice that has not ended yet was launched.
    launched: Mutex<Option<Instant>>,
    /// Why a thread has ended before it was stopped.
    problem: Mutex<Option<String>>,
}

/// What the threads work with.
#[derive(Debug)]
pub(super) struct Work {
    pub device: Arc<dyn Device>,
    pub module: Arc<dyn LoadedModule>,
    /// Where the device has the `abi::AggregateService`.
    pub service: u64,
    /// Where `abi::AggregateService::busy` is.
    pub busy: u64,
    pub takeover: Option<Takeover>,
}

/// What serves while slices find no room.
#[derive(Debug)]
pub(super) struct Takeover {
    pub aside: Arc<dyn Aside>,
    /// Where the device has pairs of positions that differ while there is work: up to which a ring
    /// is reserved and sent, and up to which an inbox has arrived and is applied.
    pub positions: Vec<[u64; 2]>,
}

/// A slice is a warp.
const SLICE: LaunchConfig = LaunchConfig::linear(1, 32);
/// Rounds without work after which a slice ends.
const POLLS: u32 = 32;
/// The longest slice.
const MOST_NS: u64 = 1_000_000;
/// The shortest nap, and the longest.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
/// Words of `abi::AggregateService` from `busy` to `broken`.
const WORDS: usize = 6;
/// A slice that has not ended after so long has found no room. PEs that share a GPU take turns of
/// some milliseconds.
const PATIENCE: Duration = Duration::from_millis(10);

impl Shared {
    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn set_launched(&self, launched: Option<Instant>) {
        *self.launched.lock().unwrap_or_else(PoisonError::into_inner) = launched;
    }

    /// Returns for how long a slice has waited or run.
    fn waits_for(&self) -> Option<Duration> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner).map(|launched| launched.elapsed())
    }
}

impl Service {
    pub const KERNEL: &str = "oxshmem_aggregate_serve";

    /// Starts the threads.
    ///
    /// # Errors
    /// The device has no room for a stream, or the system refuses a thread.
    pub fn start(me: usize, mut work: Work) -> Result<Self> {
        let stream = work.device.create_urgent_stream()?;
        let takeover = work.takeover.take();
        let args = args_of(work.service);
        let mut service = Self { shared: Arc::new(Shared::default()), threads: Vec::new() };
        service.spawn(me, move |shared| work.serve(&stream, shared))?;
        if let Some(takeover) = takeover {
            service.spawn(me, move |shared| takeover.watch(&args, shared).map_err(|error| error.to_string()))?;
        }
        Ok(service)
    }

    fn spawn(
        &mut self,
        me: usize,
        run: impl FnOnce(&Shared) -> Result<(), String> + Send + 'static,
    ) -> Result<(), AggregateError> {
        let shared = Arc::clone(&self.shared);
        let serve = move || {
            if let Err(problem) = run(&shared) {
                tracing::error!(problem, "the service of an aggregating context has ended");
                *shared.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
            }
        };
        let thread = std::thread::Builder::new().name("aggregate".to_owned()).spawn(serve);
        let refused = |error| AggregateError::Service { me, reason: format!("the system refuses its thread: {error}") };
        self.threads.push(thread.map_err(refused)?);
        Ok(())
    }

    /// Returns an error if a thread has ended by itself.
    pub fn check(&self, me: usize) -> Result<(), AggregateError> {
        let problem = self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        problem.map_or(Ok(()), |reason| Err(AggregateError::Service { me, reason }))
    }

    /// Ends the threads, and waits for the slice that was launched.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The arguments of a slice.
type Args = ([u8; 8], [u8; 4], [u8; 8]);

fn args_of(service: u64) -> Args {
    (service.to_ne_bytes(), POLLS.to_ne_bytes(), MOST_NS.to_ne_bytes())
}

impl Work {
    /// Launches slices until the service stops.
    fn serve(&self, stream: &Stream, shared: &Shared) -> Result<(), String> {
        let (args, config) = (args_of(self.service), SLICE);
        let mut nap = NAPS[0];
        let mut before = [0; WORDS];
        while !shared.stops() {
            shared.set_launched(Some(Instant::now()));
            // SAFETY: the kernel takes the service, which the table keeps until this thread has
            // ended, and two numbers.
            unsafe { self.module.launch(Service::KERNEL, config, &[&args.0, &args.1, &args.2], stream) }
                .map_err(|error| error.to_string())?;
            let mut words = [0u64; WORDS];
            // SAFETY: the words are in the slab of the context, which the table keeps.
            unsafe { self.device.synchronize(Wait::Stream(stream), self.busy, bytemuck::cast_slice_mut(&mut words)) }
                .map_err(|error| error.to_string())?;
            shared.set_launched(None);
            if let Some(position) = words[WORDS - 1].checked_sub(1) {
                return Err(format!(
                    "what arrived at position {position} of an inbox is no record, or an atomic of it could not be \
                     executed; check that no program writes to the memory of the rings"
                ));
            }
            let moved = words[1..] != before[1..];
            before = words;
            nap = if moved || words[0] != 0 { NAPS[0] } else { (nap * 2).min(NAPS[1]) };
            std::thread::park_timeout(nap);
        }
        Ok(())
    }
}

impl Takeover {
    /// Runs slices aside while the one that was launched is late and there is work, until the
    /// service stops.
    fn watch(&self, args: &Args, shared: &Shared) -> Result<(), DeviceError> {
        let mut told = false;
        while !shared.stops() {
            let left = PATIENCE.saturating_sub(shared.waits_for().unwrap_or_default());
            if !left.is_zero() {
                std::thread::park_timeout(left);
            } else if self.has_work()? {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(
                        "kernels of the program leave the service of an aggregating context no room on the GPU, so it takes turns with them, \
                         which is slower; leave room for a block of 32 threads where speed matters"
                    );
                }
                // SAFETY: the kernel takes the service, which the table keeps until this thread has
                // ended, and two numbers.
                unsafe { self.aside.run(Service::KERNEL, SLICE, &[&args.0, &args.1, &args.2]) }?;
            } else {
                std::thread::park_timeout(NAPS[1]);
            }
        }
        Ok(())
    }

    /// Returns whether there is something to send or to apply.
    fn has_work(&self) -> Result<bool, DeviceError> {
        for pair in &self.positions {
            let mut seen = [0u64; 2];
            for (at, value) in pair.iter().zip(&mut seen) {
                // SAFETY: the words are in the memory of the rings, which the context keeps.
                unsafe { self.aside.read(*at, bytemuck::bytes_of_mut(value)) }?;
            }
            if seen[0] != seen[1] {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A device whose kernel moves one position by one each time, and stops the service at the end.
    #[derive(Debug)]
    struct Turns {
        positions: [AtomicU64; 2],
        turns: AtomicU64,
        shared: Arc<Shared>,
    }

    impl Aside for Turns {
        unsafe fn run(&self, name: &str, config: LaunchConfig, args: &[&[u8]]) -> Result<(), DeviceError> {
            assert_eq!((name, config, args.len()), (Service::KERNEL, SLICE, 3));
            self.turns.fetch_add(1, Ordering::Relaxed);
            if self.positions[1].fetch_add(1, Ordering::Relaxed) + 1 == self.positions[0].load(Ordering::Relaxed) {
                // The slice that was late has found room meanwhile.
                self.shared.set_launched(None);
                self.shared.stop.store(true, Ordering::Relaxed);
            }
            Ok(())
        }

        unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
            bytes.copy_from_slice(&self.positions[from as usize].load(Ordering::Relaxed).to_ne_bytes());
            Ok(())
        }
    }

    fn watched(launched: Option<Instant>, positions: [u64; 2]) -> (Arc<Turns>, JoinHandle<()>) {
        let shared = Arc::new(Shared::default());
        shared.set_launched(launched);
        let turns = Arc::new(Turns { positions: positions.map(AtomicU64::new), turns: AtomicU64::new(0), shared });
        let takeover = Takeover { aside: Arc::clone(&turns) as Arc<dyn Aside>, positions: vec![[0, 1]] };
        let theirs = Arc::clone(&turns);
        let thread = std::thread::spawn(move || {
            takeover.watch(&args_of(0), &theirs.shared).unwrap_or_else(|error| panic!("{error}"));
        });
        (turns, thread)
    }

    fn long_ago() -> Option<Instant> {
        Instant::now().checked_sub(PATIENCE * 2)
    }

    /// A slice that finds no room is stood in for until there is nothing to do.
    #[test]
    fn late_slices_are_stood_in_for_while_there_is_work() {
        let (turns, thread) = watched(long_ago(), [5, 0]);
        thread.join().unwrap_or_else(|_| panic!("the thread panicked"));
        assert_eq!(turns.turns.load(Ordering::Relaxed), 5);
    }

    /// Neither without work nor while slices come and go does the program's kernel lose a turn.
    #[test]
    fn nothing_takes_a_turn_without_need() {
        for (launched, positions) in [(long_ago(), [7, 7]), (None, [5, 0])] {
            let (turns, thread) = watched(launched, positions);
            std::thread::sleep(PATIENCE * 2);
            turns.shared.stop.store(true, Ordering::Relaxed);
            thread.thread().unpark();
            thread.join().unwrap_or_else(|_| panic!("the thread panicked"));
            assert_eq!(turns.turns.load(Ordering::Relaxed), 0);
        }
    }
}
