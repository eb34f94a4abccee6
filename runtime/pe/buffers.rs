//! Registers memory of the program with the network's cards.

use std::ffi::c_void;

use rustix::mm::{MsyncFlags, msync};

use super::Pe;
use crate::Result;
use crate::abi;
use crate::buffer::{BufferError, BufferInfo, Registered};
use crate::device::whole_pages;
use crate::heap::LocalPlace;
use crate::transport::{Kind, Region, lkeys};

/// Place 0 of the table is the staging buffer's.
const FIRST_PLACE: u64 = 1;
/// Where a region's length is.
const BYTES_AT: usize = core::mem::offset_of!(abi::LocalRegion, bytes);

/// Memory of the program as the local side of transfers.
impl Pe {
    /// Registers `bytes` bytes at `at`, memory of the program on the host or on this PE's GPU, with
    /// the network's cards: as the local side of transfers over the network it is as fast then as
    /// memory of the heap. Memory that is not registered can be the local side too, and is slower.
    /// Nothing changes for PEs that are reached by load and store, or on the other side of
    /// transfers. Pageable memory of the host is page-locked for a GPU. Not collective. A PE has at
    /// most 63 registered ranges. Kernels that run at the time may not notice.
    ///
    /// # Errors
    /// [`BufferError`]: no memory, memory of the heap, of another GPU, or registered already; or
    /// the card refuses it. Nothing was registered then.
    ///
    /// # Safety
    /// The memory stays mapped until [`unregister_buffer`](Self::unregister_buffer) or the end of
    /// the PE.
    ///
    /// ```
    /// use oxshmem::{Operations, RawMemory};
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let inbox = pe.alloc::<u8>(1 << 16)?;
    /// let mut data = vec![7u8; 1 << 16];
    /// let at = data.as_mut_ptr().cast();
    /// // SAFETY: `data` is there until it is unregistered.
    /// unsafe { pe.register_buffer(at, data.len())? };
    /// // SAFETY: it outlives the call.
    /// pe.put(&inbox, unsafe { RawMemory::new(at, data.len()) }, 0)?;
    /// pe.quiet()?;
    /// pe.unregister_buffer(at)?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub unsafe fn register_buffer(&self, at: *mut c_void, bytes: usize) -> Result<()> {
        let buffer = BufferInfo { address: at as u64, bytes: bytes as u64 };
        buffer.check()?;
        let mut table = self.buffers.borrow_mut();
        let place = table.place_for(buffer)?;
        let refused = |reason| BufferError::Refused { buffer, reason };
        match self.heap.borrow().locate(buffer.address, buffer.bytes) {
            Ok(LocalPlace::Outside) => {}
            Ok(LocalPlace::Heap | LocalPlace::Peer) => return Err(BufferError::Symmetric { buffer }.into()),
            Err(problem) => return Err(refused(problem.to_string()).into()),
        }
        let pages = whole_pages(buffer.address, buffer.bytes);
        let memory = self.device.adopt(buffer.address, buffer.bytes).map_err(refused)?;
        if !memory.on_device {
            check_mapped(pages).map_err(refused)?;
        }
        let Some(network) = &self.network else {
            table.add(place, Registered { buffer, keys: Vec::new(), _memory: memory });
            return Ok(());
        };
        let exporter = if memory.on_device { self.device.exporter() } else { None };
        let (address, bytes) = pages;
        let kind = Kind::Program;
        let region = Region { memory: None, device: exporter, kind, address, bytes, iova: address, remote: false };
        let keys = network.register_program(&region)?;
        let places = table.add(place, Registered { buffer, keys, _memory: memory });
        let keys = table.keys(place);
        let region = abi::LocalRegion { base: buffer.address, bytes: 0, lkeys: lkeys(keys).map(u32::to_be) };
        // Kernels that look at the table meanwhile see a length last.
        self.slab.write(self.parts.regions, FIRST_PLACE + place as u64, &region)?;
        self.write_length(place, buffer.bytes)?;
        Ok(self.slab.write(self.parts.region_count, 0, &(FIRST_PLACE + places as u64))?)
    }

    /// Ends the registration of the memory at `at`, where a registered range begins. Operations on
    /// it must have been completed ([`quiet`](crate::Operations::quiet)); it can be freed then. Not
    /// collective.
    ///
    /// # Errors
    /// No registered range begins there; the error names the nearest.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let mut data = [0u64; 512];
    /// let at = data.as_mut_ptr().cast();
    /// // SAFETY: `data` is there until it is unregistered.
    /// unsafe { pe.register_buffer(at, 4096)? };
    /// pe.unregister_buffer(at)?;
    /// assert!(pe.unregister_buffer(at).is_err());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn unregister_buffer(&self, at: *mut c_void) -> Result<()> {
        let place = self.buffers.borrow().find(at as u64)?;
        self.unregister(place)
    }

    /// Ends all registrations, as [`unregister_buffer`](Self::unregister_buffer).
    ///
    /// # Errors
    /// A card, or the device, is lost.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// let mut data = [0u64; 512];
    /// // SAFETY: `data` is there until it is unregistered.
    /// unsafe { pe.register_buffer(data.as_mut_ptr().cast(), 4096)? };
    /// pe.unregister_all_buffers()?;
    /// assert!(pe.registered_buffers().is_empty());
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn unregister_all_buffers(&self) -> Result<()> {
        for buffer in self.registered_buffers() {
            self.unregister_buffer(buffer.address as *mut c_void)?;
        }
        Ok(())
    }

    /// Returns the registered ranges.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.registered_buffers().is_empty());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn registered_buffers(&self) -> Vec<BufferInfo> {
        self.buffers.borrow().infos()
    }

    /// Returns whether all of a range is registered.
    pub(crate) fn is_registered(&self, address: u64, bytes: usize) -> bool {
        self.buffers.borrow().contain(BufferInfo { address, bytes: bytes as u64 })
    }

    fn unregister(&self, place: usize) -> Result<()> {
        let Some(registered) = self.buffers.borrow_mut().take(place) else { return Ok(()) };
        match &self.network {
            Some(network) => {
                self.write_length(place, 0)?;
                network.forget_program(&registered.keys)
            }
            None => Ok(()),
        }
    }

    /// Writes for how many bytes the range at a place holds; 0: it is none.
    fn write_length(&self, place: usize, bytes: u64) -> Result<()> {
        const WORDS: u64 = (size_of::<abi::LocalRegion>() / 8) as u64;
        let word = (FIRST_PLACE + place as u64) * WORDS + (BYTES_AT / 8) as u64;
        Ok(self.slab.write(self.parts.regions, word, &bytes)?)
    }
}

/// Refuses memory of the host that is not mapped: a card, or what stands for it, would find out.
fn check_mapped((first, bytes): (u64, u64)) -> Result<(), String> {
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: with this flag the kernel looks whether the pages are mapped, and does nothing else.
    unsafe { msync(first as *mut c_void, len, MsyncFlags::ASYNC) }
        .map_err(|errno| format!("not all of it is mapped ({errno}); register memory that is allocated"))
}
