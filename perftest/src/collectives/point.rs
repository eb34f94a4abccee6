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

/// One collective of one size in one scope, or on a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub collective: Collective,
    /// `None`: on a stream.
    pub scope: Option<Scope>,
    pub bytes: u64,
}

impl Point {
    /// Returns what PE `pe` gives; iterations begin somewhat later in it.
    pub(super) fn source(self, pe: usize, npes: usize) -> Vec<u8> {
        let bytes = self.collective.source_bytes(self.bytes, npes as u64) as usize + SLACK;
        let seed = pattern::seed(self.collective.name(), &pe.to_string(), self.bytes);
        if !self.collective.reduces() {
            return pattern::source(seed, bytes);
        }
        // Small whole numbers, whose sums are exact.
        (0..bytes as u64 / 4).flat_map(|i| ((pattern::word(seed, 0, i) % 1024) as f32).to_ne_bytes()).collect()
    }

    /// Returns what PE `me` has after iteration `last`; `before` is what it had in the gaps.
    pub(super) fn result(self, me: usize, npes: usize, last: u64, before: u8) -> Vec<u8> {
        let (bytes, from) = (self.bytes as usize, pattern::shift(last));
        let given = |pe: usize, first: usize| self.source(pe, npes)[from + first..][..bytes].to_vec();
        let floats = |pe: usize, first: usize| -> Vec<f32> {
            given(pe, first).as_chunks::<4>().0.iter().map(|float| f32::from_ne_bytes(*float)).collect()
        };
        let added = |first: usize| -> Vec<u8> {
            let mut sums = vec![0f32; bytes / 4];
            for pe in 0..npes {
                sums.iter_mut().zip(floats(pe, first)).for_each(|(sum, float)| *sum += float);
            }
            sums.into_iter().flat_map(f32::to_ne_bytes).collect()
        };
        match self.collective {
            Collective::Barrier | Collective::Sync => Vec::new(),
            Collective::Broadcast => given(0, 0),
            Collective::Collect | Collective::Fcollect => (0..npes).flat_map(|pe| given(pe, 0)).collect(),
            Collective::Alltoall => (0..npes).flat_map(|pe| given(pe, me * bytes)).collect(),
            Collective::Alltoalls => (0..npes)
                .flat_map(|pe| {
                    let source = self.source(pe, npes);
                    let words = source[from + 2 * me * bytes..][..2 * bytes].as_chunks::<16>().0;
                    words.iter().flat_map(|pair| [&pair[..8], &[before; 8]].concat()).collect::<Vec<u8>>()
                })
                .collect(),
            Collective::Reduce => added(0),
            Collective::Reducescatter => added(me * bytes),
        }
    }
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
                let result = point.result(npes - 1, npes, 5, 0);
                assert_eq!(result.len() as u64, collective.result_bytes(point.bytes, npes as u64), "{collective:?}");
            }
        }
    }
}
