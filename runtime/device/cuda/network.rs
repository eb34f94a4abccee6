//! What a network card and a GPU need of each other: the card's registers in the GPU's addresses,
//! and the GPU's memory as dma-buf.
//!
//! CUDA driver API: `cuMemHostRegister` with `CU_MEMHOSTREGISTER_IOMEMORY`,
//! `cuMemGetHandleForAddressRange`.

use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE, CUmemRangeFlags,
    CUmemRangeHandleType,
};
use oxshmem_hca::provider::DeviceMemory;

use super::driver::{DriverError, driver};
use super::stream::Stream;
use crate::device::error::DeviceError;
use crate::device::interface::MappedRegisters;

/// A page of a card's registers that kernels may store to.
#[derive(Debug)]
pub(super) struct Registers {
    stream: Arc<Stream>,
    page: *mut u8,
    address: u64,
    /// Whether another part of this process had registered the page before.
    others: bool,
}

// SAFETY: addresses of a page that only device code accesses.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    pub fn map(stream: &Arc<Stream>, page: *mut u8) -> Result<Self, DeviceError> {
        let _entered = stream.enter()?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY;
        // SAFETY: the caller keeps the page mapped; the driver refuses what it cannot map.
        let registered = unsafe { driver!(cuMemHostRegister_v2(page.cast(), rustix::param::page_size(), flags)) };
        let others = registered.as_ref().is_err_and(DriverError::is_registered_already);
        registered.or_else(|error| if others { Ok(()) } else { Err(error) }).map_err(|error| {
            let what = "cannot map the card's doorbell registers for the GPU (the driver permits it with \
                        NVreg_RegistryDwords=\"PeerMappingOverride=1;\", and not in every virtual machine)";
            stream.error(what, error)
        })?;
        let mut registers = Self { stream: Arc::clone(stream), page, address: 0, others };
        // SAFETY: writes one address.
        let found = unsafe { driver!(cuMemHostGetDevicePointer_v2(&raw mut registers.address, page.cast(), 0)) };
        found
            .map_err(|error| stream.error("cannot find the card's doorbell registers in the GPU's addresses", error))?;
        Ok(registers)
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // No kernel may still ring.
        if self.others || !self.stream.idle() {
            return;
        }
        let Ok(_entered) = self.stream.enter() else { return };
        // SAFETY: `map` registered it.
        if let Err(error) = unsafe { driver!(cuMemHostUnregister(self.page.cast())) } {
            tracing::debug!(%error, "cannot unmap the card's doorbell registers");
        }
    }
}

impl MappedRegisters for Registers {
    fn address(&self) -> u64 {
        self.address
    }
}

/// Exports memory of the GPU.
pub(super) struct Exporter {
    stream: Arc<Stream>,
}

impl Exporter {
    pub fn new(stream: Arc<Stream>) -> Self {
        Self { stream }
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl DeviceMemory for Exporter {
    fn dma_buf(&self, addr: u64, len: usize, pcie: bool) -> Result<OwnedFd, String> {
        let _entered = self.stream.enter().map_err(|error| error.to_string())?;
        let flags = if pcie { CUmemRangeFlags::CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE as u64 } else { 0 };
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut descriptor: i32 = -1;
        // SAFETY: writes one descriptor; the driver checks the range.
        unsafe { driver!(cuMemGetHandleForAddressRange((&raw mut descriptor).cast(), addr, len, kind, flags)) }
            .map_err(|error| error.to_string())?;
        // SAFETY: it is new, and nothing else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}
