//! What is measured: a collective of one size, called in one scope or on a stream; what each PE
//! gives to it, and what it has afterwards.

use clap::ValueEnum;

use crate::pattern::{self, SLACK};

/// Threads that call a collective together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Scope {
    Thread,
    Warp,
    Block,
    Grid,
}

impl Scope {
    /// Returns the name on the command line and in kernels' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Warp => "warp",
            Self::Block => "block",
            Self::Grid => "grid",
        }
    }
}

/// A collective; numbered as in `kernels/collective.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Collective {
    Barrier,
    Sync,
    Broadcast,
    Collect,
    Fcollect,
    Alltoall,
    Alltoalls,
    Reduce,
    Reducescatter,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Barrier,
        Self::Sync,
        Self::Broadcast,
        Self::Collect,
        Self::Fcollect,
        Self::Alltoall,
        Self::Alltoalls,
        Self::Reduce,
        Self::Reducescatter,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Sync => "sync",
            Self::Broadcast => "broadcast",
            Self::Collect => "collect",
            Self::Fcollect => "fcollect",
            Self::Alltoall => "alltoall",
            Self::Alltoalls => "alltoalls",
            Self::Reduce => "reduce",
            Self::Reducescatter => "reducescatter",
        }
    }

    /// Moves nothing.
    pub(super) fn is_meeting(self) -> bool {
        matches!(self, Self::Barrier | Self::Sync)
    }

    fn reduces(self) -> bool {
        matches!(self, Self::Reduce | Self::Reducescatter)
    }

    /// Returns the bytes that a PE gives to a collective of `bytes` bytes, over all that get some,
    /// with the gaps between them.
    pub(crate) fn source_bytes(self, bytes: u64, npes: u64) -> u64 {
        match self {
            Self::Alltoall | Self::Reducescatter => bytes * npes,
            Self::Alltoalls => 2 * bytes * npes,
            _ => bytes,
        }
    }

    /// Returns the bytes of the whole buffer that a collective of `bytes` bytes is about: all parts
    /// together.
    pub(crate) fn whole_bytes(self, bytes: u64, npes: u64) -> u64 {
        match self {
            Self::Barrier | Self::Sync => 0,
            Self::Broadcast | Self::Reduce => bytes,
            Self::Collect | Self::Fcollect | Self::Alltoall | Self::Alltoalls | Self::Reducescatter => bytes * npes,
        }
    }

    /// Returns the bytes that every PE at least sends, of each byte of the whole buffer: the
    /// bandwidth of the links is that of the buffer times this, however many PEs there are.
    pub(crate) fn bus_factor(self, npes: u64) -> f64 {
        let others = (npes as f64 - 1.0) / npes as f64;
        match self {
            Self::Barrier | Self::Sync => 0.0,
            Self::Broadcast => f64::from(u8::from(npes > 1)),
            Self::Reduce => 2.0 * others,
            Self::Collect | Self::Fcollect | Self::Alltoall | Self::Alltoalls | Self::Reducescatter => others,
        }
    }

    /// Returns the bytes of what a PE gets.
    pub(crate) fn result_bytes(self, bytes: u64, npes: u64) -> u64 {
        match self {
            Self::Collect | Self::Fcollect | Self::Alltoall => bytes * npes,
            Self::Alltoalls => 2 * bytes * npes,
            _ => bytes,
        }
    }
}

/// Returns the bytes of the largest destination, or source, of collectives of `bytes` bytes: `of`
/// is what one of them has. There is room for a word of each PE.
pub(super) fn room(collectives: &[Collective], of: impl Fn(Collective) -> u64, npes: u64) -> u64 {
    collectives.iter().map(|one| of(*one)).max().unwrap_or_default().max(8 * npes)
}

/// Returns the bytes of symmetric memory that collectives of up to `bytes` bytes take.
pub(crate) fn needed(collectives: &[Collective], bytes: u64, npes: u64) -> u64 {
    let of = |bytes_of: fn(Collective, u64, u64) -> u64| room(collectives, |one| bytes_of(one, bytes, npes), npes);
    of(Collective::result_bytes) + of(Collective::source_bytes) + SLACK as u64
}

/// One collective of one size in one scope, or on a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub collective: Collective,
    /// `None`: on a stream.
    pub scope: Option<Scope>,
    pub bytes: u64,
}

impl Point {
    /// Returns the bytes that a PE gives; iterations begin up to [`SLACK`] bytes later in them.
    pub(super) fn source_bytes(self, npes: usize) -> u64 {
        self.collective.source_bytes(self.bytes, npes as u64) + SLACK as u64
    }

    /// Returns the bytes that a PE has afterwards.
    pub(super) fn result_bytes(self, npes: usize) -> u64 {
        self.collective.result_bytes(self.bytes, npes as u64)
    }

    /// Returns `bytes` bytes of what PE `pe` gives, from byte `from` on; of numbers that are added
    /// both are multiples of their size.
    pub(super) fn given(self, pe: usize, from: u64, bytes: u64) -> Vec<u8> {
        let seed = pattern::seed(self.collective.name(), &pe.to_string(), self.bytes);
        if !self.collective.reduces() {
            return pattern::part(seed, from, bytes as usize);
        }
        floats(seed, from, bytes).flat_map(f32::to_ne_bytes).collect()
    }

