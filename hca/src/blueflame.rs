//! Doorbell registers that take a work request with its doorbell, as a card's BlueFlame buffer does
//! (rdma-core's mlx5 provider, `post_send_db`). The kernel that executes it need fetch neither the
//! doorbell record nor the queue. They lie in host memory, and a kernel reads them across PCIe.
//!
//! A card gets the 64 bytes in one piece. Here they are eight words that are stored and loaded one
//! by one, so each carries a tag in its lowest bit, which flips from one work request to the next.
//! The bits that gives way lie in the highest byte of word 1, the control segment's immediate,
//! which is 0 in all work requests that are rung so. Word 0 is the doorbell, and is stored last.
//!
//! # Why a torn work request is never taken
//! One is stored only when the queue pair has nothing outstanding. So the kernel has seen the one
//! before, or a doorbell after it, and finds each word as it was then or as it is now; all carry
//! the new tag only when all are new. A doorbell without a work request replaces word 0 alone and
//! may come at any time. The kernel then looks at the queue, where every work request is as well.

use crate::wire::BLOCK_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a register.
pub(crate) const REGISTER_BYTES: usize = BLOCK_BYTES;
const WORDS: usize = REGISTER_BYTES / 8;
/// Where the displaced bits are in word 1.
const DISPLACED_SHIFT: usize = 56;

/// A doorbell register that takes work requests. At most one for each register.
#[derive(Debug)]
pub struct BlueFlame {
    register: *mut u64,
    tag: u64,
}

// SAFETY: the pointer names a register, which any thread may store to.
unsafe impl Send for BlueFlame {}

impl BlueFlame {
    /// Wraps `register`, which names [`REGISTER_BYTES`] that stay mapped while this is used, are 0
    /// now, and are otherwise stored to by doorbells alone.
    pub(crate) fn new(register: *mut u64) -> Self {
        Self { register, tag: 0 }
    }

    /// Rings with a whole work request of one block, words as they lie in memory, which is in its
    /// queue as well, its doorbell record written. The queue pair has nothing else outstanding.
    /// Returns false, and does nothing, if the work request cannot be rung so.
    ///
    /// # Safety
    /// The page of the register has not been freed.
    pub unsafe fn ring(&mut self, block: &[u64; WORDS]) -> bool {
        let mut words = *block;
        if words[1] >> DISPLACED_SHIFT != 0 {
            return false;
        }
        self.tag ^= 1;
        let displaced = (0..WORDS).fold(0, |bits, i| bits | (words[i] & 1) << i);
        words[1] |= displaced << DISPLACED_SHIFT;
        for (i, word) in words.into_iter().enumerate().rev() {
            // SAFETY: inside the register, by the constructor's promise and the caller's.
            let place = unsafe { AtomicU64::from_ptr(self.register.add(i)) };
            // All else, in the queue too, before word 0.
            place.store(word & !1 | self.tag, if i == 0 { Ordering::Release } else { Ordering::Relaxed });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads it the way the kernel does.
    fn unseal(words: [u64; WORDS]) -> Option<[u64; WORDS]> {
        let same = words.iter().all(|word| word & 1 == words[0] & 1);
        let displaced = words[1] >> DISPLACED_SHIFT;
        let mut block: [u64; WORDS] = std::array::from_fn(|i| words[i] & !1 | displaced >> i & 1);
        block[1] &= !(0xff << DISPLACED_SHIFT);
        same.then_some(block)
    }

    proptest! {
        /// Whatever part of a work request has arrived: it is taken whole or not at all.
        #[test]
        fn a_part_is_not_taken(blocks in prop::collection::vec((any::<[u64; WORDS]>(), any::<u8>()), 1..6)) {
            let mut register = [0u64; WORDS];
            let mut blueflame = BlueFlame::new(register.as_mut_ptr());
            for (mut block, arrived) in blocks {
                block[1] &= !(0xff << DISPLACED_SHIFT);
                let before = register;
                // SAFETY: the register is a local variable.
                let rung = unsafe { blueflame.ring(&block) };
                prop_assert!(rung);
                prop_assert_eq!(unseal(register), Some(block));
                let seen: [u64; WORDS] = std::array::from_fn(|i| if arrived >> i & 1 == 1 { register[i] } else { before[i] });
                if arrived != 0xff && arrived & 1 != 0 {
                    prop_assert_eq!(unseal(seen), None);
                }
            }
        }
    }

    #[test]
    fn an_immediate_has_no_room() {
        let mut register = [0u64; WORDS];
        let mut block = [0; WORDS];
        block[1] = 1 << DISPLACED_SHIFT;
        // SAFETY: the register is a local variable.
        assert!(!unsafe { BlueFlame::new(register.as_mut_ptr()).ring(&block) });
        assert_eq!(register, [0; WORDS]);
    }
}
