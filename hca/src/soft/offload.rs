//! The engine's other half when queues lie in memory that only kernels reach: the kernel of an [`Accelerator`] executes, and this judges.
//!
//! The kernel (`device-kernels/kernels/soft_hca.cu`) executes what is well-formed and permitted. In front of anything else it stops the QP,
//! and says so with an event. The engine then looks at the WQE as it would at one of its own: it fails it, waits for a peer, or
//! finds that only a translated key was missing, writes that to the tables, and lets the QP go on. So errors have one source, and the
//! same syndromes and words, whoever executes.
//!
//! The tables change only while no slice executes. `pause` sees to that: it cancels the slices that were launched (see `Gate` in `soft_hca.h`), which
//! takes as long as those that have started need to notice, and nothing for those that have not.
//!
//! A slice that finds no room beside other kernels does not start, and neither do the kernels end if they wait for the network. Then the engine's
//! thread takes all queue pairs over and executes by copies ([`copying`](super::copying)), until the slice has found room. A queue pair so always has one
//! owner: slices that may execute, or the thread, which has cancelled them.

use super::accelerator::{Accelerator, AcceleratorMemory, AcceleratorResult, Pace};
use super::control::{FIRST_QPN, MkeyEntry, MkeyFacts, rights};
use super::copying::{CopyMode, Copying, Place};
use super::engine::{Engine, Qp, RemoteKey, UarPage};
use super::memory::{Mapping, PAGE};
use super::tables::{
    self, BlockCounters, Control, EVENT_DOORBELL, EVENT_TRAP, EVENTS, Event, Gate, Key, Plain, QpConstants, QpContext,
    QpProgress, Slice, Tables,
};
use super::{HOST_DOORBELL_BYTES, HOST_PAGE_BYTES, REGISTER_STRIDE, REGISTERS_PER_PAGE};
use crate::blueflame;
use crate::error::{Error, Result};
use crate::prm::qpc::QpState;
use crate::provider::Counters;
use crate::wire::cqe::Syndrome;
use crate::wire::{BLOCK_BYTES, cqe, dbr, doorbell};
use std::collections::{HashMap, VecDeque};
use std::mem::{ManuallyDrop, offset_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// How long a slice may take to notice that it is to end before the HCA counts as dead.
const PAUSE_LIMIT: Duration = Duration::from_secs(20);
/// How often the kernel may hand the same WQE to the host without need.
const DISAGREEMENTS: u32 = 3;
/// How long a slice that takes turns with other kernels runs, and how long without work.
const ASIDE_RUN: Duration = Duration::from_micros(500);
const ASIDE_IDLE: Duration = Duration::from_micros(20);
/// For so long after slices found room again they are waited for less patiently.
const WARY: Duration = Duration::from_secs(1);
const WARY_PATIENCE: Duration = Duration::from_millis(1);
/// Bytes of a `QpProgress` that are used.
const PROGRESS_BYTES: usize = 32;
const _: () = assert!(offset_of!(QpProgress, trap) == 24 && offset_of!(QpProgress, bell) == 20);
/// How long the engine's thread executes at least if slices are kept out again and again.
const SHORTEST_STAY: Duration = Duration::from_millis(4);
const LONGEST_STAY: Duration = Duration::from_millis(128);
/// How long the end of the HCA waits for slices that have been cancelled.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// A key of a peer in the tables.
#[derive(Debug)]
struct Published {
    peer: usize,
    umem: u32,
    entry: *const MkeyEntry,
    seq: u32,
    key: Key,
}

/// What an engine with an accelerator has besides.
#[derive(Debug)]
pub(super) struct Offload {
    pub(super) accelerator: Arc<dyn Accelerator>,
    memory: Box<dyn AcceleratorMemory>,
    rung: Rung,
    /// Where the host rings, if it does; [`HOST_DOORBELL_BYTES`].
    host_doorbells: Option<Box<dyn AcceleratorMemory>>,
    /// Complete everything, execute nothing.
    null: bool,
    /// Where slices report, and where those do that take turns with other kernels.
    gates: ManuallyDrop<[Box<dyn AcceleratorMemory>; 2]>,
    /// Slices launched so far.
    slices: u64,
    /// Numbers of those that had not ended when that was last looked at.
    running: VecDeque<u64>,
    /// When a slice last ended, or was launched where none was.
    moved: Instant,
    /// Slices that have ended.
    ended: u64,
    /// Those whose reports were taken in.
    reported: u64,
    mode: CopyMode,
    /// While the engine's thread executes.
    copying: Option<Copying>,
    /// Not before it was needed.
    spare: Option<Copying>,
    /// When slices found room again.
    resumed: Option<Instant>,
    /// When the engine's thread began to execute, for how long it does so at least, and when a slice was launched to see whether there is room.
    began: Instant,
    stay: Duration,
    probed: Option<Instant>,
    /// It was said that there is no room.
    told: bool,
    /// Passes by copies, slices that took turns, and the time that those took.
    passes: u64,
    asides: u64,
    aside_time: Duration,
    /// Events were announced and not there yet.
    unread: bool,
    events: u64,
    served: u64,
    /// Doorbells that the host has rung itself.
    rings: u64,
    /// Doorbell registers to look at.
    registers: u32,
    published: HashMap<u32, Published>,
    /// Raised whenever something is written that a QP may have waited for.
    changes: u64,
}

// SAFETY: the pointers name entries of peers' control segments, which stay mapped while the engine lives.
unsafe impl Send for Offload {}

/// Who rings, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rung {
    /// Kernels, in the tables: a register for each QP.
    ByKernels,
    /// The host, in its memory: a register for each QP.
    ByHost,
    /// Whoever posts, in pages as on a card, where QPs share registers. The engine's thread looks at those, and rings for each QP that may be
    /// meant in a register as for [`ByHost`](Self::ByHost), that of the QP's place in the tables.
    LikeCards,
}

/// A QP's relation to the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Handed {
    /// The host has it.
    pub trapped: bool,
    /// The host has nothing more to do for it.
    pub done: bool,
    pub bell: u32,
    pub cq_producer: u32,
    /// Its next WQE takes a kernel, which has to take turns with others.
    pub aside: bool,
    /// Whether the tables hold what is known of the peer's QP.
    pub connected: bool,
    /// What was last written to the tables for it.
    written: Option<QpConstants>,
    /// The WQE it last stopped at, the state of the tables then, and how often without a change between.
    stopped_at: (u64, u64, u32),
}

