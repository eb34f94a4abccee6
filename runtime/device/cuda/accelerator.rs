//! The software HCA's kernel on a GPU, and copies for when it finds no room.
//!
//! # Two contexts
//! Slices of the kernel are launched in the primary context, where they run beside the program's
//! kernels, on a stream of the highest priority. That context may stand still for as long as those
//! kernels run: the first launch of a kernel that CUDA loads lazily puts a barrier after them,
//! which all later work of the context waits for, and so do copies; growing the memory for local
//! variables and freeing memory hold the context's lock until they have ended (measured with driver
//! 580 on an H200). If the kernels wait for the network, the thread that serves it must not wait
//! for them. So slices are launched by a thread that does nothing else, and the engine's thread
//! works in a context of its own, whose copies neither wait for the primary context nor are waited
//! for.
//!
//! # What the other context does at once
//! Kernels of two contexts take turns, each for some milliseconds, and so does what the driver has
//! the same hardware queue do: copies of one row below 32 KiB to the GPU, copies within the GPU,
//! fills. Copies from the GPU, larger ones to it, copies of two rows and more, and stores of words
//! (`cuStreamBatchMemOp`) are done by copy engines and by the queue itself, at any time. Nothing
//! else is used while the engine executes; its slices that take turns
//! ([`Accelerator::launch_aside`]) are the exception.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstreamBatchMemOpParams_union_CUstreamMemOpMemoryBarrierParams_st as MemoryBarrier;
use cudarc::driver::sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteValue;
use cudarc::driver::sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as Value;
use cudarc::driver::sys::{
    self, CUDA_MEMCPY2D, CUmemorytype, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType,
    CUstreamMemoryBarrier_flags,
};
use oxshmem_hca::soft::tables::Slice;
use oxshmem_hca::soft::{Accelerator, AcceleratorError, AcceleratorMemory, AcceleratorResult, CopyEngine, Pace, Rows};
use oxshmem_system::words::count32;

use super::driver::{Context, DriverError, Gpu, check, driver};
use super::handle;
use super::memory::{self, Copies, Locked, Pinned, Reservation};
use super::module::CudaModule;
use super::occupancy::Resident;
use super::raw_stream;
use super::stream::Stream;
use crate::device::cpu::LaunchConfig;
use crate::device::error::DeviceError;
use crate::device::interface::LoadedModule;
use crate::device::shared_memory::{OnHost, SharedMemory};
use crate::device::soft_hca::{SOFT_HCA, SOFT_HCA_ATOMICS, SOFT_HCA_KERNEL};

/// Blocks of the kernel. Each serves one queue pair at a time and moves what one SM can.
const BLOCKS: u32 = 16;
/// Threads of each; the kernel's `kThreads`.
const THREADS: u32 = 256;
/// Bytes of page-locked memory that copies go through.
const STAGING_BYTES: usize = 32 << 20;
/// Stores of words that the driver takes in one call; it refuses 256.
const MOST_STORES: usize = 64;
/// The most bytes that are written to tables as words.
const MOST_IN_WORDS: usize = 4096;
/// How long copies may take until the GPU counts as lost.
const COPY_LIMIT: Duration = Duration::from_secs(20);
/// How long the end waits for the thread that launches.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct CudaAccelerator {
    // Dropped in this order.
    launcher: Launcher,
    /// The kernel in the other context.
    module: CudaModule,
    words: Mutex<Words>,
    copies: Copies,
    granularity: u64,
    /// The stream of the primary context.
    primary: Arc<Stream>,
    /// The stream of the other one.
    stream: Arc<Stream>,
}

fn failed(error: impl std::fmt::Display) -> AcceleratorError {
    AcceleratorError(error.to_string())
}

impl CudaAccelerator {
    pub fn new(gpu: Gpu, granularity: u64, deadline: Duration) -> Result<Self, DeviceError> {
        let cannot = |source| DeviceError::Cuda { what: "cannot create the software HCA's stream".into(), source };
        let primary =
            Arc::new(Context::retain(gpu).and_then(|context| Stream::urgent(context, deadline)).map_err(cannot)?);
        let launcher = Launcher::start(&primary)?;
        let own = Context::create(gpu).map_err(|source| {
            let what = format!(
                "cannot create a second context on GPU {}, which the software HCA works in; it takes some 0.5 GiB of the GPU's memory, and a GPU \
                 in compute mode DEFAULT",
                gpu.ordinal
            );
            DeviceError::Cuda { what, source }
        })?;
        let stream = Arc::new(Stream::urgent(own, deadline).map_err(cannot)?);
        let copies = Copies::new(Arc::clone(&stream))?;
        let module = CudaModule::load(&stream, &copies, &SOFT_HCA)?;
        let words = Mutex::new(Words::new(&stream)?);
        Ok(Self { launcher, module, words, copies, granularity, primary, stream })
    }

