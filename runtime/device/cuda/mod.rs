//! The `cuda` device: an NVIDIA GPU through the driver API.
//!
//! It works in the GPU's primary context, which the CUDA runtime and cudarc use as well, and leaves
//! the calling thread's current context as it was. Kernels run on a stream of the PE's own; copies
//! between host and GPU on another, so that the host can write the abort word that device waits
//! poll while a kernel runs.

mod accelerator;
mod adopted;
mod aside;
mod card;
mod copier;
mod driver;
mod error;
mod events;
mod external_stream;
mod gpu;
mod handle;
mod launched;
mod link;
mod memory;
mod module;
mod module_units;
mod network;
mod occupancy;
mod page_locks;
mod queues;
mod raw_stream;
mod stream;
mod target;

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use accelerator::CudaAccelerator;
#[cfg(feature = "cudarc")]
pub(crate) use adopted::gpu_of;
use aside::CudaAside;
#[doc(hidden)]
pub use card::{Backing, CardGpu};
use copier::CudaCopier;
use cudarc::driver::sys::{CUdevice_attribute, CUstream};
#[cfg(feature = "cudarc")]
pub(crate) use driver::describe as driver_error;
use driver::driver;
use driver::{Context, Gpu, Uuid};
pub use driver::{DriverError, OLDEST_DRIVER};
pub(crate) use driver::{driver_present, gpu_present};
pub use error::ModuleError;
pub(crate) use external_stream::ExternalStream;
pub use gpu::CudaGpu;
pub(crate) use handle::Handle;
use launched::Transfer;
pub use link::DEVICE_LIBRARY;
use memory::{Copies, Pinned, Reservation};
use module::CudaModule;
use network::{Exporter, Registers};
use stream::Stream;
use target::{followed, launched, mark, target};

use oxshmem_hca::provider::DeviceMemory;
use oxshmem_hca::soft::Accelerator;
use oxshmem_system::words::count32;

use super::error::DeviceError;
use super::identity::DeviceIdentity;
use super::interface::{
    AddressSpace, Aside, Copier, Device, DeviceCopy, HostMemory, LoadedModule, MappedRegisters, Memory, ProgramMemory,
    Wait,
};
use super::source::ModuleSource;
use super::stream::StreamKind;
use crate::abi;
use crate::config::Config;

/// Most bytes that [`Device::synchronize`] reads.
const READ_BACK_BYTES: usize = 4096;

/// One GPU.
#[derive(Debug)]
pub(crate) struct CudaDevice {
    // Dropped in this order: what is on the GPU, then its context.
    installed: Mutex<Installed>,
    read_back: Mutex<Pinned>,
    copies: Copies,
    granularity: u64,
    deadline: Duration,
    name: String,
    pci: String,
    multiprocessors: u32,
    write_ordering: i32,
    /// The GPU reads pageable memory of the host by itself, and so perhaps later than in the call
    /// that queues a copy of it.
    reads_host_late: bool,
    /// Streams can store words of 8 bytes by themselves.
    has_stream_stores: bool,
    exporter: Exporter,
    stream: Arc<Stream>,
}

#[derive(Debug, Default)]
struct Installed {
    state: Option<abi::State>,
    modules: Vec<Arc<CudaModule>>,
}

fn unavailable(reason: String) -> DeviceError {
    DeviceError::Unavailable { device: "cuda".into(), reason }
}

