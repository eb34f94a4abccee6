//! The software HCA's kernel on the `cpu` device: the same kernel as on a GPU, run by a SIMT executor of its own.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oxshmem_hca::soft::tables::Slice;
use oxshmem_hca::soft::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, Pace};

use super::cpu::{Executor, ExecutorOptions, LaunchConfig, LaunchHandle, Module};
use super::shared_memory::{OnHost, SharedMemory};
use super::{CpuDevice, Device, DeviceError, SOFT_HCA, SOFT_HCA_KERNEL};
use crate::config::Config;

/// Memory of this process and a SIMT executor that run the software HCA's kernel; for
/// [`SoftOptions::accelerator`](oxshmem_hca::soft::SoftOptions::accelerator).
///
/// # Errors
/// The system refuses threads or memory.
pub fn cpu_accelerator() -> Result<Arc<dyn Accelerator>, DeviceError> {
    CpuDevice::new(&Config::default())?.accelerator()
}

/// Two blocks of one warp, which is enough to have both in tests.
const BLOCKS: u32 = 2;
const THREADS: u32 = 32;

#[derive(Debug)]
pub(super) struct CpuAccelerator {
    memory: Box<dyn Device>,
    module: Module,
    launched: Mutex<VecDeque<LaunchHandle>>,
    executor: Executor,
}

impl CpuAccelerator {
    /// `memory` allocates and maps.
    pub fn new(memory: Box<dyn Device>) -> Result<Self, DeviceError> {
        // SAFETY: the build generated `cpu`; it returns the module's static description.
        let module = unsafe { Module::from_raw((SOFT_HCA.cpu)()) }
            .map_err(|source| DeviceError::Module { module: SOFT_HCA.name.to_owned(), source })?;
        let executor = Executor::new(ExecutorOptions::default())?;
        Ok(Self { memory, module, launched: Mutex::default(), executor })
    }
}

fn failed(error: impl std::fmt::Display) -> AcceleratorError {
    AcceleratorError(error.to_string())
}

impl Accelerator for CpuAccelerator {
    fn pace(&self) -> Pace {
        Pace {
            run: Duration::from_millis(1),
            idle: Duration::from_micros(20),
            ahead: 1,
            look: Duration::from_micros(50),
        }
    }

    fn allocate(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        let bytes = bytes.next_multiple_of(self.memory.granularity());
        let memory = self.memory.allocate(bytes).map_err(failed)?;
        let space = self.memory.reserve(bytes).map_err(failed)?;
        Ok(Box::new(SharedMemory::own(space, &memory, bytes).map_err(failed)?))
    }

    fn host_memory(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        Ok(Box::new(OnHost(self.memory.host_memory(bytes).map_err(failed)?)))
    }

    fn map(&self, memory: BorrowedFd<'_>, offset: u64, len: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        let bytes = (offset + len).next_multiple_of(self.memory.granularity());
        let space = self.memory.reserve(bytes).map_err(failed)?;
        Ok(Box::new(SharedMemory::of_peer(space, memory, offset, bytes).map_err(failed)?))
    }

    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.read(from, bytes) }.map_err(failed)
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.write(to, bytes) }.map_err(failed)
    }

    unsafe fn launch(&self, slice: &Slice) -> AcceleratorResult<()> {
        let kernel = self.module.kernel(SOFT_HCA_KERNEL).map_err(failed)?;
        let config = LaunchConfig::linear(BLOCKS, THREADS);
        // SAFETY: the kernel takes one slice; what it names is the caller's promise.
        let handle = unsafe { self.executor.launch(kernel, config, &[&slice.to_bytes()]) }.map_err(failed)?;
        self.launched.lock().unwrap_or_else(PoisonError::into_inner).push_back(handle);
        Ok(())
    }

    fn running(&self) -> AcceleratorResult<usize> {
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(handle) = launched.front().filter(|handle| handle.is_finished()) {
            handle.wait().map_err(failed)?;
            launched.pop_front();
        }
        Ok(launched.len())
    }
}
