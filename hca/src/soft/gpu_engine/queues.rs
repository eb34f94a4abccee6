//! Access to queues that the CPU cannot reach: blocks, doorbell records and CQEs.

use crate::soft::state::Engine;
use crate::wire::{BLOCK_BYTES, cqe};

impl Engine {
    /// Reads a block of a send queue that the CPU cannot reach.
    pub(in crate::soft) fn fetch_from_gpu(&mut self, at: u64, block: &mut [u64; BLOCK_BYTES / 8]) {
        let mut bytes = [0; BLOCK_BYTES];
        self.with_gpu(|gpu| {
            // SAFETY: the queue lies in a umem that stays registered while the QP lives.
            unsafe { gpu.accelerator.read(at, &mut bytes) }
        });
        for (word, bytes) in block.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
        }
    }

    /// Reads a doorbell record that the CPU cannot reach.
    pub(in crate::soft) fn load_from_gpu(&mut self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.with_gpu(|gpu| {
            // SAFETY: the record lies in a umem that stays registered while the QP lives.
            unsafe { gpu.accelerator.read(at, &mut bytes) }
        });
        u32::from_ne_bytes(bytes)
    }

    /// Writes a CQE that the CPU cannot reach: its tail last.
    pub(in crate::soft) fn store_cqe_on_gpu(&mut self, at: u64, bytes: &[u8; cqe::LEN]) {
        let (body, tail) = bytes.split_at(cqe::TAIL_OFFSET);
        self.with_gpu(|gpu| {
            // SAFETY: the CQ lies in a umem that stays registered while it lives.
            unsafe {
                gpu.accelerator.write(at, body)?;
                gpu.accelerator.write(at + cqe::TAIL_OFFSET as u64, tail)
            }
        });
    }
}
