//! The atomics that are measured, and what they should leave behind.

use clap::ValueEnum;

use crate::pattern::word;

/// An atomic operation on a 64-bit word; numbered as in `kernels/atomic.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
#[repr(i32)]
#[allow(missing_docs)]
pub enum AtomicOp {
    Inc = 0,
    FetchInc = 1,
    Add = 2,
    FetchAdd = 3,
    Set = 4,
    Swap = 5,
    CompareSwap = 6,
    And = 7,
    FetchAnd = 8,
    Or = 9,
    FetchOr = 10,
    Xor = 11,
    FetchXor = 12,
    Fetch = 13,
}

impl AtomicOp {
    /// Returns the name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns whether it fetches what was there before.
    pub fn fetches(self) -> bool {
        !matches!(self, Self::Inc | Self::Add | Self::Set | Self::And | Self::Or | Self::Xor)
    }

    /// Returns what word `e` is before any operation.
    fn initial(self, seed: u64, e: u64) -> u64 {
        match self {
            Self::And | Self::FetchAnd => u64::MAX,
            Self::Or | Self::FetchOr => 0,
            _ => word(seed, 0, e),
        }
    }

    /// Returns how many words `iterations` iterations change that change `elements` words each. A
    /// word has 64 bits for and, or to change, so each 64 iterations of these have words of their
    /// own: every operation leaves a trace.
    pub fn words(self, elements: u64, iterations: u64) -> u64 {
        elements.saturating_mul(if self.changes_one_bit() {
            iterations.div_ceil(ITERATIONS_OF_A_WORD).max(1)
        } else {
            1
        })
    }

    fn changes_one_bit(self) -> bool {
        matches!(self, Self::And | Self::FetchAnd | Self::Or | Self::FetchOr)
    }

    /// Returns the first of the words that iteration `i` changes.
    fn place(self, i: u64, elements: u64) -> u64 {
        if self.changes_one_bit() { i / ITERATIONS_OF_A_WORD * elements } else { 0 }
    }

    /// Returns the operand of iteration `i` on word `e`. Those of and, or change one bit each.
    fn operand(self, seed: u64, i: u64, e: u64) -> u64 {
        match self {
            Self::And | Self::FetchAnd => !(1 << ((i + e) % 64)),
            Self::Or | Self::FetchOr => 1 << ((i + e) % 64),
            _ => word(seed, i + 1, e),
        }
    }

    fn apply(self, old: u64, operand: u64) -> u64 {
        match self {
            Self::Inc | Self::FetchInc => old.wrapping_add(1),
            Self::Add | Self::FetchAdd => old.wrapping_add(operand),
            // The comparison is with the value that is there.
            Self::Set | Self::Swap | Self::CompareSwap => operand,
            Self::And | Self::FetchAnd => old & operand,
            Self::Or | Self::FetchOr => old | operand,
            Self::Xor | Self::FetchXor => old ^ operand,
            Self::Fetch => old,
        }
    }
}

/// Iterations of and, or on one word: each changes another of its bits.
const ITERATIONS_OF_A_WORD: u64 = 64;

/// What `iterations` iterations on each of `elements` words should leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The words before.
    pub initial: Vec<u64>,
    /// The words after.
    pub last: Vec<u64>,
    /// What each operation fetched, by iteration and word; nothing for operations that fetch
    /// nothing.
    pub fetched: Vec<u64>,
}

impl Expected {
    /// Applies the operations.
    pub fn new(op: AtomicOp, seed: u64, elements: u64, iterations: u64) -> Self {
        let initial: Vec<u64> = (0..op.words(elements, iterations)).map(|e| op.initial(seed, e)).collect();
        let mut last = initial.clone();
        let mut fetched = Vec::new();
        for i in 0..iterations {
            let words = last.iter_mut().skip(op.place(i, elements) as usize);
            for (e, value) in (0..elements).zip(words) {
                if op.fetches() {
                    fetched.push(*value);
                }
                *value = op.apply(*value, op.operand(seed, i, e));
            }
        }
        Self { initial, last, fetched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_count_and_fetch_every_value_once() {
        let expected = Expected::new(AtomicOp::FetchInc, 7, 3, 5);
        for e in 0..3 {
            assert_eq!(expected.last[e], expected.initial[e].wrapping_add(5));
            let fetched: Vec<u64> =
                expected.fetched.iter().skip(e).step_by(3).map(|v| v.wrapping_sub(expected.initial[e])).collect();
            assert_eq!(fetched, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn swaps_hand_each_operand_to_the_next() {
        let expected = Expected::new(AtomicOp::CompareSwap, 7, 2, 3);
        assert_eq!(expected.last, [word(7, 3, 0), word(7, 3, 1)]);
        assert_eq!(expected.fetched[2..4], [word(7, 1, 0), word(7, 1, 1)]);
    }

    #[test]
    fn no_operation_could_be_lost_unseen() {
        use AtomicOp::{Add, And, Inc, Or, Set, Xor};
        for op in [Inc, Add, Set, And, Or, Xor] {
            for iterations in 1..200 {
                let (less, all) = (Expected::new(op, 9, 4, iterations - 1), Expected::new(op, 9, 4, iterations));
                let before = less.last.iter().chain(&all.initial[less.last.len()..]);
                let changed = before.zip(&all.last).filter(|(a, b)| a != b).count();
                assert_eq!(changed, 4, "{op:?}, iteration {iterations}");
            }
        }
    }

    #[test]
    fn operations_without_result_fetch_nothing() {
        let expected = Expected::new(AtomicOp::Xor, 7, 2, 3);
        assert_eq!(expected.fetched, [0; 0]);
        assert_eq!(expected.last[0], word(7, 0, 0) ^ word(7, 1, 0) ^ word(7, 2, 0) ^ word(7, 3, 0));
    }
}
