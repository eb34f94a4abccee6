//! The engine: finds doorbells, fetches WQEs from send queues, executes them in order, and writes CQEs.
//!
//! One engine per HCA, under the HCA's lock. It can be stepped without a thread: [`Engine::progress`].

use super::accelerator::AcceleratorMemory;
use super::control::{MkeyEntry, MkeyFacts, OwnSegment, QpEntry, QpFacts, rights};
use super::copying::Place;
use super::execute::Failure;
use super::fabric::{Peer, Server};
use super::faults::FaultPlan;
use super::memory::{self, Mapping};
use super::offload::{Handed, Offload};
use super::rng::shuffle;
use super::slots::Slots;
use super::trace::Tracer;
use super::{REGISTER_STRIDE, REGISTERS_PER_PAGE, Violation, control, tables};
use crate::port::Gid;
use crate::prm::cq::CqContext;
use crate::prm::mkey::MkeyContext;
use crate::prm::qpc::{QpContext, QpState};
use crate::provider::{Access, Counters};
use crate::wire::cqe::{self, Syndrome};
use crate::wire::{BLOCK_BYTES, MAX_WQE_BLOCKS, dbr, doorbell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// WQEs that one QP may execute before it is another's turn.
const WQES_PER_TURN: usize = 256;
/// Payload bytes that one QP may move before it is another's turn.
pub(super) const BYTES_PER_TURN: usize = 1 << 20;
/// The same where the engine's thread executes by copies: several are under way at a time.
const COPIED_PER_TURN: usize = 16 << 20;
/// Violations that are kept; later ones are only logged.
const MAX_VIOLATIONS: usize = 1024;
/// QPs whose doorbell records are compared in one sweep for lost doorbells.
const SWEEP: usize = 64;
/// Peers whose sockets are looked at in one go: a system call each.
const PEERS_POLLED: usize = 16;
/// Words in a block.
const BLOCK_WORDS: usize = BLOCK_BYTES / 8;

#[derive(Debug, Default)]
pub(super) struct PdState {
    pub users: usize,
}

#[derive(Debug)]
pub(super) struct UarState {
    pub base: *mut u8,
    /// The page, unless it is part of an accelerator's tables.
    pub _page: Option<UarPage>,
    pub users: usize,
    /// QPs that ring here, where they may share registers.
    pub qps: Vec<u32>,
}

/// Memory of a doorbell page of its own.
#[derive(Debug)]
pub(super) enum UarPage {
    Host(Mapping),
    /// Kernels reach it as well.
    Accelerator(Box<dyn AcceleratorMemory>),
}

impl UarPage {
    pub(super) fn ptr(&self) -> *mut u8 {
        match self {
            Self::Host(mapping) => mapping.ptr(),
            Self::Accelerator(memory) => memory.address() as *mut u8,
        }
    }
}

#[derive(Debug)]
pub(super) struct UmemState {
    pub addr: *mut u8,
    pub len: u64,
    pub access: Access,
    pub shared: bool,
    pub users: usize,
}

#[derive(Debug)]
pub(super) struct MkeyState {
    pub facts: MkeyFacts,
    pub context: MkeyContext,
    /// Where `facts.start` is in this process.
    pub base: *mut u8,
}

#[derive(Debug)]
pub(super) struct CqState {
    pub context: CqContext,
    pub umem: u32,
    pub base: *mut u8,
    pub dbr: *const u8,
    pub producer: u32,
    pub users: usize,
}

/// A translated key, kept by the QP that used it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LocalKey {
    pub key: u32,
    pub epoch: u64,
    pub start: u64,
    pub len: u64,
    pub base: *mut u8,
    pub rights: u32,
    /// The memory is this process's too.
    pub on_host: bool,
}

/// A translated remote key.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteKey {
    pub key: u32,
    pub entry: *const MkeyEntry,
    pub seq: u32,
    pub pd: u32,
    pub qpn: u32,
    pub umem: u32,
    pub start: u64,
    pub len: u64,
    pub base: *mut u8,
    pub rights: u32,
}

