//! The GPU that a process works on, for what plays a network card in that process: the stand-in for
//! rdma-core, which tests put in its place.
//!
//! A card reaches memory of a GPU through the kernel's drivers. What plays one has the driver API
//! alone, and is not told which GPU the process uses.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute};
use oxshmem_hca::soft::Accelerator;

use super::accelerator::CudaAccelerator;
use super::driver::{self, Context, DriverError, Gpu, driver};
use super::handle::{self, Handle};
use crate::config::Config;
use crate::device::error::DeviceError;

/// The kind of memory at an address.
#[derive(Debug)]
pub enum Backing {
    /// Nothing that the driver knows, so no kernel reaches it.
    Unknown,
    /// Page-locked memory of the host, which kernels reach at the same addresses.
    Host,
    /// Memory of a GPU: a descriptor that other processes can map, and where in it the addresses
    /// begin. None if it cannot be shared.
    Device(Option<(OwnedFd, u64)>),
}

/// The GPU that this process works on.
#[derive(Debug)]
pub struct CardGpu {
    accelerator: Arc<CudaAccelerator>,
    granularity: u64,
}

impl CardGpu {
    /// Returns the GPU whose primary context exists in this process. `None` if there is none; then
    /// the driver is neither loaded nor initialised.
    ///
    /// # Errors
    /// There are several, and none is the calling thread's current one; or the GPU refuses the
    /// software HCA's kernel.
    pub fn of_process() -> Result<Option<Self>, DeviceError> {
        if !driver::in_use() {
            return Ok(None);
        }
        let failed = |source: DriverError| DeviceError::Cuda { what: "cannot find this process's GPU".into(), source };
        let gpu = match find().map_err(failed)?[..] {
            [] => return Ok(None),
            [gpu] => gpu,
            _ => {
                let reason =
                    "this process uses several GPUs, and none is the calling thread's current one; make one current";
                return Err(DeviceError::Unsupported { device: "cuda", reason });
            }
        };
        let granularity = {
            let context = Context::retain(gpu).map_err(failed)?;
            let _entered = context.enter().map_err(failed)?;
            let granularity = handle::granularity(gpu).map_err(failed)?;
            context.release();
            granularity
        };
        let accelerator = CudaAccelerator::new(gpu, granularity, Config::default().kernel_timeout())?;
        Ok(Some(Self { accelerator: Arc::new(accelerator), granularity }))
    }

    /// Returns what runs the software HCA's kernel on it.
    #[must_use]
    pub fn accelerator(&self) -> Arc<dyn Accelerator> {
        Arc::clone(&self.accelerator) as _
    }

    /// Returns the kind of memory of `bytes` bytes at `address`.
    ///
    /// # Errors
    /// They go beyond the allocation that `address` lies in, or the driver refuses to export it.
    pub fn behind(&self, address: u64, bytes: u64) -> Result<Backing, DeviceError> {
        let stream = self.accelerator.primary();
        let _entered = stream.enter()?;
        let failed = |source: DriverError| stream.error("cannot export GPU memory", source);
        let kind: Result<u32, _> = attribute(address, CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
        if kind != Ok(CUmemorytype::CU_MEMORYTYPE_DEVICE as u32) {
            let seen = attribute(address, CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
            return Ok(if seen == Ok(address) { Backing::Host } else { Backing::Unknown });
        }
        let Ok(handle) = Handle::behind(address) else { return Ok(Backing::Device(None)) };
        let is_same = |address: u64| Handle::behind(address).is_ok_and(|other| other == handle);
        // What the driver calls the range's start is the reservation's.
        let Some(start) = start_of_mapping(address, bytes, self.granularity, is_same) else {
            let reason = "memory that is registered must lie in one allocation";
            return Err(DeviceError::Unsupported { device: "cuda", reason });
        };
        let memory = handle.export().map_err(failed)?;
        Ok(Backing::Device(Some((memory, address - start))))
    }
}

/// Returns where the mapping begins that `bytes` bytes at `address` lie in, all of them; none if it
/// ends before. Mappings begin and end at multiples of the granularity; `is_same` says whether such
/// an address is of the same mapping as `address`.
fn start_of_mapping(address: u64, bytes: u64, granularity: u64, is_same: impl Fn(u64) -> bool) -> Option<u64> {
    let of_address = address - address % granularity;
    let last = address.checked_add(bytes.max(1) - 1)?;
    let mut granule = of_address;
    while last - granule >= granularity {
        granule += granularity;
        if !is_same(granule) {
            return None;
        }
    }
    let mut start = of_address;
    while start.checked_sub(granularity).is_some_and(&is_same) {
        start -= granularity;
    }
    Some(start)
}

/// Returns the GPUs whose contexts exist, or of several the one that is current.
fn find() -> Result<Vec<Gpu>, DriverError> {
    let all = (0..driver::count()?).map(Gpu::get).collect::<Result<Vec<_>, _>>()?;
    let mut found = Vec::new();
    for gpu in all {
        if Context::exists(gpu)? {
            found.push(gpu);
        }
    }
    if let (2.., Some(current)) = (found.len(), Gpu::current()?) {
        found = vec![current];
    }
    Ok(found)
}

fn attribute<T: Copy + Default>(address: u64, which: CUpointer_attribute) -> Result<T, DriverError> {
    let mut value = T::default();
    // SAFETY: writes one value of the attribute's type, which callers name.
    unsafe { driver!(cuPointerGetAttribute((&raw mut value).cast(), which, address)) }?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULE: u64 = 1 << 21;

    /// Finds three granules from the tenth on; beside them are others' and none.
    fn found(address: u64, bytes: u64) -> Option<u64> {
        start_of_mapping(address, bytes, GRANULE, |address| (10 * GRANULE..13 * GRANULE).contains(&address))
    }

    #[test]
    fn a_mapping_is_found_from_any_of_its_addresses() {
        for (address, bytes) in [
            (10 * GRANULE, 3 * GRANULE),
            (10 * GRANULE, 0),
            (10 * GRANULE + 1, 1),
            (11 * GRANULE - 1, 2),
            (12 * GRANULE, GRANULE),
            (13 * GRANULE - 1, 1),
        ] {
            assert_eq!(found(address, bytes), Some(10 * GRANULE), "{bytes} bytes at {address:#x}");
        }
    }

    #[test]
    fn memory_beyond_its_mapping_is_refused() {
        for (address, bytes) in [(10 * GRANULE, 3 * GRANULE + 1), (13 * GRANULE - 1, 2), (10 * GRANULE, u64::MAX)] {
            assert_eq!(found(address, bytes), None, "{bytes} bytes at {address:#x}");
        }
    }

    #[test]
    fn a_mapping_may_begin_and_end_where_addresses_do() {
        assert_eq!(start_of_mapping(GRANULE + 8, 8, GRANULE, |address| address < 2 * GRANULE), Some(0));
        let last = 0_u64.wrapping_sub(GRANULE);
        assert_eq!(start_of_mapping(last, GRANULE, GRANULE, |address| address == last), Some(last));
    }
}
