//! Errors: what threads know of them, what they record, and what is left behind where nothing went
//! wrong.

use crate::interface::{Kind, QpPlace};
use crate::world::World;

/// `abi::kErrorValid`, and `abi::ErrorCode::completion`.
const VALID: u32 = 2;
const COMPLETION: u32 = 5;
/// `abi::kAbortJob`.
const ABORT_JOB: u32 = 2;

impl World {
    /// A word changes in which a thread records an error.
    pub(crate) fn note_error(&mut self, word: u32, new: u64) {
        let address = self.memory.base + u64::from(word) * 8;
        if self.program.fails == 0 && self.program.deadlines == 0 {
            self.fail(format!("an error is recorded: {} becomes {new:#x}", self.memory.describe(address)));
        }
        // `abort` in the lower half, `claimed` above it.
        if let Some(pe) = self.control_at.iter().position(|&at| at == address) {
            self.has_error[pe] = new != 0;
            self.job_over[pe] |= new as u32 >= ABORT_JOB;
        }
    }

    /// Returns whether an error of a PE is recorded, or about to be.
    pub(crate) fn knows_of_error(&self, pe: u8) -> bool {
        self.has_error[usize::from(pe)]
            || self.qps.iter().any(|qp| qp.place.pe == u32::from(pe) && self.is_broken(&qp.place))
    }

    fn is_broken(&self, place: &QpPlace) -> bool {
        self.memory.load32(place.breakage) != 0
    }

    /// Everything has ended: what is left over?
    pub(crate) fn check_end(&mut self) {
        let lost = self.operations.iter().position(|operation| {
            let has_failed = || {
                let pe = u32::from(self.threads[operation.thread].pe);
                self.qps.iter().any(|qp| {
                    let is_used = qp.place.pe == pe && qp.place.peer == operation.pe;
                    is_used && (!qp.errors.is_empty() || self.is_broken(&qp.place))
                })
            };
            !operation.has_landed() && !has_failed()
        });
        if let Some(lost) = lost {
            let who = self.who(self.operations[lost].thread);
            self.fail(format!("operation {} of {who} is never executed, though all threads have returned", lost + 1));
        }
        self.check_landing_slots();
        for index in 0..self.qps.len() {
            let place = self.qps[index].place;
            self.check_record(index, place.breakage, place.breakage + 8);
            let control = self.control_at[place.pe as usize];
            self.check_record(index, control + 4, control + 8);
        }
    }

    /// Every landing slot is free again, unless a deadline has passed: then the HCA may still write
    /// to it.
    fn check_landing_slots(&mut self) {
        let taken = self.memory.ranges.iter().filter(|range| range.kind == Kind::Laps).find_map(|range| {
            let is_kept = self.job_over[usize::from(range.owner)];
            let mut words = (0..range.pieces).map(|piece| range.start + u64::from(piece * range.piece));
            words.find(|&word| !is_kept && !self.memory.load32(word).is_multiple_of(2))
        });
        if let Some(word) = taken {
            self.fail(format!("a landing slot is never given back: {} is odd", self.memory.describe(word)));
        }
    }

    /// Looks at an `abi::ErrorRecord`, valid if the word `claimed` says so: if it is about a
    /// completion of this QP, it says what the HCA has said of one request.
    fn check_record(&mut self, index: usize, claimed: u64, at: u64) {
        let qp = &self.qps[index];
        let (code, qpn) = (self.memory.load32(at), self.memory.load32(at + 12));
        if self.memory.load32(claimed) != VALID || code != COMPLETION || qpn != qp.place.qpn {
            return;
        }
        let block = self.memory.words[self.memory.word_of(at + 16) as usize];
        let syndrome = self.memory.load32(at + 40);
        if !qp.errors.iter().any(|&(first, theirs)| first == block && u32::from(theirs) == syndrome) {
            self.fail(format!(
                "{} says that block {block} has failed with syndrome {syndrome:#04x}, which the HCA has never said of it",
                self.memory.describe(at)
            ));
        }
    }
}
