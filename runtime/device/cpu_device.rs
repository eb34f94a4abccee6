//! The `cpu` device as a [`Device`]: memfds for memory, the SIMT executor for kernels.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use oxshmem_hca::provider::DeviceMemory;
use oxshmem_hca::soft::Accelerator;

use super::cpu::{self, Executor, ExecutorOptions, LaunchConfig};
use super::cpu_accelerator::CpuAccelerator;
use super::cuda::CudaGpu;
use super::error::DeviceError;
use super::identity::DeviceIdentity;
use super::interface::{
    AddressSpace, Aside, Copier, Device, DeviceCopy, HostMemory, KeptAddresses, LoadedModule, MappedRegisters, Memory,
    ProgramMemory, Wait,
};
use super::pages::SharedPages;
use super::source::ModuleSource;
use super::stream::{Stream, StreamKind};
use crate::abi;
use crate::config::Config;

/// Returns memory of this process and a SIMT executor that run the software HCA's kernel; for
/// [`SoftOptions::accelerator`](oxshmem_hca::soft::SoftOptions::accelerator).
///
/// # Errors
/// The system refuses threads or memory.
pub fn cpu_accelerator() -> Result<Arc<dyn Accelerator>, DeviceError> {
    CpuDevice::new(&Config::default())?.accelerator()
}

/// The CPU of this machine.
#[derive(Debug, Clone)]
pub(crate) struct CpuDevice {
    /// The PE's own stream.
    executor: Arc<Executor>,
    /// The program's.
    streams: Arc<Mutex<Vec<Weak<Executor>>>>,
}