/// The other end of a connected QP.
#[derive(Debug)]
pub(super) struct Remote {
    /// Index in [`Engine::peers`].
    pub peer: usize,
    pub entry: *const QpEntry,
    /// Counter of `entry` when `facts` were found good; odd, so never equal, when they were not.
    pub seq: u32,
    pub facts: QpFacts,
}

/// The payload and the completion of a write that are held back (fault `visibility`).
#[derive(Debug)]
pub(super) struct Deferred {
    pub until: Instant,
    pub order: u64,
    pub dst: *mut u8,
    pub payload: Vec<u8>,
    pub cqe: Option<cqe::Repr>,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub qpn: u32,
    /// Place in the order of creation, from 0.
    pub ordinal: u64,
    pub state: QpState,
    pub context: QpContext,
    pub sq: *const u8,
    pub sq_umem: u32,
    pub dbr: *const u8,
    /// Blocks executed.
    pub consumer: u64,
    /// Blocks that the doorbell record covered when it was last read.
    pub producer: u64,
    pub doorbells: u64,
    /// Whether it is in [`Engine::active`].
    pub active: bool,
    pub remote: Option<Remote>,
    pub local_key: Option<LocalKey>,
    pub remote_keys: [Option<RemoteKey>; 4],
    /// Bytes of the current WQE that are already moved.
    pub moved: usize,
    pub stalled: Option<Instant>,
    pub hold: Hold,
    pub deferred: Option<Deferred>,
    pub handed: Handed,
}

/// What a fault plan makes the current WQE wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Not decided yet.
    Undecided,
    /// Until then, and so many passes.
    Until(Instant, u32),
    /// It may run.
    Released,
}

impl Qp {
    pub(super) fn depth(&self) -> u64 {
        1 << self.context.log_sq_size
    }

    /// How long the QP tries before it gives up; `None` is for ever (`ack_timeout` 0).
    pub(super) fn retry_budget(&self) -> Option<Duration> {
        let timeout = self.context.primary_address_path.ack_timeout;
        let tries = u64::from(self.context.retry_count) + 1;
        (timeout != 0).then(|| Duration::from_nanos((4096u64 << timeout) * tries))
    }

    fn has_work(&self) -> bool {
        self.consumer != self.producer || self.deferred.is_some()
    }

    /// Forget everything about queue contents and the peer.
    pub(super) fn reset(&mut self) {
        self.consumer = 0;
        self.producer = 0;
        self.moved = 0;
        self.stalled = None;
        self.hold = Hold::Undecided;
        self.deferred = None;
        self.remote = None;
        self.local_key = None;
        self.remote_keys = [None; 4];
        self.handed = Handed::default();
    }

    pub(super) fn facts(&self) -> QpFacts {
        let path = &self.context.primary_address_path;
        let mut accepted = 0;
        for (set, right) in [
            (self.context.rre, rights::REMOTE_READ),
            (self.context.rwe, rights::REMOTE_WRITE),
            (self.context.rae && self.context.atomic_mode != 0, rights::REMOTE_ATOMIC),
        ] {
            accepted |= if set { right } else { 0 };
        }
        QpFacts {
            qpn: self.qpn,
            state: self.state as u32,
            pd: self.context.pd,
            rights: accepted,
            remote_qpn: self.context.remote_qpn,
            rcv_psn: self.context.next_rcv_psn,
            remote_gid: Gid::from_halves(path.rgid_hi, path.rgid_lo),
        }
    }
}

/// What a step of a QP came to.
pub(super) enum Step {
    /// The WQE is done.
    Done,
    /// Nothing more can be done now.
    Wait,
}

