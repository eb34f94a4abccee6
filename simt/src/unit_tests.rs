//! Tests that need the inside of the executor: guards that newer systems do not use.

#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::hint::black_box;

use super::block::Thread;
use super::calls::oxshmem_cpu_sync_block;
use super::interface::{self, Entry};
use super::stack::Guards;
use super::{Executor, ExecutorOptions, Kernel, KernelErrorKind, LaunchConfig, MAX_BLOCK_THREADS};

fn current() -> &'static Thread {
    // SAFETY: called by kernels only: the slot holds the running thread.
    unsafe { &*(*interface::current_slot()).cast::<Thread>() }
}

fn sync_block() {
    // SAFETY: as device code calls it.
    unsafe { oxshmem_cpu_sync_block(current(), 0) };
}

/// Uses stack down to `until`, and waits there.
#[inline(never)]
fn dive(until: usize) -> u8 {
    let mut frame = [0u8; 512];
    black_box(&mut frame);
    if (&raw const frame) as usize <= until {
        sync_block();
        return frame[0];
    }
    let below = dive(until);
    // Keeps the frame alive during the call.
    below.wrapping_add(black_box(&mut frame)[0])
}

/// Has thread 1 of the block go just beyond the end of its stack; both meet at a barrier.
unsafe extern "C-unwind" fn slightly_too_deep(_: *mut *mut c_void) {
    let thread = current();
    if thread.bit.get() == 2 {
        dive(thread.guard.get().1);
    } else {
        sync_block();
    }
}

/// Uses stack down to `until`, and comes back at once.
#[inline(never)]
fn dip(until: usize) -> u8 {
    let mut frame = [0u8; 512];
    black_box(&mut frame);
    if (&raw const frame) as usize <= until {
        return frame[0];
    }
    let below = dip(until);
    // Keeps the frame alive during the call.
    below.wrapping_add(black_box(&mut frame)[0])
}

/// Has thread 1 of the block go just beyond the end of its stack and return.
unsafe extern "C-unwind" fn too_deep_and_back(_: *mut *mut c_void) {
    let thread = current();
    if thread.bit.get() == 2 {
        dip(thread.guard.get().1);
    }
}

unsafe extern "C-unwind" fn deep(_: *mut *mut c_void) {
    if current().bit.get() == 2 {
        dive(0);
    }
}

unsafe extern "C-unwind" fn shallow(_: *mut *mut c_void) {
    sync_block();
}

fn executor(guards: Guards) -> Executor {
    Executor::with_guards(ExecutorOptions::default(), guards).unwrap()
}

fn run(executor: &Executor, entry: Entry) -> Result<(), super::KernelError> {
    let kernel = Kernel::new("kernel", entry, &[], MAX_BLOCK_THREADS);
    // SAFETY: the kernels here take nothing.
    unsafe { executor.launch(&kernel, LaunchConfig::linear(1, 64), &[]) }.unwrap().wait()
}

#[test]
fn a_canary_shows_an_overflow_at_the_next_suspension_and_at_the_end() {
    let executor = executor(Guards::Mapped { limit: 0 });
    for kernel in [slightly_too_deep, too_deep_and_back].into_iter().cycle().take(6) {
        let error = run(&executor, kernel).unwrap_err();
        assert!(matches!(error.kind, KernelErrorKind::StackOverflow { .. }), "{error}");
        assert_eq!(error.position.thread, [1, 0, 0]);
        run(&executor, shallow).unwrap();
    }
}

#[test]
fn a_mapped_guard_stops_an_overflow() {
    let executor = executor(Guards::Mapped { limit: usize::MAX / 2 });
    for _ in 0..3 {
        let error = run(&executor, deep).unwrap_err();
        assert!(matches!(error.kind, KernelErrorKind::StackOverflow { .. }), "{error}");
        assert_eq!(error.position.thread, [1, 0, 0]);
        run(&executor, shallow).unwrap();
    }
}
