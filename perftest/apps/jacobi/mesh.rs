//! The mesh, and which PE has which rows of it.

use std::ops::Range;

use oxshmem::config::ByteSize;
use oxshmem_perftest::error::Error;

/// Columns of a row in memory are a multiple of this: rows start at cache lines.
const PITCH: u64 = 32;

/// `nx` columns and `ny` rows of points. Those at the border are fixed, all others change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    /// Columns, at least 3.
    pub nx: u64,
    /// Rows, at least 3.
    pub ny: u64,
}

impl Mesh {
    /// Rows that change.
    pub fn interior(self) -> u64 {
        self.ny - 2
    }

    /// Places of a row in memory.
    pub fn pitch(self) -> u64 {
        self.nx.next_multiple_of(PITCH)
    }

    /// Returns the rows that PE `pe` of `npes` changes, counted from the mesh's first: all PEs have
    /// as many, the first ones one more if they do not come out even.
    pub fn rows_of(self, pe: usize, npes: usize) -> Range<u64> {
        let (pe, npes) = (pe as u64, npes as u64);
        let (each, more) = (self.interior() / npes, self.interior() % npes);
        let first = 1 + pe * each + pe.min(more);
        first..first + each + u64::from(pe < more)
    }

    /// Places of one field on each PE, with the rows beside its own.
    pub fn field_len(self, npes: usize) -> u64 {
        (self.interior().div_ceil(npes as u64) + 2) * self.pitch()
    }

    /// Bytes of symmetric heap that the fields of a run need on each PE; `whole`: also those of the
    /// whole mesh.
    pub fn bytes(self, npes: usize, whole: bool) -> u64 {
        2 * 4 * (self.field_len(npes) + if whole { self.ny * self.pitch() } else { 0 })
    }

    /// Refuses a mesh that `npes` PEs cannot have.
    ///
    /// # Errors
    /// More PEs than rows, or more bytes than `heap_max`.
    pub fn check(self, npes: usize, whole: bool, heap_max: ByteSize) -> Result<(), Error> {
        let Self { nx, ny } = self;
        if npes as u64 > self.interior() {
            return Err(Error::Usage(format!(
                "{npes} PEs, but --ny {ny} has {} rows between its fixed ones: each PE needs one, so use at most {} PEs",
                self.interior(),
                self.interior()
            )));
        }
        let bytes = self.bytes(npes, whole);
        if bytes > heap_max.0 {
            return Err(Error::Usage(format!(
                "a mesh of {nx} x {ny} points on {npes} PEs needs {bytes} bytes of symmetric heap on each{}, and OXSHMEM_HEAP_MAX is {heap_max}; \
                 raise it{}",
                if whole { " (with the whole mesh, for --check single)" } else { "" },
                if whole { ", or check less" } else { ", or use more PEs" },
            )));
        }
        Ok(())
    }

    /// Returns the fixed values of the first and the last column, by row: half a wave. The first
    /// and the last row are 0.
    pub fn sides(self) -> Vec<f32> {
        let last = (self.ny - 1) as f64;
        (0..self.ny)
            .map(|row| match row {
                0 => 0.0,
                row if row == self.ny - 1 => 0.0,
                row => (std::f64::consts::PI * row as f64 / last).sin() as f32,
            })
            .collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_belongs_to_one_pe(ny in 3u64..5000, npes in 1usize..70) {
            let mesh = Mesh { nx: 3, ny };
            prop_assume!(npes as u64 <= mesh.interior());
            let mut next = 1;
            for pe in 0..npes {
                let rows = mesh.rows_of(pe, npes);
                prop_assert_eq!(rows.start, next);
                prop_assert!(!rows.is_empty() && (rows.end - rows.start + 2) * mesh.pitch() <= mesh.field_len(npes));
                next = rows.end;
            }
            prop_assert_eq!(next, ny - 1);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_limit() {
        let mesh = Mesh { nx: 1000, ny: 6 };
        mesh.check(4, true, ByteSize(1 << 20)).unwrap();
        let error = mesh.check(5, false, ByteSize(1 << 20)).unwrap_err().to_string();
        assert!(error.contains("at most 4 PEs"), "{error}");
        let error = mesh.check(1, false, ByteSize(49151)).unwrap_err().to_string();
        assert!(error.contains("49152 bytes") && error.contains("OXSHMEM_HEAP_MAX is 49151"), "{error}");
    }

    #[test]
    fn sides_are_half_a_wave() {
        let sides = Mesh { nx: 3, ny: 5 }.sides();
        assert_eq!((sides[0].to_bits(), sides[2].to_bits(), sides[4].to_bits()), (0, 1f32.to_bits(), 0));
        assert!(sides[1] > 0.7 && sides[1] < 0.71 && (sides[1] - sides[3]).abs() < 1e-6);
    }
}
