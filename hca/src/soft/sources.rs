//! Sources of puts that change before the put is complete (item `sources` of a fault plan): the
//! program has reused a buffer without a quiet before.
//!
//! When a doorbell covers a write whose payload is in memory, what is there is noted, and the write
//! starts a while later. If something else is there then, the write fails and says so; otherwise it
//! goes on. A buffer that changes within that time is found whatever the timing of the machine; one
//! that changes later is not.

use std::time::Instant;

use super::control::rights;
use super::engine::{BLOCK_WORDS, as_bytes};
use super::failure::Failure;
use super::memory;
use super::state::{Engine, Qp, Source};
use crate::wire::cqe::Syndrome;
use crate::wire::{BLOCK_BYTES, MAX_WQE_BLOCKS, Op, Wqe, data};
use oxshmem_system::mixing::digest;
use oxshmem_system::words::native;

impl Engine {
    /// Notes the sources of writes from block `from` on, which a doorbell covers now.
    pub(super) fn note_sources(&mut self, qp: &mut Qp, from: u64) {
        let until = Instant::now() + self.faults.sources;
        let mut index = from;
        while index < qp.producer {
            let mut words = [0u64; MAX_WQE_BLOCKS * BLOCK_WORDS];
            let mut blocks = 1;
            for (at, block) in words.chunks_exact_mut(BLOCK_WORDS).enumerate() {
                if at as u64 == blocks {
                    break;
                }
                if let Some(block) = block.first_chunk_mut() {
                    self.fetch(qp, index + at as u64, block);
                }
                if at == 0 {
                    // `step` finds what is wrong with the WQE when it is executed.
                    let pieces = u64::from(block[0].to_ne_bytes()[7] & 0x3f);
                    blocks = pieces.div_ceil(4).max(1).min(qp.producer - index);
                }
            }
            let bytes = as_bytes(&words);
            if let Ok(Wqe { op: Op::Write { local: Some(local), .. }, .. }) =
                Wqe::parse(&bytes[..native(blocks) * BLOCK_BYTES])
                && let Some(digest) = self.digest_of(qp, &local)
            {
                qp.sources.push_back(Source { index, until, digest });
            }
            index += blocks;
        }
    }

    /// Returns whether the next WQE of a QP has to wait, because its source is still watched.
    pub(super) fn watches_source(&self, qp: &mut Qp) -> bool {
        while qp.sources.front().is_some_and(|source| source.index < qp.consumer) {
            qp.sources.pop_front();
        }
        qp.sources.front().is_some_and(|source| source.index == qp.consumer && Instant::now() < source.until)
    }

    /// Compares the source of the next WQE of a QP, which is about to start, with what it was.
    pub(super) fn check_source(&mut self, qp: &mut Qp, wqe: &Wqe<'_>) -> Result<(), Failure> {
        let Some(source) = qp.sources.front().copied().filter(|source| source.index == qp.consumer) else {
            return Ok(());
        };
        qp.sources.pop_front();
        let Op::Write { local: Some(local), .. } = &wqe.op else { return Ok(()) };
        match self.digest_of(qp, local) {
            Some(now) if now != source.digest => {
                let text = format!(
                    "the source of this put, {} bytes, has changed before the put was complete: call quiet (or put \
                     without _nbi) before the buffer is written again",
                    local.len()
                );
                Err(Failure::new(Syndrome::LocalQpOperation, text))
            }
            // A source that is gone fails when it is read.
            _ => Ok(()),
        }
    }

    /// Returns a digest of what a segment names; `None` if it names nothing that may be read.
    fn digest_of(&mut self, qp: &mut Qp, local: &data::Repr) -> Option<u64> {
        const PIECE: usize = 4096;
        let src = self.local(qp, local, rights::LOCAL_READ).ok()?;
        let (len, mut piece, mut all) = (native(local.len()), [0u8; PIECE], 0);
        for at in (0..len).step_by(PIECE) {
            let part = PIECE.min(len - at);
            // SAFETY: `local` has checked the key and the range.
            unsafe { memory::copy(piece.as_mut_ptr(), src.wrapping_add(at), part) };
            all = digest(&[&piece[..part], &u64::to_le_bytes(all)].concat());
        }
        Some(all)
    }
}
