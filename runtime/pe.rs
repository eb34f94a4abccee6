//! A processing element: one process's membership in a job, from init to finalize.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use oxshmem_hca::provider::{Attempt, Counters};

use crate::abi::{self, ErrorRecord};
use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::config::{self, Config};
use crate::device::{
    CpuDevice, CudaDevice, CudaGpu, Device, Function, KernelArgs, LaunchConfig, Module, ModuleSource, Stream, Wait,
    cuda,
};
use crate::fault::DeviceFault;
use crate::heap::{HeapError, HeapLayout, PeerLinks, SymmetricHeap};
use crate::host::SymmetricSlice;
use crate::slab::{Layout, Offset, Slab};
use crate::team::{TeamStorage, Teams};
use crate::transport::{LoadStore, Network, NetworkKind, NetworkLayout, Plan, open_hca};
use crate::{Error, Result};

crate::include_module!(pub(crate) HOST_OPS, "host_ops");
crate::include_module!(COLLECTIVES, "collectives");

/// Host operations pass their data through a registered buffer of this size.
pub(crate) const STAGING_BYTES: usize = 1 << 20;

/// Where the control block says whether an error was recorded, which, and how much of it there is to read.
const CLAIMED_AT: usize = core::mem::offset_of!(abi::Control, claimed);
const ERROR_AT: usize = core::mem::offset_of!(abi::Control, error);
const REPORT_BYTES: usize = ERROR_AT + size_of::<ErrorRecord>();
/// Where [`abi::Control::abort`] is, in words of 4 bytes.
const ABORT_AT: u64 = (core::mem::offset_of!(abi::Control, abort) / 4) as u64;

/// Only one PE may live in a process at a time: device code finds its state in a symbol of the process.
static OCCUPIED: AtomicBool = AtomicBool::new(false);

/// How the runtime reaches a PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// It is this PE.
    Own,
    /// Loads and stores to the mapped heap.
    LoadStore,
    /// Work requests that device code posts.
    Ibgda,
    /// Work requests that the CPU proxy posts.
    Ibrc,
}

/// This process's place in a job: its PE. Made by [`init`] or [`Pe::with_config`], ended by [`finalize`](Pe::finalize).
///
/// Collective calls ([`alloc`](Pe::alloc), [`free`](Pe::free), [`barrier_all`](Pe::barrier_all), `sync_all`, `finalize`) must be made by every
/// PE in the same order. A `Pe` belongs to one thread at a time. Dropping it without `finalize` leaves the job as a crash would: the
/// other PEs get an error.
#[derive(Debug)]
pub struct Pe {
    // Dropped in this order: first what uses memory, then memory.
    unread: RefCell<BTreeMap<usize, Unread>>,
    host_ops: Module,
    collectives: OnceCell<Module>,
    teams: RefCell<Teams>,
    network: Option<Network>,
    heap: RefCell<SymmetricHeap>,
    slab: Arc<Slab>,
    parts: Parts,
    device: Arc<dyn Device>,
    state: abi::State,
    plan: Plan,
    config: Config,
    bootstrap: Bootstrap,
    _occupied: Occupied,
    _one_thread: PhantomData<Cell<()>>,
}

/// A stream with work whose errors have not been reported yet.
#[derive(Debug)]
struct Unread {
    stream: Stream,
    /// An error that another stream's `synchronize` found while this stream had work. It may have ended that work's waits too.
    fault: Option<DeviceFault>,
}

/// What is where in the slab.
#[derive(Debug, Clone, Copy)]
struct Parts {
    control: Offset,
    teams: TeamStorage,
    region_count: Offset,
    regions: Offset,
    lkeys: Offset,
    rkeys: Offset,
    staging: Offset,
}

impl Parts {
    fn new(layout: &mut Layout, n_pes: u32, max_chunks: u64, cards: u64, max_teams: u32) -> Self {
        Self {
            control: layout.array(1, size_of::<abi::Control>() as u64),
            teams: TeamStorage::new(layout, n_pes, max_teams),
            region_count: layout.array(1, 8),
            regions: layout.array(abi::MAX_LOCAL_REGIONS as u64, size_of::<abi::LocalRegion>() as u64),
            lkeys: layout.array(cards * max_chunks, 4),
            rkeys: layout.array(cards * u64::from(n_pes) * max_chunks, 4),
            staging: layout.array(1, STAGING_BYTES as u64),
        }
    }
}

/// Joins the job with the configuration of the environment. Collective.
///
/// # Errors
/// See [`Pe::with_config`].
pub fn init() -> Result<Pe> {
    Pe::with_config(Config::from_env()?)
}

