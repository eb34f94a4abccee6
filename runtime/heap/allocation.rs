//! Records of allocations: what slices are checked against, and what errors name.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::identity::PeId;

/// A live or freed allocation of a symmetric heap. The heap and every slice of the allocation share
/// it.
#[derive(Debug)]
pub(crate) struct Allocation {
    pe: PeId,
    /// Address of this PE's copy.
    address: u64,
    /// Offset in the heap.
    offset: u64,
    bytes: u64,
    made_at: Option<&'static Location<'static>>,
    freed: AtomicBool,
}

impl Allocation {
    pub(crate) fn new(
        pe: PeId,
        base: u64,
        offset: u64,
        bytes: u64,
        made_at: Option<&'static Location<'static>>,
    ) -> Self {
        Self { pe, address: base + offset, offset, bytes, made_at, freed: AtomicBool::new(false) }
    }

    pub(crate) fn pe(&self) -> PeId {
        self.pe
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed)
    }

    /// Ends the allocation: every slice of it is refused from here on.
    pub(crate) fn end(&self) {
        self.freed.store(true, Ordering::Relaxed);
    }

    /// Returns what errors say of the allocation.
    pub(crate) fn info(&self) -> Box<AllocationInfo> {
        Box::new(AllocationInfo { offset: self.offset, bytes: self.bytes, made_at: self.made_at })
    }
}

/// An allocation of the symmetric heap, as errors name it.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{Error, HeapError};
///
/// let words = pe.alloc::<u64>(4)?;
/// let Err(Error::Heap(HeapError::OutOfRange { allocation, .. })) = pe.read(words.view(2..9)) else { panic!() };
/// assert_eq!(allocation.bytes, 32);
/// assert!(allocation.made_at.is_some()); // the line of `alloc`
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocationInfo {
    /// Offset of its first byte in the heap, the same on every PE.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where the program allocated it. `None` for allocations that a C program or the runtime made.
    pub made_at: Option<&'static Location<'static>>,
}

impl fmt::Display for AllocationInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the allocation of {} bytes at offset {:#x} of the symmetric heap", self.bytes, self.offset)?;
        self.made_at.map_or(Ok(()), |place| write!(f, ", made at {place}"))
    }
}
