//! The provider: a software HCA as its user opens, commands and closes it.

use super::accelerator::Accelerator;
use super::control;
use super::doorbells::registers_without_record;
use super::fabric::copier::Copier;
use super::fabric::greeting::Target;
use super::fabric::link::Link;
use super::fabric::message::EXCHANGE_LIMIT;
use super::fabric::peer::Peer;
use super::fabric::responder::Responder;
use super::fabric::shared::Server;
use super::firmware::{self, Object, Purpose};
use super::gpu_engine::{GpuEngine, Ringer};
use super::limits::{GID_INDEX, LOG_MAX_RA, LOG_MAX_WITHOUT_RECORD, MTU, PORT, REGISTER_STRIDE, REGISTERS_PER_PAGE};
use super::options::{SoftOptions, check_options};
use super::state::{Engine, EngineParts};
use super::thread::{ENGINES, Shared, drive, drive_kernel};
use super::trace::Tracer;
use super::violation::Violation;
use crate::address::{QpAddress, QpAttributes};
use crate::blueflame::{self, BlueFlame};
use crate::error::{Error, Result};
use crate::port::{DEFAULT_PKEY, Gid, LinkLayer, PortInfo};
use crate::provider::{
    Access, Attempt, Counters, HcaInfo, MemoryKey, ObjectHandle, Provider, QpFailure, Rung, UarPage, UmemSource,
};
use crate::wire::doorbell;
use crossbeam_utils::CachePadded;
use oxshmem_system::words::low32;
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A software HCA. Dropping it ends its threads; peers then see it as dead.
#[derive(Debug)]
pub struct SoftHca {
    info: HcaInfo,
    shared: Arc<Shared>,
    accelerator: Option<Arc<dyn Accelerator>>,
    thread: Option<JoinHandle<()>>,
    nodes: Mutex<Nodes>,
}

/// Where the HCA of another node listens, and what shows it that a connection may be.
struct Route {
    address: SocketAddr,
    secret: Vec<u8>,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret.
        self.address.fmt(f)
    }
}

/// What an HCA knows of other nodes.
#[derive(Default)]
struct Nodes {
    responder: Option<Responder>,
    routes: HashMap<Gid, Route>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes")
            .field("responder", &self.responder)
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}

