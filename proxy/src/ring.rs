//! The ring's reading end.
//!
//! Any number of device threads write, one thread reads. A writer takes indices by one atomic
//! addition, waits until they are free, and stores its slots' words, each of them in one 64-bit
//! store; there is no separate "valid" store. Indices have 64 bits and never wrap.
//!
//! # Why a torn slot is never taken
//! A slot is taken when all its words carry the tag of its lap. Every word is stored exactly once a
//! lap, and tags of neighbouring laps differ. So a word with the right tag was stored in this lap
//! or two or more laps ago. The latter cannot be: the writer of a lap begins after the reader has
//! published that it took the lap before, which it does after seeing all words of that lap; a word
//! never returns to an earlier value. Words may arrive in any order, and slots as well.
//!
//! # Order
//! A writer fences (release, system scope) before its first store. The reader loads relaxed and
//! fences (acquire) once the tags are right, so it sees what the writer did before. It takes slots
//! in the order of their indices; of two descriptors of a thread, or of threads that synchronise,
//! the first has the lower index.

use crate::descriptor::{Slot, WORDS, seal, tag, unseal};
use crate::prefetch;
use oxshmem_system::words::native;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// How many slots ahead are fetched.
const AHEAD: u64 = 16;

/// The slots' memory, as words.
pub trait Words {
    /// Loads word `index`, relaxed.
    fn load(&self, index: usize) -> u64;
    /// Makes sure that what is loaded after this was stored not before what is loaded before it.
    fn acquire(&self);
    /// Says that word `index` will be loaded soon.
    fn prefetch(&self, index: usize) {
        let _ = index;
    }
}

/// Memory that device code writes.
#[derive(Debug)]
pub struct RawWords(*const AtomicU64);

// SAFETY: the memory is accessed by atomic loads alone.
unsafe impl Send for RawWords {}

impl RawWords {
    /// Returns the words at `base`.
    ///
    /// # Safety
    /// As many 64-bit words as are loaded stay mapped there while this lives, and are written by
    /// atomic or device stores only.
    #[must_use]
    pub unsafe fn new(base: *const u64) -> Self {
        Self(base.cast())
    }
}

impl Words for RawWords {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        // SAFETY: the constructor's promise.
        unsafe { &*self.0.add(index) }.load(Ordering::Relaxed)
    }

    #[inline]
    fn acquire(&self) {
        fence(Ordering::Acquire);
    }

    #[inline]
    fn prefetch(&self, index: usize) {
        prefetch::to_read(self.0.wrapping_add(index));
    }
}

/// The reading end of a ring of `1 << log_depth` slots, whose memory was zero at first.
#[derive(Debug)]
pub struct Reader<M> {
    words: M,
    log_depth: u32,
    taken: u64,
}

impl<M: Words> Reader<M> {
    /// Returns a reader that has taken nothing.
    pub fn new(words: M, log_depth: u32) -> Self {
        Self::behind(words, log_depth, 0)
    }

    /// Returns a reader that has taken `taken` slots, of a ring whose memory holds what that
    /// leaves.
    pub fn behind(words: M, log_depth: u32, taken: u64) -> Self {
        Self { words, log_depth, taken }
    }

    /// Returns the number of slots taken so far. Once this is published, their memory may be
    /// written again.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns whether the next slot is begun: a cheap look, for threads that wait.
    #[inline]
    pub fn is_begun(&self) -> bool {
        self.words.load(self.first_word()) & 1 == tag(self.taken, self.log_depth)
    }

    #[inline]
    fn first_word(&self) -> usize {
        self.word_of(self.taken)
    }

    #[inline]
    fn word_of(&self, index: u64) -> usize {
        native(index & ((1 << self.log_depth) - 1)) * WORDS
    }

    /// Returns the next slot's words, without tags, if all of it has arrived.
    #[inline]
    pub fn take(&mut self) -> Option<Slot> {
        let (first, tag) = (self.first_word(), tag(self.taken, self.log_depth));
        self.words.prefetch(self.word_of(self.taken.wrapping_add(AHEAD)));
        let mut slot = [0; WORDS];
        // From the last word to the first: of a slot that is being written, some word is most
        // likely still missing.
        for (number, word) in slot.iter_mut().enumerate().rev() {
            *word = self.words.load(first + number);
            if *word & 1 != tag {
                return None;
            }
        }
        self.words.acquire();
        self.taken = self.taken.wrapping_add(1);
        Some(unseal(slot))
    }
}

