//! A worker: the operating system thread that runs the blocks assigned to it, one GPU thread at a
//! time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use corosensei::{Coroutine, CoroutineResult};

use super::WARP_LANES;
use super::activity;
use super::block::{Block, Thread, Warp};
use super::context::{Context, Trap};
use super::error::{KernelError, KernelErrorKind, Position};
use super::interface::{self, ThreadView};
use super::launch::{Launch, Stop};
use super::stack::{Canary, Guards, StackPool};

/// How often a warp's lanes are resumed before the next warp has its turn, and a block's warps
/// before the next block.
const WARP_ROUNDS: u32 = 64;
const BLOCK_ROUNDS: u32 = 64;

/// A worker that waits for others gives its core away at once, and sleeps after so long: yielding
/// takes a whole core where no other thread wants it, and work from others where one does.
const SLEEP_AFTER: Duration = Duration::from_micros(100);
/// What part of the wait so far one sleep takes: sleeping makes a wait longer by an eighth at most,
/// and by the 50 us that Linux adds.
const SLEEPS_IN_WAIT: u32 = 8;
const LONGEST_SLEEP: Duration = Duration::from_micros(100);

/// Among the sweeps in which some threads paused and others worked, one in this many gives the core
/// away.
const MIXED_SWEEPS_PER_YIELD: u32 = 16;

/// Threads for which an idle worker keeps its bookkeeping.
const KEPT_THREADS: usize = 8192;

/// How a worker's share of a launch ended.
pub(super) enum Outcome {
    Done,
    /// One of this worker's threads failed.
    Failed(Box<KernelError>),
    /// The launch was stopped because another worker's thread failed.
    Stopped,
}

impl From<KernelError> for Outcome {
    fn from(error: KernelError) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// See the module.
pub(super) struct Worker {
    machine: Machine,
    // Boxed, because coroutines and device code point to blocks.
    #[allow(clippy::vec_box)]
    live: Vec<Box<Block>>,
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Block>>,
}

/// What runs threads.
struct Machine {
    context: Box<Context>,
    pool: StackPool,
    check_canaries: bool,
    resumes: u64,
}

impl Worker {
    /// Returns a worker on the calling thread, where it must stay.
    pub(super) fn new(stack_bytes: usize, guards: Guards) -> Self {
        let pool = StackPool::new(stack_bytes, guards);
        let check_canaries = pool.has_canaries();
        let machine = Machine { context: Box::new(Context::new()), pool, check_canaries, resumes: 0 };
        Self { machine, live: Vec::new(), spare: Vec::new() }
    }

    pub(super) fn context(&self) -> &Context {
        &self.machine.context
    }

    /// Runs the blocks `first`, `first + step`, ... of a launch to their end: as many together as
    /// the launch may have live, and the others in their order as these end.
    pub(super) fn run(&mut self, launch: &Launch, first: u32, step: usize) -> Outcome {
        let mut ranks = (first..launch.blocks()).step_by(step);
        let together = launch.live_blocks_of(first, step);
        for rank in ranks.by_ref().take(together) {
            let mut block = self.spare.pop().unwrap_or_else(|| Box::new(Block::new()));
            prepare(&mut block, rank, launch);
            self.live.push(block);
        }
        self.machine.context.launch.set(launch);
        let _running = activity::Running::begin();
        let outcome = self.sweep(launch, ranks).err().unwrap_or(Outcome::Done);
        if !matches!(outcome, Outcome::Done) {
            self.abandon();
        }
        self.machine.context.set_current(std::ptr::null());
        self.machine.context.launch.set(std::ptr::null());
        outcome
    }

    fn sweep(&mut self, launch: &Launch, mut ranks: impl Iterator<Item = u32>) -> Result<(), Outcome> {
        let mut idle = Idle::default();
        while !self.live.is_empty() {
            match launch.stop() {
                Stop::No => {}
                Stop::Failed => return Err(Outcome::Stopped),
                Stop::Deadline => return Err(self.deadline(launch)),
            }
            let (resumes, pauses) = (self.machine.resumes, self.machine.context.pauses.get());
            let mut i = 0;
            while let Some(block) = self.live.get_mut(i) {
                if let Err(failure) = self.machine.run_block(block, launch) {
                    return Err(match failure {
                        Failure::Thread(error) => Outcome::from(error),
                        Failure::Interrupted(position) => match launch.stop() {
                            Stop::Deadline => {
                                self.deadline_at(launch, position, "the named one did not wait".to_owned())
                            }
                            Stop::Failed | Stop::No => Outcome::Stopped,
                        },
                    });
                }
                if block.live.get() != 0 {
                    i += 1;
                } else if let Some(rank) = ranks.next() {
                    prepare(block, rank, launch);
                    i += 1;
                } else {
                    self.spare.push(self.live.swap_remove(i));
                }
            }
            let (resumes, pauses) = (self.machine.resumes - resumes, self.machine.context.pauses.get() - pauses);
            activity::swept(resumes, pauses);
            idle.after_sweep(resumes, pauses);
        }
        Ok(())
    }

