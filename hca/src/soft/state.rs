//! What the engine of a software HCA keeps: its objects, its peers, and where each queue pair is.
//!
//! What the engine does with it is in files by subject: [`engine`](super::engine) gives queue pairs
//! their turns, [`doorbells`](super::doorbells) takes in what was rung, [`execute`](super::execute)
//! carries work requests out, [`completions`](super::completions) reports them,
//! [`firmware`](super::firmware) executes commands, and [`gpu_engine`](super::gpu_engine) has a
//! kernel do the work.

use super::accelerator::AcceleratorMemory;
use super::control::{self, MkeyEntry, MkeyFacts, OwnSegment, QpEntry, QpFacts, rights};
use super::fabric::copier::Registered;
use super::fabric::flight::{Flow, Unfilled};
use super::fabric::link::Link;
use super::fabric::peer::Peer;
use super::fabric::shared::Server;
use super::faults::FaultPlan;
use super::gpu_engine::GpuEngine;
use super::memory::Mapping;
use super::slots::Slots;
use super::tables::{self, QpConstants};
use super::trace::Tracer;
use super::violation::Violation;
use crate::port::Gid;
use crate::prm::counter::QueryQCounterOut;
use crate::prm::cq::CqContext;
use crate::prm::qpc::{QpContext, QpState, SendDbrMode};
use crate::provider::{Access, Counters, QpFailure};
use crate::wire::cqe::{self, Syndrome};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Violations that are kept; later ones are only logged.
const MAX_VIOLATIONS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct PdState {
    pub users: usize,
}

#[derive(Debug)]
pub(super) struct UarState {
    pub base: *mut u8,
    /// The page, unless it is part of an accelerator's tables.
    pub page: Option<UarPage>,
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

/// An acknowledged write that is not visible yet; see `late.rs`.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) until: Instant,
    /// Index in [`Engine::peers`].
    pub(super) peer: usize,
    pub(super) dst: *mut u8,
    pub(super) payload: Vec<u8>,
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
    /// [`UNMET`](control::UNMET) until the peer's control segment is here.
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

/// What the source of a write was when its doorbell came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    /// Block index of the write.
    pub index: u64,
    /// When it may start.
    pub until: Instant,
    pub digest: u64,
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
    /// What it has done, as far as the engine on the CPU did it.
    pub counters: Counters,
    /// Whether it is in [`Engine::active`].
    pub active: bool,
    /// The peer, if it is on this node.
    pub remote: Option<Remote>,
    /// What is under way to the peer, if it is on another node.
    pub flow: Option<Box<Flow>>,
    pub local_key: Option<LocalKey>,
    pub remote_keys: [Option<RemoteKey>; 4],
    /// Bytes of the current WQE that are already moved.
    pub moved: usize,
    pub stalled: Option<Instant>,
    pub hold: Hold,
    pub deferred: Option<Deferred>,
    /// Sources of writes that have not started, by block index (fault `sources`).
    pub sources: VecDeque<Source>,
    pub handed: Handed,
    /// What failed first on it since it was last reset.
    pub failure: Option<QpFailure>,
}

/// What a fault plan makes the current WQE wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Not decided yet.
    Undecided,
    /// Until then, and for that many passes.
    Until(Instant, u32),
    /// It may run.
    Released,
}

/// A doorbell register that the engine's thread looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Register {
    pub at: *mut u8,
    /// Number of its page.
    pub uar: u32,
    /// What QPs ring there.
    pub mode: SendDbrMode,
}

impl Qp {
    /// Returns whether it has a doorbell record; CREATE_QP has checked the field.
    pub(super) fn mode(&self) -> SendDbrMode {
        SendDbrMode::from_u8(self.context.send_dbr_mode).unwrap_or_default()
    }

    pub(super) fn depth(&self) -> u64 {
        1 << self.context.log_sq_size
    }

