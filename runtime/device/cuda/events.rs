//! Events after what was queued on a stream, which say in turn that it has ended.

use std::collections::VecDeque;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream};

use super::driver::{DriverError, check, driver};

/// Marks of one stream, in the order of the work, each with what it is for; and events that can be
/// used again.
#[derive(Debug)]
pub(super) struct Marks<T> {
    pending: VecDeque<(T, CUevent)>,
    free: Vec<CUevent>,
}

// SAFETY: events may be used from any thread.
unsafe impl<T: Send> Send for Marks<T> {}

impl<T> Default for Marks<T> {
    fn default() -> Self {
        Self { pending: VecDeque::new(), free: Vec::new() }
    }
}

impl<T> Marks<T> {
    /// Marks the end of what is on the stream now. The context must be current.
    ///
    /// # Safety
    /// The stream exists.
    pub unsafe fn record(&mut self, stream: CUstream, name: T) -> Result<(), DriverError> {
        let event = self.free.pop().map_or_else(new_event, Ok)?;
        // SAFETY: the event lives as long as `self`, the stream by the caller's promise.
        let recorded = unsafe { driver!(cuEventRecord(event, stream)) };
        match recorded {
            Ok(()) => self.pending.push_back((name, event)),
            Err(_) => self.free.push(event),
        }
        recorded
    }

    /// Returns the oldest mark, if the stream has passed it. The context must be current.
    ///
    /// # Errors
    /// What is before it failed.
    pub fn pass(&mut self) -> Option<Result<T, (T, DriverError)>> {
        let (_, event) = self.pending.front()?;
        // SAFETY: it lives as long as `self`.
        let result = unsafe { sys::cuEventQuery(*event) };
        if result == CUresult::CUDA_ERROR_NOT_READY {
            return None;
        }
        let (name, event) = self.pending.pop_front()?;
        self.free.push(event);
        Some(match check("cuEventQuery", result) {
            Ok(()) => Ok(name),
            Err(error) => Err((name, error)),
        })
    }

    /// Returns how many the stream has not passed, as far as is known.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Destroys the events. The context must be current.
    pub fn destroy(&mut self) {
        for event in self.pending.drain(..).map(|(_, event)| event).chain(self.free.drain(..)) {
            // SAFETY: no thread uses it any more.
            if let Err(error) = unsafe { driver!(cuEventDestroy_v2(event)) } {
                tracing::debug!(%error, "cannot destroy an event");
            }
        }
    }
}

/// Returns an event that only tells whether it has happened. The context must be current.
pub(super) fn new_event() -> Result<CUevent, DriverError> {
    let mut event = std::ptr::null_mut();
    // SAFETY: writes one handle.
    unsafe { driver!(cuEventCreate(&raw mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)) }?;
    Ok(event)
}