impl Pe {
    /// Joins the job that `config` describes: meets the other PEs, maps their heaps where they can be mapped, and connects to the rest over
    /// the network. Collective.
    ///
    /// # Errors
    /// A value of the configuration that cannot be met, PEs that do not arrive, a device or an HCA that is not there. Nothing is left
    /// behind.
    pub fn with_config(config: Config) -> Result<Self> {
        let occupied = Occupied::claim()?;
        let mut phases = Phases::begin();
        let bootstrap = Bootstrap::connect(&config)?;
        phases.end("bootstrap");
        let built = Self::build(config, &bootstrap, &mut phases);
        match built {
            Ok(parts) => {
                tracing::info!(pe = bootstrap.rank(), "init: {phases}");
                let pe = parts.into_pe(bootstrap, occupied);
                pe.add_predefined()?;
                Ok(pe)
            }
            Err(error) => {
                // The others would wait for this PE until their deadline.
                bootstrap.abort(&format!("PE {} cannot initialise: {error}", bootstrap.rank()));
                Err(error)
            }
        }
    }

    fn build(config: Config, bootstrap: &Bootstrap, phases: &mut Phases) -> Result<Built> {
        let (me, n_pes) = (bootstrap.rank(), bootstrap.size());
        let plan = Plan::new(&config, bootstrap)?;
        let device = open_device(&config, bootstrap)?;
        phases.end("device");
        agree_on_sizes(&config, device.as_ref(), bootstrap)?;
        let (plan, devices, reach) = plan.settle(&config, device.as_ref(), bootstrap)?;
        phases.end("peers");
        let (plan, opened) = open_hca(&config, bootstrap, device.as_ref(), plan)?;
        phases.end("HCA");

        let chunk = config.heap_chunk().0.next_multiple_of(device.granularity());
        let config = if chunk == config.heap_chunk().0 {
            config
        } else {
            let max = config.heap_max().0.next_multiple_of(chunk);
            config.to_builder().heap_chunk(chunk).heap_max(max).build()?
        };
        let LoadStore { first, count } = plan.load_store;
        let heap_layout = HeapLayout {
            max: config.heap_max().0.next_multiple_of(chunk),
            chunk,
            slots: count,
            my_slot: me as usize - first,
        };
        let max_chunks = heap_layout.max / chunk;

        let mut layout = Layout::default();
        let cards = opened.as_ref().map_or(1, |opened| opened.cards.len() as u64);
        let mut parts = Parts::new(&mut layout, n_pes, max_chunks, cards, config.max_teams());
        let queues =
            plan.network.map(|kind| NetworkLayout::new(kind, &mut layout, &config, (me, n_pes), opened.as_ref()));
        let on_host = opened.as_ref().is_some_and(|opened| opened.queues_on_host);
        let slab = Arc::new(Slab::new(Arc::clone(&device), &layout, on_host)?);
        phases.end("slab");

        // From here on a failure of the job ends every device wait.
        let control = Arc::clone(&slab);
        bootstrap.on_failure(Box::new(move |_| end_waits(&control, parts.control)));

        let timeout = config.bootstrap_timeout();
        let peers = plan.direct_peers(me as usize);
        let links = PeerLinks::connect(&bootstrap.job_id().to_string(), me as usize, &peers, timeout, || {
            Ok(bootstrap.barrier("sockets of the heap")?)
        })?;
        let mut heap = SymmetricHeap::new(Arc::clone(&device), heap_layout, links)?;
        phases.end("heap addresses");

        let network = match queues {
            Some(queues) => {
                Some(Network::connect(&config, bootstrap, (device.as_ref(), &devices), &slab, queues, opened)?)
            }
            None => None,
        };
        if let Some(network) = &network {
            let control = Arc::clone(&slab);
            network.when_dead(move || end_waits(&control, parts.control));
        }
        phases.end("network");

        // The first allocation is the runtime's own: the workspaces of teams.
        let workspaces = parts.teams.reserve(&mut heap, &slab)?;

        let first_pe = i32::try_from(first).unwrap_or(i32::MAX);
        let mut state = abi::State {
            magic: abi::MAGIC,
            abi_version: abi::ABI_VERSION,
            bytes: size_of::<abi::State>() as u32,
            my_pe: me.cast_signed(),
            n_pes: n_pes.cast_signed(),
            network: abi::Network::None as u32,
            p2p_first: first_pe,
            p2p_count: count as i32,
            p2p_mask: plan.direct,
            heap_base: heap.base(),
            heap_bytes: heap_layout.max,
            chunk_log2: chunk.trailing_zeros(),
            max_chunks: u32::try_from(max_chunks).unwrap_or(u32::MAX),
            lkeys: slab.address(parts.lkeys),
            rkeys: slab.address(parts.rkeys),
            cards: 1,
            local_regions: slab.address(parts.regions),
            n_local_regions: slab.address(parts.region_count),
            control: slab.address(parts.control),
            timeout_ns: u64::try_from(config.timeout().as_nanos()).unwrap_or(u64::MAX),
            ..abi::State::default()
        };
        parts.teams.describe(&slab, &mut state);
        if let Some(network) = &network {
            network.describe(&slab, &mut state);
            let region = abi::LocalRegion {
                base: slab.address(parts.staging),
                bytes: STAGING_BYTES as u64,
                lkeys: state.slab_lkeys,
            };
            slab.write(parts.regions, 0, &region)?;
            slab.write(parts.region_count, 0, &1u64)?;
        }
        device.install(&state)?;
        let host_ops = Module { loaded: device.load(&HOST_OPS)? };
        phases.end("modules");

        let teams = Teams::new(config.max_teams(), reach);
        let mut built = Built { host_ops, teams, network, heap, slab, parts, device, state, plan, config };
        built.back(bootstrap, workspaces.end)?;
        phases.end("heap memory");
        bootstrap.barrier("end of init")?;
        phases.end("others");
        Ok(built)
    }

