//! Slices of the engine's kernel: how they are launched, cancelled and waited for, and how the
//! tables are read and written.

use crate::soft::accelerator::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, Pace};
use crate::soft::control::MkeyEntry;
use crate::soft::copying::{CopyMode, Copying};
use crate::soft::limits::{HOST_DOORBELL_BYTES, PAGE_BELLS, REGISTER_STRIDE, REGISTERS_PER_PAGE};
use crate::soft::tables::{self, Gate, Key, Plain, QpContext, Slice, Tables};
use crate::wire::doorbell;
use std::collections::{HashMap, VecDeque};
use std::mem::{ManuallyDrop, offset_of};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// How long a slice may take to notice that it is to end before the HCA counts as dead.
pub(super) const PAUSE_LIMIT: Duration = Duration::from_secs(20);
/// For so long after slices found room again they are waited for less patiently.
pub(super) const WARY: Duration = Duration::from_secs(1);
pub(super) const WARY_PATIENCE: Duration = Duration::from_millis(1);
/// How long the end of the HCA waits for slices that have been cancelled.
pub(super) const DROP_LIMIT: Duration = Duration::from_secs(2);

/// A key of a peer in the tables.
#[derive(Debug)]
pub(in crate::soft) struct Published {
    pub(super) peer: usize,
    pub(super) umem: u32,
    pub(super) entry: *const MkeyEntry,
    pub(super) seq: u32,
    pub(super) key: Key,
}

/// What an engine with an accelerator has besides.
#[derive(Debug)]
pub(in crate::soft) struct GpuEngine {
    pub(super) accelerator: Arc<dyn Accelerator>,
    pub(super) memory: Box<dyn AcceleratorMemory>,
    pub(super) rung: Ringer,
    /// Where the host rings, if it does; [`HOST_DOORBELL_BYTES`].
    pub(super) host_doorbells: Option<Box<dyn AcceleratorMemory>>,
    /// Complete everything, execute nothing.
    pub(super) null: bool,
    /// Where slices report, and where those do that take turns with other kernels.
    pub(super) gates: ManuallyDrop<[Box<dyn AcceleratorMemory>; 2]>,
    /// Slices launched so far.
    pub(super) slices: u64,
    /// Numbers of those that had not ended when that was last looked at.
    pub(super) running: VecDeque<u64>,
    /// When a slice last ended, or was launched where none was.
    pub(super) moved: Instant,
    /// Slices that have ended.
    pub(super) ended: u64,
    /// Those whose reports were taken in.
    pub(super) reported: u64,
    pub(super) mode: CopyMode,
    /// While the engine's thread executes.
    pub(super) copying: Option<Copying>,
    /// Not before it was needed.
    pub(super) spare: Option<Copying>,
    /// When slices found room again.
    pub(super) resumed: Option<Instant>,
    /// When the engine's thread began to execute, for how long it does so at least, and when a
    /// slice was launched to see whether there is room.
    pub(super) began: Instant,
    pub(super) stay: Duration,
    pub(super) probed: Option<Instant>,
    /// It was said that there is no room.
    pub(super) told: bool,
    /// Passes by copies, slices that took turns, and the time that those took.
    pub(super) passes: u64,
    pub(super) asides: u64,
    pub(super) aside_time: Duration,
    /// Events were announced and not there yet.
    pub(super) unread: bool,
    pub(super) events: u64,
    pub(super) served: u64,
    /// Doorbells that the host has rung itself.
    pub(super) rings: u64,
    /// Doorbell registers to look at.
    pub(super) registers: u32,
    /// Whether some QP has no doorbell record.
    pub(super) without_record: bool,
    pub(super) published: HashMap<u32, Published>,
    /// Raised whenever something is written that a QP may have waited for.
    pub(super) changes: u64,
}

// SAFETY: the pointers name entries of peers' control segments, which stay mapped while the engine
// lives.
unsafe impl Send for GpuEngine {}

