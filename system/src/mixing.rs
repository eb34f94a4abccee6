//! Numbers that look random and depend on their input alone, so that equal inputs give equal
//! decisions in every process (splitmix64; Steele, Lea and Flood, OOPSLA 2014).

use crate::words::native;

/// The step of splitmix64: 2^64 divided by the golden ratio.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the splitmix64 number that follows the state `value`.
#[must_use]
#[inline]
pub const fn mix(value: u64) -> u64 {
    scramble(value.wrapping_add(GOLDEN))
}

/// Spreads each bit of `value` over all bits, without loss. 0 stays 0.
#[must_use]
#[inline]
pub const fn scramble(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Returns a number that, most probably, only equal bytes have in common.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    words.fold(mix(bytes.len() as u64), |state, word| mix(state ^ word))
}

/// Shuffles `items` in an order that `seed` determines.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    for i in (1..items.len()).rev() {
        let j = native(mix(seed ^ i as u64) % (i as u64 + 1));
        items.swap(i, j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation() {
        let mut items: Vec<u32> = (0..100).collect();
        shuffle(&mut items, 5);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn texts_that_differ_somewhere_have_different_digests() {
        let text: Vec<u8> = (0..40).collect();
        let mut seen = std::collections::HashSet::new();
        for len in 0..=text.len() {
            assert!(seen.insert(digest(&text[..len])), "{len} bytes");
            for at in 0..len {
                let mut other = text[..len].to_vec();
                other[at] ^= 0x80;
                assert!(seen.insert(digest(&other)), "{len} bytes, another at {at}");
            }
        }
        assert_ne!(digest(&[0]), digest(&[0, 0]));
    }

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // The first two of the reference implementation with seed 0.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(GOLDEN), 0x6e78_9e6a_a1b9_65f4);
    }
}
