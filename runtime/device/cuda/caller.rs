//! Streams other than the PE's own: the program's, and those made for it.
//!
//! Behind what the PE puts on such a stream it records an event. The event says when that work has ended, also when the program has
//! destroyed the stream meanwhile, and nothing is unmapped before.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstreamCaptureStatus};

use super::driver::{DriverError, driver};
use super::stream::{self, Stream};
use crate::device::DeviceError;

/// `CU_STREAM_PER_THREAD` of cuda.h: a handle that names another stream in each thread.
const PER_THREAD: usize = 2;

/// A stream that is not the PE's own.
#[derive(Debug, Clone)]
pub(crate) struct CallerStream {
    raw: CUstream,
    queue: Arc<Queue>,
    /// The PE's, whose context it is in.
    pe: Arc<Stream>,
    _made: Option<Arc<Made>>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for CallerStream {}
// SAFETY: as above.
unsafe impl Sync for CallerStream {}

/// What the PE has put on one stream.
#[derive(Debug)]
pub(super) struct Queue {
    event: CUevent,
    /// Kernels launched since all were seen to have ended.
    launched: Mutex<BTreeSet<String>>,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// A stream that the library created.
#[derive(Debug)]
struct Made {
    raw: CUstream,
    pe: Arc<Stream>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Made {}
// SAFETY: as above.
unsafe impl Sync for Made {}

impl Drop for Made {
    fn drop(&mut self) {
        // The driver ends what is queued before it lets the stream go, and does not wait for it.
        stream::destroy(self.pe.context(), self.raw);
    }
}

/// A stream's handle, and the thread where that says which stream is meant.
type Name = (usize, Option<ThreadId>);

/// The streams a PE has put work on.
#[derive(Debug, Default)]
pub(super) struct Queues {
    by_name: Mutex<HashMap<Name, Arc<Queue>>>,
    /// Work went into a graph: it may run at any time.
    captured: AtomicBool,
}

impl Queues {
    fn all(&self) -> Vec<Arc<Queue>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).values().map(Arc::clone).collect()
    }

    /// The queue of a stream, made when the stream is first seen. The context must be current.
    fn of(&self, raw: CUstream) -> Result<Arc<Queue>, DriverError> {
        let thread = (raw as usize == PER_THREAD).then(|| std::thread::current().id());
        let mut queues = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&(raw as usize, thread)) {
            return Ok(Arc::clone(queue));
        }
        let queue = Arc::new(Queue { event: new_event()?, launched: Mutex::default() });
        queues.insert((raw as usize, thread), Arc::clone(&queue));
        Ok(queue)
    }

    /// Whether work of the PE is, or may be, running on any of them. The context must be current.
    pub fn busy(&self) -> bool {
        self.captured.load(Ordering::Acquire) || self.unfinished()
    }

    /// Whether work that was queued has not ended. The context must be current.
    pub fn unfinished(&self) -> bool {
        // SAFETY: the events live as long as `self`.
        self.all().iter().any(|queue| unsafe { sys::cuEventQuery(queue.event) } == CUresult::CUDA_ERROR_NOT_READY)
    }

    /// Kernels that may be running.
    pub fn launched(&self) -> BTreeSet<String> {
        self.all().iter().flat_map(|queue| queue.launched().clone()).collect()
    }

    /// Gives the events back. The context must be current.
    pub fn destroy(&self) {
        for (_, queue) in self.by_name.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            // SAFETY: nobody waits for it any more.
            if let Err(error) = unsafe { driver!(cuEventDestroy_v2(queue.event)) } {
                tracing::debug!(%error, "cannot destroy an event");
            }
        }
    }
}

/// An event that only tells whether it has happened. The context must be current.
pub(super) fn new_event() -> Result<CUevent, DriverError> {
    let mut event = std::ptr::null_mut();
    // SAFETY: writes one handle.
    unsafe { driver!(cuEventCreate(&raw mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)) }?;
    Ok(event)
}

impl Queue {
    fn launched(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallerStream {
    /// A new stream, independent of the legacy default stream.
    pub(super) fn create(pe: &Arc<Stream>) -> Result<Self, DeviceError> {
        let failed = |error| pe.error("cannot create a stream", error);
        let raw = stream::create(pe.context()).map_err(failed)?;
        let made = Arc::new(Made { raw, pe: Arc::clone(pe) });
        Ok(Self { _made: Some(made), ..Self::adopt(pe, raw)? })
    }

    /// The program's stream.
    pub(super) fn adopt(pe: &Arc<Stream>, raw: CUstream) -> Result<Self, DeviceError> {
        let _entered = pe.enter()?;
        let queue = pe.queues().of(raw).map_err(|error| pe.error("cannot follow a stream", error))?;
        Ok(Self { raw, queue, pe: Arc::clone(pe), _made: None })
    }

    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.queue) as usize
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    pub(super) fn is_of(&self, pe: &Arc<Stream>) -> bool {
        Arc::ptr_eq(&self.pe, pe)
    }

    /// Remembers what was just queued. The context must be current.
    pub fn queued(&self, what: &str) -> Result<(), DriverError> {
        let mut launched = self.queue.launched();
        if !launched.contains(what) {
            launched.insert(what.to_owned());
        }
        drop(launched);
        self.mark()
    }

    /// Moves the event behind everything that is on the stream now.
    fn mark(&self) -> Result<(), DriverError> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: writes one value; that the stream exists is the promise of whoever passed it.
        unsafe { driver!(cuStreamIsCapturing(self.raw, &raw mut status)) }?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            // An event would become a part of the graph.
            self.pe.queues().captured.store(true, Ordering::Release);
            return Ok(());
        }
        // SAFETY: as above; the event is of the same context.
        unsafe { driver!(cuEventRecord(self.queue.event, self.raw)) }
    }

    /// Waits for everything that is on the stream now. The context must be current.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.mark().map_err(|error| self.pe.error("cannot wait for a stream", error))?;
        self.wait_for_queued()
    }

    /// Waits for what the PE has queued. The context must be current.
    pub fn wait_for_queued(&self) -> Result<(), DeviceError> {
        self.pe.wait_event(self.queue.event)?;
        self.queue.launched().clear();
        Ok(())
    }
}