/// The engine of a software HCA.
#[derive(Debug)]
pub(super) struct Engine {
    /// First, so that nothing runs any more when what it uses is dropped.
    pub(super) offload: Option<Offload>,
    pub(super) gid: Gid,
    pub(super) control: OwnSegment,
    pub(super) server: Server,
    pub(super) pds: Slots<PdState>,
    pub(super) uars: Slots<UarState>,
    pub(super) umems: HashMap<u32, UmemState>,
    pub(super) next_umem: u32,
    pub(super) mkeys: Slots<MkeyState>,
    pub(super) cqs: Slots<CqState>,
    pub(super) qps: Slots<Box<Qp>>,
    pub(super) created: u64,
    pub(super) peers: Vec<Peer>,
    /// Raised whenever a key comes or goes; cached local keys of older epochs are looked up again.
    pub(super) key_epoch: u64,
    /// Address and UAR page of each doorbell register.
    registers: Vec<(*mut u8, u32)>,
    active: Vec<u32>,
    spare: Vec<u32>,
    pub(super) faults: FaultPlan,
    pub(super) faulty: bool,
    /// QPs share registers, so a doorbell may have covered up another.
    pub(super) card_doorbells: bool,
    pub(super) tracer: Tracer,
    pub(super) counters: Counters,
    pub(super) violations: Vec<Violation>,
    pub(super) dead: Option<String>,
    opened: Instant,
    now: Option<Instant>,
    sweep_at: usize,
    poll_at: usize,
}

// SAFETY: the raw pointers are addresses of shared memory that the registrations promise to keep mapped, or lie in mappings that the
// engine owns; they are not tied to a thread.
unsafe impl Send for Engine {}

impl Engine {
    pub(super) fn new(
        gid: Gid,
        control: OwnSegment,
        server: Server,
        faults: FaultPlan,
        tracer: Tracer,
        offload: Option<Offload>,
        card_doorbells: bool,
    ) -> Self {
        let limit = |on_host: usize, in_tables: usize| if offload.is_some() { in_tables } else { on_host };
        let uars = Slots::new(1, limit(1 << 12, tables::PAGES));
        let mkeys = Slots::new(control::FIRST_MKEY, limit(control::MAX_MKEYS, tables::LOCAL_KEYS));
        let qps = Slots::new(control::FIRST_QPN, limit(control::MAX_QPS, tables::QPS));
        Self {
            offload,
            gid,
            control,
            server,
            pds: Slots::new(1, 1 << 16),
            uars,
            umems: HashMap::new(),
            next_umem: 1,
            mkeys,
            cqs: Slots::new(0x400, 1 << 16),
            qps,
            created: 0,
            peers: Vec::new(),
            key_epoch: 0,
            registers: Vec::new(),
            active: Vec::new(),
            spare: Vec::new(),
            faulty: faults.is_active(),
            faults,
            card_doorbells,
            tracer,
            counters: Counters::default(),
            violations: Vec::new(),
            dead: None,
            opened: Instant::now(),
            now: None,
            sweep_at: 0,
            poll_at: 0,
        }
    }

    /// One pass: take in doorbells, and give each QP with work one turn. Returns how much was done; 0 means nothing.
    pub(super) fn progress(&mut self) -> usize {
        if self.dead.is_some() {
            return 0;
        }
        self.now = None;
        let mut work = 0;
        if self.is_offloaded() {
            work += self.collect();
            self.watch_slices();
        }
        work += self.scan_doorbells();
        let copying = self.is_copying();
        if copying {
            work += self.begin_pass();
        }
        if self.active.is_empty() {
            return work;
        }
        let mut turn = std::mem::replace(&mut self.active, std::mem::take(&mut self.spare));
        if self.faults.reorder > 0.0 {
            shuffle(&mut turn, self.faults.seed ^ self.counters.wqes);
        }
        for qpn in turn.drain(..) {
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            work += self.run(&mut qp);
            let given_back = self.hand_back(&mut qp);
            work += usize::from(given_back);
            qp.active = !given_back && qp.has_work() && self.dead.is_none();
            if qp.active {
                self.active.push(qpn);
            }
            self.qps.put_back(qpn, qp);
        }
        self.spare = turn;
        if copying {
            work += self.end_pass();
        }
        work
    }

    /// Gives these QPs no turns.
    pub(super) fn deactivate(&mut self, qpns: &[u32]) {
        self.active.retain(|qpn| !qpns.contains(qpn));
    }

    /// Whether a QP waits for time to pass, a peer, or its turn.
    pub(super) fn is_waiting(&self) -> bool {
        !self.active.is_empty() && self.dead.is_none()
    }

    /// Nobody has had work for a while, so nobody is about to overtake: WQEs that sit out passes wait for time alone.
    pub(super) fn end_reordering(&mut self) {
        for at in 0..self.active.len() {
            let qpn = self.active[at];
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            if let Hold::Until(_, passes) = &mut qp.hold {
                *passes = 0;
            }
            self.qps.put_back(qpn, qp);
        }
    }

