//! Memory of a device as the software HCA's kernel uses it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use oxshmem_hca::soft::AcceleratorMemory;

use super::{AddressSpace, DeviceError};

/// Memory with an address of its own.
#[derive(Debug)]
pub(super) struct SharedMemory {
    space: Box<dyn AddressSpace>,
    offset: u64,
}

impl SharedMemory {
    /// All of what was just allocated.
    pub fn own(space: Box<dyn AddressSpace>, memory: &OwnedFd, bytes: u64) -> Result<Self, DeviceError> {
        space.map(memory.as_fd(), 0, bytes)?;
        Ok(Self { space, offset: 0 })
    }

    /// Memory of a peer; `bytes` bytes from its start are mapped, and what is meant begins at `offset`.
    pub fn of_peer(
        space: Box<dyn AddressSpace>,
        memory: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        space.map(memory, 0, bytes)?;
        Ok(Self { space, offset })
    }
}

impl AcceleratorMemory for SharedMemory {
    fn address(&self) -> u64 {
        self.space.base() + self.offset
    }
}