/// What is rung for all that is posted to a QP.
fn doorbell_for(qp: &Qp) -> u64 {
    let mut bytes = [0; doorbell::LEN];
    doorbell::Repr::producer(qp.producer as u16, qp.qpn).emit(&mut doorbell::Segment::new_unchecked(&mut bytes[..]));
    u64::from_ne_bytes(bytes)
}

/// The number, from 1, of the register of a QP that has the one of its place.
fn bell_of(qpn: u32) -> u32 {
    qpn - FIRST_QPN + 1
}

impl Offload {
    pub(super) fn new(
        accelerator: Arc<dyn Accelerator>,
        rung: Rung,
        null: bool,
        mode: CopyMode,
    ) -> AcceleratorResult<Self> {
        let memory = accelerator.allocate(size_of::<Tables>() as u64)?;
        let host_doorbells = match rung {
            Rung::ByKernels => None,
            Rung::ByHost | Rung::LikeCards => Some(accelerator.host_memory(HOST_DOORBELL_BYTES as u64)?),
        };
        let gate = || accelerator.host_memory(size_of::<Gate>() as u64);
        let gates = ManuallyDrop::new([gate()?, gate()?]);
        let mode = if null { CopyMode::Never } else { mode };
        // Not when it is needed: then kernels run that it might have to wait for.
        let spare = match mode {
            CopyMode::Never => None,
            CopyMode::WhenNeeded | CopyMode::Always => Some(Copying::new(accelerator.copy_engine()?)),
        };
        let mut offload = Self {
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
            published: HashMap::new(),
            changes: 0,
        };
        // The first launch of a kernel may have to wait for kernels that run; later ones do not.
        offload.launch(Duration::ZERO, Duration::ZERO)?;
        if offload.spare.is_some() {
            offload.launch_aside(Duration::ZERO, Duration::ZERO)?;
        }
        offload.finish()?;
        Ok(offload)
    }

    fn at(&self, offset: usize) -> u64 {
        self.memory.address() + offset as u64
    }

    /// Where doorbell page `uar` (from 1) is.
    pub(super) fn page(&self, uar: u32) -> u64 {
        self.at(offset_of!(Tables, pages)) + u64::from(uar - 1) * size_of::<tables::Page>() as u64
    }

    fn register(&self, bell: u32) -> u64 {
        let (page, register) = ((bell - 1) / REGISTERS_PER_PAGE as u32, (bell - 1) as usize % REGISTERS_PER_PAGE);
        self.page(page + 1) + (doorbell::FIRST_REGISTER + register * REGISTER_STRIDE) as u64
    }

    fn qp(&self, qpn: u32) -> u64 {
        self.at(offset_of!(Tables, qps)) + tables::qp_place(qpn) * size_of::<QpContext>() as u64
    }

    fn read<T: Plain>(&self, at: u64) -> AcceleratorResult<T> {
        let mut value = T::default();
        // SAFETY: any bytes are a value of T, and nobody else looks at it.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>()) };
        // SAFETY: callers name a T in the tables.
        unsafe { self.accelerator.read(at, bytes) }?;
        Ok(value)
    }

    fn write<T: Plain>(&self, at: u64, value: &T) -> AcceleratorResult<()> {
        let mut bytes = vec![0u8; size_of::<T>()];
        // SAFETY: both have the size of T. Padding, which may be uninitialised, is copied and not looked at.
        unsafe { std::ptr::copy_nonoverlapping((&raw const *value).cast(), bytes.as_mut_ptr(), bytes.len()) };
        // SAFETY: callers name a T in the tables.
        unsafe { self.accelerator.write(at, &bytes) }
    }

    fn gate(&self, aside: bool) -> &Gate {
        // SAFETY: it is that large, aligned to a page, lives as long as `self`, and any words are its value.
        unsafe { &*(self.gates[usize::from(aside)].address() as *const Gate) }
    }

    fn slice(&mut self, run: Duration, idle: Duration, aside: bool) -> Slice {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.slices += 1;
        Slice {
            tables: self.memory.address(),
            number: self.slices,
            run_ns: nanos(run),
            idle_ns: nanos(idle),
            registers: self.registers,
            null: u32::from(self.null),
            host_doorbells: self.host_doorbells.as_ref().map_or(0, |memory| memory.address()),
            gate: self.gates[usize::from(aside)].address(),
        }
    }

    fn launch(&mut self, run: Duration, idle: Duration) -> AcceleratorResult<()> {
        let slice = self.slice(run, idle, false);
        // SAFETY: the tables are dropped after all slices have ended or were cancelled, and so are mappings; the gate after all have ended.
        unsafe { self.accelerator.launch(&slice) }?;
        if self.running.is_empty() {
            self.moved = Instant::now();
        }
        self.running.push_back(slice.number);
        Ok(())
    }

    /// Runs a slice that takes turns with other kernels, and waits until it has ended.
    fn launch_aside(&mut self, run: Duration, idle: Duration) -> AcceleratorResult<()> {
        let slice = self.slice(run, idle, true);
        // SAFETY: it is waited for here.
        unsafe { self.accelerator.launch_aside(&slice) }?;
        let what = "a slice of the engine's kernel that takes turns with other kernels";
        self.wait_until(what, |offload| {
            let blocks = &offload.gate(true).blocks[..offload.accelerator.blocks()];
            blocks.iter().all(|block| block.ended.load(Ordering::Acquire) == slice.number)
        })
    }