    /// Returns the outcome where the deadline passed while all threads were waiting or between two
    /// waits.
    fn deadline(&self, launch: &Launch) -> Outcome {
        let Some(block) = self.live.first() else { return Outcome::Stopped };
        let state = format!("in the named block {}", block.describe_waiters());
        self.deadline_at(launch, block.stuck().0, state)
    }

    fn deadline_at(&self, launch: &Launch, position: Position, state: String) -> Outcome {
        let live = self.live.iter().map(|block| u64::from(block.live.get())).sum();
        let kind = KernelErrorKind::Deadline { deadline: launch.deadline, live, state };
        launch.error(position, kind).into()
    }

    /// Drops all threads of a launch that failed where they stand.
    pub(super) fn abandon(&mut self) {
        self.machine.context.in_device.store(false, Ordering::Relaxed);
        self.machine.context.failed.set(false);
        self.machine.context.failure.take();
        for block in self.live.drain(..) {
            for thread in block.threads() {
                self.machine.reclaim(thread);
            }
            self.spare.push(block);
        }
        self.machine.context.set_current(std::ptr::null());
        interface::forget_exceptions();
    }

    /// Returns whether [`Self::trim`] has something to give back.
    pub(super) fn wants_trim(&self) -> bool {
        self.machine.pool.wants_trim() || self.spare.iter().map(|block| block.capacity()).sum::<usize>() > KEPT_THREADS
    }

    /// Gives the memory that a large launch left back to the system.
    pub(super) fn trim(&mut self) {
        self.machine.pool.trim();
        let mut kept = 0;
        self.spare.retain(|block| {
            kept += block.capacity();
            kept <= KEPT_THREADS
        });
        self.spare.shrink_to_fit();
        self.live.shrink_to_fit();
    }
}

/// Makes a block that has no threads the one of a rank.
fn prepare(block: &mut Block, rank: u32, launch: &Launch) {
    let config = &launch.config;
    block.prepare(rank, config.grid, config.block, config.shared_bytes, interface::shared_slots());
}

/// Why a thread's turn ended the launch.
enum Failure {
    Thread(KernelError),
    /// The watchdog ended the thread.
    Interrupted(Position),
}

impl Machine {
    /// Lets every thread of a block that can run do so, until all of them wait.
    fn run_block(&mut self, block: &Block, launch: &Launch) -> Result<(), Failure> {
        block.wake_paused();
        for _ in 0..BLOCK_ROUNDS {
            let mut warps = block.ready_warps.replace(0);
            if warps == 0 {
                break;
            }
            while warps != 0 {
                let warp = block.warp(warps.trailing_zeros());
                warps &= warps - 1;
                self.run_warp(block, warp, launch)?;
            }
        }
        if block.live.get() != 0 && block.ready_warps.get() == 0 && block.paused_warps.get() == 0 {
            return Err(Failure::Thread(deadlock(block, launch)));
        }
        Ok(())
    }

    fn run_warp(&mut self, block: &Block, warp: &Warp, launch: &Launch) -> Result<(), Failure> {
        for _ in 0..WARP_ROUNDS {
            // Every lane that is ready now has its turn before one has a second.
            let mut batch = warp.ready.get();
            if batch == 0 {
                if warp.gathering.get() == 0 {
                    return Ok(());
                }
                warp.let_gatherers_go();
                continue;
            }
            self.resumes += u64::from(batch.count_ones());
            while batch != 0 {
                let lane = batch.trailing_zeros();
                batch &= batch - 1;
                warp.ready.set(warp.ready.get() & !(1 << lane));
                self.resume(block, warp, lane, launch)?;
            }
        }
        warp.end_turn();
        if warp.ready.get() | warp.gathering.get() != 0 {
            block.ready_warps.set(block.ready_warps.get() | 1 << warp.index());
        }
        Ok(())
    }

    #[inline]
    fn resume(&mut self, block: &Block, warp: &Warp, lane: u32, launch: &Launch) -> Result<(), Failure> {
        let thread = block.thread(warp, lane);
        let bit = 1 << lane;
        if warp.unstarted.get() & bit != 0 {
            warp.unstarted.set(warp.unstarted.get() & !bit);
            self.start(block, warp, lane, launch)?;
        }
        self.context.set_current(thread.view.get());
        // SAFETY: a thread that was started and has not exited has a coroutine, which only this
        // worker touches.
        let coroutine = unsafe { (*thread.coroutine.get()).as_mut().unwrap_unchecked() };
        let result = coroutine.resume(());
        if self.context.failed.get() || self.context.trap.is_set() {
            return Err(self.failure(block.position(warp, lane), launch));
        }
        if self.check_canaries {
            self.check_canary(thread, block.position(warp, lane), launch)?;
        }
        if let CoroutineResult::Return(()) = result {
            self.reclaim(thread);
            block.exit(warp, bit);
        }
        Ok(())
    }

