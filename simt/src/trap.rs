//! Faults of device code: signal handlers that end the coroutine instead of the process.
//!
//! A fault in a coroutine that runs device code is recorded in its worker's context, and the
//! coroutine returns to the worker through corosensei's trap handler, as if it had ended.
//! Everything else goes to the handler that was there before.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use corosensei::trap::TrapHandlerRegs;

use super::block::Thread;
use super::context::Context;
use super::error::LaunchError;

const FAULTS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// bits/siginfo-consts.h: sent by tgkill.
const SI_TKILL: c_int = -6;

/// How far below its guard page a stack pointer may be for the fault still to count as the thread's
/// own.
const BELOW_GUARD: usize = 64 << 10;

/// Returns the real-time signal by which the watchdog stops a thread that does not come back to the
/// executor.
pub(super) fn interrupt_signal() -> c_int {
    libc::SIGRTMIN() + 6
}

thread_local! {
    /// The context of the worker that runs on this thread.
    static CONTEXT: Cell<*const Context> = const { Cell::new(std::ptr::null()) };
}

/// The previous handlers, by position in `FAULTS`, then that of the interrupt signal.
static PREVIOUS: OnceLock<Result<[libc::sigaction; FAULTS.len() + 1], LaunchError>> = OnceLock::new();

/// Installs the handlers for the whole process, once.
pub(super) fn install_handlers() -> Result<(), LaunchError> {
    let installed = PREVIOUS.get_or_init(|| {
        // SAFETY: an all-zero sigaction is valid: the default action.
        let mut previous: [libc::sigaction; FAULTS.len() + 1] = unsafe { std::mem::zeroed() };
        // The previous handlers must be known before ours can run, or a fault in between could not
        // be passed on.
        for (i, signal) in handled().enumerate() {
            // SAFETY: only reads the current action.
            check(signal, unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut previous[i]) })?;
        }
        Ok(previous)
    });
    installed.as_ref().map_err(Clone::clone)?;
    static INSTALLED: OnceLock<Result<(), LaunchError>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            for signal in handled() {
                // SAFETY: as above.
                let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
                // SAFETY: `action` is fully initialised; the handler only does what is safe in a
                // handler.
                check(signal, unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) })?;
            }
            Ok(())
        })
        .clone()
}

fn handled() -> impl Iterator<Item = c_int> {
    FAULTS.into_iter().chain(std::iter::once(interrupt_signal()))
}

fn check(signal: c_int, result: c_int) -> Result<(), LaunchError> {
    if result == 0 {
        return Ok(());
    }
    Err(LaunchError::Signal { signal, reason: io::Error::last_os_error().to_string() })
}

/// Prepares the calling thread for running device code: an alternate signal stack, and no signals
/// but faults and the interrupt. Undone when dropped.
pub(super) struct ThreadSetup {
    _stack: Box<[MaybeUninit<u8>]>,
    previous: libc::stack_t,
}

impl ThreadSetup {
    pub(super) fn new(context: &Context) -> Result<Self, LaunchError> {
        // SAFETY: getauxval has no preconditions; it returns 0 for what the kernel does not tell.
        let minimum = usize::try_from(unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) }).unwrap_or(0);
        let mut stack = Box::new_uninit_slice(minimum + (64 << 10));
        let new = libc::stack_t { ss_sp: stack.as_mut_ptr().cast::<c_void>(), ss_flags: 0, ss_size: stack.len() };
        // SAFETY: an all-zero stack_t is valid.
        let mut previous: libc::stack_t = unsafe { std::mem::zeroed() };
        // SAFETY: the new stack lives until `drop` puts the previous one back.
        check(libc::SIGSEGV, unsafe { libc::sigaltstack(&raw const new, &raw mut previous) })?;
        // SAFETY: plain operations on a local signal set and this thread's mask. A handler of some
        // other part of the program must not run on the small stack of a GPU thread.
        unsafe {
            let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigfillset(blocked.as_mut_ptr());
            for signal in handled().chain([libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS, libc::SIGPROF]) {
                libc::sigdelset(blocked.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), std::ptr::null_mut());
        }
        CONTEXT.set(std::ptr::from_ref(context));
        Ok(Self { _stack: stack, previous })
    }
}

impl Drop for ThreadSetup {
    fn drop(&mut self) {
        CONTEXT.set(std::ptr::null());
        // SAFETY: puts back what was there.
        unsafe { libc::sigaltstack(&raw const self.previous, std::ptr::null_mut()) };
    }
}

unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, ucontext: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t and ucontext_t.
    let (info, ucontext) = unsafe { (&*info, &mut *ucontext.cast::<libc::ucontext_t>()) };
    if signal == interrupt_signal() && is_ours(info) {
        recover(signal, info, ucontext);
    } else if info.si_code <= 0 || !recover(signal, info, ucontext) {
        pass_on(signal, info, ucontext);
    }
}

/// Returns whether the watchdog sent it.
fn is_ours(info: &libc::siginfo_t) -> bool {
    // SAFETY: si_pid is valid for signals sent by tgkill.
    info.si_code == SI_TKILL && unsafe { info.si_pid() == libc::getpid() }
}

