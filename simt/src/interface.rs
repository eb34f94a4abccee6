//! The structures and functions that device code and the executor share: the Rust side of
//! oxshmem/port/cpu.h.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `oxshmem::port::kCpuVersion`; raised with any change in this file or of the calls in `calls.rs`.
pub(super) const CPU_VERSION: u32 = 4;

/// A kernel's entry: reads argument i through `args[i]`.
pub(super) type Entry = unsafe extern "C-unwind" fn(args: *mut *mut c_void);

/// `oxshmem_cpu_kernel`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct KernelDescription {
    pub(super) name: *const c_char,
    pub(super) entry: Entry,
    pub(super) arg_sizes: *const u32,
    pub(super) n_args: u32,
    pub(super) max_threads: u32,
    pub(super) next: *const KernelDescription,
}

/// `oxshmem_cpu_module`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ModuleDescription {
    pub(super) abi_version: u32,
    pub(super) state_bytes: u32,
    pub(super) cpu_version: u32,
    pub(super) reserved0: u32,
    pub(super) kernels: *const KernelDescription,
}

/// `oxshmem_cpu_block`: what device code reads of its block.
#[repr(C)]
#[derive(Debug, Clone)]
pub(super) struct BlockView {
    pub(super) block_idx: [u32; 3],
    pub(super) block_dim: [u32; 3],
    pub(super) grid_dim: [u32; 3],
    pub(super) threads: u32,
    pub(super) rank: u32,
    pub(super) grid_blocks: u32,
    pub(super) dynamic_shared_bytes: u32,
    pub(super) dynamic_shared: *mut c_void,
    pub(super) shared: *const Cell<*mut c_void>,
}

/// `oxshmem_cpu_thread`: what device code reads of its thread.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ThreadView {
    pub(super) thread_idx: [u32; 3],
    pub(super) lane: u32,
    pub(super) rank: u32,
    pub(super) reserved0: u32,
    pub(super) block: *const BlockView,
}

const _: () = {
    assert!(size_of::<KernelDescription>() == 40);
    assert!(size_of::<ModuleDescription>() == 24);
    assert!(size_of::<BlockView>() == 72 && std::mem::offset_of!(BlockView, dynamic_shared) == 56);
    assert!(size_of::<ThreadView>() == 32 && std::mem::offset_of!(ThreadView, block) == 24);
};

/// `enum class warp_op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WarpOp {
    Sync,
    Ballot,
    Shfl,
    MatchAny,
    RunStarts,
}

impl WarpOp {
    /// Decodes what device code passed; `None` if no header of this version passes it.
    pub(super) fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Sync),
            1 => Some(Self::Ballot),
            2 => Some(Self::Shfl),
            3 => Some(Self::MatchAny),
            4 => Some(Self::RunStarts),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync_warp",
            Self::Ballot => "ballot",
            Self::Shfl => "shfl",
            Self::MatchAny => "match_any",
            Self::RunStarts => "run_starts",
        }
    }
}

// glue.cpp
unsafe extern "C" {
    safe fn oxshmem_cpu_current_slot() -> *mut *const ThreadView;
    safe fn oxshmem_cpu_shared_slots() -> u32;
    safe fn oxshmem_cpu_abi_version() -> u32;
    safe fn oxshmem_cpu_state_bytes() -> u32;
    safe fn oxshmem_cpu_state_address() -> *mut c_void;
    safe fn oxshmem_cpu_forget_exceptions();
}

/// Returns where `oxshmem_cpu_current` of the calling operating system thread lies.
pub(super) fn current_slot() -> *mut *const ThreadView {
    oxshmem_cpu_current_slot()
}

/// Returns how many OXSHMEM_SHARED declarations the program has.
pub(super) fn shared_slots() -> usize {
    oxshmem_cpu_shared_slots() as usize
}

/// Returns the device ABI's version and the size of its state, as the runtime's own C++ was
/// compiled with.
pub(super) fn abi_version() -> (u32, u32) {
    (oxshmem_cpu_abi_version(), oxshmem_cpu_state_bytes())
}

