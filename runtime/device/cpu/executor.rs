//! The executor: a queue of launches, the workers that run them, and the watchdog that stops what runs too long.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::{KernelError, KernelErrorKind, LaunchError, Position};
use super::module::Kernel;
use super::stack::{self, Guards};
use super::trap::{self, ThreadSetup};
use super::worker::{Outcome, Worker};
use super::{MAX_BLOCK_THREADS, MAX_SHARED_BYTES};

/// How often the watchdog signals threads that are to stop.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(1);

/// After so many signals a thread is stopped even in the middle of a library function.
const PATIENCE: u32 = 1000;

/// An idle worker gives memory back after so long.
const TRIM_AFTER: Duration = Duration::from_millis(100);

/// A stack occupies at least one page, often two.
const PAGES_PER_THREAD: u64 = 2;

/// How an [`Executor`] is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Operating system threads that run kernels: 1 to 64. The blocks of a launch are dealt out to them in turn.
    pub workers: usize,
    /// Address space of each GPU thread's stack, 16 KiB to 64 MiB. One page of it is a guard, and up to 2 KiB at the top stay unused.
    pub stack_bytes: usize,
    /// How long a kernel may run before it is stopped with an error.
    pub deadline: Duration,
    /// Most threads of one launch, which are all live together.
    pub max_threads: u64,
}

impl Default for ExecutorOptions {
    /// One worker, stacks of 64 KiB, a deadline of 10 minutes, and at most 65536 threads, or as many as have stacks in half of the
    /// machine's memory.
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
    fn check(&self) -> Result<(), LaunchError> {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z; x varies fastest.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; x varies fastest. At most [`MAX_BLOCK_THREADS`], or what the kernel was declared with.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes, at most [`MAX_SHARED_BYTES`].
    pub shared_bytes: usize,
    /// All blocks run at the same time, so that they may wait for each other; more than fit the device are refused with the limit. The
    /// `cpu` device runs every launch so.
    pub cooperative: bool,
}

impl LaunchConfig {
    /// A row of `blocks` blocks of `threads` threads, without dynamic shared memory.
    pub fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0, cooperative: false }
    }

    /// The same shape, launched so that all blocks run at the same time.
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
    /// The values, each at a multiple of 16 bytes; `args` points into it.
    _values: Box<[u128]>,
    args: Box<[*mut c_void]>,
    stop: AtomicU8,
    forced: AtomicBool,
    error: Mutex<Option<KernelError>>,
    result: Mutex<Option<Result<(), KernelError>>>,
    finished: Condvar,
}

// SAFETY: the pointers in `args` point into `values`, which nothing writes after construction.
unsafe impl Send for Launch {}
// SAFETY: as above; all else is Sync.
unsafe impl Sync for Launch {}

