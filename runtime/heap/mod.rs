//! The symmetric heap: address space of every load/store reachable PE, backed chunk by chunk, and the allocator on top.
//!
//! All heaps of a node lie in one reservation, `stride` apart, so a peer's copy of an address is one multiply-add away. Memory is
//! added in chunks as allocations reach it; a chunk is a descriptor that every peer maps at the same offset.

mod allocator;
mod links;

use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use allocator::HeapAllocator;
pub(crate) use links::PeerLinks;

use crate::device::{AddressSpace, Device, DeviceError, Memory};

/// What the symmetric heap refused or could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// No room.
    #[error(
        "the symmetric heap is exhausted: {requested} bytes requested (alignment {align}), {free} of {max} bytes free, the largest \
         free range has {largest}; raise OXSHMEM_HEAP_MAX, now {max}"
    )]
    Exhausted {
        /// Bytes asked for.
        requested: u64,
        /// Alignment asked for.
        align: u64,
        /// Bytes free in all.
        free: u64,
        /// Bytes of the largest free range.
        largest: u64,
        /// The heap's limit.
        max: u64,
    },
    /// PEs called with different sizes or in a different order.
    #[error(
        "symmetric call differs between PEs: PE {me} calls {mine}, PE {pe} calls {theirs}; all PEs must make the same calls in the same order"
    )]
    Asymmetric {
        /// This PE.
        me: usize,
        /// Its call.
        mine: String,
        /// A PE that called something else.
        pe: usize,
        /// What it called.
        theirs: String,
    },
    /// Not a power of two, or too large.
    #[error("alignment {align} is not a power of two between 1 and {limit}")]
    Alignment {
        /// The alignment asked for.
        align: u64,
        /// The limit.
        limit: u64,
    },
    /// Free of something that is not allocated.
    #[error("free of {address:#x}, which is not the start of a live allocation of the symmetric heap")]
    NotAllocated {
        /// The address.
        address: u64,
    },
    /// The program's side of an on-stream operation is pageable host memory.
    #[error(
        "{bytes} bytes at {address:#x} are not memory that the GPU can access; for operations on a stream use memory of the symmetric heap, of \
         the GPU (cudaMalloc), or page-locked memory (cudaMallocHost)"
    )]
    NotOnDevice {
        /// The address.
        address: u64,
        /// Length of the transfer.
        bytes: usize,
    },
    /// A range outside an allocation.
    #[error("elements {first}..{last} of a symmetric slice of {len}")]
    OutOfRange {
        /// First element.
        first: usize,
        /// Behind the last element.
        last: usize,
        /// Elements there are.
        len: usize,
    },
    /// A PE has no memory to grow the heap with. No PE has grown it.
    #[error("PE {pe} cannot add memory to the symmetric heap: {reason}")]
    NoMemory {
        /// The first PE that could not.
        pe: usize,
        /// What its device said.
        reason: String,
    },
    /// A peer's memory cannot be mapped here.
    #[error("the heap memory of PE {pe} cannot be mapped: {source}")]
    Map {
        /// The peer.
        pe: usize,
        /// What this PE's device said.
        source: Box<DeviceError>,
    },
    /// The connection to a PE of the node broke or fell silent while memory was exchanged.
    #[error("exchange of heap memory with PE {pe}: {what}: {source}")]
    Peer {
        /// The peer.
        pe: usize,
        /// What was attempted.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Sizes of the heaps of a job; the same on every PE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeapLayout {
    /// Most bytes of one heap: a multiple of `chunk`.
    pub max: u64,
    /// Bytes of a chunk, a power of two.
    pub chunk: u64,
    /// Heaps in the reservation.
    pub slots: usize,
    /// Which of them is the own one.
    pub my_slot: usize,
}

/// Memory that was added to the own heap.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub memory: Memory,
}

/// The symmetric heap of this PE, with its peers' mapped beside it.
#[derive(Debug)]
pub(crate) struct SymmetricHeap {
    device: Arc<dyn Device>,
    space: Box<dyn AddressSpace>,
    layout: HeapLayout,
    links: PeerLinks,
    chunks: Vec<Chunk>,
    allocator: HeapAllocator,
}

