//! The data that the tests send, and the check of what arrived. `kernels/common.h` has the same
//! pattern for device code.

use crate::error::Mismatch;

/// Bytes that a source buffer has beyond the largest message: iterations start up to this far into
/// it.
pub const SLACK: usize = 16 * 64;

/// Returns how far into the source iteration `i` starts.
pub fn shift(iteration: u64) -> usize {
    (iteration % 16 * 64) as usize
}

/// Returns word `index` of the pattern.
pub fn word(seed: u64, iteration: u64, index: u64) -> u64 {
    let x = seed
        .wrapping_add(iteration.wrapping_mul(0xd1b5_4a32_d192_ed03))
        .wrapping_add(index)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 29
}

/// Returns a seed for each measured point, so that nothing of one passes for another's.
pub fn seed(bench: &str, scope: &str, bytes: u64) -> u64 {
    // FNV-1a
    let text = bench.bytes().chain(scope.bytes()).chain(bytes.to_le_bytes());
    text.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the bytes of `count` words of the pattern.
pub fn source(seed: u64, bytes: usize) -> Vec<u8> {
    let mut data: Vec<u8> = (0..bytes.div_ceil(8) as u64).flat_map(|i| word(seed, 0, i).to_le_bytes()).collect();
    data.truncate(bytes);
    data
}

/// Returns what a destination holds before a run that should leave `expected` in it: nothing of it
/// is right.
pub fn poison(expected: &[u8]) -> Vec<u8> {
    expected.iter().map(|byte| !byte).collect()
}

/// Compares what arrived with what was sent; the first difference is the error.
///
/// # Errors
/// They differ.
pub fn check(what: &'static str, expected: &[u8], found: &[u8]) -> Result<(), Mismatch> {
    assert_eq!(expected.len(), found.len(), "compare buffers of one length");
    if expected == found {
        return Ok(());
    }
    let wrong = expected.iter().zip(found).filter(|(expected, found)| expected != found).count();
    let first = expected.iter().zip(found).position(|(expected, found)| expected != found);
    let offset = first.unwrap_or_default();
    Err(Mismatch {
        what,
        unit: "byte",
        offset: offset as u64,
        expected: u64::from(expected[offset]),
        found: u64::from(found[offset]),
        wrong: wrong as u64,
        of: expected.len() as u64,
    })
}

/// Does the same as [`check`], for words.
///
/// # Errors
/// They differ.
pub fn check_words(what: &'static str, expected: &[u64], found: &[u64]) -> Result<(), Mismatch> {
    assert_eq!(expected.len(), found.len(), "compare buffers of one length");
    let mut differences = expected.iter().zip(found).enumerate().filter(|(_, (expected, found))| expected != found);
    let Some((offset, (&expected_word, &found_word))) = differences.next() else { return Ok(()) };
    Err(Mismatch {
        what,
        unit: "word",
        offset: offset as u64,
        expected: expected_word,
        found: found_word,
        wrong: 1 + differences.count() as u64,
        of: expected.len() as u64,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_single_wrong_byte_is_found() {
        let expected = source(seed("test", "thread", 100), 100);
        check("data", &expected, &expected).unwrap();
        for offset in 0..expected.len() {
            let mut found = expected.clone();
            found[offset] ^= 0x10;
            let error = check("data", &expected, &found).unwrap_err();
            assert_eq!((error.offset, error.wrong), (offset as u64, 1));
            assert_eq!((error.expected, error.found), (u64::from(expected[offset]), u64::from(found[offset])));
        }
    }

    #[test]
    fn the_first_wrong_word_is_named_and_all_are_counted() {
        let expected: Vec<u64> = (0..10).collect();
        check_words("words", &expected, &expected).unwrap();
        let mut found = expected.clone();
        found[3] = 77;
        found[9] = 0;
        let error = check_words("words", &expected, &found).unwrap_err();
        assert_eq!((error.offset, error.expected, error.found, error.wrong, error.of), (3, 3, 77, 2, 10));
    }

    #[test]
    fn poisoned_and_stale_data_never_pass() {
        let data = source(seed("test", "warp", 4096), 4096 + SLACK);
        for bytes in [1, 7, 64, 4096] {
            for iteration in 1..40 {
                let (now, before) = (shift(iteration), shift(iteration - 1));
                let expected = &data[now..now + bytes];
                assert!(check("data", expected, &poison(expected)).is_err());
                if bytes >= 7 {
                    assert!(check("data", expected, &data[before..before + bytes]).is_err());
                }
            }
        }
    }

    #[test]
    fn points_have_seeds_of_their_own() {
        let seeds = [
            seed("put_bw", "warp", 8),
            seed("put_bw", "warp", 16),
            seed("put_bw", "block", 8),
            seed("get_bw", "warp", 8),
        ];
        for (i, a) in seeds.iter().enumerate() {
            assert!(seeds[..i].iter().all(|b| a != b));
        }
    }
}
