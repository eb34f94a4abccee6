//! The block: memory that device code and the proxy share, in host memory that both reach, zero at
//! first.
//!
//! It holds the ring's slots, the words that the proxy publishes, an acknowledgement and a landing
//! slot for each fetch on its way, and a record of what failed first at each peer. Mirrors
//! `abi::Proxy` and `detail/ibrc/ring.h`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::descriptor::SLOT_BYTES;
use crate::engine::{Acknowledgement, EXTRA_SLOTS, Fault, LANDING_BYTES, Results};
use crate::ring::RawWords;
use oxshmem_system::words::native;

/// Parts begin on lines of their own.
const LINE: u64 = 128;
/// Bytes of a peer's fault record.
pub const FAULT_BYTES: u64 = 64;

/// What is where in the block, as offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// log2 of the ring's slots.
    pub log_depth: u32,
    /// log2 of the landing slots of the device.
    pub log_landing: u32,
    /// PEs of the job.
    pub n_pes: u32,
}

impl Layout {
    /// Returns the slots come first.
    fn slots_bytes(&self) -> u64 {
        (SLOT_BYTES as u64) << self.log_depth
    }

    /// Returns the number of descriptors taken out of the ring so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.slots_bytes()
    }

    /// Returns the number of descriptors done, without a gap; bit 63 is set once any has failed.
    /// The next word says how many have (bits 63:16), and the peer of the newest of them (15:0).
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.taken() + LINE
    }

    /// Returns an acknowledgement for each landing slot of the device, 8 bytes.
    #[must_use]
    pub fn acknowledgements(&self) -> u64 {
        self.completed() + LINE
    }

    /// Returns a fault record for each PE.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.acknowledgements() + (8u64 << self.log_landing).next_multiple_of(LINE)
    }

    /// Returns the landing slots: those of the device, then those of the engine. They are
    /// registered with the card.
    #[must_use]
    pub fn landing(&self) -> u64 {
        (self.faults() + FAULT_BYTES * u64::from(self.n_pes)).next_multiple_of(4096)
    }

    /// Returns the bytes of all landing slots.
    #[must_use]
    pub fn landing_bytes(&self) -> u64 {
        LANDING_BYTES * ((1u64 << self.log_landing) + u64::from(EXTRA_SLOTS))
    }

    /// Returns the bytes of the block.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.landing() + self.landing_bytes()).next_multiple_of(4096)
    }
}

/// The proxy's side of the block.
#[derive(Debug)]
pub struct Block {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is accessed by atomics alone.
unsafe impl Send for Block {}

impl Block {
    /// Returns the block at `base`.
    ///
    /// # Safety
    /// [`Layout::bytes`] bytes, aligned to 128, stay mapped there while this or a ring's words made
    /// from it live, are zero now, and are accessed by atomics, device code and cards only.
    #[must_use]
    pub unsafe fn new(base: *mut u8, layout: Layout) -> Self {
        Self { base, layout }
    }

    /// Returns its layout.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the ring's slots.
    pub(crate) fn slots(&self) -> RawWords {
        // SAFETY: the slots are at the block's start, and the constructor's promise covers them.
        unsafe { RawWords::new(self.base.cast::<u64>()) }
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.layout.bytes() && offset.is_multiple_of(8));
        // SAFETY: inside the block and aligned, by the callers, which use offsets of the layout.
        unsafe { AtomicU64::from_ptr(self.base.add(native(offset)).cast()) }
    }

    /// Says how many descriptors were taken.
    pub(crate) fn publish_taken(&self, taken: u64) {
        self.word(self.layout.taken()).store(taken, Ordering::Release);
    }

    /// Says how many are done, and what failed. Failures first: a reader that sees the number sees
    /// them too.
    pub(crate) fn publish_completed(&self, completed: u64, failures: (u64, u32)) {
        let at = self.layout.completed();
        self.word(at + 8).store(failures.0 << 16 | u64::from(failures.1), Ordering::Release);
        let failed = u64::from(failures.0 != 0) << 63;
        self.word(at).store(completed | failed, Ordering::Release);
    }

    /// Tells the thread that waits at a landing slot of the device.
    pub(crate) fn publish_acknowledgement(&self, acknowledgement: Acknowledgement) {
        let Acknowledgement { slot, value } = acknowledgement;
        if slot >> self.layout.log_landing == 0 {
            self.word(self.layout.acknowledgements() + u64::from(slot) * 8).store(value, Ordering::Release);
        }
    }

    /// Leaves a record for device code, before the failure is published.
    pub(crate) fn publish_fault(&self, fault: &Fault, qpn: u32) {
        if fault.pe >= self.layout.n_pes {
            return;
        }
        let at = self.layout.faults() + u64::from(fault.pe) * FAULT_BYTES;
        let words = [
            u64::from(qpn) | u64::from(fault.opcode) << 32,
            fault.id,
            fault.address,
            u64::from(fault.syndrome) | u64::from(fault.vendor) << 32,
        ];
        for (index, word) in words.into_iter().enumerate() {
            self.word(at + index as u64 * 8).store(word, Ordering::Relaxed);
        }
    }
}

impl Results for Block {
    fn load(&self, slot: u32) -> u64 {
        let Some(offset) = self.landing_at(slot) else { return 0 };
        self.word(offset).load(Ordering::Acquire)
    }

    fn store(&mut self, slot: u32, value: u64) {
        if let Some(offset) = self.landing_at(slot) {
            self.word(offset).store(value, Ordering::Relaxed);
        }
    }
}

impl Block {
    /// Returns where a landing slot is; `None` for a number that device code made up.
    fn landing_at(&self, slot: u32) -> Option<u64> {
        let offset = u64::from(slot) * LANDING_BYTES;
        (offset < self.layout.landing_bytes()).then_some(self.layout.landing() + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        for (log_depth, log_landing, n_pes) in [(4, 0, 1), (12, 10, 2), (16, 8, 1024)] {
            let layout = Layout { log_depth, log_landing, n_pes };
            let parts = [
                (0, 64 << log_depth),
                (layout.taken(), 8),
                (layout.completed(), 16),
                (layout.acknowledgements(), 8 << log_landing),
                (layout.faults(), FAULT_BYTES * u64::from(n_pes)),
                (layout.landing(), layout.landing_bytes()),
                (layout.bytes(), 0),
            ];
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{layout:?}: {pair:?}");
            }
        }
    }
}