/// Writes a slot as device code at the writing end does, for tests and benches: one thread at a
/// time, `store(index, word)` in any order.
pub fn write_slot(words: Slot, index: u64, log_depth: u32, mut store: impl FnMut(usize, u64)) {
    let first = native(index & ((1 << log_depth) - 1)) * WORDS;
    for (number, word) in seal(words, tag(index, log_depth)).into_iter().enumerate() {
        store(first + number, word);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::descriptor::tests::any_descriptor;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Plain memory, for one thread.
    struct Cells(Vec<Cell<u64>>);

    impl Words for &Cells {
        fn load(&self, index: usize) -> u64 {
            self.0[index].get()
        }
        fn acquire(&self) {}
    }

    fn cells(log_depth: u32) -> Cells {
        Cells((0..WORDS << log_depth).map(|_| Cell::new(0)).collect())
    }

    #[test]
    fn a_thread_takes_what_another_writes() {
        const LOG_DEPTH: u32 = 4;
        let words = |index: u64| [index << 8, index, !index, index, !index, index, !index, index];
        let memory: Vec<AtomicU64> = (0..WORDS << LOG_DEPTH).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The ring has room for all of them, so the writer does not wait.
                for index in 0..1 << LOG_DEPTH {
                    fence(Ordering::Release);
                    write_slot(words(index), index, LOG_DEPTH, |at, word| memory[at].store(word, Ordering::Relaxed));
                }
            });
            // SAFETY: the words outlive the reader, and are written by atomic stores.
            let mut reader = Reader::new(unsafe { RawWords::new(memory.as_ptr().cast()) }, LOG_DEPTH);
            for index in 0..1 << LOG_DEPTH {
                let slot = (0..1_000_000).find_map(|_| {
                    std::thread::yield_now();
                    reader.take()
                });
                assert_eq!(slot, Some(words(index)), "slot {index}");
            }
        });
    }

    proptest! {
        /// Words of up to a whole lap of descriptors arrive in any order; none is taken early, none
        /// is lost or taken twice.
        #[test]
        fn every_descriptor_is_taken_once_and_whole(
            log_depth in 0u32..4,
            descriptors in proptest::collection::vec(any_descriptor(), 1..80),
            order in proptest::collection::vec(any::<prop::sample::Index>(), 0..64),
        ) {
            let memory = cells(log_depth);
            let mut reader = Reader::new(&memory, log_depth);
            let mut picks = order.into_iter().cycle();
            let mut written = 0;
            while written < descriptors.len() {
                let end = descriptors.len().min(written + (1 << log_depth));
                let mut stores = Vec::new();
                for (index, descriptor) in descriptors.iter().enumerate().take(end).skip(written) {
                    write_slot(descriptor.encode(), index as u64, log_depth, |at, word| stores.push((index, at, word)));
                }
                let mut missing = vec![WORDS; end - written];
                let mut next = written;
                while !stores.is_empty() {
                    let pick = picks.next().map_or(0, |pick| pick.index(stores.len()));
                    let (index, at, word) = stores.swap_remove(pick);
                    memory.0[at].set(word);
                    missing[index - written] -= 1;
                    while let Some(slot) = reader.take() {
                        prop_assert_eq!(missing[next - written], 0, "slot {} was torn", next);
                        prop_assert_eq!(slot, descriptors[next].encode());
                        next += 1;
                    }
                    prop_assert!(next == end || missing[next - written] != 0, "slot {} is there and was not taken", next);
                }
                prop_assert_eq!(next, end);
                written = end;
            }
            prop_assert_eq!(reader.taken(), descriptors.len() as u64);
        }

        /// Laps around the end of the 64-bit index and any other place.
        #[test]
        fn any_lap_is_like_the_first(log_depth in 0u32..6, start in any::<u64>(), count in 1u64..100) {
            let memory = cells(log_depth);
            // What the lap before left.
            for back in 1..=1u64 << log_depth {
                write_slot([0; WORDS], start.wrapping_sub(back), log_depth, |at, word| memory.0[at].set(word));
            }
            let mut reader = Reader::behind(&memory, log_depth, start);
            for i in 0..count {
                prop_assert!(!reader.is_begun() && reader.take().is_none());
                let words = [i << 8, i, !i, i, !i, i, !i, i];
                write_slot(words, start.wrapping_add(i), log_depth, |at, word| memory.0[at].set(word));
                prop_assert!(reader.is_begun());
                prop_assert_eq!(reader.take(), Some(words));
            }
        }
    }
}
