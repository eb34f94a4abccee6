//! Memory of the program as a part of the symmetric heap.

use std::ffi::c_void;
use std::ops::{Deref, Range};

use super::Pe;
use crate::Result;
use crate::buffer::{BufferError, BufferInfo, Symmetric};
use crate::device::Memory;
use crate::heap::LocalPlace;
use crate::heap::allocation::Allocation;
use crate::heap::error::HeapError;
use crate::slice::SymmetricSlice;
use crate::transport::{ChunkKeys, Kind, Region};

/// Memory of the program in the symmetric heap.
impl Pe {
    /// Makes `bytes` bytes at `at`, memory of the program, a part of the symmetric heap: the slice
    /// names the same memory, at another address, as `alloc` would have returned it, with what is
    /// in it. On a GPU it is all of a mapping of memory of `cuMemCreate`, whose handle can be
    /// exported as a file descriptor. On the `cpu` device it is whole pages, which are mapped anew.
    /// Collective: every PE registers as many bytes.
    ///
    /// # Errors
    /// PEs passed different sizes, or some of them other calls; the memory of a PE is none of these
    /// kinds; or the heap has no addresses left (`OXSHMEM_HEAP_MAX`). No PE has registered anything
    /// then.
    ///
    /// # Safety
    /// The memory stays allocated until [`unregister_symmetric`](Self::unregister_symmetric) has
    /// returned, or the PE has ended. No other thread uses it during this call and during that one,
    /// or the end of the PE.
    ///
    /// ```
    /// use oxshmem::Operations;
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// # if pe.gpu().is_some() { return pe.finalize(); }
    /// let layout = std::alloc::Layout::from_size_align(1 << 16, 1 << 16).unwrap();
    /// // SAFETY: the layout has a size.
    /// let at = unsafe { std::alloc::alloc_zeroed(layout) };
    /// // SAFETY: it is freed after it was unregistered.
    /// let inbox = unsafe { pe.register_symmetric(at.cast(), 1 << 16)? };
    /// pe.put(&inbox, &[7, 8, 9], (pe.my_pe() + 1) % pe.n_pes())?;
    /// pe.barrier_all()?;
    /// // SAFETY: the memory that was allocated above.
    /// assert_eq!(unsafe { *at.add(2) }, 9);
    /// pe.unregister_symmetric(inbox)?;
    /// // SAFETY: as it was allocated.
    /// unsafe { std::alloc::dealloc(at, layout) };
    /// # pe.finalize()
    /// # }
    /// ```
    pub unsafe fn register_symmetric(&self, at: *mut c_void, bytes: usize) -> Result<SymmetricSlice<u8>> {
        let buffer = BufferInfo { address: at as u64, bytes: bytes as u64 };
        self.agree("register_symmetric", &format!("register_symmetric of {bytes} bytes"))?;
        // SAFETY: the caller's promise.
        let memory = self.all_or_none(unsafe { self.shared(buffer) })?;
        let offset = self.heap.borrow().place_run(buffer.bytes)?;
        let added = self.heap.borrow_mut().add_run(offset, buffer.bytes, memory, self.config.bootstrap_timeout());
        if let Err(error) = self.all_or_none(added.map_err(|error| refused(buffer, error.to_string()))) {
            self.withdraw(offset);
            return Err(error);
        }
        if let Some(network) = &self.network {
            let keys = self.register_run(offset).map_err(|error| refused(buffer, error.to_string()));
            match self.all_or_none(keys) {
                Ok(keys) => {
                    self.parts.keys.fill_run(
                        network,
                        &self.slab,
                        &self.bootstrap,
                        self.chunks_of(offset, buffer.bytes),
                        Some(&keys),
                    )?;
                    self.symmetric.borrow_mut().push(Symmetric { offset, keys });
                }
                Err(error) => {
                    self.withdraw(offset);
                    return Err(error);
                }
            }
        }
        // No PE writes to a peer's copy before that is there.
        self.bootstrap.barrier("register_symmetric")?;
        Ok(SymmetricSlice::new(self.heap.borrow_mut().record(offset, buffer.bytes, None), bytes))
    }

    /// Takes memory that [`register_symmetric`](Self::register_symmetric) has added out of the
    /// symmetric heap. Collective. As with [`free`](Self::free), operations on it must have been
    /// completed by all PEs, and slices of it are refused from then on. The program's memory is as
    /// it was before, with what is in it by now: on the `cpu` device, private pages of the process.
    ///
    /// # Errors
    /// The slice is not registered memory, or is stale, PEs pass different slices, or work of a PE
    /// does not end (`OXSHMEM_KERNEL_TIMEOUT`, on a GPU); nothing has changed then. Or what
    /// [`synchronize`](Self::synchronize) reports of work that has ended.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let allocated = pe.alloc::<u8>(64)?;
    /// let error = pe.unregister_symmetric(allocated).unwrap_err();
    /// assert!(error.to_string().contains("is not memory of the program"));
    /// # pe.finalize()
    /// # }
    /// ```
    #[allow(clippy::needless_pass_by_value)] // The slice must not be used afterwards.
    pub fn unregister_symmetric<T>(&self, slice: SymmetricSlice<T>) -> Result<()> {
        self.unregister_agreed(slice.whole(self.id))
    }