    /// Returns how long the QP tries before it gives up; `None` is forever (`ack_timeout` 0).
    pub(super) fn retry_budget(&self) -> Option<Duration> {
        let timeout = self.context.primary_address_path.ack_timeout;
        let tries = u64::from(self.context.retry_count) + 1;
        (timeout != 0).then(|| Duration::from_nanos((4096u64 << timeout) * tries))
    }

    pub(super) fn has_work(&self) -> bool {
        let under_way = self.flow.as_ref().is_some_and(|flow| !flow.flights.is_empty());
        self.consumer != self.producer || self.deferred.is_some() || under_way
    }

    /// Forgets what is under way to another node; the QP goes on with the first WQE of it.
    pub(super) fn rewind(&mut self) {
        if let Some(first) = self.flow.as_mut().and_then(|flow| flow.rewind()) {
            self.consumer = first;
            self.moved = 0;
            self.hold = Hold::Undecided;
        }
    }

    /// Forgets everything about queue contents and the peer.
    pub(super) fn reset(&mut self) {
        self.consumer = 0;
        self.producer = 0;
        self.moved = 0;
        self.stalled = None;
        self.hold = Hold::Undecided;
        self.deferred = None;
        self.sources.clear();
        self.remote = None;
        self.flow = None;
        self.local_key = None;
        self.remote_keys = [None; 4];
        self.handed = Handed::default();
        self.failure = None;
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
            log_rra_max: self.context.log_rra_max.into(),
            remote_gid: Gid::from_halves(path.rgid_hi, path.rgid_lo),
        }
    }
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
    pub written: Option<QpConstants>,
    /// The WQE it last stopped at, the state of the tables then, and how often without a change
    /// between.
    pub stopped_at: (u64, u64, u32),
}

/// The engine of a software HCA.
#[derive(Debug)]
pub(super) struct Engine {
    /// First, so that nothing runs any more when what it uses is dropped.
    pub(super) gpu: Option<GpuEngine>,
    pub(super) gid: Gid,
    pub(super) control: OwnSegment,
    pub(super) server: Server,
    pub(super) pds: Slots<PdState>,
    pub(super) uars: Slots<UarState>,
    pub(super) umems: HashMap<u32, UmemState>,
    pub(super) next_umem: u32,
    /// Memory of kernels that peers may use, for the thread that serves other nodes.
    pub(super) registered: Arc<Mutex<Registered>>,
    pub(super) mkeys: Slots<MkeyState>,
    pub(super) cqs: Slots<CqState>,
    pub(super) error_counters: Slots<QueryQCounterOut>,
    pub(super) qps: Slots<Box<Qp>>,
    pub(super) created: u64,
    pub(super) peers: Vec<Peer>,
    /// HCAs of other nodes; one is missing while it is looked at.
    pub(super) links: Vec<Option<Box<Link>>>,
    /// A piece of a payload on its way to another node.
    pub(super) piece: Vec<u8>,
    /// Pieces in requests to other nodes that are still to be copied there.
    pub(super) unfilled: Vec<Unfilled>,
    /// Raised whenever a key comes or goes; cached local keys of older epochs are looked up again.
    pub(super) key_epoch: u64,
    /// Address and UAR page of each doorbell register.
    pub(super) registers: Vec<Register>,
    pub(super) active: Vec<u32>,
    pub(super) spare: Vec<u32>,
    pub(super) faults: FaultPlan,
    pub(super) faulty: bool,
    /// QPs share registers, so a doorbell may have covered up another.
    pub(super) card_doorbells: bool,
    /// Whether writes are acknowledged before they are visible, and those that are not yet.
    pub(super) late_visibility: bool,
    /// Whether those become visible in any order.
    pub(super) unordered_visibility: bool,
    pub(super) late: VecDeque<Late>,
    pub(super) tracer: Tracer,
    pub(super) counters: Counters,
    pub(super) violations: Vec<Violation>,
    pub(super) dead: Option<String>,
    pub(super) opened: Instant,
    pub(super) now: Option<Instant>,
    pub(super) sweep_at: usize,
    pub(super) poll_at: usize,
    pub(super) link_at: usize,
}