    /// Returns what it takes of the GPU.
    pub fn resident(&self) -> Result<Resident, DeviceError> {
        Ok(Resident { block: self.module.block(SOFT_HCA_KERNEL, THREADS, 0)?, blocks: BLOCKS })
    }

    /// Returns a stream of the primary context.
    pub fn primary(&self) -> &Stream {
        &self.primary
    }
}

impl Accelerator for CudaAccelerator {
    fn pace(&self) -> Pace {
        Pace {
            run: Duration::from_millis(1),
            idle: Duration::from_micros(200),
            ahead: 2,
            look: Duration::from_micros(20),
            // PEs that share a GPU take turns of some milliseconds.
            patience: Duration::from_millis(10),
        }
    }

    fn allocate(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        let bytes = bytes.next_multiple_of(self.granularity);
        let memory = memory::allocate(&self.stream, &self.copies, bytes).map_err(failed)?;
        let space = Reservation::new(Arc::clone(&self.stream), bytes, 0).map_err(failed)?;
        Ok(Box::new(SharedMemory::own(Box::new(space), &memory, bytes).map_err(failed)?))
    }

    fn host_memory(&self, bytes: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        Ok(Box::new(OnHost(Box::new(Locked::new(Arc::clone(&self.stream), bytes).map_err(failed)?))))
    }

    fn map(&self, memory: BorrowedFd<'_>, offset: u64, len: u64) -> AcceleratorResult<Box<dyn AcceleratorMemory>> {
        let bytes = (offset + len).next_multiple_of(self.granularity);
        let space = Reservation::new(Arc::clone(&self.stream), bytes, 0).map_err(failed)?;
        Ok(Box::new(SharedMemory::of_peer(Box::new(space), memory, offset, bytes).map_err(failed)?))
    }

    unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copies.read(from, bytes) }.map_err(failed)
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> AcceleratorResult<()> {
        if bytes.len() > MOST_IN_WORDS || !(to | bytes.len() as u64).is_multiple_of(4) {
            // SAFETY: the caller's promise.
            return unsafe { self.copies.write(to, bytes) }.map_err(failed);
        }
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut to, mut rest) = (to, bytes);
        while let Some(low) = rest.first_chunk::<4>() {
            let wide = rest.first_chunk::<8>().filter(|_| to.is_multiple_of(8));
            let (value, len) =
                wide.map_or((u64::from(u32::from_ne_bytes(*low)), 4), |all| (u64::from_ne_bytes(*all), 8));
            // SAFETY: the caller's promise.
            unsafe { words.store(to, value, len == 8) }?;
            to += len as u64;
            rest = &rest[len..];
        }
        words.wait()
    }

    fn blocks(&self) -> usize {
        BLOCKS as usize
    }

    unsafe fn launch(&self, slice: &Slice) -> AcceleratorResult<()> {
        self.launcher.launch(slice)
    }

    unsafe fn launch_aside(&self, slice: &Slice) -> AcceleratorResult<()> {
        // SAFETY: what the slice names is the caller's promise.
        unsafe { launch_slice(&self.module, slice) }.map_err(failed)
    }

    unsafe fn launch_atomics(&self, batch: u64) -> AcceleratorResult<()> {
        let (config, own) = (LaunchConfig::linear(1, 1), &crate::device::stream::Stream::OWN);
        // SAFETY: the kernel takes the address of a batch; what that names is the caller's promise.
        unsafe { self.module.launch(SOFT_HCA_ATOMICS, config, &[&batch.to_ne_bytes()], own) }.map_err(failed)
    }

    fn check(&self) -> AcceleratorResult<()> {
        self.launcher.check()
    }

    fn copy_engine(&self) -> AcceleratorResult<Box<dyn CopyEngine>> {
        let staging = Pinned::new(Arc::clone(&self.stream), STAGING_BYTES).map_err(failed)?;
        Ok(Box::new(CudaCopies { words: Words::new(&self.stream).map_err(failed)?, staging }))
    }
}

/// Launches a slice in the module's context.
///
/// # Safety
/// What the slice names is valid while it runs.
unsafe fn launch_slice(module: &CudaModule, slice: &Slice) -> Result<(), DeviceError> {
    let config = LaunchConfig::linear(BLOCKS, THREADS);
    // SAFETY: the kernel takes one slice; what it names is the caller's promise.
    unsafe { module.launch(SOFT_HCA_KERNEL, config, &[&slice.to_bytes()], &crate::device::stream::Stream::OWN) }
}