impl SoftHca {
    /// Opens an HCA.
    pub fn open(options: SoftOptions) -> Result<Arc<Self>> {
        check_options(&options)?;
        let interface = options.interface.map_or_else(random, Ok)?;
        let gid = Gid::from_halves(0xfe80 << 48, interface);
        let bytes = interface.to_be_bytes();
        // Locally administered, unicast.
        let mac = [bytes[2] & 0xfc | 2, bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]];
        let provider = if options.null { "null" } else { "soft" };
        let device = format!("{provider}-{:08x}", low32(interface));
        let control = control::OwnSegment::create(gid)?;
        let fd =
            control.fd().try_clone_to_owned().map_err(|error| Error::os("duplicate the control segment", error))?;
        let server = Server::start(gid, fd)?;
        let card_doorbells = options.card_doorbells;
        let accelerator = options.accelerator;
        let rung = match (card_doorbells, options.host_doorbells) {
            (true, _) => Ringer::LikeCards,
            (false, true) => Ringer::ByHost,
            (false, false) => Ringer::ByKernels,
        };
        let gpu = accelerator
            .clone()
            .map(|accelerator| GpuEngine::new(accelerator, rung, options.null, options.copying))
            .transpose();
        let gpu =
            gpu.map_err(|error| Error::Accelerator { what: "start the engine's kernel".into(), source: error.into() })?;
        let tracer = Tracer::new(device.clone(), options.trace);
        let parts = EngineParts { gid, control, server, faults: options.faults, tracer, gpu, card_doorbells };
        let mut engine = Engine::new(parts);
        engine.unordered_visibility = options.unordered_visibility && accelerator.is_none();
        engine.late_visibility = engine.unordered_visibility || options.late_visibility && accelerator.is_none();
        let visible_completions = !engine.late_visibility;
        let without_records = if engine.has_qps_without_record() { 1 << LOG_MAX_WITHOUT_RECORD } else { 0 };
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            waiting: CachePadded::new(AtomicUsize::new(0)),
            stop: AtomicBool::new(false),
        });
        let thread = if options.stepped {
            None
        } else {
            let shared = Arc::clone(&shared);
            let on_gpu = accelerator.is_some();
            let thread = std::thread::Builder::new().name("oxshmem-hca".into()).spawn(move || {
                if on_gpu { drive_kernel(&shared, card_doorbells) } else { drive(&shared, card_doorbells) }
            });
            Some(thread.map_err(|error| Error::thread("the engine's thread", error))?)
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
            // Its kernel executes what is posted to a QP side by side.
            in_order: options.card_doorbells,
            forces_order: true,
            visible_completions,
            ts_format: 0,
            lag_ports: 0,
            event_queue: 0,
            log_rra_max: LOG_MAX_RA,
            counter_set: 0,
            without_records,
            commands_at_a_time: 1,
        };
        Ok(Arc::new(Self { info, shared, accelerator, thread, nodes: Mutex::default() }))
    }

    /// Makes one pass of the engine and its housekeeping; for HCAs opened with
    /// [`SoftOptions::stepped`]. Returns 0 if nothing happened.
    pub fn progress(&self) -> usize {
        let mut engine = self.shared.engine();
        if let Some(pace) = engine.pace() {
            engine.keep_running(1, pace.idle);
            engine.await_slices();
        }
        engine.progress() + engine.housekeeping()
    }

    /// Returns whether a QP waits for time to pass or for a peer.
    pub fn is_waiting(&self) -> bool {
        self.shared.engine().is_waiting()
    }

    /// Listens at `address` for HCAs of other nodes that know `secret`. Returns where it listens:
    /// with port 0 the system has chosen one. Call it once.
    ///
    /// An HCA with an accelerator executes by copies from then on, whatever its
    /// [`CopyMode`](super::CopyMode) said.
    ///
    /// # Errors
    /// The mode is [`CopyMode::Never`](super::CopyMode::Never), or it is a null card; or the
    /// address cannot be listened at.
    pub fn listen(&self, address: SocketAddr, secret: &[u8]) -> Result<SocketAddr> {
        let gid = self.info.port.gid;
        let copier = match &self.accelerator {
            None => None,
            Some(accelerator) => {
                let mut engine = self.shared.engine();
                engine.always_copy()?;
                let registered = Arc::clone(&engine.registered);
                drop(engine);
                let copier = Copier::new(Arc::clone(accelerator), registered);
                let what = || "serve HCAs of other nodes by copies".to_owned();
                Some(copier.map_err(|error| Error::Accelerator { what: what(), source: error.into() })?)
            }
        };
        let responder = Responder::start(gid, address, secret.to_vec(), copier)?;
        let address = responder.address();
        let mut nodes = self.nodes();
        nodes.responder = Some(responder);
        Ok(address)
    }

    /// Says that the HCA `gid` is on another node and listens at `address`, for HCAs that know
    /// `secret`. Queue pairs that are connected to it later reach it over TCP.
    pub fn add_route(&self, gid: Gid, address: SocketAddr, secret: &[u8]) {
        self.nodes().routes.insert(gid, Route { address, secret: secret.to_vec() });
    }

    /// Connects to the HCAs that [`add_route`](Self::add_route) named, in the order of `gids`, many
    /// at a time. They listen already. A queue pair whose peer is none of them connects when it is
    /// connected.
    ///
    /// # Errors
    /// One of them cannot be reached, or does not belong to the job.
    pub fn reach(&self, gids: &[Gid]) -> Result<()> {
        let nodes = self.nodes();
        let route = |gid: &Gid| Some((*gid, nodes.routes.get(gid)?));
        let routes: Vec<_> =
            gids.iter().filter_map(route).map(|(gid, route)| (gid, route.address, route.secret.clone())).collect();
        drop(nodes);
        let targets: Vec<_> =
            routes.iter().map(|(gid, address, secret)| Target { gid: *gid, address: *address, secret }).collect();
        for link in Link::connect(self.info.port.gid, &targets)? {
            self.shared.engine().add_link(link);
        }
        Ok(())
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the strict checks found, oldest first; at most 1024.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.engine().violations.clone()
    }

    /// Stops executing, as hardware that fails: no more CQEs, commands fail, and peers run into
    /// their retry limits.
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
        self.nodes().responder = None;
        self.shared.stop.store(true, Ordering::Release);
        ENGINES.announce();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(device = self.info.device, "the engine's thread panicked");
        }
        let mut engine = self.shared.engine();
        engine.deliver_all();
        engine.control.set_dead();
        engine.server.stop();
    }
}

