//! What the software HCA needs to execute queues in memory that this process's CPU cannot touch:
//! the queues of a GPU.
//!
//! [`Accelerator`] is memory that kernels reach, and a way to run one kernel,
//! `device-kernels/kernels/soft_hca.cu`, in bounded slices. This crate knows neither CUDA nor any
//! other way to run it: the runtime implements the trait.

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
    /// Returns its address, for kernels.
    fn address(&self) -> u64;
    /// Returns its length in bytes.
    fn bytes(&self) -> u64;
}

/// How slices follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A slice ends after this time.
    pub run: Duration,
    /// Or after this time without work.
    pub idle: Duration,
    /// Slices that are launched before they can start, so that one follows the other at once; at
    /// least 1.
    pub ahead: usize,
    /// How often to look whether a slice has ended.
    pub look: Duration,
    /// How much longer than `run` a slice may take to start and end until other kernels count as in
    /// its way.
    pub patience: Duration,
}

/// Rows of bytes that a copy takes from memory of this process to memory of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The first row's first byte, and the distance from one row to the next, at least `width`.
    pub to: u64,
    /// See `to`.
    pub to_pitch: u64,
    /// Likewise at the other end.
    pub from: *const u8,
    /// See `from`.
    pub from_pitch: u64,
    /// Bytes of each row.
    pub width: u64,
    /// How many there are; at least 1.
    pub count: u64,
}

/// Moves bytes between this process and memory that kernels reach, whatever kernels occupy.
///
/// All calls but [`wait`](Self::wait) only queue their work. What is queued takes place in that
/// order: what comes later sees what came before. An observer of what came later sees it too where
/// `order` stands between the two.
pub trait CopyEngine: fmt::Debug + Send {
    /// Returns the memory of this process that copies go to and come from: its address and length.
    /// It stays where it is.
    fn staging(&self) -> (*mut u8, usize);

    /// Queues a copy of `bytes` bytes to memory of this process: to [`staging`](Self::staging), or
    /// to memory that kernels reach too.
    ///
    /// # Safety
    /// Both ends are valid until the next [`wait`](Self::wait) has returned.
    unsafe fn fetch(&mut self, to: *mut u8, from: u64, bytes: usize) -> AcceleratorResult<()>;

    /// Queues a copy of rows from [`staging`](Self::staging).
    ///
    /// # Safety
    /// The conditions of [`fetch`](Self::fetch).
    unsafe fn put(&mut self, rows: &Rows) -> AcceleratorResult<()>;

    /// Queues a store of an aligned word of 8 bytes, or of 4 if not `wide`. All before it is
    /// visible to an observer that sees the word.
    ///
    /// # Safety
    /// `to` is valid until the next [`wait`](Self::wait) has returned.
    unsafe fn store(&mut self, to: u64, value: u64, wide: bool) -> AcceleratorResult<()>;

    /// Makes an observer that sees anything queued after this see all that was queued before.
    fn order(&mut self) -> AcceleratorResult<()>;

    /// Waits until all that was queued has taken place.
    fn wait(&mut self) -> AcceleratorResult<()>;
}

/// What runs the engine's kernel, and the memory that it works on. No call waits for other kernels,
/// whatever these wait for.
pub trait Accelerator: fmt::Debug + Send + Sync {
    /// Returns how slices follow each other.
    fn pace(&self) -> Pace;

    /// Allocates `bytes` bytes of zeroed memory, aligned to a page.
    fn allocate(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>>;

    /// Allocates `bytes` bytes of zeroed memory of the host, aligned to a page, which this process
    /// and kernels reach at the same address.
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
    /// The conditions of [`read`](Self::read).
    unsafe fn write(&self, to: u64, bytes: &[u8]) -> AcceleratorResult<()>;

    /// Blocks of a slice, at most [`BLOCKS`](super::tables::BLOCKS).
    fn blocks(&self) -> usize;

    /// Launches a slice after those launched before, and returns at once. It starts when there is
    /// room beside other kernels.
    ///
    /// # Safety
    /// The slice's gate stays valid until the slice has ended. The tables, and all memory that they
    /// name, stay valid as long, unless the slice is cancelled.
    unsafe fn launch(&self, slice: &Slice) -> AcceleratorResult<()>;

    /// Launches a slice that takes turns with all other kernels if there is no room beside them,
    /// and returns at once. Its turn may come late, but it comes.
    ///
    /// # Safety
    /// The conditions of [`launch`](Self::launch).
    unsafe fn launch_aside(&self, slice: &Slice) -> AcceleratorResult<()>;

    /// Launches the kernel that executes an [`AtomicBatch`](super::tables::AtomicBatch), and
    /// returns at once. `batch` is its address in [`host_memory`](Self::host_memory). Like a slice
    /// of [`launch_aside`](Self::launch_aside) it takes turns with other kernels.
    ///
    /// # Safety
    /// The batch stays valid and unchanged, and its words stay valid, until its `done` has become
    /// its `number`.
    unsafe fn launch_atomics(&self, batch: u64) -> AcceleratorResult<()>;

    /// Returns whether all slices have ended in order so far, or run. Which have ended, their gate
    /// says.
    fn check(&self) -> AcceleratorResult<()>;

    /// Returns what moves bytes while slices find no room.
    fn copy_engine(&self) -> AcceleratorResult<Box<dyn CopyEngine>>;
}
