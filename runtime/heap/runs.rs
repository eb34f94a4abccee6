//! Memory of the program in the symmetric heap: at the end of its addresses, in whole chunks, each
//! registration with a descriptor of its own.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use crate::device::Memory;

/// The program's memory in a heap, by offset.
#[derive(Debug, Default)]
pub(super) struct Runs(BTreeMap<u64, Run>);

#[derive(Debug)]
struct Run {
    memory: Memory,
    bytes: u64,
    /// Addresses that it takes: whole chunks.
    span: u64,
}

impl Runs {
    /// Returns the lowest offset of a run; `max`, the end of the heap, if there is none.
    pub fn first(&self, max: u64) -> u64 {
        self.0.keys().next().copied().unwrap_or(max)
    }

    /// Returns the highest free offset for `bytes` bytes in `free`, of whole chunks, outside the
    /// runs; the bytes of the largest free range, otherwise.
    pub fn place(&self, bytes: u64, free: (u64, u64), chunk: u64) -> Result<u64, u64> {
        let (start, mut end) = free;
        let mut largest = 0;
        let runs = self.0.iter().rev().map(|(offset, run)| (*offset, offset + run.span));
        for (offset, after) in runs.chain([(start, start)]) {
            let room = end.saturating_sub(after);
            largest = largest.max(room);
            if bytes.checked_next_multiple_of(chunk).is_some_and(|span| span <= room) {
                return Ok(end - bytes.next_multiple_of(chunk));
            }
            end = offset;
        }
        Err(largest)
    }

    /// Adds a run at an offset that [`place`](Self::place) returned.
    pub fn insert(&mut self, offset: u64, bytes: u64, memory: Memory, chunk: u64) {
        self.0.insert(offset, Run { memory, bytes, span: bytes.next_multiple_of(chunk) });
    }

    /// Removes the run at an offset; returns its bytes.
    pub fn remove(&mut self, offset: u64) -> Option<u64> {
        self.0.remove(&offset).map(|run| run.bytes)
    }

    /// Returns the run that begins at an offset.
    pub fn find(&self, offset: u64) -> Option<(BorrowedFd<'_>, u64)> {
        self.0.get(&offset).map(|run| (run.memory.as_fd(), run.bytes))
    }

    /// Returns where the runs begin.
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    /// Returns whether a run has all of `bytes` bytes from `offset` on.
    pub fn hold(&self, offset: u64, bytes: u64) -> bool {
        let before = self.0.range(..=offset).next_back();
        before.is_some_and(|(at, run)| {
            let into = offset - at;
            into < run.bytes && bytes <= run.bytes - into
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::device::{CpuDevice, Device};

    #[test]
    fn runs_take_the_highest_free_chunks_and_give_them_back() {
        const CHUNK: u64 = 1 << 16;
        let device = CpuDevice::new(&Config::default()).unwrap();
        let mut runs = Runs::default();
        let free = (2 * CHUNK, 10 * CHUNK);
        let add = |runs: &mut Runs, bytes: u64| {
            let offset = runs.place(bytes, free, CHUNK)?;
            runs.insert(offset, bytes, device.allocate(4096).unwrap(), CHUNK);
            Ok::<u64, u64>(offset / CHUNK)
        };
        assert_eq!(runs.first(10 * CHUNK), 10 * CHUNK);
        assert_eq!(add(&mut runs, CHUNK + 4096), Ok(8));
        assert_eq!(add(&mut runs, CHUNK), Ok(7));
        assert_eq!(add(&mut runs, 3 * CHUNK), Ok(4));
        assert_eq!(add(&mut runs, 3 * CHUNK), Err(2 * CHUNK));
        assert!(runs.hold(8 * CHUNK, CHUNK + 4096) && !runs.hold(8 * CHUNK, CHUNK + 4097));
        assert!(!runs.hold(6 * CHUNK, CHUNK + 1) && !runs.hold(3 * CHUNK, 1));
        assert_eq!((runs.remove(7 * CHUNK), runs.remove(7 * CHUNK)), (Some(CHUNK), None));
        // The hole, and then below everything.
        assert_eq!(add(&mut runs, 4096), Ok(7));
        assert_eq!(add(&mut runs, 2 * CHUNK), Ok(2));
        assert_eq!(runs.first(10 * CHUNK), 2 * CHUNK);
        assert_eq!(runs.place(u64::MAX, free, CHUNK), Err(0));
    }
}
