//! `liboxshmem`: the host API for C and C++ programs, declared in `oxshmem/host.h`, which says what
//! each function does.
//!
//! The process's PE lives behind a lock, so calls from several threads take turns. Those that end
//! the job have a handle of their own. A panic ends no foreign frame: it is an
//! `OXSHMEM_ERROR_INTERNAL`.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
#![allow(clippy::missing_safety_doc)] // Callers are C programs: what they promise is in host.h.

mod aggregates;
mod buffers;
mod by_address;
mod contexts;
mod counters;
mod error;
mod joining;
mod process;
mod stage;
mod teams;
mod units;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use api::device::DeviceError;
use api::device::cuda::DEVICE_LIBRARY;
use api::{Compare, MemoryKind, Operations, Pe, RawMemory, Signal, SignalOp, SignalUpdate, Stream, SymmetricView};
use error::{Failure, Status};
use process::pe;

/// Runs `call` and returns its value, or `failed` with the error kept for `oxshmem_error`.
fn answer<T>(failed: impl FnOnce(Status) -> T, call: impl FnOnce() -> Result<T, Failure>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::panic(panic.as_ref()),
    };
    failed(failure.keep())
}

/// Does the same as [`answer`] for functions that return a status.
fn status(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    answer(|status| status as c_int, || call().map(|()| Status::Success as c_int))
}

/// Does the same as [`status`] for functions that need a PE.
fn with_pe(call: impl FnOnce(&Pe) -> Result<(), Failure>) -> c_int {
    status(|| call(pe().as_ref().ok_or_else(Failure::no_pe)?))
}

/// Returns a PE number as the API takes it.
fn peer(own: &Pe, pe: c_int) -> Result<usize, Failure> {
    usize::try_from(pe)
        .ok()
        .filter(|pe| *pe < own.n_pes())
        .ok_or_else(|| Failure::invalid(format!("PE {pe} does not exist; PEs are 0 to {}", own.n_pes() - 1)))
}

fn signal_op(op: c_int) -> Result<SignalOp, Failure> {
    [SignalOp::Set, SignalOp::Add].into_iter().find(|known| *known as c_int == op).ok_or_else(|| {
        Failure::invalid(format!("signal operator {op} is neither OXSHMEM_SIGNAL_SET (9) nor OXSHMEM_SIGNAL_ADD (10)"))
    })
}

fn compare(cmp: c_int) -> Result<Compare, Failure> {
    let known = [Compare::Eq, Compare::Ne, Compare::Gt, Compare::Le, Compare::Lt, Compare::Ge];
    known.into_iter().find(|known| *known as c_int == cmp).ok_or_else(|| {
        Failure::invalid(format!("comparison {cmp} is invalid; use OXSHMEM_CMP_EQ (0) to OXSHMEM_CMP_GE (5)"))
    })
}

fn not_null<T>(what: &str, address: *const T, bytes: usize) -> Result<(), Failure> {
    if address.is_null() && bytes != 0 {
        return Err(Failure::invalid(format!("{what} is null, with a length of {bytes} bytes")));
    }
    Ok(())
}

/// Returns the stream of the program.
///
/// # Safety
/// What host.h says of streams.
unsafe fn on_stream(own: &Pe, stream: *mut c_void) -> Result<Stream, Failure> {
    // SAFETY: the caller's promise.
    Ok(unsafe { own.stream_from_raw(stream) }?)
}