    /// Looks which slices have ended. Returns how many have not.
    fn look(&mut self) -> AcceleratorResult<usize> {
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

    /// Whether no slice touches the tables, and none that was launched will.
    fn quiet(&self) -> bool {
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

    /// Makes sure that no slice touches the tables until another is launched: cancels those that have not started, and waits for the others.
    fn pause(&mut self) -> AcceleratorResult<()> {
        if self.running.is_empty() || self.look()? == 0 || self.quiet() {
            return Ok(());
        }
        // The block of a slice reports that it has started before it looks, so that one of the two is seen.
        self.gate(false).cancelled.store(self.slices, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.quiet() {
            return Ok(());
        }
        self.write(self.at(offset_of!(Tables, control.leave)), &self.slices)?;
        self.wait_until("slices of the engine's kernel that have started", Self::quiet)
    }

    /// Waits until all slices have ended.
    fn finish(&mut self) -> AcceleratorResult<()> {
        self.look()?;
        self.wait_until("slices of the engine's kernel", |offload| {
            let ended = offload.gate(false).blocks[..offload.accelerator.blocks()].iter();
            let ended = ended.map(|block| block.ended.load(Ordering::Acquire)).min().unwrap_or(0);
            offload.running.back().is_none_or(|number| *number <= ended)
        })?;
        self.look().map(|_| ())
    }

    fn wait_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> AcceleratorResult<()> {
        let since = Instant::now();
        let look = self.accelerator.pace().look.min(Duration::from_micros(20));
        while !done(self) {
            self.accelerator.check()?;
            if since.elapsed() > PAUSE_LIMIT {
                return Err(super::AcceleratorError(format!(
                    "{what} did not end within {PAUSE_LIMIT:?}: kernels that wait for the network have to leave room on the GPU for it"
                )));
            }
            std::thread::sleep(look);
        }
        Ok(())
    }

    /// Whether slices have room again, while the engine's thread executes and those that had to wait have ended. After a change of hands that soon proved
    /// wrong, only if a slice finds room some time later, and at once: what made room may have been the end of one block of many.
    fn has_room(&mut self) -> AcceleratorResult<bool> {
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

    /// Whether slices that were launched find no room.
    fn is_kept_out(&self) -> bool {
        let Pace { run, patience, .. } = self.accelerator.pace();
        let wary = self.resumed.is_some_and(|resumed| resumed.elapsed() < WARY);
        let patience = if wary { patience.min(WARY_PATIENCE) } else { patience };
        !self.running.is_empty() && self.moved.elapsed() > run + patience
    }

    /// A block of a QP's queue, if it has been fetched to be executed by copies.
    pub(super) fn image(&self, qpn: u32, index: u64) -> Option<*const u8> {
        self.copying.as_ref()?.block(qpn, index)
    }

    fn change<T: Plain>(&mut self, at: u64, value: &T) -> AcceleratorResult<()> {
        self.pause()?;
        self.changes += 1;
        self.write(at, value)
    }
}

impl Drop for Offload {
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

impl Engine {
    /// What an accelerator answered; a failure is the HCA's end.
    fn survive<T>(&mut self, result: AcceleratorResult<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.die(&format!("the engine's kernel: {error}"));
                None
            }
        }
    }

    fn with_offload<T>(&mut self, run: impl FnOnce(&mut Offload) -> AcceleratorResult<T>) -> Option<T> {
        let result = run(self.offload.as_mut()?);
        self.survive(result)
    }

    pub(super) fn is_offloaded(&self) -> bool {
        self.offload.is_some()
    }

    pub(super) fn pace(&self) -> Option<Pace> {
        self.offload.as_ref().map(|offload| offload.accelerator.pace())
    }

    /// Counters of the engine and its kernel.
    pub(super) fn all_counters(&mut self) -> Counters {
        let mut all = self.counters;
        if self.dead.is_some() {
            return all;
        }
        let blocks = self.with_offload(|offload| {
            (0..tables::BLOCKS)
                .map(|block| {
                    let at = offset_of!(Tables, counters) + block * size_of::<BlockCounters>();
                    offload.read::<BlockCounters>(offload.at(at))
                })
                .collect::<AcceleratorResult<Vec<_>>>()
        });
        all.doorbells = all.doorbells.wrapping_sub(self.offload.as_ref().map_or(0, |offload| offload.rings));
        for block in blocks.unwrap_or_default() {
            all.wqes += block.wqes;
            all.doorbells = all.doorbells.wrapping_add(block.doorbells);
            all.cqes += block.cqes;
            all.bytes += block.bytes;
        }
        all
    }

    /// Looks whether slices have ended, and takes in what they report. Returns how much there was.
    pub(super) fn collect(&mut self) -> usize {
        let Some(control) = self.with_offload(|offload| {
            if !offload.running.is_empty() {
                offload.look()?;
            }
            if offload.ended == offload.reported && !offload.unread {
                return Ok(None);
            }
            offload.reported = offload.ended;
            offload.read::<Control>(offload.at(offset_of!(Tables, control))).map(Some)
        }) else {
            return 0;
        };
        control.map_or(0, |control| self.take_report(&control))
    }

    fn take_report(&mut self, control: &Control) -> usize {
        let Some(offload) = &mut self.offload else { return 0 };
        let served = control.served.wrapping_sub(offload.served);
        offload.served = control.served;
        let first = offload.events;
        let new = control.events.wrapping_sub(first);
        if new > EVENTS as u64 {
            // More than the ring holds: look at every QP.
            offload.events = control.events;
            for place in 0..self.qps.places() {
                let qpn = self.qps.number(place);
                self.take_over(qpn, false);
            }
        } else {
            for number in first..control.events {
                let at = offset_of!(Tables, events) + (number % EVENTS as u64) as usize * size_of::<Event>();
                let Some(event) = self.with_offload(|offload| offload.read::<Event>(offload.at(at))) else { break };
                if event.number != number + 1 {
                    // A slice that runs is about to write it.
                    break;
                }
                if let Some(offload) = &mut self.offload {
                    offload.events = number + 1;
                }
                match event.kind {
                    EVENT_TRAP => self.take_over(FIRST_QPN + event.place, false),
                    EVENT_DOORBELL => self.wrong_doorbell(event.value, event.place / REGISTERS_PER_PAGE as u32 + 1),
                    other => {
                        self.violation(0, 0, None, format!("the engine's kernel reported an event of kind {other}"))
                    }
                }
            }
        }
        if let Some(offload) = &mut self.offload {
            offload.unread = offload.events != control.events;
        }
        (served + new) as usize
    }

    /// A doorbell that the kernel could not use: say why.
    fn wrong_doorbell(&mut self, value: u64, uar: u32) {
        if self.card_doorbells {
            // They were checked when they were passed on; the QP is gone since.
            return;
        }
        let bell = match doorbell::Repr::from_register(value) {
            Ok(bell) => bell,
            Err(error) => return self.violation(0, 0, None, format!("doorbell in UAR page {uar}: {error}")),
        };
        let text = match self.qps.get(bell.qpn) {
            None => format!("doorbell.qpn: no QP {:#x}", bell.qpn),
            Some(qp) if qp.context.uar_page != uar => {
                format!("doorbell in UAR page {uar}, but the QP was created with page {}", qp.context.uar_page)
            }
            Some(_) => "doorbell in a second register; a QP uses one".to_owned(),
        };
        self.violation(bell.qpn, bell.index.into(), None, text);
    }

    /// Takes a QP from the kernel, which has stopped it, or (`stop`) has yet to be stopped.
    pub(super) fn take_over(&mut self, qpn: u32, stop: bool) {
        if !self.is_offloaded() {
            return;
        }
        let Some(mut qp) = self.qps.lend(qpn) else { return };
        if !qp.handed.trapped && self.load_progress(&mut qp, stop) {
            qp.handed.trapped = true;
            qp.handed.done = false;
            if matches!(qp.state, QpState::Rts | QpState::Err) {
                qp.producer = qp.consumer;
                self.read_doorbell_record(&mut qp, None);
            } else if !stop {
                let text = format!("doorbell in state {}; it must be RTS", qp.state.name());
                self.violation(qp.qpn, 0, None, text);
            }
            self.activate(&mut qp);
            if self.tracer.is_on() {
                let (consumer, producer) = (qp.consumer, qp.producer);
                self.tracer.line("stopped", format_args!("qp={qpn:#x} at={consumer} posted={producer}"));
            }
        }
        self.qps.put_back(qpn, qp);
    }

    /// How far the kernel is; whether it has stopped the QP.
    fn load_progress(&mut self, qp: &mut Qp, stop: bool) -> bool {
        let qpn = qp.qpn;
        let progress = self.with_offload(|offload| {
            let at = offload.qp(qpn) + offset_of!(QpContext, progress) as u64;
            if stop {
                offload.pause()?;
                offload.write(at + offset_of!(QpProgress, trap) as u64, &1u64)?;
            }
            offload.read::<QpProgress>(at)
        });
        let Some(progress) = progress else { return false };
        self.take_progress(qp, &progress);
        progress.trap != 0
    }

    fn take_progress(&mut self, qp: &mut Qp, progress: &QpProgress) {
        qp.consumer = progress.consumer;
        qp.moved = progress.moved as usize;
        qp.handed.bell = progress.bell;
        qp.handed.cq_producer = progress.cq_producer;
        if let Some(cq) = self.cqs.get_mut(qp.context.cqn_snd) {
            cq.producer = progress.cq_producer;
        }
    }

    /// Stops QPs and finds out how far the kernel was with each, in one go, while the engine's thread executes by copies.
    fn stop_all(&mut self, qpns: &[u32]) {
        let Some(offload) = &self.offload else { return };
        let places: Vec<u64> =
            qpns.iter().map(|qpn| offload.qp(*qpn) + offset_of!(QpContext, progress) as u64).collect();
        let read = self.with_copying(|copying| {
            for place in &places {
                // SAFETY: inside the tables.
                unsafe { copying.write_words(place + offset_of!(QpProgress, trap) as u64, &[1]) }?;
            }
            // SAFETY: as above.
            unsafe { copying.read_all(&places, PROGRESS_BYTES) }
        });
        for (qpn, bytes) in qpns.iter().zip(read.unwrap_or_default()) {
            let Some(mut qp) = self.qps.lend(*qpn) else { continue };
            let word = |at: usize| {
                bytes.get(at..at + 8).map_or(0, |word| u64::from_ne_bytes(std::array::from_fn(|i| word[i])))
            };
            let progress = QpProgress {
                consumer: word(offset_of!(QpProgress, consumer)),
                moved: word(offset_of!(QpProgress, moved)),
                cq_producer: word(offset_of!(QpProgress, cq_producer)) as u32,
                bell: (word(offset_of!(QpProgress, cq_producer)) >> 32) as u32,
                ..QpProgress::default()
            };
            self.take_progress(&mut qp, &progress);
            qp.producer = qp.producer.max(qp.consumer);
            if !qp.handed.trapped {
                qp.handed.trapped = true;
                qp.handed.done = false;
                // The record is looked at next.
                qp.producer = qp.consumer;
                self.activate(&mut qp);
                if self.tracer.is_on() {
                    let consumer = qp.consumer;
                    self.tracer.line("stopped", format_args!("qp={qpn:#x} at={consumer}"));
                }
            }
            self.qps.put_back(*qpn, qp);
        }
    }

    /// Lets the kernel go on with QPs, in one go, while no slice executes and the engine's thread does: each is rung for.
    fn resume_all(&mut self, qpns: &[u32]) {
        self.learn_bells(qpns);
        let mut writes: Vec<(u64, Vec<u64>)> = Vec::new();
        for qpn in qpns {
            let Some(mut qp) = self.qps.lend(*qpn) else { continue };
            if let Some(cq) = self.cqs.get(qp.context.cqn_snd) {
                qp.handed.cq_producer = cq.producer;
            }
            self.write_constants(&mut qp);
            if let Some(offload) = &mut self.offload {
                let Handed { bell, cq_producer, .. } = qp.handed;
                let words = vec![qp.consumer, qp.moved as u64, u64::from(bell) << 32 | u64::from(cq_producer), 0];
                writes.push((offload.qp(*qpn) + offset_of!(QpContext, progress) as u64, words));
                if bell != 0 {
                    offload.rings += 1;
                    writes.push((offload.register(bell), vec![doorbell_for(&qp)]));
                }
            }
            self.qps.put_back(*qpn, qp);
        }
        self.with_copying(|copying| {
            for (at, words) in &writes {
                // SAFETY: inside the tables, aligned.
                unsafe { copying.write_words(*at, words) }?;
            }
            copying.end_writes()
        });
    }

    /// Brings `consumer` and `producer` of a QP that the kernel serves up to date.
    pub(super) fn refresh(&mut self, qp: &mut Qp) {
        if self.is_offloaded() && !qp.handed.trapped && qp.state == QpState::Rts {
            self.load_progress(qp, false);
            qp.producer = qp.consumer;
            let record = u32::from_be(self.load_offloaded(qp.dbr.addr() as u64 + dbr::SEND_OFFSET as u64));
            qp.producer += u64::from((record as u16).wrapping_sub(qp.producer as u16));
        }
    }

    /// Gives a QP that needs nothing more back to the kernel. Returns false if it stays: one in the error state does, and its
    /// doorbell record is looked at in housekeeping.
    pub(super) fn hand_back(&mut self, qp: &mut Qp) -> bool {
        let ready = qp.handed.trapped && qp.state == QpState::Rts && (qp.handed.done || qp.consumer == qp.producer);
        if !ready || self.dead.is_some() || self.is_copying() {
            return false;
        }
        let changes = self.offload.as_ref().map_or(0, |offload| offload.changes);
        let (index, before, count) = qp.handed.stopped_at;
        let again = qp.handed.done && index == qp.consumer && before == changes;
        qp.handed.stopped_at = (qp.consumer, changes, if again { count + 1 } else { 0 });
        if qp.handed.stopped_at.2 > DISAGREEMENTS {
            self.refuse(qp);
            return false;
        }
        if let Some(cq) = self.cqs.get(qp.context.cqn_snd) {
            qp.handed.cq_producer = cq.producer;
        }
        self.learn_bell(qp);
        self.write_constants(qp);
        self.write_progress(qp, false);
        qp.handed.trapped = false;
        qp.handed.done = false;
        if self.tracer.is_on() {
            let (qpn, consumer, producer) = (qp.qpn, qp.consumer, qp.producer);
            self.tracer.line("resumed", format_args!("qp={qpn:#x} at={consumer} posted={producer}"));
        }
        self.ring_for(qp);
        true
    }

    /// Rings for what is posted to a QP that the kernel gets. What was rung meanwhile was rung in vain, so this is done in any case, unless the kernel
    /// has seen none of the QP's doorbells: then it has yet to see the first.
    fn ring_for(&mut self, qp: &Qp) {
        if qp.handed.bell == 0 {
            return;
        }
        let mut bytes = [0; doorbell::LEN];
        doorbell::Repr::producer(qp.producer as u16, qp.qpn)
            .emit(&mut doorbell::Segment::new_unchecked(&mut bytes[..]));
        let bell = qp.handed.bell;
        self.with_offload(|offload| {
            offload.rings += 1;
            offload.write(offload.register(bell), &u64::from_ne_bytes(bytes))
        });
    }

    /// Writes what the host knows of a QP to its context.
    pub(super) fn write_constants(&mut self, qp: &mut Qp) {
        if !self.is_offloaded() {
            return;
        }
        let facts = qp.remote.as_ref().filter(|remote| remote.seq & 1 == 0).map(|remote| (remote.peer, remote.facts));
        qp.handed.connected = facts.is_some();
        let cq = self.cqs.get(qp.context.cqn_snd);
        let constants = QpConstants {
            sq: qp.sq.addr() as u64,
            dbr: qp.dbr.addr() as u64 + dbr::SEND_OFFSET as u64,
            cqe: cq.map_or(0, |cq| cq.base.addr() as u64),
            qpn: qp.qpn,
            depth_log2: qp.context.log_sq_size.into(),
            state: qp.state as u32,
            pd: qp.context.pd,
            log_msg_max: qp.context.log_msg_max.into(),
            uar_page: match self.card_doorbells {
                true => bell_of(qp.qpn).div_ceil(REGISTERS_PER_PAGE as u32),
                false => qp.context.uar_page,
            },
            cq_log_size: cq.map_or(0, |cq| cq.context.log_cq_size.into()),
            peer: facts.map_or(0, |(peer, _)| peer as u32 + 1),
            accepts: facts.map_or(0, |(_, facts)| facts.rights),
            remote_pd: facts.map_or(0, |(_, facts)| facts.pd),
            remote_qpn: facts.map_or(0, |(_, facts)| facts.qpn),
            reserved0: [0; 15],
        };
        if qp.handed.written == Some(constants) {
            return;
        }
        qp.handed.written = Some(constants);
        let qpn = qp.qpn;
        self.with_offload(|offload| {
            let at = offload.qp(qpn);
            if offload.read::<QpConstants>(at)? != constants { offload.change(at, &constants) } else { Ok(()) }
        });
    }

    /// Writes how far a QP is to its context; the kernel goes on from there, unless `trapped`.
    pub(super) fn write_progress(&mut self, qp: &Qp, trapped: bool) {
        if !self.is_offloaded() {
            return;
        }
        let progress = QpProgress {
            consumer: qp.consumer,
            moved: qp.moved as u64,
            cq_producer: qp.handed.cq_producer,
            bell: qp.handed.bell,
            trap: trapped.into(),
            reserved1: [0; 25],
        };
        let qpn = qp.qpn;
        self.with_offload(|offload| {
            offload.pause()?;
            offload.write(offload.qp(qpn) + offset_of!(QpContext, progress) as u64, &progress)
        });
    }

    /// Takes a QP out of the tables.
    pub(super) fn erase_qp(&mut self, qpn: u32) {
        if self.tracer.is_on()
            && let Some(mut qp) = self.qps.lend(qpn)
        {
            self.refresh(&mut qp);
            let (consumer, producer) = (qp.consumer, qp.producer);
            self.tracer.line("erased", format_args!("qp={qpn:#x} at={consumer} posted={producer}"));
            self.qps.put_back(qpn, qp);
        }
        self.with_offload(|offload| {
            offload.change(offload.qp(qpn), &QpConstants::default())?;
            if offload.rung == Rung::LikeCards {
                // What was put off. Other ways of ringing clear whole pages.
                offload.write(offload.register(bell_of(qpn)), &0u64)?;
            }
            offload.write(offload.qp(qpn) + offset_of!(QpContext, progress) as u64, &QpProgress::default())
        });
    }

    /// Writes an own key to the tables, or takes it out.
    pub(super) fn write_local_key(&mut self, index: u32, key: Option<(&MkeyFacts, *mut u8)>) {
        let entry = key.map_or_else(Key::default, |(facts, base)| Key {
            key: facts.key,
            peer: 0,
            pd: facts.pd,
            qpn: facts.qpn,
            rights: facts.rights & (rights::LOCAL_READ | rights::LOCAL_WRITE),
            reserved0: 0,
            start: facts.start,
            length: facts.len,
            base: base.addr() as u64,
            reserved1: [0; 2],
        });
        let at = offset_of!(Tables, local_keys) + tables::local_place(index) as usize * size_of::<Key>();
        self.with_offload(|offload| offload.change(offload.at(at), &entry));
    }

    /// Writes a peer's key to the tables, if it is not there.
    pub(super) fn publish_remote_key(&mut self, qp: &Qp, key: &RemoteKey) {
        let Some(peer) = qp.remote.as_ref().map(|remote| remote.peer) else { return };
        let entry = Key {
            key: key.key,
            peer: peer as u32 + 1,
            pd: key.pd,
            qpn: key.qpn,
            rights: key.rights,
            reserved0: 0,
            start: key.start,
            length: key.len,
            base: key.base.addr() as u64,
            reserved1: [0; 2],
        };
        let place = tables::remote_place(peer as u32 + 1, key.key >> 8);
        let published = Published { peer, umem: key.umem, entry: key.entry, seq: key.seq, key: entry };
        self.with_offload(|offload| {
            let same = |old: &Published| (old.key, old.seq) == (entry, published.seq);
            if !offload.published.get(&place).is_some_and(same) {
                let at = offset_of!(Tables, remote_keys) + place as usize * size_of::<Key>();
                offload.change(offload.at(at), &entry)?;
                offload.published.insert(place, published);
            }
            Ok(())
        });
    }

    /// Takes out of the tables what peers have changed or withdrawn, and what belonged to peers that are gone.
    pub(super) fn review_peers(&mut self) {
        let Some(offload) = &self.offload else { return };
        let gone: Vec<u32> = offload
            .published
            .iter()
            .filter(|(_, key)| {
                let peer = &self.peers[key.peer];
                // SAFETY: the entry lies in the peer's control segment, which stays mapped as long as the engine lives.
                !peer.is_alive() || peer.has_lost(key.umem) || unsafe { &*key.entry }.seq() != key.seq
            })
            .map(|(place, _)| *place)
            .collect();
        for place in gone {
            self.with_offload(|offload| {
                let at = offset_of!(Tables, remote_keys) + place as usize * size_of::<Key>();
                offload.published.remove(&place);
                offload.change(offload.at(at), &Key::default())
            });
        }
        for place in 0..self.qps.places() {
            let qpn = self.qps.number(place);
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            if qp.handed.connected
                && let Some(remote) = &mut qp.remote
                // SAFETY: as above.
                && (!self.peers[remote.peer].is_alive() || unsafe { &*remote.entry }.seq() != remote.seq)
            {
                // The next WQE is the host's to judge.
                remote.seq = 1;
                self.write_constants(&mut qp);
            }
            self.qps.put_back(qpn, qp);
        }
    }

    /// Makes sure that the kernel touches nothing until something is launched again.
    pub(super) fn pause(&mut self) {
        self.with_offload(Offload::pause);
    }

    /// Waits until the slices that were launched have ended by themselves.
    pub(super) fn await_slices(&mut self) {
        self.with_offload(Offload::finish);
    }

    /// Doorbell page `uar` comes or goes: clears its registers. Where they are for whoever rings: the kernel's own, or the host's.
    pub(super) fn clear_page(&mut self, uar: u32) -> Option<*mut u8> {
        self.with_offload(|offload| {
            offload.pause()?;
            let page = offload.page(uar);
            // SAFETY: the page lies in the tables.
            unsafe { offload.accelerator.write(page, &[0; size_of::<tables::Page>()]) }?;
            let Some(host) = &offload.host_doorbells else { return Ok(page as *mut u8) };
            let registers = (host.address() + u64::from(uar - 1) * HOST_PAGE_BYTES as u64) as *mut u8;
            for at in (0..HOST_PAGE_BYTES).step_by(8) {
                // SAFETY: the registers of this page are in the memory of `SoftOptions::host_doorbells`, aligned to a page.
                unsafe { AtomicU64::from_ptr(registers.add(at).cast()) }.store(0, Ordering::Release);
            }
            Ok(registers)
        })
    }

    /// Whether the host rings, in registers of the kernel.
    pub(super) fn host_rings(&self) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.rung == Rung::ByHost)
    }

    /// Whether the kernel is given queues in memory of the host.
    pub(super) fn reaches_host(&self) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.rung != Rung::ByKernels)
    }

    /// Whether registers take whole work requests: the kernel executes, and the host rings.
    pub(super) fn takes_blocks(&self) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.rung == Rung::ByHost && !offload.null)
    }

    /// Whether peers map memory before they use it: mapping may wait for kernels, which wait for the mapping, and nobody prepares for keys.
    pub(super) fn announces(&self) -> bool {
        self.is_offloaded() && self.card_doorbells
    }

    /// Memory of a new doorbell page, unless it is part of the tables.
    pub(super) fn uar_page(&self) -> Result<Option<UarPage>> {
        let page = match &self.offload {
            None => UarPage::Host(Mapping::anonymous(PAGE as usize)?),
            Some(offload) if offload.rung == Rung::LikeCards => {
                let memory = offload.accelerator.host_memory(PAGE);
                let what = || "allocate a doorbell page".to_owned();
                UarPage::Accelerator(memory.map_err(|error| Error::Accelerator { what: what(), source: error.into() })?)
            }
            Some(_) => return Ok(None),
        };
        Ok(Some(page))
    }

    /// Makes the kernel look at the doorbell record of a QP.
    pub(super) fn ring_kernel(&mut self, qp: &Qp) {
        let Some(offload) = &mut self.offload else { return };
        let Some(registers) = &offload.host_doorbells else { return };
        if !matches!(qp.state, QpState::Rts | QpState::Err) {
            return;
        }
        // Only a change is seen.
        offload.rings += 1;
        let value = u64::from((qp.qpn << 8).to_be()) << 32 | offload.rings & u64::from(u32::MAX);
        let at = registers.address() + u64::from(bell_of(qp.qpn) - 1) * blueflame::REGISTER_BYTES as u64;
        // SAFETY: the register of this QP in memory that this owns, aligned to 8.
        let register = unsafe { AtomicU64::from_ptr(at as *mut u64) };
        // Release: what the doorbell covers was seen to be there.
        register.store(value, Ordering::Release);
    }

    /// The number of doorbell pages in use has changed.
    pub(super) fn watch_pages(&mut self, highest: u32) {
        if let Some(offload) = &mut self.offload {
            offload.registers = highest * REGISTERS_PER_PAGE as u32;
        }
    }

    /// The QPs have changed, each of which has a register if they are rung as on a card.
    pub(super) fn watch_qps(&mut self) {
        let highest = self.qps.iter().map(|(qpn, _)| bell_of(qpn)).max();
        if let Some(offload) = &mut self.offload
            && offload.rung == Rung::LikeCards
        {
            offload.registers = highest.unwrap_or_default();
        }
    }

    /// Slices that had not ended when that was last looked at.
    pub(super) fn running(&self) -> usize {
        self.offload.as_ref().map_or(0, |offload| offload.running.len())
    }

    /// Whether there is a QP that could have work.
    fn wants_kernel(&self) -> bool {
        self.dead.is_none() && self.qps.iter().any(|(_, qp)| matches!(qp.state, QpState::Rts | QpState::Err))
    }

    /// Launches slices so that `ahead` are under way. Returns how many are.
    pub(super) fn keep_running(&mut self, ahead: usize, idle: Duration) -> usize {
        if !self.wants_kernel() || self.is_copying() {
            return self.running();
        }
        self.with_offload(|offload| {
            while offload.running.len() < ahead {
                offload.launch(offload.accelerator.pace().run, idle)?;
            }
            Ok(offload.running.len())
        })
        .unwrap_or(0)
    }

    /// Whether the engine's thread executes what its kernel otherwise does.
    pub(super) fn is_copying(&self) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.copying.is_some())
    }

    pub(super) fn with_copying<T>(&mut self, run: impl FnOnce(&mut Copying) -> AcceleratorResult<T>) -> Option<T> {
        let result = run(self.offload.as_mut()?.copying.as_mut()?);
        self.survive(result)
    }

    /// Has the engine's thread execute while slices find no room, and slices when they do.
    pub(super) fn watch_slices(&mut self) {
        let Some(offload) = &mut self.offload else { return };
        match offload.mode {
            CopyMode::Never => {}
            CopyMode::Always => {
                if offload.copying.is_none() {
                    self.begin_copying();
                }
            }
            CopyMode::WhenNeeded => match (offload.copying.is_some(), offload.running.is_empty()) {
                (false, _) if offload.is_kept_out() => self.begin_copying(),
                (true, true) => {
                    let has_room = self.with_offload(Offload::has_room);
                    if has_room == Some(true) {
                        self.end_copying();
                    }
                }
                (true, false) if offload.probed.is_some_and(|probed| probed.elapsed() > WARY_PATIENCE) => {
                    offload.probed = None;
                }
                _ => {}
            },
        }
    }

    fn begin_copying(&mut self) {
        self.pause();
        let Some(offload) = &mut self.offload else { return };
        if self.dead.is_some() {
            return;
        }
        offload.copying = offload.spare.take();
        let soon = offload.resumed.is_some_and(|resumed| resumed.elapsed() < WARY);
        offload.stay = if soon { (offload.stay * 2).clamp(SHORTEST_STAY, LONGEST_STAY) } else { Duration::ZERO };
        offload.began = Instant::now();
        offload.probed = None;
        if self.tracer.is_on() {
            self.tracer.line("copying", format_args!("begins"));
        }
    }

    fn end_copying(&mut self) {
        if self.with_copying(Copying::settle).is_none() {
            return;
        }
        // The others are given back when what they wait for has been judged.
        let idle = |qp: &Qp| qp.handed.trapped && qp.state == QpState::Rts && qp.consumer == qp.producer;
        let idle: Vec<u32> = self.qps.iter().filter(|(_, qp)| idle(qp)).map(|(qpn, _)| qpn).collect();
        self.resume_all(&idle);
        for qpn in &idle {
            if let Some(qp) = self.qps.get_mut(*qpn) {
                qp.handed.trapped = false;
                qp.handed.done = false;
                qp.active = false;
            }
        }
        let Some(offload) = &mut self.offload else { return };
        offload.spare = offload.copying.take();
        offload.resumed = Some(Instant::now());
        offload.moved = Instant::now();
        if self.tracer.is_on() {
            self.tracer.line("copying", format_args!("ends"));
        }
        self.deactivate(&idle);
    }

    /// Begins a pass of the thread that executes by copies: fetches what was posted since the last. Returns how many doorbells that takes the
    /// place of.
    pub(super) fn begin_pass(&mut self) -> usize {
        let (mut looked, mut others) = (Vec::new(), Vec::new());
        for place in 0..self.qps.places() {
            let qpn = self.qps.number(place);
            let state = self.qps.get(qpn).map(|qp| (qp.state, qp.handed.trapped));
            let Some((QpState::Rts | QpState::Err, trapped)) = state else { continue };
            if !trapped {
                others.push(qpn);
            }
            looked.push(qpn);
        }
        if !others.is_empty() {
            self.stop_all(&others);
        }
        let rung = self.look_at_records(&looked);
        let mut images: Vec<(u32, Place, u64, u64, u64)> = Vec::new();
        for qpn in &looked {
            let Some(qp) = self.qps.get(*qpn).filter(|qp| qp.consumer != qp.producer) else { continue };
            let queue = Place { address: qp.sq.addr() as u64, on_host: self.is_on_host(qp.sq_umem) };
            images.push((*qpn, queue, qp.depth(), qp.consumer, qp.producer - qp.consumer));
        }
        if !images.is_empty() {
            self.tell_of_copies();
            if let Some(offload) = &mut self.offload {
                offload.passes += 1;
            }
            self.with_copying(|copying| {
                copying.begin_images();
                for (qpn, queue, depth, first, blocks) in &images {
                    // SAFETY: the queue lies in a umem that stays registered while the QP lives.
                    unsafe { copying.fetch_image(*qpn, *queue, *depth, *first, *blocks) }?;
                }
                copying.end_images()
            });
        }
        rung
    }

    fn look_at_records(&mut self, qpns: &[u32]) -> usize {
        let mut addresses = Vec::with_capacity(qpns.len());
        for qpn in qpns {
            let Some(qp) = self.qps.get(*qpn) else { continue };
            let record = qp.dbr.wrapping_add(dbr::SEND_OFFSET);
            // SAFETY: the record lies in a umem that stays registered while the QP lives, and is this process's memory too.
            let known =
                self.is_on_host(qp.sq_umem).then(|| unsafe { super::memory::load32(record, Ordering::Acquire) });
            addresses.push((*qpn, record.addr() as u64, known));
        }
        let unknown: Vec<u64> = addresses.iter().filter(|each| each.2.is_none()).map(|each| each.1).collect();
        let words = if unknown.is_empty() {
            Vec::new()
        } else {
            // SAFETY: as above.
            let words = self.with_copying(|copying| unsafe { copying.read_all(&unknown, 4) });
            let Some(words) = words else { return 0 };
            words.iter().map(|bytes| bytes.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))).collect()
        };
        let mut words = words.into_iter();
        let mut rung = 0;
        for (qpn, _, known) in addresses {
            let Some(word) = known.or_else(|| words.next()) else { break };
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            if self.take_record(&mut qp, word, None) {
                self.counters.doorbells += 1;
                rung += 1;
            }
            self.qps.put_back(qpn, qp);
        }
        rung
    }

    /// Whether the memory of a umem is this process's too.
    pub(super) fn is_on_host(&self, umem: u32) -> bool {
        self.umems.get(&umem).is_some_and(|umem| !umem.shared)
    }

    fn tell_of_copies(&mut self) {
        let Some(offload) = &mut self.offload else { return };
        if offload.mode == CopyMode::WhenNeeded && !std::mem::replace(&mut offload.told, true) {
            tracing::warn!(
                gid = %self.gid,
                "the software HCA's kernel finds no room beside the program's kernels; a thread of the CPU executes by copies while that is so, \
                 which is slower, atomics above all"
            );
        }
    }

    /// Ends a pass: completes what was executed, and has a kernel execute what only kernels do. Returns how much that was.
    pub(super) fn end_pass(&mut self) -> usize {
        self.with_copying(Copying::settle);
        let aside: Vec<u32> = self.qps.iter().filter(|(_, qp)| qp.handed.aside).map(|(qpn, _)| qpn).collect();
        if aside.is_empty() || self.dead.is_some() {
            return 0;
        }
        let mut before = Vec::new();
        for qpn in &aside {
            let Some(qp) = self.qps.get_mut(*qpn) else { continue };
            qp.handed.aside = false;
            before.push(qp.consumer);
        }
        self.resume_all(&aside);
        self.with_offload(|offload| {
            let since = Instant::now();
            let ended = offload.launch_aside(ASIDE_RUN, ASIDE_IDLE);
            offload.asides += 1;
            offload.aside_time += since.elapsed();
            ended
        });
        self.stop_all(&aside);
        let mut done = 0;
        for (qpn, before) in aside.iter().zip(before) {
            let Some(mut qp) = self.qps.lend(*qpn) else { continue };
            done += qp.consumer.saturating_sub(before) as usize;
            let again = if qp.consumer == before { qp.handed.stopped_at.2 + 1 } else { 0 };
            qp.handed.stopped_at.2 = again;
            if again > DISAGREEMENTS {
                self.refuse(&mut qp);
            }
            self.qps.put_back(*qpn, qp);
        }
        done
    }

    /// Finds out the registers of QPs whose doorbells the kernel first saw while the host had them, in one go.
    fn learn_bells(&mut self, qpns: &[u32]) {
        let Some(offload) = &self.offload else { return };
        let unknown = qpns.iter().copied().filter(|qpn| self.qps.get(*qpn).is_some_and(|qp| qp.handed.bell == 0));
        let bell = offset_of!(QpContext, progress) + offset_of!(QpProgress, bell);
        let (unknown, places): (Vec<u32>, Vec<u64>) = unknown.map(|qpn| (qpn, offload.qp(qpn) + bell as u64)).unzip();
        if unknown.is_empty() {
            return;
        }
        // SAFETY: inside the tables.
        let bells = self.with_copying(|copying| unsafe { copying.read_all(&places, 4) }).unwrap_or_default();
        for (qpn, bell) in unknown.into_iter().zip(bells) {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.handed.bell = bell.first_chunk().map_or(0, |bell| u32::from_ne_bytes(*bell));
            }
        }
    }

    /// The register of a QP whose doorbells the kernel first saw while the host had the QP.
    fn learn_bell(&mut self, qp: &mut Qp) {
        if qp.handed.bell != 0 {
            return;
        }
        let qpn = qp.qpn;
        let progress = self.with_offload(|offload| {
            offload.read::<QpProgress>(offload.qp(qpn) + offset_of!(QpContext, progress) as u64)
        });
        qp.handed.bell = progress.map_or(0, |progress| progress.bell);
    }

    fn refuse(&mut self, qp: &mut Qp) {
        let text = "the engine's kernel refuses a work request that is in order".to_owned();
        let failure = super::execute::Failure::new(Syndrome::LocalQpOperation, text);
        self.fail(qp, 0, 1, &failure);
    }

    /// Reads a block of a send queue that the CPU cannot reach.
    pub(super) fn fetch_offloaded(&mut self, at: u64, block: &mut [u64; BLOCK_BYTES / 8]) {
        let mut bytes = [0; BLOCK_BYTES];
        self.with_offload(|offload| {
            // SAFETY: the queue lies in a umem that stays registered while the QP lives.
            unsafe { offload.accelerator.read(at, &mut bytes) }
        });
        for (word, bytes) in block.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
        }
    }

    /// Reads a doorbell record that the CPU cannot reach.
    pub(super) fn load_offloaded(&mut self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.with_offload(|offload| {
            // SAFETY: the record lies in a umem that stays registered while the QP lives.
            unsafe { offload.accelerator.read(at, &mut bytes) }
        });
        u32::from_ne_bytes(bytes)
    }

    /// Writes a CQE that the CPU cannot reach: its tail last.
    pub(super) fn store_cqe_offloaded(&mut self, at: u64, bytes: &[u8; cqe::LEN]) {
        let (body, tail) = bytes.split_at(cqe::TAIL_OFFSET);
        self.with_offload(|offload| {
            // SAFETY: the CQ lies in a umem that stays registered while it lives.
            unsafe {
                offload.accelerator.write(at, body)?;
                offload.accelerator.write(at + cqe::TAIL_OFFSET as u64, tail)
            }
        });
    }
}
