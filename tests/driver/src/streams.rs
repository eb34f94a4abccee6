//! Streams, events, and what is queued.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::CUlaunchAttributeID_enum as Launch;
use cudarc::driver::sys::{CUevent, CUfunction, CUlaunchConfig, CUresult, CUstream};

use crate::devices::{DONE, give};
use crate::modules::kernel;
use crate::state::{STACK, state};

/// Returns what a query says.
fn ended(ended: bool) -> CUresult {
    if ended { DONE } else { CUresult::CUDA_ERROR_NOT_READY }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, _flags: c_uint) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(stream, state().create_stream() as CUstream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, _priority: c_int) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { cuStreamCreate(stream, flags) }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    state().destroy_stream(stream);
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    ended(state().has_ended(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    // The library waits so for streams of its own, which no test holds.
    ended(state().has_ended(stream))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint) -> CUresult {
    // CU_STREAM_CAPTURE_STATUS_ACTIVE is 1.
    // SAFETY: the caller's place.
    unsafe { give(status, c_uint::from(state().captures(stream))) }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: c_uint) -> CUresult {
    state().wait(stream, event);
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut CUevent, _flags: c_uint) -> CUresult {
    // SAFETY: the caller's place.
    unsafe { give(event, state().create_event() as CUevent) }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    state().destroy_event(event);
    DONE
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    ended(state().is_complete(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    state().record(event, stream);
    DONE
}

/// Copies memory.
///
/// # Safety
/// Both sides are mapped.
unsafe fn copy(to: c_ulonglong, from: c_ulonglong, bytes: usize) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: c_ulonglong,
    from: c_ulonglong,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    state().note(&format!("copy {bytes}"), stream);
    // SAFETY: the caller's memory.
    unsafe { copy(to, from, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: c_ulonglong,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    if state().captures(stream) {
        // A graph would read the memory when it runs, and no caller here keeps it until then.
        return CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    state().note(&format!("write {bytes}"), stream);
    // SAFETY: the caller's memory.
    unsafe { copy(to, from.addr() as c_ulonglong, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: c_ulonglong,
    bytes: usize,
    _stream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { copy(to.addr() as c_ulonglong, from, bytes) }
}

/// Stores a value in each of some adjacent words.
///
/// # Safety
/// There are such words.
unsafe fn set<T: Copy>(stream: CUstream, at: c_ulonglong, value: T, words: usize) -> CUresult {
    state().note(&format!("set {}", words * size_of::<T>()), stream);
    for word in 0..words {
        // SAFETY: the caller's promise.
        unsafe { (at as *mut T).add(word).write(value) };
    }
    DONE
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD8Async(at: c_ulonglong, value: u8, words: usize, stream: CUstream) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { set(stream, at, value, words) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD16Async(at: c_ulonglong, value: u16, words: usize, stream: CUstream) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { set(stream, at, value, words) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD32Async(at: c_ulonglong, value: u32, words: usize, stream: CUstream) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { set(stream, at, value, words) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWriteValue64_v2(stream: CUstream, at: c_ulonglong, word: u64, _flags: c_uint) -> CUresult {
    if state().captures(stream) {
        return CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    state().note("store 8", stream);
    // SAFETY: the caller's word.
    unsafe { (at as *mut u64).write_volatile(word) };
    DONE
}

/// Notes a kernel, which does nothing: `early` if it may be launched before what it follows has
/// ended, `together` if its blocks have to run at the same time.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    launch: *const CUlaunchConfig,
    function: CUfunction,
    _arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the caller's launch, and its function.
    let (launch, kernel) = unsafe { (*launch, kernel(function)) };
    let mut how = String::new();
    for at in 0..launch.numAttrs as usize {
        // SAFETY: the launch has so many.
        let attribute = unsafe { *launch.attrs.add(at) };
        // SAFETY: both values are integers.
        let (is_set, word) = unsafe {
            match attribute.id {
                Launch::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => (attribute.value.cooperative != 0, " together"),
                Launch::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {
                    (attribute.value.programmaticStreamSerializationAllowed != 0, " early")
                }
                _ => return CUresult::CUDA_ERROR_NOT_SUPPORTED,
            }
        };
        how.push_str(if is_set { word } else { "" });
    }
    let mut state = state();
    state.grow_stacks(STACK);
    state.note(&format!("launch {}{how}", kernel.name.to_string_lossy()), launch.hStream);
    DONE
}
