//! `mlx5dv_*`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use oxshmem_hca::objects::Umem;
use oxshmem_hca::prm::caps::{ATOMIC_CURRENT, GENERAL_2_CURRENT, GENERAL_CURRENT, ROCE_CURRENT};
use oxshmem_hca::prm::qpc::{AddressPath, OPT_LAG_PORT};
use oxshmem_hca::prm::{Command, CommandStatus, Opcode, cq, qp};
use oxshmem_hca::provider::{Access, Gid, ObjectHandle, Provider, Rung, UarPage};
use oxshmem_hca::soft::{SYNDROME_BASE, SoftHca};
use oxshmem_hca::verbs::sys::{ibverbs as ib, mlx5dv as dv};

use crate::infiniband;
use crate::state::{Context, EVENT_QUEUE, lie_about, lies, mac_of, null, say};
use crate::verbs::{Domain, describe_handle, dma_buf, register_umem};

/// `EREMOTEIO`: the firmware refused, and has said why in the output.
const REFUSED: i32 = libc::EREMOTEIO;

/// Where the syndrome of a lie comes from.
const LIE: u32 = 0xbad;

/// Bit offset of the peer's GID in INIT2RTR_QP.
const REMOTE_GID: u32 = 0x200;

/// Whether libmlx5 drives a device.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_is_supported(_: *mut ib::ibv_device) -> bool {
    lies().number("device", "foreign").is_none()
}

/// Opens a device for commands.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_open_device(
    device: *mut ib::ibv_device,
    attributes: *mut dv::mlx5dv_context_attr,
) -> *mut ib::ibv_context {
    // SAFETY: the caller's structure.
    let flags = unsafe { (*attributes).flags };
    if flags != dv::MLX5DV_CONTEXT_FLAGS_DEVX {
        return null(libc::EINVAL);
    }
    match lie_about("mlx5dv_open_device") {
        Some(errno) => null(errno),
        None => Context::open(device).unwrap_or_else(null),
    }
}

/// What mlx5 makes of objects of verbs.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_init_obj(object: *mut dv::mlx5dv_obj, kinds: u64) -> c_int {
    if let Some(errno) = lie_about("mlx5dv_init_obj") {
        return errno;
    }
    // SAFETY: the caller's structure, with live objects and room for what is requested.
    unsafe {
        if kinds == u64::from(dv::MLX5DV_OBJ_PD) {
            let pdn = Domain::of((*object).pd.in_).pd.pdn();
            (*object).pd.out.write(dv::mlx5dv_pd { pdn, comp_mask: 0 });
            0
        } else if kinds == u64::from(dv::MLX5DV_OBJ_AH) {
            describe_handle((*object).ah.in_, (*object).ah.out);
            0
        } else {
            libc::EOPNOTSUPP
        }
    }
}

/// The event queue of a completion vector.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_query_eqn(context: *mut ib::ibv_context, vector: u32, number: *mut u32) -> c_int {
    // SAFETY: an open context.
    if let Some(errno) = unsafe { Context::of(context) }.refuses("mlx5dv_devx_query_eqn") {
        return errno;
    }
    if vector != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller lets it be written.
    unsafe { *number = EVENT_QUEUE };
    0
}

/// A page of doorbell registers of the software HCA, which may have several handles.
#[derive(Debug)]
pub(crate) struct SharedPage {
    page: UarPage,
    hca: Arc<SoftHca>,
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // A page that queue pairs still ring in stays.
        let _ = self.hca.free_uar(self.page.page_id);
    }
}

#[repr(C)]
struct Page {
    raw: dv::mlx5dv_devx_uar,
    context: *mut ib::ibv_context,
    shared: Arc<SharedPage>,
}

/// What a context gives out again: its one page that is not cached, and the last write-combining
/// page with a register that is not given yet.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    uncached: Weak<SharedPage>,
    half: Weak<SharedPage>,
}

