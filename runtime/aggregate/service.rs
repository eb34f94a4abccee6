//! The service of an aggregating context: a thread that has the device run a kernel again and
//! again, for a short while each time, which sends and applies records.
//!
//! A kernel that does not end would keep device-wide synchronisation from returning. So each launch
//! is a slice: it ends when it has found nothing to do for a few rounds, or after a millisecond.
//! The thread naps between slices, for longer while there is nothing to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::error::AggregateError;
use crate::Result;
use crate::device::{Device, LaunchConfig, LoadedModule, Stream, Wait};

/// The thread of one context. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Why the thread has ended before it was stopped.
    problem: Mutex<Option<String>>,
}

/// What the thread works with.
#[derive(Debug)]
pub(super) struct Work {
    pub device: Arc<dyn Device>,
    pub module: Arc<dyn LoadedModule>,
    /// Where the device has the `abi::AggregateService`.
    pub service: u64,
    /// Where `abi::AggregateService::busy` is.
    pub busy: u64,
}

/// Rounds without work after which a slice ends.
const POLLS: u32 = 32;
/// The longest slice.
const MOST_NS: u64 = 1_000_000;
/// The shortest nap, and the longest.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
/// Words of `abi::AggregateService` from `busy` to `broken`.
const WORDS: usize = 6;

impl Service {
    pub const KERNEL: &str = "oxshmem_aggregate_serve";

    /// Starts the thread.
    ///
    /// # Errors
    /// The device has no room for a stream, or the system refuses a thread.
    pub fn start(me: usize, work: Work) -> Result<Self> {
        let stream = work.device.create_urgent_stream()?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let serve = move || {
            if let Err(problem) = work.serve(&stream, &theirs.stop) {
                tracing::error!(problem, "the service of an aggregating context has ended");
                *theirs.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
            }
        };
        let thread = std::thread::Builder::new().name("aggregate".to_owned()).spawn(serve);
        let refused = |error| AggregateError::Service { me, reason: format!("the system refuses its thread: {error}") };
        let thread = thread.map_err(refused)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns an error if the thread has ended by itself.
    pub fn check(&self, me: usize) -> Result<(), AggregateError> {
        let problem = self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        problem.map_or(Ok(()), |reason| Err(AggregateError::Service { me, reason }))
    }
}

impl Service {
    /// Ends the thread, and waits for the slice that it has launched.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
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

impl Work {
    /// Launches slices until `stop` is set.
    fn serve(&self, stream: &Stream, stop: &AtomicBool) -> Result<(), String> {
        let (args, config) =
            ((self.service.to_ne_bytes(), POLLS.to_ne_bytes(), MOST_NS.to_ne_bytes()), LaunchConfig::linear(1, 1));
        let mut nap = NAPS[0];
        let mut before = [0; WORDS];
        while !stop.load(Ordering::Relaxed) {
            // SAFETY: the kernel takes the service, which the table keeps until this thread has
            // ended, and two numbers.
            unsafe { self.module.launch(Service::KERNEL, config, &[&args.0, &args.1, &args.2], stream) }
                .map_err(|error| error.to_string())?;
            let mut words = [0u64; WORDS];
            // SAFETY: the words are in the slab of the context, which the table keeps.
            unsafe { self.device.synchronize(Wait::Stream(stream), self.busy, bytemuck::cast_slice_mut(&mut words)) }
                .map_err(|error| error.to_string())?;
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
