//! The engine's other half when queues lie in memory that only kernels reach: the kernel of an [`Accelerator`] executes, and this judges.
//!
//! The kernel (`device-kernels/kernels/soft_hca.cu`) executes what is well-formed and permitted. In front of anything else it stops the QP,
//! and says so with an event. The engine then looks at the WQE as it would at one of its own: it fails it, waits for a peer, or
//! finds that only a translated key was missing, writes that to the tables, and lets the QP go on. So errors have one source, and the
//! same syndromes and words, whoever executes.
//!
//! The tables change only while no slice runs. `pause` sees to that; it takes as long as the kernel needs to notice.

use super::accelerator::{Accelerator, AcceleratorMemory, AcceleratorResult, Pace};
use super::control::{FIRST_QPN, MkeyEntry, MkeyFacts, rights};
use super::engine::{Engine, Qp, RemoteKey, UarPage};
use super::memory::{Mapping, PAGE};
use super::tables::{
    self, BlockCounters, Control, EVENT_DOORBELL, EVENT_TRAP, EVENTS, Event, Key, Plain, QpConstants, QpContext,
    QpProgress, Slice, Tables,
};
use super::{HOST_DOORBELL_BYTES, HOST_PAGE_BYTES, REGISTER_STRIDE, REGISTERS_PER_PAGE};
use crate::blueflame;
use crate::error::{Error, Result};
use crate::prm::qpc::QpState;
use crate::provider::Counters;
use crate::wire::cqe::Syndrome;
use crate::wire::{BLOCK_BYTES, cqe, dbr, doorbell};
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a slice may take to notice that it is to end before the HCA counts as dead.
const PAUSE_LIMIT: Duration = Duration::from_secs(20);
/// How often the kernel may hand the same WQE to the host without need.
const DISAGREEMENTS: u32 = 3;

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
    /// Slices launched so far.
    slices: u64,
    /// Slices that had not ended when that was last looked at.
    running: usize,
    /// Slices whose reports were taken in.
    reported: u64,
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
    /// Whether the tables hold what is known of the peer's QP.
    pub connected: bool,
    /// The WQE it last stopped at, the state of the tables then, and how often without a change between.
    stopped_at: (u64, u64, u32),
}

/// The number, from 1, of the register of a QP that has the one of its place.
fn bell_of(qpn: u32) -> u32 {
    qpn - FIRST_QPN + 1
}

