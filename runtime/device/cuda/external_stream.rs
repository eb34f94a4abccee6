//! Streams other than the PE's own: the program's, and those made for it.
//!
//! After what the PE puts on such a stream it records an event. The event says when that work has
//! ended, even when the program has destroyed the stream meanwhile, and nothing is unmapped before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{self, CUstream};

use super::driver::{DriverError, driver};
use super::queues::Queue;
use super::raw_stream;
use super::stream::Stream;
use crate::device::error::DeviceError;

/// A stream that is not the PE's own.
#[derive(Debug, Clone)]
pub(crate) struct ExternalStream {
    raw: CUstream,
    queue: Arc<Queue>,
    /// The PE's, whose context it is in.
    pe: Arc<Stream>,
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
    pub(super) fn adopt(pe: &Arc<Stream>, raw: CUstream) -> Result<Self, DeviceError> {
        let queue = match pe.queues().known(raw) {
            Some(queue) => queue,
            None => {
                let _entered = pe.enter()?;
                pe.queues().of(raw).map_err(|error| pe.error("cannot follow a stream", error))?
            }
        };
        Ok(Self { raw, queue, pe: Arc::clone(pe), _made: None })
    }

    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.queue) as usize
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Returns whether what the PE has put there has ended; `None` if the driver does not say. The
    /// context must be current.
    pub fn has_ended(&self) -> Option<bool> {
        // SAFETY: the event lives as long as the PE's stream.
        raw_stream::ended(unsafe { sys::cuEventQuery(self.queue.event) })
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

    /// Moves the event after everything that is on the stream now.
    fn mark(&self) -> Result<(), DriverError> {
        if raw_stream::is_capturing(self.raw)? {
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