/// The page and the number of the register for an allocation of that kind (rdma-core,
/// providers/mlx5: `mlx5_attach_dedicated_uar` and `mlx5_get_nc_uar`: a write-combining page has
/// two registers, which are given one after the other; the page that is not cached is one for all).
fn page_for(own: &Context, kind: u32) -> Result<(Arc<SharedPage>, usize), i32> {
    let mut pages = own.pages.lock().unwrap_or_else(PoisonError::into_inner);
    if kind == dv::MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC
        && let Some(page) = pages.uncached.upgrade()
    {
        return Ok((page, 0));
    }
    if kind == dv::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF
        && let Some(page) = std::mem::take(&mut pages.half).upgrade()
    {
        return Ok((page, 1));
    }
    let page = own.hca.alloc_uar(Rung::ByDevice).map_err(|error| say(&error.to_string(), libc::ENOMEM))?;
    let shared = Arc::new(SharedPage { page, hca: Arc::clone(&own.hca) });
    match kind {
        dv::MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC => pages.uncached = Arc::downgrade(&shared),
        dv::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF => pages.half = Arc::downgrade(&shared),
        _ => {}
    }
    Ok((shared, 0))
}

/// A page of doorbell registers, with one that may be used.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_alloc_uar(context: *mut ib::ibv_context, kind: u32) -> *mut dv::mlx5dv_devx_uar {
    // SAFETY: an open context.
    let own = unsafe { Context::of(context) };
    let call = match kind {
        dv::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF => "mlx5dv_devx_alloc_uar.bf",
        dv::MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC => "mlx5dv_devx_alloc_uar.nc",
        0x8000_0000 => "mlx5dv_devx_alloc_uar.dedicated",
        _ => return null(libc::EOPNOTSUPP),
    };
    if let Some(errno) = own.refuses(call) {
        return null(errno);
    }
    own.take_command();
    let (shared, number) = match page_for(own, kind) {
        Ok(found) => found,
        Err(errno) => return null(errno),
    };
    let Some(register) = shared.page.registers.get(number) else { return null(libc::ENOMEM) };
    own.counts.pages.made();
    let raw = dv::mlx5dv_devx_uar {
        reg_addr: shared.page.base.wrapping_add(*register).cast(),
        base_addr: shared.page.base.cast(),
        page_id: shared.page.page_id,
        mmap_off: 0,
        comp_mask: 0,
    };
    Box::into_raw(Box::new(Page { raw, context, shared })).cast()
}

/// Frees a page.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_free_uar(uar: *mut dv::mlx5dv_devx_uar) {
    // SAFETY: it was a box, and is used no more.
    let page = unsafe { Box::from_raw(uar.cast::<Page>()) };
    // SAFETY: pages are freed before their context is closed.
    unsafe { Context::of(page.context) }.counts.pages.gone();
    debug_assert_eq!(page.shared.page.page_id, page.raw.page_id);
}

#[repr(C)]
struct RegisteredUmem {
    raw: dv::mlx5dv_devx_umem,
    context: *mut ib::ibv_context,
    umem: Arc<Umem>,
}

