//! What the coroutines of a worker, its signal handler and the worker itself share.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::atomic::AtomicBool;

use super::error::KernelErrorKind;
use super::interface::{self, ThreadView};
use super::launch::{Launch, Stop};

/// What the coroutines of a worker, its signal handler and the worker itself share.
pub(super) struct Context {
    /// A coroutine is in device code, not in the executor.
    pub(super) in_device: AtomicBool,
    pub(super) pauses: Cell<u64>,
    pub(super) trap: TrapRecord,
    pub(super) failure: RefCell<Option<KernelErrorKind>>,
    pub(super) failed: Cell<bool>,
    pub(super) launch: Cell<*const Launch>,
    current: *mut *const ThreadView,
}

impl Context {
    pub(super) fn new() -> Self {
        Self {
            in_device: AtomicBool::new(false),
            pauses: Cell::new(0),
            trap: TrapRecord::default(),
            failure: RefCell::new(None),
            failed: Cell::new(false),
            launch: Cell::new(std::ptr::null()),
            current: interface::current_slot(),
        }
    }

    /// Ends the launch on behalf of the running thread; the first error counts.
    pub(super) fn fail(&self, kind: KernelErrorKind) {
        self.failure.borrow_mut().get_or_insert(kind);
        self.failed.set(true);
    }

    /// Returns the GPU thread that was resumed last; null between launches.
    pub(super) fn current(&self) -> *const ThreadView {
        // SAFETY: the slot is this operating system thread's own variable.
        unsafe { *self.current }
    }

    pub(super) fn set_current(&self, thread: *const ThreadView) {
        // SAFETY: as in `current`.
        unsafe { *self.current = thread };
    }

    /// Returns whether a thread that is at this instruction may be ended from outside: the launch
    /// is to stop, and the thread holds no lock of a library, unless it never leaves the library.
    pub(super) fn may_interrupt(&self, pc: usize) -> bool {
        // SAFETY: null, or the launch that this worker runs.
        unsafe { self.launch.get().as_ref() }.is_some_and(|launch| {
            launch.stop() != Stop::No && (launch.kernel.text().contains(&pc) || launch.is_forced())
        })
    }
}

/// What a handler saw. Plain cells: a signal handler writes them.
#[derive(Debug, Default)]
pub(super) struct TrapRecord {
    /// 0: no trap.
    pub(super) signal: Cell<c_int>,
    pub(super) code: Cell<c_int>,
    pub(super) address: Cell<usize>,
    pub(super) pc: Cell<usize>,
    pub(super) write: Cell<Option<bool>>,
    pub(super) in_guard: Cell<bool>,
}

/// Why a coroutine was ended by a signal.
#[derive(Debug)]
pub(super) enum Trap {
    Fault(KernelErrorKind),
    Interrupted,
}

impl TrapRecord {
    pub(super) fn is_set(&self) -> bool {
        self.signal.get() != 0
    }

    /// Returns the trap, if there was one since the last call.
    pub(super) fn take(&self, stack_bytes: usize) -> Option<Trap> {
        let signal = self.signal.replace(0);
        let pc = self.pc.get();
        match signal {
            0 => None,
            libc::SIGFPE => Some(Trap::Fault(KernelErrorKind::Arithmetic { pc })),
            libc::SIGILL => Some(Trap::Fault(KernelErrorKind::IllegalInstruction { pc })),
            libc::SIGSEGV | libc::SIGBUS if self.in_guard.get() => {
                Some(Trap::Fault(KernelErrorKind::StackOverflow { stack_bytes }))
            }
            libc::SIGSEGV | libc::SIGBUS => Some(Trap::Fault(KernelErrorKind::BadAddress {
                access: match self.write.get() {
                    Some(true) => "write to",
                    Some(false) => "read of",
                    None => "access to",
                },
                address: self.address.get(),
                reason: match (signal, self.code.get()) {
                    (libc::SIGSEGV, SEGV_MAPERR) => "not mapped",
                    (libc::SIGSEGV, SEGV_ACCERR) => "protected against this access",
                    (libc::SIGSEGV, _) => "not a valid address (the processor does not report which; 0 stands for it)",
                    _ => "beyond the end of the memory object mapped there",
                },
                pc,
                note: String::new(),
            })),
            _ => Some(Trap::Interrupted),
        }
    }
}

/// asm-generic/siginfo.h
const SEGV_MAPERR: c_int = 1;

const SEGV_ACCERR: c_int = 2;
