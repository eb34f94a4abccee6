//! Symmetric memory of a PE: allocation, growth of the heap, and the staging buffer.

use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;

use bytemuck::Pod;

use super::Pe;
use super::parts::STAGING_BYTES;
use crate::Result;
use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::device::Wait;
use crate::dump::reader::Reader;
use crate::heap::allocation::{Allocation, AllocationInfo};
use crate::heap::error::{AddressProblem, HeapError};
use crate::heap::{LocalPlace, SymmetricHeap};
use crate::memory::{MemoryBytes, MemoryKind, MemoryUse};
use crate::profile::host::{Operation, Subject};
use crate::slab::Slab;
use crate::slice::{SymmetricSlice, bytes_of};
use crate::transport::Network;
use crate::transport::keys::KeyTables;

/// Symmetric memory.
impl Pe {
    /// Returns symmetric memory for `len` elements, zeroed, at the same offset on every PE.
    /// Collective: every PE requests the same.
    ///
    /// # Errors
    /// The heap is exhausted; or PEs passed different arguments, and then nothing was allocated.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(1000)?;
    /// assert_eq!(pe.read(words.view(..3))?, [0, 0, 0]);
    /// # pe.finalize()
    /// # }
    /// ```
    #[track_caller]
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<SymmetricSlice<T>> {
        let made_at = Location::caller();
        self.allocate(len, align_of::<T>(), Some(made_at))
    }

    /// Allocates as [`alloc`](Pe::alloc), aligned to `align` bytes, a power of two.
    ///
    /// # Errors
    /// Fails like [`alloc`](Pe::alloc), or because the alignment is not a power of two or is above
    /// the heap's chunk.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.alloc_aligned::<u8>(10, 4096)?.address() % 4096, 0);
    /// assert!(pe.alloc_aligned::<u8>(10, 3).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    #[track_caller]
    pub fn alloc_aligned<T: Pod>(&self, len: usize, align: usize) -> Result<SymmetricSlice<T>> {
        let made_at = Location::caller();
        self.allocate(len, align, Some(made_at))
    }

    /// Allocates bytes for a caller in another language, whose place in its source is not known.
    #[doc(hidden)]
    pub fn alloc_foreign(&self, bytes: usize, align: usize) -> Result<SymmetricSlice<u8>> {
        self.allocate(bytes, align, None)
    }

    fn allocate<T: Pod>(
        &self,
        len: usize,
        align: usize,
        made_at: Option<&'static Location<'static>>,
    ) -> Result<SymmetricSlice<T>> {
        let align = align.max(align_of::<T>()) as u64;
        let bytes = bytes_of::<T>(len);
        let _call = self.profile.begins(Operation::Alloc, Subject::Own, bytes);
        self.agree("alloc", &format!("alloc of {bytes} bytes aligned to {align}"))?;
        let offset = self.heap.borrow_mut().reserve(bytes, align)?;
        if let Err(error) = self.back_heap(offset + bytes.max(1)) {
            // A failed job has no use for the range, but a heap that could not grow goes on with
            // it.
            self.heap.borrow_mut().cancel(offset);
            return Err(error);
        }
        let address = self.heap.borrow().base() + offset;
        // SAFETY: the range was just reserved and is backed.
        unsafe { self.device.fill(address, 0, bytes) }?;
        // No PE writes to a peer's copy before that is cleared.
        self.bootstrap.barrier("alloc")?;
        Ok(SymmetricSlice::new(self.heap.borrow_mut().record(offset, bytes, made_at), len))
    }