impl CpuDevice {
    pub(crate) fn new(config: &Config) -> Result<Self, DeviceError> {
        let options = ExecutorOptions {
            workers: config.cpu_workers() as usize,
            stack_bytes: usize::try_from(config.cpu_stack().0).unwrap_or(usize::MAX),
            deadline: config.kernel_timeout(),
            ..ExecutorOptions::default()
        };
        Ok(Self { executor: Arc::new(Executor::new(options)?), streams: Arc::default() })
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Weak<Executor>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stream_of(&self, options: ExecutorOptions) -> Result<Stream, DeviceError> {
        let executor = Arc::new(Executor::new(options)?);
        self.streams().push(Arc::downgrade(&executor));
        Ok(Stream(StreamKind::Cpu(executor)))
    }

    fn executor<'a>(&'a self, stream: &'a Stream) -> Result<&'a Executor, DeviceError> {
        executor_of(stream, &self.executor)
    }
}

/// Returns the executor that is a stream.
fn executor_of<'a>(stream: &'a Stream, own: &'a Executor) -> Result<&'a Executor, DeviceError> {
    match &stream.0 {
        StreamKind::Own => Ok(own),
        StreamKind::Cpu(executor) => Ok(executor),
        StreamKind::Cuda(_) => Err(DeviceError::Unsupported { device: "cpu", reason: "the stream is one of a GPU" }),
    }
}

fn no_modules() -> DeviceError {
    DeviceError::Unsupported { device: "cpu", reason: "it takes no CUDA modules; run with OXSHMEM_DEVICE=cuda" }
}

fn memory_error(what: &'static str, bytes: u64) -> impl FnOnce(rustix::io::Errno) -> DeviceError {
    move |errno| DeviceError::Memory { what, bytes, source: errno.into() }
}

fn length(bytes: u64) -> usize {
    // Address space of this process is measured in usize; what does not fit is refused by mmap.
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Kernels run in this process, where the page is mapped already.
#[derive(Debug)]
struct OwnRegisters(u64);

impl MappedRegisters for OwnRegisters {
    fn address(&self) -> u64 {
        self.0
    }
}

/// Copies by the thread that asks whether they have ended, one each time.
#[derive(Debug)]
struct CallerCopier {
    memory: Arc<dyn HostMemory>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    from: u64,
    offset: usize,
    bytes: usize,
    name: u32,
}

impl Copier for CallerCopier {
    unsafe fn start(&mut self, from: u64, offset: usize, bytes: usize, name: u32) -> Result<(), DeviceError> {
        self.waiting.push_back(Waiting { from, offset, bytes, name });
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<(u32, Result<(), DeviceError>)>) {
        let Some(Waiting { from, offset, bytes, name }) = self.waiting.pop_front() else { return };
        // SAFETY: the promise of the thread that started the copy. What it says is visible to this
        // thread, which started it.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, self.memory.address().add(offset), bytes) };
        ended.push((name, Ok(())));
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity { key: "cpu".into(), name: "cpu".into() }
    }

    fn reaches(&self, _peer: &DeviceIdentity) -> Result<(), String> {
        Ok(())
    }

    fn shares_atomics(&self, _peer: &DeviceIdentity) -> bool {
        true
    }

    fn granularity(&self) -> u64 {
        rustix::param::page_size() as u64
    }

    fn reserve(&self, bytes: u64, align: u64) -> Result<Box<dyn AddressSpace>, DeviceError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let page = self.granularity();
        let bytes = bytes.next_multiple_of(page);
        // The kernel aligns to pages alone, so that much more has an aligned address in it.
        let all = bytes.saturating_add(align.saturating_sub(page));
        // SAFETY: a new mapping at an address of the kernel's choice.
        let first = unsafe { mmap_anonymous(std::ptr::null_mut(), length(all), ProtFlags::empty(), flags) }
            .map_err(memory_error("cannot reserve address space; lower OXSHMEM_HEAP_MAX", all))?
            as u64;
        let base = first.next_multiple_of(align);
        for (start, end) in [(first, base), (base + bytes, first + all)] {
            if start < end {
                drop(Reservation { base: start, bytes: end - start, retired: false });
            }
        }
        Ok(Box::new(Reservation { base, bytes, retired: false }))
    }

    fn allocate(&self, bytes: u64) -> Result<Memory, DeviceError> {
        let descriptor =
            memfd_create("oxshmem", MemfdFlags::CLOEXEC).map_err(memory_error("cannot create shared memory", bytes))?;
        // The system kills a process that makes a file too large, instead of refusing that.
        if rustix::process::getrlimit(rustix::process::Resource::Fsize).current.is_some_and(|limit| limit < bytes) {
            return Err(memory_error("cannot make shared memory as large", bytes)(rustix::io::Errno::FBIG));
        }
        ftruncate(&descriptor, bytes).map_err(memory_error("cannot size shared memory", bytes))?;
        Ok(Memory { descriptor, handle: None, _pages: None })
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn fill(&self, at: u64, value: u8, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(at as *mut u8, value, length(bytes)) };
        Ok(())
    }

    fn host_memory(&self, bytes: u64) -> Result<Box<dyn HostMemory>, DeviceError> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length(bytes), prot, MapFlags::PRIVATE) }
            .map_err(memory_error("cannot map host memory", bytes))?;
        Ok(Box::new(Mapped(Reservation { base: base as u64, bytes, retired: false })))
    }

    fn copier(&self, memory: Arc<dyn HostMemory>) -> Result<Box<dyn Copier>, DeviceError> {
        Ok(Box::new(CallerCopier { memory, waiting: VecDeque::new() }))
    }

    fn map_registers(&self, page: *mut u8) -> Result<Box<dyn MappedRegisters>, DeviceError> {
        Ok(Box::new(OwnRegisters(page as u64)))
    }

    fn exporter(&self) -> Option<&dyn DeviceMemory> {
        None
    }

    fn install(&self, state: &abi::State) -> Result<(), DeviceError> {
        let (to, bytes) = cpu::device_state();
        assert_eq!(bytes, size_of::<abi::State>(), "the runtime and the executor were built from different headers");
        // SAFETY: `to` names a static of that size, which only kernels read, and none runs while
        // the state changes.
        unsafe { to.cast::<abi::State>().write(*state) };
        Ok(())
    }

    fn set_doorbell_hook(&self, hook: fn()) {
        cpu::set_mmio_hook(Some(hook));
    }

    fn set_atomic_hook(&self, hook: Option<fn(cpu::AtomicAccess)>) -> bool {
        cpu::set_atomic_hook(hook);
        true
    }

    fn load(&self, source: &ModuleSource) -> Result<Arc<dyn LoadedModule>, DeviceError> {
        let refused = |source_error| DeviceError::Module { module: source.name.to_owned(), source: source_error };
        let description = source.cpu_object();
        // SAFETY: it is the module's static description.
        let module = unsafe { cpu::Module::from_raw(description) }.map_err(refused)?;
        Ok(Arc::new(CpuModule { name: source.name, module, executor: Arc::clone(&self.executor) }))
    }

    fn has_code_of(&self, _: &ModuleSource) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn create_stream(&self) -> Result<Stream, DeviceError> {
        self.stream_of(self.executor.options().clone())
    }

    fn create_urgent_stream(&self) -> Result<Stream, DeviceError> {
        // One worker runs one block.
        self.stream_of(ExecutorOptions { workers: 1, ..self.executor.options().clone() })
    }

    unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Result<Stream, DeviceError> {
        if raw.is_null() {
            return Ok(Stream::OWN);
        }
        Err(DeviceError::Unsupported {
            device: "cpu",
            reason: "it has no CUDA streams; pass a null pointer for the PE's own stream, or run with OXSHMEM_DEVICE=cuda",
        })
    }

    unsafe fn synchronize(&self, wait: Wait<'_>, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let mut ended = Ok(());
        let mut wait_for = |stream: &Stream| {
            let executor = self.executor(stream)?;
            if let Err(error) = executor.synchronize() {
                ended = std::mem::replace(&mut ended, Ok(())).and(Err(error));
            }
            Ok::<(), DeviceError>(())
        };
        match wait {
            Wait::Own => wait_for(&Stream::OWN)?,
            Wait::Stream(stream) => wait_for(stream)?,
            Wait::Launched(streams) => streams.iter().try_for_each(wait_for)?,
            Wait::Everything => {
                let all: Vec<_> = self.streams().iter().filter_map(Weak::upgrade).collect();
                wait_for(&Stream::OWN)?;
                all.into_iter().try_for_each(|executor| wait_for(&Stream(StreamKind::Cpu(executor))))?;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.read(from, bytes) }?;
        Ok(ended?)
    }

    fn runs_elsewhere(&self) -> bool {
        let mut streams = self.streams();
        streams.retain(|executor| executor.strong_count() != 0);
        streams.iter().filter_map(Weak::upgrade).any(|executor| !executor.is_idle())
    }

    fn has_ended(&self, stream: &Stream) -> Option<bool> {
        self.executor(stream).ok().map(Executor::is_idle)
    }

    unsafe fn copy_on(&self, _stream: &Stream, _copy: DeviceCopy) -> Result<bool, DeviceError> {
        Ok(false)
    }

    unsafe fn copy_beside(
        &self,
        _stream: &Stream,
        _beside: DeviceCopy,
        _copies: &[DeviceCopy],
    ) -> Result<bool, DeviceError> {
        Ok(false)
    }

    unsafe fn store_on(&self, _stream: &Stream, _to: u64, _word: u64, _bytes: u64) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn is_accessible(&self, _address: u64, _bytes: u64) -> bool {
        true
    }

    fn adopt(&self, _address: u64, _bytes: u64) -> Result<ProgramMemory, String> {
        Ok(ProgramMemory { on_device: false, _locked: None })
    }

    unsafe fn share(&self, address: u64, bytes: u64) -> Result<Memory, String> {
        let page = self.granularity();
        if !address.is_multiple_of(page) || !bytes.is_multiple_of(page) {
            return Err(format!("it is not whole pages of {page} bytes; allocate it with mmap or aligned_alloc"));
        }
        let memory = self.allocate(bytes).map_err(|error| error.to_string())?;
        // The pages become those of a file that others can map, with what is in them.
        // SAFETY: the caller's promise.
        let pages = unsafe { SharedPages::new(address, length(bytes), &memory.descriptor) }?;
        Ok(Memory { _pages: Some(pages), ..memory })
    }

    fn link_module(&self, _code: &[u8]) -> Result<Vec<u8>, DeviceError> {
        Err(no_modules())
    }

    unsafe fn register_module(&self, _raw: *mut c_void) -> Result<(), DeviceError> {
        Err(no_modules())
    }

    fn unregister_module(&self, _raw: *mut c_void) -> Result<(), DeviceError> {
        Err(no_modules())
    }

    fn register_unit(
        &self,
        name: &str,
        _locate: &mut dyn FnMut() -> Result<(u64, usize), String>,
    ) -> Result<(), DeviceError> {
        // Its kernels run on a GPU, if at all; the program may use the host API only.
        tracing::warn!(unit = name, "kernels of CUDA translation units cannot be used: this PE is on the cpu device");
        Ok(())
    }

    fn make_current(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn aside(&self, _source: &ModuleSource) -> Result<Option<Arc<dyn Aside>>, DeviceError> {
        Ok(None)
    }

    fn accelerator(&self) -> Result<Arc<dyn Accelerator>, DeviceError> {
        Ok(Arc::new(CpuAccelerator::new(Box::new(self.clone()))?))
    }

    fn gpu(&self) -> Option<CudaGpu> {
        None
    }
}

#[derive(Debug)]
struct CpuModule {
    name: &'static str,
    module: cpu::Module,
    executor: Arc<Executor>,
}

impl CpuModule {
    fn kernel(&self, name: &str) -> Result<&cpu::Kernel, DeviceError> {
        self.module.kernel(name).map_err(|source| DeviceError::Module { module: self.name.to_owned(), source })
    }
}

impl LoadedModule for CpuModule {
    unsafe fn launch(
        &self,
        name: &str,
        config: LaunchConfig,
        args: &[&[u8]],
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let kernel = self.kernel(name)?;
        // SAFETY: the caller's promise.
        unsafe { executor_of(stream, &self.executor)?.launch(kernel, config, args) }?;
        Ok(())
    }

    fn reserve_stacks(&self) -> Result<(), DeviceError> {
        // Each thread has one, whatever it executes.
        Ok(())
    }

    fn check(&self, name: &str) -> Result<(), DeviceError> {
        self.kernel(name).map(drop)
    }
}

#[derive(Debug)]
struct Reservation {
    base: u64,
    bytes: u64,
    /// Whether the addresses are another value's by now.
    retired: bool,
}

impl AddressSpace for Reservation {
    fn base(&self) -> u64 {
        self.base
    }

    fn map(&self, memory: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        assert!(offset + bytes <= self.bytes, "mapping past the end of a reservation");
        let at = (self.base + offset) as *mut c_void;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: MAP_FIXED replaces pages of this object's reservation only, and nothing was
        // mapped there before.
        unsafe { mmap(at, length(bytes), prot, flags, memory, 0) }
            .map_err(memory_error("cannot map shared memory", bytes))?;
        Ok(())
    }

    fn unmap(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        assert!(offset + bytes <= self.bytes, "unmapping past the end of a reservation");
        let at = (self.base + offset) as *mut c_void;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: MAP_FIXED replaces pages of this object's reservation only, which nothing uses.
        unsafe { mmap_anonymous(at, length(bytes), ProtFlags::empty(), flags) }
            .map_err(memory_error("cannot unmap shared memory", bytes))?;
        Ok(())
    }

    fn retire(&mut self) -> Option<KeptAddresses> {
        if self.retired {
            return None;
        }
        if let Err(error) = self.unmap(0, self.bytes) {
            tracing::debug!(%error, "the addresses of a heap cannot be kept");
            return None;
        }
        self.retired = true;
        Some(Box::new(Self { retired: false, ..*self }))
    }
}

/// A mapping of host memory.
#[derive(Debug)]
struct Mapped(Reservation);

impl HostMemory for Mapped {
    fn address(&self) -> *mut u8 {
        self.0.base as *mut u8
    }

    fn bytes(&self) -> u64 {
        self.0.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.retired {
            return;
        }
        // SAFETY: the reservation is ours, with everything that was mapped into it.
        let unmapped = unsafe { munmap(self.base as *mut c_void, length(self.bytes)) };
        if let Err(error) = unmapped {
            tracing::error!(base = self.base, bytes = self.bytes, %error, "cannot unmap a reservation");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reservations_begin_where_their_alignment_says() {
        let device = CpuDevice::new(&Config::default()).unwrap();
        let page = device.granularity();
        for align in [1, page, 2 * page, 1 << 20, 1 << 30] {
            let held: Vec<_> = (1..8).map(|pages| device.reserve(pages * page, align).unwrap()).collect();
            assert!(held.iter().all(|space| space.base() % align.max(page) == 0), "{align:#x}: {held:?}");
        }
    }

    #[test]
    fn what_alignment_took_too_much_is_given_back() {
        let device = CpuDevice::new(&Config::default()).unwrap();
        let (page, align) = (device.granularity(), 1 << 44);
        // All of them would not fit the address space at a time.
        for _ in 0..64 {
            assert_eq!(device.reserve(page, align).unwrap().base() % align, 0);
        }
    }

    /// A kernel of the PE's own stream may post while the host waits for another stream.
    #[test]
    fn a_wait_for_another_stream_leaves_the_pe_s_own_out() {
        let other = CpuDevice::new(&Config::default()).unwrap().create_stream().unwrap();
        let both = [other.clone(), Stream::OWN];
        let [own, launched] = [Wait::Stream(&Stream::OWN), Wait::Launched(&both)];
        assert!([Wait::Own, Wait::Everything, own, launched].iter().all(Wait::includes_own));
        assert!(![Wait::Stream(&other), Wait::Launched(&both[..1])].iter().any(Wait::includes_own));
    }
}
