//! The tables that the software HCA shares with its kernel: the mirror of
//! `device-kernels/kernels/soft_hca.h`, which says what each field means and which side writes it.
#![allow(missing_docs)] // see the header

use super::control::{FIRST_MKEY, FIRST_QPN};
use oxshmem_system::words::const32;
use std::sync::atomic::AtomicU64;

pub const QPS: usize = 4096;
pub const LOCAL_KEYS: usize = 4096;
pub const REMOTE_KEYS: usize = 8192;
pub const PEER_STRIDE: u32 = 0x9e5;
pub const PAGES: usize = 256;
pub const EVENTS: usize = 1024;
pub const BLOCKS: usize = 64;
pub const ATOMICS: usize = 256;

/// [`Event::kind`]: a doorbell that fits no queue pair.
pub const EVENT_DOORBELL: u32 = 1;
/// [`Event::kind`]: a queue pair stopped.
pub const EVENT_TRAP: u32 = 2;

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(128))]
pub struct Control {
    pub leave: u64,
    pad: [u64; 15],
    pub events: u64,
    pub served: u64,
    pad2: [u64; 14],
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(128))]
pub struct BlockCounters {
    pub wqes: u64,
    pub doorbells: u64,
    pub cqes: u64,
    pub bytes: u64,
    pad: [u64; 12],
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Event {
    pub kind: u32,
    pub place: u32,
    pub value: u64,
    pub number: u64,
    pub reserved0: u64,
}

/// The first half of a `QpContext`, which the host writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct QpConstants {
    pub sq: u64,
    pub dbr: u64,
    pub cqe: u64,
    pub qpn: u32,
    pub depth_log2: u32,
    pub state: u32,
    pub pd: u32,
    pub log_msg_max: u32,
    pub uar_page: u32,
    pub cq_log_size: u32,
    pub peer: u32,
    pub accepts: u32,
    pub remote_pd: u32,
    pub remote_qpn: u32,
    pub in_order: u32,
    pub reserved0: [u32; 14],
}

/// The second half, which the kernel writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct QpProgress {
    pub consumer: u64,
    pub moved: u64,
    pub cq_producer: u32,
    pub bell: u32,
    pub trap: u32,
    pub reserved1: [u32; 25],
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct QpContext {
    pub constants: QpConstants,
    pub progress: QpProgress,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Key {
    pub key: u32,
    pub peer: u32,
    pub pd: u32,
    pub qpn: u32,
    pub rights: u32,
    pub reserved0: u32,
    pub start: u64,
    pub length: u64,
    pub base: u64,
    pub reserved1: [u64; 2],
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(4096))]
pub struct Page {
    pub bytes: [u8; 4096],
}

/// All of it. Only its layout is used here: the memory is the accelerator's.
#[derive(Debug)]
#[repr(C)]
pub struct Tables {
    pub control: Control,
    pub counters: [BlockCounters; BLOCKS],
    pub events: [Event; EVENTS],
    pub qps: [QpContext; QPS],
    pub local_keys: [Key; LOCAL_KEYS],
    pub remote_keys: [Key; REMOTE_KEYS],
    pub pages: [Page; PAGES],
}

/// What a launch of the kernel is told: its one parameter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Slice {
    pub tables: u64,
    pub number: u64,
    pub run_ns: u64,
    pub idle_ns: u64,
    pub registers: u32,
    pub null: u32,
    pub without_record: u32,
    pub reserved0: u32,
    pub host_doorbells: u64,
    pub gate: u64,
}

/// What one block of the kernel tells the host.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct BlockReport {
    pub started: AtomicU64,
    pub ended: AtomicU64,
    pad: [u64; 14],
}

/// Says, in host memory, which side may touch the tables.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Gate {
    pub cancelled: AtomicU64,
    pad: [u64; 15],
    pub blocks: [BlockReport; BLOCKS],
}

/// An atomic that an HCA of another node has requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct WordAtomic {
    pub word: u64,
    pub operand: u64,
    pub compare: u64,
    pub mask: u64,
    pub compare_mask: u64,
    pub add: u32,
    pub width: u32,
    pub old: u64,
    pub reserved0: u64,
}

/// What one launch of the kernel for atomics executes.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct AtomicBatch {
    pub number: u64,
    pub count: u64,
    pad: [u64; 14],
    pub done: AtomicU64,
    pad2: [u64; 15],
    pub atomics: [WordAtomic; ATOMICS],
}