    /// What need not happen in every pass: notice peers that are gone, and work whose doorbell was lost.
    pub(super) fn housekeeping(&mut self) -> usize {
        if self.dead.is_some() {
            return 0;
        }
        let mut news = 0;
        for _ in 0..self.peers.len().min(PEERS_POLLED) {
            self.poll_at = (self.poll_at + 1) % self.peers.len();
            news += usize::from(self.peers[self.poll_at].poll());
        }
        if self.is_offloaded() {
            self.review_peers();
        }
        if self.peers.iter().any(Peer::has_withdrawn) {
            self.pause();
            self.unmap_withdrawn();
        }
        let places = self.qps.places();
        let mut found = 0;
        for _ in 0..places.min(SWEEP) {
            self.sweep_at = (self.sweep_at + 1) % places;
            let qpn = self.qps.number(self.sweep_at);
            let Some(mut qp) = self.qps.lend(qpn) else { continue };
            // The kernel looks after its own.
            let ours = !self.is_offloaded() || qp.handed.trapped && !qp.active && !self.is_copying();
            if ours && matches!(qp.state, QpState::Rts | QpState::Err) && self.read_doorbell_record(&mut qp, None) {
                self.counters.recovered += u64::from(!qp.handed.trapped);
                found += 1;
                if self.tracer.is_on() {
                    let producer = qp.producer as u16;
                    self.tracer.line("recover", format_args!("qp={qpn:#x} dbr={producer}"));
                }
            }
            self.qps.put_back(qpn, qp);
        }
        news + found
    }

    /// Unmap memory that peers have withdrawn, after every payload that may be meant for it has been delivered.
    #[cold]
    fn unmap_withdrawn(&mut self) {
        for place in 0..self.qps.places() {
            let qpn = self.qps.number(place);
            if let Some(mut qp) = self.qps.lend(qpn) {
                self.release_deferred(&mut qp);
                self.qps.put_back(qpn, qp);
            }
        }
        self.peers.iter_mut().for_each(Peer::unmap_withdrawn);
    }

    /// Whether a doorbell waits to be taken in.
    pub(super) fn doorbell_pending(&self) -> bool {
        // SAFETY: registers lie in UAR pages that the engine owns.
        self.registers.iter().any(|(register, _)| unsafe { memory::load64(*register, Ordering::Relaxed) } != 0)
    }

    /// Rebuild the list of registers after a UAR page came or went.
    pub(super) fn list_registers(&mut self) {
        if self.is_offloaded() && !self.card_doorbells {
            let highest = self.uars.iter().map(|(number, _)| number).max();
            self.watch_pages(highest.unwrap_or_default());
            return;
        }
        self.registers = self
            .uars
            .iter()
            .flat_map(|(number, uar)| {
                let base = uar.base;
                (0..REGISTERS_PER_PAGE).map(move |i| {
                    // SAFETY: the register lies within the page.
                    (unsafe { base.add(doorbell::FIRST_REGISTER + i * REGISTER_STRIDE) }, number)
                })
            })
            .collect();
    }

    fn scan_doorbells(&mut self) -> usize {
        let mut rung = 0;
        for i in 0..self.registers.len() {
            let (register, uar) = self.registers[i];
            // SAFETY: registers lie in UAR pages that the engine owns, aligned to 8.
            let value = unsafe { AtomicU64::from_ptr(register.cast()) };
            if value.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: the doorbell record and the WQEs that it covers were written before.
            let value = value.swap(0, Ordering::Acquire);
            self.counters.doorbells += 1;
            rung += 1;
            self.ring(value, uar);
            if self.card_doorbells {
                self.look_behind(uar);
            }
        }
        rung
    }

    /// Look at the doorbell records of all QPs that ring in this page: a register keeps the last doorbell only.
    fn look_behind(&mut self, uar: u32) {
        let Some(page) = self.uars.get_mut(uar) else { return };
        let qps = std::mem::take(&mut page.qps);
        for qpn in &qps {
            let Some(mut qp) = self.qps.lend(*qpn) else { continue };
            if self.is_offloaded() {
                self.ring_kernel(&qp);
            } else if matches!(qp.state, QpState::Rts | QpState::Err) {
                self.read_doorbell_record(&mut qp, None);
            }
            self.qps.put_back(*qpn, qp);
        }
        if let Some(page) = self.uars.get_mut(uar) {
            page.qps = qps;
        }
    }

