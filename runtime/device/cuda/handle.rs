//! Physical memory of a GPU, apart from its addresses.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUdevice_attribute, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::driver::{DriverError, Gpu, driver};

pub(super) fn length(bytes: u64) -> usize {
    // What does not fit this process's addresses is refused by the driver.
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

pub(super) fn location(gpu: Gpu) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu.raw }
}

fn properties(gpu: Gpu) -> CUmemAllocationProp {
    // SAFETY: plain data for which all zeros is a value: no compression, no special usage.
    let mut zeroed: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    // This lets network cards use the memory; a GPU that cannot do that does not know the
    // attribute, or returns 0.
    let for_cards = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    zeroed.allocFlags.gpuDirectRDMACapable = u8::from(gpu.attribute(for_cards).is_ok_and(|value| value != 0));
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(gpu),
        ..zeroed
    }
}

/// Returns the number of bytes in multiples of which memory is created and mapped. The context must
/// be current.
pub(super) fn granularity(gpu: Gpu) -> Result<u64, DriverError> {
    let mut bytes = 0;
    let properties = properties(gpu);
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: writes one integer.
    unsafe { driver!(cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, option)) }?;
    Ok(bytes as u64)
}

/// A handle of physical memory. Mappings and descriptors keep the memory when it is dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(super) CUmemGenericAllocationHandle);

impl Handle {
    pub(super) fn create(gpu: Gpu, bytes: u64) -> Result<Self, DriverError> {
        let mut handle = 0;
        let properties = properties(gpu);
        // SAFETY: writes one handle.
        unsafe { driver!(cuMemCreate(&raw mut handle, length(bytes), &raw const properties, 0)) }?;
        Ok(Self(handle))
    }

    /// Imports memory. Memory that is mapped through this handle cannot be exported once more.
    pub(super) fn import(memory: BorrowedFd<'_>) -> Result<Self, DriverError> {
        let mut handle = 0;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // The driver takes the descriptor's number in the place of a pointer.
        let descriptor = std::ptr::without_provenance_mut(memory.as_raw_fd().cast_unsigned() as usize);
        // SAFETY: the descriptor is open; the driver refuses what is none of its own.
        unsafe { driver!(cuMemImportFromShareableHandle(&raw mut handle, descriptor, kind)) }?;
        Ok(Self(handle))
    }

    /// Returns the handle of the memory that is mapped at `address`, if it was created apart from
    /// its addresses: equal for all addresses of one mapping.
    pub fn behind(address: u64) -> Result<Self, DriverError> {
        let mut handle = 0;
        // SAFETY: writes one handle; the driver refuses addresses that it does not know.
        unsafe { driver!(cuMemRetainAllocationHandle(&raw mut handle, address as *mut c_void)) }?;
        Ok(Self(handle))
    }

    pub fn export(&self) -> Result<OwnedFd, DriverError> {
        let mut descriptor: i32 = -1;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: writes one descriptor.
        unsafe { driver!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), self.0, kind, 0)) }?;
        // SAFETY: it is new, and nothing else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: `create`, `import` or `behind` gave a reference, which this is.
        if let Err(error) = unsafe { driver!(cuMemRelease(self.0)) } {
            tracing::debug!(%error, "cannot release GPU memory");
        }
    }
}
