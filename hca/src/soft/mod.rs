//! The software HCA: executes in this process what an mlx5 card would be given.
//!
//! Commands, WQEs, doorbell records, doorbells and CQEs have the card's formats. A thread per HCA, the engine, polls the doorbell registers and
//! executes send queues; it reaches the memory of a peer through a mapping that it got from the peer's HCA (see `fabric.rs`). There is no
//! central process, and nothing is left in the file system.
//!
//! # Ordering
//! WQEs of a QP execute in order; the payload of each is visible before that of the next, and before its own CQE. Between QPs there is
//! no order. A payload of 1, 2, 4 or 8 bytes to an address aligned to its size is one store. Atomics are CPU atomics on the word,
//! hence atomic against every process that maps it, and against the CPU.
//!
//! # Errors
//! As on the card, the first WQE that fails gets an error CQE and moves its QP to the error state, and every later one, posted before or after,
//! gets a CQE with "flushed". On a collapsed CQ the last CQE written is what remains; the cause is then in
//! [`SoftHca::violations`]. One difference: on a card, a remote access error also moves the responder's QP to the error state.
//!
//! # Faults and trace
//! [`FaultPlan`] makes it delay, reorder, lose, fail and die on demand. With [`SoftOptions::trace`], each command, doorbell, WQE and CQE
//! is printed in a line.

mod accelerator;
mod atomics;
mod control;
mod copying;
mod engine;
mod execute;
mod fabric;
mod faults;
mod firmware;
pub mod fuzz;
mod memory;
mod offload;
mod parking;
mod rng;
mod slots;
pub mod tables;
mod trace;

pub use accelerator::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, CopyEngine, Pace, Rows};
pub use copying::CopyMode;
pub use faults::{FaultPlan, InjectedError, ParseFaultError};
pub use firmware::SYNDROME_BASE;
pub use parking::doorbell_rung;

use crate::address::{QpAddress, QpAttributes};
use crate::blueflame::{self, BlueFlame};
use crate::error::{Error, Result};
use crate::idle::{Idler, Patience};
use crate::port::{DEFAULT_PKEY, Gid, LinkLayer, Mtu, PortInfo};
use crate::provider::{
    Access, Attempt, Counters, HcaInfo, MemoryKey, ObjectHandle, Provider, QpFailure, UarPage, UmemSource,
};
use crate::wire::cqe::Syndrome;
use crate::wire::doorbell;
use engine::Engine;
use fabric::{Peer, Server};
use firmware::{Object, Purpose};
use offload::{Offload, Rung};
use parking::ENGINES;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trace::Tracer;

/// Distance between doorbell registers in a UAR page, bytes.
pub const REGISTER_STRIDE: usize = 0x80;
/// Doorbell registers in a UAR page.
pub const REGISTERS_PER_PAGE: usize = (memory::PAGE as usize - doorbell::FIRST_REGISTER) / REGISTER_STRIDE;

/// The only port.
const PORT: u8 = 1;
/// The only entry of the GID table.
const GID_INDEX: u8 = 0;
const MTU: Mtu = Mtu::B4096;
/// log2 of the largest send queue, in blocks: completion counters have 16 bits.
const LOG_MAX_SQ_SIZE: u8 = 15;
const LOG_MAX_CQ_SIZE: u8 = 22;
/// log2 of the longest message, 1 GiB.
const LOG_MAX_MSG: u8 = 30;

/// How the engine's thread waits for work. The longest nap is [`LONGEST_PARK`].
const PATIENCE: Patience =
    Patience { spin_passes: 64, awake: Duration::from_micros(50), first_nap: Duration::from_millis(1) };
/// The same where nobody announces doorbells, with the longest nap.
const WATCHFUL: Patience = Patience { first_nap: Duration::from_micros(50), ..PATIENCE };
const LONGEST_WATCHFUL_NAP: Duration = Duration::from_millis(1);
/// How often the thread looks after peers and lost doorbells while there is work.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_millis(1);
/// The longest the thread parks while a QP waits for time to pass.
const SHORT_PARK: Duration = Duration::from_micros(100);
/// The longest it parks when there is nothing to do.
const LONGEST_PARK: Duration = Duration::from_millis(16);