/// Registers memory for queues.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_umem_reg_ex(
    context: *mut ib::ibv_context,
    arguments: *mut dv::mlx5dv_devx_umem_in,
) -> *mut dv::mlx5dv_devx_umem {
    // SAFETY: an open context, and the caller's structure.
    let (own, arguments) = unsafe { (Context::of(context), &*arguments) };
    let by_fd = arguments.comp_mask & u64::from(dv::MLX5DV_UMEM_MASK_DMABUF) != 0;
    let call = if by_fd { "mlx5dv_devx_umem_reg_ex.dmabuf" } else { "mlx5dv_devx_umem_reg_ex.address" };
    if let Some(errno) = own.refuses(call) {
        return null(errno);
    }
    // The kernel's DevX knows three rights, and atomics are not among them (Linux, devx_umem_get).
    let known = ib::IBV_ACCESS_LOCAL_WRITE | ib::IBV_ACCESS_REMOTE_WRITE | ib::IBV_ACCESS_REMOTE_READ;
    // Without a page size nothing may begin inside the umem (Linux, devx_umem_reg_cmd_alloc); every
    // caller here wants that.
    if arguments.access & !known != 0 || arguments.pgsz_bitmap == 0 || arguments.pgsz_bitmap & 0xfff != 0 {
        return null(libc::EINVAL);
    }
    let access = Access {
        local_write: arguments.access & ib::IBV_ACCESS_LOCAL_WRITE != 0,
        remote_read: arguments.access & ib::IBV_ACCESS_REMOTE_READ != 0,
        remote_write: arguments.access & ib::IBV_ACCESS_REMOTE_WRITE != 0,
        remote_atomic: false,
    };
    let place = if by_fd {
        dma_buf(own, arguments.dmabuf_fd, arguments.addr.addr() as u64, arguments.size)
            .map(|(at, file)| (at, Some(file)))
    } else {
        let address = arguments.addr.expose_provenance();
        own.behind(address, arguments.size).map(|file| (address, file))
    };
    let umem = place.and_then(|(address, file)| register_umem(own, address, arguments.size, file.as_ref(), access));
    match umem {
        Ok(umem) => {
            own.take_command();
            own.counts.umems.made();
            own.counts.umem_bytes.fetch_add(arguments.size as u64, Ordering::Relaxed);
            // The kernel takes the largest page size that is permitted and fits; to be strict, the
            // largest that is permitted.
            let page = 1u64 << arguments.pgsz_bitmap.ilog2();
            own.umem_pages.lock().unwrap_or_else(PoisonError::into_inner).insert(umem.id(), page);
            let raw = dv::mlx5dv_devx_umem { umem_id: umem.id() };
            Box::into_raw(Box::new(RegisteredUmem { raw, context, umem })).cast()
        }
        Err(errno) => null(errno),
    }
}

/// Deregisters memory, unless it is in use.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_umem_dereg(handle: *mut dv::mlx5dv_devx_umem) -> c_int {
    // SAFETY: a umem that is alive, of an open context.
    let (registered, own) = unsafe {
        let registered = &*handle.cast::<RegisteredUmem>();
        (registered, Context::of(registered.context))
    };
    if registered.umem.close().is_err() && own.refuses("").is_none() {
        return libc::EBUSY;
    }
    own.counts.umems.gone();
    // SAFETY: it was a box, and is used no more.
    drop(unsafe { Box::from_raw(handle.cast::<RegisteredUmem>()) });
    0
}

struct Object {
    context: *mut ib::ibv_context,
    handle: ObjectHandle,
    opcode: Option<Opcode>,
    /// What commands name it by.
    number: u32,
}

/// The 24-bit number at bit 0x48, where answers to creations and commands about objects have it; of
/// QUERY_Q_COUNTER that at bit 0xf8 (Linux, devx.c: `devx_get_obj_id`).
fn number_in(bytes: &[u8]) -> u32 {
    if Opcode::of(bytes) == Some(Opcode::QueryQCounter) {
        return bytes.get(31).map_or(0, |id| (*id).into());
    }
    bytes.get(8..12).map_or(0, |bytes| u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]))
}

fn count(own: &Context, opcode: Option<Opcode>) -> &crate::state::Count {
    match opcode {
        Some(Opcode::CreateCq) => &own.counts.cqs,
        Some(Opcode::CreateQp) => &own.counts.qps,
        Some(Opcode::AllocQCounter) => &own.counts.error_counters,
        _ => &own.counts.others,
    }
}

/// The bytes of a command and the room for its answer.
struct Exchange<'a> {
    input: &'a [u8],
    output: &'a mut [u8],
}