/// Converts the number. A job has at most [`api::config::MAX_NPES`] PEs.
fn int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_error() -> *const c_char {
    error::last()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_version(major: *mut c_int, minor: *mut c_int, patch: *mut c_int) {
    let parts = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    for (to, part) in [major, minor, patch].into_iter().zip(parts) {
        // SAFETY: null, or a place for the number.
        if let Some(to) = unsafe { to.as_mut() } {
            *to = part.parse().unwrap_or(0);
        }
    }
}

/// Alignment of memory whose user did not ask for one: that of a line, so that neighbours do not
/// slow each other down.
const ALIGNMENT: usize = 128;

fn allocate(alignment: usize, bytes: usize) -> Result<*mut c_void, Failure> {
    let pe = pe();
    let own = pe.as_ref().ok_or_else(Failure::no_pe)?;
    if bytes == 0 {
        return Ok(std::ptr::null_mut());
    }
    let memory = own.alloc_foreign(bytes, alignment)?;
    Ok(memory.address() as *mut c_void)
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_malloc(bytes: usize) -> *mut c_void {
    answer(|_| std::ptr::null_mut(), || allocate(ALIGNMENT, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_calloc(count: usize, bytes: usize) -> *mut c_void {
    answer(|_| std::ptr::null_mut(), || allocate(ALIGNMENT, count.saturating_mul(bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_align(alignment: usize, bytes: usize) -> *mut c_void {
    answer(|_| std::ptr::null_mut(), || allocate(alignment, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_free(address: *mut c_void) -> c_int {
    with_pe(|own| if address.is_null() { Ok(()) } else { Ok(own.free_at(address as u64)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_memory(kind: c_int, device_bytes: *mut u64, host_bytes: *mut u64) -> c_int {
    with_pe(|own| {
        let known = MemoryKind::ALL.into_iter().find(|known| *known as c_int == kind).ok_or_else(|| {
            Failure::invalid(format!(
                "memory kind {kind} is invalid; use OXSHMEM_MEMORY_HEAP (0) to OXSHMEM_MEMORY_PROFILE ({})",
                MemoryKind::ALL.len() - 1
            ))
        })?;
        let bytes = own.memory().of(known);
        for (to, bytes) in [(device_bytes, bytes.device), (host_bytes, bytes.host)] {
            // SAFETY: null, or a place for the number.
            if let Some(to) = unsafe { to.as_mut() } {
                *to = bytes;
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_ptr(address: *const c_void, pe: c_int) -> *mut c_void {
    answer(
        |_| std::ptr::null_mut(),
        || {
            let own = self::pe();
            let own = own.as_ref().ok_or_else(Failure::no_pe)?;
            // An address that is not in the heap is not an error.
            let there = own.ptr(own.view_at::<u8>(address as u64, 1), peer(own, pe)?).ok().flatten();
            Ok(there.map_or(std::ptr::null_mut(), <*mut u8>::cast))
        },
    )
}

/// Returns the symmetric side of a transfer.
fn symmetric(own: &Pe, address: *const c_void, bytes: usize) -> SymmetricView<'_, u8> {
    own.view_at(address as u64, bytes)
}

fn signal_at(own: &Pe, signal: *const u64) -> Signal<'_> {
    own.view_at::<u64>(signal as u64, 1).into()
}

fn update(own: &Pe, signal: *const u64, value: u64, op: c_int) -> Result<SignalUpdate<'_>, Failure> {
    Ok(signal_at(own, signal).update(signal_op(op)?, value))
}

/// Returns the program's side of a transfer.
///
/// # Safety
/// What host.h says of the transfer.
unsafe fn memory(what: &str, at: *const c_void, bytes: usize) -> Result<RawMemory, Failure> {
    not_null(what, at, bytes)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { RawMemory::new(at.cast_mut(), bytes) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_host_putmem(dst: *mut c_void, src: *const c_void, bytes: usize, pe: c_int) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let src = unsafe { memory("src", src, bytes) }?;
        Ok(own.put(symmetric(own, dst, bytes), src, peer(own, pe)?)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_host_getmem(dst: *mut c_void, src: *const c_void, bytes: usize, pe: c_int) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let dst = unsafe { memory("dst", dst, bytes) }?;
        Ok(own.get(dst, symmetric(own, src, bytes), peer(own, pe)?)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_host_putmem_signal(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    signal: *mut u64,
    value: u64,
    op: c_int,
    pe: c_int,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let src = unsafe { memory("src", src, bytes) }?;
        let update = update(own, signal, value, op)?;
        Ok(own.put_signal(symmetric(own, dst, bytes), src, update, peer(own, pe)?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_signal_op(signal: *mut u64, value: u64, op: c_int, pe: c_int) -> c_int {
    with_pe(|own| Ok(own.signal(update(own, signal, value, op)?, peer(own, pe)?)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_host_signal_fetch(signal: *const u64, value: *mut u64) -> c_int {
    with_pe(|own| {
        // SAFETY: `value` is a place for the number.
        let value = unsafe { memory("value", value.cast(), size_of::<u64>()) }?;
        Ok(own.get(value, symmetric(own, signal.cast(), size_of::<u64>()), own.my_pe())?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_host_signal_wait_until(
    signal: *const u64,
    cmp: c_int,
    value: u64,
    seen: *mut u64,
) -> c_int {
    with_pe(|own| {
        let last = own.signal_wait_until(signal_at(own, signal), compare(cmp)?, value)?;
        // SAFETY: null, or a place for the number.
        if let Some(seen) = unsafe { seen.as_mut() } {
            *seen = last;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_quiet() -> c_int {
    with_pe(|own| Ok(own.quiet()?))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_fence() -> c_int {
    with_pe(|own| Ok(own.fence()?))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_barrier_all() -> c_int {
    with_pe(|own| Ok(own.barrier_all()?))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_host_sync_all() -> c_int {
    with_pe(|own| Ok(own.sync_all()?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_putmem_on_stream(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    pe: c_int,
    stream: *mut c_void,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let (src, stream) = unsafe { (memory("src", src, bytes)?, on_stream(own, stream)?) };
        Ok(own.on(&stream).put(symmetric(own, dst, bytes), src, peer(own, pe)?)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_getmem_on_stream(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    pe: c_int,
    stream: *mut c_void,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let (dst, stream) = unsafe { (memory("dst", dst, bytes)?, on_stream(own, stream)?) };
        Ok(own.on(&stream).get(dst, symmetric(own, src, bytes), peer(own, pe)?)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_putmem_signal_on_stream(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    signal: *mut u64,
    value: u64,
    op: c_int,
    pe: c_int,
    stream: *mut c_void,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let (src, stream) = unsafe { (memory("src", src, bytes)?, on_stream(own, stream)?) };
        let update = update(own, signal, value, op)?;
        Ok(own.on(&stream).put_signal(symmetric(own, dst, bytes), src, update, peer(own, pe)?)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_signal_op_on_stream(
    signal: *mut u64,
    value: u64,
    op: c_int,
    pe: c_int,
    stream: *mut c_void,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let stream = unsafe { on_stream(own, stream) }?;
        Ok(own.on(&stream).signal(update(own, signal, value, op)?, peer(own, pe)?)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_signal_wait_until_on_stream(
    signal: *const u64,
    cmp: c_int,
    value: u64,
    stream: *mut c_void,
) -> c_int {
    with_pe(|own| {
        // SAFETY: the caller's promise.
        let stream = unsafe { on_stream(own, stream) }?;
        Ok(own.on(&stream).signal_wait_until(signal_at(own, signal), compare(cmp)?, value)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_quiet_on_stream(stream: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    with_pe(|own| Ok(own.on(&unsafe { on_stream(own, stream) }?).quiet()?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_barrier_all_on_stream(stream: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    with_pe(|own| Ok(own.on(&unsafe { on_stream(own, stream) }?).barrier_all()?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_sync_all_on_stream(stream: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    with_pe(|own| Ok(own.on(&unsafe { on_stream(own, stream) }?).sync_all()?))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_synchronize() -> c_int {
    with_pe(|own| Ok(own.synchronize_device()?))
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_dump() {
    // A panic must not reach C.
    let _ = catch_unwind(api::dump);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_stream_synchronize(stream: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    with_pe(|own| Ok(own.on(&unsafe { on_stream(own, stream) }?).synchronize()?))
}

/// Returns a copy that the caller frees with `free`. `what`: the error without memory.
fn given_away(bytes: &[u8], what: &'static str) -> Result<*mut c_void, Failure> {
    // SAFETY: a size that is not 0.
    let copy = unsafe { libc::malloc(bytes.len().max(1)) };
    if copy.is_null() {
        let (bytes, source) = (bytes.len() as u64, std::io::Error::last_os_error());
        return Err(api::Error::from(DeviceError::Memory { what, bytes, source }).into());
    }
    // SAFETY: memory of that length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len()) };
    Ok(copy)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_module_link(
    code: *const c_void,
    bytes: usize,
    image: *mut *mut c_void,
    image_bytes: *mut usize,
) -> c_int {
    with_pe(|own| {
        not_null("code", code, 1)?;
        not_null("image", image, 1)?;
        not_null("image_bytes", image_bytes, 1)?;
        // SAFETY: that many bytes of code, as the caller says.
        let linked = own.link_module(unsafe { std::slice::from_raw_parts(code.cast::<u8>(), bytes) })?;
        let copy = given_away(&linked, "cannot allocate host memory for a module")?;
        // SAFETY: places for a pointer and a number, as the caller says.
        unsafe {
            *image = copy;
            *image_bytes = linked.len();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_device_library(bytes: *mut usize) -> *const c_void {
    if !bytes.is_null() {
        // SAFETY: a place for a number, as the caller says.
        unsafe { *bytes = DEVICE_LIBRARY.len() };
    }
    if DEVICE_LIBRARY.is_empty() { std::ptr::null() } else { DEVICE_LIBRARY.as_ptr().cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmemx_module_register(module: *mut c_void) -> c_int {
    with_pe(|own| {
        not_null("module", module, 1)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { own.register_module(module) }?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn oxshmemx_module_unregister(module: *mut c_void) -> c_int {
    with_pe(|own| Ok(own.unregister_module(module)?))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn oxshmem_unit_register(unit: *const units::RawUnit) {
    // SAFETY: the caller's promise: a static object.
    status(|| unsafe { process::register_unit(unit) });
}

#[unsafe(no_mangle)]
extern "C" fn oxshmem_unit_unregister(unit: *const units::RawUnit) {
    status(|| {
        units::unregister(unit);
        Ok(())
    });
}