    /// Returns `bytes` bytes of what PE `me` has after iteration `last`, from byte `at` on, both
    /// multiples of 16 but at the end; `before` is what it had in the gaps.
    pub(super) fn result(self, (me, npes): (usize, usize), last: u64, before: u8, (at, bytes): (u64, u64)) -> Vec<u8> {
        let from = pattern::shift(last) as u64;
        let mine = me as u64 * self.bytes;
        // What each PE in turn has given, `each` bytes of it from `first` on.
        let parts = |first: u64, each: u64| -> Vec<u8> {
            let mut all = Vec::with_capacity(bytes as usize);
            let mut next = at;
            while next < at + bytes {
                let (pe, within) = (next / each, next % each);
                let taken = (each - within).min(at + bytes - next);
                all.extend(self.given(pe as usize, from + first + within, taken));
                next += taken;
            }
            all
        };
        let added = |first: u64| -> Vec<u8> {
            let mut sums = vec![0f32; bytes as usize / 4];
            for pe in 0..npes {
                let seed = pattern::seed(self.collective.name(), &pe.to_string(), self.bytes);
                sums.iter_mut().zip(floats(seed, from + first + at, bytes)).for_each(|(sum, float)| *sum += float);
            }
            sums.into_iter().flat_map(f32::to_ne_bytes).collect()
        };
        match self.collective {
            Collective::Barrier | Collective::Sync => Vec::new(),
            Collective::Broadcast => self.given(0, from + at, bytes),
            Collective::Collect | Collective::Fcollect => parts(0, self.bytes),
            Collective::Alltoall => parts(mine, self.bytes),
            Collective::Alltoalls => {
                let mut words = parts(2 * mine, 2 * self.bytes);
                words.chunks_mut(16).for_each(|pair| pair[8..].fill(before));
                words
            }
            Collective::Reduce => added(0),
            Collective::Reducescatter => added(mine),
        }
    }
}

/// Returns the numbers that are added: small and whole, so that their sums are exact. `from` and
/// `bytes` are multiples of their size.
fn floats(seed: u64, from: u64, bytes: u64) -> impl Iterator<Item = f32> {
    (from / 4..(from + bytes) / 4).map(move |i| (pattern::word(seed, 0, i) % 1024) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_count_what_links_carry() {
        let factors = |npes| Collective::ALL.map(|one| one.bus_factor(npes));
        assert_eq!(factors(1), [0.0; 9]);
        assert_eq!(factors(2), [0.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 1.0, 0.5]);
        assert_eq!(factors(4), [0.0, 0.0, 1.0, 0.75, 0.75, 0.75, 0.75, 1.5, 0.75]);
        let whole = Collective::ALL.map(|one| one.whole_bytes(8, 4));
        assert_eq!(whole, [0, 0, 8, 32, 32, 32, 32, 8, 32]);
    }

    #[test]
    fn results_are_as_long_as_they_should_be() {
        for collective in Collective::ALL {
            for (npes, bytes) in [(1, 8), (3, 24)] {
                let point = Point {
                    collective,
                    scope: Some(Scope::Warp),
                    bytes: if collective.is_meeting() { 0 } else { bytes },
                };
                let result = point.result((npes - 1, npes), 5, 0, (0, point.result_bytes(npes)));
                assert_eq!(result.len() as u64, point.result_bytes(npes), "{collective:?}");
            }
        }
    }

    #[test]
    fn results_are_parts_of_what_was_given() {
        const BEFORE: u8 = 0xff;
        let (npes, me, last, bytes) = (3usize, 1usize, 18u64, 40usize);
        for collective in &Collective::ALL[2..] {
            let point = Point { collective: *collective, scope: None, bytes: bytes as u64 };
            let given: Vec<Vec<u8>> = (0..npes).map(|pe| point.given(pe, 0, point.source_bytes(npes))).collect();
            let from = |pe: usize, first: usize, len: usize| given[pe][pattern::shift(last) + first..][..len].to_vec();
            let added = |first: usize| -> Vec<u8> {
                let of =
                    |pe| from(pe, first, bytes).as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
                let all: Vec<Vec<f32>> = (0..npes).map(of).collect();
                (0..bytes / 4).flat_map(|i| all.iter().map(|one| one[i]).sum::<f32>().to_ne_bytes()).collect()
            };
            let expected: Vec<u8> = match collective {
                Collective::Broadcast => from(0, 0, bytes),
                Collective::Alltoall => (0..npes).flat_map(|pe| from(pe, me * bytes, bytes)).collect(),
                Collective::Alltoalls => (0..npes)
                    .flat_map(|pe| from(pe, 2 * me * bytes, 2 * bytes))
                    .enumerate()
                    .map(|(i, byte)| if i % 16 < 8 { byte } else { BEFORE })
                    .collect(),
                Collective::Reduce => added(0),
                Collective::Reducescatter => added(me * bytes),
                _ => (0..npes).flat_map(|pe| from(pe, 0, bytes)).collect(),
            };
            let all = point.result_bytes(npes);
            let result = |part| point.result((me, npes), last, BEFORE, part);
            assert!(result((0, all)) == expected, "{collective:?}");
            // Chunks that end within a part.
            let chunks = (0..all).step_by(16).map(|at| (at, 16.min(all - at)));
            assert!(chunks.flat_map(result).collect::<Vec<u8>>() == expected, "{collective:?}, in chunks");
        }
    }

    #[test]
    fn what_a_point_needs_follows_from_its_collectives() {
        assert_eq!(needed(&Collective::ALL, 256 << 20, 16), (2 * 2 * 16 * (256 << 20)) + SLACK as u64);
        assert_eq!(needed(&[Collective::Reduce], 64, 4), 128 + SLACK as u64);
        assert_eq!(needed(&[Collective::Barrier], 0, 4), 64 + SLACK as u64);
    }
}
