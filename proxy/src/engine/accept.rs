//! From descriptors to requests: which queue pair each goes to, and in how many pieces.

use oxshmem_system::words::{low32, native};

use super::options::{EngineOptions, LANDING_BYTES, LOOPS};
use super::queue::{End, Pending, Work};
use super::state::Engine;
use super::swap_loop::Swapped;
use crate::descriptor::{Descriptor, Landing, Request, Slot};
use crate::work::{Atomic, Capabilities, Local, Operation, Remote, Transfer, Width};

/// An atomic, and where its result goes: nowhere if no thread waits for it.
pub(super) struct Fetched {
    pub operands: Atomic,
    pub width: Width,
    pub landing: Option<Landing>,
    pub target: Remote,
}

impl Engine {
    /// Takes the next descriptor of the ring, [`has_room`](Self::has_room) given.
    pub fn accept(&mut self, slot: &Slot) {
        let number = self.completed + self.window.len() as u64;
        self.window.push_back(0);
        match Descriptor::decode(slot) {
            Ok(descriptor) => self.accept_decoded(number, &descriptor),
            Err(error) => {
                tracing::error!(%error, number, "a slot of the ring was not written by the device API");
                self.refuse(number, 0);
            }
        }
        self.advance();
    }

    #[inline(always)]
    pub(super) fn accept_decoded(&mut self, number: u64, descriptor: &Descriptor) {
        let Descriptor { pe, queue, ordered, request } = *descriptor;
        if request == Request::Fence {
            let per_peer = self.options.striping.per_peer() as usize;
            for queue in self.queues.iter_mut().skip(queue as usize).step_by(per_peer) {
                queue.fence_next = true;
            }
            return;
        }
        if request == Request::Flush {
            return self.flush(number);
        }
        let Some(qp) = self.qp(pe, queue) else {
            tracing::error!(pe, queue, number, "a slot of the ring names a queue pair that does not exist");
            return self.refuse(number, pe);
        };
        if self.queues[qp as usize].failed {
            let landing = match request {
                Request::Fetch { landing, .. } => Some(landing),
                Request::Atomic { landing, .. } => landing,
                _ => None,
            };
            self.fail(number, pe, landing);
            return;
        }
        if let Request::Transfer(transfer) = request
            && Operation::Transfer(transfer).bytes() == 0
        {
            // Nothing is posted, so a fence is for the next request.
            return;
        }
        let fence = std::mem::take(&mut self.queues[qp as usize].fence_next) || ordered;
        self.note_write(qp, &request);
        match request {
            Request::Transfer(Transfer::Write { source, target }) if source.length >= self.stage_from => {
                let put = self.pool.open(qp, source, target);
                self.enqueue(qp, number, Work::Staged { put }, fence);
            }
            Request::Transfer(Transfer::Write { source, target }) => {
                self.cut(source, target, |engine, source, target, first| {
                    engine.transfer(qp, number, Transfer::Write { source, target }, fence && first);
                });
            }
            Request::Transfer(Transfer::Read { target, source }) => {
                self.cut(target, source, |engine, target, source, first| {
                    engine.transfer(qp, number, Transfer::Read { target, source }, fence && first);
                });
            }
            Request::Transfer(inline) => self.transfer(qp, number, inline, fence),
            Request::Fetch { landing, bytes, source } => {
                let target = self.landing(qp, landing.slot, bytes);
                let end = End::Land { landing, swap: false };
                let operation = Operation::Transfer(Transfer::Read { target, source });
                self.enqueue(qp, number, Work::Request(operation, end), fence);
            }
            Request::Atomic { operands, width, landing, target } => {
                self.atomic((qp, number), Fetched { operands, width, landing, target }, fence);
            }
            Request::Fence | Request::Flush => {}
        }
    }

    /// Notes where a request writes, for the next flush.
    #[inline(always)]
    fn note_write(&mut self, qp: u32, request: &Request) {
        let target = match request {
            Request::Transfer(Transfer::Write { target, .. } | Transfer::WriteInline { target, .. })
            | Request::Atomic { target, .. } => *target,
            _ => return,
        };
        if self.queues[qp as usize].written.replace(target).is_none() {
            self.written.push(qp);
        }
    }

