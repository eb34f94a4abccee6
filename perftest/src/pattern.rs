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

/// Returns the first `bytes` bytes of the pattern.
pub fn source(seed: u64, bytes: usize) -> Vec<u8> {
    part(seed, 0, bytes)
}

/// Returns `bytes` bytes of the pattern from byte `from` on.
pub fn part(seed: u64, from: u64, bytes: usize) -> Vec<u8> {
    let skipped = (from % 8) as usize;
    let mut data = vec![0; (skipped + bytes).next_multiple_of(8)];
    for (i, bytes) in (from / 8..).zip(data.as_chunks_mut::<8>().0) {
        *bytes = word(seed, 0, i).to_le_bytes();
    }
    data.drain(..skipped);
    data.truncate(bytes);
    data
}

/// Bytes of data that is written or compared at a time: a multiple of every element and stride.
pub const CHUNK: u64 = 16 << 20;

/// Returns the chunks of that many bytes: where each begins, and how long it is.
pub fn chunks(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes).step_by(CHUNK as usize).map(move |at| (at, CHUNK.min(bytes - at)))
}

/// Bytes that iterations of `shmem_get_bw` walk over on a GPU, whose caches hold less.
const FAR: u64 = 64 << 20;

/// How iterations of `shmem_get_bw` walk over the source: each begins `step` bytes after the one
/// before, and after `steps` iterations they begin anew. `steps` is a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    /// Bytes.
    pub step: u64,
    /// How many.
    pub steps: u64,
}

impl Walk {
    /// Returns the walk of messages of `bytes` bytes. On a GPU the windows of iterations do not
    /// overlap and cover `FAR` bytes and more, if `room` bytes hold them: what a load leaves in a
    /// cache is gone before the walk comes back to it. Elsewhere, and with messages that are as
    /// long, iterations begin as [`shift`] says.
    pub fn of(bytes: u64, on_gpu: bool, room: u64) -> Self {
        let step = bytes.next_multiple_of(64);
        let steps = FAR.div_ceil(step).next_power_of_two();
        if !on_gpu || steps < 2 || room < step.saturating_mul(steps) {
            return Self { step: 64, steps: 16 };
        }
        Self { step, steps }
    }

    /// Returns how far into the source iteration `i` starts.
    pub fn away(self, i: u64) -> u64 {
        (i & (self.steps - 1)) * self.step
    }

    /// Returns the bytes of the source of messages of `bytes` bytes.
    pub fn length(self, bytes: u64) -> u64 {
        (self.steps - 1) * self.step + bytes
    }
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
    fn gets_walk_over_what_no_cache_holds() {
        for bytes in [1, 4, 64, 100, 4096, 1 << 20, 32 << 20, 48 << 20] {
            let walk = Walk::of(bytes, true, 1 << 30);
            assert!(walk.step >= bytes, "{bytes}: windows overlap");
            assert!(walk.steps.is_power_of_two() && walk.steps * walk.step >= FAR, "{bytes}: {walk:?}");
            assert!(walk.length(bytes) <= 2 * FAR + 64, "{bytes}: {walk:?}");
            let begins: Vec<u64> = (0..walk.steps.min(100)).map(|i| walk.away(i)).collect();
            assert!(begins.windows(2).all(|pair| pair[0] + bytes <= pair[1]), "{bytes}: {walk:?}");
            assert_eq!(walk.away(walk.steps), 0);
        }
        let near = Walk { step: 64, steps: 16 };
        assert_eq!([Walk::of(8, false, 1 << 30), Walk::of(8, true, 1 << 20), Walk::of(FAR, true, 1 << 30)], [near; 3]);
        assert!((0..40).all(|i| near.away(i) == shift(i) as u64));
        assert_eq!(near.length(100), 100 + SLACK as u64 - 64);
    }

    #[test]
    fn parts_are_parts_of_the_whole() {
        let whole = source(5, 1000);
        for (from, bytes) in [(0, 1000), (64, 7), (512, 100), (992, 8), (3, 20), (17, 0), (5, 3)] {
            assert_eq!(part(5, from, bytes), whole[from as usize..][..bytes]);
        }
    }

    #[test]
    fn chunks_cover_everything_once() {
        assert_eq!(chunks(0).count(), 0);
        assert_eq!(chunks(2 * CHUNK + 5).collect::<Vec<_>>(), [(0, CHUNK), (CHUNK, CHUNK), (2 * CHUNK, 5)]);
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
