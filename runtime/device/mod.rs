//! Devices: what runs kernels and owns the memory they use. Everything above this module works on any of them.

pub mod cpu;
mod cpu_accelerator;
mod cpu_device;
pub mod cuda;
mod shared_memory;
pub(crate) mod source;
mod stream;

use std::ffi::c_void;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

pub use cpu::LaunchConfig;
pub use cpu_accelerator::cpu_accelerator;
pub(crate) use cpu_device::CpuDevice;
pub(crate) use cuda::CudaDevice;
pub use cuda::CudaGpu;
pub use source::ModuleSource;
pub(crate) use stream::{Stream, StreamKind};

use oxshmem_hca::provider::DeviceMemory;
use oxshmem_hca::soft::Accelerator;

use crate::{abi, config};

crate::include_module!(SOFT_HCA, "soft_hca");
/// Its only kernel.
const SOFT_HCA_KERNEL: &str = "oxshmem_soft_hca";

/// Whether a PE that asks for `device` gets a GPU, as far as that can be told before it is opened: with `auto` it does where this build has kernels
/// for GPUs and the driver shows one. For defaults that depend on it; a GPU may still turn out to be unusable.
#[must_use]
pub fn takes_gpu(device: config::Device) -> bool {
    match device {
        config::Device::Cpu => false,
        config::Device::Cuda => true,
        config::Device::Auto => crate::build_info().cuda.is_some() && cuda::gpu_present(),
    }
}

