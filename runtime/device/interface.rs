//! What a device does for everything above it: memory, and kernels to run on it.

use std::ffi::c_void;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use oxshmem_hca::provider::DeviceMemory;
use oxshmem_hca::soft::Accelerator;

use super::cpu::{AtomicAccess, LaunchConfig};
use super::cuda::{CudaGpu, Handle};
use super::error::DeviceError;
use super::identity::DeviceIdentity;
use super::pages::SharedPages;
use super::source::ModuleSource;
use super::stream::Stream;
use crate::abi;

/// A copy of device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceCopy {
    pub to: u64,
    pub from: u64,
    pub bytes: u64,
    /// Whether it is queued on a stream that is being captured, where it becomes a copy of the
    /// graph. Copies beside each other always are.
    pub in_graphs: bool,
}

/// Memory of a device that this process allocated, zeroed at first. Mappings and copies of the
/// descriptor keep it too.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Other processes map it through this.
    pub(super) descriptor: OwnedFd,
    /// What the driver knows it by, if it is a GPU's.
    pub(super) handle: Option<Handle>,
    /// The program's pages that are this memory, if it is the program's and not a GPU's.
    pub(super) _pages: Option<SharedPages>,
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Address space for the heaps of the PEs of a node, or for a slab. Unmapped with everything in it
/// when dropped.
pub(crate) trait AddressSpace: Debug + Send + Sync {
    /// Returns the first address.
    fn base(&self) -> u64;
    /// Maps `bytes` bytes of another process's memory at `base() + offset`.
    fn map(&self, memory: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), DeviceError>;
    /// Does the same with memory of this process.
    fn map_own(&self, memory: &Memory, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.map(memory.as_fd(), offset, bytes)
    }
    /// Takes the mapping of `bytes` bytes at `base() + offset` away, which nothing uses any more.
    fn unmap(&self, offset: u64, bytes: u64) -> Result<(), DeviceError>;
    /// Takes everything away that is mapped, and returns the addresses, which lead nowhere then.
    /// `None` if that fails, or was done before.
    fn retire(&mut self) -> Option<KeptAddresses>;
}

/// Addresses at which nothing is mapped. They are given to nothing else until this is dropped.
pub(crate) type KeptAddresses = Box<dyn Debug + Send>;

/// Host memory that kernels reach at the same address, zero at first. Freed when dropped.
pub(crate) trait HostMemory: Debug + Send + Sync {
    /// Returns where it is.
    fn address(&self) -> *mut u8;
    /// Returns its length in bytes.
    fn bytes(&self) -> u64;
}

/// Copies from device memory to host memory that go on while kernels run and the calling thread
/// does other things. What was visible to the calling thread when it started a copy is in the copy.
/// When it is dropped, no copy goes on.
pub(crate) trait Copier: Debug + Send {
    /// Starts to copy `bytes` bytes to `offset` in the memory; [`poll`](Self::poll) says when the
    /// copy has ended, by its `name`.
    ///
    /// # Safety
    /// Until then, or until this is dropped, `from` names mapped device memory of that length, and
    /// nothing else uses the host memory.
    unsafe fn start(&mut self, from: u64, offset: usize, bytes: usize, name: u32) -> Result<(), DeviceError>;
    /// Appends the copies that have ended since the last call.
    fn poll(&mut self, ended: &mut Vec<(u32, Result<(), DeviceError>)>);
}

/// Memory that the program allocated, of a kind that kernels and cards reach.
#[derive(Debug)]
pub(crate) struct ProgramMemory {
    /// Whether it is memory of the device, which [`Device::exporter`] exports.
    pub on_device: bool,
    /// Keeps it page-locked, if the library has done that.
    pub _locked: Option<Box<dyn Debug + Send>>,
}

/// Returns the first address and the bytes of the pages (of the system) that a range lies in.
pub(crate) fn whole_pages(address: u64, bytes: u64) -> (u64, u64) {
    let page = rustix::param::page_size() as u64;
    let first = address - address % page;
    (first, (address + bytes).next_multiple_of(page) - first)
}

/// A page of device registers that kernels reach. Unmapped when dropped.
pub(crate) trait MappedRegisters: Debug + Send + Sync {
    /// Returns where kernels find the page.
    fn address(&self) -> u64;
}

