//! The sub-allocator of the symmetric heap: best fit over all free ranges, so a request that fits
//! anywhere succeeds. Deterministic: the same calls give the same offsets on every PE.

use std::collections::{BTreeMap, BTreeSet};

/// Allocation granularity: no two allocations share a line that hardware transfers at once.
const LINE: u64 = crate::abi::LINE_BYTES;

/// The heap has no room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exhausted {
    /// Free bytes in all.
    pub free: u64,
    /// Bytes of the largest request of the same alignment that there is room for.
    pub largest: u64,
}

/// Hands out ranges of `0..capacity`. All ranges consist of whole lines.
pub(crate) struct HeapAllocator {
    /// Free ranges: the bytes of each by its offset. No two of them touch.
    free: BTreeMap<u64, u64>,
    /// The same, as bytes and offset.
    by_bytes: BTreeSet<(u64, u64)>,
    /// Bytes of each allocation by its offset, as requested.
    live: BTreeMap<u64, u64>,
}

impl HeapAllocator {
    /// Creates the allocator; `capacity` is a multiple of [`LINE`].
    pub(crate) fn new(capacity: u64) -> Self {
        let mut heap = Self { free: BTreeMap::new(), by_bytes: BTreeSet::new(), live: BTreeMap::new() };
        heap.add_free(0, capacity);
        heap
    }

    /// Returns the offset of `bytes` bytes (at least a line) aligned to `align`, a power of two,
    /// that end at `ceiling` or below: those of the smallest free range that has room, and of the
    /// lowest of several.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64, ceiling: u64) -> Result<u64, Exhausted> {
        let found = bytes.max(1).checked_next_multiple_of(LINE).and_then(|length| {
            let ranges = self.by_bytes.range((length, 0)..);
            ranges
                .map(|(range, at)| (*at, *range, length))
                .find(|(at, range, length)| room(*at, *range, align, ceiling) >= *length)
        });
        let Some((at, range, length)) = found else { return Err(self.left(align, ceiling)) };
        let offset = at.next_multiple_of(align);
        self.remove_free(at, range);
        self.add_free(at, offset - at);
        self.add_free(offset + length, at + range - (offset + length));
        self.live.insert(offset, bytes);
        Ok(offset)
    }

    /// Returns what is free below `ceiling`.
    fn left(&self, align: u64, ceiling: u64) -> Exhausted {
        let ranges = || self.free.range(..ceiling).map(|(at, range)| (*at, *range));
        Exhausted {
            free: ranges().map(|(at, range)| room(at, range, 1, ceiling)).sum(),
            largest: ranges().map(|(at, range)| room(at, range, align, ceiling)).max().unwrap_or_default(),
        }
    }

    /// Gives the allocation at `offset` back; returns whether there was one.
    pub(crate) fn free(&mut self, offset: u64) -> bool {
        let Some(bytes) = self.live.remove(&offset) else { return false };
        let (mut at, mut end) = (offset, offset + bytes.max(1).next_multiple_of(LINE));
        let before = self.free.range(..offset).next_back().map(|(at, range)| (*at, *range));
        if let Some((lower, range)) = before.filter(|(lower, range)| lower + range == at) {
            self.remove_free(lower, range);
            at = lower;
        }
        if let Some(range) = self.free.get(&end).copied() {
            self.remove_free(end, range);
            end += range;
        }
        self.add_free(at, end - at);
        true
    }

    /// Adds a free range that no other one touches, unless it is empty.
    fn add_free(&mut self, at: u64, bytes: u64) {
        if bytes != 0 {
            self.free.insert(at, bytes);
            self.by_bytes.insert((bytes, at));
        }
    }

    fn remove_free(&mut self, at: u64, bytes: u64) {
        self.free.remove(&at);
        self.by_bytes.remove(&(bytes, at));
    }

    /// Returns whether an allocation holds `offset`, be it of the program or the runtime's own.
    pub(crate) fn holds(&self, offset: u64) -> bool {
        self.live.range(..=offset).next_back().is_some_and(|(at, bytes)| offset - at < *bytes)
    }

    /// Returns how many allocations were not freed.
    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }
}

