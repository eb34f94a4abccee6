//! A card that PEs' queue pairs of IBGDA are on, and what is registered with it.

use std::cell::RefCell;
use std::sync::Arc;

use oxshmem_hca::objects::{Mkey, Pd, Umem};
use oxshmem_hca::provider::{Access, UmemSource};

use super::fabric::{ChunkKeys, Region};
use super::opened::OpenCard;
use crate::Result;
use crate::device::Device;
use crate::heap::SymmetricHeap;
use crate::slab::{Offset, Slab};

/// An open card, with the keys of the heap's chunks.
#[derive(Debug)]
pub(super) struct Card {
    // Dropped in this order.
    chunks: RefCell<Vec<Mkey>>,
    /// The keys of memory that the program allocated.
    program: RefCell<Vec<Mkey>>,
    pub pd: Arc<Pd>,
    pub open: OpenCard,
}

impl Card {
    pub(super) fn new(open: OpenCard) -> Result<Self> {
        Ok(Self { chunks: RefCell::default(), program: RefCell::default(), pd: Pd::alloc(&open.provider)?, open })
    }

    /// Registers chunk `index` of the heap; its addresses on the wire are offsets in the heap.
    pub(super) fn register(&self, device: &dyn Device, heap: &SymmetricHeap, index: usize) -> Result<ChunkKeys> {
        use std::os::fd::AsFd;
        let chunk = heap.layout().chunk;
        let offset = index as u64 * chunk;
        let source = UmemSource::Fd {
            fd: heap.chunks()[index].memory.as_fd(),
            offset: 0,
            len: usize::try_from(chunk).unwrap_or(usize::MAX),
            addr: (heap.base() + offset) as *mut u8,
            device: device.exporter(),
        };
        // SAFETY: the heap outlives this object (see `Pe`), and is used through raw pointers only.
        let key = unsafe { Mkey::register(&self.pd, source, None, offset, Access::ALL) }?;
        let keys = ChunkKeys { lkey: key.lkey(), rkey: key.rkey() };
        self.chunks.borrow_mut().push(key);
        Ok(keys)
    }

    /// Registers memory of the program.
    pub(super) fn register_program(&self, region: &Region<'_>) -> Result<ChunkKeys> {
        let (source, access) = region.source();
        // SAFETY: the caller of `Pe::register_buffer` or `Pe::register_symmetric` keeps the memory,
        // and it is used through raw pointers only.
        let key = unsafe { Mkey::register(&self.pd, source, None, region.iova, access) }?;
        let keys = ChunkKeys { lkey: key.lkey(), rkey: key.rkey() };
        self.program.borrow_mut().push(key);
        Ok(keys)
    }

    /// Ends a registration of memory of the program.
    pub(super) fn forget_program(&self, keys: &ChunkKeys) -> Result<()> {
        let mut program = self.program.borrow_mut();
        match program.iter().position(|key| key.lkey() == keys.lkey) {
            Some(found) => Ok(program.swap_remove(found).close()?),
            None => Ok(()),
        }
    }
}

/// A slab that is registered with a card.
#[derive(Debug)]
pub(super) struct SlabOnCard {
    // Dropped in this order.
    pub key: Mkey,
    pub umem: Arc<Umem>,
}

impl SlabOnCard {
    pub(super) fn new(card: &Card, device: &dyn Device, slab: &Slab) -> Result<Self> {
        let base = slab.address(Offset(0));
        let (len, addr) = (usize::try_from(slab.bytes()).unwrap_or(usize::MAX), base as *mut u8);
        let source = match slab.memory() {
            Some(fd) => UmemSource::Fd { fd, offset: 0, len, addr, device: device.exporter() },
            None => UmemSource::Host { addr, len },
        };
        // SAFETY: the set keeps the slab longer than this object, and it is used through raw
        // pointers only.
        let umem = unsafe { Umem::register(&card.open.provider, source, Access::LOCAL) }?;
        // SAFETY: as above.
        let key = unsafe { Mkey::register(&card.pd, source, Some(&umem), base, Access::LOCAL) }?;
        Ok(Self { key, umem })
    }
}
