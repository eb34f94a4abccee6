//! Failures: what ends when a request, a copy or a queue pair fails, and what is kept for the
//! report.

use std::collections::VecDeque;

use oxshmem_system::words::native;

use super::options::Fault;
use super::queue::{End, Pending, Posted, Work};
use super::state::{Engine, FAILED};
use crate::descriptor::Landing;
use crate::work::{Failure, Operation};

/// The syndrome of a descriptor that cannot be carried out, as of a malformed WQE
/// (`MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR`).
const LOCAL_QP_OPERATION: u32 = 0x02;
/// The syndrome of a put whose source could not be copied (`MLX5_CQE_SYNDROME_LOCAL_PROT_ERR`): a
/// card that cannot read it says the same.
const LOCAL_PROTECTION: u32 = 0x04;

impl Engine {
    /// Waits no longer for the copies that are under way, which may be queued after what waits for
    /// the puts. What they are for is posted from its source, as is every put until the last of
    /// these copies has ended.
    pub fn give_up_copies(&mut self) {
        for qp in self.pool.give_up() {
            self.list(qp);
        }
    }

    /// Notes that a queue pair is in error from request `id` on.
    pub(super) fn lose(&mut self, qp: u32, id: u64, what: Failure, syndrome: u32, vendor: u32) {
        let pe = self.pe(qp);
        let queue = &mut self.queues[qp as usize];
        // A put that could not be copied leaves what is before it.
        if queue.failed && queue.posted.is_empty() && queue.pending.is_empty() {
            return;
        }
        queue.failed = true;
        queue.ready.clear();
        let (posted, pending) = (std::mem::take(&mut queue.posted), std::mem::take(&mut queue.pending));
        let cause = posted.front().map_or((0, 0), |first| (first.opcode, first.address));
        tracing::debug!(pe, qp, id, ?what, syndrome, vendor, "a queue pair failed");
        self.record(Fault { pe, qp, id, opcode: cause.0, address: cause.1, syndrome, vendor });
        self.outstanding -= posted.len();
        for Posted { descriptor, end, .. } in posted {
            self.lose_request(qp, descriptor, end);
        }
        self.lose_pending(qp, pending);
    }

    /// Notes that the source of a put could not be copied. What is before it on its queue pair goes
    /// on, as before a request that fails.
    pub(super) fn lose_put(&mut self, qp: u32, put: u32) {
        let pe = self.pe(qp);
        let queue = &mut self.queues[qp as usize];
        let is_put = |pending: &Pending| matches!(pending.work, Work::Staged { put: other } if other == put);
        let at = queue.pending.iter().position(is_put).unwrap_or(queue.pending.len());
        let lost = queue.pending.split_off(at);
        queue.failed = true;
        let id = queue.next_id;
        let rest = Operation::Transfer(self.pool.rest(put));
        let (opcode, address) = (rest.opcode(), rest.remote().address);
        tracing::debug!(pe, qp, address, "the source of a put could not be copied");
        self.record(Fault { pe, qp, id, opcode, address, syndrome: LOCAL_PROTECTION, vendor: 0 });
        self.lose_pending(qp, lost);
    }

    pub(super) fn lose_pending(&mut self, qp: u32, pending: VecDeque<Pending>) {
        for Pending { work, descriptor, .. } in pending {
            match work {
                Work::Request(_, end) => self.lose_request(qp, descriptor, end),
                Work::Loop(never_begun) => self.lose_descriptor(qp, descriptor, never_begun.landing),
                Work::Staged { put } => {
                    self.pool.close(put);
                    self.lose_descriptor(qp, descriptor, None);
                }
            }
        }
    }

    pub(super) fn lose_request(&mut self, qp: u32, descriptor: u64, end: End) {
        match end {
            End::Plain => self.lose_descriptor(qp, descriptor, None),
            End::Land { landing, .. } => self.lose_descriptor(qp, descriptor, Some(landing)),
            End::Staged { slot } => {
                // The card does not read for a queue pair in error.
                self.pool.release(slot);
                self.lose_descriptor(qp, descriptor, None);
            }
            End::Loop { index } => {
                for (member, descriptor) in std::mem::take(&mut self.loops[index as usize].members) {
                    self.lose_descriptor(qp, descriptor, member.landing);
                }
                self.end_loop(qp, index);
            }
        }
    }

    /// Notes that a request of a descriptor has ended, and the descriptor fails with it.
    pub(super) fn lose_descriptor(&mut self, qp: u32, descriptor: u64, landing: Option<Landing>) {
        self.ended(descriptor);
        self.fail(descriptor, self.pe(qp), landing);
    }

    /// Puts every queue pair in error: the backend is gone.
    pub fn lose_all(&mut self) {
        for qp in (0..).take(self.queues.len()) {
            let id = self.queues[qp as usize].oldest();
            self.lose(qp, id, Failure::Error, LOCAL_QP_OPERATION, 0);
        }
        self.advance();
    }

    pub(super) fn record(&mut self, fault: Fault) {
        if self.faults.iter().all(|known| known.pe != fault.pe) {
            self.faults.push(fault);
        }
    }

    /// Fails a descriptor, once however many of its requests do.
    pub(super) fn fail(&mut self, descriptor: u64, pe: u32, landing: Option<Landing>) {
        if let Some(requests) = self.window.get_mut(native(descriptor - self.completed))
            && *requests & FAILED == 0
        {
            *requests |= FAILED;
            self.failures += 1;
            self.last_failed = pe;
        }
        if let Some(landing) = landing {
            self.acknowledge(landing, true);
        }
    }

    /// Refuses a descriptor that cannot be carried out.
    pub(super) fn refuse(&mut self, descriptor: u64, pe: u32) {
        let pe = pe.min(self.options.n_pes.saturating_sub(1));
        self.record(Fault { pe, qp: 0, id: 0, opcode: 0, address: 0, syndrome: LOCAL_QP_OPERATION, vendor: 0 });
        self.fail(descriptor, pe, None);
    }
}
