//! From requests to chains: what may be posted next on each queue pair, and the copies that staged
//! puts wait for.

use oxshmem_system::words::native;

use super::queue::{End, Pending, Stop, Work};
use super::state::Engine;
use crate::staging::{Copied, CopyRequest, Owner};
use crate::work::{Atomic, Operation, Width, WorkRequest};

impl Engine {
    #[inline]
    pub(super) fn list(&mut self, qp: u32) {
        let queue = &mut self.queues[qp as usize];
        if !(queue.listed || queue.pending.is_empty() && queue.ready.is_empty()) {
            queue.listed = true;
            self.listed.push_back(qp);
        }
    }

    /// Replaces `chain` by the next requests to post together, and says to which queue pair; `None`
    /// if there is nothing to post now. They count as posted.
    pub fn chain(&mut self, chain: &mut Vec<WorkRequest>) -> Option<u32> {
        while let Some(qp) = self.listed.pop_front() {
            self.queues[qp as usize].listed = false;
            let stop = if self.queues[qp as usize].pending.is_empty() { Stop::Nothing } else { self.fill(qp) };
            if stop == Stop::Loop {
                self.blocked.push(qp);
            }
            let queue = &mut self.queues[qp as usize];
            let Some(last) = queue.ready.last_mut() else { continue };
            last.signaled = true;
            chain.clear();
            std::mem::swap(chain, &mut queue.ready);
            if stop == Stop::Nothing && queue.has_room(self.capabilities.send_depth as usize) {
                self.list(qp);
            }
            return Some(qp);
        }
        None
    }

    /// Moves what may be posted from `pending` to `ready`. Why it stopped.
    pub(super) fn fill(&mut self, qp: u32) -> Stop {
        while self.queues[qp as usize].has_room(self.capabilities.send_depth as usize) {
            let queue = &mut self.queues[qp as usize];
            let Some(next) = queue.pending.front() else { break };
            let waits = match &next.work {
                // A loop's next step.
                Work::Request(_, End::Loop { .. }) => false,
                Work::Request(..) | Work::Staged { .. } => !queue.loops.is_empty(),
                Work::Loop(new) => {
                    let conflicts =
                        if next.fence { !queue.loops.is_empty() } else { queue.loops.contains(&new.target.address) };
                    conflicts || self.free_loops.is_empty()
                }
            };
            if waits {
                return Stop::Loop;
            }
            let Pending { work, fence, descriptor } = *next;
            let (operation, end) = match work {
                Work::Staged { put } => {
                    if !self.fill_piece(qp, put) {
                        return Stop::Copy;
                    }
                    continue;
                }
                Work::Request(operation, end) => {
                    queue.pending.pop_front();
                    (operation, end)
                }
                Work::Loop(new) => {
                    let Some(index) = self.free_loops.pop() else { break };
                    queue.pending.pop_front();
                    let address = new.target.address;
                    queue.loops.push(address);
                    let slot = &mut self.loops[index as usize];
                    slot.target = new.target;
                    slot.guess = if queue.left.0 == address { queue.left.1 } else { 0 };
                    slot.members.push((new, descriptor));
                    (self.step(qp, index), End::Loop { index })
                }
            };
            self.queues[qp as usize].push(operation, end, fence, descriptor);
            self.outstanding += 1;
        }
        Stop::Nothing
    }

    /// Moves the next piece of the put that is first in `pending` to `ready`, if it is there.
    pub(super) fn fill_piece(&mut self, qp: u32, put: u32) -> bool {
        let Some(piece) = self.pool.next_piece(put, self.capabilities.max_message) else { return false };
        let queue = &mut self.queues[qp as usize];
        let Some(first) = queue.pending.front_mut() else { return false };
        let descriptor = first.descriptor;
        let fence = std::mem::take(&mut first.fence);
        if piece.last {
            queue.pending.pop_front();
        } else if let Some(requests) = self.window.get_mut(native(descriptor - self.completed)) {
            *requests += 1;
        }
        let end = piece.slot.map_or(End::Plain, |slot| End::Staged { slot });
        queue.push(Operation::Transfer(piece.transfer), end, fence, descriptor);
        self.outstanding += 1;
        true
    }

    /// Returns the next copy to start, if a put waits for one and there is a free bounce slot.
    pub fn next_copy(&mut self) -> Option<CopyRequest> {
        self.pool.next_copy()
    }

    /// Returns whether copies are under way.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.pool.under_way() != (0, 0)
    }

    /// Returns whether copies are under way that were not given up.
    #[must_use]
    pub fn awaits_copies(&self) -> bool {
        self.pool.under_way().0 != 0
    }

    /// Takes the end of a copy in. If it failed, its put fails, and so does everything that follows
    /// it on its queue pair.
    pub fn copied(&mut self, copied: &Copied) {
        let Some(Owner { qp, put }) = self.pool.copied(copied.slot) else { return };
        match copied.outcome {
            Ok(()) => self.list(qp),
            Err(_) => self.lose_put(qp, put),
        }
        self.advance();
    }

    /// Returns the next compare-and-swap of a loop. Atomics on its word that are next on the queue
    /// pair join it.
    pub(super) fn step(&mut self, qp: u32, index: u32) -> Operation {
        let step = &mut self.loops[index as usize];
        let pending = &mut self.queues[qp as usize].pending;
        while let Some(&Pending { work: Work::Loop(next), fence: false, descriptor }) = pending.front()
            && next.target.address == step.target.address
        {
            step.members.push((next, descriptor));
            pending.pop_front();
        }
        let (compare, swap, target) = (step.guess, step.next(), step.target);
        let result = self.landing(qp, self.options.slots + index, 8);
        Operation::Atomic { operands: Atomic::compare_swap(compare, swap), width: Width::Eight, result, target }
    }
}
