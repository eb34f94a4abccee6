//! Accesses that bypass the port layer: shared memory is not accessible, so they fault, and end
//! their thread.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::Once;

use corosensei::trap::TrapHandlerRegs;

use crate::world::{End, World};

/// Installs the handler for the whole process, once.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: an all-zero sigaction is valid, the handler only does what is safe in a handler.
        // It runs on the alternate stack that the standard library gives each of its threads.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
        }
    });
}

unsafe extern "C" fn on_fault(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo_t and ucontext_t; faults carry an address.
    let (address, context) = unsafe { ((*info).si_addr() as u64, &mut *context.cast::<libc::ucontext_t>()) };
    let Some(trap) = World::trap_of(address, program_counter(context)) else {
        // Not ours: the default action, when the access is made again.
        // SAFETY: an all-zero sigaction is the default action.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, &raw const default, std::ptr::null_mut());
        }
        return;
    };
    // SAFETY: the fault happened in device code on this coroutine's stack; that code owns nothing
    // that has to be dropped.
    let registers = unsafe { trap.setup_trap_handler(|| End::Fault) };
    set_registers(context, registers);
}

#[cfg(target_arch = "x86_64")]
fn program_counter(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64
}

#[cfg(target_arch = "x86_64")]
fn set_registers(context: &mut libc::ucontext_t, registers: TrapHandlerRegs) {
    let TrapHandlerRegs { rip, rsp, rbp, rdi, rsi } = registers;
    let all = &mut context.uc_mcontext.gregs;
    all[libc::REG_RIP as usize] = rip as i64;
    all[libc::REG_RSP as usize] = rsp as i64;
    all[libc::REG_RBP as usize] = rbp as i64;
    all[libc::REG_RDI as usize] = rdi as i64;
    all[libc::REG_RSI as usize] = rsi as i64;
}

#[cfg(target_arch = "aarch64")]
fn program_counter(context: &libc::ucontext_t) -> u64 {
    context.uc_mcontext.pc
}

#[cfg(target_arch = "aarch64")]
fn set_registers(context: &mut libc::ucontext_t, registers: TrapHandlerRegs) {
    let TrapHandlerRegs { pc, sp, x0, x1, x29, lr } = registers;
    let all = &mut context.uc_mcontext;
    all.pc = pc;
    all.sp = sp;
    all.regs[0] = x0;
    all.regs[1] = x1;
    all.regs[29] = x29;
    all.regs[30] = lr;
}

/// Returns the function and line of an instruction, if `addr2line` is installed, otherwise its
/// offset in the module.
pub(crate) fn place_of(pc: u64, module: &Path) -> String {
    // SAFETY: an all-zero Dl_info is valid, and dladdr fills it.
    let base = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(pc as *const c_void, &raw mut info);
        info.dli_fbase as u64
    };
    let offset = pc.wrapping_sub(base);
    let output =
        Command::new("addr2line").args(["-f", "-C", "-i", "-e"]).arg(module).arg(format!("{offset:#x}")).output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let frames: Vec<String> = lines
                .chunks(2)
                .map(|frame| {
                    let file = frame.get(1).map_or("?", |file| file.rsplit('/').next().unwrap_or(file));
                    format!("{} ({file})", frame[0])
                })
                .take(4)
                .collect();
            format!("instruction {offset:#x}: {}", frames.join(", called from "))
        }
        _ => format!("instruction {offset:#x} of the module"),
    }
}
