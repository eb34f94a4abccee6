//! What the software HCA needs to execute queues in memory that this process's CPU cannot touch: the queues of a GPU.
//!
//! [`Accelerator`] is memory that kernels reach, and a way to run one kernel, `device-kernels/kernels/soft_hca.cu`, in bounded slices.
//! This crate knows neither CUDA nor any other way to run it: the runtime implements the trait.

use super::tables::Slice;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An accelerator refused something or could not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AcceleratorError(pub String);

/// The result of a call to an accelerator.
pub type AcceleratorResult<T> = Result<T, AcceleratorError>;

/// Memory that kernels reach, until it is dropped.
pub trait AcceleratorMemory: fmt::Debug + Send + Sync {
    /// Its address, for kernels.
    fn address(&self) -> u64;
}

/// How slices follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A slice ends after this time.
    pub run: Duration,
    /// Or after this time without work.
    pub idle: Duration,
    /// Slices that are launched before they can start, so that one follows the other at once; at least 1.
    pub ahead: usize,
    /// How often to look whether a slice has ended.
    pub look: Duration,
}

/// What runs the engine's kernel, and the memory that it works on. No call waits for anything but the engine's own slices.
pub trait Accelerator: fmt::Debug + Send + Sync {
    /// How slices follow each other.
    fn pace(&self) -> Pace;

    /// `bytes` bytes of zeroed memory, aligned to a page.
    fn allocate(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>>;

    /// `bytes` bytes of zeroed memory of the host, aligned to a page, which this process and kernels reach at the same address.
    fn host_memory(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>>;

    /// Maps memory of a peer: `len` bytes from `offset` of a file.
    fn map(&self, memory: BorrowedFd<'_>, offset: u64, len: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>>;

    /// Copies from kernels' memory.
    ///
    /// # Safety
    /// `from` names that many bytes of memory that kernels reach.
    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> AcceleratorResult<()>;

    /// Copies to kernels' memory.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    unsafe fn write(&self, to: u64, bytes: &[u8]) -> AcceleratorResult<()>;

    /// Launches a slice behind those launched before, and returns at once.
    ///
    /// # Safety
    /// The tables stay valid until the slice has ended, and so does all memory that they name.
    unsafe fn launch(&self, slice: &Slice) -> AcceleratorResult<()>;

    /// How many of the slices launched have not ended.
    fn running(&self) -> AcceleratorResult<usize>;
}
