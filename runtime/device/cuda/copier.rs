//! Copies from the GPU's memory to page-locked memory that the calling thread does not wait for:
//! see [`device::Copier`].
//!
//! They are done by a copy engine, on a stream of their own. What a kernel wrote is in them if the
//! calling thread has seen, with acquire ordering, what the kernel stored after a fence for the
//! system: such writes have been performed in the GPU's memory as far as every observer in the
//! system is concerned, and the copy engine reads that memory through the same L2 cache, after the
//! call that queues the copy.
//!
//! [`device::Copier`]: crate::device::Copier

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream;

use super::driver::{DriverError, driver};
use super::events::Marks;
use super::raw_stream;
use super::stream::Stream;
use crate::device::error::DeviceError;
use crate::device::interface::{Copier, HostMemory};

/// How long dropping it waits for copies that may be queued after other work of the program.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(super) struct CudaCopier {
    raw: CUstream,
    marks: Marks<u32>,
    memory: Arc<dyn HostMemory>,
    stream: Arc<Stream>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for CudaCopier {}

impl CudaCopier {
    pub fn new(stream: &Arc<Stream>, memory: Arc<dyn HostMemory>) -> Result<Self, DeviceError> {
        let raw =
            raw_stream::create(stream.context()).map_err(|error| stream.error("cannot create a stream", error))?;
        Ok(Self { raw, marks: Marks::default(), memory, stream: Arc::clone(stream) })
    }

    fn error(&self, error: DriverError) -> DeviceError {
        self.stream.error("cannot copy from the GPU to the host", error)
    }

    /// Returns whether all copies have ended, waited for `PATIENCE`.
    fn is_finished(&mut self) -> bool {
        let begun = Instant::now();
        while self.marks.len() != 0 {
            if self.marks.pass().is_some() {
                continue;
            }
            if begun.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        true
    }
}

impl Copier for CudaCopier {
    unsafe fn start(&mut self, from: u64, offset: usize, bytes: usize, name: u32) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        // SAFETY: inside the memory, by the caller's promise.
        let to = unsafe { self.memory.address().add(offset) };
        // SAFETY: the caller's promise.
        unsafe { driver!(cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.raw)) }
            .map_err(|error| self.error(error))?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.marks.record(self.raw, name) }.map_err(|error| {
            // Nothing would report the copy's end, before which its memory must not be used again.
            // SAFETY: as above.
            let _ = unsafe { self.stream.wait_stream(self.raw) };
            self.error(error)
        })
    }

    fn poll(&mut self, ended: &mut Vec<(u32, Result<(), DeviceError>)>) {
        let Ok(_entered) = self.stream.enter() else { return };
        while let Some(passed) = self.marks.pass() {
            ended.push(match passed {
                Ok(name) => (name, Ok(())),
                Err((name, error)) => (name, Err(self.error(error))),
            });
        }
    }
}

impl Drop for CudaCopier {
    fn drop(&mut self) {
        let Ok(_entered) = self.stream.enter() else { return };
        if !self.is_finished() {
            tracing::error!("a copy from the GPU does not end; the memory it goes to is kept until the process ends");
            std::mem::forget(Arc::clone(&self.memory));
            return;
        }
        self.marks.destroy();
        raw_stream::destroy(self.stream.context(), self.raw);
    }
}