impl Provider for SoftHca {
    fn info(&self) -> &HcaInfo {
        &self.info
    }

    fn alloc_uar(&self, _: Rung) -> Result<UarPage> {
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
        let without_record = match engine.has_qps_without_record() {
            true => registers_without_record(engine.card_doorbells).collect(),
            false => Vec::new(),
        };
        Ok(UarPage { page_id, base, registers, without_record, device_registers: false })
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
        if let Err(error) = sharing.wait(id, EXCHANGE_LIMIT) {
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
            let nodes = self.nodes();
            let route = nodes.routes.get(&gid).map(|route| (route.address, route.secret.clone()));
            drop(nodes);
            if let Some((address, secret)) = route {
                let target = Target { gid, address, secret: &secret };
                for link in Link::connect(self.info.port.gid, &[target])? {
                    self.shared.engine().add_link(link);
                }
                return self.command(Purpose::Modify(object), input, output).map(|_| ());
            }
            let own = self.info.port.gid;
            let peer = match &self.accelerator {
                Some(accelerator) => Peer::connect(own, gid, Some(Arc::clone(accelerator)))?,
                None => Peer::new(own, gid, None),
            };
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
                if since.elapsed() > EXCHANGE_LIMIT {
                    return Err(Error::timeout(waiting, EXCHANGE_LIMIT));
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }

    fn counters(&self) -> Option<Counters> {
        Some(self.shared.engine().all_counters())
    }

    fn qp_counters(&self, qpn: u32) -> Option<Counters> {
        let engine = self.shared.engine();
        // A kernel keeps its counts by block.
        (!engine.is_on_gpu()).then(|| engine.qps.get(qpn).map(|qp| qp.counters)).flatten()
    }

    fn memory(&self) -> (u64, u64) {
        self.shared.engine().memory_bytes()
    }

    fn blueflame(&self, register: *mut u64) -> Option<BlueFlame> {
        self.shared.engine().takes_blocks().then(|| BlueFlame::new(register))
    }

    fn first_failure(&self, qpn: u32) -> Option<QpFailure> {
        self.shared.engine().qps.get(qpn)?.failure.clone()
    }

    fn attempts(&self) -> Vec<Attempt> {
        Vec::new()
    }

    fn dead(&self) -> Option<String> {
        self.shared.engine().dead.clone()
    }

    fn when_dead(&self, _: Box<dyn Fn() + Send + Sync>) {
        // It dies on request only, to show what happens when a card dies without a notice.
    }
}

/// Returns 64 random bits from the kernel.
fn random() -> Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is 8 bytes long.
    let len = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(len) != Ok(bytes.len()) {
        return Err(Error::os("draw a random GID", std::io::Error::last_os_error()));
    }
    Ok(u64::from_ne_bytes(bytes))
}
