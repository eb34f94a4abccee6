//! The symmetric heap: address space of every load/store reachable PE, backed chunk by chunk, and
//! the allocator on top.
//!
//! All heaps of a node lie in one reservation, `stride` apart, so a peer's copy of an address is
//! one multiply-add away. Memory is added in chunks as allocations reach it; a chunk is a
//! descriptor that every peer maps at the same offset.

pub(crate) mod allocation;
mod allocator;
pub(crate) mod error;
mod links;
mod past;
mod records;
mod runs;

use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use allocation::{Allocation, AllocationInfo};
use allocator::{Exhausted, HeapAllocator};
use error::{AddressProblem, HeapError};
pub(crate) use links::PeerLinks;
use records::Records;
use runs::Runs;

use crate::device::{AddressSpace, Device, DeviceError, Memory};
use crate::identity::PeId;

/// Sizes of the heaps of a job; the same on every PE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeapLayout {
    /// Most bytes of one heap: a multiple of `chunk`.
    pub max: u64,
    /// Bytes of a chunk, a power of two.
    pub chunk: u64,
    /// Heaps in the reservation.
    pub slots: usize,
    /// Which of them is this PE's.
    pub my_slot: usize,
}

/// Memory that was added to this PE's heap.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub memory: Memory,
}

/// The symmetric heap of this PE, with its peers' mapped beside it.
#[derive(Debug)]
pub(crate) struct SymmetricHeap {
    device: Arc<dyn Device>,
    pe: PeId,
    layout: HeapLayout,
    links: PeerLinks,
    chunks: Vec<Chunk>,
    allocator: HeapAllocator,
    /// Memory of the program, at the end of the heap's addresses.
    runs: Runs,
    place: Place,
}

/// Where the heaps of the node are, and the allocations of this PE's, which end with it. What was
/// mapped is unmapped then, and the addresses are kept for some time.
#[derive(Debug)]
struct Place {
    space: Box<dyn AddressSpace>,
    addresses: Range<u64>,
    /// First address of this PE's heap.
    base: u64,
    records: Records,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(kept) = self.space.retire() {
            past::keep(kept, self.addresses.clone(), self.base, self.records.infos());
        }
        self.records.end_all();
    }
}

/// Where the program's side of a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalPlace {
    /// In a live allocation of this PE's heap.
    Heap,
    /// In a peer's heap that is mapped here.
    Peer,
    /// Anywhere else.
    Outside,
}

