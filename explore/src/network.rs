//! What is on its way in the network: queue pairs, requests that are not visible yet, and what
//! programs have announced.

use crate::interface::QpPlace;

/// A CQE to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion {
    /// The request's first block, and the end of its last.
    pub first: u64,
    pub end: u64,
    /// What is wrong with it; 0: nothing.
    pub syndrome: u8,
}

/// Bytes that one of several cards has written to a peer, and that are still on their way to its
/// memory.
#[derive(Debug)]
pub(crate) struct Written {
    pub card: u32,
    pub peer: u32,
    pub address: u64,
    pub bytes: Vec<u8>,
    /// The announced operations that the bytes belong to, with the bytes of each.
    pub covers: Vec<(usize, u64)>,
    pub priority: u64,
}

/// A queue pair as its HCA knows it.
#[derive(Debug)]
pub(crate) struct Qp {
    pub place: QpPlace,
    /// A doorbell rang, and the record was not read since.
    pub look: bool,
    /// Blocks that the record has announced.
    pub announced: u64,
    /// Blocks that were executed.
    pub executed: u64,
    /// Blocks that a CQE has reported.
    pub reported: u64,
    /// The next request is strongly ordered, and waits for what is under way.
    pub waits: bool,
    /// CQEs to be written.
    pub completions: Vec<Completion>,
    /// The error CQEs so far: the request's first block, and the syndrome. No request is carried
    /// out after the first.
    pub errors: Vec<(u64, u8)>,
    /// The priorities of its steps: look, execute, complete.
    pub priorities: [u64; 3],
}

impl Qp {
    pub fn new(place: QpPlace, priorities: [u64; 3]) -> Self {
        Self {
            place,
            look: false,
            announced: place.posted,
            executed: place.posted,
            reported: place.posted,
            waits: false,
            completions: Vec::new(),
            errors: Vec::new(),
            priorities,
        }
    }

    /// Returns whether a word is of the next work request, whose length is not known: of any of the
    /// next four blocks.
    pub fn has_word(&self, word: u32, base: u64) -> bool {
        let depth = 1u64 << self.place.depth_log2;
        let into = (base + u64::from(word) * 8).wrapping_sub(self.place.wq);
        into < depth * 64 && (into / 64).wrapping_sub(self.executed) % depth < 4
    }
}

/// What a flight does when it lands.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// Bytes arrive at the peer; the announced operations that they belong to, with the bytes of
    /// each.
    Write { address: u64, bytes: Vec<u8>, covers: Vec<(usize, u64)> },
    /// Bytes of the peer arrive here.
    Read { from: u64, to: u64, bytes: usize },
    /// An atomic is done at the peer, and the old value arrives here.
    Atomic {
        address: u64,
        width: usize,
        change: Change,
        result: Option<u64>,
        big_endian: bool,
        operation: Option<usize>,
    },
}

/// What an atomic does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    Add { value: u64, boundary: u64 },
    Swap { swap: u64, compare: u64, swap_mask: u64, compare_mask: u64 },
}

impl Change {
    pub fn apply(self, old: u64) -> u64 {
        match self {
            Self::Add { value, boundary: 0 } => old.wrapping_add(value),
            Self::Add { value, boundary: u64::MAX } => old ^ value,
            Self::Add { value, boundary } => {
                let (mut sum, mut carry) = (0, 0);
                for bit in 0..64 {
                    let all = (old >> bit & 1) + (value >> bit & 1) + carry;
                    sum |= (all & 1) << bit;
                    carry = if boundary >> bit & 1 != 0 { 0 } else { all >> 1 };
                }
                sum
            }
            Self::Swap { swap, compare, swap_mask, compare_mask } => {
                if (old ^ compare) & compare_mask == 0 {
                    old & !swap_mask | swap & swap_mask
                } else {
                    old
                }
            }
        }
    }
}

/// A request that was executed, and is not visible yet.
#[derive(Debug, Clone)]
pub(crate) struct Flight {
    pub qp: usize,
    pub index: u64,
    pub effect: Effect,
    pub priority: u64,
}

/// What a program has announced.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub thread: usize,
    pub pe: u32,
    /// Fences that its thread had called.
    pub epoch: u32,
    /// Where, as an offset in the peer's heap.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// An atomic addition of `bytes`.
    pub add: bool,
    /// Bytes that were executed and that have landed, as bits.
    pub executed: u64,
    pub landed: u64,
}

impl Operation {
    pub fn all(&self) -> u64 {
        if self.bytes.len() == 64 { u64::MAX } else { (1 << self.bytes.len()) - 1 }
    }

    pub fn has_landed(&self) -> bool {
        self.landed == self.all()
    }
}