/// Time without work after which a kernel's slices no longer follow each other at once.
const BUSY_TIME: Duration = Duration::from_millis(2);
/// The longest time without a slice.
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// How to open a software HCA.
#[derive(Default)]
pub struct SoftOptions {
    /// What goes wrong.
    pub faults: FaultPlan,
    /// Where to print what is executed; nowhere if `None`.
    pub trace: Option<Box<dyn Write + Send>>,
    /// Whether the caller drives the engine itself with [`SoftHca::progress`], instead of a thread.
    pub stepped: bool,
    /// What executes send queues instead of this process's CPU, in memory that only it reaches. Registered memory is then given by
    /// addresses that are valid there, and CQs are collapsed.
    pub accelerator: Option<Arc<dyn Accelerator>>,
    /// With an accelerator: this process posts and rings. Queues are then in memory of the host that kernels reach too, and so are doorbell
    /// registers. Without it, kernels post and ring.
    pub host_doorbells: bool,
    /// Doorbells as on a card: any number of queue pairs may ring one register, and nobody calls [`doorbell_rung`] or
    /// [`Provider::prepare`]. With an accelerator queues may be anywhere where kernels reach them, and who registers memory that peers may
    /// use waits until those that are connected have mapped it.
    pub card_doorbells: bool,
    /// When the engine's thread executes by copies what the accelerator's kernel otherwise does.
    pub copying: CopyMode,
    /// Complete what is posted, and execute nothing: measures posting alone. Needs an accelerator.
    pub null: bool,
    /// The lower half of its GID, which no other HCA of this machine may have; random without.
    pub interface: Option<u64>,
}

/// Bytes of the registers that the host rings.
const HOST_DOORBELL_BYTES: usize = tables::PAGES * HOST_PAGE_BYTES;
/// Those of one doorbell page.
const HOST_PAGE_BYTES: usize = REGISTERS_PER_PAGE * blueflame::REGISTER_BYTES;

impl SoftOptions {
    /// The trace on standard error.
    pub fn traced(mut self) -> Self {
        self.trace = Some(Box::new(std::io::stderr()));
        self
    }
}

impl fmt::Debug for SoftOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftOptions")
            .field("faults", &self.faults)
            .field("trace", &self.trace.is_some())
            .field("stepped", &self.stepped)
            .field("accelerator", &self.accelerator)
            .field("host_doorbells", &self.host_doorbells)
            .field("card_doorbells", &self.card_doorbells)
            .field("copying", &self.copying)
            .field("null", &self.null)
            .field("interface", &self.interface)
            .finish()
    }
}

/// What a strict check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The QP, 0 if none could be told.
    pub qpn: u32,
    /// Block index of the WQE since the queue was reset, not cut to 16 bits.
    pub wqe_index: u64,
    /// The syndrome of the CQE, if one was written.
    pub syndrome: Option<Syndrome>,
    /// The field and what is wrong with it.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x} WQE {}: {}", self.qpn, self.wqe_index, self.message)?;
        match self.syndrome {
            Some(syndrome) => write!(f, " [{syndrome}]"),
            None => Ok(()),
        }
    }
}

#[derive(Debug)]
struct Shared {
    engine: Mutex<Engine>,
    /// Callers that wait for the engine; its thread steps aside for them.
    waiting: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        engine
    }
}

/// A software HCA. Dropping it ends its threads; peers then see it as dead.
#[derive(Debug)]
pub struct SoftHca {
    info: HcaInfo,
    shared: Arc<Shared>,
    accelerator: Option<Arc<dyn Accelerator>>,
    thread: Option<JoinHandle<()>>,
}

