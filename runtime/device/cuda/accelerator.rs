//! The software HCA's kernel on a GPU: on a stream of the highest priority, with copies of its own, so that it waits for no kernel and no
//! copy of the program.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oxshmem_hca::soft::tables::Slice;
use oxshmem_hca::soft::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, Pace};

use super::driver::{Context, Gpu};
use super::marks::Marks;
use super::memory::{self, Copies, Locked, Reservation};
use super::module::CudaModule;
use super::room::Resident;
use super::stream::Stream;
use crate::device::shared_memory::{OnHost, SharedMemory};
use crate::device::{DeviceError, LaunchConfig, LoadedModule, SOFT_HCA, SOFT_HCA_KERNEL};

/// Blocks of the kernel. Each serves one queue pair at a time and moves what one SM can.
const BLOCKS: u32 = 16;
/// Threads of each; the kernel's `kThreads`.
const THREADS: u32 = 256;

#[derive(Debug)]
pub(super) struct CudaAccelerator {
    // Dropped in this order.
    /// A mark behind each slice that may be running.
    launched: Mutex<Marks<()>>,
    module: CudaModule,
    copies: Copies,
    granularity: u64,
    stream: Arc<Stream>,
}

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

    /// What it takes of the GPU.
    pub fn resident(&self) -> Result<Resident, DeviceError> {
        Ok(Resident { block: self.module.block(SOFT_HCA_KERNEL, THREADS, 0)?, blocks: BLOCKS })
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    fn launched(&self) -> MutexGuard<'_, Marks<()>> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, launched: &mut Marks<()>) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { launched.record(self.stream.raw(), ()) }
            .map_err(|error| self.stream.error("cannot mark the end of a slice", error))
    }

    fn reap(&self, launched: &mut Marks<()>) -> Result<usize, DeviceError> {
        let _entered = self.stream.enter()?;
        while let Some(passed) = launched.pass() {
            passed.map_err(|((), error)| self.stream.error("a slice of the software HCA's kernel failed", error))?;
        }
        Ok(launched.len())
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

    fn host_memory(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        Ok(Box::new(OnHost(Box::new(Locked::new(Arc::clone(&self.stream), bytes).map_err(failed)?))))
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
        let mut launched = self.launched();
        let config = LaunchConfig::linear(BLOCKS, THREADS);
        // SAFETY: the kernel takes one slice; what it names is the caller's promise.
        unsafe { self.module.launch(SOFT_HCA_KERNEL, config, &[&slice.to_bytes()], &crate::device::Stream::OWN) }
            .map_err(failed)?;
        self.record(&mut launched).map_err(failed)
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
        self.launched().destroy();
    }
}
