//! Streams other than the PE's own: the program's, and those made for it.
//!
//! After what the PE puts on such a stream it records an event. The event says when that work has
//! ended, even when the program has destroyed the stream meanwhile, and nothing is unmapped before.

use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream};

use super::driver::{DriverError, driver};
use super::queues::{self, Queue};
use super::raw_stream;
use super::stream::Stream;
use crate::device::error::DeviceError;

/// A stream that is not the PE's own. One that the library made keeps the PE's, and with it the
/// context; one of the program keeps neither.
#[derive(Debug, Clone)]
pub(crate) struct ExternalStream {
    raw: CUstream,
    queue: Arc<Queue>,
    /// The thread to whose stream the handle leads; `None` if it is the same in all threads.
    thread: Option<u64>,
    /// The stream, if the library made it.
    _made: Option<Arc<Made>>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for ExternalStream {}
// SAFETY: as above.
unsafe impl Sync for ExternalStream {}

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
        raw_stream::destroy(self.pe.context(), self.raw);
    }
}

impl ExternalStream {
    /// Returns a new stream, independent of the legacy default stream.
    pub(super) fn create(pe: &Arc<Stream>) -> Result<Self, DeviceError> {
        Self::made(pe, raw_stream::create(pe.context()))
    }

    /// Returns the same with the highest priority.
    pub(super) fn create_urgent(pe: &Arc<Stream>) -> Result<Self, DeviceError> {
        Self::made(pe, raw_stream::create_urgent(pe.context()))
    }

    fn made(pe: &Arc<Stream>, raw: Result<CUstream, DriverError>) -> Result<Self, DeviceError> {
        let raw = raw.map_err(|error| pe.error("cannot create a stream", error))?;
        let made = Arc::new(Made { raw, pe: Arc::clone(pe) });
        Ok(Self { _made: Some(made), ..Self::adopt(pe, raw)? })
    }

    /// Returns the program's stream.
    pub(super) fn adopt(pe: &Stream, raw: CUstream) -> Result<Self, DeviceError> {
        let queue = match pe.queues().known(raw) {
            Some(queue) => queue,
            None => {
                let _entered = pe.enter()?;
                pe.queues().of(pe.context(), raw).map_err(|error| pe.error("cannot follow a stream", error))?
            }
        };
        Ok(Self { raw, queue, thread: queues::thread_of(raw), _made: None })
    }

    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.queue) as usize
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Returns what an error calls the stream.
    pub fn describe(&self) -> String {
        format!("stream {:p} of the program", self.raw)
    }

    /// Returns whether `raw` is this stream's handle, and names it in every thread.
    pub fn is_named(&self, raw: CUstream) -> bool {
        self.raw == raw && self.thread.is_none()
    }

    /// Returns whether the handle leads to this stream in the calling thread.
    pub(super) fn is_of_this_thread(&self) -> bool {
        self.thread.is_none() || self.thread == queues::thread_of(self.raw)
    }

    pub(super) fn is_of(&self, pe: &Stream) -> bool {
        self.queue.is_of(pe.queues())
    }

    /// Returns the event of the stream. `pe`: the PE's own stream, which keeps the event and whose
    /// context must be current, here and in what follows.
    fn event(&self, pe: &Stream) -> CUevent {
        debug_assert!(self.is_of(pe));
        self.queue.event
    }

    /// Returns what the PE has put there.
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Returns whether what the PE has put there has ended; `None` if the driver does not say.
    pub(super) fn has_ended(&self, pe: &Stream) -> Option<bool> {
        debug_assert!(self.is_of(pe));
        self.queue.has_ended()
    }

    /// Moves the event after everything that is on the stream now. The stream does not capture: the
    /// event would become a part of the graph.
    pub(super) fn mark(&self, pe: &Stream) -> Result<(), DriverError> {
        // SAFETY: as above; the event is of the same context.
        unsafe { driver!(cuEventRecord(self.event(pe), self.raw)) }
    }

    /// Waits for everything that is on the stream now.
    ///
    /// # Errors
    /// The stream captures; or those of [`Stream::wait`].
    pub(super) fn wait(&self, pe: &Stream) -> Result<(), DeviceError> {
        let failed = |error| pe.error("cannot wait for a stream", error);
        if raw_stream::is_capturing(self.raw).map_err(failed)? {
            return Err(DeviceError::Capturing { stream: self.describe() });
        }
        self.mark(pe).map_err(failed)?;
        self.wait_for_queued(pe)
    }

    /// Waits for what the PE has queued.
    pub(super) fn wait_for_queued(&self, pe: &Stream) -> Result<(), DeviceError> {
        pe.wait_event(self.event(pe))?;
        self.queue.launched.clear();
        Ok(())
    }
}