impl<'a> Exchange<'a> {
    /// # Safety
    /// Both ranges are valid for as long as this is used.
    unsafe fn new(input: *const c_void, in_len: usize, output: *mut c_void, out_len: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                input: std::slice::from_raw_parts(input.cast(), in_len),
                output: std::slice::from_raw_parts_mut(output.cast(), out_len),
            }
        }
    }

    fn opcode(&self) -> Option<Opcode> {
        Opcode::of(self.input)
    }

    /// Lies about this command, if there are any; the errno.
    fn lie(&mut self, own: &Context, call: &str) -> Result<(), i32> {
        own.take_command();
        if lies().occurs("vanish", "command").is_some() {
            own.vanish();
        }
        if let Some(errno) = own.refuses(call) {
            return Err(errno);
        }
        let name = self.opcode().map_or("", Opcode::name);
        let any = lies().occurs("status", "any");
        if any.is_some() {
            say(&format!("{name} is refused"), 0);
        }
        match any.or_else(|| lies().occurs("status", name)) {
            Some(status) => Err(self.refuse(status as u8, LIE)),
            None => Ok(()),
        }
    }

    /// The firmware's refusal.
    fn refuse(&mut self, status: u8, syndrome: u32) -> i32 {
        self.output.fill(0);
        if self.output.len() >= 8 {
            self.output[0] = status;
            self.output[4..8].copy_from_slice(&syndrome.to_be_bytes());
        }
        REFUSED
    }

    /// Returns what the kernel makes of an errno. Those without `mlx5_cmd_do`, before 5.18, hide
    /// the firmware's refusals: EIO, and nothing in the output.
    fn by_kernel(&mut self, errno: i32) -> i32 {
        if errno != REFUSED || lies().number("device", "old-kernel").is_none_or(|old| old == 0) {
            return errno;
        }
        self.output.fill(0);
        libc::EIO
    }

    /// Refuses a queue that begins where its umem's page size does not permit it: the firmware
    /// counts in 64ths of a page.
    fn check_place(&mut self, own: &Context, umem: u32, offset: u64) -> Result<(), i32> {
        let page = own.umem_pages.lock().unwrap_or_else(PoisonError::into_inner).get(&umem).copied();
        if page.is_some_and(|page| !offset.is_multiple_of(page / 64)) {
            return Err(self.refuse(CommandStatus::BadParam as u8, LIE));
        }
        Ok(())
    }

    /// Takes the port of a bond out of a command, which the software HCA does not know, and counts
    /// it.
    fn take_bond_port(&mut self, own: &Context, command: &mut qp::Init2RtrQp) -> Result<(), i32> {
        let port = std::mem::take(&mut command.qpc.lag_tx_port_affinity);
        if command.opt_param_mask & OPT_LAG_PORT == 0 {
            return Ok(());
        }
        command.opt_param_mask &= !OPT_LAG_PORT;
        let ports = capability(own, "num_lag_ports");
        if capability(own, "init2_lag_tx_port_affinity") == 0 || port == 0 || u64::from(port) > ports {
            return Err(self.refuse(CommandStatus::BadParam as u8, LIE));
        }
        own.counts.bond[usize::from(port - 1)].made();
        Ok(())
    }

    /// Refuses an order that is forced on a card that cannot do so.
    fn check_order(&mut self, own: &Context, command: &qp::Init2RtrQp) -> Result<(), i32> {
        if command.qpc.dp_ordering_force && capability(own, "dp_ordering_force") == 0 {
            return Err(self.refuse(CommandStatus::BadParam as u8, LIE));
        }
        Ok(())
    }

    /// Lets the answer to QUERY_QP say that reads and writes pass each other, as that of a card
    /// with adaptive routing does unless the QP has forced its order.
    fn show_order(&mut self) {
        if self.opcode() != Some(Opcode::QueryQp) || lies().number("port", "adaptive-routing").is_none_or(|on| on == 0)
        {
            return;
        }
        // `dp_ordering_0` and `dp_ordering_force`: bits 0x26 and 0x27 of a context that begins at
        // bit 0xc0 of the answer (UCX, ib_mlx5_ifc.h: `uct_ib_mlx5_qpc_bits`).
        if let Some(byte) = self.output.get_mut((0xc0 + 0x20) / 8) {
            *byte |= if *byte & 0x01 == 0 { 0x02 } else { 0 };
        }
    }

    /// What the software HCA is given for what the program said.
    fn translate(&mut self, own: &Context) -> Result<Vec<u8>, i32> {
        let mut input = self.input.to_vec();
        match self.opcode() {
            Some(Opcode::CreateCq) => {
                let create = cq::CreateCq::decode(self.input).map_err(|_| self.refuse(3, LIE))?;
                // The kernel looks the queue up (Linux, mlx5_core_create_cq).
                if create.cqc.c_eqn != EVENT_QUEUE {
                    return Err(libc::EINVAL);
                }
                self.check_place(own, create.cq_umem_id, create.cq_umem_offset)?;
                Ok(input)
            }
            Some(Opcode::CreateQp) => {
                let mut create = qp::CreateQp::decode(self.input).map_err(|_| self.refuse(3, LIE))?;
                self.check_place(own, create.wq_umem_id, create.wq_umem_offset)?;
                // A clock that knows real time alone does not run freely.
                if create.qpc.ts_format == 0 && capability(own, "qp_ts_format") == 1 {
                    return Err(self.refuse(CommandStatus::BadParam as u8, LIE));
                }
                create.qpc.ts_format = 0;
                Ok(create.encode())
            }
            Some(Opcode::Init2RtrQp) => {
                let mut command = qp::Init2RtrQp::decode(self.input).map_err(|_| self.refuse(3, LIE))?;
                self.take_bond_port(own, &mut command)?;
                self.check_order(own, &command)?;
                if let Some(port) = own.infiniband {
                    let receiver = port.follow(&command.qpc.primary_address_path);
                    let receiver = receiver.map_err(|status| self.refuse(status as u8, LIE))?;
                    return Ok(to_receiver(own, command, receiver));
                }
                let path = &mut command.qpc.primary_address_path;
                let gid = Gid::from_halves(path.rgid_hi, path.rgid_lo);
                let mac = mac_of(gid);
                let named = [&path.rmac_47_32.to_be_bytes()[..], &path.rmac_31_0.to_be_bytes()].concat();
                let index = u32::from(path.src_addr_index);
                let routable = own.gid(index).is_some_and(|(_, kind)| kind == ib::IBV_GID_TYPE_ROCE_V2);
                if !routable {
                    return Err(self.refuse(CommandStatus::BadIndex as u8, LIE));
                }
                // Packets to another address would be lost; no caller has to wait for that here.
                if named != mac {
                    return Err(self.refuse(CommandStatus::BadParam as u8, LIE));
                }
                path.src_addr_index = 0;
                (path.rgid_hi, path.rgid_lo) = own.own_gid(gid).halves();
                input = command.encode();
                Ok(input)
            }
            _ => Ok(input),
        }
    }
}

