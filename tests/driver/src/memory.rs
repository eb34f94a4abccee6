//! Memory: files without names, and addresses that they are mapped at.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::CUresult;

use crate::devices::{DONE, give};
use crate::state::state;

const GRANULARITY: usize = 2 << 20;

/// Returns what the driver does for a call of the system.
fn result(succeeded: bool) -> CUresult {
    if succeeded { DONE } else { CUresult::CUDA_ERROR_OUT_OF_MEMORY }
}

/// Maps at an address that is reserved, or anywhere where that is null.
///
/// # Safety
/// Nothing else uses what is there.
unsafe fn map(at: *mut c_void, bytes: usize, flags: c_int, file: c_int) -> Option<*mut c_void> {
    // SAFETY: the caller's promise.
    let mapped = unsafe { libc::mmap(at, bytes, libc::PROT_NONE, flags, file, 0) };
    (mapped != libc::MAP_FAILED).then_some(mapped)
}

const NOTHING: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the caller's places.
    unsafe {
        give(free, 80 << 30);
        give(total, 80 << 30)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    _properties: *const c_void,
    _option: c_uint,
) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(granularity, GRANULARITY) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    address: *mut c_ulonglong,
    bytes: usize,
    align: usize,
    _wanted: c_ulonglong,
    _flags: c_ulonglong,
) -> CUresult {
    let align = align.max(GRANULARITY);
    // SAFETY: a new mapping.
    let Some(mapped) = (unsafe { map(null_mut(), bytes + align, NOTHING, -1) }) else { return result(false) };
    let first = mapped.addr().next_multiple_of(align) as u64;
    state().reserved.push(first..first + bytes as u64);
    // SAFETY: the caller's place.
    unsafe { give(address, first) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: c_ulonglong, bytes: usize) -> CUresult {
    state().reserved.retain(|range| range.start != address);
    // SAFETY: nothing uses the addresses any more.
    result(unsafe { libc::munmap(address as *mut c_void, bytes) } == 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    handle: *mut c_ulonglong,
    bytes: usize,
    _properties: *const c_void,
    _flags: c_ulonglong,
) -> CUresult {
    state().log("allocate");
    // SAFETY: a name, and a new file.
    let file = unsafe { libc::memfd_create(c"gpu".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: as above.
    if file < 0 || unsafe { libc::ftruncate(file, bytes as libc::off_t) } != 0 {
        return result(false);
    }
    // SAFETY: the caller's place.
    unsafe { give(handle, file as c_ulonglong) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: c_ulonglong) -> CUresult {
    // SAFETY: the file is this handle's.
    result(unsafe { libc::close(handle as c_int) } == 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemMap(
    address: c_ulonglong,
    bytes: usize,
    _offset: usize,
    handle: c_ulonglong,
    _flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the caller has reserved the addresses.
    result(unsafe { map(address as *mut c_void, bytes, libc::MAP_SHARED | libc::MAP_FIXED, handle as c_int) }.is_some())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemUnmap(address: c_ulonglong, bytes: usize) -> CUresult {
    // SAFETY: the caller has mapped them.
    result(unsafe { map(address as *mut c_void, bytes, NOTHING | libc::MAP_FIXED, -1) }.is_some())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(
    address: c_ulonglong,
    bytes: usize,
    _access: *const c_void,
    _count: usize,
) -> CUresult {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller has mapped them.
    result(unsafe { libc::mprotect(address as *mut c_void, bytes, rights) } == 0)
}

/// Returns another descriptor of a file.
fn again(file: c_int) -> Option<c_int> {
    // SAFETY: makes a descriptor.
    let again = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 0) };
    (again >= 0).then_some(again)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemExportToShareableHandle(
    to: *mut c_void,
    handle: c_ulonglong,
    _kind: c_uint,
    _flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the caller's place for a descriptor.
    again(handle as c_int).map_or(result(false), |file| unsafe { give(to.cast(), file) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut c_ulonglong,
    from: *mut c_void,
    _kind: c_uint,
) -> CUresult {
    // SAFETY: the caller's place.
    again(from.addr() as c_int).map_or(result(false), |file| unsafe { give(handle, file as c_ulonglong) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) -> CUresult {
    state().log("allocate");
    let mut place = null_mut();
    // SAFETY: writes a pointer.
    if unsafe { libc::posix_memalign(&raw mut place, 4096, bytes) } != 0 {
        return result(false);
    }
    // SAFETY: the caller's place.
    unsafe { give(at, place) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> CUresult {
    // SAFETY: `cuMemHostAlloc` made it.
    unsafe { libc::free(at) };
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(_at: *mut c_void, _bytes: usize, _flags: c_uint) -> CUresult {
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(_at: *mut c_void) -> CUresult {
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(seen: *mut c_ulonglong, at: *mut c_void, _flags: c_uint) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(seen, at.addr() as c_ulonglong) }
}