    /// This PE's number.
    #[must_use]
    pub fn my_pe(&self) -> usize {
        self.bootstrap.rank() as usize
    }

    /// PEs in the job.
    #[must_use]
    pub fn n_pes(&self) -> usize {
        self.bootstrap.size() as usize
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// `cpu` or `cuda`.
    #[must_use]
    pub fn device_name(&self) -> &'static str {
        self.device.name()
    }

    /// The GPU that this PE uses, for programs that use it too: all pointers of this library are valid in its primary context. `None` on
    /// the `cpu` device.
    #[must_use]
    pub fn gpu(&self) -> Option<CudaGpu> {
        self.device.gpu()
    }

    /// Makes the GPU the calling thread's current one, for the CUDA runtime and driver alike, if the thread has none yet. Nothing on the
    /// `cpu` device.
    ///
    /// # Errors
    /// The GPU's context is lost.
    pub fn make_gpu_current(&self) -> Result<()> {
        Ok(self.device.make_current()?)
    }

    /// Provider of the HCA in use (`soft` or `mlx5`), if there is one.
    #[must_use]
    pub fn hca_name(&self) -> Option<&'static str> {
        self.network.as_ref().map(Network::provider_name)
    }

    /// What was tried in which way to open and use the HCA: ways to register memory and to ring doorbells, each with what came of it.
    #[must_use]
    pub fn hca_attempts(&self) -> Vec<Attempt> {
        self.network.as_ref().map(Network::attempts).unwrap_or_default()
    }

    /// How `pe` is reached. `None` if there is no such PE.
    #[must_use]
    pub fn path(&self, pe: usize) -> Option<Path> {
        (pe < self.n_pes()).then(|| {
            if pe == self.my_pe() {
                Path::Own
            } else if self.plan.is_direct(pe) {
                Path::LoadStore
            } else if self.plan.network == Some(NetworkKind::Ibrc) {
                Path::Ibrc
            } else {
                Path::Ibgda
            }
        })
    }

    /// What the HCA has done, where that is counted. `None` without a network.
    #[must_use]
    pub fn hca_counters(&self) -> Option<Counters> {
        self.network.as_ref().and_then(Network::counters)
    }

    /// Doorbells that device code has rung. `None` if it rings none, or if the device is lost.
    #[must_use]
    pub fn doorbells(&self) -> Option<u64> {
        self.network.as_ref().and_then(|network| network.doorbells(&self.slab))
    }

    /// What the CPU proxy has done, as of a short while ago. `None` without one.
    #[must_use]
    pub fn proxy_counters(&self) -> Option<oxshmem_proxy::thread::Counters> {
        self.network.as_ref().and_then(Network::proxy)
    }

    /// Symmetric memory for `len` elements, zeroed, at the same offset on every PE. Collective: every PE asks for the same.
    ///
    /// # Errors
    /// The heap is exhausted; or PEs asked for different things, and then nothing was allocated.
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<SymmetricSlice<T>> {
        self.alloc_aligned(len, align_of::<T>())
    }

    /// As [`alloc`](Pe::alloc), aligned to `align` bytes, a power of two.
    ///
    /// # Errors
    /// As [`alloc`](Pe::alloc).
    pub fn alloc_aligned<T: Pod>(&self, len: usize, align: usize) -> Result<SymmetricSlice<T>> {
        let align = align.max(align_of::<T>()) as u64;
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        self.agree("alloc", &format!("alloc of {bytes} bytes aligned to {align}"))?;
        let offset = self.heap.borrow_mut().allocate(bytes, align)?;
        if let Err(error) = self.back_heap(offset + bytes.max(1)) {
            // A failed job has no use for the range, but a heap that could not grow goes on with it.
            let _ = self.heap.borrow_mut().free(offset);
            return Err(error);
        }
        let address = self.heap.borrow().base() + offset;
        // SAFETY: the range was just allocated and is backed.
        unsafe { self.device.fill(address, 0, bytes) }?;
        // Nobody writes to a peer's copy before that is cleared.
        self.bootstrap.barrier("alloc")?;
        Ok(SymmetricSlice::new(address, len))
    }

    /// Gives symmetric memory back. Collective. Operations on it must have been completed by all PEs (`barrier_all`).
    ///
    /// # Errors
    /// It is not the whole of an allocation, or PEs free different ones; then nothing was freed.
    #[allow(clippy::needless_pass_by_value)] // The slice must not be used afterwards.
    pub fn free<T: Pod>(&self, slice: SymmetricSlice<T>) -> Result<()> {
        let mut heap = self.heap.borrow_mut();
        let offset = slice.address().wrapping_sub(heap.base());
        self.agree("free", &format!("free at offset {offset:#x}"))?;
        heap.free(offset)?;
        Ok(())
    }

    /// Allocations that were not freed; the runtime's own count too.
    #[must_use]
    pub fn live_allocations(&self) -> usize {
        self.heap.borrow().live()
    }

    /// Loads a module of device code and gives it this PE's state.
    ///
    /// # Errors
    /// It was built for another version of the device ABI; both are named.
    pub fn load(&self, source: &ModuleSource) -> Result<Module> {
        Ok(Module { loaded: self.device.load(source)? })
    }

    /// Links device code that the program has compiled while it runs (by NVRTC, say) with the device library, for this PE's GPU. The answer
    /// is a cubin: what `cuModuleLoadData` takes, and [`register_module`](Pe::register_module) then. It can be kept, and loaded again on GPUs
    /// of the same architecture by programs with this version of the library.
    ///
    /// `code` is PTX, a cubin or a fat binary: relocatable, and compiled with `OXSHMEM_DEVICE_LIBRARY` defined. Such kernels have nothing of
    /// the device API compiled again but what is their own, so they take a fraction of the time. What they call is
    /// [`DEVICE_LIBRARY`](crate::device::cuda::DEVICE_LIBRARY).
    ///
    /// # Errors
    /// What the driver's linker says: `code` is not relocatable, or from headers of another version of the device ABI; or its kernels may
    /// have fewer than 64 registers a thread. Or this is not the `cuda` device.
    pub fn link_module(&self, code: &[u8]) -> Result<Vec<u8>> {
        Ok(self.device.link_module(code)?)
    }

    /// Gives a module that the program has loaded itself this PE's state, so that its kernels can use the device API. Its kernels are
    /// launched by the program; [`synchronize_device`](Pe::synchronize_device) reports their errors.
    ///
    /// # Errors
    /// It has no state symbol, or one of another version of the device ABI; or this is not the `cuda` device.
    ///
    /// # Safety
    /// `raw` is a `CUmodule` of the GPU's primary context, none of whose kernels is running. It stays loaded until it is
    /// [unregistered](Pe::unregister_module) or the PE is finalized, and none of its kernels runs then.
    pub unsafe fn register_module(&self, raw: *mut c_void) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.device.register_module(raw) }?)
    }

    /// Forgets a module that was registered; its kernels must not be launched any more.
    ///
    /// # Errors
    /// It is not registered.
    pub fn unregister_module(&self, raw: *mut c_void) -> Result<()> {
        Ok(self.device.unregister_module(raw)?)
    }

    /// Gives a state symbol this PE's state, as [`register_module`](Pe::register_module) does: that of a translation unit of a
    /// CUDA-runtime program. `locate` is called with the GPU's context current, and answers the symbol's device address and size. On the
    /// `cpu` device nothing happens, but for a warning in the log.
    ///
    /// # Errors
    /// As [`register_module`](Pe::register_module), or what `locate` says.
    ///
    /// # Safety
    /// What `locate` answers is true until the PE is finalized, and no kernel that reads the symbol is running.
    pub unsafe fn register_unit(
        &self,
        name: &str,
        mut locate: impl FnMut() -> std::result::Result<(u64, usize), String>,
    ) -> Result<()> {
        Ok(self.device.register_unit(name, &mut locate)?)
    }

    /// Launches a kernel on the PE's own stream and returns at once. Kernels on a stream run in the order of their launches;
    /// [`synchronize`](Pe::synchronize) waits for them.
    ///
    /// # Errors
    /// The shape or the arguments do not fit; nothing was launched.
    ///
    /// # Safety
    /// The arguments must have the types that the kernel declares, and the kernel must be sound for them: device code may do what C++
    /// may do. What they point to must stay valid until the kernel has ended.
    pub unsafe fn launch(&self, function: &Function, config: LaunchConfig, args: impl KernelArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_on_stream(&Stream::OWN, function, config, args) }
    }

    /// As [`launch`](Pe::launch), on `stream`.
    ///
    /// # Errors
    /// As [`launch`](Pe::launch); or the stream is not one of this PE's device.
    ///
    /// # Safety
    /// As [`launch`](Pe::launch).
    pub unsafe fn launch_on_stream(
        &self,
        stream: &Stream,
        function: &Function,
        config: LaunchConfig,
        args: impl KernelArgs,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { function.launch(config, &args, stream) }?;
        self.wake_proxy();
        self.note(stream);
        Ok(())
    }

    /// The stream that [`launch`](Pe::launch) and the host's operations use.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream::OWN
    }

    /// A new stream, which waits for no other.
    ///
    /// # Errors
    /// The device has no room for it.
    pub fn create_stream(&self) -> Result<Stream> {
        Ok(self.device.create_stream()?)
    }

    /// A stream that the program made: on the `cuda` device a `CUstream` (`cudaStream_t`, cudarc's `CudaStream::cu_stream`) of the GPU's
    /// primary context, null for the legacy default stream. The `cpu` device takes null alone, and means the PE's own stream.
    ///
    /// What is put on a stream that is being captured becomes part of the graph; errors of its launches are reported by the next
    /// [`synchronize_device`](Pe::synchronize_device), and they must have ended before the PE is finalized.
    ///
    /// # Errors
    /// The device cannot use it.
    ///
    /// # Safety
    /// `raw` is such a stream, and stays one while work is put on it or [`synchronize_stream`](Pe::synchronize_stream) is called with it.
    pub unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Result<Stream> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.device.stream_from_raw(raw) }?)
    }

    /// Waits until everything that was put on streams through this PE has ended: kernels and on-stream operations.
    ///
    /// # Errors
    /// The first that applies: the job has failed (a PE died, say); a kernel ended with an error; device code recorded one: a deadline that
    /// passed, an error completion, a call that was refused. The PE can go on unless the job has failed; a connection that the error
    /// names as lost stays lost. A kernel that makes a GPU fault (a bad address, say) loses the GPU's context, and everything but
    /// [`finalize`](Pe::finalize) then returns that error.
    ///
    /// A deadline or an error completion ends the waits on all streams of the PE, so each of those that had work at the time reports
    /// it.
    pub fn synchronize(&self) -> Result<()> {
        let streams: Vec<Stream> = {
            let unread = self.unread.borrow();
            let others = unread.values().map(|unread| unread.stream.clone()).filter(|stream| stream.key() != 0);
            others.chain([Stream::OWN]).collect()
        };
        if streams.len() == 1 { self.wait(Wait::Own) } else { self.wait(Wait::Launched(&streams)) }
    }

    /// Waits until everything on `stream` has ended, whoever put it there.
    ///
    /// # Errors
    /// As [`synchronize`](Pe::synchronize). Device code has one place for its first error, so an error of another stream may be reported
    /// here, and there again.
    pub fn synchronize_stream(&self, stream: &Stream) -> Result<()> {
        self.wait(Wait::Stream(stream))
    }

    /// Waits until everything on the device that this process started has ended, as `cudaDeviceSynchronize` does, and reports errors: for
    /// kernels that were launched by the CUDA runtime or driver. No stream may be capturing.
    ///
    /// # Errors
    /// As [`synchronize`](Pe::synchronize).
    pub fn synchronize_device(&self) -> Result<()> {
        self.wait(Wait::Everything)
    }

    fn wait(&self, wait: Wait<'_>) -> Result<()> {
        let mut report = [0; REPORT_BYTES];
        // SAFETY: the slab holds the control block.
        let ended = unsafe { self.device.synchronize(wait, self.slab.address(self.parts.control), &mut report) };
        if let (Some(network), Ok(())) = (&self.network, &ended)
            && !self.device.runs_elsewhere()
        {
            network.forget_idle(&self.slab)?;
        }
        let earlier = self.take_unread(wait);
        let fault = self.take_fault(&report)?;
        if let Some(fault) = fault.as_ref().filter(|fault| fault.ends_waits()) {
            for other in self.unread.borrow_mut().values_mut() {
                other.fault.get_or_insert_with(|| fault.clone());
            }
        }
        if let Some(failure) = self.bootstrap.failure() {
            return Err(BootstrapError::Failed(failure).into());
        }
        ended?;
        if let Some(error) = self.network.as_ref().and_then(Network::dead) {
            // Nobody can be reached any more, and nobody reaches this PE.
            self.bootstrap.abort(&format!("PE {}: {error}", self.bootstrap.rank()));
            return Err(error.into());
        }
        earlier.or(fault).map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// A kernel was launched, which may have work for the proxy soon.
    fn wake_proxy(&self) {
        if let Some(network) = &self.network {
            network.wake();
        }
    }

    /// Remembers that there is work on a stream.
    fn note(&self, stream: &Stream) {
        let new = || Unread { stream: stream.clone(), fault: None };
        self.unread.borrow_mut().entry(stream.key()).or_insert_with(new);
    }

    /// Forgets the streams that were waited for; an error that their work was told of.
    fn take_unread(&self, wait: Wait<'_>) -> Option<DeviceFault> {
        let mut unread = self.unread.borrow_mut();
        let mut take = |stream: &Stream| unread.remove(&stream.key()).and_then(|unread| unread.fault);
        match wait {
            Wait::Own => take(&Stream::OWN),
            Wait::Stream(stream) => take(stream),
            Wait::Launched(streams) => streams.iter().fold(None, |first, stream| {
                let fault = take(stream);
                first.or(fault)
            }),
            Wait::Everything => std::mem::take(&mut *unread).into_values().find_map(|unread| unread.fault),
        }
    }

    /// Leaves the job in order: completes what is outstanding and waits until every PE does the same. Collective. A job can be joined again
    /// afterwards.
    ///
    /// # Errors
    /// As [`synchronize`](Pe::synchronize), or not every PE finalizes before the deadline. This PE has left in any case.
    pub fn finalize(self) -> Result<()> {
        // Work on other streams uses memory that is about to go.
        let ended = if self.device.runs_elsewhere() { self.synchronize_device() } else { self.synchronize() };
        let quiet = ended.and_then(|()| self.quiet());
        // Nobody's memory goes away while somebody may still write to it.
        let together = self.bootstrap.barrier("finalize");
        let left = self.bootstrap.finalize();
        quiet?;
        together?;
        Ok(left?)
    }

    /// Ends the job with an error at every other PE, whose message is `reason`.
    pub fn abort(&self, reason: &str) {
        self.bootstrap.abort(reason);
    }

    /// The error that device code recorded in the beginning of its control block, if there is one; and gets ready for the next.
    fn take_fault(&self, report: &[u8; REPORT_BYTES]) -> Result<Option<DeviceFault>> {
        let claimed: u32 = bytemuck::pod_read_unaligned(&report[CLAIMED_AT..CLAIMED_AT + 4]);
        if claimed != abi::ERROR_VALID {
            // None, or one that a kernel on another stream is writing: the next look finds it.
            return Ok(None);
        }
        let record: ErrorRecord = bytemuck::pod_read_unaligned(&report[ERROR_AT..]);
        self.slab.write(self.parts.control, (CLAIMED_AT / 4) as u64, &0u32)?;
        if self.bootstrap.failure().is_none() {
            self.slab.write(self.parts.control, ABORT_AT, &0u32)?;
            // The job may have failed since it was asked, and its word must stay.
            if self.bootstrap.failure().is_some() {
                self.slab.write(self.parts.control, ABORT_AT, &abi::ABORT_JOB)?;
            }
        }
        let mut fault = DeviceFault::decode(&record, self.state.my_pe, self.state.n_pes, self.state.timeout_ns);
        if let Some(network) = &self.network {
            network.explain(&self.slab, &mut fault);
        }
        Ok(Some(fault))
    }

    /// Every PE must call the same; otherwise all get an error.
    fn agree(&self, label: &str, call: &str) -> Result<()> {
        let calls = self.bootstrap.allgather(label, call.as_bytes())?;
        match calls.iter().position(|theirs| theirs != call.as_bytes()) {
            None => Ok(()),
            Some(pe) => Err(HeapError::Asymmetric {
                me: self.my_pe(),
                mine: call.to_owned(),
                pe,
                theirs: String::from_utf8_lossy(&calls[pe]).into_owned(),
            }
            .into()),
        }
    }

    fn back_heap(&self, end: u64) -> Result<()> {
        let mut heap = self.heap.borrow_mut();
        back(&mut heap, self.network.as_ref(), &self.slab, self.parts, &self.config, &self.bootstrap, end)
    }

    pub(crate) fn device(&self) -> &dyn Device {
        self.device.as_ref()
    }

    pub(crate) fn bootstrap(&self) -> &Bootstrap {
        &self.bootstrap
    }

    pub(crate) fn slab(&self) -> &Slab {
        &self.slab
    }

    pub(crate) fn teams(&self) -> &RefCell<Teams> {
        &self.teams
    }

    pub(crate) fn team_storage(&self) -> &TeamStorage {
        &self.parts.teams
    }

    /// Address of the own heap.
    pub(crate) fn heap_base(&self) -> u64 {
        self.state.heap_base
    }

    /// A PE number as device code takes it; what does not fit is out of range there too.
    pub(crate) fn peer(&self, pe: usize) -> i32 {
        i32::try_from(pe).unwrap_or(i32::MAX)
    }

    pub(crate) fn staging_address(&self) -> u64 {
        self.slab.address(self.parts.staging)
    }

    /// Copies `bytes` (at most [`STAGING_BYTES`]) to the staging buffer.
    pub(crate) fn stage(&self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= STAGING_BYTES);
        // SAFETY: it fits the staging buffer.
        Ok(unsafe { self.device.write(self.staging_address(), bytes) }?)
    }

    /// Copies what a kernel left in the staging buffer.
    pub(crate) fn unstage(&self, bytes: &mut [u8]) -> Result<()> {
        assert!(bytes.len() <= STAGING_BYTES);
        // SAFETY: it fits the staging buffer.
        Ok(unsafe { self.device.read(self.staging_address(), bytes) }?)
    }

    pub(crate) fn staged_word(&self) -> Result<u64> {
        Ok(self.slab.read(self.parts.staging, 0)?)
    }

    /// Runs a kernel of `host_ops.cu` in one block and waits for it.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    pub(crate) unsafe fn run_host_kernel(&self, name: &str, threads: u32, args: &impl KernelArgs) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.host_ops.function(name)?.launch(LaunchConfig::linear(1, threads), args, &Stream::OWN)? };
        self.wake_proxy();
        self.wait(Wait::Own)
    }

    /// Puts a kernel of `host_ops.cu` in one block on a stream.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    pub(crate) unsafe fn queue_host_kernel(
        &self,
        stream: &Stream,
        name: &str,
        threads: u32,
        args: impl KernelArgs,
    ) -> Result<()> {
        let function = self.host_ops.function(name)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_on_stream(stream, &function, LaunchConfig::linear(1, threads), args) }
    }

    /// Puts a kernel of `collectives.cu` in one block on a stream. The module is loaded by the first.
    ///
    /// # Safety
    /// `args` must fit the kernel.
    pub(crate) unsafe fn queue_collective(
        &self,
        stream: &Stream,
        name: &str,
        threads: u32,
        args: impl KernelArgs,
    ) -> Result<()> {
        if self.collectives.get().is_none() {
            // One thread at a time has the PE, so nobody else has set it meanwhile.
            let _ = self.collectives.set(self.load(&COLLECTIVES)?);
        }
        let Some(module) = self.collectives.get() else { return Ok(()) };
        let function = module.function(name)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_on_stream(stream, &function, LaunchConfig::linear(1, threads), args) }
    }

    /// Queues a copy of device memory by a copy engine; `false` if the device has none.
    ///
    /// # Safety
    /// As [`Device::copy_on`].
    pub(crate) unsafe fn queue_copy(&self, stream: &Stream, to: u64, from: u64, bytes: u64) -> Result<bool> {
        // SAFETY: the caller's promise.
        let queued = unsafe { self.device.copy_on(stream, to, from, bytes) }?;
        if queued {
            self.note(stream);
        }
        Ok(queued)
    }

    /// Waits for the PE's own stream.
    pub(crate) fn wait_own(&self) -> Result<()> {
        self.wait(Wait::Own)
    }

    /// Where the copy at `pe` of `bytes` bytes of the own heap is mapped here; `None` if it is not, or they are not all memory of the
    /// heap.
    pub(crate) fn mapped(&self, address: u64, bytes: u64, pe: usize) -> Option<u64> {
        let heap = self.heap.borrow();
        let offset = address.checked_sub(heap.base())?;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= heap.backed());
        let slot = self.plan.is_direct(pe).then(|| pe - self.plan.load_store.first)?;
        let first_heap = heap.base() - heap.layout().my_slot as u64 * heap.layout().max;
        inside.then(|| first_heap + slot as u64 * heap.layout().max + offset)
    }
}