/// Forgets exceptions that were being thrown or handled by coroutines that no longer exist, on the
/// calling thread.
pub(super) fn forget_exceptions() {
    oxshmem_cpu_forget_exceptions();
}

/// Returns the state that every `cpu` module of this process reads (`oxshmem::port::state()`), and
/// its size in bytes.
///
/// It is all zero until the runtime fills it, which it may do only while no kernel runs.
pub fn device_state() -> (*mut c_void, usize) {
    (oxshmem_cpu_state_address(), oxshmem_cpu_state_bytes() as usize)
}

static MMIO_HOOK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Installs what `mmio_store` calls after its store, for the whole process: it wakes the software
/// HCA that serves the register. `None` takes the hook away.
///
/// The hook runs on the small stack of a GPU thread and must neither block nor panic.
pub fn set_mmio_hook(hook: Option<fn()>) {
    MMIO_HOOK.store(hook.map_or(std::ptr::null_mut(), |hook| hook as *mut c_void), Ordering::Release);
}

pub(super) fn call_mmio_hook() {
    let hook = MMIO_HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: only `set_mmio_hook` stores here, and what it stores is a fn().
        let hook = unsafe { std::mem::transmute::<*mut c_void, fn()>(hook) };
        hook();
    }
}

/// An atomic of device code that changes a word of a symmetric heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicAccess {
    /// Where the word is in the heap.
    pub offset: u64,
    /// Length of the word.
    pub bytes: u32,
    /// The PE whose heap it is.
    pub pe: i32,
    /// Whether a card carries the atomic out, and not the thread itself.
    pub by_card: bool,
}

static ATOMIC_HOOK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Installs what device code calls before each atomic that changes a word of a symmetric heap, for
/// the whole process. `None` takes the hook away.
///
/// The hook runs on the small stack of a GPU thread and must neither wait for other threads of the
/// device nor panic.
pub fn set_atomic_hook(hook: Option<fn(AtomicAccess)>) {
    ATOMIC_HOOK.store(hook.map_or(std::ptr::null_mut(), |hook| hook as *mut c_void), Ordering::Release);
}

/// Returns the hook that [`set_atomic_hook`] installed.
pub(super) fn atomic_hook() -> Option<fn(AtomicAccess)> {
    let hook = ATOMIC_HOOK.load(Ordering::Acquire);
    // SAFETY: only `set_atomic_hook` stores here, and what it stores is null or a fn(AtomicAccess).
    (!hook.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, fn(AtomicAccess)>(hook) })
}

/// Returns the executable segment that holds `address`; empty if none does.
pub(super) fn text_around(address: usize) -> Range<usize> {
    struct Search {
        address: usize,
        found: Range<usize>,
    }

    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes a valid description and the pointer we gave it.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        #[allow(clippy::cast_possible_truncation, reason = "an address of this process has the width of usize")]
        let native = |address: u64| address as usize;
        for i in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: dlpi_phdr has dlpi_phnum entries.
            let segment = unsafe { &*info.dlpi_phdr.add(i) };
            if segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_X != 0 {
                let start = native(info.dlpi_addr.wrapping_add(segment.p_vaddr));
                let range = start..start.wrapping_add(native(segment.p_memsz));
                if range.contains(&search.address) {
                    search.found = range;
                    return 1;
                }
            }
        }
        0
    }

    let mut search = Search { address, found: 0..0 };
    // SAFETY: `visit` matches what dl_iterate_phdr calls; `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_holds_the_address_asked_for() {
        let here = text_around as *const () as usize;
        assert!(text_around(here).contains(&here));
        assert!(text_around(8).is_empty());
    }

    #[test]
    fn the_state_has_the_size_of_the_abi() {
        assert_eq!(device_state().1, abi_version().1 as usize);
        assert!(!device_state().0.is_null());
    }
}
