//! The sub-allocator of the symmetric heap. Deterministic: the same calls give the same offsets on
//! every PE.

use std::collections::BTreeMap;

use offset_allocator::{Allocation, Allocator};

/// Allocation granularity: no two allocations share a line that hardware transfers at once.
const LINE: u64 = crate::abi::LINE_BYTES;

/// Allocations that may be live at a time.
const MAX_ALLOCATIONS: u32 = 1 << 16;

/// The heap has no room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted {
    /// Free bytes in all.
    pub free: u64,
    /// Bytes of the largest free range.
    pub largest: u64,
}

/// Hands out ranges of `0..capacity`.
pub(crate) struct HeapAllocator {
    inner: Allocator<u32>,
    live: BTreeMap<u64, Live>,
}

struct Live {
    allocation: Allocation<u32>,
    bytes: u64,
}

impl HeapAllocator {
    /// Creates the allocator; `capacity` is a multiple of [`LINE`]. Lines are counted in 32 bits,
    /// so of 512 GiB, the configuration's limit, the last is not used.
    pub(crate) fn new(capacity: u64) -> Self {
        let lines = u32::try_from(capacity / LINE).unwrap_or(u32::MAX);
        Self { inner: Allocator::with_max_allocs(lines, MAX_ALLOCATIONS), live: BTreeMap::new() }
    }

    /// Returns the offset of `bytes` bytes (at least 1) aligned to `align`, a power of two.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64) -> Result<u64, Exhausted> {
        let align_lines = align.div_ceil(LINE);
        // Ranges start at any line, so an alignment beyond one line is made by asking for more.
        let lines = bytes.max(1).div_ceil(LINE).checked_add(align_lines - 1);
        let allocation = lines.and_then(|l| u32::try_from(l).ok()).and_then(|lines| self.inner.allocate(lines));
        let Some(allocation) = allocation else { return Err(self.left()) };
        let offset = u64::from(allocation.offset).next_multiple_of(align_lines) * LINE;
        self.live.insert(offset, Live { allocation, bytes });
        Ok(offset)
    }

    /// Returns what is free.
    pub(crate) fn left(&self) -> Exhausted {
        let report = self.inner.storage_report();
        Exhausted {
            free: u64::from(report.total_free_space) * LINE,
            largest: u64::from(report.largest_free_region) * LINE,
        }
    }

    /// Gives the allocation at `offset` back; returns whether there was one.
    pub(crate) fn free(&mut self, offset: u64) -> bool {
        let live = self.live.remove(&offset);
        live.inspect(|live| self.inner.free(live.allocation)).is_some()
    }

    /// Returns whether an allocation holds `offset`, be it of the program or the runtime's own.
    pub(crate) fn holds(&self, offset: u64) -> bool {
        self.live.range(..=offset).next_back().is_some_and(|(at, live)| offset - at < live.bytes)
    }

    /// Returns how many allocations were not freed.
    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }
}

impl std::fmt::Debug for HeapAllocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeapAllocator").field("live", &self.live.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_allocated_holds_its_offsets_alone() {
        let mut heap = HeapAllocator::new(1 << 20);
        assert!(!heap.holds(5));
        let (first, second) = (heap.allocate(64, 8).unwrap(), heap.allocate(4096, 8).unwrap());
        assert!(heap.free(second));
        assert!(heap.holds(first) && heap.holds(first + 63));
        assert!(!heap.holds(first + 64) && !heap.holds(second));
    }

    #[test]
    fn exhausted_says_what_is_left() {
        let mut heap = HeapAllocator::new(1 << 20);
        heap.allocate(1 << 19, 8).unwrap();
        let err = heap.allocate(1 << 20, 8).unwrap_err();
        assert_eq!(err, Exhausted { free: 1 << 19, largest: 1 << 19 });
        assert!(heap.allocate(u64::MAX, 8).is_err());
    }

    #[test]
    fn freeing_what_is_not_allocated_is_refused() {
        let mut heap = HeapAllocator::new(1 << 20);
        let a = heap.allocate(100, 8).unwrap();
        assert!(!heap.free(a + 128));
        assert!(heap.free(a));
        assert!(!heap.free(a));
    }

    proptest! {
        /// Ranges are aligned, inside the heap and disjoint, and two allocators given the same
        /// calls agree.
        #[test]
        fn ranges_are_disjoint_and_symmetric(calls in prop::collection::vec((1u64..100_000, 0u32..13, any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
            const CAPACITY: u64 = 1 << 22;
            let (mut a, mut b) = (HeapAllocator::new(CAPACITY), HeapAllocator::new(CAPACITY));
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (bytes, align, pick, free) in calls {
                if free && !live.is_empty() {
                    let (offset, _) = live.swap_remove(pick.index(live.len()));
                    prop_assert!(a.free(offset));
                    prop_assert!(b.free(offset));
                    continue;
                }
                let got = a.allocate(bytes, 1 << align);
                prop_assert_eq!(got, b.allocate(bytes, 1 << align));
                if let Ok(offset) = got {
                    prop_assert_eq!(offset % (1 << align), 0);
                    prop_assert!(offset + bytes <= CAPACITY);
                    for &(o, n) in &live {
                        prop_assert!(offset + bytes <= o || o + n <= offset);
                    }
                    live.push((offset, bytes));
                }
            }
        }
    }
}