impl Launch {
    fn new(
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
        if blocks * threads > options.max_threads {
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

    /// What a kernel's entry takes. It only reads through it.
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
    fn request_stop(&self, why: Stop) {
        // A reason that is already there stays.
        let _ = self.stop.compare_exchange(Stop::No as u8, why as u8, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether threads are to be ended wherever they are.
    pub(super) fn is_forced(&self) -> bool {
        self.forced.load(Ordering::Relaxed)
    }

    pub(super) fn error(&self, position: Position, kind: KernelErrorKind) -> KernelError {
        KernelError { kernel: self.kernel.name().to_owned(), position, kind }
    }

    fn finish(&self) -> Result<(), KernelError> {
        let result = lock(&self.error).take().map_or(Ok(()), Err);
        *lock(&self.result) = Some(result.clone());
        self.finished.notify_all();
        result
    }
}

/// A launch that was queued.
#[derive(Clone)]
pub struct LaunchHandle(Arc<Launch>);

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

    /// Whether the kernel has ended.
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

/// Runs kernels on threads of its own. See the [module](super).
pub struct Executor {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    options: ExecutorOptions,
    state: Mutex<State>,
    /// A launch began, or the executor shuts down.
    work: Condvar,
    /// All launches have ended.
    idle: Condvar,
    /// A launch began while the watchdog slept without a limit, one is to stop, or the executor shuts down.
    watchdog: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Launch>>,
    current: Option<Running>,
    /// Launches begun so far; tells a worker whether `current` is new to it.
    begun: u64,
    /// The first error since the last `synchronize`.
    error: Option<KernelError>,
    watchdog_sleeps: bool,
    shutdown: bool,
    /// Kernel ids of the workers' threads.
    workers: Vec<libc::pid_t>,
}

struct Running {
    launch: Arc<Launch>,
    /// Workers that have not finished their share.
    remaining: usize,
    /// `None`: later than the clock can tell.
    ends: Option<Instant>,
    signals: u32,
}

impl Executor {
    /// Starts the workers and the watchdog.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Option`] for an option out of its range; [`LaunchError::Thread`] or [`LaunchError::Signal`] if the system
    /// refuses a thread or a signal handler.
    pub fn new(options: ExecutorOptions) -> Result<Self, LaunchError> {
        Self::with_guards(options, stack::best_guards())
    }

    pub(super) fn with_guards(options: ExecutorOptions, guards: Guards) -> Result<Self, LaunchError> {
        options.check()?;
        trap::install_handlers()?;
        let workers = options.workers;
        let shared = Arc::new(Shared {
            options,
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            idle: Condvar::new(),
            watchdog: Condvar::new(),
        });
        let mut executor = Self { shared, threads: Vec::with_capacity(workers + 1) };
        for index in 0..workers {
            executor.spawn(format!("simt-{index}"), move |shared| shared.work(index, guards))?;
        }
        executor.spawn("simt-watchdog".to_owned(), |shared| shared.watch())?;
        Ok(executor)
    }

    fn spawn(&mut self, name: String, body: impl FnOnce(&Shared) + Send + 'static) -> Result<(), LaunchError> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name).spawn(move || body(&shared));
        self.threads.push(thread.map_err(|error| LaunchError::Thread { reason: error.to_string() })?);
        Ok(())
    }

    /// The options the executor was made with.
    pub fn options(&self) -> &ExecutorOptions {
        &self.shared.options
    }

    /// Queues a kernel and returns at once. It begins when all earlier launches of this executor have ended, whether well or not.
    ///
    /// `args` holds the bytes of each argument, in the order of the kernel's parameters; they are copied.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if the shape is beyond a limit, or the arguments do not have the parameters' number and sizes.
    ///
    /// # Safety
    ///
    /// The arguments must have the types the kernel declares, and what they point to must stay valid until the launch has ended.
    /// Accesses to memory that is not mapped are caught; accesses to memory that is are not.
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        args: &[&[u8]],
    ) -> Result<LaunchHandle, LaunchError> {
        let launch = Arc::new(Launch::new(kernel, config, args, &self.shared.options)?);
        let mut state = self.shared.lock();
        state.queue.push_back(Arc::clone(&launch));
        if state.current.is_none() {
            self.shared.begin_next(&mut state);
        }
        Ok(LaunchHandle(launch))
    }

    /// Whether all launches have ended.
    pub fn is_idle(&self) -> bool {
        self.shared.lock().current.is_none()
    }

    /// Waits until all launches have ended.
    ///
    /// # Errors
    ///
    /// The first [`KernelError`] of a launch that ended since the last call, also if its handle has returned it.
    pub fn synchronize(&self) -> Result<(), KernelError> {
        let mut state = self.shared.lock();
        while state.current.is_some() {
            state = self.shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map_or(Ok(()), Err)
    }
}

impl Drop for Executor {
    /// Waits until all launches have ended.
    fn drop(&mut self) {
        self.shared.lock().shutdown = true;
        self.shared.work.notify_all();
        self.shared.watchdog.notify_all();
        for thread in self.threads.drain(..) {
            // A worker does not panic outside of `catch_unwind`; if it did, there is nothing left to do for it.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn begin_next(&self, state: &mut State) {
        let Some(launch) = state.queue.pop_front() else {
            state.current = None;
            self.idle.notify_all();
            if state.shutdown {
                self.work.notify_all();
                self.watchdog.notify_all();
            }
            return;
        };
        let ends = Instant::now().checked_add(launch.deadline);
        state.current = Some(Running { launch, remaining: self.options.workers, ends, signals: 0 });
        state.begun += 1;
        self.work.notify_all();
        // Otherwise it wakes at the deadline of an earlier launch, which is before the one of this launch.
        if state.watchdog_sleeps {
            self.watchdog.notify_all();
        }
    }

    /// A worker's thread.
    fn work(&self, index: usize, guards: Guards) {
        let mut worker = Worker::new(self.options.stack_bytes, guards);
        let setup = ThreadSetup::new(worker.context());
        // SAFETY: no preconditions; a failure only makes short sleeps longer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        // SAFETY: no preconditions.
        let id = unsafe { libc::gettid() };
        self.lock().workers.push(id);
        let mut seen = 0;
        while let Some(launch) = self.next(&mut seen, &mut worker) {
            let outcome = match &setup {
                Ok(_) => {
                    catch_unwind(AssertUnwindSafe(|| worker.run(&launch, index as u32, self.options.workers as u32)))
                        .unwrap_or_else(|panic| {
                            worker.abandon();
                            internal(&launch, panic_text(&*panic))
                        })
                }
                Err(error) => internal(&launch, error.to_string()),
            };
            self.finish(&launch, outcome);
        }
    }

    /// Waits for a launch that this worker has not seen; `None`: the executor shuts down.
    fn next(&self, seen: &mut u64, worker: &mut Worker) -> Option<Arc<Launch>> {
        let mut state = self.lock();
        loop {
            match &state.current {
                Some(running) if state.begun != *seen => {
                    *seen = state.begun;
                    return Some(Arc::clone(&running.launch));
                }
                None if state.shutdown => return None,
                _ => {}
            }
            if !worker.wants_trim() {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (guard, timeout) = self.work.wait_timeout(state, TRIM_AFTER).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timeout.timed_out() && state.current.is_none() {
                drop(state);
                worker.trim();
                state = self.lock();
            }
        }
    }

    /// A worker has run its share of the current launch.
    fn finish(&self, launch: &Launch, outcome: Outcome) {
        let failed = matches!(outcome, Outcome::Failed(_));
        if let Outcome::Failed(error) = outcome {
            lock(&launch.error).get_or_insert(*error);
            launch.request_stop(Stop::Failed);
        }
        let mut state = self.lock();
        let Some(running) = &mut state.current else { return };
        running.remaining -= 1;
        if running.remaining == 0 {
            if let Err(error) = launch.finish() {
                state.error.get_or_insert(error);
            }
            self.begin_next(&mut state);
        } else if failed {
            // Other workers may be in a loop that does not look up.
            self.watchdog.notify_all();
        }
    }

    /// The watchdog's thread: stops launches at their deadline, or when a worker failed.
    fn watch(&self) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let State { current, workers, shutdown, .. } = &mut *state;
            let limit = match current {
                None if *shutdown => return,
                None => None,
                Some(running) => {
                    if running.ends.is_some_and(|ends| ends <= now) {
                        running.launch.request_stop(Stop::Deadline);
                    }
                    if running.launch.stop() == Stop::No {
                        running.ends.map(|ends| ends - now)
                    } else {
                        interrupt(running, workers);
                        Some(INTERRUPT_INTERVAL)
                    }
                }
            };
            state.watchdog_sleeps = limit.is_none();
            state = match limit {
                None => self.watchdog.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => self.watchdog.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

/// Signals all workers; those that run device code leave it.
fn interrupt(running: &mut Running, workers: &[libc::pid_t]) {
    running.signals += 1;
    if running.signals > PATIENCE {
        running.launch.forced.store(true, Ordering::Relaxed);
    }
    for &worker in workers {
        // SAFETY: the workers live until the executor is dropped, after all launches; the handler ignores a signal that is late.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), worker, trap::interrupt_signal()) };
    }
}

fn internal(launch: &Launch, what: String) -> Outcome {
    launch.error(Position { block: [0; 3], thread: [0; 3] }, KernelErrorKind::Internal { what }).into()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

/// A panic elsewhere does not make what the lock protects unusable: every update of it is complete at each step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