impl Drop for Pe {
    fn drop(&mut self) {
        // Kernels must not outlive the memory they use. After finalize none runs.
        let mut report = [0; REPORT_BYTES];
        let stopped = self.slab.write(self.parts.control, ABORT_AT, &abi::ABORT_JOB).and_then(|()| {
            let control = self.slab.address(self.parts.control);
            let wait = if self.device.runs_elsewhere() { Wait::Everything } else { Wait::Own };
            // SAFETY: the slab holds the control block.
            unsafe { self.device.synchronize(wait, control, &mut report) }
        });
        if let Err(error) = stopped {
            tracing::warn!(%error, "a PE was dropped, and its kernels did not end in order");
        }
    }
}

/// A PE but for its bootstrap.
struct Built {
    host_ops: Module,
    teams: Teams,
    network: Option<Network>,
    heap: SymmetricHeap,
    slab: Arc<Slab>,
    parts: Parts,
    device: Arc<dyn Device>,
    state: abi::State,
    plan: Plan,
    config: Config,
}

impl Built {
    fn back(&mut self, bootstrap: &Bootstrap, end: u64) -> Result<()> {
        back(&mut self.heap, self.network.as_ref(), &self.slab, self.parts, &self.config, bootstrap, end)
    }

    fn into_pe(self, bootstrap: Bootstrap, occupied: Occupied) -> Pe {
        Pe {
            unread: RefCell::default(),
            host_ops: self.host_ops,
            collectives: OnceCell::new(),
            teams: RefCell::new(self.teams),
            network: self.network,
            heap: RefCell::new(self.heap),
            slab: self.slab,
            parts: self.parts,
            device: self.device,
            state: self.state,
            plan: self.plan,
            config: self.config,
            bootstrap,
            _occupied: occupied,
            _one_thread: PhantomData,
        }
    }
}