/// Structures of integers without implicit padding, for which any bytes are a value.
///
/// # Safety
/// Exactly that.
pub(super) unsafe trait Plain: Copy + Default {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: `repr(C)` of integers, padded explicitly.
unsafe impl Plain for Control {}
// SAFETY: as above.
unsafe impl Plain for BlockCounters {}
// SAFETY: as above.
unsafe impl Plain for Event {}
// SAFETY: as above.
unsafe impl Plain for QpConstants {}
// SAFETY: as above.
unsafe impl Plain for QpProgress {}
// SAFETY: as above.
unsafe impl Plain for Key {}

impl Slice {
    /// Returns the parameter's bytes.
    pub fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let words = [self.tables, self.number, self.run_ns, self.idle_ns];
        for (at, word) in bytes.chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[32..36].copy_from_slice(&self.registers.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.null.to_ne_bytes());
        bytes[40..44].copy_from_slice(&self.without_record.to_ne_bytes());
        bytes[48..56].copy_from_slice(&self.host_doorbells.to_ne_bytes());
        bytes[56..].copy_from_slice(&self.gate.to_ne_bytes());
        bytes
    }
}

/// Returns the place of a QP's context.
pub(super) fn qp_place(qpn: u32) -> u64 {
    u64::from(qpn - FIRST_QPN)
}

/// Returns the place of a key of this HCA, by its index.
pub(super) fn local_place(index: u32) -> u64 {
    u64::from(index - FIRST_MKEY)
}

/// Returns the place of the key of a peer; peers count from 1.
pub(super) fn remote_place(peer: u32, index: u32) -> u32 {
    index.wrapping_add(peer.wrapping_mul(PEER_STRIDE)) % const { const32(REMOTE_KEYS) }
}

/// Returns sizes and offsets in the order of the test kernel `soft_hca_layout`.
#[must_use]
pub fn layout() -> Vec<u64> {
    use std::mem::offset_of;
    macro_rules! layout {
        ($($type:ident { $($field:ident),* })*) => {
            vec![$(size_of::<$type>() as u64, $(offset_of!($type, $field) as u64),*),*]
        };
    }
    let mut all = layout! {
        Control { leave, events, served }
        BlockCounters { wqes, doorbells, cqes, bytes }
        Event { kind, place, value, number }
        QpConstants {
            sq, dbr, cqe, qpn, depth_log2, state, pd, log_msg_max, uar_page, cq_log_size, peer, accepts, remote_pd, remote_qpn,
            in_order
        }
    };
    let progress = offset_of!(QpContext, progress) as u64;
    all.push(size_of::<QpContext>() as u64);
    for field in [
        offset_of!(QpProgress, consumer),
        offset_of!(QpProgress, moved),
        offset_of!(QpProgress, cq_producer),
        offset_of!(QpProgress, bell),
        offset_of!(QpProgress, trap),
    ] {
        all.push(progress + field as u64);
    }
    all.extend(layout! {
        Key { key, peer, pd, qpn, rights, start, length, base }
        Slice { tables, number, run_ns, idle_ns, registers, null, without_record, host_doorbells, gate }
        Tables { control, counters, events, qps, local_keys, remote_keys, pages }
        WordAtomic { word, operand, compare, mask, compare_mask, add, width, old }
        AtomicBatch { number, count, done, atomics }
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::limits::{REGISTER_STRIDE, REGISTER_STRIDE_WITHOUT_RECORD, REGISTERS_PER_PAGE};
    use crate::wire::doorbell;

    #[test]
    fn what_the_header_repeats_is_the_same_here() {
        assert_eq!((FIRST_QPN, FIRST_MKEY), (0x40, 0x10));
        assert_eq!((REGISTER_STRIDE, REGISTER_STRIDE_WITHOUT_RECORD, REGISTERS_PER_PAGE), (0x80, 0x20, 16));
        assert_eq!((doorbell::FIRST_REGISTER, doorbell::WITHOUT_RECORD), (0x800, 0x600));
        assert_eq!(crate::prm::mkey::ANY_QP, 0xff_ffff);
        assert_eq!(crate::prm::qpc::QpState::Rts as u32, 3);
        assert_eq!((size_of::<BlockReport>(), size_of::<Gate>()), (128, 128 * (1 + BLOCKS)));
        assert_eq!(std::mem::offset_of!(BlockReport, ended), 8);
    }

    #[test]
    fn a_slice_is_written_as_it_lies_in_memory() {
        let slice = Slice {
            tables: 1,
            number: 2,
            run_ns: 3,
            idle_ns: 4,
            registers: 5,
            null: 6,
            without_record: 7,
            reserved0: 0,
            host_doorbells: 8,
            gate: 9,
        };
        // SAFETY: integers without padding.
        let image: [u8; size_of::<Slice>()] = unsafe { std::mem::transmute(slice) };
        assert_eq!(slice.to_bytes(), image);
    }
}