    /// Reads a byte of what was last written through each queue pair that was written through since
    /// the last flush. Descriptor `number` waits for all of them.
    fn flush(&mut self, number: u64) {
        for qp in std::mem::take(&mut self.written) {
            let Some(source) = self.queues[qp as usize].written.take() else { continue };
            if self.queues[qp as usize].failed {
                continue;
            }
            let target = self.landing(qp, self.unread_slot(), 1);
            self.transfer(qp, number, Transfer::Read { target, source }, false);
        }
    }

    /// Calls `each` for pieces of a transfer, none longer than the backend's messages.
    pub(super) fn cut(&mut self, local: Local, remote: Remote, mut each: impl FnMut(&mut Self, Local, Remote, bool)) {
        let longest = self.capabilities.max_message.max(1);
        let (mut local, mut remote, mut left, mut first) = (local, remote, local.length, true);
        while left != 0 {
            local.length = left.min(longest);
            each(self, local, remote, first);
            left -= local.length;
            local.address = local.address.wrapping_add(local.length.into());
            remote.address += u64::from(local.length);
            first = false;
        }
    }

    /// Returns the last slot, which is for results that no thread waits for.
    fn unread_slot(&self) -> u32 {
        self.options.slots + LOOPS
    }

    /// Returns a landing slot as requests of queue pair `qp` name it.
    pub(super) fn landing(&self, qp: u32, slot: u32, bytes: u32) -> Local {
        let EngineOptions { landing, striping, .. } = &self.options;
        let Local { address, key, .. } = landing.on(striping.card(qp));
        Local { address: address.wrapping_add(u64::from(slot) * LANDING_BYTES), length: bytes, key }
    }

    #[inline(always)]
    pub(super) fn transfer(&mut self, qp: u32, number: u64, transfer: Transfer, fence: bool) {
        self.enqueue(qp, number, Work::Request(Operation::Transfer(transfer), End::Plain), fence);
    }

    /// Queues the atomic of descriptor `number` on queue pair `qp`.
    pub(super) fn atomic(&mut self, (qp, number): (u32, u64), atomic: Fetched, fence: bool) {
        let Fetched { operands, width, landing, target } = atomic;
        let Capabilities { width_four, masked, four_is_big_endian, .. } = self.capabilities;
        if (width == Width::Eight || width_four) && (masked || !operands.is_masked(width)) {
            let slot = landing.map_or(self.unread_slot(), |landing| landing.slot);
            let result = self.landing(qp, slot, width.bytes());
            let swap = width == Width::Four && four_is_big_endian;
            let end = landing.map_or(End::Plain, |landing| End::Land { landing, swap });
            let operation = Operation::Atomic { operands, width, result, target };
            self.enqueue(qp, number, Work::Request(operation, end), fence);
        } else {
            let aligned = target.address & !7;
            let shift = low32(target.address - aligned) * 8;
            let target = Remote { address: aligned, key: target.key };
            self.enqueue(qp, number, Work::Loop(Swapped { target, shift, width, operands, landing }), fence);
        }
    }

    #[inline(always)]
    pub(super) fn enqueue(&mut self, qp: u32, descriptor: u64, work: Work, fence: bool) {
        if let Some(requests) = self.window.get_mut(native(descriptor - self.completed)) {
            *requests += 1;
        }
        let depth = self.capabilities.send_depth as usize;
        let queue = &mut self.queues[qp as usize];
        match work {
            // Nothing is before it.
            Work::Request(operation, end)
                if queue.pending.is_empty() && queue.loops.is_empty() && queue.has_room(depth) =>
            {
                queue.push(operation, end, fence, descriptor);
                self.outstanding += 1;
            }
            _ => queue.pending.push_back(Pending { work, fence, descriptor }),
        }
        self.list(qp);
    }
}
