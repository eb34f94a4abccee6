//! How work requests end: CQEs, errors, and payloads that were held back.

use super::copying::Place;
use super::failure::Failure;
use super::memory;
use super::state::{Deferred, Engine, Hold, Qp};
use crate::prm::qpc::QpState;
use crate::provider::QpFailure;
use crate::wire::cqe::{self, Syndrome};
use oxshmem_system::mixing::shuffle;
use oxshmem_system::words::{low16, low32};
use std::sync::atomic::{Ordering, fence};

impl Engine {
    /// Moves on from the WQE, which is done, and writes its CQE if requested.
    #[inline]
    pub(super) fn complete(&mut self, qp: &mut Qp, opcode: u8, blocks: u64, bytes: u64, signaled: bool) {
        let index = qp.consumer;
        self.advance(qp, blocks);
        self.report(qp, index, opcode, bytes, signaled);
    }

    /// Writes the CQE of the WQE at `index`, which is done, if requested.
    #[inline]
    pub(super) fn report(&mut self, qp: &mut Qp, index: u64, opcode: u8, bytes: u64, signaled: bool) {
        // An observer of a later store of this QP also sees this WQE's payload.
        fence(Ordering::Release);
        self.counters.bytes += bytes;
        qp.counters.bytes += bytes;
        if signaled {
            let since = self.now().duration_since(self.opened);
            let timestamp = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            let status = cqe::Status::Done { byte_cnt: low32(bytes), timestamp };
            let repr = cqe::Repr { wqe_opcode: opcode, qpn: qp.qpn, wqe_counter: low16(index), owner: false, status };
            match &mut qp.deferred {
                Some(deferred) => deferred.cqe = Some(repr),
                None => self.write_cqe(qp, repr),
            }
        }
    }

    fn advance(&mut self, qp: &mut Qp, blocks: u64) {
        qp.consumer += blocks;
        qp.moved = 0;
        qp.stalled = None;
        qp.hold = Hold::Undecided;
        self.count_wqe(qp);
    }

    /// Counts a WQE of a QP that has ended.
    pub(super) fn count_wqe(&mut self, qp: &mut Qp) {
        self.counters.wqes += 1;
        qp.counters.wqes += 1;
        if self.faults.die_after.is_some_and(|limit| self.counters.wqes >= limit) {
            self.die("fault die-after");
        }
    }

    /// Writes an error CQE for the WQE, which failed, and moves the QP to the error state.
    #[cold]
    pub(super) fn fail(&mut self, qp: &mut Qp, opcode: u8, blocks: u64, failure: &Failure) {
        // What is under way to another node is flushed after it.
        qp.rewind();
        let index = qp.consumer;
        let syndrome = failure.syndrome;
        self.violation(qp.qpn, index, Some(syndrome), failure.text.clone());
        let first = || QpFailure { wqe_index: index, syndrome: syndrome as u8, text: failure.text.clone() };
        qp.failure.get_or_insert_with(first);
        self.set_state(qp, QpState::Err);
        if qp.deferred.is_some() {
            self.release_deferred(qp);
        }
        let blocks = blocks.min(qp.producer - qp.consumer);
        self.advance(qp, blocks);
        self.write_error(qp, opcode, index, syndrome);
        self.activate(qp);
    }

    #[cold]
    pub(super) fn flush(&mut self, qp: &mut Qp, opcode: u8, blocks: u64) {
        if qp.deferred.is_some() {
            self.release_deferred(qp);
        }
        let index = qp.consumer;
        qp.consumer += blocks;
        qp.moved = 0;
        qp.stalled = None;
        qp.hold = Hold::Undecided;
        self.write_error(qp, opcode, index, Syndrome::WrFlush);
    }

    fn write_error(&mut self, qp: &mut Qp, opcode: u8, index: u64, syndrome: Syndrome) {
        self.counters.errors += 1;
        qp.counters.errors += 1;
        let counted = self.error_counters.get_mut(qp.context.counter_set_id.into());
        if let Some(count) = counted.and_then(|set| set.counter(syndrome)) {
            *count += 1;
        }
        let status = cqe::Status::Error { syndrome: syndrome as u8, vendor_syndrome: 0 };
        self.write_cqe(
            qp,
            cqe::Repr { wqe_opcode: opcode, qpn: qp.qpn, wqe_counter: low16(index), owner: false, status },
        );
    }

