//! Atomic operations on a remote word: CPU atomics, hence atomic against every other process that
//! maps it.

use super::tables::WordAtomic;
use crate::wire::masked_atomic;
use oxshmem_system::words::low32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Returns `a + b` where no carry leaves a bit of `boundary`.
///
/// Boundary bits are the most significant of their fields. Without them the addends cannot carry
/// into the next field; the bits themselves are then added without carry.
const fn add_fields(a: u64, b: u64, boundary: u64) -> u64 {
    (a & !boundary).wrapping_add(b & !boundary) ^ ((a ^ b) & boundary)
}

const fn compare_swap(old: u64, swap: u64, compare: u64, swap_mask: u64, compare_mask: u64) -> u64 {
    if (old ^ compare) & compare_mask == 0 { old & !swap_mask | swap & swap_mask } else { old }
}

/// Does an 8-byte fetch and add; returns the old value.
pub(super) fn fetch_add(word: &AtomicU64, add: u64) -> u64 {
    word.fetch_add(add, Ordering::AcqRel)
}

/// Does an 8-byte compare and swap; returns the old value.
pub(super) fn compare_and_swap(word: &AtomicU64, compare: u64, swap: u64) -> u64 {
    word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|old| old)
}

fn update64(word: &AtomicU64, next: impl Fn(u64) -> u64) -> u64 {
    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(next(old))).unwrap_or_else(|old| old)
}

fn update32(word: &AtomicU32, next: impl Fn(u32) -> u32) -> u32 {
    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(next(old))).unwrap_or_else(|old| old)
}

/// Returns a masked operation; returns the bytes that the HCA writes to the requester's memory.
///
/// 8-byte results are in host order and 4-byte results big-endian. The Linux driver sets the mode
/// for 8 bytes (`atomic_req_8B_endianness_mode`, "host endianness"); for 4 bytes there is no such
/// mode, and software swaps.
///
/// # Safety
/// `word` is aligned to the operation's width, readable and writable.
pub(super) unsafe fn masked(word: *mut u8, operands: &masked_atomic::Repr) -> ([u8; 8], usize) {
    use masked_atomic::Repr;
    let mut bytes = [0; 8];
    match *operands {
        Repr::FetchAdd4 { .. } | Repr::CompareSwap4 { .. } => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU32::from_ptr(word.cast()) };
            let old = match *operands {
                Repr::FetchAdd4 { add, boundary } => {
                    // The upper half is 0, so a carry that leaves bit 31 is cut by the conversion.
                    update32(word, |old| low32(add_fields(old.into(), add.into(), boundary.into())))
                }
                Repr::CompareSwap4 { swap, compare, swap_mask, compare_mask } => update32(word, |old| {
                    low32(compare_swap(old.into(), swap.into(), compare.into(), swap_mask.into(), compare_mask.into()))
                }),
                _ => 0,
            };
            bytes[..4].copy_from_slice(&old.to_be_bytes());
            (bytes, 4)
        }
        Repr::FetchAdd8 { add, boundary } => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU64::from_ptr(word.cast()) };
            (update64(word, |old| add_fields(old, add, boundary)).to_ne_bytes(), 8)
        }
        Repr::CompareSwap8 { swap, compare, swap_mask, compare_mask } => {
            // SAFETY: the caller's promise.
            let word = unsafe { AtomicU64::from_ptr(word.cast()) };
            (update64(word, |old| compare_swap(old, swap, compare, swap_mask, compare_mask)).to_ne_bytes(), 8)
        }
    }
}

/// An atomic operation of any form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Atomic {
    /// 8-byte fetch and add.
    FetchAdd { add: u64 },
    /// 8-byte compare and swap.
    CompareSwap { compare: u64, swap: u64 },
    /// A masked one.
    Masked(masked_atomic::Repr),
}

