//! The GPU, its contexts, and errors.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUevent, CUresult, CUuuid};

use crate::state::{PRIMARY, state};

/// What a call returns that did what it was to do.
pub const DONE: CUresult = CUresult::CUDA_SUCCESS;

thread_local! {
    /// The contexts of this thread; the last one is current.
    static CURRENT: RefCell<Vec<CUcontext>> = const { RefCell::new(Vec::new()) };
}

/// Writes what a caller has a place for.
///
/// # Safety
/// `to` is such a place.
pub unsafe fn give<T>(to: *mut T, value: T) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> CUresult {
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(version, 13000) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(_error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(text, c"an error".as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(text, c"of the driver stand-in".as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(count, 1) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(device, ordinal) }
}

/// Writes text of at most `room` bytes.
///
/// # Safety
/// `to` has that room.
unsafe fn give_text(to: *mut c_char, room: c_int, text: &CStr) -> CUresult {
    let bytes = text.to_bytes_with_nul();
    if room < 0 || bytes.len() > room as usize {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: there is room; the caller's promise.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, room: c_int, _device: CUdevice) -> CUresult {
    // SAFETY: the caller's room.
    unsafe { give_text(to, room, c"driver stand-in") }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, room: c_int, _device: CUdevice) -> CUresult {
    // SAFETY: the caller's room.
    unsafe { give_text(to, room, c"0000:00:00.0") }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, _device: CUdevice) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(uuid, CUuuid { bytes: [7; 16] }) }
}

/// Returns whether `STAND_IN_GPU`, a list of words with commas between, has this one: `reads-host`
/// for a GPU that reads pageable memory of the host by itself, `no-stores` for one whose streams
/// store no words of 8 bytes.
fn is_told(word: &str) -> bool {
    std::env::var("STAND_IN_GPU").is_ok_and(|words| words.split(',').any(|told| told == word))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    _device: CUdevice,
) -> CUresult {
    let known = match attribute {
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 8,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 132,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => 2048,
        Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE | Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => 32,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => 65535,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 65536,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 227 << 10,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => 228 << 10,
        Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS => is_told("reads-host").into(),
        Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS => (!is_told("no-stores")).into(),
        // What is left says whether the GPU can do something.
        _ => 1,
    };
    // SAFETY: the caller's place.
    unsafe { give(value, known) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, _device: CUdevice, _peer: CUdevice) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(can, 1) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetP2PAttribute(
    has: *mut c_int,
    _attribute: c_uint,
    _device: CUdevice,
    _peer: CUdevice,
) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(has, 1) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxGetState(_device: CUdevice, flags: *mut c_uint, active: *mut c_int) -> CUresult {
    // SAFETY: the caller's places.
    unsafe {
        give(flags, 0);
        give(active, c_int::from(state().references != 0))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, _device: CUdevice) -> CUresult {
    state().references += 1;
    // SAFETY: the caller's place.
    unsafe { give(context, PRIMARY as CUcontext) }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: CUdevice) -> CUresult {
    state().references -= 1;
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    let current = CURRENT.with_borrow(|contexts| contexts.last().copied());
    // SAFETY: the caller's place.
    unsafe { give(context, current.unwrap_or(null_mut())) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    CURRENT.with_borrow_mut(|contexts| {
        contexts.pop();
        contexts.push(context);
    });
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    CURRENT.with_borrow_mut(|contexts| contexts.push(context));
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult {
    match CURRENT.with_borrow_mut(Vec::pop) {
        // SAFETY: the caller's place.
        Some(popped) => unsafe { give(context, popped) },
        None => CUresult::CUDA_ERROR_INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(device, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> CUresult {
    // SAFETY: the caller's places.
    unsafe {
        give(least, 0);
        give(greatest, -5)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetLimit(bytes: *mut usize, _limit: c_uint) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(bytes, state().stacks) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(_limit: c_uint, bytes: usize) -> CUresult {
    state().grow_stacks(bytes);
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxRecordEvent(_context: CUcontext, event: CUevent) -> CUresult {
    let mut state = state();
    state.check_event("cuCtxRecordEvent", event);
    if state.is_any_captured() { CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED } else { DONE }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(_mode: *mut c_uint) -> CUresult {
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(to: *mut c_void, attribute: c_uint, address: c_ulonglong) -> CUresult {
    use cudarc::driver::sys::CUpointer_attribute_enum as Pointer;
    if !state().reserved.iter().any(|range| range.contains(&address)) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    const CONTEXT: c_uint = Pointer::CU_POINTER_ATTRIBUTE_CONTEXT as c_uint;
    const TYPE: c_uint = Pointer::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint;
    const ORDINAL: c_uint = Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint;
    // SAFETY: the caller's place, of the attribute's type.
    unsafe {
        match attribute {
            CONTEXT => give(to.cast(), PRIMARY),
            // CU_MEMORYTYPE_DEVICE
            TYPE => give(to.cast(), 2 as c_uint),
            ORDINAL => give(to.cast(), 0 as c_int),
            _ => CUresult::CUDA_ERROR_INVALID_VALUE,
        }
    }
}
