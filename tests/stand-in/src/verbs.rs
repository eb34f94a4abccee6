//! `ibv_*`.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null_mut;

use oxshmem_hca::objects::{KEY_VARIANT, Mkey, MkeyAttributes, Pd, Umem};
use oxshmem_hca::provider::{Access, DEFAULT_PKEY, Gid, Provider, UmemSource};
use oxshmem_hca::verbs::sys::ibverbs as ib;
use oxshmem_hca::verbs::sys::mlx5dv::{mlx5_wqe_av, mlx5dv_ah};
use std::sync::Arc;

use crate::state::{Context, EVENT_QUEUE, GIDS, devices, lie_about, lies, mac_of, null, say};
use crate::{mapping, state};

const _: () = assert!(EVENT_QUEUE != 0, "a number that is left out must not be right");

/// Keeps registered memory across forks, unless a lie says otherwise. It is not one of the calls
/// that can fail (`errno:any`), since programs go on without it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    lies().occurs("errno", "ibv_fork_init").and_then(|errno| c_int::try_from(errno).ok()).unwrap_or(0)
}

/// A null-terminated list of the devices, which the caller frees.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ib::ibv_device {
    if let Some(errno) = lie_about("ibv_get_device_list") {
        return null(errno);
    }
    let mut list: Vec<*mut ib::ibv_device> =
        devices().iter().map(|device| (&raw const device.raw).cast_mut()).collect();
    if !count.is_null() {
        // SAFETY: the caller lets it be written.
        unsafe { *count = list.len() as c_int };
    }
    list.push(null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// Frees a list.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_free_device_list(list: *mut *mut ib::ibv_device) {
    if !list.is_null() {
        let all = std::ptr::slice_from_raw_parts_mut(list, devices().len() + 1);
        // SAFETY: it was made so.
        drop(unsafe { Box::from_raw(all) });
    }
}

/// The name of a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut ib::ibv_device) -> *const c_char {
    // SAFETY: a device of the list, which is never freed.
    unsafe { (&raw const (*device).name).cast() }
}

/// Opens a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut ib::ibv_device) -> *mut ib::ibv_context {
    if let Some(errno) = lie_about("ibv_open_device") {
        return null(errno);
    }
    Context::open(device).unwrap_or_else(null)
}

/// Closes a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: *mut ib::ibv_context) -> c_int {
    // SAFETY: an open context, which is used no more.
    unsafe { Context::close(context) };
    0
}

/// What a device can do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_device(context: *mut ib::ibv_context, attributes: *mut ib::ibv_device_attr) -> c_int {
    // SAFETY: an open context.
    if let Some(errno) = unsafe { Context::of(context) }.refuses("ibv_query_device") {
        return errno;
    }
    // SAFETY: the caller lets it be written; zeros are a value.
    let attributes = unsafe {
        attributes.write_bytes(0, 1);
        &mut *attributes
    };
    attributes.phys_port_cnt = 1;
    attributes.max_qp_wr = 1 << 15;
    attributes.max_cqe = 1 << 22;
    attributes.max_qp_rd_atom = 16;
    attributes.max_qp_init_rd_atom = 16;
    attributes.vendor_id = 0x02c9;
    // What Linux's driver says of every card that has atomics (drivers/infiniband/hw/mlx5/main.c,
    // get_atomic_caps).
    let atomics = lies().number("device", "atomics").and_then(|kind| u32::try_from(kind).ok());
    attributes.atomic_cap = atomics.unwrap_or(ib::IBV_ATOMIC_HCA);
    0
}

/// What a port is; the function behind the header's inline one.
pub(crate) extern "C" fn query_port(
    context: *mut ib::ibv_context,
    port: u8,
    attributes: *mut ib::ibv_port_attr,
    len: usize,
) -> c_int {
    // SAFETY: an open context.
    let own = unsafe { Context::of(context) };
    if let Some(errno) = own.refuses("ibv_query_port") {
        return errno;
    }
    if port != 1 || len < size_of::<ib::ibv_port_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: the caller lets that many bytes be written; zeros are a value.
    let attributes = unsafe {
        attributes.write_bytes(0, 1);
        &mut *attributes
    };
    let state = lies().number("port", "state").and_then(|state| u32::try_from(state).ok());
    attributes.state = state.unwrap_or(ib::IBV_PORT_ACTIVE);
    (attributes.max_mtu, attributes.active_mtu) = (5, 5);
    attributes.max_msg_sz = 1 << 30;
    match own.infiniband {
        Some(port) => port.describe(attributes),
        None => {
            attributes.gid_tbl_len = GIDS as c_int;
            attributes.pkey_tbl_len = 1;
            attributes.link_layer = 2;
        }
    }
    0
}