/// What a device refused or could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// This build or machine does not have the device.
    #[error("device `{device}`: {reason}")]
    Unavailable {
        /// The device asked for.
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
        "the context of GPU {gpu} is lost, and with it everything on that GPU in this process: {source}; kernels that may \
         have done it: {kernels}. End the process; compute-sanitizer finds the cause"
    )]
    ContextLost {
        /// The GPU.
        gpu: i32,
        /// The kernels that may have done it.
        kernels: String,
        /// The driver's answer.
        source: cuda::DriverError,
    },
    /// A kernel does not end.
    #[error(
        "a kernel is still running after {deadline:?} and cannot be stopped; launched since the last synchronize: {kernels}. Waits of the \
         device API end by themselves (OXSHMEM_TIMEOUT), other loops do not; raise OXSHMEM_KERNEL_TIMEOUT if it is only slow"
    )]
    StillRunning {
        /// The kernels that may be meant.
        kernels: String,
        /// The deadline.
        deadline: Duration,
    },
    /// Something that this device does not take.
    #[error("device `{device}`: {reason}")]
    Unsupported {
        /// The device.
        device: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A launch was refused; nothing of it ran.
    #[error(transparent)]
    Launch(#[from] cpu::LaunchError),
    /// A kernel ended with an error.
    #[error(transparent)]
    Kernel(#[from] cpu::KernelError),
}

/// Memory of a device that this process allocated, zeroed at first. Mappings and copies of the descriptor keep it too.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Other processes map it through this.
    descriptor: OwnedFd,
    /// What the driver knows it by, if it is a GPU's.
    handle: Option<cuda::Handle>,
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Address space for the heaps of the PEs of a node, or for a slab. Unmapped with everything in it when dropped.
pub(crate) trait AddressSpace: Debug + Send + Sync {
    /// First address.
    fn base(&self) -> u64;
    /// Maps `bytes` bytes of another process's memory at `base() + offset`.
    fn map(&self, memory: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), DeviceError>;
    /// The same with memory of this process.
    fn map_own(&self, memory: &Memory, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.map(memory.as_fd(), offset, bytes)
    }
}

/// Host memory that kernels reach at the same address, zero at first. Freed when dropped.
pub(crate) trait HostMemory: Debug + Send + Sync {
    /// Where it is.
    fn address(&self) -> *mut u8;
}

/// Copies from device memory to host memory that go on while kernels run and the calling thread does other things. What was visible to the
/// calling thread when it started a copy is in the copy. When it is dropped, no copy goes on.
pub(crate) trait Copier: Debug + Send {
    /// Starts to copy `bytes` bytes to `offset` in the memory; [`poll`](Self::poll) says when the copy has ended, by its `name`.
    ///
    /// # Safety
    /// Until then, or until this is dropped, `from` names mapped device memory of that length, and nobody else uses the host memory.
    unsafe fn start(&mut self, from: u64, offset: usize, bytes: usize, name: u32) -> Result<(), DeviceError>;
    /// Appends the copies that have ended since the last call.
    fn poll(&mut self, ended: &mut Vec<(u32, Result<(), DeviceError>)>);
}

/// A page of device registers that kernels reach. Unmapped when dropped.
pub(crate) trait MappedRegisters: Debug + Send + Sync {
    /// Where kernels find the page.
    fn address(&self) -> u64;
}

/// A device: memory, and kernels to run on it.
pub(crate) trait Device: Debug + Send + Sync {
    /// `cpu`, `cuda`.
    fn name(&self) -> &'static str;
    /// Says to the PEs of the node, and to people, which device it is.
    fn identity(&self) -> String;
    /// Whether kernels can load from and store to memory of the device with this identity; why not, otherwise.
    fn reaches(&self, peer: &str) -> Result<(), String>;
    /// Memory comes in multiples of this many bytes.
    fn granularity(&self) -> u64;
    /// Reserves `bytes` bytes of addresses without memory behind them.
    fn reserve(&self, bytes: u64) -> Result<Box<dyn AddressSpace>, DeviceError>;
    /// `bytes` bytes of zeroed memory.
    fn allocate(&self, bytes: u64) -> Result<Memory, DeviceError>;
    /// Copies host memory to device memory. Neither this nor `read` waits for kernels.
    ///
    /// # Safety
    /// `to` names mapped device memory of that length.
    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Copies device memory to host memory.
    ///
    /// # Safety
    /// `from` names mapped device memory of that length.
    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;
    /// Sets `bytes` bytes of device memory to `value`.
    ///
    /// # Safety
    /// `at` names mapped device memory of that length.
    unsafe fn fill(&self, at: u64, value: u8, bytes: u64) -> Result<(), DeviceError>;
    /// `bytes` bytes of zeroed memory that host and kernels read and write at the same time.
    fn host_memory(&self, bytes: u64) -> Result<Box<dyn HostMemory>, DeviceError>;
    /// Copies device memory to `memory`, which this device gave.
    fn copier(&self, memory: Arc<dyn HostMemory>) -> Result<Box<dyn Copier>, DeviceError>;
    /// Lets kernels store to a page of registers of another device (4 KiB), which this process has mapped at `page` and keeps mapped.
    fn map_registers(&self, page: *mut u8) -> Result<Box<dyn MappedRegisters>, DeviceError>;
    /// Who exports the device's memory as dma-bufs, if it is not the host's.
    fn exporter(&self) -> Option<&dyn DeviceMemory>;
    /// Gives every module, loaded before or later, this state. No kernel is running.
    fn install(&self, state: &abi::State) -> Result<(), DeviceError>;
    /// Calls `hook` after each store to a doorbell register, and after others that a thread of the host waits for, where such stores have
    /// to be noticed by software.
    fn set_doorbell_hook(&self, hook: fn());
    /// Loads a module and checks its ABI version.
    fn load(&self, source: &ModuleSource) -> Result<Arc<dyn LoadedModule>, DeviceError>;
    /// A new stream.
    fn create_stream(&self) -> Result<Stream, DeviceError>;
    /// The program's stream with this handle.
    ///
    /// # Safety
    /// `raw` is a stream of this device, and stays one while work is put on it and waited for.
    unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Result<Stream, DeviceError>;
    /// Waits until what `wait` names has ended, and copies what is at `from` then (at most 4 KiB) to `bytes`; the first error among
    /// the kernels. After an error `bytes` is filled too, unless the device is lost.
    ///
    /// # Safety
    /// `from` names mapped device memory of that length.
    unsafe fn synchronize(&self, wait: Wait<'_>, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;
    /// Whether device code may be running now that was not launched on the PE's own stream.
    fn runs_elsewhere(&self) -> bool;
    /// Queues a copy of device memory by a copy engine; `false` if the device has none and nothing was queued.
    ///
    /// # Safety
    /// Both ranges are mapped device memory until the copy has ended.
    unsafe fn copy_on(&self, stream: &Stream, to: u64, from: u64, bytes: u64) -> Result<bool, DeviceError>;
    /// Whether kernels can access what is at `address`, a pointer of the program, as it is.
    fn is_accessible(&self, address: u64) -> bool;
    /// Links relocatable code with the device library, for this device; what can be loaded.
    fn link_module(&self, code: &[u8]) -> Result<Vec<u8>, DeviceError>;
    /// Gives a module that the program loaded itself the PE's state.
    ///
    /// # Safety
    /// `raw` is a loaded `CUmodule` of the GPU's primary context, and no kernel of it is running.
    unsafe fn register_module(&self, raw: *mut c_void) -> Result<(), DeviceError>;
    /// Forgets a module that was registered.
    fn unregister_module(&self, raw: *mut c_void) -> Result<(), DeviceError>;
    /// Gives the state symbol of a translation unit the PE's state. `locate` says where the symbol is and what it has room for; the
    /// device's context is current when it is called.
    fn register_unit(
        &self,
        name: &str,
        locate: &mut dyn FnMut() -> Result<(u64, usize), String>,
    ) -> Result<(), DeviceError>;
    /// Makes the device the calling thread's current one, where threads have one and this one has none yet.
    fn make_current(&self) -> Result<(), DeviceError>;
    /// Runs the software HCA's kernel, independently of all other kernels.
    fn accelerator(&self) -> Result<Arc<dyn Accelerator>, DeviceError>;
    /// The GPU, if it is one.
    fn gpu(&self) -> Option<CudaGpu>;
}

/// Hands on what kernels have printed: `printf` writes to the standard output of C, which has a buffer that this process otherwise empties
/// at its end.
pub(crate) fn flush_printf() {
    unsafe extern "C" {
        // What the macro of <stdio.h> means on Linux.
        static stdout: *mut libc::FILE;
    }
    // SAFETY: the C library's stream, which it locks; it lives as long as the process. That nobody reads it any more is no error here.
    unsafe { libc::fflush(stdout) };
}

/// What [`Device::synchronize`] waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait<'a> {
    /// The PE's own stream.
    Own,
    /// All that is on this stream, whoever put it there. The stream exists.
    Stream(&'a Stream),
    /// What the PE has put on these streams, which the program may have destroyed since.
    Launched(&'a [Stream]),
    /// Everything on the device that this process started.
    Everything,
}

/// A module that a device holds.
pub(crate) trait LoadedModule: Debug + Send + Sync {
    /// Queues the kernel `name` on a stream; returns before it has run.
    ///
    /// # Safety
    /// What the arguments point to must stay valid until the kernel has ended, and the kernel must be sound for them.
    unsafe fn launch(
        &self,
        name: &str,
        config: LaunchConfig,
        args: &[&[u8]],
        stream: &Stream,
    ) -> Result<(), DeviceError>;
    /// Refuses names the module does not have.
    fn check(&self, name: &str) -> Result<(), DeviceError>;
}
