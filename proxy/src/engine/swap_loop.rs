//! Loops of compare-and-swaps, which do the work of atomics that the card lacks.

use crate::descriptor::Landing;
use crate::work::{Atomic, Remote, Width};

/// An atomic that is done by a loop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Swapped {
    /// The aligned eight bytes.
    pub(super) target: Remote,
    /// Where the operand is in them, bits.
    pub(super) shift: u32,
    pub(super) width: Width,
    pub(super) operands: Atomic,
    pub(super) landing: Option<Landing>,
}

impl Swapped {
    pub(super) fn mask(&self) -> u64 {
        self.width.bits() << self.shift
    }

    /// Returns what the eight bytes become.
    pub(super) fn apply(&self, old: u64) -> u64 {
        let mask = self.mask();
        let new = self.operands.apply((old & mask) >> self.shift);
        old & !mask | new << self.shift & mask
    }

    pub(super) fn result(&self, old: u64) -> u64 {
        (old & self.mask()) >> self.shift
    }
}

/// A compare-and-swap loop.
#[derive(Debug, Default)]
pub(super) struct Loop {
    /// The aligned eight bytes.
    pub(super) target: Remote,
    /// What they are believed to be.
    pub(super) guess: u64,
    /// The atomics it does, in order, with their descriptors.
    pub(super) members: Vec<(Swapped, u64)>,
}

impl Loop {
    /// Returns what the eight bytes become.
    pub(super) fn next(&self) -> u64 {
        self.members.iter().fold(self.guess, |value, (member, _)| member.apply(value))
    }
}