/// An entry of the partition key table, in network order.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_pkey(context: *mut ib::ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int {
    // SAFETY: an open context.
    let own = unsafe { Context::of(context) };
    if let Some(errno) = own.refuses("ibv_query_pkey") {
        return errno;
    }
    let entry = u16::try_from(index).ok().filter(|_| port == 1).and_then(|index| match own.infiniband {
        Some(port) => port.pkey(index),
        None => (index == 0).then_some(DEFAULT_PKEY),
    });
    match entry {
        Some(entry) => {
            // SAFETY: the caller lets it be written.
            unsafe { *key = entry.to_be() };
            0
        }
        None => libc::EINVAL,
    }
}

/// The form of the first release; callers that know of the larger structure do not use it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_port(_: *mut ib::ibv_context, _: u8, _: *mut c_void) -> c_int {
    libc::EOPNOTSUPP
}

/// An entry of the GID table.
#[unsafe(no_mangle)]
pub extern "C" fn _ibv_query_gid_ex(
    context: *mut ib::ibv_context,
    port: u32,
    index: u32,
    entry: *mut ib::ibv_gid_entry,
    _flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: an open context.
    let own = unsafe { Context::of(context) };
    match own.gid(index).filter(|_| port == 1 && size >= size_of::<ib::ibv_gid_entry>()) {
        Some((gid, kind)) => {
            let gid = ib::ibv_gid { raw: gid.0 };
            let ndev_ifindex = u32::from(own.infiniband.is_none());
            let value = ib::ibv_gid_entry { gid, gid_index: index, port_num: 1, gid_type: kind, ndev_ifindex };
            // SAFETY: the caller lets it be written.
            unsafe { entry.write(value) };
            0
        }
        None => libc::ENODATA,
    }
}

/// A protection domain.
#[repr(C)]
pub(crate) struct Domain {
    raw: ib::ibv_pd,
    pub(crate) pd: Arc<Pd>,
}

impl Domain {
    /// # Safety
    /// The handle came from [`ibv_alloc_pd`] and was not freed.
    pub(crate) unsafe fn of<'a>(handle: *mut ib::ibv_pd) -> &'a Self {
        // SAFETY: the handle points to the first field.
        unsafe { &*handle.cast::<Self>() }
    }
}

/// Allocates a protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut ib::ibv_context) -> *mut ib::ibv_pd {
    // SAFETY: an open context.
    let own = unsafe { Context::of(context) };
    if let Some(errno) = own.refuses("ibv_alloc_pd") {
        return null(errno);
    }
    let hca: Arc<dyn Provider> = Arc::clone(&own.hca) as _;
    match Pd::alloc(&hca) {
        Ok(pd) => {
            own.take_command();
            own.counts.domains.made();
            Box::into_raw(Box::new(Domain { raw: ib::ibv_pd { context, handle: pd.pdn() }, pd })).cast()
        }
        Err(_) => null(libc::ENOMEM),
    }
}

/// Frees a protection domain, unless it is in use.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(handle: *mut ib::ibv_pd) -> c_int {
    // SAFETY: a domain that is alive, of an open context.
    let (domain, own) = unsafe { (Domain::of(handle), Context::of((*handle).context)) };
    if domain.pd.close().is_err() && own.refuses("").is_none() {
        return libc::EBUSY;
    }
    own.counts.domains.gone();
    // SAFETY: it was a box, and is used no more.
    drop(unsafe { Box::from_raw(handle.cast::<Domain>()) });
    0
}

/// A memory region.
#[repr(C)]
struct Region {
    raw: ib::ibv_mr,
    _key: Mkey,
}

fn access_of(flags: c_uint) -> Access {
    let has = |flag: u32| flags & flag != 0;
    Access {
        local_write: has(ib::IBV_ACCESS_LOCAL_WRITE),
        remote_read: has(ib::IBV_ACCESS_REMOTE_READ),
        remote_write: has(ib::IBV_ACCESS_REMOTE_WRITE),
        remote_atomic: has(ib::IBV_ACCESS_REMOTE_ATOMIC),
    }
}

