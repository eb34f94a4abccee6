//! What a device refused or could not do.

use std::time::Duration;

use super::{cpu, cuda};

/// What errors call the stream that a PE has from its beginning.
pub(crate) const OWN_STREAM: &str = "the PE's own stream";

/// What a device refused or could not do.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::Error;
/// use oxshmem::device::DeviceError;
///
/// if pe.gpu().is_none() {
///     let refused = pe.link_module(b"");
///     assert!(matches!(refused, Err(Error::Device(DeviceError::Unsupported { device: "cpu", .. }))));
/// }
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// This build or machine does not have the device.
    #[error("device `{device}`: {reason}")]
    Unavailable {
        /// The requested device.
        device: String,
        /// Why, and what to do.
        reason: String,
    },
    /// Memory could not be had or mapped.
    #[error("{what} ({bytes} bytes): {source}{}", crate::limits::remedy(source))]
    Memory {
        /// What was attempted.
        what: &'static str,
        /// How much.
        bytes: u64,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A module was refused.
    #[error("module `{module}`: {source}")]
    Module {
        /// The module.
        module: String,
        /// Why.
        source: cpu::ModuleError,
    },
    /// A module was refused for a reason that only GPUs have.
    #[error("module `{module}`: {source}")]
    CudaModule {
        /// The module.
        module: String,
        /// Why.
        source: cuda::ModuleError,
    },
    /// The CUDA driver refused something or could not do it.
    #[error("{what}: {source}")]
    Cuda {
        /// What was attempted.
        what: String,
        /// The driver's answer.
        source: cuda::DriverError,
    },
    /// A kernel ended in a way after which CUDA cannot be used in this process.
    #[error(
        "the context of GPU {gpu} is lost, and with it everything on that GPU in this process: {source}; kernels that may be the cause: {kernels}. End the process, and run it under compute-sanitizer to find the cause"
    )]
    ContextLost {
        /// The GPU.
        gpu: i32,
        /// The kernels that may be the cause.
        kernels: String,
        /// The driver's answer.
        source: cuda::DriverError,
    },
    /// A kernel does not end.
    #[error(
        "a kernel is still running after {deadline:?} and cannot be stopped; launched since the last synchronize: {kernels}. Waits of the device API end by themselves (OXSHMEM_TIMEOUT), other loops do not; raise OXSHMEM_KERNEL_TIMEOUT if the kernel is only slow"
    )]
    StillRunning {
        /// The kernels that may be meant.
        kernels: String,
        /// The deadline.
        deadline: Duration,
    },
    /// A call that waits for a stream which is being captured into a graph, such as synchronize.
    /// It has waited for nothing, and the capture goes on.
    #[error(
        "a call that waits cannot be captured, and {stream} is being captured into a graph: what is put there runs when the graph is launched. End the capture (cuStreamEndCapture) before the call"
    )]
    Capturing {
        /// The stream.
        stream: String,
    },
    /// Something that this device does not take.
    #[error("device `{device}`: {reason}")]
    Unsupported {
        /// The device.
        device: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A stream or slice of cudarc of another context than that of the PE's GPU. Nothing was done.
    #[error(
        "device `cuda`: a stream or slice of cudarc belongs to another context (GPU {theirs}) than the PE's (GPU {ours}); use those of Pe::cuda_context"
    )]
    OtherContext {
        /// The ordinal of the GPU of its context.
        theirs: usize,
        /// The ordinal of the PE's GPU.
        ours: i32,
    },
    /// A launch was refused; nothing of it ran.
    #[error(transparent)]
    Launch(#[from] cpu::LaunchError),
    /// A kernel ended with an error.
    #[error(transparent)]
    Kernel(#[from] cpu::KernelError),
}
