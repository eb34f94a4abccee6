//! What a PE has put on streams other than its own.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};

use super::driver::{DriverError, driver};
use super::events::new_event;

/// `CU_STREAM_PER_THREAD` of cuda.h: a handle that names another stream in each thread.
const PER_THREAD: usize = 2;

/// What the PE has put on one stream.
#[derive(Debug)]
pub(super) struct Queue {
    pub event: CUevent,
    /// Kernels launched since all were seen to have ended.
    launched: Mutex<BTreeSet<String>>,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// A stream's handle, and the thread where that says which stream is meant.
type Name = (usize, Option<ThreadId>);

/// The streams a PE has put work on.
#[derive(Debug, Default)]
pub(super) struct Queues {
    by_name: Mutex<HashMap<Name, Arc<Queue>>>,
    /// Work went into a graph: it may run at any time.
    pub captured: AtomicBool,
}

impl Queues {
    fn all(&self) -> Vec<Arc<Queue>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).values().map(Arc::clone).collect()
    }

    /// Returns the queue of a stream, made when the stream is first seen. The context must be
    /// current.
    pub fn of(&self, raw: CUstream) -> Result<Arc<Queue>, DriverError> {
        let thread = (raw as usize == PER_THREAD).then(|| std::thread::current().id());
        let mut queues = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&(raw as usize, thread)) {
            return Ok(Arc::clone(queue));
        }
        let queue = Arc::new(Queue { event: new_event()?, launched: Mutex::default() });
        queues.insert((raw as usize, thread), Arc::clone(&queue));
        Ok(queue)
    }

    /// Returns whether work of the PE is, or may be, running on any of them. The context must be
    /// current.
    pub fn busy(&self) -> bool {
        self.captured.load(Ordering::Acquire) || self.unfinished()
    }

    /// Returns whether work that was queued has not ended. The context must be current.
    pub fn unfinished(&self) -> bool {
        // SAFETY: the events live as long as `self`.
        self.all().iter().any(|queue| unsafe { sys::cuEventQuery(queue.event) } == CUresult::CUDA_ERROR_NOT_READY)
    }

    /// Returns the kernels that may be running.
    pub fn launched(&self) -> BTreeSet<String> {
        self.all().iter().flat_map(|queue| queue.launched().clone()).collect()
    }

    /// Gives the events back. The context must be current.
    pub fn destroy(&self) {
        for (_, queue) in self.by_name.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            // SAFETY: no thread waits for it any more.
            if let Err(error) = unsafe { driver!(cuEventDestroy_v2(queue.event)) } {
                tracing::debug!(%error, "cannot destroy an event");
            }
        }
    }
}

impl Queue {
    pub fn launched(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