/// Which side rings, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::soft) enum Ringer {
    /// Kernels, in the tables: a register for each QP.
    ByKernels,
    /// The host, in its memory: a register for each QP.
    ByHost,
    /// The poster rings, in pages as on a card, where QPs share registers. The engine's thread
    /// looks at those, and rings for each QP that may be meant in a register as for
    /// [`ByHost`](Self::ByHost), that of the QP's place in the tables.
    LikeCards,
}

impl GpuEngine {
    /// Returns the bytes of its memory: of the accelerator, and of the host.
    pub(in crate::soft) fn memory_bytes(&self) -> (u64, u64) {
        let on_host = self.gates.iter().chain(&self.host_doorbells).map(|memory| memory.bytes()).sum();
        (self.memory.bytes(), on_host)
    }

    pub(in crate::soft) fn new(
        accelerator: Arc<dyn Accelerator>,
        rung: Ringer,
        null: bool,
        mode: CopyMode,
    ) -> AcceleratorResult<Self> {
        let memory = accelerator.allocate(size_of::<Tables>() as u64)?;
        let host_doorbells = match rung {
            Ringer::ByKernels => None,
            Ringer::ByHost | Ringer::LikeCards => Some(accelerator.host_memory(HOST_DOORBELL_BYTES as u64)?),
        };
        let gate = || accelerator.host_memory(size_of::<Gate>() as u64);
        let gates = ManuallyDrop::new([gate()?, gate()?]);
        let mode = if null { CopyMode::Never } else { mode };
        // Not when it is needed: then kernels run that it might have to wait for.
        let spare = match mode {
            CopyMode::Never => None,
            CopyMode::WhenNeeded | CopyMode::Always => Some(Copying::new(accelerator.copy_engine()?)),
        };
        let mut gpu = Self {
            accelerator,
            memory,
            rung,
            host_doorbells,
            null,
            gates,
            slices: 0,
            running: VecDeque::new(),
            moved: Instant::now(),
            ended: 0,
            reported: 0,
            mode,
            copying: None,
            spare,
            resumed: None,
            began: Instant::now(),
            stay: Duration::ZERO,
            probed: None,
            told: false,
            passes: 0,
            asides: 0,
            aside_time: Duration::ZERO,
            unread: false,
            events: 0,
            served: 0,
            rings: 0,
            registers: 0,
            without_record: false,
            published: HashMap::new(),
            changes: 0,
        };
        // The first launch of a kernel may have to wait for kernels that run; later ones do not.
        gpu.launch(Duration::ZERO, Duration::ZERO)?;
        if gpu.spare.is_some() {
            gpu.launch_aside(Duration::ZERO, Duration::ZERO)?;
        }
        gpu.finish()?;
        Ok(gpu)
    }

    pub(super) fn at(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }

    /// Returns where doorbell page `uar` (from 1) is.
    pub(in crate::soft) fn page(&self, uar: u32) -> u64 {
        self.at(offset_of!(Tables, pages)) + u64::from(uar - 1) * size_of::<tables::Page>() as u64
    }

    pub(super) fn register(&self, bell: u32) -> u64 {
        let (page, register) = ((bell - 1) / PAGE_BELLS, (bell - 1) as usize % REGISTERS_PER_PAGE);
        self.page(page + 1) + (doorbell::FIRST_REGISTER + register * REGISTER_STRIDE) as u64
    }

    pub(super) fn qp(&self, qpn: u32) -> u64 {
        self.at(offset_of!(Tables, qps)) + tables::qp_place(qpn) * size_of::<QpContext>() as u64
    }

    pub(super) fn read<T: Plain>(&self, at: u64) -> AcceleratorResult<T> {
        let mut value = T::default();
        // SAFETY: any bytes are a value of T, and no other code looks at it.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>()) };
        // SAFETY: callers name a T in the tables.
        unsafe { self.accelerator.read(at, bytes) }?;
        Ok(value)
    }

