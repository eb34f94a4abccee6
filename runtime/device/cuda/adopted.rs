//! Memory that the program allocated, before a card is given it.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUmemorytype, CUpointer_attribute,
};

use rustix::io::{FdFlags, fcntl_setfd};

use super::driver::{DriverError, driver};
use super::handle::{Handle, length};
use super::page_locks::PageLocks;
use super::stream::Stream;
use crate::device::interface::{Memory, ProgramMemory, whole_pages};

/// Returns what memory is; pageable memory of the host becomes page-locked.
pub(super) fn adopt(stream: &Arc<Stream>, address: u64, bytes: u64) -> Result<ProgramMemory, String> {
    let text = |error: DriverError| error.to_string();
    let _entered = stream.enter().map_err(|error| error.to_string())?;
    let last = address + (bytes - 1);
    // Some pages of the host may be locked already.
    let is_of_host = |kind: Option<u32>| kind.is_none_or(|kind| kind == CUmemorytype::CU_MEMORYTYPE_HOST as u32);
    match (memory_type(address), memory_type(last)) {
        (first, end) if is_of_host(first) && is_of_host(end) => {
            let locked = ProgramPages::lock(stream, address, bytes)
                .map_err(|error| format!("it cannot be page-locked: {error}; allocate it with cudaMallocHost"))?;
            Ok(ProgramMemory { on_device: false, _locked: Some(Box::new(locked)) })
        }
        (first, end) if first == end => {
            let (own, theirs) = (stream.context().gpu.ordinal, gpu_of(address).map_err(text)?);
            if own != theirs {
                return Err(format!(
                    "it is memory of GPU {theirs}, and this PE has GPU {own}; allocate it after cudaSetDevice({own})"
                ));
            }
            order_copies(address);
            Ok(ProgramMemory { on_device: true, _locked: None })
        }
        _ => {
            Err("its first and its last byte are memory of different kinds; register each allocation by itself".into())
        }
    }
}

/// Returns memory of the driver's virtual memory management, all of one mapping.
pub(super) fn share(stream: &Arc<Stream>, granularity: u64, address: u64, bytes: u64) -> Result<Memory, String> {
    let _entered = stream.enter().map_err(|error| error.to_string())?;
    let unfit = |what: &str| {
        format!(
            "{what}; register all of a mapping of memory of cuMemCreate with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, whose size is \
             a multiple of {granularity} bytes"
        )
    };
    let behind = |address| Handle::behind(address);
    let handle = behind(address).map_err(|error| unfit(&format!("the driver has no allocation for it ({error})")))?;
    if !bytes.is_multiple_of(granularity) || !behind(address + (bytes - 1)).is_ok_and(|last| last == handle) {
        return Err(unfit("it is not memory of one mapping"));
    }
    if behind(address - 1).is_ok_and(|before| before == handle)
        || behind(address + bytes).is_ok_and(|after| after == handle)
    {
        return Err(unfit("it is a part of a mapping"));
    }
    let (own, theirs) = (stream.context().gpu.ordinal, gpu_of(address).map_err(|error| error.to_string())?);
    if own != theirs {
        return Err(format!("it is memory of GPU {theirs}, and this PE has GPU {own}"));
    }
    let descriptor = handle.export().map_err(|error| unfit(&format!("it cannot be exported ({error})")))?;
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC).map_err(|errno| errno.to_string())?;
    Ok(Memory { descriptor, handle: Some(handle), _pages: None })
}

/// Returns whether the driver knows the first and the last byte as memory of one kind, of a GPU or
/// page-locked. Pages of the host are page-locked one by one, so that neighbours of registered
/// memory may be so in part. The context must be current.
pub(super) fn is_known(address: u64, bytes: u64) -> bool {
    let page = rustix::param::page_size() as u64;
    let last = address.saturating_add(bytes.saturating_sub(1));
    let first = memory_type(address);
    first.is_some() && (address / page == last / page || memory_type(last) == first)
}

/// Returns the `CUmemorytype` of what CUDA knows of an address; `None` for what it does not know.
fn memory_type(address: u64) -> Option<u32> {
    let mut kind = 0u32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: writes one integer; the driver refuses addresses that it does not know.
    unsafe { driver!(cuPointerGetAttribute((&raw mut kind).cast(), attribute, address)) }.ok().map(|()| kind)
}

/// Returns the GPU that memory is on.
pub(crate) fn gpu_of(address: u64) -> Result<i32, DriverError> {
    let mut ordinal = 0i32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: writes one integer.
    unsafe { driver!(cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address)) }?;
    Ok(ordinal)
}

/// Makes copies of the CUDA runtime to or from memory complete before they return, so that a card
/// that reads the memory afterwards sees them (GPUDirect RDMA, "Synchronization and Memory
/// Ordering"). Memory of the driver's virtual memory management does not have the attribute, and
/// its allocations are made for cards or not.
fn order_copies(address: u64) {
    let on = 1u32;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    // SAFETY: reads one integer.
    if let Err(error) = unsafe { driver!(cuPointerSetAttribute((&raw const on).cast(), attribute, address)) } {
        tracing::debug!(%error, address, "copies to memory of the program are not ordered before transfers");
    }
}

/// Pages of this process, which all PEs in it share.
static LOCKS: Mutex<PageLocks> = Mutex::new(PageLocks::new());

fn locks() -> MutexGuard<'static, PageLocks> {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of the host that is page-locked for as long as it is registered.
#[derive(Debug)]
struct ProgramPages {
    stream: Arc<Stream>,
    /// What [`PageLocks::keep`] returned.
    needed: Vec<u64>,
}

impl ProgramPages {
    /// Locks the pages. The context must be current.
    fn lock(stream: &Arc<Stream>, address: u64, bytes: u64) -> Result<Self, DriverError> {
        let (first, len) = whole_pages(address, bytes);
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        let lock = |pages: Range<u64>| {
            let bytes = pages.end - pages.start;
            if is_known(pages.start, bytes) {
                // The program has allocated it page-locked.
                return Ok(false);
            }
            // SAFETY: the caller of `Pe::register_buffer` vouches for the memory; the driver
            // refuses what is not mapped.
            unsafe { driver!(cuMemHostRegister_v2(pages.start as *mut c_void, length(bytes), flags)) }.map(|()| true)
        };
        let needed = locks().keep(first..first + len, lock, unlock)?;
        Ok(Self { stream: Arc::clone(stream), needed })
    }
}

/// Unlocks pages that were locked together. The context must be current.
fn unlock(first: u64) {
    // SAFETY: `ProgramPages::lock` registered them, and no range needs them any more.
    if let Err(error) = unsafe { driver!(cuMemHostUnregister(first as *mut c_void)) } {
        tracing::debug!(%error, "cannot unlock memory of the program");
    }
}

impl Drop for ProgramPages {
    fn drop(&mut self) {
        let entered = self.stream.enter();
        locks().release(&self.needed, |first| {
            // A context that is lost has no locks any more.
            if entered.is_ok() {
                unlock(first);
            }
        });
    }
}
