//! The software HCA's kernel on a GPU: on a stream of the highest priority, with copies of its own, so that it waits for no kernel and no
//! copy of the program.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult};
use oxshmem_hca::soft::tables::Slice;
use oxshmem_hca::soft::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, Pace};

use super::driver::{Context, Gpu, check, driver};
use super::memory::{self, Copies, Reservation};
use super::module::CudaModule;
use super::stream::Stream;
use crate::device::shared_memory::SharedMemory;
use crate::device::{DeviceError, LaunchConfig, LoadedModule, SOFT_HCA, SOFT_HCA_KERNEL};

/// Blocks of the kernel. Each serves one queue pair at a time and moves what one SM can.
const BLOCKS: u32 = 16;
/// Threads of each; the kernel's `kThreads`.
const THREADS: u32 = 256;

#[derive(Debug)]
pub(super) struct CudaAccelerator {
    // Dropped in this order.
    launched: Mutex<Events>,
    module: CudaModule,
    copies: Copies,
    granularity: u64,
    stream: Arc<Stream>,
}

/// An event behind each slice that may be running, and events that can be used again.
#[derive(Debug, Default)]
struct Events {
    pending: VecDeque<CUevent>,
    free: Vec<CUevent>,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Events {}

fn failed(error: impl std::fmt::Display) -> AcceleratorError {
    AcceleratorError(error.to_string())
}

impl CudaAccelerator {
    pub fn new(gpu: Gpu, granularity: u64, deadline: Duration) -> Result<Self, DeviceError> {
        let cannot = |source| DeviceError::Cuda { what: "cannot create the software HCA's stream".into(), source };
        let context = Context::retain(gpu).map_err(cannot)?;
        let stream = Arc::new(Stream::urgent(context, deadline).map_err(cannot)?);
        let copies = Copies::new(Arc::clone(&stream))?;
        let module = CudaModule::load(&stream, &copies, &SOFT_HCA)?;
        Ok(Self { launched: Mutex::default(), module, copies, granularity, stream })
    }

    fn launched(&self) -> MutexGuard<'_, Events> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, events: &mut Events) -> Result<(), DeviceError> {
        let cannot = |error| self.stream.error("cannot mark the end of a slice", error);
        let _entered = self.stream.enter()?;
        let event = match events.free.pop() {
            Some(event) => event,
            None => {
                let mut event = std::ptr::null_mut();
                // SAFETY: writes one handle.
                unsafe { driver!(cuEventCreate(&raw mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)) }
                    .map_err(cannot)?;
                event
            }
        };
        events.pending.push_back(event);
        // SAFETY: both live as long as `self`.
        unsafe { driver!(cuEventRecord(event, self.stream.raw())) }.map_err(cannot)
    }

    fn reap(&self, events: &mut Events) -> Result<usize, DeviceError> {
        let _entered = self.stream.enter()?;
        while let Some(event) = events.pending.front().copied() {
            // SAFETY: it lives as long as `self`.
            match unsafe { sys::cuEventQuery(event) } {
                CUresult::CUDA_ERROR_NOT_READY => break,
                result => check("cuEventQuery", result)
                    .map_err(|error| self.stream.error("a slice of the software HCA's kernel failed", error))?,
            }
            events.pending.pop_front();
            events.free.push(event);
        }
        Ok(events.pending.len())
    }
}

impl Accelerator for CudaAccelerator {
    fn pace(&self) -> Pace {
        Pace {
            run: Duration::from_millis(1),
            idle: Duration::from_micros(200),
            ahead: 2,
            look: Duration::from_micros(20),
        }
    }

    fn allocate(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        let bytes = bytes.next_multiple_of(self.granularity);
        let memory = memory::allocate(&self.stream, &self.copies, bytes).map_err(failed)?;
        let space = Reservation::new(Arc::clone(&self.stream), bytes).map_err(failed)?;
        Ok(Box::new(SharedMemory::own(Box::new(space), &memory, bytes).map_err(failed)?))
    }

    fn map(&self, memory: BorrowedFd<'_>, offset: u64, len: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        let bytes = (offset + len).next_multiple_of(self.granularity);
        let space = Reservation::new(Arc::clone(&self.stream), bytes).map_err(failed)?;
        Ok(Box::new(SharedMemory::of_peer(Box::new(space), memory, offset, bytes).map_err(failed)?))
    }

    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copies.read(from, bytes) }.map_err(failed)
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copies.write(to, bytes) }.map_err(failed)
    }

    unsafe fn launch(&self, slice: &Slice) -> AcceleratorResult<()> {
        let mut events = self.launched();
        let config = LaunchConfig::linear(BLOCKS, THREADS);
        // SAFETY: the kernel takes one slice; what it names is the caller's promise.
        unsafe { self.module.launch(SOFT_HCA_KERNEL, config, &[&slice.to_bytes()], &crate::device::Stream::OWN) }
            .map_err(failed)?;
        self.record(&mut events).map_err(failed)
    }

    fn running(&self) -> AcceleratorResult<usize> {
        self.reap(&mut self.launched()).map_err(failed)
    }
}

impl Drop for CudaAccelerator {
    fn drop(&mut self) {
        if !self.stream.idle() {
            return;
        }
        let Ok(_entered) = self.stream.enter() else { return };
        let mut events = self.launched();
        let Events { pending, free } = &mut *events;
        for event in pending.drain(..).chain(free.drain(..)) {
            // SAFETY: nobody uses it any more.
            if let Err(error) = unsafe { driver!(cuEventDestroy_v2(event)) } {
                tracing::debug!(%error, "cannot destroy an event");
            }
        }
    }
}
