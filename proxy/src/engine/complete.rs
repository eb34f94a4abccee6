//! From completions to acknowledgements.

use oxshmem_system::words::{low32, native};

use super::options::{Acknowledgement, Results, acknowledgement};
use super::queue::{End, Pending, Posted, Work};
use super::state::{Engine, FAILED};
use crate::descriptor::Landing;
use crate::work::{Completion, Status};

impl Engine {
    /// Takes a completion in.
    pub fn complete(&mut self, completion: &Completion, results: &mut dyn Results) {
        let Completion { qp, id, status } = *completion;
        if qp as usize >= self.queues.len() {
            tracing::error!(qp, id, "a completion of a queue pair that does not exist");
            return;
        }
        // All before it have succeeded, whatever became of it.
        let oldest = self.queues[qp as usize].oldest();
        let ended = (id + u64::from(status == Status::Success)).saturating_sub(oldest);
        for _ in 0..ended {
            let Some(front) = self.queues[qp as usize].posted.pop_front() else { break };
            self.outstanding -= 1;
            self.succeed(qp, &front, results);
        }
        if let Status::Failed { what, syndrome, vendor } = status {
            self.lose(qp, id, what, syndrome, vendor);
        }
        self.list(qp);
        self.advance();
    }

    pub(super) fn succeed(&mut self, qp: u32, posted: &Posted, results: &mut dyn Results) {
        match posted.end {
            End::Plain => {}
            End::Staged { slot } => self.pool.release(slot),
            End::Land { landing, swap } => {
                if swap {
                    let seen = low32(results.load(landing.slot));
                    results.store(landing.slot, u64::from(seen.swap_bytes()));
                }
                self.acknowledge(landing, false);
            }
            End::Loop { index } => {
                let seen = results.load(self.options.slots + index);
                let step = &mut self.loops[index as usize];
                if seen != step.guess {
                    step.guess = seen;
                    let work = Work::Request(self.step(qp, index), posted.end);
                    let again = Pending { work, fence: false, descriptor: posted.descriptor };
                    // In front: a fenced request may wait for this loop.
                    self.queues[qp as usize].pending.push_front(again);
                    return;
                }
                let (address, mut value) = (step.target.address, seen);
                for (member, descriptor) in std::mem::take(&mut step.members) {
                    if let Some(landing) = member.landing {
                        results.store(landing.slot, member.result(value));
                        self.acknowledge(landing, false);
                    }
                    value = member.apply(value);
                    self.ended(descriptor);
                }
                self.queues[qp as usize].left = (address, value);
                return self.end_loop(qp, index);
            }
        }
        self.ended(posted.descriptor);
    }

    pub(super) fn end_loop(&mut self, qp: u32, index: u32) {
        self.free_loops.push(index);
        let word = self.loops[index as usize].target.address;
        let loops = &mut self.queues[qp as usize].loops;
        if let Some(at) = loops.iter().position(|busy| *busy == word) {
            loops.swap_remove(at);
        }
        for blocked in std::mem::take(&mut self.blocked) {
            self.list(blocked);
        }
    }

    pub(super) fn acknowledge(&mut self, landing: Landing, failed: bool) {
        let value = acknowledgement(landing.lap, failed);
        self.acknowledgements.push(Acknowledgement { slot: landing.slot, value });
    }

    /// Notes that one request of a descriptor has ended.
    pub(super) fn ended(&mut self, descriptor: u64) {
        if let Some(requests) = self.window.get_mut(native(descriptor - self.completed)) {
            *requests -= 1;
        }
    }

    pub(super) fn advance(&mut self) {
        while self.window.front().is_some_and(|requests| requests & !FAILED == 0) {
            self.window.pop_front();
            self.completed += 1;
        }
    }
}