    pub(super) fn write<T: Plain>(&self, at: u64, value: &T) -> AcceleratorResult<()> {
        let mut bytes = vec![0u8; size_of::<T>()];
        // SAFETY: both have the size of T. Padding, which may be uninitialised, is copied and not
        // looked at.
        unsafe { std::ptr::copy_nonoverlapping((&raw const *value).cast(), bytes.as_mut_ptr(), bytes.len()) };
        // SAFETY: callers name a T in the tables.
        unsafe { self.accelerator.write(at, &bytes) }
    }

    pub(super) fn gate(&self, aside: bool) -> &Gate {
        // SAFETY: it is that large, aligned to a page, lives as long as `self`, and any words are
        // its value.
        unsafe { &*(self.gates[usize::from(aside)].address() as *const Gate) }
    }

    pub(super) fn slice(&mut self, run: Duration, idle: Duration, aside: bool) -> Slice {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.slices += 1;
        Slice {
            tables: self.memory.address(),
            number: self.slices,
            run_ns: nanos(run),
            idle_ns: nanos(idle),
            registers: self.registers,
            null: u32::from(self.null),
            without_record: u32::from(self.without_record),
            reserved0: 0,
            host_doorbells: self.host_doorbells.as_ref().map_or(0, |memory| memory.address()),
            gate: self.gates[usize::from(aside)].address(),
        }
    }

    pub(super) fn launch(&mut self, run: Duration, idle: Duration) -> AcceleratorResult<()> {
        let slice = self.slice(run, idle, false);
        // SAFETY: the tables are dropped after all slices have ended or were cancelled, and so are
        // mappings; the gate after all have ended.
        unsafe { self.accelerator.launch(&slice) }?;
        if self.running.is_empty() {
            self.moved = Instant::now();
        }
        self.running.push_back(slice.number);
        Ok(())
    }

    /// Runs a slice that takes turns with other kernels, and waits until it has ended.
    pub(super) fn launch_aside(&mut self, run: Duration, idle: Duration) -> AcceleratorResult<()> {
        let slice = self.slice(run, idle, true);
        // SAFETY: it is waited for here.
        unsafe { self.accelerator.launch_aside(&slice) }?;
        let what = "a slice of the engine's kernel that takes turns with other kernels";
        self.wait_until(what, |gpu| {
            let blocks = &gpu.gate(true).blocks[..gpu.accelerator.blocks()];
            blocks.iter().all(|block| block.ended.load(Ordering::Acquire) == slice.number)
        })
    }

    /// Looks which slices have ended. Returns how many have not.
    pub(super) fn look(&mut self) -> AcceleratorResult<usize> {
        self.accelerator.check()?;
        let blocks = &self.gate(false).blocks[..self.accelerator.blocks()];
        let ended = blocks.iter().map(|block| block.ended.load(Ordering::Acquire)).min().unwrap_or(0);
        while self.running.front().is_some_and(|number| *number <= ended) {
            self.running.pop_front();
            self.ended += 1;
            self.moved = Instant::now();
        }
        Ok(self.running.len())
    }

    /// Returns whether no slice touches the tables, and none that was launched will.
    pub(super) fn quiet(&self) -> bool {
        let gate = self.gate(false);
        let cancelled = gate.cancelled.load(Ordering::Relaxed);
        let blocks = &gate.blocks[..self.accelerator.blocks()];
        self.running.back().is_none_or(|number| *number <= cancelled)
            && blocks.iter().all(|block| {
                // In this order: a block ends what it has started.
                let ended = block.ended.load(Ordering::Acquire);
                block.started.load(Ordering::Acquire) == ended
            })
    }