/// INIT2RTR_QP of a port on InfiniBand as the software HCA takes it; its QP sends to the port with
/// that GID, or to none.
fn to_receiver(own: &Context, mut command: qp::Init2RtrQp, receiver: Option<Gid>) -> Vec<u8> {
    let gid = receiver.unwrap_or_else(|| {
        command.qpc.remote_qpn = infiniband::NOBODY;
        own.hca.info().port.gid
    });
    let path = &mut command.qpc.primary_address_path;
    let mac = mac_of(gid);
    *path = AddressPath {
        pkey_index: path.pkey_index,
        vhca_port_num: path.vhca_port_num,
        hop_limit: 1,
        udp_sport: 0xc000,
        rmac_47_32: u16::from_be_bytes([mac[0], mac[1]]),
        rmac_31_0: u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]),
        ..AddressPath::default()
    };
    (path.rgid_hi, path.rgid_lo) = gid.halves();
    command.encode()
}

/// 0, or what a program finds in `errno` after a command that the software HCA was given.
fn answered<T>(result: Result<T, oxshmem_hca::Error>) -> Result<T, i32> {
    result.map_err(|error| match error {
        oxshmem_hca::Error::Command { .. } => REFUSED,
        oxshmem_hca::Error::Dead { .. } => libc::EIO,
        _ => libc::EINVAL,
    })
}

/// Creates an object.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_obj_create(
    context: *mut ib::ibv_context,
    input: *const c_void,
    in_len: usize,
    output: *mut c_void,
    out_len: usize,
) -> *mut dv::mlx5dv_devx_obj {
    // SAFETY: an open context, and the caller's memory.
    let (own, mut exchange) = unsafe { (Context::of(context), Exchange::new(input, in_len, output, out_len)) };
    let opcode = exchange.opcode();
    let made = exchange.lie(own, "mlx5dv_devx_obj_create").and_then(|()| {
        let input = exchange.translate(own)?;
        answered(own.hca.obj_create(&input, exchange.output))
    });
    match made {
        Ok(handle) => {
            count(own, opcode).made();
            let number = number_in(exchange.output);
            Box::into_raw(Box::new(Object { context, handle, opcode, number })).cast()
        }
        Err(errno) => null(exchange.by_kernel(errno)),
    }
}