impl SymmetricHeap {
    pub(crate) fn new(device: Arc<dyn Device>, layout: HeapLayout, links: PeerLinks) -> Result<Self, DeviceError> {
        let space = device.reserve(layout.max * layout.slots as u64)?;
        Ok(Self { device, space, layout, links, chunks: Vec::new(), allocator: HeapAllocator::new(layout.max) })
    }

    /// Address of the own heap.
    pub(crate) fn base(&self) -> u64 {
        self.space.base() + self.layout.my_slot as u64 * self.layout.max
    }

    pub(crate) fn layout(&self) -> HeapLayout {
        self.layout
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Bytes that have memory behind them, from the heap's start.
    pub(crate) fn backed(&self) -> u64 {
        self.chunks.len() as u64 * self.layout.chunk
    }

    /// The offset of `bytes` bytes aligned to `align`. Memory behind it may still have to be added by [`grow`](Self::grow).
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64) -> Result<u64, HeapError> {
        if !align.is_power_of_two() || align > self.layout.chunk {
            return Err(HeapError::Alignment { align, limit: self.layout.chunk });
        }
        self.allocator.allocate(bytes, align).map_err(|left| HeapError::Exhausted {
            requested: bytes,
            align,
            free: left.free,
            largest: left.largest,
            max: self.layout.max,
        })
    }

    /// Gives an allocation back and answers its length.
    pub(crate) fn free(&mut self, offset: u64) -> Result<u64, HeapError> {
        self.allocator.free(offset).ok_or(HeapError::NotAllocated { address: self.base().wrapping_add(offset) })
    }

    /// Allocations that were not freed.
    pub(crate) fn live(&self) -> usize {
        self.allocator.live()
    }

    /// Says of an offset of any PE's heap why there is no memory of the program, and which allocation is the nearest. `None` if an
    /// allocation holds the offset.
    pub(crate) fn complaint(&self, offset: u64) -> Option<String> {
        let nearest = self.allocator.nearest(offset);
        if nearest.is_some_and(|(at, bytes)| (at..at + bytes).contains(&offset)) {
            return None;
        }
        let grown = self.backed();
        let beyond =
            if offset < grown { String::new() } else { format!(" (the heap has grown to {grown:#x} bytes so far)") };
        let nearest = nearest.map_or_else(
            || "nothing is allocated".to_owned(),
            |(at, bytes)| format!("the allocation nearest to it is [{at:#x}, {:#x})", at + bytes),
        );
        Some(format!("heap offset {offset:#x} is not allocated{beyond}; {nearest}; pass memory of Pe::alloc"))
    }

    /// Memory for the chunks that are missing until `end` bytes are backed. Nothing has changed until it is given to
    /// [`grow`](Self::grow).
    pub(crate) fn allocate_chunks(&self, end: u64) -> Result<Vec<Memory>, DeviceError> {
        let wanted = usize::try_from(end.div_ceil(self.layout.chunk)).unwrap_or(usize::MAX);
        (self.chunks.len()..wanted).map(|_| self.device.allocate(self.layout.chunk)).collect()
    }

    /// Adds this memory, here and in the mappings of all reachable peers, who call this with as many chunks. Answers the indices of the
    /// new chunks.
    pub(crate) fn grow(&mut self, memory: Vec<Memory>, timeout: Duration) -> Result<Range<usize>, crate::Error> {
        let first = self.chunks.len();
        for memory in memory {
            let index = self.chunks.len();
            let offset = index as u64 * self.layout.chunk;
            self.space.map_own(&memory, self.at(self.layout.my_slot, offset), self.layout.chunk)?;
            self.links.send(index, memory.as_fd(), timeout)?;
            for (pe, slot, theirs) in self.links.receive(index, timeout)? {
                self.space
                    .map(theirs.as_fd(), self.at(slot, offset), self.layout.chunk)
                    .map_err(|source| HeapError::Map { pe, source: source.into() })?;
            }
            self.chunks.push(Chunk { memory });
        }
        Ok(first..self.chunks.len())
    }

    /// Where an offset of a heap is in the address space.
    fn at(&self, slot: usize, offset: u64) -> u64 {
        slot as u64 * self.layout.max + offset
    }
}
