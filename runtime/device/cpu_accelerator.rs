//! The software HCA's kernel on the `cpu` device: the same kernel as on a GPU, run by a SIMT
//! executor of its own.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oxshmem_hca::soft::tables::Slice;
use oxshmem_hca::soft::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, CopyEngine, Pace, Rows};
use oxshmem_system::words::{low32, native};

use super::cpu::{Executor, ExecutorOptions, LaunchConfig, LaunchHandle, Module};
use super::error::DeviceError;
use super::interface::Device;
use super::shared_memory::{OnHost, SharedMemory};
use super::soft_hca::{SOFT_HCA, SOFT_HCA_ATOMICS, SOFT_HCA_KERNEL};

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
    /// Creates the accelerator, for which `memory` allocates and maps.
    pub fn new(memory: Box<dyn Device>) -> Result<Self, DeviceError> {
        // SAFETY: the build generated `cpu`; it returns the module's static description.
        let module = unsafe { Module::from_raw(SOFT_HCA.cpu_object()) }
            .map_err(|source| DeviceError::Module { module: SOFT_HCA.name.to_owned(), source })?;
        let executor = Executor::new(ExecutorOptions::default())?;
        Ok(Self { memory, module, launched: Mutex::default(), executor })
    }

    /// Launches a kernel with its one argument.
    ///
    /// # Safety
    /// The argument is what the kernel takes, and what it names is valid while the kernel runs.
    unsafe fn run(&self, kernel: &str, config: LaunchConfig, argument: &[u8]) -> AcceleratorResult<()> {
        let kernel = self.module.kernel(kernel).map_err(failed)?;
        // SAFETY: the caller's promise.
        let handle = unsafe { self.executor.launch(kernel, config, &[argument]) }.map_err(failed)?;
        self.launched.lock().unwrap_or_else(PoisonError::into_inner).push_back(handle);
        Ok(())
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
            patience: Duration::from_secs(5),
        }
    }

    fn blocks(&self) -> usize {
        BLOCKS as usize
    }

    fn allocate(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        let bytes = bytes.next_multiple_of(self.memory.granularity());
        let memory = self.memory.allocate(bytes).map_err(failed)?;
        let space = self.memory.reserve(bytes, 1).map_err(failed)?;
        Ok(Box::new(SharedMemory::own(space, &memory, bytes).map_err(failed)?))
    }

    fn host_memory(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        Ok(Box::new(OnHost(self.memory.host_memory(bytes).map_err(failed)?)))
    }

    fn map(&self, memory: BorrowedFd<'_>, offset: u64, len: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        let bytes = (offset + len).next_multiple_of(self.memory.granularity());
        let space = self.memory.reserve(bytes, 1).map_err(failed)?;
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
        // SAFETY: the kernel takes one slice; what it names is the caller's promise.
        unsafe { self.run(SOFT_HCA_KERNEL, LaunchConfig::linear(BLOCKS, THREADS), &slice.to_bytes()) }
    }

    unsafe fn launch_aside(&self, slice: &Slice) -> AcceleratorResult<()> {
        // Threads of the CPU take turns.
        // SAFETY: the caller's promise.
        unsafe { self.launch(slice) }
    }

    unsafe fn launch_atomics(&self, batch: u64) -> AcceleratorResult<()> {
        // SAFETY: the kernel takes the address of a batch; what that names is the caller's promise.
        unsafe { self.run(SOFT_HCA_ATOMICS, LaunchConfig::linear(1, 1), &batch.to_ne_bytes()) }
    }

    fn check(&self) -> AcceleratorResult<()> {
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(handle) = launched.front().filter(|handle| handle.is_finished()) {
            handle.wait().map_err(failed)?;
            launched.pop_front();
        }
        Ok(())
    }

    fn copy_engine(&self) -> AcceleratorResult<Box<dyn CopyEngine>> {
        Ok(Box::new(HostCopies { staging: vec![0; STAGING_BYTES / 8].into_boxed_slice(), queued: Vec::new() }))
    }
}

/// Staging memory of [`HostCopies`].
const STAGING_BYTES: usize = 1 << 20;

/// Copies that this thread does when they are waited for, as late as copies may take place.
#[derive(Debug)]
struct HostCopies {
    staging: Box<[u64]>,
    queued: Vec<Queued>,
}

#[derive(Debug)]
enum Queued {
    Fetch { to: *mut u8, from: u64, bytes: usize },
    Put(Rows),
    Store { to: u64, value: u64, wide: bool },
}

// SAFETY: the addresses are valid for the thread that waits, by the queueing caller's promise.
unsafe impl Send for HostCopies {}

impl CopyEngine for HostCopies {
    fn staging(&self) -> (*mut u8, usize) {
        (self.staging.as_ptr().cast_mut().cast(), size_of_val(&*self.staging))
    }

    unsafe fn fetch(&mut self, to: *mut u8, from: u64, bytes: usize) -> AcceleratorResult<()> {
        self.queued.push(Queued::Fetch { to, from, bytes });
        Ok(())
    }

    unsafe fn put(&mut self, rows: &Rows) -> AcceleratorResult<()> {
        self.queued.push(Queued::Put(*rows));
        Ok(())
    }

    unsafe fn store(&mut self, to: u64, value: u64, wide: bool) -> AcceleratorResult<()> {
        self.queued.push(Queued::Store { to, value, wide });
        Ok(())
    }

    fn order(&mut self) -> AcceleratorResult<()> {
        Ok(())
    }

    fn wait(&mut self) -> AcceleratorResult<()> {
        for queued in self.queued.drain(..) {
            // SAFETY: both ends are valid until this has returned, by the queueing caller's
            // promise; words are aligned.
            unsafe {
                match queued {
                    Queued::Fetch { to, from, bytes } => copy_bytes(to, from as *const u8, bytes),
                    Queued::Put(rows) => {
                        for row in 0..rows.count {
                            let to = (rows.to + row * rows.to_pitch) as *mut u8;
                            copy_bytes(to, rows.from.add(native(row * rows.from_pitch)), native(rows.width));
                        }
                    }
                    Queued::Store { to, value, wide: true } => {
                        AtomicU64::from_ptr(to as *mut u64).store(value, Ordering::Release);
                    }
                    Queued::Store { to, value, wide: false } => {
                        AtomicU32::from_ptr(to as *mut u32).store(low32(value), Ordering::Release);
                    }
                }
            }
            fence(Ordering::Release);
        }
        Ok(())
    }
}

/// Copies as a copy engine does: in the largest words, of up to 8 bytes, that both addresses and
/// the length are multiples of.
///
/// # Safety
/// Both ranges are valid.
unsafe fn copy_bytes(to: *mut u8, from: *const u8, bytes: usize) {
    /// Copies `bytes` in words of an atomic type.
    macro_rules! copy_as {
        ($word:ty) => {
            for at in (0..bytes).step_by(size_of::<$word>()) {
                // SAFETY: within the ranges, and aligned, by the match below.
                unsafe {
                    let word = <$word>::from_ptr(from.add(at).cast_mut().cast()).load(Ordering::Relaxed);
                    <$word>::from_ptr(to.add(at).cast()).store(word, Ordering::Relaxed);
                }
            }
        };
    }
    match (to.addr() | from.addr() | bytes).trailing_zeros() {
        0 => copy_as!(AtomicU8),
        1 => copy_as!(AtomicU16),
        2 => copy_as!(AtomicU32),
        _ => copy_as!(AtomicU64),
    }
}