/// What is registered: the file that an address maps, or, if no other process is to reach it, the
/// address.
pub(crate) fn register_umem(
    own: &Context,
    address: usize,
    len: usize,
    file: Option<&mapping::Backing>,
    access: Access,
) -> Result<Arc<Umem>, i32> {
    let hca: Arc<dyn Provider> = Arc::clone(&own.hca) as _;
    let addr = std::ptr::with_exposed_provenance_mut(address);
    let source = match file {
        Some(file) => UmemSource::Fd { fd: file.fd.as_fd(), offset: file.offset, len, addr, device: None },
        None if !access.is_remote() => UmemSource::Host { addr, len },
        None => return Err(libc::EFAULT),
    };
    // SAFETY: the caller that registers memory keeps it mapped.
    unsafe { Umem::register(&hca, source, access) }.map_err(|error| say(&error.to_string(), libc::EINVAL))
}

fn region(
    handle: *mut ib::ibv_pd,
    address: usize,
    len: usize,
    file: Option<&mapping::Backing>,
    iova: u64,
    flags: c_uint,
) -> *mut ib::ibv_mr {
    let access = access_of(flags);
    // Rights of others to change memory need the local right to do so (ibv_reg_mr(3)).
    if (access.remote_write || access.remote_atomic) && !access.local_write {
        return null(libc::EINVAL);
    }
    // SAFETY: a domain that is alive, of an open context.
    let (domain, own) = unsafe { (Domain::of(handle), Context::of((*handle).context)) };
    let umem = match register_umem(own, address, len, file, access) {
        Ok(umem) => umem,
        Err(errno) => return null(errno),
    };
    // No key is good on another card.
    let variant = KEY_VARIANT.wrapping_add(own.card as u8);
    let attributes =
        MkeyAttributes { umem_offset: 0, len: len as u64, start_addr: iova, access, relaxed_ordering: false, variant };
    let key = match Mkey::create(&domain.pd, &umem, &attributes) {
        Ok(key) => key,
        Err(error) => return null(say(&error.to_string(), libc::ENOMEM)),
    };
    own.take_command();
    own.counts.regions.made();
    let raw = ib::ibv_mr {
        context: domain.raw.context,
        pd: handle,
        addr: std::ptr::with_exposed_provenance_mut(address),
        length: len,
        handle: 0,
        lkey: key.lkey(),
        rkey: key.rkey(),
    };
    Box::into_raw(Box::new(Region { raw, _key: key })).cast()
}

/// Registers memory of this process.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova2(
    handle: *mut ib::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ib::ibv_mr {
    // SAFETY: a domain that is alive, of an open context.
    if let Some(errno) = unsafe { Context::of((*handle).context) }.refuses("ibv_reg_mr_iova2") {
        return null(errno);
    }
    let address = addr.expose_provenance();
    // SAFETY: as above.
    match unsafe { Context::of((*handle).context) }.behind(address, length) {
        Ok(file) => region(handle, address, length, file.as_ref(), iova, access),
        Err(errno) => null(errno),
    }
}

/// Registers a part of a dma-buf: here any file that this process has mapped.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    handle: *mut ib::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ib::ibv_mr {
    // SAFETY: a domain that is alive, of an open context.
    let own = unsafe { Context::of((*handle).context) };
    if let Some(errno) = own.refuses("ibv_reg_dmabuf_mr") {
        return null(errno);
    }
    // Offset and address agree within a page (Linux, ib_uverbs: `UVERBS_METHOD_REG_DMABUF_MR`).
    if (offset ^ iova) & (rustix::param::page_size() as u64 - 1) != 0 {
        return null(libc::EINVAL);
    }
    match dma_buf(own, fd, offset, length) {
        Ok((address, file)) => region(handle, address, length, Some(&file), iova, access.cast_unsigned()),
        Err(errno) => null(errno),
    }
}

/// Where a part of a file is mapped, and the file.
pub(crate) fn dma_buf(own: &Context, fd: c_int, offset: u64, len: usize) -> Result<(usize, mapping::Backing), i32> {
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: the caller's, which keeps it open during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    if own.gpu.is_some() {
        // Its size is where it ends; no other call tells a process what is behind one.
        let size = rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0)).map_err(|errno| errno.raw_os_error())?;
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= size);
        return Err(if fits { libc::EOPNOTSUPP } else { libc::EINVAL });
    }
    let address = mapping::address_of(fd, offset, len).ok_or(libc::EFAULT)?;
    let fd = fd.try_clone_to_owned().map_err(|_| libc::EBADF)?;
    Ok((address, mapping::Backing { fd, offset }))
}

/// Deregisters memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(handle: *mut ib::ibv_mr) -> c_int {
    // SAFETY: a region that is alive, of an open context.
    unsafe { Context::of((*handle).context) }.counts.regions.gone();
    // SAFETY: it was a box, and is used no more.
    drop(unsafe { Box::from_raw(handle.cast::<Region>()) });
    0
}