    /// Gives symmetric memory back. Collective. Operations on it must have been completed by all
    /// PEs ([`barrier_all`](crate::Operations::barrier_all)); work that this PE has on streams is
    /// waited for. Other slices of the same allocation are refused from then on.
    ///
    /// # Errors
    /// The slice is stale or lent to cudarc, PEs free different ones, or work of a PE does not end
    /// (`OXSHMEM_KERNEL_TIMEOUT`, on a GPU); then nothing was freed, and [`free_at`](Pe::free_at)
    /// takes the address again. Or what [`synchronize`](Pe::synchronize) reports of work that has
    /// ended; then it was freed, unless it had been lent.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(1000)?;
    /// let address = words.address();
    /// pe.free(words)?;
    /// let error = pe.read(pe.view_at::<u64>(address, 1)).unwrap_err();
    /// assert!(error.to_string().contains("which was freed"));
    /// # pe.finalize()
    /// # }
    /// ```
    #[allow(clippy::needless_pass_by_value)] // The slice must not be used afterwards.
    pub fn free<T: Pod>(&self, slice: SymmetricSlice<T>) -> Result<()> {
        self.free_agreed(slice.whole(self.id))
    }

    /// Gives the allocation that begins at `address` back; as [`free`](Pe::free), for programs in
    /// other languages, which keep addresses.
    ///
    /// # Errors
    /// Fails like [`free`](Pe::free), or because no live allocation begins there; the error names
    /// the nearest.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let address = pe.alloc::<u64>(8)?.address();
    /// assert!(pe.free_at(address + 8).is_err());
    /// pe.free_at(address)?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn free_at(&self, address: u64) -> Result<()> {
        let found = match self.find(address, 0) {
            Ok(allocation) if allocation.address() == address => Ok(allocation),
            _ => match self.find(address, 1) {
                Ok(allocation) => Err(HeapError::NotWhole { address, allocation: allocation.info() }),
                Err(problem) => Err(HeapError::Address { side: None, address, bytes: 1, problem }),
            },
        };
        self.free_agreed(found)
    }

    fn free_agreed(&self, allocation: Result<impl Deref<Target = Allocation>, HeapError>) -> Result<()> {
        let _call = self.profile.begins(Operation::Free, Subject::Own, 0);
        let allocation = allocation.and_then(|allocation| {
            self.heap.borrow().check_own(&allocation)?;
            Ok(allocation)
        });
        let (allocation, ended) = self.agree_to_end("free", allocation)?;
        if let Some(mixed_words) = &self.mixed_words {
            mixed_words.freed();
        }
        self.heap.borrow_mut().free(&allocation)?;
        self.loans.forget(&allocation);
        ended
    }

    /// Returns the allocation that all PEs end the use of by `call`, and how this PE's work has
    /// ended. Collective.
    ///
    /// # Errors
    /// The allocation is in use by a loan or an aggregating context, or PEs passed different ones;
    /// nothing has changed then. So too if work goes on that may use it, or if it was lent and the
    /// device's work ends with an error.
    pub(super) fn agree_to_end<A: Deref<Target = Allocation>>(
        &self,
        call: &str,
        allocation: Result<A, HeapError>,
    ) -> Result<(A, Result<()>)> {
        let mut lent = false;
        let allocation = allocation.and_then(|allocation| {
            let range = allocation.address()..allocation.address() + allocation.bytes();
            if let Some(number) = self.aggregates().borrow().overlapping(&range) {
                return Err(HeapError::Aggregates { allocation: allocation.info(), number });
            }
            lent = self.loans.ended(&allocation)?;
            Ok(allocation)
        });
        let ended = if lent {
            self.synchronize_device()
        } else if self.scene().board.is_idle() {
            Ok(())
        } else {
            self.synchronize()
        };
        // What a wait has left on the board goes on, and may use the memory.
        let (ended, goes_on) = match ended {
            Err(error) if lent || !self.scene().board.is_idle() => (Ok(()), Err(error)),
            ended => (ended, Ok(())),
        };
        let described = match (&allocation, &goes_on) {
            (Ok(allocation), Err(error)) => {
                format!("{call} at offset {:#x}, while work that may use it goes on: {error}", allocation.offset())
            }
            (Ok(allocation), _) => format!("{call} at offset {:#x}", allocation.offset()),
            (Err(error), _) => error.to_string(),
        };
        // A wrong call is an error here and at the others, which pass the right thing.
        let agreed = self.agree(call, &described);
        let allocation = allocation?;
        goes_on?;
        agreed?;
        Ok((allocation, ended))
    }

    /// Returns how many allocations were not freed, the runtime's own among them.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let before = pe.live_allocations();
    /// let words = pe.alloc::<u64>(8)?;
    /// assert_eq!(pe.live_allocations(), before + 1);
    /// pe.free(words)?;
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn live_allocations(&self) -> usize {
        self.heap.borrow().live()
    }

    /// Returns the program's allocations that were not freed, in the order of their offsets, each
    /// with the place where it was made.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let words = pe.alloc::<u64>(8)?;
    /// let [only] = pe.allocations()[..] else { panic!() };
    /// assert_eq!((only.bytes, only.made_at.unwrap().file()), (64, file!()));
    /// pe.free(words)?;
    /// assert!(pe.allocations().is_empty());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn allocations(&self) -> Vec<AllocationInfo> {
        self.heap.borrow().allocations()
    }

    /// Returns how much memory this PE has allocated so far, in bytes by kind, on the device and on
    /// the host. The heap counts with what it has grown to; see [`MemoryUse`] for what is not
    /// counted.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// use oxshmem::MemoryKind;
    ///
    /// let before = pe.memory().of(MemoryKind::Heap).device;
    /// let bytes = pe.alloc::<u8>(before as usize + 1)?; // the heap grows by chunks
    /// assert!(pe.memory().of(MemoryKind::Heap).device > before);
    /// # pe.free(bytes)?;
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        let mut memory = self.slab.memory_use();
        let teams = self.parts.teams.workspaces_bytes();
        memory.add(MemoryKind::Heap, MemoryBytes::device(self.heap.borrow().backed() - teams));
        memory.add(MemoryKind::Teams, MemoryBytes::device(teams));
        memory.add(MemoryKind::Staging, MemoryBytes::host(Reader::BYTES));
        if let Some(network) = &self.network {
            memory += network.memory_use();
        }
        memory
    }

    /// Makes sure that every PE calls the same; otherwise all get an error.
    pub(crate) fn agree(&self, label: &str, call: &str) -> Result<()> {
        let calls = self.bootstrap.allgather(label, call.as_bytes())?;
        match calls.iter().position(|theirs| theirs != call.as_bytes()) {
            None => Ok(()),
            Some(pe) => Err(HeapError::Asymmetric {
                me: self.my_pe(),
                mine: call.to_owned(),
                pe,
                theirs: String::from_utf8_lossy(&calls[pe]).into_owned(),
            }
            .into()),
        }
    }

    fn back_heap(&self, end: u64) -> Result<()> {
        let (network, keys) = (self.network.as_ref(), self.parts.keys);
        Backing { network, slab: &self.slab, keys, config: &self.config, bootstrap: &self.bootstrap }
            .back(&mut self.heap.borrow_mut(), end)
    }

    /// Writes contexts to the table that kernels find them in, from this number on.
    pub(crate) fn write_numbered(&self, first: u32, contexts: &[abi::Context]) -> Result<()> {
        (u64::from(first)..)
            .zip(contexts)
            .try_for_each(|(number, context)| Ok(self.slab.write(self.parts.numbered, number, context)?))
    }

    /// Returns where kernels find contexts by their numbers.
    pub(crate) fn numbered_table(&self) -> u64 {
        self.slab.address(self.parts.numbered)
    }

    /// Tells kernels how many contexts have numbers.
    pub(crate) fn count_numbered(&self, count: u32) -> Result<()> {
        Ok(self.slab.write(self.parts.numbered_count, 0, &u64::from(count))?)
    }

    /// Returns the keys of a PE's heap, by card of that PE and chunk, in host byte order.
    pub(crate) fn remote_keys(&self, pe: usize) -> Result<Vec<Vec<u32>>> {
        let Some(network) = self.network() else { return Ok(Vec::new()) };
        let chunks = self.heap.borrow().chunks().len();
        let further = self.heap.borrow().run_chunks();
        Ok(self.parts.keys.read_remote(network.rails(), &self.slab, (pe, chunks), &further)?)
    }

    /// Returns the live allocation that has all of `bytes` bytes at `address`.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, AddressProblem> {
        self.heap.borrow().find(address, bytes).map(Arc::clone)
    }

    /// Returns where the program's side of a transfer is.
    pub(crate) fn locate(&self, address: u64, bytes: u64) -> Result<LocalPlace, HeapError> {
        let located = self.heap.borrow().locate(address, bytes);
        located.map_err(|problem| HeapError::Address { side: None, address, bytes, problem })
    }

    /// Returns where the copy at `pe` of `bytes` bytes of this PE's heap is mapped here; `None` if
    /// it is not, or if they are not all memory of the heap.
    pub(crate) fn mapped(&self, address: u64, bytes: u64, pe: usize) -> Option<u64> {
        let heap = self.heap.borrow();
        let offset = address.checked_sub(heap.base())?;
        let inside = heap.is_mapped(offset, bytes);
        let slot = self.plan.is_direct(pe).then(|| pe - self.plan.neighbours.first())?;
        let first_heap = heap.base() - heap.layout().my_slot as u64 * heap.layout().max;
        inside.then(|| first_heap + slot as u64 * heap.layout().max + offset)
    }

    /// Returns the address of the staging buffer, once no kernel uses it that an earlier call has
    /// left on the PE's own stream.
    ///
    /// # Errors
    /// Such a kernel does not end.
    pub(crate) fn staging_address(&self) -> Result<u64> {
        if self.own_is_late.get() {
            self.wait(Wait::Own)?;
        }
        Ok(self.slab.address(self.parts.staging))
    }

    /// Copies `bytes` (at most [`STAGING_BYTES`]) to the staging buffer.
    pub(crate) fn stage(&self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= STAGING_BYTES);
        // SAFETY: it fits the staging buffer.
        Ok(unsafe { self.device.write(self.staging_address()?, bytes) }?)
    }

    /// Copies what a kernel left in the staging buffer.
    pub(crate) fn unstage(&self, bytes: &mut [u8]) -> Result<()> {
        assert!(bytes.len() <= STAGING_BYTES);
        // SAFETY: it fits the staging buffer.
        Ok(unsafe { self.device.read(self.staging_address()?, bytes) }?)
    }

    pub(crate) fn staged_word(&self) -> Result<u64> {
        Ok(self.slab.read(self.parts.staging, 0)?)
    }
}

/// What the heap needs to grow.
pub(super) struct Backing<'a> {
    pub network: Option<&'a Network>,
    pub slab: &'a Slab,
    pub keys: KeyTables,
    pub config: &'a Config,
    pub bootstrap: &'a Bootstrap,
}

impl Backing<'_> {
    /// Adds chunks until `end` bytes of the heap are backed, and exchanges their keys. Collective.
    pub fn back(self, heap: &mut SymmetricHeap, end: u64) -> Result<()> {
        if end <= heap.backed() {
            return Ok(());
        }
        // All grow, or none does.
        let memory = heap.allocate_chunks(end);
        let problem = memory.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let problems = self.bootstrap.allgather("memory of the heap", problem.as_bytes())?;
        if let Some(pe) = problems.iter().position(|problem| !problem.is_empty()) {
            let reason = String::from_utf8_lossy(&problems[pe]).into_owned();
            return Err(HeapError::NoMemory { pe, reason }.into());
        }
        let added = heap.grow(memory?, self.config.bootstrap_timeout())?;
        match self.network {
            Some(network) => self.keys.fill(network, self.slab, heap, self.bootstrap, added),
            None => Ok(()),
        }
    }
}