impl SoftHca {
    /// Open an HCA.
    pub fn open(options: SoftOptions) -> Result<Arc<Self>> {
        check_options(&options)?;
        let interface = options.interface.map_or_else(random, Ok)?;
        let gid = Gid::from_halves(0xfe80 << 48, interface);
        let bytes = interface.to_be_bytes();
        // Locally administered, unicast.
        let mac = [bytes[2] & 0xfc | 2, bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]];
        let provider = if options.null { "null" } else { "soft" };
        let device = format!("{provider}-{:08x}", interface as u32);
        let control = control::OwnSegment::create(gid)?;
        let fd =
            control.fd().try_clone_to_owned().map_err(|error| Error::os("duplicate the control segment", error))?;
        let server = Server::start(gid, fd)?;
        let card_doorbells = options.card_doorbells;
        let accelerator = options.accelerator;
        let rung = match (card_doorbells, options.host_doorbells) {
            (true, _) => Rung::LikeCards,
            (false, true) => Rung::ByHost,
            (false, false) => Rung::ByKernels,
        };
        let offload = accelerator
            .clone()
            .map(|accelerator| Offload::new(accelerator, rung, options.null, options.copying))
            .transpose();
        let offload = offload
            .map_err(|error| Error::Accelerator { what: "start the engine's kernel".into(), source: error.into() })?;
        let tracer = Tracer::new(device.clone(), options.trace);
        let shared = Arc::new(Shared {
            engine: Mutex::new(Engine::new(gid, control, server, options.faults, tracer, offload, card_doorbells)),
            waiting: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let thread = if options.stepped {
            None
        } else {
            let shared = Arc::clone(&shared);
            let offloaded = accelerator.is_some();
            let thread = std::thread::Builder::new().name("oxshmem-hca".into()).spawn(move || {
                if offloaded { drive_kernel(&shared, card_doorbells) } else { drive(&shared, card_doorbells) }
            });
            Some(thread.map_err(|error| Error::os("start the engine's thread", error))?)
        };
        let info = HcaInfo {
            provider,
            device,
            port: PortInfo {
                number: PORT,
                link_layer: LinkLayer::Ethernet,
                mtu: MTU,
                lid: 0,
                pkey: DEFAULT_PKEY,
                gid_index: GID_INDEX,
                gid,
                grh_required: false,
            },
            mac,
            coherent_atomics: true,
            event_queue: 0,
        };
        Ok(Arc::new(Self { info, shared, accelerator, thread }))
    }

    /// One pass of the engine and its housekeeping; for HCAs opened with [`SoftOptions::stepped`]. Returns 0 if nothing happened.
    pub fn progress(&self) -> usize {
        let mut engine = self.shared.engine();
        if let Some(pace) = engine.pace() {
            engine.keep_running(1, pace.idle);
            engine.await_slices();
        }
        engine.progress() + engine.housekeeping()
    }

    /// Whether a QP waits for time to pass or for a peer.
    pub fn is_waiting(&self) -> bool {
        self.shared.engine().is_waiting()
    }

    /// What the strict checks found, oldest first; at most 1024.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.engine().violations.clone()
    }

    /// Stop executing, as hardware that fails: no more CQEs, commands fail, and peers run into their retry limits.
    pub fn kill(&self) {
        self.shared.engine().die("killed");
    }

    fn command(&self, purpose: Purpose, input: &[u8], output: &mut [u8]) -> Result<Option<Object>> {
        self.shared.engine().command(purpose, input, output)
    }

    fn object(handle: ObjectHandle) -> Result<Object> {
        Object::from_bits(handle.0)
            .ok_or_else(|| Error::argument("object", format!("{:#x}", handle.0), "not a handle that this HCA gave out"))
    }
}

impl Drop for SoftHca {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        ENGINES.announce();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(device = self.info.device, "the engine's thread panicked");
        }
        let mut engine = self.shared.engine();
        engine.control.set_dead();
        engine.server.stop();
    }
}

impl Provider for SoftHca {
    fn info(&self) -> &HcaInfo {
        &self.info
    }

    fn alloc_uar(&self) -> Result<UarPage> {
        use crate::prm::{Command, uar::AllocUar};
        let mut output = vec![0; AllocUar::OUT_LEN];
        let mut engine = self.shared.engine();
        engine.command(Purpose::Create, &AllocUar {}.encode(), &mut output)?;
        let page_id = AllocUar::decode_output(&output).uar;
        let page = engine.uars.get(page_id).map(|uar| uar.base);
        let base = page.ok_or_else(|| Error::argument("uar", page_id, "the page vanished"))?;
        let (first, stride) = if engine.host_rings() {
            (0, blueflame::REGISTER_BYTES)
        } else {
            (doorbell::FIRST_REGISTER, REGISTER_STRIDE)
        };
        let registers = (0..REGISTERS_PER_PAGE).map(|i| first + i * stride).collect();
        Ok(UarPage { page_id, base, registers, device_registers: false })
    }

    fn free_uar(&self, page_id: u32) -> Result<()> {
        self.obj_destroy(ObjectHandle(Object::Uar(page_id).to_bits()))
    }

