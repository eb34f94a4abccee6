//! An open card as a [`Provider`].

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::{Mlx5Error, remedy};
use super::events::{Death, Events};
use super::library::Library;
use super::memory::{Given, Ladder, Registration, UMEM};
use super::record::Record;
use crate::address::{QpAddress, QpAttributes};
use crate::error::{Error, Result};
use crate::objects::{query_caps, query_second_caps, query_ts_format, without_records};
use crate::port::{Gid, LinkLayer, Mtu, PortInfo};
use crate::prm::caps::{AtomicCaps, GeneralCaps};
use crate::prm::{self, Command, CommandStatus, Opcode, caps, counter, dump, lag, pd};
use crate::provider::{
    Access, Attempt, Counters, HcaInfo, MemoryKey, ObjectHandle, Provider, QpFailure, Rung, UarPage, UmemSource,
};
use crate::resolving::until_resolved;
use crate::route::{Route, route};
use crate::verbs::context::DeviceList;
use crate::verbs::path;
use crate::verbs::sys;
use crate::verbs::sys::mlx5dv::{self, Mlx5dv};
use crate::verbs::{Atomicity, Context, MemoryRegion, Port, ProtectionDomain};
use crate::wire::cqe::Syndrome;
use crate::wire::doorbell;

/// Linux's driver keeps up to 31 commands of a card on their way (`log_max_cmds_in_flight` of
/// mlx5), and other processes give commands to the same card.
const COMMANDS_AT_A_TIME: usize = 16;

/// A page of registers of its own, not cached: `MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED` of rdma-core
/// 47's `mlx5_api.h`; older libraries refuse it.
const UAR_NC_DEDICATED: u32 = 1 << 31;

type UarType = (u32, &'static str);
const NC_DEDICATED: UarType = (UAR_NC_DEDICATED, "doorbell page, not cached, of its own");
const BF: UarType = (mlx5dv::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF, "doorbell page, write-combining, of its own");
const NC: UarType = (mlx5dv::MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC, "doorbell page, not cached, of the whole context");

/// Returns the kinds of doorbell pages, the best first. For a GPU, which maps them as registers in
/// any case, its stores must neither wait for nor mix with those of others; a CPU's stores linger
/// in a page that is write-combining.
const fn uar_types(rung: Rung) -> [UarType; 3] {
    match rung {
        Rung::ByDevice => [NC_DEDICATED, BF, NC],
        Rung::ByCpu => [NC_DEDICATED, NC, BF],
    }
}

/// The size of a card's doorbell pages (PRM, UAR page; rdma-core, `MLX5_ADAPTER_PAGE_SIZE`).
const CARD_PAGE: usize = 4096;

/// The page size of umems. The firmware counts the offsets of queues in 64ths of it, so a larger
/// one, such as the 64 KiB of Grace, would allow multiples of 1 KiB alone (Linux,
/// `devx_umem_reg_cmd_alloc`; DPDK and UCX align queues to pages of 4 KiB).
const UMEM_PAGE: u64 = 4096;

/// A function of the library that takes a command about an object, and room for the answer.
type ObjectCall =
    unsafe fn(&Mlx5dv, *mut mlx5dv::mlx5dv_devx_obj, *const c_void, usize, *mut c_void, usize) -> std::ffi::c_int;

/// Which card to open.
#[derive(Debug, Clone, Copy)]
pub struct Mlx5Options<'a> {
    /// Its name, as in `mlx5_0`.
    pub device: &'a str,
    /// The port, from 1.
    pub port: u8,
    /// Entry of the port's GID table; without one the first with which packets can be routed.
    pub gid_index: Option<u32>,
    /// Entry of the port's partition key table.
    pub pkey_index: u16,
    /// In which way memory of devices is registered first.
    pub registration: Registration,
}

#[derive(Debug)]
enum Held {
    Devx(NonNull<mlx5dv::mlx5dv_devx_obj>),
    Pd(u32),
}

