//! What programs learn of a PE's GPU.

use std::ffi::c_void;

/// The GPU of a PE, for programs that use it beside this library.
///
/// # Threads and drop
/// Neither `Send` nor `Sync`, since it has handles of the driver. It does not own them: dropping it
/// gives nothing back.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::CudaGpu;
///
/// let gpu: Option<CudaGpu> = pe.gpu();
/// if let Some(gpu) = gpu {
///     println!("GPU {} at {} has {} multiprocessors", gpu.ordinal, gpu.pci, gpu.multiprocessors);
/// }
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CudaGpu {
    /// Its number in this process: the runtime's device, or cudarc's ordinal.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Its address on the PCI bus, as sysfs writes it: `0000:1b:00.0`.
    pub pci: String,
    /// Its streaming multiprocessors.
    pub multiprocessors: u32,
    /// Its primary context, a `CUcontext`. Valid until the PE is finalized.
    pub context: *mut c_void,
    /// The stream of launches on the [`Pe`](crate::Pe) itself, a `CUstream` of the GPU's primary
    /// context. Valid until the PE is finalized.
    pub stream: *mut c_void,
}