impl Atomic {
    /// Returns the bytes of its operand.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::FetchAdd { .. } | Self::CompareSwap { .. } => 8,
            Self::Masked(operands) => operands.width(),
        }
    }

    /// Returns it as the kernel for atomics takes it; `word` is where kernels find the word.
    pub(super) fn on_word(&self, word: u64) -> WordAtomic {
        use masked_atomic::Repr;
        let (add, [operand, compare, mask, compare_mask]) = match *self {
            Self::FetchAdd { add } => (1, [add, 0, 0, 0]),
            Self::CompareSwap { compare, swap } => (0, [swap, compare, u64::MAX, u64::MAX]),
            Self::Masked(Repr::FetchAdd4 { add, boundary }) => (1, [add, 0, boundary, 0].map(u64::from)),
            Self::Masked(Repr::FetchAdd8 { add, boundary }) => (1, [add, 0, boundary, 0]),
            Self::Masked(Repr::CompareSwap4 { swap, compare, swap_mask, compare_mask }) => {
                (0, [swap, compare, swap_mask, compare_mask].map(u64::from))
            }
            Self::Masked(Repr::CompareSwap8 { swap, compare, swap_mask, compare_mask }) => {
                (0, [swap, compare, swap_mask, compare_mask])
            }
        };
        let width = if self.width() == 8 { 8 } else { 4 };
        WordAtomic { word, operand, compare, mask, compare_mask, add, width, ..WordAtomic::default() }
    }

    /// Returns the bytes that the HCA writes to the requester's memory where the word was `old`, as
    /// [`execute`](Self::execute) does.
    pub(super) fn result(&self, old: u64) -> [u8; 8] {
        let mut bytes = old.to_ne_bytes();
        if self.width() == 4 {
            bytes[..4].copy_from_slice(&low32(old).to_be_bytes());
        }
        bytes
    }

    /// Carries it out; returns the bytes that the HCA writes to the requester's memory.
    ///
    /// # Safety
    /// `word` is aligned to the operation's width, readable and writable.
    pub(super) unsafe fn execute(&self, word: *mut u8) -> [u8; 8] {
        // SAFETY: the caller's promise; the other forms have 8 bytes.
        unsafe {
            match *self {
                Self::FetchAdd { add } => fetch_add(AtomicU64::from_ptr(word.cast()), add).to_ne_bytes(),
                Self::CompareSwap { compare, swap } => {
                    compare_and_swap(AtomicU64::from_ptr(word.cast()), compare, swap).to_ne_bytes()
                }
                Self::Masked(ref operands) => masked(word, operands).0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the definition, bit by bit.
    fn add_bitwise(a: u64, b: u64, boundary: u64) -> u64 {
        let mut sum = 0;
        let mut carry = 0;
        for bit in 0..64 {
            let total = (a >> bit & 1) + (b >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if boundary >> bit & 1 == 1 { 0 } else { total >> 1 };
        }
        sum
    }

    proptest! {
        #[test]
        fn fields_do_not_carry_into_each_other(a in any::<u64>(), b in any::<u64>(), boundary in any::<u64>()) {
            prop_assert_eq!(add_fields(a, b, boundary), add_bitwise(a, b, boundary));
        }

        #[test]
        fn special_boundaries(a in any::<u64>(), b in any::<u64>()) {
            prop_assert_eq!(add_fields(a, b, 0), a.wrapping_add(b));
            prop_assert_eq!(add_fields(a, b, u64::MAX), a ^ b);
        }

        #[test]
        fn four_bytes_equal_the_low_half(old in any::<u32>(), add in any::<u32>(), boundary in any::<u32>()) {
            let mut word = old;
            let operands = masked_atomic::Repr::FetchAdd4 { add, boundary };
            // SAFETY: `word` is aligned and ours.
            let (bytes, len) = unsafe { masked((&raw mut word).cast(), &operands) };
            prop_assert_eq!((len, &bytes[..4]), (4, &old.to_be_bytes()[..]));
            prop_assert_eq!(word, add_bitwise(old.into(), add.into(), boundary.into()) as u32);
        }
    }

    #[test]
    fn masks_select_bits() {
        assert_eq!(compare_swap(0xff00, 0x1234, 0x0000, 0x00ff, 0x00ff), 0xff34);
        assert_eq!(compare_swap(0xff01, 0x1234, 0x0000, 0x00ff, 0x00ff), 0xff01);
        assert_eq!(compare_swap(7, 9, 123, u64::MAX, 0), 9);
    }
}