/// The thread that launches slices in the primary context, which may make it wait.
#[derive(Debug)]
struct Launcher {
    slices: Option<Sender<Slice>>,
    failed: Arc<Mutex<Option<AcceleratorError>>>,
    thread: Option<JoinHandle<()>>,
}

impl Launcher {
    fn start(primary: &Arc<Stream>) -> Result<Self, DeviceError> {
        let copies = Copies::new(Arc::clone(primary))?;
        let module = CudaModule::load(primary, &copies, &SOFT_HCA)?;
        drop(copies);
        let (slices, receiver) = channel();
        let failed = Arc::new(Mutex::new(None));
        let (stream, told) = (Arc::clone(primary), Arc::clone(&failed));
        let thread = std::thread::Builder::new()
            .name("oxshmem-slices".into())
            .spawn(move || launch_all(&receiver, &module, &stream, &told))
            .map_err(|source| DeviceError::Memory {
                what: "cannot start the thread that launches the engine's kernel",
                bytes: 0,
                source,
            })?;
        Ok(Self { slices: Some(slices), failed, thread: Some(thread) })
    }

    fn launch(&self, slice: &Slice) -> AcceleratorResult<()> {
        let sent = self.slices.as_ref().is_some_and(|slices| slices.send(*slice).is_ok());
        if sent { Ok(()) } else { Err(AcceleratorError("the thread that launches the engine's kernel is gone".into())) }
    }

    fn check(&self) -> AcceleratorResult<()> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.clone().map_or(Ok(()), Err)
    }
}

fn launch_all(
    slices: &Receiver<Slice>,
    module: &CudaModule,
    stream: &Stream,
    failed: &Mutex<Option<AcceleratorError>>,
) {
    for slice in slices {
        let ended = || {
            let _entered = stream.enter()?;
            // SAFETY: the stream lives as long as this thread.
            match unsafe { sys::cuStreamQuery(stream.raw()) } {
                CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NOT_READY => Ok(()),
                other => check("cuStreamQuery", other)
                    .map_err(|error| stream.error("a slice of the software HCA's kernel failed", error)),
            }
        };
        // SAFETY: what the slice names is the caller's promise.
        let launched = ended().and_then(|()| unsafe { launch_slice(module, &slice) });
        if let Err(error) = launched {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(AcceleratorError(error.to_string()));
            return;
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.slices = None;
        let Some(thread) = self.thread.take() else { return };
        let since = Instant::now();
        while !thread.is_finished() && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(50));
        }
        if !thread.is_finished() {
            tracing::warn!(
                "the GPU's context does not take the last slice of the software HCA's kernel; it is left to the process's end"
            );
            return;
        }
        if thread.join().is_err() {
            tracing::error!("the thread that launches the software HCA's kernel panicked");
        }
    }
}

/// Stores of words, by the hardware queue of a stream.
#[derive(Debug)]
struct Words {
    raw: CUstream,
    stores: Stores,
    stream: Arc<Stream>,
}

/// Those that the driver has not been given yet.
#[derive(Default)]
struct Stores(Vec<CUstreamBatchMemOpParams>);

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} stores", self.0.len())
    }
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Words {}

impl Words {
    fn new(stream: &Arc<Stream>) -> Result<Self, DeviceError> {
        let raw =
            raw_stream::create(stream.context()).map_err(|error| stream.error("cannot create a stream", error))?;
        Ok(Self { raw, stores: Stores::default(), stream: Arc::clone(stream) })
    }

    fn error(&self, error: DriverError) -> AcceleratorError {
        failed(self.stream.error("cannot write to the GPU's memory", error))
    }

    /// Stores `value` at `to`.
    ///
    /// # Safety
    /// `to` is an aligned word that is valid until the next wait has returned.
    unsafe fn store(&mut self, to: u64, value: u64, wide: bool) -> AcceleratorResult<()> {
        let operation = if wide {
            CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64
        } else {
            CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32
        };
        // Without flags everything before is visible first.
        let (flags, alias) = (0, 0);
        let mut all = CUstreamBatchMemOpParams { pad: [0; 6] };
        all.writeValue =
            WriteValue { operation, address: to, __bindgen_anon_1: Value { value64: value }, flags, alias };
        self.add(all)
    }

    fn order(&mut self) -> AcceleratorResult<()> {
        let mut all = CUstreamBatchMemOpParams { pad: [0; 6] };
        all.memoryBarrier = MemoryBarrier {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_BARRIER,
            flags: CUstreamMemoryBarrier_flags::CU_STREAM_MEMORY_BARRIER_TYPE_SYS as u32,
        };
        self.add(all)
    }