/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER` of the CUDA driver API.
pub(crate) const ORDERED_FOR_OWNER: i32 = 100;

/// A device: memory, and kernels to run on it.
pub(crate) trait Device: Debug + Send + Sync {
    /// Returns `cpu` or `cuda`.
    fn name(&self) -> &'static str;
    /// Returns which device it is.
    fn identity(&self) -> DeviceIdentity;
    /// Checks whether kernels can load from and store to memory of another PE's device; the error
    /// says why not.
    fn reaches(&self, peer: &DeviceIdentity) -> Result<(), String>;
    /// Returns whether this device's atomics on memory of a device that it reaches are atomic with
    /// those of that device.
    fn shares_atomics(&self, peer: &DeviceIdentity) -> bool;
    /// Returns the number of bytes in multiples of which memory comes.
    fn granularity(&self) -> u64;
    /// Reserves `bytes` bytes of addresses without memory at them. The first address is a multiple
    /// of `align`, a power of two, and of the granularity.
    fn reserve(&self, bytes: u64, align: u64) -> Result<Box<dyn AddressSpace>, DeviceError>;
    /// Allocates `bytes` bytes of zeroed memory.
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
    /// Allocates `bytes` bytes of zeroed memory that host and kernels read and write at the same
    /// time.
    fn host_memory(&self, bytes: u64) -> Result<Box<dyn HostMemory>, DeviceError>;
    /// Copies device memory to `memory`, which this device gave.
    fn copier(&self, memory: Arc<dyn HostMemory>) -> Result<Box<dyn Copier>, DeviceError>;
    /// Lets kernels store to a page (of the system) with registers of another device, which this
    /// process has mapped at `page` and keeps mapped.
    fn map_registers(&self, page: *mut u8) -> Result<Box<dyn MappedRegisters>, DeviceError>;
    /// Returns what the driver says of the order in which a card's writes become visible in the
    /// device's memory (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`): from
    /// [`ORDERED_FOR_OWNER`] on, kernels that see a write see those before it. Memory of the host
    /// always is so.
    fn write_ordering(&self) -> i32 {
        ORDERED_FOR_OWNER
    }
    /// Returns the exporter of the device's memory as dma-bufs, if it is not the host's.
    fn exporter(&self) -> Option<&dyn DeviceMemory>;
    /// Gives every module, loaded before or later, this state. No kernel is running.
    fn install(&self, state: &abi::State) -> Result<(), DeviceError>;
    /// Calls `hook` after each store to a doorbell register, and after others that a thread of the
    /// host waits for, where such stores have to be noticed by software.
    fn set_doorbell_hook(&self, hook: fn());
    /// Calls `hook` before each atomic of device code that changes a word of a symmetric heap, or
    /// calls nothing any more. Returns whether the device can do so.
    fn set_atomic_hook(&self, hook: Option<fn(AtomicAccess)>) -> bool {
        let _ = hook;
        false
    }
    /// Loads a module and checks its ABI version.
    fn load(&self, source: &ModuleSource) -> Result<Arc<dyn LoadedModule>, DeviceError>;
    /// Returns whether the build has machine code of a module for this device, which loads
    /// quickly. The driver of a GPU may take minutes to compile other code.
    fn has_code_of(&self, source: &ModuleSource) -> Result<bool, DeviceError>;
    /// Creates a new stream.
    fn create_stream(&self) -> Result<Stream, DeviceError>;
    /// Creates a new stream for kernels of one block that others wait for: they start before all
    /// kernels of other streams that wait for room, where the device has priorities.
    fn create_urgent_stream(&self) -> Result<Stream, DeviceError>;
    /// Returns the program's stream with this handle.
    ///
    /// # Safety
    /// `raw` is a stream of this device, and stays one while work is put on it and waited for.
    unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Result<Stream, DeviceError>;
    /// Waits until what `wait` names has ended, and copies what is at `from` then (at most 4 KiB)
    /// to `bytes`; the first error among the kernels. After an error of a kernel `bytes` is filled
    /// too, unless the device is lost.
    ///
    /// # Safety
    /// `from` names mapped device memory of that length.
    unsafe fn synchronize(&self, wait: Wait<'_>, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;
    /// Returns whether device code may be running now that was not launched on the PE's own stream.
    fn runs_elsewhere(&self) -> bool;
    /// Returns whether what the PE has put on a stream has ended; `None` if that is not known.
    /// Waits for nothing.
    fn has_ended(&self, stream: &Stream) -> Option<bool>;
    /// Queues a copy of device memory by a copy engine; `false`, and nothing is queued, if the
    /// device has none, or if the stream is being captured and the copy is not for graphs.
    ///
    /// # Safety
    /// Both ranges are mapped device memory until the copy has ended.
    unsafe fn copy_on(&self, stream: &Stream, copy: DeviceCopy) -> Result<bool, DeviceError>;
    /// Queues `copies`, one after another, and `beside` at the same time; what is queued later
    /// begins when all have ended. `false`, and nothing is queued, if the device has no copy
    /// engines.
    ///
    /// # Safety
    /// The same as for [`copy_on`](Self::copy_on), and no copy touches what another writes.
    unsafe fn copy_beside(
        &self,
        stream: &Stream,
        beside: DeviceCopy,
        copies: &[DeviceCopy],
    ) -> Result<bool, DeviceError>;
    /// Queues the store of a word of 1, 2, 4 or 8 bytes, for all devices and the host after what
    /// the stream has done before, without a kernel; `false`, and nothing is queued, if the device
    /// cannot do that on this stream now.
    ///
    /// # Safety
    /// The word is aligned and mapped device memory until the store has ended.
    unsafe fn store_on(&self, stream: &Stream, to: u64, word: u64, bytes: u64) -> Result<bool, DeviceError>;
    /// Returns whether kernels can access `bytes` bytes at `address`, a pointer of the program, as
    /// they are.
    fn is_accessible(&self, address: u64, bytes: u64) -> bool;
    /// Returns what the program's memory of `bytes` bytes at `address` is. Pageable memory of the
    /// host becomes page-locked where kernels do not reach it otherwise. Why it cannot be
    /// registered with a card, otherwise.
    fn adopt(&self, address: u64, bytes: u64) -> Result<ProgramMemory, String>;
    /// Returns the program's memory of `bytes` bytes at `address` as memory that can be mapped at
    /// other addresses and by other processes; it stays where it is. Why it cannot be, otherwise.
    ///
    /// # Safety
    /// It is memory of the program, which stays allocated as long as what is returned lives. No
    /// other thread uses it during the call, and while that is dropped.
    unsafe fn share(&self, address: u64, bytes: u64) -> Result<Memory, String>;
    /// Links relocatable code with the device library, for this device; what can be loaded.
    fn link_module(&self, code: &[u8]) -> Result<Vec<u8>, DeviceError>;
    /// Gives a module that the program loaded itself the PE's state.
    ///
    /// # Safety
    /// `raw` is a loaded `CUmodule` of the GPU's primary context, and no kernel of it is running.
    unsafe fn register_module(&self, raw: *mut c_void) -> Result<(), DeviceError>;
    /// Forgets a module that was registered.
    fn unregister_module(&self, raw: *mut c_void) -> Result<(), DeviceError>;
    /// Gives the state symbol of a translation unit the PE's state. `locate` says where the symbol
    /// is and what it has room for; the device's context is current when it is called.
    fn register_unit(
        &self,
        name: &str,
        locate: &mut dyn FnMut() -> Result<(u64, usize), String>,
    ) -> Result<(), DeviceError>;
    /// Makes the device the calling thread's current one, where threads have one and this one has
    /// none yet.
    fn make_current(&self) -> Result<(), DeviceError>;
    /// Loads a module whose kernels take turns with all else on the device, whatever that occupies.
    /// `None` where kernels need no room: those of each stream run on threads of their own.
    fn aside(&self, source: &ModuleSource) -> Result<Option<Arc<dyn Aside>>, DeviceError>;
    /// Runs the software HCA's kernel, independently of all other kernels.
    fn accelerator(&self) -> Result<Arc<dyn Accelerator>, DeviceError>;
    /// Returns the GPU, if it is one.
    fn gpu(&self) -> Option<CudaGpu>;
}