    /// Makes sure that no slice touches the tables until another is launched: cancels those that
    /// have not started, and waits for the others.
    pub(super) fn pause(&mut self) -> AcceleratorResult<()> {
        if self.running.is_empty() || self.look()? == 0 || self.quiet() {
            return Ok(());
        }
        // The block of a slice reports that it has started before it looks, so that one of the two
        // is seen.
        self.gate(false).cancelled.store(self.slices, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.quiet() {
            return Ok(());
        }
        self.write(self.at(offset_of!(Tables, control.leave)), &self.slices)?;
        self.wait_until("slices of the engine's kernel that have started", Self::quiet)
    }

    /// Waits until all slices have ended.
    pub(super) fn finish(&mut self) -> AcceleratorResult<()> {
        self.look()?;
        self.wait_until("slices of the engine's kernel", |gpu| {
            let ended = gpu.gate(false).blocks[..gpu.accelerator.blocks()].iter();
            let ended = ended.map(|block| block.ended.load(Ordering::Acquire)).min().unwrap_or(0);
            gpu.running.back().is_none_or(|number| *number <= ended)
        })?;
        self.look().map(|_| ())
    }

    pub(super) fn wait_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> AcceleratorResult<()> {
        let since = Instant::now();
        let look = self.accelerator.pace().look.min(Duration::from_micros(20));
        while !done(self) {
            self.accelerator.check()?;
            if since.elapsed() > PAUSE_LIMIT {
                return Err(AcceleratorError(format!(
                    "{what} did not end within {PAUSE_LIMIT:?}: kernels that wait for the network have to leave room on the GPU for it"
                )));
            }
            std::thread::sleep(look);
        }
        Ok(())
    }

    /// Returns whether slices have room again, while the engine's thread executes and those that
    /// had to wait have ended. After a change of hands that soon proved wrong, only if a slice
    /// finds room some time later, and at once: what made room may have been the end of one block
    /// of many.
    pub(super) fn has_room(&mut self) -> AcceleratorResult<bool> {
        if self.stay.is_zero() {
            return Ok(true);
        }
        if self.began.elapsed() < self.stay {
            return Ok(false);
        }
        if self.probed.is_some() {
            return Ok(true);
        }
        self.probed = Some(Instant::now());
        // Cancelled before it is launched: it starts, and does nothing.
        self.gate(false).cancelled.store(self.slices + 1, Ordering::SeqCst);
        self.launch(Duration::ZERO, Duration::ZERO)?;
        Ok(false)
    }

    /// Returns whether slices that were launched find no room.
    pub(super) fn is_kept_out(&self) -> bool {
        let Pace { run, patience, .. } = self.accelerator.pace();
        let wary = self.resumed.is_some_and(|resumed| resumed.elapsed() < WARY);
        let patience = if wary { patience.min(WARY_PATIENCE) } else { patience };
        !self.running.is_empty() && self.moved.elapsed() > run + patience
    }

    /// Returns a block of a QP's queue, if it has been fetched to be executed by copies.
    pub(in crate::soft) fn image(&self, qpn: u32, index: u64) -> Option<*const u8> {
        self.copying.as_ref()?.block(qpn, index)
    }

    pub(super) fn change<T: Plain>(&mut self, at: u64, value: &T) -> AcceleratorResult<()> {
        self.pause()?;
        self.changes += 1;
        self.write(at, value)
    }
}

impl Drop for GpuEngine {
    fn drop(&mut self) {
        if self.passes != 0 {
            let (passes, slices, time) = (self.passes, self.asides, self.aside_time);
            tracing::debug!(
                passes,
                slices,
                ?time,
                "executed by copies, and by slices that took turns with other kernels"
            );
        }
        let since = Instant::now();
        let mut ended = self.pause();
        while ended.is_ok() && !self.running.is_empty() && since.elapsed() < DROP_LIMIT {
            std::thread::sleep(Duration::from_micros(50));
            ended = self.look().map(|_| ());
        }
        match ended {
            Err(error) => tracing::error!(%error, "the software HCA's kernel did not end in order"),
            Ok(()) if self.running.is_empty() => {
                // SAFETY: no slice is left that reports there, and nothing else uses them.
                unsafe { ManuallyDrop::drop(&mut self.gates) };
            }
            // It will still report, and do nothing else: it has been cancelled.
            Ok(()) => tracing::debug!("a slice of the software HCA's kernel has not found room yet"),
        }
    }
}