/// # Safety
/// The handle came from [`mlx5dv_devx_obj_create`] and was not destroyed.
unsafe fn object<'a>(handle: *mut dv::mlx5dv_devx_obj) -> (&'a Object, &'a Context) {
    // SAFETY: the caller's promise.
    unsafe {
        let object = &*handle.cast::<Object>();
        (object, Context::of(object.context))
    }
}

/// Executes a command about an object; 0 or an errno.
fn execute(
    handle: *mut dv::mlx5dv_devx_obj,
    call: &str,
    mut exchange: Exchange<'_>,
    function: fn(&SoftHca, ObjectHandle, &[u8], &mut [u8]) -> oxshmem_hca::Result<()>,
) -> c_int {
    // SAFETY: an object that is alive.
    let (object, own) = unsafe { object(handle) };
    // The kernel compares the object that a command names with that of the handle (Linux, devx.c:
    // `devx_is_valid_obj_id`).
    if number_in(exchange.input) != object.number {
        return libc::EINVAL;
    }
    let done = exchange.lie(own, call).and_then(|()| {
        let input = exchange.translate(own)?;
        let mut done = function(&own.hca, object.handle, &input, exchange.output);
        let nobody = exchange.opcode() == Some(Opcode::Init2RtrQp)
            && match &done {
                Ok(()) | Err(oxshmem_hca::Error::Dead { .. }) => false,
                Err(oxshmem_hca::Error::Command { syndrome, .. }) => *syndrome == SYNDROME_BASE | REMOTE_GID,
                // It ended while the software HCA made itself known to it.
                Err(_) => true,
            };
        if nobody {
            // No port is there, or not any more, which only packets find out.
            let command = qp::Init2RtrQp::decode(&input).map_err(|_| libc::EINVAL)?;
            done = function(&own.hca, object.handle, &to_receiver(own, command, None), exchange.output);
        }
        answered(done)
    });
    if done.is_ok() {
        exchange.show_order();
    }
    done.err().map_or(0, |errno| exchange.by_kernel(errno))
}

/// Changes an object.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_obj_modify(
    handle: *mut dv::mlx5dv_devx_obj,
    input: *const c_void,
    in_len: usize,
    output: *mut c_void,
    out_len: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    let exchange = unsafe { Exchange::new(input, in_len, output, out_len) };
    execute(handle, "mlx5dv_devx_obj_modify", exchange, SoftHca::obj_modify)
}

/// Reads an object's state.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_obj_query(
    handle: *mut dv::mlx5dv_devx_obj,
    input: *const c_void,
    in_len: usize,
    output: *mut c_void,
    out_len: usize,
) -> c_int {
    // SAFETY: the caller's memory.
    let exchange = unsafe { Exchange::new(input, in_len, output, out_len) };
    execute(handle, "mlx5dv_devx_obj_query", exchange, SoftHca::obj_query)
}

/// Destroys an object, unless others use it.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_obj_destroy(handle: *mut dv::mlx5dv_devx_obj) -> c_int {
    // SAFETY: an object that is alive.
    let (made, own) = unsafe { object(handle) };
    own.take_command();
    // The kernel has destroyed everything of a card that is gone.
    if let Err(errno) = answered(own.hca.obj_destroy(made.handle))
        && own.refuses("").is_none()
    {
        return errno;
    }
    count(own, made.opcode).gone();
    // SAFETY: it was a box, and is used no more.
    drop(unsafe { Box::from_raw(handle.cast::<Object>()) });
    0
}

