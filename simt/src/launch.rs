//! A launch, from its call to its result.

use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::{KernelError, KernelErrorKind, LaunchError, Position};
use super::module::Kernel;
use super::{MAX_BLOCK_THREADS, MAX_SHARED_BYTES};

/// A stack occupies at least one page, often two.
const PAGES_PER_THREAD: u64 = 2;

/// How an [`Executor`](crate::Executor) is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Operating system threads that run kernels: 1 to 64. The blocks of a launch are dealt out to
    /// them in turn.
    pub workers: usize,
    /// Address space of each GPU thread's stack, 16 KiB to 64 MiB. One page of it is a guard, and
    /// up to 2 KiB at the top stay unused.
    pub stack_bytes: usize,
    /// How long a kernel may run before it is stopped with an error.
    pub deadline: Duration,
    /// Most threads of one launch that are live together. Blocks beyond them begin as others end,
    /// in the order of their ranks; a cooperative launch of more is refused. Each worker has at
    /// least one block live.
    pub max_threads: u64,
}

impl Default for ExecutorOptions {
    /// Returns options with one worker, stacks of 64 KiB, a deadline of 10 minutes, and at most
    /// 65536 threads, or as many as have stacks in half of the machine's memory.
    fn default() -> Self {
        // SAFETY: sysconf has no preconditions.
        let pages = u64::try_from(unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) }).unwrap_or(0);
        Self {
            workers: 1,
            stack_bytes: 64 << 10,
            deadline: Duration::from_secs(600),
            max_threads: (pages / 2 / PAGES_PER_THREAD).clamp(u64::from(MAX_BLOCK_THREADS), 65536),
        }
    }
}

impl ExecutorOptions {
    pub(super) fn check(&self) -> Result<(), LaunchError> {
        let error = |option, value: String, expected| Err(LaunchError::Option { option, value, expected });
        if !(1..=64).contains(&self.workers) {
            return error("workers", self.workers.to_string(), "1 to 64");
        }
        if !(16 << 10..=64 << 20).contains(&self.stack_bytes) {
            return error("stack_bytes", self.stack_bytes.to_string(), "16384 to 67108864 (64 MiB)");
        }
        if self.deadline.is_zero() {
            return error("deadline", format!("{:?}", self.deadline), "more than 0");
        }
        if !(1..=1 << 24).contains(&self.max_threads) {
            return error("max_threads", self.max_threads.to_string(), "1 to 16777216");
        }
        Ok(())
    }
}

/// The shape of a launch.
///
/// ```
/// use oxshmem_simt::LaunchConfig;
///
/// let shape = LaunchConfig { grid: [8, 4, 1], shared_bytes: 1024, ..LaunchConfig::linear(1, 256) };
/// assert_eq!(shape.block, [256, 1, 1]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z; x varies fastest.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; x varies fastest. At most [`MAX_BLOCK_THREADS`], or what the
    /// kernel was declared with.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes, at most [`MAX_SHARED_BYTES`].
    pub shared_bytes: usize,
    /// All blocks run at the same time, so that they may wait for each other; more than fit the
    /// device are refused with the limit.
    pub cooperative: bool,
}

impl LaunchConfig {
    /// Creates a row of `blocks` blocks of `threads` threads, without dynamic shared memory.
    ///
    /// ```
    /// let shape = oxshmem_simt::LaunchConfig::linear(4, 128);
    /// assert_eq!((shape.grid, shape.block), ([4, 1, 1], [128, 1, 1]));
    /// ```
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0, cooperative: false }
    }

    /// Returns the same shape, launched so that all blocks run at the same time.
    ///
    /// ```
    /// assert!(oxshmem_simt::LaunchConfig::linear(4, 128).cooperative().cooperative);
    /// ```
    #[must_use]
    pub fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }
}

/// Whether a launch is to stop, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    No,
    Failed,
    Deadline,
}

/// A launch, from its call to its result.
pub(super) struct Launch {
    pub(super) kernel: Kernel,
    pub(super) config: LaunchConfig,
    pub(super) deadline: Duration,
    /// Blocks that may be live together.
    live_blocks: u64,
    /// The values, each at a multiple of 16 bytes; `args` points into it.
    _values: Box<[u128]>,
    args: Box<[*mut c_void]>,
    stop: AtomicU8,
    pub(super) forced: AtomicBool,
    pub(super) error: Mutex<Option<KernelError>>,
    result: Mutex<Option<Result<(), KernelError>>>,
    finished: Condvar,
}

// SAFETY: the pointers in `args` point into `values`, which nothing writes after construction.
unsafe impl Send for Launch {}
// SAFETY: as above; all else is Sync.
unsafe impl Sync for Launch {}