    fn ring(&mut self, value: u64, uar: u32) {
        let bell = match doorbell::Repr::from_register(value) {
            Ok(bell) => bell,
            Err(error) => return self.violation(0, 0, None, format!("doorbell in UAR page {uar}: {error}")),
        };
        if self.tracer.is_on() {
            self.tracer.line("doorbell", format_args!("{bell} uar={uar}"));
        }
        let Some(mut qp) = self.qps.lend(bell.qpn) else {
            return self.violation(bell.qpn, bell.index.into(), None, format!("doorbell.qpn: no QP {:#x}", bell.qpn));
        };
        qp.doorbells += 1;
        if self.faults.loses_doorbell(qp.ordinal, qp.doorbells) {
            if self.tracer.is_on() {
                self.tracer.line("fault", format_args!("lost doorbell {bell}"));
            }
        } else if qp.context.uar_page != uar {
            let text = format!("doorbell in UAR page {uar}, but the QP was created with page {}", qp.context.uar_page);
            self.violation(qp.qpn, bell.index.into(), None, text);
        } else if matches!(qp.state, QpState::Rts | QpState::Err) {
            // The kernel looks at the record itself, of this QP and of those behind it.
            if !self.is_offloaded() {
                self.read_doorbell_record(&mut qp, Some(bell.index));
            }
        } else {
            let text = format!("doorbell in state {}; it must be RTS", qp.state.name());
            self.violation(qp.qpn, bell.index.into(), None, text);
        }
        self.qps.put_back(bell.qpn, qp);
    }

    /// Take over the doorbell record. Returns true if it moved.
    pub(super) fn read_doorbell_record(&mut self, qp: &mut Qp, rung: Option<u16>) -> bool {
        let record = qp.dbr.wrapping_add(dbr::SEND_OFFSET);
        let word = if self.is_offloaded() {
            self.load_offloaded(record.addr() as u64)
        } else {
            // SAFETY: the record lies in a umem that stays registered while the QP lives, aligned to 8.
            unsafe { memory::load32(record, Ordering::Acquire) }
        };
        self.take_record(qp, word, rung)
    }

    /// Take over the doorbell record, whose word this is as it lies in memory. Returns true if it moved.
    pub(super) fn take_record(&mut self, qp: &mut Qp, word: u32, rung: Option<u16>) -> bool {
        let word = u32::from_be(word);
        let problem = match dbr::Repr::from_word(word) {
            Err(error) => error.to_string(),
            Ok(record) => {
                let producer = qp.producer + u64::from(record.send.wrapping_sub(qp.producer as u16));
                let ahead = rung.filter(|rung| record.send.wrapping_sub(*rung) > 1 << 15);
                if producer - qp.consumer > qp.depth() {
                    format!(
                        "dbr.send is {}: it covers {} blocks that are not executed yet, but the queue has {}",
                        record.send,
                        producer - qp.consumer,
                        qp.depth()
                    )
                } else {
                    if let Some(rung) = ahead {
                        let text = format!("doorbell.index is {rung}, ahead of the doorbell record, {}", record.send);
                        self.violation(qp.qpn, producer, None, text);
                    }
                    let moved = producer != qp.producer;
                    qp.producer = producer;
                    if moved {
                        self.activate(qp);
                    }
                    return moved;
                }
            }
        };
        if qp.state == QpState::Rts {
            let failure = Failure::new(Syndrome::LocalQpOperation, problem);
            self.fail(qp, 0, qp.consumer, &failure);
        }
        false
    }

    /// Give the QP turns from the next pass on.
    pub(super) fn activate(&mut self, qp: &mut Qp) {
        if !qp.active {
            qp.active = true;
            self.active.push(qp.qpn);
        }
    }