impl SymmetricHeap {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        pe: PeId,
        layout: HeapLayout,
        links: PeerLinks,
    ) -> Result<Self, DeviceError> {
        let bytes = layout.max * layout.slots as u64;
        // Allocations may be aligned to a chunk, which is a power of two and divides `max`.
        let space = device.reserve(bytes, layout.chunk)?;
        let addresses = space.base()..space.base() + bytes;
        let base = space.base() + layout.my_slot as u64 * layout.max;
        let place = Place { space, addresses, base, records: Records::default() };
        let allocator = HeapAllocator::new(layout.max);
        Ok(Self { device, pe, layout, links, chunks: Vec::new(), allocator, runs: Runs::default(), place })
    }

    /// Returns the first address of this PE's heap.
    pub(crate) fn base(&self) -> u64 {
        self.place.base
    }

    pub(crate) fn layout(&self) -> HeapLayout {
        self.layout
    }

    /// Returns the connections to the PEs whose heaps are mapped here.
    pub(crate) fn links(&self) -> &PeerLinks {
        &self.links
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Returns how many bytes are backed by memory, from the heap's start.
    pub(crate) fn backed(&self) -> u64 {
        self.chunks.len() as u64 * self.layout.chunk
    }

    /// Returns the offset of `bytes` bytes aligned to `align` for the runtime's own use.
    /// [`grow`](Self::grow) may still have to add the memory.
    pub(crate) fn reserve(&mut self, bytes: u64, align: u64) -> Result<u64, HeapError> {
        if !align.is_power_of_two() || align > self.layout.chunk {
            return Err(HeapError::Alignment { align, limit: self.layout.chunk });
        }
        let ceiling = self.runs.first(self.layout.max);
        // Above it is memory of the program.
        let Exhausted { free, largest } = match self.allocator.allocate(bytes, align, ceiling) {
            Ok(offset) => return Ok(offset),
            Err(left) => left,
        };
        Err(HeapError::Exhausted { requested: bytes, align, free, largest, max: self.layout.max })
    }

    /// Gives what [`reserve`](Self::reserve) returned back.
    pub(crate) fn cancel(&mut self, offset: u64) {
        self.allocator.free(offset);
    }

    /// Makes a reserved range an allocation that slices can be of.
    pub(crate) fn record(
        &mut self,
        offset: u64,
        bytes: u64,
        made_at: Option<&'static Location<'static>>,
    ) -> Arc<Allocation> {
        let allocation = Allocation::new(self.pe, self.base(), offset, bytes, made_at);
        self.place.records.insert(allocation)
    }

    /// Gives a live allocation back.
    pub(crate) fn free(&mut self, allocation: &Allocation) -> Result<(), HeapError> {
        self.check_own(allocation)?;
        if !self.place.records.end(allocation.offset()) {
            return Err(HeapError::Freed { allocation: allocation.info() });
        }
        self.allocator.free(allocation.offset());
        Ok(())
    }

    /// Returns how many allocations were not freed, with the runtime's own.
    pub(crate) fn live(&self) -> usize {
        self.allocator.live()
    }

    /// Returns the program's live allocations, in the order of their offsets.
    pub(crate) fn allocations(&self) -> Vec<AllocationInfo> {
        self.place.records.infos()
    }

    /// Says of an offset of any PE's heap why there is no memory of the program, and which
    /// allocation is the nearest. `None` if an allocation holds the offset.
    pub(crate) fn complaint(&self, offset: u64) -> Option<String> {
        if self.allocator.holds(offset) || self.runs.hold(offset, 1) {
            return None;
        }
        let grown = self.backed();
        let beyond =
            if offset < grown { String::new() } else { format!(" (the heap has grown to {grown:#x} bytes so far)") };
        let nearest = self.place.records.nearest(offset).map_or_else(
            || "nothing is allocated".to_owned(),
            |info| format!("the allocation nearest to it is [{:#x}, {:#x})", info.offset, info.offset + info.bytes),
        );
        Some(format!("heap offset {offset:#x} is not allocated{beyond}; {nearest}; pass memory of Pe::alloc"))
    }

    /// Returns the live allocation that has all of `bytes` bytes at `address`, an address of this
    /// PE's heap.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Result<&Arc<Allocation>, AddressProblem> {
        if let Some(offset) = address.checked_sub(self.base()).filter(|offset| *offset < self.layout.max) {
            return self.place.records.find(offset, bytes);
        }
        Err(past::problem(address).unwrap_or_else(|| self.outside(address)))
    }

    fn outside(&self, address: u64) -> AddressProblem {
        let nearest = self.place.records.nearest(address.saturating_sub(self.base()));
        AddressProblem::OutsideHeap { base: self.base(), heap_bytes: self.layout.max, nearest }
    }

    /// Returns where the program's side of a transfer is. Memory of heaps, this PE's, a peer's or
    /// an earlier one, has to be there.
    pub(crate) fn locate(&self, address: u64, bytes: u64) -> Result<LocalPlace, AddressProblem> {
        if bytes == 0 {
            return Ok(LocalPlace::Outside);
        }
        let heaps = &self.place.addresses;
        if !heaps.contains(&address) {
            return past::problem(address).map_or(Ok(LocalPlace::Outside), Err);
        }
        let offset = address - heaps.start;
        if offset / self.layout.max == self.layout.my_slot as u64 {
            return self.find(address, bytes).map(|_| LocalPlace::Heap);
        }
        // There are places of PEs that are not mapped.
        let mapped = self.links.slots().any(|slot| slot as u64 == offset / self.layout.max);
        let inside = mapped && self.is_mapped(offset % self.layout.max, bytes);
        if inside { Ok(LocalPlace::Peer) } else { Err(self.outside(address)) }
    }

    /// Allocates memory for the chunks that are missing until `end` bytes are backed. Nothing has
    /// changed until it is given to [`grow`](Self::grow).
    pub(crate) fn allocate_chunks(&self, end: u64) -> Result<Vec<Memory>, DeviceError> {
        let wanted = usize::try_from(end.div_ceil(self.layout.chunk)).unwrap_or(usize::MAX);
        (self.chunks.len()..wanted).map(|_| self.device.allocate(self.layout.chunk)).collect()
    }

    /// Adds this memory, here and in the mappings of all reachable peers, which call this with as
    /// many chunks. Returns the indices of the new chunks.
    pub(crate) fn grow(&mut self, memory: Vec<Memory>, timeout: Duration) -> Result<Range<usize>, crate::Error> {
        let first = self.chunks.len();
        for memory in memory {
            let index = self.chunks.len();
            let offset = index as u64 * self.layout.chunk;
            self.place.space.map_own(&memory, self.at(self.layout.my_slot, offset), self.layout.chunk)?;
            for (pe, slot, theirs) in self.links.exchange(index, memory.as_fd(), timeout)? {
                self.map_peers(pe, &theirs, self.at(slot, offset), self.layout.chunk)?;
            }
            self.chunks.push(Chunk { memory });
        }
        Ok(first..self.chunks.len())
    }

    /// Returns whether all of a range is mapped on every PE that maps this heap.
    pub(crate) fn is_mapped(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.backed()) || self.runs.hold(offset, bytes)
    }

    /// Refuses memory of the program, which is not freed.
    pub(crate) fn check_own(&self, allocation: &Allocation) -> Result<(), HeapError> {
        match self.runs.find(allocation.offset()) {
            Some(_) => Err(HeapError::OfProgram { allocation: allocation.info() }),
            None => Ok(()),
        }
    }

    /// Returns the offset for `bytes` bytes of the program's memory: the highest that is free.
    pub(crate) fn place_run(&self, bytes: u64) -> Result<u64, HeapError> {
        let HeapLayout { max, chunk, .. } = self.layout;
        self.runs.place(bytes, (self.backed(), max), chunk).map_err(|largest| HeapError::Exhausted {
            requested: bytes,
            align: chunk,
            free: largest,
            largest,
            max,
        })
    }

    fn map_peers(&self, pe: usize, memory: &OwnedFd, at: u64, bytes: u64) -> Result<(), HeapError> {
        let mapped = self.place.space.map(memory.as_fd(), at, bytes);
        mapped.map_err(|source| HeapError::Map { pe, source: source.into() })
    }

    /// Adds memory of the program, here and in the mappings of all reachable peers, which call this
    /// with theirs.
    ///
    /// # Errors
    /// A mapping or a connection to a peer failed. Nothing has changed here then.
    pub(crate) fn add_run(
        &mut self,
        offset: u64,
        bytes: u64,
        memory: Memory,
        timeout: Duration,
    ) -> Result<(), crate::Error> {
        let index = usize::try_from(offset / self.layout.chunk).unwrap_or(usize::MAX);
        let peers = self.links.exchange(index, memory.as_fd(), timeout)?;
        let own = self.at(self.layout.my_slot, offset);
        self.place.space.map_own(&memory, own, bytes)?;
        let mut mapped = vec![own];
        for (pe, slot, theirs) in peers {
            let at = self.at(slot, offset);
            if let Err(error) = self.map_peers(pe, &theirs, at, bytes) {
                for at in mapped {
                    if let Err(error) = self.place.space.unmap(at, bytes) {
                        tracing::warn!(%error, "memory of the program stays mapped until the end of the PE");
                    }
                }
                return Err(error.into());
            }
            mapped.push(at);
        }
        self.runs.insert(offset, bytes, memory, self.layout.chunk);
        Ok(())
    }

    /// Returns the descriptor and the bytes of the program's memory at an offset.
    pub(crate) fn run(&self, offset: u64) -> Option<(BorrowedFd<'_>, u64)> {
        self.runs.find(offset)
    }

    /// Returns the first chunk of each run.
    pub(crate) fn run_chunks(&self) -> Vec<u64> {
        self.runs.offsets().map(|offset| offset / self.layout.chunk).collect()
    }

    /// Takes memory of the program out of the heap, here and where peers' are mapped here.
    pub(crate) fn remove_run(&mut self, offset: u64) -> Result<(), DeviceError> {
        let Some(bytes) = self.runs.remove(offset) else { return Ok(()) };
        self.place.records.end(offset);
        self.place.space.unmap(self.at(self.layout.my_slot, offset), bytes)?;
        self.links.slots().try_for_each(|slot| self.place.space.unmap(self.at(slot, offset), bytes))
    }

    /// Returns where an offset of a heap is in the address space.
    fn at(&self, slot: usize, offset: u64) -> u64 {
        slot as u64 * self.layout.max + offset
    }
}