/// Ends all waits of device code: the job, or the network, is gone.
fn end_waits(slab: &Slab, control: Offset) {
    if let Err(error) = slab.write(control, ABORT_AT, &abi::ABORT_JOB) {
        tracing::error!(%error, "cannot tell running kernels that the job has failed");
    }
}

/// Adds chunks until `end` bytes of the heap are backed, and exchanges their keys. Collective.
fn back(
    heap: &mut SymmetricHeap,
    network: Option<&Network>,
    slab: &Slab,
    parts: Parts,
    config: &Config,
    bootstrap: &Bootstrap,
    end: u64,
) -> Result<()> {
    if end <= heap.backed() {
        return Ok(());
    }
    // All grow, or none does.
    let memory = heap.allocate_chunks(end);
    let problem = memory.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let problems = bootstrap.allgather("memory of the heap", problem.as_bytes())?;
    if let Some(pe) = problems.iter().position(|problem| !problem.is_empty()) {
        let reason = String::from_utf8_lossy(&problems[pe]).into_owned();
        return Err(HeapError::NoMemory { pe, reason }.into());
    }
    let added = heap.grow(memory?, config.bootstrap_timeout())?;
    let Some(network) = network else { return Ok(()) };
    let max_chunks = heap.layout().max / heap.layout().chunk;
    let n_pes = u64::from(bootstrap.size());
    // By chunk, and for each of them by card. Keys travel and are kept big-endian.
    let mut rkeys = Vec::new();
    let mut cards = 0;
    for index in added.clone() {
        let keys = network.register(slab.device(), heap, index)?;
        cards = keys.len();
        for (card, keys) in (0u64..).zip(keys) {
            slab.write(parts.lkeys, card * max_chunks + index as u64, &keys.lkey.to_be())?;
            rkeys.extend_from_slice(&keys.rkey.to_be_bytes());
        }
    }
    for (pe, theirs) in (0u64..).zip(&bootstrap.allgather("keys of the heap", &rkeys)?) {
        let mut by_card = vec![Vec::new(); cards];
        let mut keys = theirs.as_chunks::<4>().0.iter();
        for index in added.clone() {
            for ((card, prepared), key) in (0u64..).zip(&mut by_card).zip(&mut keys) {
                let row = card * n_pes + pe;
                slab.write(parts.rkeys, row * max_chunks + index as u64, &u32::from_ne_bytes(*key))?;
                prepared.push(u32::from_be_bytes(*key));
            }
        }
        network.prepare(pe as u32, &by_card)?;
    }
    Ok(())
}