    fn write_cqe(&mut self, qp: &mut Qp, mut repr: cqe::Repr) {
        let Some(cq) = self.cqs.get_mut(qp.context.cqn_snd) else { return };
        let log_size = cq.context.log_cq_size;
        if !cq.context.oi {
            // SAFETY: the record lies in a umem that stays registered while the CQ lives, aligned
            // to 8. Its first word is the consumer counter, 24 bits.
            let consumer = u32::from_be(unsafe { memory::load32(cq.dbr, Ordering::Acquire) }) & 0xff_ffff;
            if cq.producer.wrapping_sub(consumer) & 0xff_ffff >= 1 << log_size {
                let text =
                    format!("CQ {:#x} overran: {} entries, none consumed in time", qp.context.cqn_snd, 1 << log_size);
                self.violation(qp.qpn, repr.wqe_counter.into(), None, text);
                self.set_state(qp, QpState::Err);
                return;
            }
        }
        qp.counters.cqes += 1;
        repr.owner = cq.producer >> log_size & 1 != 0;
        let slot = if cq.context.cc { 0 } else { cq.producer & ((1 << log_size) - 1) };
        cq.producer = cq.producer.wrapping_add(1) & 0xff_ffff;
        let mut bytes = [0; cqe::LEN];
        repr.emit(&mut cqe::Segment::new_unchecked(&mut bytes[..]));
        let at = cq.base.wrapping_add(slot as usize * cqe::LEN);
        let umem = cq.umem;
        if self.is_on_gpu() {
            let at = Place { address: at.addr() as u64, on_host: self.is_on_host(umem) };
            if self.is_copying() {
                self.with_copying(|copying| {
                    copying.complete(qp.qpn, at, &bytes);
                    Ok(())
                });
            } else {
                self.store_cqe_on_gpu(at.address, &bytes);
            }
            return self.wrote_cqe(&repr);
        }
        // SAFETY: the queue lies in a umem that stays registered while the CQ lives, aligned to 64;
        // the slot is below its size.
        unsafe {
            for offset in (0..cqe::TAIL_OFFSET).step_by(8) {
                memory::store64(at.add(offset), word(&bytes, offset), Ordering::Relaxed);
            }
            // Release: payload and body come before the words that a poller looks at.
            memory::store64(at.add(cqe::TAIL_OFFSET), word(&bytes, cqe::TAIL_OFFSET), Ordering::Release);
        }
        self.wrote_cqe(&repr);
    }

    fn wrote_cqe(&mut self, repr: &cqe::Repr) {
        self.counters.cqes += 1;
        if self.tracer.is_on() {
            self.tracer.line("cqe", format_args!("{repr}"));
        }
    }

    /// Makes a payload that was held back visible, in a scrambled order, and writes its CQE.
    pub(super) fn release_deferred(&mut self, qp: &mut Qp) {
        let Some(deferred) = qp.deferred.take() else { return };
        let Deferred { dst, payload, order, cqe, .. } = deferred;
        let len = payload.len();
        let whole = matches!(len, 1 | 2 | 4 | 8) && dst.addr().is_multiple_of(len);
        // SAFETY: `dst` was translated and checked for `len` bytes. The key may be gone since, but
        // the peer's memory is unmapped only after `unmap_withdrawn` has released what is held
        // back.
        unsafe {
            if whole {
                memory::copy(dst, payload.as_ptr(), len);
            } else {
                let mut pieces: Vec<usize> = (0..len).collect();
                shuffle(&mut pieces, order);
                for at in pieces {
                    memory::copy_byte(dst.add(at), payload.as_ptr().add(at));
                }
            }
        }
        fence(Ordering::Release);
        if let Some(cqe) = cqe {
            self.write_cqe(qp, cqe);
        }
    }
}

/// Returns the word whose memory image starts at `at`.
fn word(bytes: &[u8; cqe::LEN], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}