/// Ends the coroutine that runs on this thread, if the signal is about device code; `false` if it
/// is not.
fn recover(signal: c_int, info: &libc::siginfo_t, ucontext: &mut libc::ucontext_t) -> bool {
    let context = CONTEXT.get();
    // SAFETY: null, or the context of the worker that runs on this thread, which takes the pointer
    // back before it ends.
    let Some(context) = (unsafe { context.as_ref() }) else { return false };
    // SAFETY: null, or the thread that was resumed last; the worker clears the slot before threads
    // go away.
    let Some(thread) = (unsafe { context.current().cast::<Thread>().as_ref() }) else { return false };
    let Some(trap) = thread.trap.get() else { return false };
    let (pc, sp) = registers(ucontext);
    let guard = thread.guard.get();
    if !(trap.stack_ptr_in_bounds(sp) || (guard.0.saturating_sub(BELOW_GUARD)..guard.1).contains(&sp)) {
        return false;
    }
    compiler_fence(Ordering::SeqCst);
    let in_device = context.in_device.load(Ordering::Relaxed);
    let record = &context.trap;
    if signal == interrupt_signal() {
        if !in_device || !context.may_interrupt(pc) {
            return false;
        }
    } else {
        // SAFETY: faults carry an address.
        let address = unsafe { info.si_addr() } as usize;
        let in_guard = (guard.0..guard.1).contains(&address) && matches!(signal, libc::SIGSEGV | libc::SIGBUS);
        // The executor itself does not fault, but it may be called with hardly any stack left.
        if !in_device && !in_guard {
            return false;
        }
        record.in_guard.set(in_guard);
        record.address.set(address);
    }
    record.code.set(info.si_code);
    record.pc.set(pc);
    record.write.set(is_write(ucontext));
    record.signal.set(signal);
    // SAFETY: the stack pointer was inside of this coroutine. Its launch is over after this, so no
    // state it left half written is read again, except memory that kernels own.
    let regs = unsafe { trap.setup_trap_handler(|| ()) };
    set_registers(ucontext, regs);
    true
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::cast_possible_truncation, reason = "a register has the width of usize")]
fn registers(ucontext: &libc::ucontext_t) -> (usize, usize) {
    let gregs = &ucontext.uc_mcontext.gregs;
    (gregs[libc::REG_RIP as usize].cast_unsigned() as usize, gregs[libc::REG_RSP as usize].cast_unsigned() as usize)
}

/// Returns whether a page fault was a write: bit 1 of the error code (Intel SDM volume 3, 4.7),
/// valid for exception 14.
#[cfg(target_arch = "x86_64")]
fn is_write(ucontext: &libc::ucontext_t) -> Option<bool> {
    let gregs = &ucontext.uc_mcontext.gregs;
    (gregs[libc::REG_TRAPNO as usize] == 14).then(|| gregs[libc::REG_ERR as usize] & 2 != 0)
}

#[cfg(target_arch = "x86_64")]
fn set_registers(ucontext: &mut libc::ucontext_t, regs: TrapHandlerRegs) {
    /// EFLAGS.DF: the ABI wants it clear at a call.
    const DIRECTION_FLAG: i64 = 1 << 10;
    let TrapHandlerRegs { rip, rsp, rbp, rdi, rsi } = regs;
    let gregs = &mut ucontext.uc_mcontext.gregs;
    gregs[libc::REG_RIP as usize] = rip.cast_signed();
    gregs[libc::REG_RSP as usize] = rsp.cast_signed();
    gregs[libc::REG_RBP as usize] = rbp.cast_signed();
    gregs[libc::REG_RDI as usize] = rdi.cast_signed();
    gregs[libc::REG_RSI as usize] = rsi.cast_signed();
    gregs[libc::REG_EFL as usize] &= !DIRECTION_FLAG;
}

#[cfg(target_arch = "aarch64")]
#[allow(clippy::cast_possible_truncation, reason = "a register has the width of usize")]
fn registers(ucontext: &libc::ucontext_t) -> (usize, usize) {
    (ucontext.uc_mcontext.pc as usize, ucontext.uc_mcontext.sp as usize)
}

#[cfg(target_arch = "aarch64")]
fn is_write(_: &libc::ucontext_t) -> Option<bool> {
    None
}

#[cfg(target_arch = "aarch64")]
fn set_registers(ucontext: &mut libc::ucontext_t, regs: TrapHandlerRegs) {
    let TrapHandlerRegs { pc, sp, x0, x1, x29, lr } = regs;
    let context = &mut ucontext.uc_mcontext;
    context.pc = pc;
    context.sp = sp;
    context.regs[0] = x0;
    context.regs[1] = x1;
    context.regs[29] = x29;
    context.regs[30] = lr;
}

/// Hands a signal that is not about device code to the handler that was installed before.
fn pass_on(signal: c_int, info: &libc::siginfo_t, ucontext: &mut libc::ucontext_t) {
    let index = FAULTS.iter().position(|&fault| fault == signal).unwrap_or(FAULTS.len());
    let Some(Ok(previous)) = PREVIOUS.get() else { return };
    let previous = &previous[index];
    let is_fault = info.si_code > 0;
    match previous.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action, then either the fault repeats when the handler returns,
            // or the raised signal is delivered.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with SA_SIGINFO the kernel would call a function of this type with these
            // arguments.
            unsafe {
                let handler = std::mem::transmute::<
                    usize,
                    unsafe extern "C" fn(c_int, *const libc::siginfo_t, *mut c_void),
                >(handler);
                handler(signal, info, std::ptr::from_mut(ucontext).cast());
            }
        }
        handler => {
            // SAFETY: without SA_SIGINFO the kernel would call a function of this type.
            unsafe {
                let handler = std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler);
                handler(signal);
            }
        }
    }
}