/// Returns the bytes of a free range that follow its first aligned offset and lie below `ceiling`.
fn room(at: u64, bytes: u64, align: u64, ceiling: u64) -> u64 {
    let end = (at + bytes).min(ceiling);
    at.checked_next_multiple_of(align).map_or(0, |start| end.saturating_sub(start))
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

    const MIB: u64 = 1 << 20;

    /// Allocates in a heap of that many bytes.
    fn allocate(heap: &mut HeapAllocator, bytes: u64, align: u64) -> Result<u64, Exhausted> {
        heap.allocate(bytes, align, u64::MAX)
    }

    #[test]
    fn what_is_allocated_holds_its_offsets_alone() {
        let mut heap = HeapAllocator::new(MIB);
        assert!(!heap.holds(5));
        let (first, second) = (allocate(&mut heap, 64, 8).unwrap(), allocate(&mut heap, 4096, 8).unwrap());
        assert!(heap.free(second));
        assert!(heap.holds(first) && heap.holds(first + 63));
        assert!(!heap.holds(first + 64) && !heap.holds(second));
    }

    #[test]
    fn exhausted_says_what_is_left() {
        let mut heap = HeapAllocator::new(MIB);
        allocate(&mut heap, MIB / 2 + LINE, 8).unwrap();
        let left = |largest| Err(Exhausted { free: MIB / 2 - LINE, largest });
        assert_eq!(allocate(&mut heap, MIB, 8), left(MIB / 2 - LINE));
        // From the next multiple of the alignment on.
        assert_eq!(allocate(&mut heap, MIB / 2 - LINE, MIB / 4), left(MIB / 4));
        assert_eq!(allocate(&mut heap, u64::MAX, 8), left(MIB / 2 - LINE));
        assert_eq!(heap.allocate(MIB / 4, 8, MIB / 2 + 2 * LINE), Err(Exhausted { free: LINE, largest: LINE }));
    }

    #[test]
    fn whatever_fits_is_allocated() {
        // All that is free, and a hole of exactly the bytes.
        let mut heap = HeapAllocator::new(1024 * MIB);
        let whole = allocate(&mut heap, 1024 * MIB, 8).unwrap();
        assert!(heap.free(whole));
        let offsets: Vec<u64> = (0..4).map(|_| allocate(&mut heap, 250 * MIB, 8).unwrap()).collect();
        assert!(heap.free(offsets[1]));
        assert_eq!(allocate(&mut heap, 250 * MIB, 8), Ok(offsets[1]));
        // Alignment costs no room where an aligned range is free.
        let mut heap = HeapAllocator::new(1024 * MIB);
        assert!((0..16).all(|_| allocate(&mut heap, 64 * MIB, 64 * MIB).is_ok()));
        assert!(allocate(&mut heap, 1, 1).is_err());
    }

    #[test]
    fn holes_that_are_too_small_once_aligned_are_passed_over() {
        let mut heap = HeapAllocator::new(MIB);
        let mut line = || allocate(&mut heap, LINE, 8).unwrap();
        let holes = [(); 6].map(|()| line());
        // A hole that begins at an odd line and ends at the next but one.
        assert!(heap.free(holes[1]) && heap.free(holes[2]));
        assert_eq!(allocate(&mut heap, 2 * LINE, 2 * LINE), Ok(6 * LINE));
        assert_eq!(allocate(&mut heap, 2 * LINE, LINE), Ok(holes[1]));
    }

    #[test]
    fn there_may_be_any_number_of_allocations() {
        const N: u64 = 200_000;
        let mut heap = HeapAllocator::new(N * LINE);
        assert!((0..N).all(|i| allocate(&mut heap, 1, 1) == Ok(i * LINE)));
        assert!((0..N).step_by(2).all(|i| heap.free(i * LINE)));
        assert_eq!(allocate(&mut heap, 2 * LINE, 1), Err(Exhausted { free: N / 2 * LINE, largest: LINE }));
        assert!((1..N).step_by(2).all(|i| heap.free(i * LINE)));
        assert_eq!(allocate(&mut heap, N * LINE, 1), Ok(0));
    }

    #[test]
    fn freeing_what_is_not_allocated_is_refused() {
        let mut heap = HeapAllocator::new(MIB);
        let a = allocate(&mut heap, 100, 8).unwrap();
        assert!(!heap.free(a + 128));
        assert!(heap.free(a));
        assert!(!heap.free(a));
    }

    proptest! {
        /// Ranges are aligned, inside the heap and disjoint, requests that fit succeed, and two
        /// allocators given the same calls agree.
        #[test]
        fn ranges_are_disjoint_and_symmetric_and_found(calls in prop::collection::vec((1u64..100_000, 0u32..13, any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
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
                let got = a.allocate(bytes, 1 << align, CAPACITY);
                prop_assert_eq!(got, b.allocate(bytes, 1 << align, CAPACITY));
                // Free lines that lie between the others, of which none has room if there is none.
                live.sort_unstable();
                let mut at = 0u64;
                let mut fits = 0u64;
                for (offset, bytes) in live.iter().copied().chain([(CAPACITY, 0)]) {
                    fits = fits.max(offset.saturating_sub(at.next_multiple_of(1 << align)));
                    at = (offset + bytes).next_multiple_of(LINE);
                }
                prop_assert_eq!(got.is_ok(), bytes.next_multiple_of(LINE) <= fits);
                if let Err(left) = got {
                    prop_assert_eq!(left.largest, fits);
                }
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