/// The next hop to an address.
#[derive(Debug, Default)]
struct Hop {
    mac: Option<[u8; 6]>,
    /// A thread was patient, in vain.
    gave_up: bool,
}

/// What was made of the card and not given back.
#[derive(Debug, Default)]
struct Tables {
    next: u64,
    objects: HashMap<u64, Held>,
    pds: HashMap<u32, Arc<ProtectionDomain>>,
    keys: HashMap<u64, MemoryRegion>,
    umems: HashMap<u32, NonNull<mlx5dv::mlx5dv_devx_umem>>,
    /// Where packets to a peer go: one question to the kernel for each.
    hops: HashMap<Gid, Arc<Mutex<Hop>>>,
    /// The library may give the same page more than once.
    uars: HashMap<u32, Vec<NonNull<mlx5dv::mlx5dv_devx_uar>>>,
}

// SAFETY: the pointers are the library's, which is thread-safe; none is tied to a thread.
unsafe impl Send for Tables {}

impl Tables {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// An open ConnectX card.
#[derive(Debug)]
pub struct Mlx5Hca {
    // Dropped in this order: the thread that uses the context, what was made of it, the context.
    events: Option<Events>,
    tables: Mutex<Tables>,
    info: HcaInfo,
    caps: (GeneralCaps, AtomicCaps),
    /// For address handles.
    domain: Arc<ProtectionDomain>,
    context: Arc<Context>,
    library: &'static Library,
    record: Record,
    regions: Ladder,
    umems: Ladder,
    death: Arc<Death>,
    /// The set of error counters, if the card gave one.
    error_counter: Option<ObjectHandle>,
}

impl Mlx5Hca {
    /// Opens a card, asks what it can do, and then looks at its port.
    ///
    /// # Errors
    /// Libraries that are missing or too old, a device that does not exist or is of another driver,
    /// no right to open it or to give commands, a port that carries nothing, a GID that does not
    /// exist.
    pub fn open(options: &Mlx5Options<'_>) -> Result<Arc<Self>> {
        let name = options.device;
        // libibverbs first: without it there is nothing at all.
        let devices = DeviceList::get()?;
        let library = Library::get()?;
        let device = devices.find(name)?;
        // SAFETY: the device is of the list, which is alive.
        if !unsafe { library.functions().mlx5dv_is_supported(device) } {
            return Err(Mlx5Error::Foreign { device: name.to_owned() }.into());
        }
        let mut attributes = mlx5dv::mlx5dv_context_attr { flags: mlx5dv::MLX5DV_CONTEXT_FLAGS_DEVX, comp_mask: 0 };
        // SAFETY: as above; the structure is read during the call.
        let raw = unsafe { library.functions().mlx5dv_open_device(device, &raw mut attributes) };
        let Some(raw) = NonNull::new(raw) else {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                // What the kernel, and the library, return where there is no DevX.
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPERM) => {
                    Mlx5Error::NoDevx { device: name.to_owned(), source }.into()
                }
                _ => devices.refusal(name, device, source).into(),
            });
        };
        let context = Context::adopt(devices.library(), raw, name)?;
        let record = Record::default();
        record.add::<String>("DevX context", Ok(format!("opened on {name}")));

        let info = HcaInfo {
            provider: "mlx5",
            device: name.to_owned(),
            // Until it is looked at.
            port: PortInfo {
                number: options.port,
                link_layer: LinkLayer::Ethernet,
                mtu: Mtu::B256,
                lid: 0,
                pkey: 0,
                gid_index: 0,
                gid: Gid::default(),
                grh_required: false,
            },
            mac: [0; 6],
            coherent_atomics: context.limits().atomicity == Atomicity::Global,
            // Unless the card's administrator has turned adaptive routing on: by service level on
            // InfiniBand (`ooo_sl_mask` of the port), on RoCE for all QPs (`ROCE_ACCL` of mlxreg).
            // The firmware then sets `dp_ordering` of QPs that request nothing (torchcomms PR
            // 3881).
            in_order: true,
            forces_order: false,
            visible_completions: false,
            ts_format: 0,
            lag_ports: 0,
            event_queue: 0,
            log_rra_max: 0,
            counter_set: 0,
            without_records: 0,
            commands_at_a_time: COMMANDS_AT_A_TIME,
        };
        let mut card = Self {
            events: None,
            tables: Mutex::default(),
            info,
            caps: (GeneralCaps::default(), AtomicCaps::default()),
            domain: ProtectionDomain::new(&context)?,
            context,
            library,
            record,
            regions: Ladder::new("memory region", options.registration),
            umems: Ladder::new(UMEM, options.registration),
            death: Arc::default(),
            error_counter: None,
        };
        card.caps = query_caps(&card)?;
        card.info.log_rra_max = card.caps.0.log_max_ra_res_qp.min(7);
        card.info.ts_format = query_ts_format(&card, &card.caps.0)?;
        let second = query_second_caps(&card, &card.caps.0)?;
        card.info.without_records = without_records(&card.caps.0, &second);
        card.info.forces_order = second.dp_ordering_force;
        card.info.lag_ports = card.query_lag_ports();
        card.info.port = Port::query(&card.context, options.port, options.gid_index, options.pkey_index)?.info;
        card.info.event_queue = card.query_event_queue()?;
        card.allocate_counters()?;
        card.events = Some(Events::listen(&card.context, &card.death)?);
        Ok(Arc::new(card))
    }

    /// Returns what the card's firmware says that it can do.
    pub fn capabilities(&self) -> &(GeneralCaps, AtomicCaps) {
        &self.caps
    }

    fn query_event_queue(&self) -> Result<u32> {
        let mut number = 0;
        // SAFETY: the context is open; the number may be written.
        let status = unsafe { self.library.functions().mlx5dv_devx_query_eqn(self.context.raw(), 0, &raw mut number) };
        match status {
            0 => Ok(number),
            _ => Err(self.failed("mlx5dv_devx_query_eqn", errno_of(status), String::new())),
        }
    }

    /// Allocates the set of error counters for all queue pairs. Without one the card works as well,
    /// and an error may be reported as that of a request that was flushed after it.
    fn allocate_counters(&mut self) -> Result<()> {
        let mut output = [0; counter::AllocQCounter::OUT_LEN];
        let outcome = match self.obj_create(&counter::AllocQCounter {}.encode(), &mut output) {
            Ok(handle) => {
                self.error_counter = Some(handle);
                self.info.counter_set = counter::AllocQCounter::decode_output(&output).counter_set_id;
                Ok(format!("in use: set {}", self.info.counter_set))
            }
            Err(dead @ Error::Dead { .. }) => return Err(dead),
            Err(error) => Err(error.to_string()),
        };
        self.record.add("error counters of the card", outcome.as_ref().cloned());
        Ok(())
    }

    /// Returns the ports of the bond that this card's port is part of; 0 without one, or where QPs
    /// cannot be told which to use.
    fn query_lag_ports(&self) -> u8 {
        let general = &self.caps.0;
        if !general.init2_lag_tx_port_affinity || general.num_lag_ports < 2 {
            return 0;
        }
        let mut output = [0; lag::QueryLag::OUT_LEN];
        let (ports, outcome) = match self.general_cmd(&lag::QueryLag {}.encode(), &mut output) {
            Ok(()) if lag::QueryLag::decode_output(&output).lag_state != 0 => {
                (general.num_lag_ports, Ok(format!("queue pairs are spread over {} ports", general.num_lag_ports)))
            }
            Ok(()) => return 0,
            // The card chooses the ports then.
            Err(error) => (0, Err(error.to_string())),
        };
        self.record.add("bond", outcome.as_ref().cloned());
        ports
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error of a call that is not about a command.
    fn failed(&self, call: &'static str, source: io::Error, detail: String) -> Error {
        if let Some(dead) = self.dead_by(&source) {
            return dead;
        }
        Mlx5Error::Call { call, device: self.info.device.clone(), source, detail }.into()
    }

    /// Returns what is wrong, unless all is because the card is gone.
    fn unless_dead(&self, error: Error) -> Error {
        match self.death.reason() {
            Some(reason) => Error::Dead { device: self.info.device.clone(), reason },
            None => error,
        }
    }

    /// Hands a command to the firmware. Returns the status of the call, not that of the command.
    fn general(&self, input: &[u8], output: &mut [u8]) -> std::ffi::c_int {
        // SAFETY: the context is open; input and output are as long as said.
        unsafe {
            self.library.functions().mlx5dv_devx_general_cmd(
                self.context.raw(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        }
    }

    /// Returns whether the firmware still executes a command that no card refuses.
    fn answers(&self) -> bool {
        let input = caps::QueryHcaCap { op_mod: caps::GENERAL_CURRENT }.encode();
        let mut output = vec![0u8; caps::QueryHcaCap::OUT_LEN];
        let status = self.general(&input, &mut output);
        status == 0 && prm::outcome(&output).0 == CommandStatus::Ok
    }

    /// Returns what the system returns when the card is gone.
    fn dead_by(&self, source: &io::Error) -> Option<Error> {
        let gone = match source.raw_os_error() {
            Some(libc::ENODEV) => true,
            // Kernels before 5.18 say so of commands that the firmware refuses, too.
            Some(libc::EIO) => !self.answers(),
            _ => false,
        };
        if gone {
            let reason = format!("the driver answers \"{source}\"; the kernel's log (dmesg) says more");
            if self.death.reason().is_none() {
                self.death.note(&self.info.device, reason);
            }
        }
        let reason = self.death.reason()?;
        Some(Error::Dead { device: self.info.device.clone(), reason })
    }

    /// Judges the answer to a command: what the card wrote, or else what the system says.
    fn judge(&self, call: &'static str, source: Option<io::Error>, input: &[u8], output: &[u8]) -> Result<()> {
        tracing::trace!(
            device = self.info.device,
            "{} -> {}",
            dump::command(input),
            source.as_ref().map_or_else(
                || dump::answer(input, output),
                |source| { format!("{source}, {}", dump::answer(input, output)) }
            )
        );
        let (status, syndrome) = prm::outcome(output);
        if status != CommandStatus::Ok {
            let command = Opcode::of(input).map_or("a command", Opcode::name);
            let detail = format!("{}: {}; {}", self.info.device, dump::command(input), remedy(status));
            return Err(Error::Command { command, status, syndrome, detail });
        }
        match source {
            None => Ok(()),
            Some(source) => {
                let hint = match source.raw_os_error() {
                    Some(libc::EIO) => {
                        "; the card still answers, so its firmware refused the command: kernels before 5.18 do not pass on why, but their log \
                         (dmesg) has status and syndrome"
                    }
                    _ => "",
                };
                Err(self.failed(call, source, format!("; {}{hint}", dump::command(input))))
            }
        }
    }

    fn devx(&self, object: ObjectHandle) -> Result<NonNull<mlx5dv::mlx5dv_devx_obj>> {
        match self.tables().objects.get(&object.0) {
            Some(Held::Devx(pointer)) => Ok(*pointer),
            _ => Err(no_object(object)),
        }
    }

    /// Gives the library a command about an object.
    fn execute(
        &self,
        call: &'static str,
        function: ObjectCall,
        object: ObjectHandle,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<()> {
        let object = self.devx(object)?.as_ptr();
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        // SAFETY: the object is alive: the caller that destroys it does not use it meanwhile; input
        // and output are as long as said.
        let status = unsafe { function(self.library.functions(), object, from, input.len(), to, output.len()) };
        self.judge(call, (status != 0).then(|| errno_of(status)), input, output)
    }

    /// Carries out ALLOC_PD by verbs: memory regions of verbs need a domain of verbs.
    fn alloc_pd(&self, output: &mut [u8]) -> Result<ObjectHandle> {
        let domain = ProtectionDomain::new(&self.context)?;
        let mut out = mlx5dv::mlx5dv_pd { pdn: 0, comp_mask: 0 };
        // SAFETY: plain pointers, for which zeros are a value.
        let mut object: mlx5dv::mlx5dv_obj = unsafe { std::mem::zeroed() };
        object.pd = mlx5dv::mlx5dv_obj__bindgen_ty_7 { in_: domain.raw(), out: &raw mut out };
        // SAFETY: the domain is alive, and `out` may be written.
        let status = unsafe { self.library.functions().mlx5dv_init_obj(&raw mut object, mlx5dv::MLX5DV_OBJ_PD.into()) };
        if status != 0 {
            return Err(self.failed("mlx5dv_init_obj", errno_of(status), " (protection domain)".into()));
        }
        prm::encode_output(&pd::AllocPdOut { pd: out.pdn }, output);
        tracing::trace!(device = self.info.device, "ALLOC_PD -> {}", dump::answer(&[8, 0], output));
        let mut tables = self.tables();
        tables.pds.insert(out.pdn, domain);
        let number = tables.number();
        tables.objects.insert(number, Held::Pd(out.pdn));
        Ok(ObjectHandle(number))
    }

    /// Returns the hardware address that the kernel resolves for an address handle.
    fn resolve(&self, route: Route, peer: &QpAddress, attributes: &QpAttributes) -> io::Result<[u8; 6]> {
        // No packet is sent with it, so none needs a flow label.
        let mut path = path::address(&self.info.port, route, peer, attributes, 0);
        let verbs = self.context.library().functions();
        // SAFETY: the domain is alive; the structure is read during the call.
        let handle = unsafe { verbs.ibv_create_ah(self.domain.raw(), &raw mut path) };
        let handle = NonNull::new(handle).ok_or_else(io::Error::last_os_error)?;
        let mut out = MaybeUninit::<mlx5dv::mlx5dv_ah>::zeroed();
        // SAFETY: plain pointers, for which zeros are a value.
        let mut object: mlx5dv::mlx5dv_obj = unsafe { std::mem::zeroed() };
        object.ah = mlx5dv::mlx5dv_obj__bindgen_ty_6 { in_: handle.as_ptr(), out: out.as_mut_ptr() };
        // SAFETY: the handle is alive, and `out` may be written.
        let status = unsafe { self.library.functions().mlx5dv_init_obj(&raw mut object, mlx5dv::MLX5DV_OBJ_AH.into()) };
        // SAFETY: on success `out` names the handle's address vector, which lives as long as the
        // handle.
        let mac = if status == 0 { Ok(unsafe { (*out.assume_init().av).rmac }) } else { Err(errno_of(status)) };
        // SAFETY: the handle is alive, and used no more.
        unsafe { verbs.ibv_destroy_ah(handle.as_ptr()) };
        mac
    }
}

fn no_object(object: ObjectHandle) -> Error {
    Error::argument("object", format!("{:#x}", object.0), "not a handle that this HCA gave out")
}

/// Returns the error that a status stands for: an errno, or -1 and then `errno`.
fn errno_of(status: i32) -> io::Error {
    match status {
        -1 => io::Error::last_os_error(),
        errno => io::Error::from_raw_os_error(errno.abs()),
    }
}

fn umem_access(access: Access) -> u32 {
    // The kernel's `MLX5_IB_METHOD_DEVX_UMEM_REG` knows these three alone.
    [
        (access.local_write || access.is_remote(), sys::IBV_ACCESS_LOCAL_WRITE),
        (access.remote_write || access.remote_atomic, sys::IBV_ACCESS_REMOTE_WRITE),
        (access.remote_read, sys::IBV_ACCESS_REMOTE_READ),
    ]
    .into_iter()
    .filter_map(|(wanted, flag)| wanted.then_some(flag))
    .sum()
}

impl Provider for Mlx5Hca {
    fn info(&self) -> &HcaInfo {
        &self.info
    }

    fn alloc_uar(&self, rung: Rung) -> Result<UarPage> {
        let mut reasons = Vec::new();
        for (kind, what) in uar_types(rung) {
            // SAFETY: the context is open.
            let uar = unsafe { self.library.functions().mlx5dv_devx_alloc_uar(self.context.raw(), kind) };
            let Some(uar) = NonNull::new(uar) else {
                let source = io::Error::last_os_error();
                if let Some(dead) = self.dead_by(&source) {
                    return Err(dead);
                }
                self.record.add(what, Err(&source));
                reasons.push(format!("{what}: {source}"));
                continue;
            };
            self.record.add::<String>(what, Ok("given".to_owned()));
            // SAFETY: the library gave the structure, which lives until it is freed.
            let (page_id, base, register) =
                unsafe { (uar.as_ref().page_id, uar.as_ref().base_addr, uar.as_ref().reg_addr) };
            self.tables().uars.entry(page_id).or_default().push(uar);
            let offset = register.addr().wrapping_sub(base.addr());
            // The library maps a page of the system, which may hold several of the card's 4 KiB
            // (rdma-core, mlx5_alloc_dyn_uar).
            if offset >= rustix::param::page_size() {
                self.free_uar(page_id)?;
                let rule = "the library's page and register do not belong together";
                return Err(Error::argument("uar", page_id, rule));
            }
            let registers = vec![offset];
            let without_record = match self.info.without_records {
                0 => Vec::new(),
                // In the card's page that the register is in.
                _ => vec![offset / CARD_PAGE * CARD_PAGE + doorbell::WITHOUT_RECORD],
            };
            return Ok(UarPage { page_id, base: base.cast(), registers, without_record, device_registers: true });
        }
        Err(Mlx5Error::NoUar { device: self.info.device.clone(), reasons: reasons.join("; ") }.into())
    }

    fn free_uar(&self, page_id: u32) -> Result<()> {
        let mut tables = self.tables();
        let pages = tables.uars.get_mut(&page_id);
        let Some(uar) = pages.and_then(Vec::pop) else {
            return Err(Error::argument("uar", page_id, "no such page; was it freed before?"));
        };
        // SAFETY: the library gave it, and it is used no more.
        unsafe { self.library.functions().mlx5dv_devx_free_uar(uar.as_ptr()) };
        Ok(())
    }

    unsafe fn reg_umem(&self, source: UmemSource<'_>, access: Access) -> Result<u32> {
        let (_, size) = source.range();
        let umem = self.umems.climb(&self.record, &self.info.device, source, |given| {
            let (addr, comp_mask, dmabuf_fd) = match given {
                Given::DmaBuf(fd) => (ptr::null_mut(), mlx5dv::MLX5DV_UMEM_MASK_DMABUF.into(), fd.as_raw_fd()),
                Given::Address(addr) => (addr.cast::<c_void>(), 0, 0),
            };
            let mut arguments = mlx5dv::mlx5dv_devx_umem_in {
                addr,
                size,
                access: umem_access(access),
                // Queues begin inside the umem, which the kernel permits with this only.
                pgsz_bitmap: UMEM_PAGE,
                comp_mask,
                dmabuf_fd,
            };
            // SAFETY: the context is open; the caller vouches for the memory.
            let umem =
                unsafe { self.library.functions().mlx5dv_devx_umem_reg_ex(self.context.raw(), &raw mut arguments) };
            NonNull::new(umem).ok_or_else(io::Error::last_os_error)
        });
        let umem = umem.map_err(|error| self.unless_dead(error.into()))?;
        // SAFETY: the library gave the structure, which lives until it is deregistered.
        let id = unsafe { umem.as_ref().umem_id };
        self.tables().umems.insert(id, umem);
        Ok(id)
    }

    fn dereg_umem(&self, umem_id: u32) -> Result<()> {
        let mut tables = self.tables();
        let Some(umem) = tables.umems.get(&umem_id).copied() else {
            return Err(Error::argument("umem_id", umem_id, "no such umem; was it deregistered before?"));
        };
        // SAFETY: the library gave it.
        match unsafe { self.library.functions().mlx5dv_devx_umem_dereg(umem.as_ptr()) } {
            0 => {
                tables.umems.remove(&umem_id);
                Ok(())
            }
            status => {
                drop(tables);
                let detail = format!(" (umem {umem_id}); do keys or queues still use it?");
                Err(self.failed("mlx5dv_devx_umem_dereg", errno_of(status), detail))
            }
        }
    }

    unsafe fn reg_key(&self, pdn: u32, source: UmemSource<'_>, iova: u64, access: Access) -> Result<Option<MemoryKey>> {
        let domain = self.tables().pds.get(&pdn).cloned();
        let domain = domain.ok_or_else(|| Error::argument("pdn", pdn, "no such protection domain"))?;
        let (_, len) = source.range();
        let region = self.regions.climb(&self.record, &self.info.device, source, |given| match given {
            // SAFETY: the caller vouches for the memory.
            Given::DmaBuf(fd) => unsafe { MemoryRegion::register_dmabuf(&domain, fd, 0, len, iova, access) },
            // SAFETY: as above.
            Given::Address(addr) => unsafe { MemoryRegion::register(&domain, addr, len, iova, access) },
        });
        let region = region.map_err(|error| self.unless_dead(error.into()))?;
        let (lkey, rkey) = (region.lkey(), region.rkey());
        let mut tables = self.tables();
        let id = tables.number();
        tables.keys.insert(id, region);
        Ok(Some(MemoryKey { id, lkey, rkey }))
    }

    fn dereg_key(&self, id: u64) -> Result<()> {
        // Dropped outside the lock: the kernel may take its time.
        let region = self.tables().keys.remove(&id);
        match region {
            Some(region) => {
                drop(region);
                Ok(())
            }
            None => Err(Error::argument("key", id, "no such key; was it deregistered before?")),
        }
    }

    fn next_hop(&self, peer: &QpAddress, attributes: &QpAttributes) -> Result<[u8; 6]> {
        let hop = Arc::clone(self.tables().hops.entry(peer.gid).or_default());
        // Held while the kernel resolves it, so that of several threads one asks.
        let mut hop = hop.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mac) = hop.mac {
            return Ok(mac);
        }
        let route = route(&self.info.device, &self.info.port, peer)?;
        let ask = || self.resolve(route, peer, attributes);
        // Other threads that wait for the same hop would be as patient one after the other.
        let patience = if hop.gave_up { Duration::ZERO } else { attributes.patience };
        let mac = until_resolved(patience, ask, |source| Some(source)).map_err(|source| {
            hop.gave_up = true;
            if let Some(dead) = self.dead_by(&source) {
                return dead;
            }
            let HcaInfo { device, port, .. } = &self.info;
            Error::from(Mlx5Error::Unreachable { device: device.clone(), port: port.number, gid: peer.gid, source })
        })?;
        hop.mac = Some(mac);
        Ok(mac)
    }

    fn obj_create(&self, input: &[u8], output: &mut [u8]) -> Result<ObjectHandle> {
        if Opcode::of(input) == Some(Opcode::AllocPd) {
            return self.alloc_pd(output);
        }
        // SAFETY: the context is open; input and output are as long as said.
        let object = unsafe {
            self.library.functions().mlx5dv_devx_obj_create(
                self.context.raw(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        let source = if object.is_null() { Some(io::Error::last_os_error()) } else { None };
        self.judge("mlx5dv_devx_obj_create", source, input, output)?;
        let object = NonNull::new(object).ok_or_else(|| Error::argument("input", "a command", "created nothing"))?;
        let mut tables = self.tables();
        let number = tables.number();
        tables.objects.insert(number, Held::Devx(object));
        Ok(ObjectHandle(number))
    }

    fn obj_modify(&self, object: ObjectHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.execute("mlx5dv_devx_obj_modify", Mlx5dv::mlx5dv_devx_obj_modify, object, input, output)
    }

    fn obj_query(&self, object: ObjectHandle, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.execute("mlx5dv_devx_obj_query", Mlx5dv::mlx5dv_devx_obj_query, object, input, output)
    }

    fn obj_destroy(&self, object: ObjectHandle) -> Result<()> {
        let held = self.tables().objects.remove(&object.0).ok_or_else(|| no_object(object))?;
        match held {
            Held::Pd(pdn) => {
                // Memory regions that are left hold the domain.
                let domain = self.tables().pds.remove(&pdn);
                drop(domain);
                Ok(())
            }
            Held::Devx(pointer) => {
                // SAFETY: the object is alive, and destroyed once.
                let status = unsafe { self.library.functions().mlx5dv_devx_obj_destroy(pointer.as_ptr()) };
                if status == 0 {
                    return Ok(());
                }
                let source = errno_of(status);
                self.tables().objects.insert(object.0, Held::Devx(pointer));
                Err(self.failed("mlx5dv_devx_obj_destroy", source, "; do other objects still use it?".into()))
            }
        }
    }

    fn general_cmd(&self, input: &[u8], output: &mut [u8]) -> Result<()> {
        let status = self.general(input, output);
        self.judge("mlx5dv_devx_general_cmd", (status != 0).then(|| errno_of(status)), input, output)
    }

    fn prepare(&self, _: &[(u32, u32)]) -> Result<()> {
        // The card looks keys up by itself.
        Ok(())
    }

    fn counters(&self) -> Option<Counters> {
        None
    }

    fn first_failure(&self, _: u32) -> Option<QpFailure> {
        // The card tells by CQEs, and counts errors of all queue pairs together.
        None
    }

    fn error_counts(&self) -> Vec<(Syndrome, u32)> {
        let Some(handle) = self.error_counter else { return Vec::new() };
        let query = counter::QueryQCounter { clear: true, counter_set_id: self.info.counter_set };
        let mut output = [0; counter::QueryQCounter::OUT_LEN];
        match self.obj_query(handle, &query.encode(), &mut output) {
            Ok(()) => counter::QueryQCounter::decode_output(&output).errors(),
            Err(error) => {
                tracing::warn!(device = self.info.device, %error, "the card does not report its error counters");
                Vec::new()
            }
        }
    }

    fn attempts(&self) -> Vec<Attempt> {
        self.record.attempts()
    }

    fn dead(&self) -> Option<String> {
        self.death.reason()
    }

    fn when_dead(&self, hook: Box<dyn Fn() + Send + Sync>) {
        self.death.when(hook);
    }
}

impl Drop for Mlx5Hca {
    fn drop(&mut self) {
        // The listener first: it uses the context, and its subscribers are gone.
        self.events = None;
        if let Some(handle) = self.error_counter.take()
            && let Err(error) = self.obj_destroy(handle)
        {
            tracing::warn!(device = self.info.device, %error, "the card's error counters were not given back");
        }
        let tables = self.tables.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left = tables.objects.len() + tables.keys.len() + tables.umems.len();
        if left != 0 {
            tracing::warn!(
                device = self.info.device,
                left,
                "objects of the card were not destroyed; the kernel does it"
            );
        }
    }
}