/// What [`Device::synchronize`] waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait<'a> {
    /// The PE's own stream.
    Own,
    /// All that is on this stream, no matter what put it there. The stream exists.
    Stream(&'a Stream),
    /// What the PE has put on these streams, which the program may have destroyed since.
    Launched(&'a [Stream]),
    /// Everything on the device that this process started.
    Everything,
}

impl Wait<'_> {
    /// Returns whether nothing of the PE's own stream runs when the wait has ended.
    pub fn includes_own(&self) -> bool {
        let is_own = |stream: &Stream| stream.key() == Stream::OWN.key();
        match self {
            Self::Own | Self::Everything => true,
            Self::Stream(stream) => is_own(stream),
            Self::Launched(streams) => streams.iter().any(is_own),
        }
    }
}

/// A module whose kernels run beside all others, in turns with them.
pub(crate) trait Aside: Debug + Send + Sync {
    /// Runs a kernel and waits for it.
    ///
    /// # Safety
    /// As for [`LoadedModule::launch`].
    unsafe fn run(&self, name: &str, config: LaunchConfig, args: &[&[u8]]) -> Result<(), DeviceError>;
    /// Copies device memory to host memory, and waits for no kernel.
    ///
    /// # Safety
    /// `from` names mapped device memory of that length.
    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;
}

/// A module that a device holds.
pub(crate) trait LoadedModule: Debug + Send + Sync {
    /// Queues the kernel `name` on a stream; returns before it has run.
    ///
    /// # Safety
    /// What the arguments point to must stay valid until the kernel has ended, and the kernel must
    /// be sound for them.
    unsafe fn launch(
        &self,
        name: &str,
        config: LaunchConfig,
        args: &[&[u8]],
        stream: &Stream,
    ) -> Result<(), DeviceError>;
    /// Makes sure that no launch has to wait for room for the stacks of the module's kernels: a GPU
    /// that has less makes more at the first launch, when all running kernels have ended.
    fn reserve_stacks(&self) -> Result<(), DeviceError>;
    /// Refuses names the module does not have.
    fn check(&self, name: &str) -> Result<(), DeviceError>;
}