/// Executes a command that concerns no object.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_devx_general_cmd(
    context: *mut ib::ibv_context,
    input: *const c_void,
    in_len: usize,
    output: *mut c_void,
    out_len: usize,
) -> c_int {
    // SAFETY: an open context, and the caller's memory.
    let (own, mut exchange) = unsafe { (Context::of(context), Exchange::new(input, in_len, output, out_len)) };
    let lied = exchange.lie(own, "mlx5dv_devx_general_cmd");
    if exchange.opcode() == Some(Opcode::QueryLag) && lied.is_ok() {
        exchange.output.fill(0);
        // lag_state: the last three bits of the context's first word (rdma-core, mlx5_ifc.h:
        // `mlx5_ifc_query_lag_out_bits`).
        if let Some(byte) = exchange.output.get_mut(11) {
            *byte = u8::from(capability(own, "num_lag_ports") > 1 && lies().number("port", "bond") != Some(0));
        }
        return 0;
    }
    let done = lied.and_then(|()| answered(own.hca.general_cmd(exchange.input, exchange.output)));
    if done.is_ok() {
        change_capabilities(own, exchange.input, exchange.output);
    }
    done.err().map_or(0, |errno| exchange.by_kernel(errno))
}

/// Capabilities that lies may change: set, name, bit offset in the answer, width (Linux,
/// mlx5_ifc.h: `cmd_hca_cap`, `atomic_caps`, 0x80 bits into `query_hca_cap_out`).
const CAPABILITIES: [(u16, &str, usize, usize); 14] = [
    (GENERAL_CURRENT, "log_max_qp_sz", 0x80 + 0x88, 8),
    (GENERAL_CURRENT, "log_max_ra_req_qp", 0x80 + 0x14a, 6),
    (GENERAL_CURRENT, "log_max_ra_res_qp", 0x80 + 0x15a, 6),
    (GENERAL_CURRENT, "port_type", 0x80 + 0x1b6, 2),
    (GENERAL_CURRENT, "roce", 0x80 + 0x21d, 1),
    (GENERAL_CURRENT, "atomic", 0x80 + 0x21e, 1),
    (GENERAL_CURRENT, "rc", 0x80 + 0x23f, 1),
    (GENERAL_CURRENT, "init2_lag_tx_port_affinity", 0x80 + 0x1f8, 1),
    (GENERAL_CURRENT, "num_lag_ports", 0x80 + 0x27c, 4),
    (GENERAL_CURRENT, "sq_ts_format", 0x80 + 0x440, 2),
    (GENERAL_2_CURRENT, "dp_ordering_force", 0x80 + 0x88, 1),
    (ROCE_CURRENT, "qp_ts_format", 0x80 + 0x1e, 2),
    (ATOMIC_CURRENT, "atomic_req_8b_endianness_mode", 0x80 + 0x40, 2),
    (ATOMIC_CURRENT, "atomic_operations", 0x80 + 0x90, 16),
];

/// What the software HCA, which is on Ethernet, says otherwise than a card on InfiniBand.
const OF_INFINIBAND: [(&str, u64); 2] = [("port_type", 0), ("roce", 0)];

/// What a card says: its clock knows real time alone, which is the strictest kind (Linux,
/// mlx5_ifc.h: `MLX5_TIMESTAMP_FORMAT_CAP_REAL_TIME`), and QPs may force their order.
const OF_CARDS: [(&str, u64); 3] = [("sq_ts_format", 1), ("qp_ts_format", 1), ("dp_ordering_force", 1)];

/// What a context says in the place of the software HCA, later items before earlier ones.
fn said(own: &Context) -> impl Iterator<Item = (&str, u64)> {
    let network = own.infiniband.iter().flat_map(|_| OF_INFINIBAND);
    OF_CARDS.into_iter().chain(network).chain(lies().numbers("cap"))
}

/// A capability that the stand-in alone knows.
fn capability(own: &Context, name: &str) -> u64 {
    said(own).filter(|(known, _)| *known == name).last().map_or(0, |(_, value)| value)
}

fn change_capabilities(own: &Context, input: &[u8], output: &mut [u8]) {
    let Some(op_mod) = input.get(6..8).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]])) else { return };
    for (name, value) in said(own) {
        let Some((set, _, at, width)) = CAPABILITIES.iter().find(|(_, known, ..)| *known == name) else {
            eprintln!("stand-in: no capability {name}");
            std::process::abort();
        };
        for bit in (0..*width).filter(|_| *set == op_mod) {
            let one = value >> (width - 1 - bit) & 1 != 0;
            let mask = 0x80 >> ((at + bit) % 8);
            let byte = &mut output[(at + bit) / 8];
            *byte = if one { *byte | mask } else { *byte & !mask };
        }
    }
}
