//! Order between stores to memory and to registers of devices.

/// Orders the stores before this before those after it, whatever kind of memory they go to, and
/// empties the write-combining buffers of the core: a store to a register that is mapped
/// write-combining may otherwise stay there for long (rdma-core, util/udma_barrier.h:
/// `mmio_flush_writes`).
#[inline]
pub fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it has no operands.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: it waits for stores, and changes no register.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