    fn add(&mut self, one: CUstreamBatchMemOpParams) -> AcceleratorResult<()> {
        self.stores.0.push(one);
        if self.stores.0.len() == MOST_STORES { self.queue() } else { Ok(()) }
    }

    /// Gives the driver what it has not been given.
    fn queue(&mut self) -> AcceleratorResult<()> {
        if self.stores.0.is_empty() {
            return Ok(());
        }
        let _entered = self.stream.enter().map_err(failed)?;
        let (count, stores) = (count32(self.stores.0.len()), self.stores.0.as_mut_ptr());
        // SAFETY: `operations` has that many entries, on words that are valid by the caller's
        // promise.
        let queued = unsafe { driver!(cuStreamBatchMemOp_v2(self.raw, count, stores, 0)) };
        self.stores.0.clear();
        queued.map_err(|error| self.error(error))
    }

    fn wait(&mut self) -> AcceleratorResult<()> {
        self.queue()?;
        let _entered = self.stream.enter().map_err(failed)?;
        let since = Instant::now();
        loop {
            // SAFETY: the stream lives as long as `self`.
            match unsafe { sys::cuStreamQuery(self.raw) } {
                CUresult::CUDA_SUCCESS => return Ok(()),
                CUresult::CUDA_ERROR_NOT_READY => {}
                other => return check("cuStreamQuery", other).map_err(|error| self.error(error)),
            }
            let waited = since.elapsed();
            if waited > COPY_LIMIT {
                return Err(AcceleratorError(format!("copies of the software HCA did not end within {COPY_LIMIT:?}")));
            }
            if waited > Duration::from_micros(200) {
                std::thread::sleep(Duration::from_micros(20));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        raw_stream::destroy(self.stream.context(), self.raw);
    }
}

/// Copies by copy engines, on the stream of the words.
#[derive(Debug)]
struct CudaCopies {
    words: Words,
    staging: Pinned,
}

impl CopyEngine for CudaCopies {
    fn staging(&self) -> (*mut u8, usize) {
        (self.staging.as_ptr(), self.staging.bytes())
    }

    unsafe fn fetch(&mut self, to: *mut u8, from: u64, bytes: usize) -> AcceleratorResult<()> {
        self.words.queue()?;
        let _entered = self.words.stream.enter().map_err(failed)?;
        // SAFETY: the caller's promise.
        unsafe { driver!(cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.words.raw)) }
            .map_err(|error| self.words.error(error))
    }

    unsafe fn put(&mut self, rows: &Rows) -> AcceleratorResult<()> {
        self.words.queue()?;
        let _entered = self.words.stream.enter().map_err(failed)?;
        let length = handle::length;
        if rows.count == 1 {
            // SAFETY: the caller's promise.
            return unsafe {
                driver!(cuMemcpyHtoDAsync_v2(rows.to, rows.from.cast(), length(rows.width), self.words.raw))
            }
            .map_err(|error| self.words.error(error));
        }
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: rows.from.cast(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: length(rows.from_pitch),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: rows.to,
            dstArray: std::ptr::null_mut(),
            dstPitch: length(rows.to_pitch),
            WidthInBytes: length(rows.width),
            Height: length(rows.count),
        };
        // SAFETY: the caller's promise.
        let copied = unsafe { driver!(cuMemcpy2DAsync_v2(&raw const copy, self.words.raw)) };
        let refused = |error: &DriverError| error.code == CUresult::CUDA_ERROR_INVALID_VALUE as u32;
        if !copied.as_ref().is_err_and(refused) {
            return copied.map_err(|error| self.words.error(error));
        }
        // The driver refuses rows that lie in several allocations, as chunks of the heap are. It
        // takes each half that lies in one.
        let first = rows.count / 2;
        let rest = Rows {
            to: rows.to + first * rows.to_pitch,
            from: rows.from.wrapping_add(length(first * rows.from_pitch)),
            count: rows.count - first,
            ..*rows
        };
        // SAFETY: the caller's promise, of each row.
        unsafe {
            self.put(&Rows { count: first, ..*rows })?;
            self.put(&rest)
        }
    }

    unsafe fn store(&mut self, to: u64, value: u64, wide: bool) -> AcceleratorResult<()> {
        // SAFETY: the caller's promise.
        unsafe { self.words.store(to, value, wide) }
    }

    fn order(&mut self) -> AcceleratorResult<()> {
        self.words.order()
    }

    fn wait(&mut self) -> AcceleratorResult<()> {
        self.words.wait()
    }
}