/// An address handle.
#[repr(C)]
struct Handle {
    /// What programs see: the context first.
    raw: ib::ibv_ah,
    context: *mut ib::ibv_context,
    vector: mlx5_wqe_av,
}

/// Resolves the way to a peer: its hardware address, which follows from its GID. On InfiniBand it
/// is not needed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah(handle: *mut ib::ibv_pd, attributes: *mut ib::ibv_ah_attr) -> *mut ib::ibv_ah {
    // SAFETY: a domain that is alive, of an open context; the attributes may be read.
    let (context, attributes) = unsafe { ((*handle).context, &*attributes) };
    // SAFETY: an open context.
    let own = unsafe { Context::of(context) };
    if let Some(errno) = own.refuses("ibv_create_ah") {
        return null(errno);
    }
    let index = u32::from(attributes.grh.sgid_index);
    let routable = own.gid(index).is_some_and(|(_, kind)| kind == ib::IBV_GID_TYPE_ROCE_V2);
    if attributes.is_global == 0 || attributes.port_num != 1 || !routable {
        return null(libc::EINVAL);
    }
    // SAFETY: any 16 bytes are a GID.
    let peer = Gid(unsafe { attributes.grh.dgid.raw });
    // SAFETY: plain data, for which zeros are a value.
    let mut made: Handle = unsafe { std::mem::zeroed() };
    made.context = context;
    made.vector.rmac = mac_of(peer);
    made.vector.rgid = peer.0;
    own.counts.handles.made();
    Box::into_raw(Box::new(made)).cast()
}

/// Destroys an address handle.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(handle: *mut ib::ibv_ah) -> c_int {
    // SAFETY: it was a box, of an open context, and is used no more.
    let made = unsafe { Box::from_raw(handle.cast::<Handle>()) };
    // SAFETY: as above.
    unsafe { Context::of(made.context) }.counts.handles.gone();
    0
}

/// What `mlx5dv_init_obj` says of an address handle.
///
/// # Safety
/// The handle is alive, and `out` may be written.
pub(crate) unsafe fn describe_handle(handle: *mut ib::ibv_ah, out: *mut mlx5dv_ah) {
    // SAFETY: the caller's promise.
    unsafe {
        let vector = handle.byte_add(offset_of!(Handle, vector)).cast::<mlx5_wqe_av>();
        out.write(mlx5dv_ah { av: vector, comp_mask: 0 });
    }
}

/// Waits for an event: the only one is that the card is gone.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_async_event(context: *mut ib::ibv_context, event: *mut ib::ibv_async_event) -> c_int {
    // SAFETY: an open context owns its descriptor.
    let fd = unsafe { BorrowedFd::borrow_raw((*context).async_fd) };
    if rustix::io::read(fd, &mut [0; 8]).is_err() {
        return -1;
    }
    let element = ib::ibv_async_event__bindgen_ty_1 { port_num: 1 };
    // SAFETY: the caller lets it be written.
    unsafe { event.write(ib::ibv_async_event { element, event_type: ib::IBV_EVENT_DEVICE_FATAL }) };
    0
}

/// Nothing is kept of an event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_: *mut ib::ibv_async_event) {}

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: ib::ibv_event_type) -> *const c_char {
    match event {
        ib::IBV_EVENT_DEVICE_FATAL => c"local catastrophic error".as_ptr(),
        _ => c"unknown".as_ptr(),
    }
}

/// The name of a completion's status.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(_: ib::ibv_wc_status) -> *const c_char {
    c"unknown".as_ptr()
}

/// Queues of verbs are not part of the stand-in: a poster writes WQEs here.
macro_rules! absent {
    ($($name:ident($($argument:ty),*) -> *mut $result:ty;)*) => {$(
        /// Not part of the stand-in.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($(_: $argument),*) -> *mut $result {
            state::null(libc::EOPNOTSUPP)
        }
    )*};
    ($($name:ident($($argument:ty),*);)*) => {$(
        /// Not part of the stand-in.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($(_: $argument),*) -> c_int {
            libc::EOPNOTSUPP
        }
    )*};
}

absent! {
    ibv_create_cq(*mut ib::ibv_context, c_int, *mut c_void, *mut c_void, c_int) -> *mut ib::ibv_cq;
    ibv_create_qp(*mut ib::ibv_pd, *mut c_void) -> *mut ib::ibv_qp;
}
absent! {
    ibv_destroy_cq(*mut ib::ibv_cq);
    ibv_destroy_qp(*mut ib::ibv_qp);
    ibv_modify_qp(*mut ib::ibv_qp, *mut c_void, c_int);
    ibv_query_qp(*mut ib::ibv_qp, *mut c_void, c_int, *mut c_void);
}