    fn start(&mut self, block: &Block, warp: &Warp, lane: u32, launch: &Launch) -> Result<(), Failure> {
        let stack = self.pool.take().map_err(|error| {
            let kind = KernelErrorKind::StackMemory { reason: error.to_string() };
            Failure::Thread(launch.error(block.position(warp, lane), kind))
        })?;
        let thread = block.thread(warp, lane);
        let rank = warp.index() * WARP_LANES + lane;
        let view = ThreadView { thread_idx: block.thread_idx(rank), lane, rank, reserved0: 0, block: block.view() };
        // SAFETY: the thread does not run, so nothing else looks at its view.
        unsafe { *thread.view.get() = view };
        thread.bit.set(1 << lane);
        thread.warp.set(warp);
        thread.block.set(block);
        thread.context.set(&raw const *self.context);
        let guard = stack.guard();
        thread.guard.set((guard.start, guard.end));
        thread.canary.set(stack.canary());
        let body = Body { thread, entry: launch.kernel.entry(), args: launch.args() };
        let coroutine = Coroutine::with_stack(stack, move |yielder, ()| {
            let Body { thread, entry, args } = body;
            // SAFETY: the thread outlives its coroutine. The entry reads the arguments the launch
            // checked, and the launch outlives all of its threads. C++ exceptions end inside of the
            // entry.
            unsafe {
                (*thread).yielder.set(yielder);
                (*(*thread).context.get()).in_device.store(true, Ordering::Relaxed);
                entry(args);
                (*(*thread).context.get()).in_device.store(false, Ordering::Relaxed);
            }
        });
        thread.trap.set(Some(coroutine.trap_handler()));
        // SAFETY: as above; the cell was empty.
        unsafe { *thread.coroutine.get() = Some(coroutine) };
        Ok(())
    }

    /// Takes a thread's stack back. A coroutine that has not ended is dropped where it stands.
    fn reclaim(&mut self, thread: &Thread) {
        // SAFETY: the thread does not run, and only this worker touches its coroutine.
        let coroutine = unsafe { (*thread.coroutine.get()).take() };
        thread.trap.set(None);
        if let Some(mut coroutine) = coroutine {
            // SAFETY: nothing resumes it again. What its frames own is leaked, which a failed
            // kernel is documented to do.
            unsafe { coroutine.force_reset() };
            self.pool.give(coroutine.into_stack());
        }
    }

    #[cold]
    fn failure(&mut self, position: Position, launch: &Launch) -> Failure {
        self.context.in_device.store(false, Ordering::Relaxed);
        let reported = self.context.failure.take();
        let kind = match self.context.trap.take(self.pool.usable_bytes()) {
            Some(Trap::Fault(kind)) => kind,
            Some(Trap::Interrupted) => return Failure::Interrupted(position),
            None => reported.unwrap_or(KernelErrorKind::Internal { what: "a failure without a reason".to_owned() }),
        };
        Failure::Thread(launch.error(position, kind))
    }

    #[cold]
    fn check_canary(&self, thread: &Thread, position: Position, launch: &Launch) -> Result<(), Failure> {
        if thread.canary.get().is_none_or(Canary::is_alive) {
            return Ok(());
        }
        let kind = KernelErrorKind::StackOverflow { stack_bytes: self.pool.usable_bytes() };
        Err(Failure::Thread(launch.error(position, kind)))
    }
}

/// What a coroutine needs to begin.
struct Body {
    thread: *const Thread,
    entry: interface::Entry,
    args: *mut *mut std::ffi::c_void,
}

#[cold]
fn deadlock(block: &Block, launch: &Launch) -> KernelError {
    let (position, mismatch) = block.stuck();
    let (live, waiting) = (block.live.get(), block.describe_waiters());
    let kind = if mismatch {
        let detail = format!("lanes wait for each other with different masks: {waiting}");
        KernelErrorKind::WarpOperation { detail }
    } else {
        KernelErrorKind::Deadlock { live, waiting }
    };
    launch.error(position, kind)
}

/// What a worker does between sweeps when its threads wait for something outside of them.
#[derive(Default)]
struct Idle {
    mixed: u32,
    quiet: u32,
    since: Option<Instant>,
}

impl Idle {
    #[inline]
    fn after_sweep(&mut self, resumes: u64, pauses: u64) {
        if pauses != 0 {
            self.waiting(resumes == pauses);
        } else {
            self.since = None;
        }
    }

    /// Notes that some threads paused; `quiet`: nothing else happened.
    fn waiting(&mut self, quiet: bool) {
        if !quiet {
            self.since = None;
            self.mixed = self.mixed.wrapping_add(1);
            if self.mixed.is_multiple_of(MIXED_SWEEPS_PER_YIELD) {
                std::thread::yield_now();
            }
            return;
        }
        let since = *self.since.get_or_insert_with(|| {
            self.quiet = 0;
            Instant::now()
        });
        self.quiet = self.quiet.wrapping_add(1);
        if self.quiet.is_multiple_of(8) {
            let waited = since.elapsed();
            if waited > SLEEP_AFTER {
                std::thread::sleep((waited / SLEEPS_IN_WAIT).min(LONGEST_SLEEP));
                // Sleeps from now on at every sweep.
                self.quiet = 7;
                return;
            }
        }
        std::thread::yield_now();
    }
}
