//! The executor: a queue of launches, the workers that run them, and the watchdog that stops what
//! runs too long.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::{KernelError, KernelErrorKind, LaunchError, Position};
use super::launch::{ExecutorOptions, Launch, LaunchConfig, LaunchHandle, Stop, lock};
use super::module::Kernel;
use super::stack::{self, Guards};
use super::trap::{self, ThreadSetup};
use super::worker::{Outcome, Worker};

/// How often the watchdog signals threads that are to stop.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(1);

/// After this many signals a thread is stopped even in the middle of a library function.
const PATIENCE: u32 = 1000;

/// An idle worker gives memory back after so long.
const TRIM_AFTER: Duration = Duration::from_millis(100);

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
    /// A launch began while the watchdog slept without a limit, one is to stop, or the executor
    /// shuts down.
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
    /// [`LaunchError::Option`] for an option out of its range; [`LaunchError::Thread`] or
    /// [`LaunchError::Signal`] if the system refuses a thread or a signal handler.
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
        for index in (0..).take(workers) {
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

    /// Returns the options the executor was made with.
    pub fn options(&self) -> &ExecutorOptions {
        &self.shared.options
    }

    /// Queues a kernel and returns at once. It begins when all earlier launches of this executor
    /// have ended, whether well or not.
    ///
    /// `args` holds the bytes of each argument, in the order of the kernel's parameters; they are
    /// copied.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if the shape is beyond a limit, or the arguments do not have the parameters'
    /// number and sizes.
    ///
    /// # Safety
    ///
    /// The arguments must have the types the kernel declares, and what they point to must stay
    /// valid until the launch has ended. Accesses to memory that is not mapped are caught; accesses
    /// to memory that is are not.
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

    /// Returns whether all launches have ended.
    pub fn is_idle(&self) -> bool {
        self.shared.lock().current.is_none()
    }

    /// Waits until all launches have ended.
    ///
    /// # Errors
    ///
    /// The first [`KernelError`] of a launch that ended since the last call, even if its handle has
    /// returned it.
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
            // A worker does not panic outside of `catch_unwind`; if it did, there is nothing left
            // to do for it.
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
        // Otherwise it wakes at the deadline of an earlier launch, which is before the one of this
        // launch.
        if state.watchdog_sleeps {
            self.watchdog.notify_all();
        }
    }

    /// Runs a worker's thread.
    fn work(&self, index: u32, guards: Guards) {
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
                Ok(_) => catch_unwind(AssertUnwindSafe(|| worker.run(&launch, index, self.options.workers)))
                    .unwrap_or_else(|panic| {
                        worker.abandon();
                        internal(&launch, panic_text(&*panic))
                    }),
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

    /// Notes that a worker has run its share of the current launch.
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

    /// Runs the watchdog's thread: stops launches at their deadline, or when a worker failed.
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
        // SAFETY: the workers live until the executor is dropped, after all launches; the handler
        // ignores a signal that is late.
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