/// What an engine is made of.
pub(super) struct EngineParts {
    pub gid: Gid,
    pub control: OwnSegment,
    pub server: Server,
    pub faults: FaultPlan,
    pub tracer: Tracer,
    /// The engine on a GPU, if work is done there.
    pub gpu: Option<GpuEngine>,
    /// QPs share registers.
    pub card_doorbells: bool,
}

// SAFETY: the raw pointers are addresses of shared memory that the registrations promise to keep
// mapped, or lie in mappings that the engine owns; they are not tied to a thread.
unsafe impl Send for Engine {}

impl Engine {
    pub(super) fn new(parts: EngineParts) -> Self {
        let EngineParts { gid, control, server, faults, tracer, gpu, card_doorbells } = parts;
        let limit = |on_host: usize, in_tables: usize| if gpu.is_some() { in_tables } else { on_host };
        let uars = Slots::new(1, limit(1 << 12, tables::PAGES));
        let mkeys = Slots::new(control::FIRST_MKEY, limit(control::MAX_MKEYS, tables::LOCAL_KEYS));
        let qps = Slots::new(control::FIRST_QPN, limit(control::MAX_QPS, tables::QPS));
        Self {
            gpu,
            gid,
            control,
            server,
            pds: Slots::new(1, 1 << 16),
            uars,
            umems: HashMap::new(),
            next_umem: 1,
            registered: Arc::default(),
            mkeys,
            cqs: Slots::new(0x400, 1 << 16),
            // Set 0 is what a QP has that is given none; a number has 8 bits.
            error_counters: Slots::new(1, 255),
            qps,
            created: 0,
            peers: Vec::new(),
            links: Vec::new(),
            piece: Vec::new(),
            unfilled: Vec::new(),
            key_epoch: 0,
            registers: Vec::new(),
            active: Vec::new(),
            spare: Vec::new(),
            faulty: faults.is_active(),
            faults,
            card_doorbells,
            late_visibility: false,
            unordered_visibility: false,
            late: VecDeque::new(),
            tracer,
            counters: Counters::default(),
            violations: Vec::new(),
            dead: None,
            opened: Instant::now(),
            now: None,
            sweep_at: 0,
            poll_at: 0,
            link_at: 0,
        }
    }

    /// Returns the bytes that the HCA has allocated: of the accelerator, and of the host.
    pub(super) fn memory_bytes(&self) -> (u64, u64) {
        let of_page = |page: &UarPage| match page {
            UarPage::Host(mapping) => mapping.len() as u64,
            UarPage::Accelerator(memory) => memory.bytes(),
        };
        let pages: u64 = self.uars.iter().filter_map(|(_, uar)| uar.page.as_ref()).map(of_page).sum();
        let (tables, gates) = self.gpu.as_ref().map_or((0, 0), GpuEngine::memory_bytes);
        (tables, control::BYTES as u64 + pages + gates)
    }

    /// Keeps what a strict check found.
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

    /// Stops executing, for good.
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

    /// Changes a QP's state and tells peers.
    pub(super) fn set_state(&mut self, qp: &mut Qp, state: QpState) {
        qp.state = state;
        qp.context.state = state as u8;
        self.write_constants(qp);
        self.control.publish_qp(qp.qpn, &qp.facts());
        if self.tracer.is_on() {
            self.tracer.line("state", format_args!("qp={:#x} {}", qp.qpn, state.name()));
        }
    }

    /// Gives the QP turns from the next pass on.
    pub(super) fn activate(&mut self, qp: &mut Qp) {
        if !qp.active {
            qp.active = true;
            self.active.push(qp.qpn);
        }
    }

    /// Gives these QPs no turns.
    pub(super) fn deactivate(&mut self, qpns: &[u32]) {
        self.active.retain(|qpn| !qpns.contains(qpn));
    }

    pub(super) fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }
}
