//! Devices: what runs kernels and owns the memory they use. Everything above this module works on
//! any of them.

mod cpu_accelerator;
mod cpu_device;
pub mod cuda;
mod error;
mod identity;
mod interface;
mod pages;
mod shared_memory;
mod soft_hca;
pub(crate) mod source;
mod stream;

pub(crate) use cpu_device::CpuDevice;
#[doc(hidden)]
pub use cpu_device::cpu_accelerator;
pub(crate) use cuda::CudaDevice;
pub use cuda::CudaGpu;
pub use error::DeviceError;
pub(crate) use identity::DeviceIdentity;
pub(crate) use interface::{
    AddressSpace, Aside, Copier, Device, DeviceCopy, HostMemory, KeptAddresses, LoadedModule, MappedRegisters, Memory,
    ORDERED_FOR_OWNER, ProgramMemory, Wait, whole_pages,
};
pub use oxshmem_simt as cpu;
pub use oxshmem_simt::LaunchConfig;
pub use source::ModuleSource;
pub(crate) use stream::Stream;

use crate::config;

/// Returns whether a PE that requests `device` gets a GPU, as far as that can be told before it is
/// opened: with `auto` it does where this build has kernels for GPUs and the driver shows one. For
/// defaults that depend on it; a GPU may still turn out to be unusable.
///
/// ```
/// use oxshmem::config::Device;
/// use oxshmem::device::takes_gpu;
///
/// assert!(!takes_gpu(Device::Cpu));
/// ```
#[must_use]
pub fn takes_gpu(device: config::Device) -> bool {
    match device {
        config::Device::Cpu => false,
        config::Device::Cuda => true,
        config::Device::Auto => crate::build_info().cuda.is_some() && cuda::gpu_present(),
    }
}

/// Hands on what kernels have printed: `printf` writes to the standard output of C, which has a
/// buffer that this process otherwise empties at its end.
pub(crate) fn flush_printf() {
    unsafe extern "C" {
        // What the macro of <stdio.h> means on Linux.
        static stdout: *mut libc::FILE;
    }
    // SAFETY: the C library's stream, which it locks; it lives as long as the process. A closed
    // reader is not an error here.
    unsafe { libc::fflush(stdout) };
}
