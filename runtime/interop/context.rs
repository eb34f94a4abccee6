//! Whether what cudarc has belongs to the context of the PE's GPU, and the errors of cudarc's
//! calls.

use cudarc::driver::{CudaContext, DriverError, sys};

use crate::Result;
use crate::device::{CudaGpu, DeviceError, cuda};
use crate::pe::Pe;

impl Pe {
    /// Returns the GPU, or an error on the `cpu` device.
    pub(super) fn own_gpu(&self) -> Result<CudaGpu> {
        let reason = "there is no CUDA context, stream or module; set OXSHMEM_DEVICE=cuda";
        self.gpu().ok_or_else(|| DeviceError::Unsupported { device: "cpu", reason }.into())
    }

    /// Refuses what belongs to another context than the PE's.
    pub(super) fn check_context(&self, context: &CudaContext) -> Result<CudaGpu> {
        let gpu = self.own_gpu()?;
        if context.cu_ctx().cast() == gpu.context {
            return Ok(gpu);
        }
        Err(DeviceError::OtherContext { theirs: context.ordinal(), ours: gpu.ordinal }.into())
    }
}

/// Returns the context that a device address belongs to, if the driver knows.
pub(super) fn context_of(address: u64) -> Option<sys::CUcontext> {
    let mut context: sys::CUcontext = std::ptr::null_mut();
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT;
    // SAFETY: writes one handle; the driver returns an error for an address that it does not know.
    let known = unsafe { sys::cuPointerGetAttribute((&raw mut context).cast(), attribute, address) };
    (known == sys::CUresult::CUDA_SUCCESS).then_some(context)
}

pub(super) fn refused(reason: &'static str) -> crate::Error {
    DeviceError::Unsupported { device: "cuda", reason }.into()
}

/// Returns the error of a call of cudarc.
pub(super) fn failed(what: &str, error: DriverError) -> crate::Error {
    DeviceError::Cuda { what: what.to_owned(), source: cuda::driver_error("cudarc", error.0) }.into()
}