impl CudaDevice {
    /// Opens the GPU whose context is current in the calling thread; if there is none, GPU
    /// `node_rank` modulo their number, where `node_rank` counts the PEs of this node. `probe` is a
    /// module that has to be loadable.
    pub(crate) fn open(config: &Config, node_rank: usize, probe: &ModuleSource) -> Result<Self, DeviceError> {
        let begun = Instant::now();
        driver::start().map_err(unavailable)?;
        let driver_ms = begun.elapsed().as_millis();
        let gpu = choose(node_rank).map_err(|error| unavailable(error.to_string()))?;
        let Some(gpu) = gpu else {
            return Err(unavailable("this process sees no GPU (CUDA_VISIBLE_DEVICES)".into()));
        };
        let name = Self::check(gpu, probe)?;
        let pci = gpu.pci().map_err(|error| unavailable(error.to_string()))?;
        let multiprocessors = gpu
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(|error| unavailable(error.to_string()))?
            .unsigned_abs();
        let write_ordering = gpu
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)
            .map_err(|error| unavailable(error.to_string()))?;
        let has = |attribute| match gpu.attribute(attribute) {
            Ok(value) => Ok(value != 0),
            Err(error) => Err(unavailable(error.to_string())),
        };
        let reads_host_late = has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)?;
        let has_stream_stores = has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)?;
        let context = Context::retain(gpu).map_err(|error| {
            unavailable(format!("the context of GPU {} ({name}) cannot be made: {error}", gpu.ordinal))
        })?;
        let context_ms = begun.elapsed().as_millis() - driver_ms;
        let stream = Stream::new(context, config.kernel_timeout())
            .map_err(|error| DeviceError::Cuda { what: "cannot create a stream".into(), source: error })?;
        let stream = Arc::new(stream);
        let granularity = {
            let _entered = stream.enter()?;
            handle::granularity(gpu).map_err(|error| stream.error("cannot size GPU memory", error))?
        };
        tracing::info!(gpu = gpu.ordinal, name, driver_ms, context_ms, "opened a GPU");
        Ok(Self {
            installed: Mutex::default(),
            read_back: Mutex::new(Pinned::new(Arc::clone(&stream), READ_BACK_BYTES)?),
            copies: Copies::new(Arc::clone(&stream))?,
            granularity,
            deadline: config.kernel_timeout(),
            name,
            pci,
            multiprocessors,
            write_ordering,
            reads_host_late,
            has_stream_stores,
            exporter: Exporter::new(Arc::clone(&stream)),
            stream,
        })
    }

    /// Refuses a GPU that cannot do what the device needs; its name.
    fn check(gpu: Gpu, probe: &ModuleSource) -> Result<String, DeviceError> {
        let asked = |error: DriverError| unavailable(error.to_string());
        let name = gpu.name().map_err(asked)?;
        module::select(probe.ptx, gpu.ordinal, gpu.architecture().map_err(asked)?)
            .map_err(|error| unavailable(format!("module `{}`: {error}", probe.name)))?;
        let needs = [
            (CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"),
            (
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                "sharing of memory by file descriptor",
            ),
        ];
        for (attribute, what) in needs {
            if gpu.attribute(attribute).map_err(asked)? == 0 {
                return Err(unavailable(format!("GPU {} ({name}) has no {what} on this system", gpu.ordinal)));
            }
        }
        Ok(name)
    }

    fn installed(&self) -> MutexGuard<'_, Installed> {
        self.installed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gpu(&self) -> Gpu {
        self.stream.context().gpu
    }

    /// Returns what every module is given.
    fn state(&self) -> Result<abi::State, DeviceError> {
        self.installed().state.ok_or(DeviceError::Unsupported { device: "cuda", reason: "init is not complete" })
    }

    /// Waits for the PE's own stream and reads what its kernels reported. The context must be
    /// current.
    ///
    /// # Safety
    /// The same as for [`Device::synchronize`].
    unsafe fn synchronize_own(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let buffer = self.read_back.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(bytes.len() <= buffer.bytes());
        self.stream.check_waits()?;
        // A copy that is queued after a kernel keeps the copy engine from those of all other
        // streams, on which the software HCA reads what its kernel reports: the kernel here might
        // wait forever for that one. So the copy comes when the kernels have ended.
        self.stream.wait()?;
        // SAFETY: the buffer has room; the source is the caller's promise.
        unsafe { driver!(cuMemcpyDtoHAsync_v2(buffer.as_ptr().cast(), from, bytes.len(), self.stream.raw())) }
            .map_err(|error| self.stream.error("cannot read what kernels reported", error))?;
        self.stream.wait()?;
        // SAFETY: the copy has ended.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

fn choose(node_rank: usize) -> Result<Option<Gpu>, DriverError> {
    if let Some(gpu) = Gpu::current()? {
        return Ok(Some(gpu));
    }
    let count = driver::count()?;
    if count == 0 {
        return Ok(None);
    }
    let ordinal = node_rank % count.unsigned_abs() as usize;
    Gpu::get(count32(ordinal).cast_signed()).map(Some)
}

/// Returns a UUID in hexadecimal digits.
fn digits(uuid: Uuid) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the UUID with these [`digits`].
fn uuid_of(digits: &str) -> Option<Uuid> {
    if digits.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    for (at, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(uuid)
}

/// Queues a copy on a stream. The context must be current.
///
/// # Safety
/// What [`Device::copy_on`] says, and the stream exists.
unsafe fn start_copy(DeviceCopy { to, from, bytes, .. }: DeviceCopy, stream: CUstream) -> Result<(), DriverError> {
    // SAFETY: the caller's promise.
    unsafe { driver!(cuMemcpyDtoDAsync_v2(to, from, handle::length(bytes), stream)) }
}

impl CudaDevice {
    /// Queues the store of a word of 1, 2, 4 or 8 bytes, after what the stream has written before;
    /// `false`, and nothing is queued, if that takes a kernel. `after_copy`: the last that the PE
    /// has queued there is a copy by a copy engine. The context must be current.
    ///
    /// # Safety
    /// What [`Device::store_on`] says; the stream exists and is not capturing.
    unsafe fn start_store(
        &self,
        (to, word, bytes): (u64, u64, u64),
        after_copy: bool,
        raw: CUstream,
    ) -> Result<bool, DriverError> {
        // Without a flag the store comes after what the stream has written before, as copies and
        // fills do.
        const ORDERED: u32 = 0;
        // After a kernel the stream's own store takes twice as long as a copy of the word. After a
        // copy engine's work it takes less.
        let by_stream = self.has_stream_stores && (self.reads_host_late || after_copy);
        let value = (&raw const word).cast();
        #[allow(clippy::cast_possible_truncation)] // To the bytes that the word has.
        // SAFETY: the caller's promise. Fills and the stream's stores take the word as an argument.
        // The driver takes it in the call that queues a copy, unless the GPU itself reads the
        // host's memory, which may be later.
        unsafe {
            match bytes {
                1 => driver!(cuMemsetD8Async(to, word as u8, 1, raw)),
                2 => driver!(cuMemsetD16Async(to, word as u16, 1, raw)),
                4 => driver!(cuMemsetD32Async(to, word as u32, 1, raw)),
                _ if by_stream => driver!(cuStreamWriteValue64_v2(raw, to, word, ORDERED)),
                _ if self.reads_host_late => return Ok(false),
                _ => driver!(cuMemcpyHtoDAsync_v2(to, value, size_of::<u64>(), raw)),
            }
        }
        .map(|()| true)
    }

    /// Queues a transfer by `start`, which takes the stream's handle and is told before whether the
    /// last that the PE has queued there is a copy by a copy engine. `false`, and nothing is
    /// queued, if `start` returns that, or if the stream is being captured and `in_graphs` is not
    /// set. `what`: the error without the driver's reason.
    fn queue(
        &self,
        stream: &super::Stream,
        (transfer, in_graphs): (Transfer, bool),
        what: &str,
        start: impl FnOnce(bool, CUstream) -> Result<bool, DriverError>,
    ) -> Result<bool, DeviceError> {
        let (on, raw) = target(&self.stream, stream)?;
        let _entered = self.stream.enter_to_queue()?;
        let failed = |error| self.stream.error(what, error);
        let captures = raw_stream::is_capturing(raw).map_err(failed)?;
        if captures && !in_graphs {
            return Ok(false);
        }
        let queued = launched(&self.stream, on);
        if !start(queued.ends_with_copy(), raw).map_err(failed)? {
            return Ok(false);
        }
        queued.note_transfer(transfer, captures);
        mark(&self.stream, on, captures).map_err(failed)?;
        Ok(true)
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn identity(&self) -> DeviceIdentity {
        let Gpu { uuid, ordinal, .. } = self.gpu();
        DeviceIdentity { key: digits(uuid), name: format!("GPU {ordinal}, {}", self.name) }
    }

    fn reaches(&self, peer: &DeviceIdentity) -> Result<(), String> {
        let uuid = uuid_of(&peer.key).ok_or("it did not say which GPU it has")?;
        let found = Gpu::find(uuid).map_err(|error| error.to_string())?;
        let Some(theirs) = found else {
            return Err("this process does not see that GPU (CUDA_VISIBLE_DEVICES)".into());
        };
        match self.gpu().can_access(&theirs) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the driver has no peer access between these GPUs".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn shares_atomics(&self, peer: &DeviceIdentity) -> bool {
        let theirs = uuid_of(&peer.key).and_then(|uuid| Gpu::find(uuid).ok().flatten());
        theirs.is_some_and(|theirs| self.gpu().has_native_atomics(&theirs).unwrap_or(false))
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn reserve(&self, bytes: u64, align: u64) -> Result<Box<dyn AddressSpace>, DeviceError> {
        Ok(Box::new(Reservation::new(Arc::clone(&self.stream), bytes, align.max(self.granularity))?))
    }

    fn allocate(&self, bytes: u64) -> Result<Memory, DeviceError> {
        memory::allocate(&self.stream, &self.copies, bytes)
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.copies.write(to, bytes) }
    }

    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.copies.read(from, bytes) }
    }

    unsafe fn fill(&self, at: u64, value: u8, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.copies.fill(at, value, bytes) }
    }

    fn host_memory(&self, bytes: u64) -> Result<Box<dyn HostMemory>, DeviceError> {
        let memory = Pinned::new(Arc::clone(&self.stream), handle::length(bytes))?;
        // SAFETY: it is that long, and nothing else has it yet.
        unsafe { std::ptr::write_bytes(memory.as_ptr(), 0, memory.bytes()) };
        Ok(Box::new(memory))
    }

    fn copier(&self, memory: Arc<dyn HostMemory>) -> Result<Box<dyn Copier>, DeviceError> {
        Ok(Box::new(CudaCopier::new(&self.stream, memory)?))
    }

    fn map_registers(&self, page: *mut u8) -> Result<Box<dyn MappedRegisters>, DeviceError> {
        Ok(Box::new(Registers::map(&self.stream, page)?))
    }

    fn write_ordering(&self) -> i32 {
        self.write_ordering
    }

    fn exporter(&self) -> Option<&dyn DeviceMemory> {
        Some(&self.exporter)
    }

    fn install(&self, state: &abi::State) -> Result<(), DeviceError> {
        let mut installed = self.installed();
        installed.state = Some(*state);
        installed.modules.iter().try_for_each(|module| module.install(&self.copies, state))
    }

    fn set_doorbell_hook(&self, _hook: fn()) {
        // A GPU's stores wake no thread; the thread that serves doorbells in GPU memory polls them.
    }

    fn load(&self, source: &ModuleSource) -> Result<Arc<dyn LoadedModule>, DeviceError> {
        let mut installed = self.installed();
        if let Some(module) = installed.modules.iter().find(|module| module.is_of(source)) {
            return Ok(Arc::clone(module) as Arc<dyn LoadedModule>);
        }
        let module = Arc::new(CudaModule::load(&self.stream, &self.copies, source)?);
        if let Some(state) = &installed.state {
            module.install(&self.copies, state)?;
        }
        installed.modules.push(Arc::clone(&module));
        Ok(module)
    }

    fn has_code_of(&self, source: &ModuleSource) -> Result<bool, DeviceError> {
        module::has_code(&self.stream, source)
    }

    fn create_stream(&self) -> Result<super::Stream, DeviceError> {
        Ok(super::Stream(StreamKind::Cuda(ExternalStream::create(&self.stream)?)))
    }

    fn create_urgent_stream(&self) -> Result<super::Stream, DeviceError> {
        Ok(super::Stream(StreamKind::Cuda(ExternalStream::create_urgent(&self.stream)?)))
    }

    unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Result<super::Stream, DeviceError> {
        if raw == self.stream.raw().cast() {
            return Ok(super::Stream::OWN);
        }
        Ok(super::Stream(StreamKind::Cuda(ExternalStream::adopt(&self.stream, raw.cast())?)))
    }

    unsafe fn synchronize(&self, wait: Wait<'_>, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        match wait {
            // SAFETY: the caller's promise.
            Wait::Own => return unsafe { self.synchronize_own(from, bytes) },
            Wait::Stream(stream) => match target(&self.stream, stream)?.0 {
                // SAFETY: the caller's promise.
                None => return unsafe { self.synchronize_own(from, bytes) },
                Some(stream) => stream.wait(&self.stream)?,
            },
            Wait::Launched(streams) => {
                for stream in streams {
                    match followed(&self.stream, stream)? {
                        None => self.stream.check_waits().and_then(|()| self.stream.wait())?,
                        Some(stream) => stream.wait_for_queued(&self.stream)?,
                    }
                }
            }
            Wait::Everything => self.stream.wait_for_context()?,
        }
        // SAFETY: the caller's promise.
        unsafe { self.copies.read(from, bytes) }
    }

    fn runs_elsewhere(&self) -> bool {
        let programs = self.stream.programs();
        if programs.units != 0 || !programs.modules.is_empty() {
            return true;
        }
        drop(programs);
        self.stream.enter().is_ok_and(|_entered| self.stream.queues().busy())
    }

    fn has_ended(&self, stream: &super::Stream) -> Option<bool> {
        let on = followed(&self.stream, stream).ok()?;
        let _entered = self.stream.enter().ok()?;
        on.map_or_else(|| self.stream.has_ended(), |stream| stream.has_ended(&self.stream))
    }

    unsafe fn copy_on(&self, stream: &super::Stream, copy: DeviceCopy) -> Result<bool, DeviceError> {
        // SAFETY: the caller's promise; streams that a PE is called with exist.
        let start = |_, raw| unsafe { start_copy(copy, raw) }.map(|()| true);
        self.queue(stream, (Transfer::Copy, copy.in_graphs), "cannot queue a copy", start)
    }

    unsafe fn copy_beside(
        &self,
        stream: &super::Stream,
        beside: DeviceCopy,
        copies: &[DeviceCopy],
    ) -> Result<bool, DeviceError> {
        let (on, raw) = target(&self.stream, stream)?;
        let _entered = self.stream.enter()?;
        let failed = |error| self.stream.error("cannot queue copies", error);
        let captures = raw_stream::is_capturing(raw).map_err(failed)?;
        // SAFETY: the caller's promise.
        let here = |raw| unsafe { start_copy(beside, raw) };
        // SAFETY: as above.
        let there = || copies.iter().try_for_each(|copy| unsafe { start_copy(*copy, raw) });
        let queue = match on {
            Some(stream) => Arc::clone(stream.queue()),
            None => self.stream.queues().of(self.stream.context(), raw).map_err(failed)?,
        };
        // SAFETY: streams that a PE is called with exist.
        let forked = unsafe { queue.fork(self.stream.context(), raw, here, there) };
        // What was queued before a failure is waited for, too.
        launched(&self.stream, on).note_transfer(Transfer::Copy, captures);
        let queued = mark(&self.stream, on, captures);
        forked.and(queued).map_err(failed)?;
        Ok(true)
    }

    unsafe fn store_on(&self, stream: &super::Stream, to: u64, word: u64, bytes: u64) -> Result<bool, DeviceError> {
        // The driver would read a word of 8 bytes when the graph runs, so what is captured is a
        // kernel, for all words alike.
        //
        // SAFETY: the caller's promise; streams that a PE is called with exist, and this one is not
        // capturing then.
        let start = |after_copy, raw| unsafe { self.start_store((to, word, bytes), after_copy, raw) };
        self.queue(stream, (Transfer::Store, false), "cannot queue a store", start)
    }

    fn is_accessible(&self, address: u64, bytes: u64) -> bool {
        let Ok(_entered) = self.stream.enter() else { return false };
        adopted::is_known(address, bytes)
    }

    fn adopt(&self, address: u64, bytes: u64) -> Result<ProgramMemory, String> {
        adopted::adopt(&self.stream, address, bytes)
    }

    unsafe fn share(&self, address: u64, bytes: u64) -> Result<Memory, String> {
        adopted::share(&self.stream, self.granularity, address, bytes)
    }

    fn link_module(&self, code: &[u8]) -> Result<Vec<u8>, DeviceError> {
        let _entered = self.stream.enter()?;
        link::link(code)
            .map_err(|source| DeviceError::CudaModule { module: "compiled by the program".to_owned(), source })
    }

    unsafe fn register_module(&self, raw: *mut c_void) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        module::register(&self.stream, &self.copies, raw.cast(), &self.state()?)?;
        self.stream.programs().modules.insert(raw as usize);
        Ok(())
    }

    fn unregister_module(&self, raw: *mut c_void) -> Result<(), DeviceError> {
        if self.stream.programs().modules.remove(&(raw as usize)) {
            return Ok(());
        }
        Err(DeviceError::Unsupported { device: "cuda", reason: "the module is not registered" })
    }

    fn register_unit(
        &self,
        name: &str,
        locate: &mut dyn FnMut() -> Result<(u64, usize), String>,
    ) -> Result<(), DeviceError> {
        let _entered = self.stream.enter()?;
        let (symbol, bytes) = locate().map_err(|what| DeviceError::CudaModule {
            module: name.to_owned(),
            source: ModuleError::State { what: format!("the CUDA runtime cannot find its oxshmem_state: {what}") },
        })?;
        module::register_symbol(&self.copies, name, symbol, bytes, &self.state()?)?;
        self.stream.programs().units += 1;
        Ok(())
    }

    fn make_current(&self) -> Result<(), DeviceError> {
        self.stream.context().adopt().map_err(|error| self.stream.error("cannot make a GPU current", error))
    }

    fn aside(&self, source: &ModuleSource) -> Result<Option<Arc<dyn Aside>>, DeviceError> {
        Ok(Some(Arc::new(CudaAside::new(self.gpu(), source, &self.state()?, self.deadline)?)))
    }

    fn accelerator(&self) -> Result<Arc<dyn Accelerator>, DeviceError> {
        let accelerator = CudaAccelerator::new(self.gpu(), self.granularity, self.deadline)?;
        self.stream.leave_room(accelerator.resident()?);
        Ok(Arc::new(accelerator))
    }

    fn gpu(&self) -> Option<CudaGpu> {
        let ordinal = self.stream.context().gpu.ordinal;
        Some(CudaGpu {
            ordinal,
            name: self.name.clone(),
            pci: self.pci.clone(),
            multiprocessors: self.multiprocessors,
            context: self.stream.context().raw().cast(),
            stream: self.stream.raw().cast(),
        })
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Kernels that the program still holds must not be launched on memory that is gone.
        self.stream.close();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::device::takes_gpu;

    #[test]
    fn a_gpu_is_recognised_by_the_digits_of_its_uuid() {
        let uuid: Uuid = std::array::from_fn(|i| i as u8 * 16 + 1);
        assert_eq!(uuid_of(&digits(uuid)), Some(uuid));
        for other in ["", "cpu", "0101", "zz010101010101010101010101010101", "\u{e9}".repeat(16).as_str()] {
            assert_eq!(uuid_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_machine_without_a_gpu_refuses_with_the_reason() {
        let auto = takes_gpu(crate::config::Device::Auto);
        match CudaDevice::open(&Config::default(), 0, &crate::modules::HOST_OPS) {
            Ok(device) => {
                assert!(auto);
                println!("skipped: this machine has {}", device.identity());
            }
            Err(DeviceError::Unavailable { device, reason }) => {
                assert_eq!(device, "cuda");
                assert!(!auto, "{reason}");
                assert!(driver_present() || reason.contains("libcuda.so.1"), "{reason}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}
