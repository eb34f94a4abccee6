//! The allocations of a heap by their place in it: live ones, and freed ones whose memory no later
//! allocation has taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::allocation::{Allocation, AllocationInfo};
use super::error::AddressProblem;

/// Records of freed allocations that are kept for the texts of errors.
const MAX_FREED: usize = 1024;

/// The allocations of one heap.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// With their offsets, and in their order. Every operation looks for an allocation, and few are
    /// made.
    live: Vec<(u64, Arc<Allocation>)>,
    freed: BTreeMap<u64, Arc<Allocation>>,
}

impl Records {
    /// Takes in a new allocation.
    pub fn insert(&mut self, allocation: Allocation) -> Arc<Allocation> {
        let allocation = Arc::new(allocation);
        let range = allocation.offset()..=allocation.offset() + allocation.bytes().saturating_sub(1);
        let before = self.freed.range(..range.start()).next_back().filter(|(_, freed)| end(freed) > *range.start());
        let mut taken: Vec<u64> = before.map(|(offset, _)| *offset).into_iter().collect();
        taken.extend(self.freed.range(range).map(|(offset, _)| *offset));
        for offset in taken {
            self.freed.remove(&offset);
        }
        let entry = (allocation.offset(), Arc::clone(&allocation));
        match self.place(allocation.offset()) {
            Ok(at) => self.live[at] = entry,
            Err(at) => self.live.insert(at, entry),
        }
        allocation
    }

    /// Returns where the live allocation that begins at `offset` is, or where it would be.
    fn place(&self, offset: u64) -> Result<usize, usize> {
        self.live.binary_search_by_key(&offset, |(offset, _)| *offset)
    }

    /// Returns the last live allocation that begins at or before `offset`.
    fn before(&self, offset: u64) -> Option<&Arc<Allocation>> {
        let after = self.live.partition_point(|(begin, _)| *begin <= offset);
        self.live.get(after.checked_sub(1)?).map(|(_, allocation)| allocation)
    }

    /// Ends the live allocation that begins at `offset`; returns whether there is one.
    pub fn end(&mut self, offset: u64) -> bool {
        let Ok(at) = self.place(offset) else { return false };
        let (_, allocation) = self.live.remove(at);
        allocation.end();
        if self.freed.len() == MAX_FREED {
            self.freed.pop_first();
        }
        self.freed.insert(offset, allocation);
        true
    }

    /// Ends all allocations.
    pub fn end_all(&self) {
        self.live.iter().for_each(|(_, allocation)| allocation.end());
    }

    /// Returns the live allocation that has all of `bytes` bytes from `offset` on.
    pub fn find(&self, offset: u64, bytes: u64) -> Result<&Arc<Allocation>, AddressProblem> {
        if let Some(allocation) = self.before(offset).filter(|allocation| offset <= end(allocation)) {
            let room = end(allocation) - offset;
            if bytes <= room {
                return Ok(allocation);
            }
            if room > 0 {
                return Err(AddressProblem::Beyond { allocation: allocation.info(), room });
            }
        }
        let freed = self.freed.range(..=offset).next_back().map(|(_, allocation)| allocation);
        if let Some(allocation) = freed.filter(|allocation| offset < end(allocation).max(allocation.offset() + 1)) {
            return Err(AddressProblem::Freed(allocation.info()));
        }
        Err(AddressProblem::Unallocated { nearest: self.nearest(offset) })
    }

    /// Returns the live allocation nearest to `offset`.
    pub fn nearest(&self, offset: u64) -> Option<Box<AllocationInfo>> {
        let before = self.before(offset);
        let after = self.place(offset).unwrap_or_else(|after| after);
        let after = self.live.get(after).map(|(_, allocation)| allocation);
        let distance = |allocation: &&Arc<Allocation>| {
            if allocation.offset() > offset {
                allocation.offset() - offset
            } else {
                offset.saturating_sub(end(allocation))
            }
        };
        before.into_iter().chain(after).min_by_key(distance).map(|allocation| allocation.info())
    }

    /// Returns what errors say of the live allocations, in the order of their offsets.
    pub fn infos(&self) -> Vec<AllocationInfo> {
        self.live.iter().map(|(_, allocation)| *allocation.info()).collect()
    }
}

/// Returns the offset after the last byte.
fn end(allocation: &Allocation) -> u64 {
    allocation.offset() + allocation.bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::identity::PeId;

    fn records(ranges: &[(u64, u64)]) -> Records {
        let pe = PeId::next();
        let mut records = Records::default();
        for (offset, bytes) in ranges {
            records.insert(Allocation::new(pe, 1 << 20, *offset, *bytes, None));
        }
        records
    }

    #[test]
    fn a_range_belongs_to_the_allocation_that_has_all_of_it() {
        let records = records(&[(0, 128), (128, 100), (512, 64), (640, 0)]);
        assert_eq!(records.find(0, 128).unwrap().offset(), 0);
        assert_eq!(records.find(130, 98).unwrap().offset(), 128);
        assert_eq!(records.find(228, 0).unwrap().offset(), 128);
        assert_eq!(records.find(640, 0).unwrap().offset(), 640);
        let beyond =
            |problem| matches!(problem, AddressProblem::Beyond { allocation, room: 64 } if allocation.offset == 512);
        assert!(beyond(records.find(512, 65).unwrap_err()));
        assert!(beyond(records.find(512, u64::MAX).unwrap_err()));
        for (offset, nearest) in [(230, 128), (500, 512), (u64::MAX, 640)] {
            let problem = records.find(offset, 1).unwrap_err();
            let AddressProblem::Unallocated { nearest: Some(info) } = problem else { panic!("{problem:?}") };
            assert_eq!(info.offset, nearest, "{offset}");
        }
    }

    #[test]
    fn a_freed_allocation_is_named_until_its_memory_is_taken() {
        let mut records = records(&[(0, 128), (128, 256)]);
        let slice = Arc::clone(records.find(128, 1).unwrap());
        assert!(records.end(128) && !records.end(128) && slice.is_freed());
        assert!(matches!(records.find(200, 8), Err(AddressProblem::Freed(info)) if info.offset == 128));
        records.insert(Allocation::new(PeId::next(), 1 << 20, 256, 128, None));
        assert!(matches!(records.find(200, 8), Err(AddressProblem::Unallocated { .. })));
        assert_eq!(records.find(256, 8).unwrap().offset(), 256);
    }
}
