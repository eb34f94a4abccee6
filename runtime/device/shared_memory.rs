//! Memory of a device as the software HCA's kernel uses it.

use std::os::fd::BorrowedFd;

use oxshmem_hca::soft::AcceleratorMemory;

use super::error::DeviceError;
use super::interface::{AddressSpace, HostMemory, Memory};

/// Memory with an address of its own.
#[derive(Debug)]
pub(super) struct SharedMemory {
    space: Box<dyn AddressSpace>,
    offset: u64,
    bytes: u64,
}

impl SharedMemory {
    /// Maps all of what was just allocated.
    pub fn own(space: Box<dyn AddressSpace>, memory: &Memory, bytes: u64) -> Result<Self, DeviceError> {
        space.map_own(memory, 0, bytes)?;
        Ok(Self { space, offset: 0, bytes })
    }

    /// Maps memory of a peer; `bytes` bytes from its start are mapped, and what is meant begins at
    /// `offset`.
    pub fn of_peer(
        space: Box<dyn AddressSpace>,
        memory: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
    ) -> Result<Self, DeviceError> {
        space.map(memory, 0, bytes)?;
        Ok(Self { space, offset, bytes })
    }
}

/// Host memory that kernels reach at the same address.
#[derive(Debug)]
pub(super) struct OnHost(pub Box<dyn HostMemory>);

impl AcceleratorMemory for OnHost {
    fn address(&self) -> u64 {
        self.0.address() as u64
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

impl AcceleratorMemory for SharedMemory {
    fn address(&self) -> u64 {
        self.space.base() + self.offset
    }

    fn bytes(&self) -> u64 {
        self.bytes - self.offset
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::{CpuDevice, Device};
    use super::*;
    use crate::config::Config;

    #[test]
    fn own_memory_is_what_peers_map_and_stays_while_anybody_has_it() {
        let device = CpuDevice::new(&Config::default()).unwrap();
        let page = device.granularity();
        let memory = device.allocate(2 * page).unwrap();
        let own = SharedMemory::own(device.reserve(2 * page, 1).unwrap(), &memory, 2 * page).unwrap();
        let map =
            |offset| SharedMemory::of_peer(device.reserve(2 * page, 1).unwrap(), memory.as_fd(), offset, 2 * page);
        let (theirs, late) = (map(page).unwrap(), map(0).unwrap());
        drop(memory);
        let mut seen = [1; 4];
        // SAFETY: mapped, and nothing else uses it.
        unsafe { device.read(own.address() + page, &mut seen) }.unwrap();
        assert_eq!(seen, [0; 4]);
        // SAFETY: as above.
        unsafe { device.write(own.address() + page, b"here") }.unwrap();
        drop(own);
        // SAFETY: as above.
        unsafe { device.read(theirs.address(), &mut seen) }.unwrap();
        assert_eq!(&seen, b"here");
        drop(theirs);
        // SAFETY: as above.
        unsafe { device.read(late.address() + page, &mut seen) }.unwrap();
        assert_eq!(&seen, b"here");
    }
}