impl Offload {
    pub(super) fn new(accelerator: Arc<dyn Accelerator>, rung: Rung, null: bool) -> AcceleratorResult<Self> {
        let memory = accelerator.allocate(size_of::<Tables>() as u64)?;
        let host_doorbells = match rung {
            Rung::ByKernels => None,
            Rung::ByHost | Rung::LikeCards => Some(accelerator.host_memory(HOST_DOORBELL_BYTES as u64)?),
        };
        let mut offload = Self {
            accelerator,
            memory,
            rung,
            host_doorbells,
            null,
            slices: 0,
            running: 0,
            reported: 0,
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
        offload.pause()?;
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

    fn launch(&mut self, run: Duration, idle: Duration) -> AcceleratorResult<()> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.slices += 1;
        let slice = Slice {
            tables: self.memory.address(),
            number: self.slices,
            run_ns: nanos(run),
            idle_ns: nanos(idle),
            registers: self.registers,
            null: u32::from(self.null),
            host_doorbells: self.host_doorbells.as_ref().map_or(0, |memory| memory.address()),
        };
        // SAFETY: the tables are dropped after all slices have ended, and so are mappings.
        unsafe { self.accelerator.launch(&slice) }?;
        self.running += 1;
        Ok(())
    }

    /// Makes the slices that run end, and waits for it.
    fn pause(&mut self) -> AcceleratorResult<()> {
        if self.running == 0 {
            return Ok(());
        }
        self.running = self.accelerator.running()?;
        if self.running == 0 {
            return Ok(());
        }
        self.write(self.at(offset_of!(Tables, control.leave)), &self.slices)?;
        self.finish()
    }

    /// Waits until all slices have ended.
    fn finish(&mut self) -> AcceleratorResult<()> {
        let since = Instant::now();
        let look = self.accelerator.pace().look;
        loop {
            self.running = self.accelerator.running()?;
            if self.running == 0 {
                return Ok(());
            }
            if since.elapsed() > PAUSE_LIMIT {
                return Err(super::AcceleratorError(format!(
                    "{} slices of the engine's kernel did not end within {PAUSE_LIMIT:?}: kernels that wait for the network \
                     have to leave room on the GPU for it",
                    self.running
                )));
            }
            std::thread::sleep(look.min(Duration::from_micros(20)));
        }
    }

    fn change<T: Plain>(&mut self, at: u64, value: &T) -> AcceleratorResult<()> {
        self.pause()?;
        self.changes += 1;
        self.write(at, value)
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        if let Err(error) = self.pause() {
            tracing::error!(%error, "the software HCA's kernel did not end in order");
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
            if offload.running != 0 {
                offload.running = offload.accelerator.running()?;
            }
            let ended = offload.slices - offload.running as u64;
            if ended == offload.reported && !offload.unread {
                return Ok(None);
            }
            offload.reported = ended;
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
        qp.consumer = progress.consumer;
        qp.moved = progress.moved as usize;
        qp.handed.bell = progress.bell;
        qp.handed.cq_producer = progress.cq_producer;
        if let Some(cq) = self.cqs.get_mut(qp.context.cqn_snd) {
            cq.producer = progress.cq_producer;
        }
        progress.trap != 0
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
        if !ready || self.dead.is_some() {
            return false;
        }
        let changes = self.offload.as_ref().map_or(0, |offload| offload.changes);
        let (index, before, count) = qp.handed.stopped_at;
        let again = qp.handed.done && index == qp.consumer && before == changes;
        qp.handed.stopped_at = (qp.consumer, changes, if again { count + 1 } else { 0 });
        if qp.handed.stopped_at.2 > DISAGREEMENTS {
            let text = "the engine's kernel refuses a work request that is in order".to_owned();
            let failure = super::execute::Failure::new(Syndrome::LocalQpOperation, text);
            self.fail(qp, 0, 1, &failure);
            return false;
        }
        if let Some(cq) = self.cqs.get(qp.context.cqn_snd) {
            qp.handed.cq_producer = cq.producer;
        }
        self.write_constants(qp);
        self.write_progress(qp, false);
        qp.handed.trapped = false;
        qp.handed.done = false;
        if self.tracer.is_on() {
            let (qpn, consumer, producer) = (qp.qpn, qp.consumer, qp.producer);
            self.tracer.line("resumed", format_args!("qp={qpn:#x} at={consumer} posted={producer}"));
        }
        if qp.handed.bell != 0 {
            // What was rung meanwhile was rung in vain, so this is done in any case.
            let mut bytes = [0; doorbell::LEN];
            doorbell::Repr::producer(qp.producer as u16, qp.qpn)
                .emit(&mut doorbell::Segment::new_unchecked(&mut bytes[..]));
            let bell = qp.handed.bell;
            self.with_offload(|offload| {
                offload.rings += 1;
                offload.write(offload.register(bell), &u64::from_ne_bytes(bytes))
            });
        }
        true
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
            let registers = host.address() + u64::from(uar - 1) * HOST_PAGE_BYTES as u64;
            // SAFETY: the registers of this page are in the memory of `SoftOptions::host_doorbells`.
            unsafe { offload.accelerator.write(registers, &[0; HOST_PAGE_BYTES]) }?;
            Ok(registers as *mut u8)
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
                UarPage::Accelerator(memory.map_err(|source| Error::Accelerator { what: what(), source })?)
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
        self.offload.as_ref().map_or(0, |offload| offload.running)
    }

    /// Whether there is a QP that could have work.
    fn wants_kernel(&self) -> bool {
        self.dead.is_none() && self.qps.iter().any(|(_, qp)| matches!(qp.state, QpState::Rts | QpState::Err))
    }

    /// Launches slices so that `ahead` are under way. Returns how many are.
    pub(super) fn keep_running(&mut self, ahead: usize, idle: Duration) -> usize {
        if !self.wants_kernel() {
            return self.running();
        }
        self.with_offload(|offload| {
            while offload.running < ahead {
                offload.launch(offload.accelerator.pace().run, idle)?;
            }
            Ok(offload.running)
        })
        .unwrap_or(0)
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