    pub(super) fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }

    /// One turn of a QP. Returns the number of WQEs done.
    fn run(&mut self, qp: &mut Qp) -> usize {
        let mut done = 0;
        let copying = self.is_copying();
        let mut budget = if copying { COPIED_PER_TURN } else { BYTES_PER_TURN };
        while qp.consumer != qp.producer && (done < WQES_PER_TURN || copying) && self.dead.is_none() {
            if copying && done != 0 && !self.has_image(qp) {
                break;
            }
            match self.step(qp, &mut budget) {
                Step::Done => done += 1,
                Step::Wait => break,
            }
        }
        if qp.deferred.as_ref().is_some_and(|deferred| deferred.until <= self.now()) {
            self.release_deferred(qp);
            done += 1;
        }
        done
    }

    /// Execute, continue or flush the WQE at the consumer index.
    fn step(&mut self, qp: &mut Qp, budget: &mut usize) -> Step {
        let mut first = [0u64; BLOCK_WORDS];
        self.fetch(qp, qp.consumer, &mut first);
        let ds = first[0].to_ne_bytes()[7] & 0x3f;
        let blocks = u64::from(ds).div_ceil(4).max(1);
        let available = qp.producer - qp.consumer;
        let opcode = first[0].to_ne_bytes()[3];
        if qp.state != QpState::Rts {
            self.flush(qp, opcode, blocks.min(available));
            return Step::Done;
        }
        if self.faulty && self.holds(qp) {
            return Step::Wait;
        }
        if qp.deferred.is_some() {
            self.release_deferred(qp);
        }
        if blocks > available {
            let text =
                format!("ctrl.qpn_ds.ds is {ds}: {blocks} blocks, but the doorbell record covers only {available}");
            let failure = Failure::new(Syndrome::LocalQpOperation, text);
            self.fail(qp, opcode, available, &failure);
            return Step::Done;
        }
        if blocks == 1 {
            self.execute(qp, as_bytes(&first), blocks, budget)
        } else {
            let mut words = [0u64; MAX_WQE_BLOCKS * BLOCK_WORDS];
            let (head, rest) = words.split_at_mut(BLOCK_WORDS);
            head.copy_from_slice(&first);
            for i in 1..blocks {
                let at = (i as usize - 1) * BLOCK_WORDS;
                if let Some(block) = rest[at..].first_chunk_mut() {
                    self.fetch(qp, qp.consumer + i, block);
                }
            }
            self.execute(qp, as_bytes(&words), blocks, budget)
        }
    }

    /// Whether the fault plan makes the next WQE wait.
    fn holds(&mut self, qp: &mut Qp) -> bool {
        if self.faults.delay.is_zero() && self.faults.reorder == 0.0 {
            return false;
        }
        match qp.hold {
            Hold::Released => false,
            Hold::Undecided => {
                let delay = self.faults.delay(qp.ordinal, qp.consumer);
                let passes = self.faults.passes(qp.ordinal, qp.consumer);
                if delay.is_zero() && passes == 0 {
                    qp.hold = Hold::Released;
                    return false;
                }
                qp.hold = Hold::Until(self.now() + delay, passes);
                true
            }
            Hold::Until(until, passes) => {
                let now = self.now();
                if passes == 0 && until <= now {
                    qp.hold = Hold::Released;
                    return false;
                }
                qp.hold = Hold::Until(until, passes.saturating_sub(1));
                true
            }
        }
    }

    /// The WQE is done: move on, and write its CQE if asked for.
    #[inline]
    pub(super) fn complete(&mut self, qp: &mut Qp, opcode: u8, blocks: u64, bytes: u64, signaled: bool) {
        // Whoever sees a later store of this QP also sees this WQE's payload.
        fence(Ordering::Release);
        let index = qp.consumer;
        self.advance(qp, blocks);
        self.counters.bytes += bytes;
        if signaled {
            let timestamp = self.now().duration_since(self.opened).as_nanos() as u64;
            let status = cqe::Status::Done { byte_cnt: bytes as u32, timestamp };
            let repr = cqe::Repr { wqe_opcode: opcode, qpn: qp.qpn, wqe_counter: index as u16, owner: false, status };
            match &mut qp.deferred {
                Some(deferred) => deferred.cqe = Some(repr),
                None => self.write_cqe(qp, repr),
            }
        }
    }

    fn advance(&mut self, qp: &mut Qp, blocks: u64) {
        qp.consumer += blocks;
        qp.moved = 0;
        qp.stalled = None;
        qp.hold = Hold::Undecided;
        self.counters.wqes += 1;
        if self.faults.die_after.is_some_and(|limit| self.counters.wqes >= limit) {
            self.die("fault die-after");
        }
    }

    /// The WQE failed: write an error CQE and move the QP to the error state.
    #[cold]
    pub(super) fn fail(&mut self, qp: &mut Qp, opcode: u8, blocks: u64, failure: &Failure) {
        let index = qp.consumer;
        let syndrome = failure.syndrome;
        self.violation(qp.qpn, index, Some(syndrome), failure.text.clone());
        self.set_state(qp, QpState::Err);
        if qp.deferred.is_some() {
            self.release_deferred(qp);
        }
        let blocks = blocks.min(qp.producer - qp.consumer);
        self.advance(qp, blocks);
        self.write_error(qp, opcode, index, syndrome);
        self.activate(qp);
    }

    #[cold]
    fn flush(&mut self, qp: &mut Qp, opcode: u8, blocks: u64) {
        if qp.deferred.is_some() {
            self.release_deferred(qp);
        }
        let index = qp.consumer;
        qp.consumer += blocks;
        qp.moved = 0;
        qp.stalled = None;
        qp.hold = Hold::Undecided;
        self.write_error(qp, opcode, index, Syndrome::WrFlush);
    }

    fn write_error(&mut self, qp: &mut Qp, opcode: u8, index: u64, syndrome: Syndrome) {
        self.counters.errors += 1;
        let status = cqe::Status::Error { syndrome: syndrome as u8, vendor_syndrome: 0 };
        self.write_cqe(
            qp,
            cqe::Repr { wqe_opcode: opcode, qpn: qp.qpn, wqe_counter: index as u16, owner: false, status },
        );
    }

    fn write_cqe(&mut self, qp: &mut Qp, mut repr: cqe::Repr) {
        let Some(cq) = self.cqs.get_mut(qp.context.cqn_snd) else { return };
        let log_size = cq.context.log_cq_size;
        if !cq.context.oi {
            // SAFETY: the record lies in a umem that stays registered while the CQ lives, aligned to 8. Its first word is the
            // consumer counter, 24 bits.
            let consumer = u32::from_be(unsafe { memory::load32(cq.dbr, Ordering::Acquire) }) & 0xff_ffff;
            if cq.producer.wrapping_sub(consumer) & 0xff_ffff >= 1 << log_size {
                let text =
                    format!("CQ {:#x} overran: {} entries, none consumed in time", qp.context.cqn_snd, 1 << log_size);
                self.violation(qp.qpn, repr.wqe_counter.into(), None, text);
                self.set_state(qp, QpState::Err);
                return;
            }
        }
        repr.owner = cq.producer >> log_size & 1 != 0;
        let slot = if cq.context.cc { 0 } else { cq.producer & ((1 << log_size) - 1) };
        cq.producer = cq.producer.wrapping_add(1) & 0xff_ffff;
        let mut bytes = [0; cqe::LEN];
        repr.emit(&mut cqe::Segment::new_unchecked(&mut bytes[..]));
        let at = cq.base.wrapping_add(slot as usize * cqe::LEN);
        let umem = cq.umem;
        if self.is_offloaded() {
            let at = Place { address: at.addr() as u64, on_host: self.is_on_host(umem) };
            if self.is_copying() {
                self.with_copying(|copying| {
                    copying.complete(qp.qpn, at, &bytes);
                    Ok(())
                });
            } else {
                self.store_cqe_offloaded(at.address, &bytes);
            }
            return self.wrote_cqe(&repr);
        }
        // SAFETY: the queue lies in a umem that stays registered while the CQ lives, aligned to 64; the slot is below its size.
        unsafe {
            for offset in (0..cqe::TAIL_OFFSET).step_by(8) {
                memory::store64(at.add(offset), word(&bytes, offset), Ordering::Relaxed);
            }
            // Release: payload and body come before the words that a poller looks at.
            memory::store64(at.add(cqe::TAIL_OFFSET), word(&bytes, cqe::TAIL_OFFSET), Ordering::Release);
        }
        self.wrote_cqe(&repr);
    }

    fn wrote_cqe(&mut self, repr: &cqe::Repr) {
        self.counters.cqes += 1;
        if self.tracer.is_on() {
            self.tracer.line("cqe", format_args!("{repr}"));
        }
    }

    /// Whether the next block of a QP's queue has been fetched with others.
    fn has_image(&self, qp: &Qp) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.image(qp.qpn, qp.consumer).is_some())
    }

    /// Read one block of a send queue.
    #[inline]
    fn fetch(&mut self, qp: &Qp, index: u64, block: &mut [u64; BLOCK_WORDS]) {
        let slot = (index & (qp.depth() - 1)) as usize;
        let at = qp.sq.wrapping_add(slot * BLOCK_BYTES);
        if self.is_offloaded() {
            let image = self.offload.as_ref().and_then(|offload| offload.image(qp.qpn, index));
            let Some(image) = image else { return self.fetch_offloaded(at.addr() as u64, block) };
            for (i, word) in block.iter_mut().enumerate() {
                // SAFETY: a block of an image.
                *word = unsafe { image.cast::<u64>().add(i).read_unaligned() };
            }
            return;
        }
        // SAFETY: the queue lies in a umem that stays registered while the QP lives, is `depth` blocks long and aligned to 64.
        unsafe {
            for (i, word) in block.iter_mut().enumerate() {
                *word = memory::load64(at.add(i * 8), Ordering::Relaxed);
            }
        }
    }

    /// Make a payload that was held back visible, in a scrambled order, and write its CQE.
    pub(super) fn release_deferred(&mut self, qp: &mut Qp) {
        let Some(deferred) = qp.deferred.take() else { return };
        let Deferred { dst, payload, order, cqe, .. } = deferred;
        let len = payload.len();
        let whole = matches!(len, 1 | 2 | 4 | 8) && dst.addr().is_multiple_of(len);
        // SAFETY: `dst` was translated and checked for `len` bytes. The key may be gone since, but the peer's memory is unmapped only
        // after `unmap_withdrawn` has released what is held back.
        unsafe {
            if whole {
                memory::copy(dst, payload.as_ptr(), len);
            } else {
                let mut pieces: Vec<usize> = (0..len).collect();
                shuffle(&mut pieces, order);
                for at in pieces {
                    memory::copy_byte(dst.add(at), payload.as_ptr().add(at));
                }
            }
        }
        fence(Ordering::Release);
        if let Some(cqe) = cqe {
            self.write_cqe(qp, cqe);
        }
    }

    /// Change a QP's state and tell peers.
    pub(super) fn set_state(&mut self, qp: &mut Qp, state: QpState) {
        qp.state = state;
        qp.context.state = state as u8;
        self.write_constants(qp);
        self.control.publish_qp(qp.qpn, &qp.facts());
        if self.tracer.is_on() {
            self.tracer.line("state", format_args!("qp={:#x} {}", qp.qpn, state.name()));
        }
    }

    /// Keep what a strict check found.
    #[cold]
    pub(super) fn violation(&mut self, qpn: u32, wqe_index: u64, syndrome: Option<Syndrome>, message: String) {
        let violation = Violation { qpn, wqe_index, syndrome, message };
        tracing::warn!(gid = %self.gid, %violation, "software HCA");
        if self.tracer.is_on() {
            self.tracer.line("violation", format_args!("{violation}"));
        }
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        }
    }

    /// Stop executing, for ever.
    pub(super) fn die(&mut self, reason: &str) {
        if self.dead.is_none() {
            tracing::warn!(gid = %self.gid, reason, "the software HCA died");
            if self.tracer.is_on() {
                self.tracer.line("dead", format_args!("{reason}"));
            }
            self.dead = Some(reason.to_owned());
            self.control.set_dead();
            self.pause();
        }
    }
}

/// The memory image of words.
fn as_bytes(words: &[u64]) -> &[u8] {
    // SAFETY: any initialised words are valid bytes, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// The word whose memory image starts at `at`.
fn word(bytes: &[u8; cqe::LEN], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}