    unsafe fn reg_umem(&self, source: UmemSource<'_>, access: Access) -> Result<u32> {
        let mut engine = self.shared.engine();
        // SAFETY: the caller's promise is the same.
        let id = unsafe { engine.register(source, access) }?;
        let Some(sharing) = engine.announces().then(|| engine.server.sharing()) else { return Ok(id) };
        drop(engine);
        // Not under the engine's lock: peers may be waiting for this HCA in the same way.
        if let Err(error) = sharing.wait(id, fabric::EXCHANGE_LIMIT) {
            self.shared.engine().deregister(id)?;
            return Err(error);
        }
        Ok(id)
    }

    fn dereg_umem(&self, umem_id: u32) -> Result<()> {
        self.shared.engine().deregister(umem_id)
    }

    unsafe fn reg_key(&self, _: u32, _: UmemSource<'_>, _: u64, _: Access) -> Result<Option<MemoryKey>> {
        Ok(None)
    }

    fn dereg_key(&self, id: u64) -> Result<()> {
        Err(Error::argument("key", id, "this HCA registers memory by commands only"))
    }

    fn next_hop(&self, peer: &QpAddress, _: &QpAttributes) -> Result<[u8; 6]> {
        Ok(peer.mac)
    }

    fn obj_create(&self, input: &[u8], output: &mut [u8]) -> Result<ObjectHandle> {
        match self.command(Purpose::Create, input, output)? {
            Some(object) => Ok(ObjectHandle(object.to_bits())),
            None => Err(Error::argument("input", "a command", "created nothing")),
        }
    }

    fn obj_modify(&self, object: ObjectHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        let object = Self::object(object)?;
        if let Some(gid) = firmware::remote_gid(input)
            && !self.shared.engine().knows(gid)
        {
            // Not under the engine's lock: the peer may be this HCA, or wait for this one.
            let peer = Peer::connect(self.info.port.gid, gid, self.accelerator.clone())?;
            self.shared.engine().add_peer(peer);
        }
        self.command(Purpose::Modify(object), input, output).map(|_| ())
    }

    fn obj_query(&self, object: ObjectHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.command(Purpose::Query(Self::object(object)?), input, output).map(|_| ())
    }

    fn obj_destroy(&self, object: ObjectHandle) -> Result<()> {
        let (input, out_len) = Self::object(object)?.destroy_command();
        self.command(Purpose::Destroy, &input, &mut vec![0; out_len]).map(|_| ())
    }

    fn general_cmd(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.command(Purpose::General, input, output).map(|_| ())
    }