impl Launch {
    pub(super) fn new(
        kernel: &Kernel,
        config: LaunchConfig,
        args: &[&[u8]],
        options: &ExecutorOptions,
    ) -> Result<Self, LaunchError> {
        let name = || kernel.name().to_owned();
        let product = |extents: [u32; 3]| extents.iter().try_fold(1u64, |n, &e| n.checked_mul(u64::from(e)));
        let blocks = match product(config.grid) {
            Some(blocks) if (1..=u64::from(u32::MAX)).contains(&blocks) => blocks,
            _ => return Err(LaunchError::Grid { kernel: name(), grid: config.grid }),
        };
        let threads = match product(config.block) {
            Some(threads) if (1..=u64::from(kernel.max_threads())).contains(&threads) => threads,
            _ => return Err(LaunchError::Block { kernel: name(), block: config.block, limit: kernel.max_threads() }),
        };
        if config.cooperative && blocks * threads > options.max_threads {
            let (threads, limit) = (blocks * threads, options.max_threads);
            return Err(LaunchError::Threads { kernel: name(), threads, limit });
        }
        if config.shared_bytes > MAX_SHARED_BYTES {
            let (bytes, limit) = (config.shared_bytes, MAX_SHARED_BYTES);
            return Err(LaunchError::Shared { kernel: name(), bytes, limit });
        }
        let sizes = kernel.arg_sizes();
        if sizes.len() != args.len() {
            return Err(LaunchError::ArgumentCount { kernel: name(), expected: sizes.len(), given: args.len() });
        }
        for (index, (&size, arg)) in sizes.iter().zip(args).enumerate() {
            let (expected, given) = (size as usize, arg.len());
            if expected != given {
                return Err(LaunchError::ArgumentSize { kernel: name(), index, expected, given });
            }
        }
        const WORD: usize = size_of::<u128>();
        let words: usize = args.iter().map(|arg| arg.len().div_ceil(WORD)).sum();
        let mut values = vec![0u128; words].into_boxed_slice();
        let mut pointers = Vec::with_capacity(args.len());
        let mut next = values.as_mut_ptr();
        for arg in args {
            // SAFETY: `values` has room for every argument rounded up to whole words.
            unsafe {
                next.cast::<u8>().copy_from_nonoverlapping(arg.as_ptr(), arg.len());
                pointers.push(next.cast());
                next = next.add(arg.len().div_ceil(WORD));
            }
        }
        Ok(Self {
            kernel: kernel.clone(),
            config,
            deadline: options.deadline,
            live_blocks: (options.max_threads / threads).max(1),
            _values: values,
            args: pointers.into_boxed_slice(),
            stop: AtomicU8::new(Stop::No as u8),
            forced: AtomicBool::new(false),
            error: Mutex::new(None),
            result: Mutex::new(None),
            finished: Condvar::new(),
        })
    }

    pub(super) fn blocks(&self) -> u32 {
        self.config.grid.iter().product()
    }

    /// Returns how many of the blocks `first`, `first + step`, ... may be live together.
    pub(super) fn live_blocks_of(&self, first: u32, step: usize) -> usize {
        let share = self.live_blocks.saturating_sub(u64::from(first)).div_ceil(step as u64);
        usize::try_from(share).unwrap_or(usize::MAX).max(1)
    }

    /// Returns what a kernel's entry takes. It only reads through it.
    pub(super) fn args(&self) -> *mut *mut c_void {
        self.args.as_ptr().cast_mut()
    }

    pub(super) fn stop(&self) -> Stop {
        match self.stop.load(Ordering::Acquire) {
            0 => Stop::No,
            1 => Stop::Failed,
            _ => Stop::Deadline,
        }
    }

    /// Stops the launch; the first reason counts.
    pub(super) fn request_stop(&self, why: Stop) {
        // A reason that is already there stays.
        let _ = self.stop.compare_exchange(Stop::No as u8, why as u8, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns whether threads are to be ended wherever they are.
    pub(super) fn is_forced(&self) -> bool {
        self.forced.load(Ordering::Relaxed)
    }

    pub(super) fn error(&self, position: Position, kind: KernelErrorKind) -> KernelError {
        KernelError { kernel: self.kernel.name().to_owned(), position, kind }
    }

    pub(super) fn finish(&self) -> Result<(), KernelError> {
        let result = lock(&self.error).take().map_or(Ok(()), Err);
        *lock(&self.result) = Some(result.clone());
        self.finished.notify_all();
        result
    }
}

/// A launch that was queued.
#[derive(Clone)]
pub struct LaunchHandle(pub(super) Arc<Launch>);

impl LaunchHandle {
    /// Waits until the kernel has ended, which it does at its deadline at the latest.
    ///
    /// # Errors
    ///
    /// The [`KernelError`] that ended it; the same one at each call.
    pub fn wait(&self) -> Result<(), KernelError> {
        let mut result = lock(&self.0.result);
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            result = self.0.finished.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns whether the kernel has ended.
    pub fn is_finished(&self) -> bool {
        lock(&self.0.result).is_some()
    }
}

impl fmt::Debug for LaunchHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kernel, config) = (self.0.kernel.name(), &self.0.config);
        f.debug_struct("LaunchHandle").field("kernel", &kernel).field("config", config).finish_non_exhaustive()
    }
}

/// Locks `mutex`. A panic elsewhere does not make what the lock protects unusable: every update of
/// it is complete at each step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
