//! What device code calls: the functions that oxshmem/port/cpu.h declares.
//!
//! They run on the stack of the calling GPU thread. Between [`enter`] and [`leave`] the thread
//! counts as being inside the executor, and no deadline ends it there.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{Ordering, compiler_fence};

use super::block::{Arrival, Block, Thread, Warp};
use super::context::Context;
use super::error::KernelErrorKind;
use super::interface::{AtomicAccess, WarpOp, atomic_hook, call_mmio_hook};

impl Thread {
    #[inline]
    fn context(&self) -> &Context {
        // SAFETY: a thread that runs belongs to a worker, whose context outlives its launches.
        unsafe { &*self.context.get() }
    }

    #[inline]
    fn warp(&self) -> &Warp {
        // SAFETY: a thread that runs belongs to a warp, which outlives the launch.
        unsafe { &*self.warp.get() }
    }

    #[inline]
    fn block(&self) -> &Block {
        // SAFETY: a thread that runs belongs to a block, which outlives the launch.
        unsafe { &*self.block.get() }
    }

    /// Lets the worker run other threads until it resumes this one.
    #[inline]
    fn suspend(&self) {
        // SAFETY: the yielder lives at the top of this thread's stack, on which we run.
        unsafe { &*self.yielder.get() }.suspend(());
    }

    /// Ends the launch with an error of this thread.
    #[cold]
    fn fail(&self, kind: KernelErrorKind) -> ! {
        self.context().fail(kind);
        loop {
            // The worker drops the coroutine.
            self.suspend();
        }
    }
}

/// Notes that the thread enters the executor.
#[inline]
fn enter(thread: &Thread) {
    thread.context().in_device.store(false, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Notes that the thread goes back to device code.
#[inline]
fn leave(thread: &Thread) {
    compiler_fence(Ordering::SeqCst);
    thread.context().in_device.store(true, Ordering::Relaxed);
}

/// Has the thread pause.
///
/// # Safety
///
/// `thread` is `oxshmem_cpu_current` of the calling GPU thread; so for all functions below.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn oxshmem_cpu_pause(thread: &Thread) {
    enter(thread);
    let (block, warp, context) = (thread.block(), thread.warp(), thread.context());
    warp.paused.set(warp.paused.get() | thread.bit.get());
    block.paused_warps.set(block.paused_warps.get() | 1 << warp.index());
    context.pauses.set(context.pauses.get() + 1);
    thread.suspend();
    leave(thread);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn oxshmem_cpu_converged(thread: &Thread, site: *const c_void, key: u64) -> u32 {
    enter(thread);
    let (warp, bit) = (thread.warp(), thread.bit.get());
    let mask = warp.gather(bit, site as usize, key).unwrap_or_else(|| {
        thread.suspend();
        warp.gathered(bit)
    });
    leave(thread);
    mask
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn oxshmem_cpu_warp_op(thread: &Thread, op: u32, mask: u32, value: u64, source: u32) -> u64 {
    enter(thread);
    let (warp, bit) = (thread.warp(), thread.bit.get());
    let Some(op) = WarpOp::from_raw(op) else {
        thread.fail(KernelErrorKind::WarpOperation { detail: format!("unknown operation {op}") });
    };
    if mask & bit == 0 {
        let detail =
            format!("{}(mask {mask:#010x}) does not name its caller, lane {}", op.name(), bit.trailing_zeros());
        thread.fail(KernelErrorKind::WarpOperation { detail });
    }
    let result = match warp.arrive(bit, op, mask, value, source) {
        Arrival::Complete(result) => result,
        Arrival::Wait => {
            thread.suspend();
            warp.result(bit)
        }
        Arrival::Mismatch(other) => {
            let detail =
                format!("{}(mask {mask:#010x}) while other lanes of the mask are in {}", op.name(), other.name());
            thread.fail(KernelErrorKind::WarpOperation { detail });
        }
    };
    leave(thread);
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn oxshmem_cpu_sync_block(thread: &Thread, predicate: u32) -> u64 {
    enter(thread);
    let block = thread.block();
    let result = block.arrive(thread.warp(), thread.bit.get(), predicate != 0).unwrap_or_else(|| {
        thread.suspend();
        block.barrier_result()
    });
    leave(thread);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn oxshmem_cpu_shared(thread: &Thread, slot: u32, bytes: usize, align: usize) -> *mut c_void {
    enter(thread);
    let start = thread.block().shared(slot, bytes, align);
    leave(thread);
    start
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn oxshmem_cpu_doorbell(thread: &Thread) {
    enter(thread);
    call_mmio_hook();
    leave(thread);
}

/// Notes that device code is about to change the word of a PE's heap by an atomic.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn oxshmem_cpu_atomic(thread: &Thread, offset: u64, bytes: u32, pe: i32, by_card: u32) {
    if let Some(hook) = atomic_hook() {
        enter(thread);
        hook(AtomicAccess { offset, bytes, pe, by_card: by_card != 0 });
        leave(thread);
    }
}

/// Notes that a C++ exception left the kernel; `what` is its text, or null.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn oxshmem_cpu_exception(thread: &Thread, what: *const c_char) {
    enter(thread);
    let what = if what.is_null() {
        Cow::Borrowed("unknown exception")
    } else {
        // SAFETY: the kernel's entry passes text that lives during the call.
        unsafe { CStr::from_ptr(what) }.to_string_lossy()
    };
    thread.context().fail(KernelErrorKind::Exception { what: what.into_owned() });
    leave(thread);
}
