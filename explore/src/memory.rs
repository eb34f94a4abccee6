//! Memory: words, what lies where, and the stores that are on their way to it.
//!
//! A store of a device thread becomes visible in up to two moves. At first only the thread sees it
//! (and threads that have met it at a barrier). Then it reaches the memory of the GPU: threads of
//! the same PE see it, and whatever reads this GPU's memory. A store to host memory or to a peer's
//! waits there once more, on its way over the bus, before the others see it.

use crate::interface::{HOST, Kind};
use oxshmem_system::mixing::{GOLDEN, scramble};

/// A piece of named memory.
#[derive(Debug, Clone)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    pub name: String,
    pub kind: Kind,
    pub owner: u8,
    pub piece: u32,
    pub pieces: u32,
}

/// How far a store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// In the buffer of the thread.
    Thread,
    /// In the GPU, on its way to other memory.
    Bus,
}

/// A store that has not reached its word yet.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub word: u32,
    /// Which bytes of the word, as bits.
    pub mask: u8,
    pub thread: u8,
    pub pe: u8,
    pub level: Level,
    /// All earlier stores that its thread has seen go first.
    pub release: bool,
    /// The doorbell register.
    pub doorbell: bool,
    pub value: u64,
    /// The threads that see it, as bits; of one on the bus, which all threads of its PE see, those
    /// that have seen it.
    pub seen_by: u64,
    /// The priority of the process that moves it on.
    pub priority: u64,
}

/// Returns the bits of a word that `mask`, one bit a byte, names.
#[inline]
pub fn spread(mask: u8) -> u64 {
    let mut bits = 0;
    for byte in 0..8 {
        if mask >> byte & 1 != 0 {
            bits |= 0xff << (byte * 8);
        }
    }
    bits
}

/// Returns what a word adds to the hash of all memory.
#[inline]
pub fn hash_of(word: u32, value: u64) -> u64 {
    scramble(value ^ u64::from(word).wrapping_mul(GOLDEN))
}

/// Values that a word had, newest last, with the time until which it had them.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub past: Vec<(u64, u64)>,
}

/// The words of all regions, and their owners.
#[derive(Debug)]
pub struct Memory {
    pub base: u64,
    pub image: Vec<u64>,
    pub words: Vec<u64>,
    /// Owner and kind of each word.
    pub about: Vec<(u8, Kind)>,
    pub ranges: Vec<Range>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    pub hash: u64,
}

impl Memory {
    pub fn new(base: u64, bytes: u64) -> Self {
        let words = (bytes / 8) as usize;
        Self {
            base,
            image: vec![0; words],
            words: vec![0; words],
            about: vec![(HOST, Kind::Word); words],
            ranges: Vec::new(),
            touched: Vec::new(),
            is_touched: vec![false; words],
            hash: 0,
        }
    }

    pub fn name(&mut self, range: Range) {
        let (first, last) = ((range.start - self.base) / 8, (range.end - self.base).div_ceil(8));
        for word in first..last {
            self.about[word as usize] = (range.owner, range.kind);
        }
        self.ranges.push(range);
    }

    /// Sets bytes of the image that every execution begins with.
    pub fn set_image(&mut self, address: u64, bytes: &[u8]) {
        for (index, &byte) in bytes.iter().enumerate() {
            let at = address + index as u64 - self.base;
            let (word, shift) = ((at / 8) as usize, at % 8 * 8);
            self.image[word] = self.image[word] & !(0xff << shift) | u64::from(byte) << shift;
        }
    }

    pub fn start(&mut self) {
        self.words.copy_from_slice(&self.image);
        self.touched.clear();
        self.is_touched.fill(false);
        self.hash = 0;
    }

    /// Makes all words what they were at the start.
    pub fn reset(&mut self) {
        for word in self.touched.drain(..) {
            self.words[word as usize] = self.image[word as usize];
            self.is_touched[word as usize] = false;
        }
        self.hash = 0;
    }

    /// Replaces a word; false if it had that value.
    #[inline]
    pub fn replace(&mut self, word: u32, value: u64) -> bool {
        let old = self.words[word as usize];
        if old == value {
            return false;
        }
        self.hash ^= hash_of(word, old) ^ hash_of(word, value);
        self.words[word as usize] = value;
        if !self.is_touched[word as usize] {
            self.is_touched[word as usize] = true;
            self.touched.push(word);
        }
        true
    }

    #[inline]
    pub fn word_of(&self, address: u64) -> u32 {
        ((address - self.base) / 8) as u32
    }

    /// Bytes from `address` on, as they are in memory.
    pub fn bytes(&self, address: u64, into: &mut [u8]) {
        for (index, byte) in into.iter_mut().enumerate() {
            let at = address - self.base + index as u64;
            *byte = (self.words[(at / 8) as usize] >> (at % 8 * 8)) as u8;
        }
    }

    pub fn load32(&self, address: u64) -> u32 {
        (self.words[self.word_of(address) as usize] >> ((address % 8) * 8)) as u32
    }

    /// Returns what lies at an address, in words.
    pub fn describe(&self, address: u64) -> String {
        // The latest name is the narrowest.
        let Some(range) = self.ranges.iter().rev().find(|range| (range.start..range.end).contains(&address)) else {
            return format!("{:#x} (no named memory)", address.wrapping_sub(self.base));
        };
        let (piece, within) =
            ((address - range.start) / u64::from(range.piece), (address - range.start) % u64::from(range.piece));
        let owner = if range.owner == HOST { "host memory".to_owned() } else { format!("PE {}", range.owner) };
        let index = if range.pieces > 1 { format!("[{piece}]") } else { String::new() };
        let offset = if within != 0 { format!(" + {within}") } else { String::new() };
        format!("{}{index}{offset} ({owner})", range.name)
    }
}