    /// Does the same for the memory that begins at `address`, for programs in other languages.
    ///
    /// # Errors
    /// Fails like [`unregister_symmetric`](Self::unregister_symmetric).
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.unregister_symmetric_at(64).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn unregister_symmetric_at(&self, address: u64) -> Result<()> {
        let found =
            self.find(address, 1).map_err(|problem| HeapError::Address { side: None, address, bytes: 1, problem });
        self.unregister_agreed(found.and_then(|allocation| {
            if allocation.address() == address {
                Ok(allocation)
            } else {
                Err(HeapError::NotWhole { address, allocation: allocation.info() })
            }
        }))
    }

    fn unregister_agreed(&self, allocation: Result<impl Deref<Target = Allocation>, HeapError>) -> Result<()> {
        let mut bytes = 0;
        let allocation = allocation.and_then(|allocation| match self.heap.borrow().run(allocation.offset()) {
            Some((_, of_run)) => {
                bytes = of_run;
                Ok(allocation)
            }
            None => Err(HeapError::NotOfProgram { allocation: allocation.info() }),
        });
        let (allocation, ended) = self.agree_to_end("unregister_symmetric", allocation)?;
        let offset = allocation.offset();
        if let Some(network) = &self.network {
            self.parts.keys.fill_run(network, &self.slab, &self.bootstrap, self.chunks_of(offset, bytes), None)?;
            let mut symmetric = self.symmetric.borrow_mut();
            if let Some(found) = symmetric.iter().position(|registered| registered.offset == offset) {
                network.forget_program(&symmetric.swap_remove(found).keys)?;
            }
        }
        self.heap.borrow_mut().remove_run(offset)?;
        self.loans.forget(&allocation);
        ended
    }

    /// Returns memory of the program as memory that peers can map.
    ///
    /// # Safety
    /// As [`register_symmetric`](Self::register_symmetric).
    unsafe fn shared(&self, buffer: BufferInfo) -> Result<Memory, BufferError> {
        buffer.check()?;
        match self.heap.borrow().locate(buffer.address, buffer.bytes) {
            Ok(LocalPlace::Outside) => {}
            Ok(LocalPlace::Heap | LocalPlace::Peer) => return Err(BufferError::Symmetric { buffer }),
            Err(problem) => return Err(refused(buffer, problem.to_string())),
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.share(buffer.address, buffer.bytes) }.map_err(|reason| refused(buffer, reason))
    }

    /// Takes the run at an offset out of the heap, after a registration that failed.
    fn withdraw(&self, offset: u64) {
        if let Err(error) = self.heap.borrow_mut().remove_run(offset) {
            tracing::warn!(%error, "memory of the program stays mapped until the end of the PE");
        }
    }

    /// Registers the run at an offset with the cards.
    fn register_run(&self, offset: u64) -> Result<Vec<ChunkKeys>> {
        let heap = self.heap.borrow();
        let (Some(network), Some((memory, bytes))) = (&self.network, heap.run(offset)) else { return Ok(Vec::new()) };
        network.register_program(&Region {
            memory: Some(memory),
            device: self.device.exporter(),
            kind: Kind::Program,
            address: heap.base() + offset,
            bytes,
            iova: offset,
            remote: true,
        })
    }

    /// Returns the chunks of the heap that a run is in.
    fn chunks_of(&self, offset: u64, bytes: u64) -> Range<u64> {
        let chunk = self.heap.borrow().layout().chunk;
        offset / chunk..(offset + bytes).div_ceil(chunk)
    }

    /// Returns what every PE could do; an error on all of them, with the first one's reason, if one
    /// could not. Collective.
    fn all_or_none<T>(&self, mine: Result<T, BufferError>) -> Result<T> {
        let problem = mine.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let problems = self.bootstrap.allgather("memory of the program", problem.as_bytes())?;
        match problems.iter().position(|problem| !problem.is_empty()) {
            None => Ok(mine?),
            Some(pe) if pe == self.my_pe() => Ok(mine?),
            Some(pe) => {
                let reason = String::from_utf8_lossy(&problems[pe]).into_owned();
                Err(BufferError::Peer { pe, reason }.into())
            }
        }
    }
}

fn refused(buffer: BufferInfo, reason: String) -> BufferError {
    BufferError::Refused { buffer, reason }
}