/// The device that the configuration asks for. `auto` takes a GPU that can be used, and says in the log why none can.
fn open_device(config: &Config, bootstrap: &Bootstrap) -> Result<Arc<dyn Device>> {
    let node_rank = bootstrap.node_peers().iter().position(|pe| *pe == bootstrap.rank()).unwrap_or_default();
    let open_cuda = || -> Result<CudaDevice> { Ok(CudaDevice::open(config, node_rank, &HOST_OPS)?) };
    match config.device() {
        config::Device::Cpu => Ok(Arc::new(CpuDevice::new(config)?)),
        config::Device::Cuda => Ok(Arc::new(open_cuda()?)),
        config::Device::Auto => match open_cuda() {
            Ok(device) => Ok(Arc::new(device)),
            Err(reason) => {
                // Where there is a driver, somebody expects the GPU to be used.
                if cuda::driver_present() {
                    tracing::warn!(%reason, "OXSHMEM_DEVICE=auto: using the cpu device");
                } else {
                    tracing::info!(%reason, "OXSHMEM_DEVICE=auto: using the cpu device");
                }
                Ok(Arc::new(CpuDevice::new(config)?))
            }
        },
    }
}

/// Offsets and keys are exchanged by position, so these must be the same everywhere.
fn agree_on_sizes(config: &Config, device: &dyn Device, bootstrap: &Bootstrap) -> Result<()> {
    let mine = format!(
        "device {} OXSHMEM_HEAP_MAX={} OXSHMEM_HEAP_CHUNK={} OXSHMEM_QPS_PER_PEER={} OXSHMEM_MAX_TEAMS={} OXSHMEM_COLLECTIVES={} \
         OXSHMEM_TRANSPORT={:?} OXSHMEM_DISABLE_P2P={}",
        device.name(),
        config.heap_max().0,
        config.heap_chunk().0,
        config.qps_per_peer(),
        config.max_teams(),
        config.collectives(),
        config.transport(),
        config.disable_p2p(),
    );
    let all = bootstrap.allgather("configuration", mine.as_bytes())?;
    match all.iter().position(|theirs| theirs != mine.as_bytes()) {
        None => Ok(()),
        Some(pe) => Err(Error::Mismatch {
            me: bootstrap.rank() as usize,
            mine,
            pe,
            theirs: String::from_utf8_lossy(&all[pe]).into_owned(),
        }),
    }
}

/// How long each part of init took, for the log.
#[derive(Debug)]
struct Phases {
    begun: Instant,
    last: Instant,
    parts: Vec<(&'static str, Duration)>,
}

impl Phases {
    fn begin() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, parts: Vec::new() }
    }

    /// What was done since the phase before was this.
    fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        self.parts.push((name, now - self.last));
        self.last = now;
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", (self.last - self.begun).as_secs_f64() * 1e3)?;
        let mut separator = ": ";
        for (name, time) in &self.parts {
            write!(f, "{separator}{name} {:.1}", time.as_secs_f64() * 1e3)?;
            separator = ", ";
        }
        Ok(())
    }
}

/// The process's one place for a PE.
#[derive(Debug)]
struct Occupied;

impl Occupied {
    fn claim() -> Result<Self> {
        if OCCUPIED.swap(true, Ordering::AcqRel) { Err(Error::Occupied) } else { Ok(Self) }
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        OCCUPIED.store(false, Ordering::Release);
    }
}