    fn prepare(&self, uses: &[(u32, u32)]) -> Result<()> {
        let since = Instant::now();
        let mut done = 0;
        while done < uses.len() {
            // Under one lock for as many as possible: the kernel is stopped for changes once.
            let mut engine = self.shared.engine();
            let mut waiting = String::new();
            while let Some((qpn, rkey)) = uses.get(done) {
                match engine.prepare(*qpn, *rkey)? {
                    None => done += 1,
                    Some(reason) => {
                        waiting = reason;
                        break;
                    }
                }
            }
            drop(engine);
            if done < uses.len() {
                if since.elapsed() > fabric::EXCHANGE_LIMIT {
                    return Err(Error::Timeout { what: waiting, limit: fabric::EXCHANGE_LIMIT });
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }

    fn counters(&self) -> Option<Counters> {
        Some(self.shared.engine().all_counters())
    }

    fn blueflame(&self, register: *mut u64) -> Option<BlueFlame> {
        self.shared.engine().takes_blocks().then(|| BlueFlame::new(register))
    }

    fn first_failure(&self, qpn: u32) -> Option<QpFailure> {
        let engine = self.shared.engine();
        engine.violations.iter().find(|violation| violation.qpn == qpn).and_then(|violation| {
            let syndrome = violation.syndrome? as u8;
            Some(QpFailure { wqe_index: violation.wqe_index, syndrome, text: violation.message.clone() })
        })
    }

    fn attempts(&self) -> Vec<Attempt> {
        Vec::new()
    }

    fn dead(&self) -> Option<String> {
        self.shared.engine().dead.clone()
    }

    fn when_dead(&self, _: Box<dyn Fn() + Send + Sync>) {
        // It dies on request only, to show what happens when nobody tells.
    }
}

/// The engine's thread.
fn drive(shared: &Shared, card_doorbells: bool) {
    let (patience, longest) = if card_doorbells { (WATCHFUL, LONGEST_WATCHFUL_NAP) } else { (PATIENCE, LONGEST_PARK) };
    let mut idler = Idler::new(patience);
    let mut passes = 0u32;
    let mut kept_house = Instant::now();
    while !shared.stop.load(Ordering::Acquire) {
        let mut engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let mut work = engine.progress();
        let waiting = engine.is_waiting();
        passes = passes.wrapping_add(1);
        // A clock is not read in every pass.
        if work > 0 || passes.is_multiple_of(PATIENCE.spin_passes) {
            let now = Instant::now();
            if now.duration_since(kept_house) >= HOUSEKEEPING_PERIOD {
                kept_house = now;
                work += engine.housekeeping();
            }
        }
        drop(engine);
        while shared.waiting.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
        if work > 0 {
            idler.worked();
            continue;
        }
        let Some(nap) = idler.rest() else { continue };
        let limit = if waiting { SHORT_PARK } else { nap };
        let woken = ENGINES.park(limit, || shared.stop.load(Ordering::Acquire) || shared.engine().doorbell_pending());
        if woken {
            idler.worked();
        } else if waiting {
            shared.engine().end_reordering();
        } else {
            idler.napped(longest);
        }
        // A lost doorbell or a dead peer is found here at the latest.
        if kept_house.elapsed() >= HOUSEKEEPING_PERIOD {
            kept_house = Instant::now();
            if shared.engine().housekeeping() > 0 {
                idler.worked();
            }
        }
    }
}

/// The engine's thread where a kernel executes: launches slice after slice while there is work, and fewer of them when there is none.
fn drive_kernel(shared: &Shared, card_doorbells: bool) {
    let Some(pace) = shared.engine().pace() else { return };
    let mut kept_house = Instant::now();
    let mut worked = Instant::now();
    let mut nap = pace.look;
    let mut news = true;
    while !shared.stop.load(Ordering::Acquire) {
        let mut engine = shared.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let mut work = engine.progress();
        if kept_house.elapsed() >= HOUSEKEEPING_PERIOD {
            kept_house = Instant::now();
            work += engine.housekeeping();
        }
        if work > 0 {
            worked = Instant::now();
            nap = pace.look;
        }
        let busy = worked.elapsed() < BUSY_TIME;
        let running = if busy || news {
            engine.keep_running(if busy { pace.ahead } else { 1 }, pace.idle)
        } else {
            engine.running()
        };
        let waiting = engine.is_waiting();
        let copying = engine.is_copying();
        drop(engine);
        while shared.waiting.load(Ordering::Relaxed) != 0 {
            std::thread::yield_now();
        }
        if copying && work > 0 {
            continue;
        }
        // While slices run, see when they end; between them, sleep longer and longer.
        let running = if copying { 0 } else { running };
        let limit = if running > 0 || busy { pace.look } else { nap };
        let ready = || card_doorbells && shared.engine().doorbell_pending();
        let woken = ENGINES.park(limit, || shared.stop.load(Ordering::Acquire) || ready());
        news = woken || running == 0;
        if !(running > 0 || busy || waiting || woken) {
            nap = (nap * 2).min(LONGEST_NAP);
        }
    }
}

/// Refuses what an engine with a kernel cannot do.
fn check_options(options: &SoftOptions) -> Result<()> {
    if options.card_doorbells && (options.host_doorbells || options.null) {
        let rule = "they are rung by whoever posts, and what is posted is executed";
        return Err(Error::argument("card_doorbells", true, rule));
    }
    if options.accelerator.is_none() {
        if options.host_doorbells {
            let rule = "the engine's thread looks at registers of its own; only its kernel needs others";
            return Err(Error::argument("host_doorbells", true, rule));
        }
        let rule = "the null card is a mode of the engine's kernel (OXSHMEM_SOFT_ENGINE=kernel)";
        return if options.null { Err(Error::argument("null", true, rule)) } else { Ok(()) };
    }
    if options.faults != (FaultPlan { seed: options.faults.seed, ..FaultPlan::default() }) {
        let rule = "only the engine of the CPU misbehaves on demand (OXSHMEM_SOFT_ENGINE=thread)";
        return Err(Error::argument("faults", &options.faults, rule));
    }
    Ok(())
}

/// 64 random bits from the kernel.
fn random() -> Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is 8 bytes long.
    let len = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if len != bytes.len() as isize {
        return Err(Error::os("draw a random GID", std::io::Error::last_os_error()));
    }
    Ok(u64::from_ne_bytes(bytes))
}
