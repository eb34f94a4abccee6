//! Init: how a PE comes to be, in stages. Each stage has what the stages before it established, and
//! needs all PEs to come as far.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io::Write as _;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use oxshmem_system::clock::monotonic_ns;
use oxshmem_system::mixing::digest;
use oxshmem_system::words::const32;

use super::Pe;
use super::job_handle::JobHandle;
use super::loans::Loans;
use super::memory::Backing;
use super::occupied::Occupied;
use super::parts::{ABORT_AT, Parts, STAGING_BYTES};
use crate::abi;
use crate::bootstrap::{Bootstrap, Failure, FailureKind};
use crate::check::waits::WaitCheck;
use crate::config::{self, Config};
use crate::device::{CpuDevice, CudaDevice, Device, DeviceIdentity, LoadedModule, cuda};
use crate::dump::reader::Reader;
use crate::dump::scene::{Ground, Scene};
use crate::dump::watcher::{self, Watched};
use crate::heap::{HeapLayout, PeerLinks, SymmetricHeap};
use crate::identity::PeId;
use crate::modules::{COLLECTIVES, HOST_OPS, LEVELS};
use crate::profile::host::HostProfile;
use crate::slab::{Layout, Offset, Slab};
use crate::team::Tuning;
use crate::team::table::Teams;
use crate::transport::{MixedWords, Network, NetworkLayout, Nodes, Opened, PeerAccess, Plan, open_hca};
use crate::{Error, Result};

/// Joins the job with the configuration of the environment. Collective.
///
/// # Errors
/// See [`Pe::with_config`].
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// let pe = oxshmem::init()?;
/// println!("PE {} of {}", pe.my_pe(), pe.n_pes());
/// pe.finalize()
/// # }
/// ```
pub fn init() -> Result<Pe> {
    Pe::with_config(Config::from_env()?)
}

impl Pe {
    /// Joins the job that `config` describes: meets the other PEs, maps their heaps where they can
    /// be mapped, and connects to the rest over the network. Collective. Without a launcher the job
    /// is this PE alone.
    ///
    /// # Errors
    /// A value of the configuration that cannot be met, PEs that do not arrive, a device or an HCA
    /// that is not there, or a PE that this process has already. Nothing is left behind.
    ///
    /// ```
    /// use oxshmem::{Config, Pe};
    /// # fn main() -> oxshmem::Result<()> {
    /// let pe = Pe::with_config(Config::builder().heap_max(64u64 << 20).env().build()?)?;
    /// assert_eq!(pe.config().heap_max().0, 64 << 20);
    /// pe.finalize()
    /// # }
    /// ```
    pub fn with_config(config: Config) -> Result<Self> {
        Joined::new(config)?.open()
    }

    /// Joins the job that `config` describes, and opens no device yet: for programs that choose
    /// their GPU by the number that they have on the node. [`Joined::open`] does the rest.
    /// Collective.
    ///
    /// # Errors
    /// PEs that do not arrive, or a PE that this process has already.
    ///
    /// ```
    /// use oxshmem::{Config, Pe};
    /// # fn main() -> oxshmem::Result<()> {
    /// let joined = Pe::join(Config::from_env()?)?;
    /// println!("PE {} takes GPU {}", joined.my_pe(), joined.node_my_pe());
    /// let pe = joined.open()?;
    /// pe.finalize()
    /// # }
    /// ```
    pub fn join(config: Config) -> Result<Joined> {
        Joined::new(config)
    }
}

/// A PE that has met the others, and has no device yet. Made by [`Pe::join`].
///
/// # Threads and drop
/// `Send` and not `Sync`, like the [`Pe`] that it becomes. Dropping it without
/// [`open`](Self::open) leaves the job as a crash would.
///
/// ```
/// use oxshmem::{Config, Joined, Pe};
/// # fn main() -> oxshmem::Result<()> {
/// let joined: Joined = Pe::join(Config::from_env()?)?;
/// assert!(joined.my_pe() < joined.n_pes());
/// joined.open()?.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct Joined {
    config: Config,
    bootstrap: Arc<Bootstrap>,
    // After the bootstrap, whose end may be what a dump is made of.
    watched: Watched,
    occupied: Occupied,
    phases: Phases,
    profile: HostProfile,
}

impl Joined {
    fn new(config: Config) -> Result<Self> {
        let occupied = Occupied::claim()?;
        let profile = HostProfile::new(&config);
        let mut phases = Phases::begin(&profile);
        let watched = Watched::new(Scene::new(config.dump(), config.rank(), config.npes()));
        let bootstrap = {
            let _joining = watched.scene().board.begins("joins its job");
            Arc::new(Bootstrap::connect(&config)?)
        };
        watched.scene().joined(bootstrap.rank(), bootstrap.size(), bootstrap.calls());
        let dump = dump_of_failure(&watched);
        bootstrap.on_failure(Box::new(dump));
        profile.joined(bootstrap.size() as usize);
        phases.end("bootstrap", &profile);
        if let Some(reason) = profile.missing() {
            report(format_args!("PE {}: OXSHMEM_PROFILE=nvtx: {reason}", bootstrap.rank()));
        }
        Ok(Self { config, bootstrap, watched, occupied, phases, profile })
    }

    /// Returns this PE's number.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// println!("PE {}", joined.my_pe());
    /// # joined.open()?.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn my_pe(&self) -> usize {
        self.bootstrap.rank() as usize
    }

    /// Returns the number of PEs in the job.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// println!("{} PEs", joined.n_pes());
    /// # joined.open()?.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn n_pes(&self) -> usize {
        self.bootstrap.size() as usize
    }

    /// Returns this PE's number among those of its node.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// assert!(joined.node_my_pe() < joined.node_n_pes());
    /// # joined.open()?.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn node_my_pe(&self) -> usize {
        node_rank(&self.bootstrap)
    }

    /// Returns the number of PEs of this PE's node.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// assert!(joined.node_n_pes() <= joined.n_pes());
    /// # joined.open()?.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn node_n_pes(&self) -> usize {
        self.bootstrap.node_peers().len()
    }

    /// Opens the device, maps heaps and connects to the other PEs. The PE takes the GPU that is
    /// current in the calling thread, if one is. Collective.
    ///
    /// # Errors
    /// A value of the configuration that cannot be met, or a device or an HCA that is not there.
    /// Nothing is left, and the other PEs get an error.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// let pe = joined.open()?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn open(mut self) -> Result<Pe> {
        let mut phases = std::mem::take(&mut self.phases);
        let scene = Arc::clone(self.watched.scene());
        let initialising = scene.board.begins("initialises the PE");
        match self.build(&mut phases) {
            Ok(connected) => {
                let mut pe = connected.into_pe(self);
                drop(initialising);
                pe.add_predefined()?;
                phases.end("teams", &pe.profile);
                tracing::info!(pe = pe.my_pe(), "init: {phases}");
                pe.init_phases = phases.parts;
                pe.begin_checks();
                if pe.config.report_memory() {
                    report(format_args!("PE {}: {}", pe.my_pe(), pe.memory()));
                }
                Ok(pe)
            }
            Err(error) => {
                // The others would wait for this PE until their deadline.
                self.bootstrap.abort(&format!("PE {} cannot initialise: {error}", self.bootstrap.rank()));
                Err(error)
            }
        }
    }

    /// Leaves the job at once: every other PE's calls fail with `reason`.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// joined.abort("no GPU is free");
    /// # Ok(())
    /// # }
    /// ```
    pub fn abort(&self, reason: &str) {
        self.bootstrap.abort(reason);
    }

    /// Leaves the job as [`abort`](Self::abort) does, and tells every PE the status that its
    /// process is to end with.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// joined.exit_job(3, "no GPU is free");
    /// assert_eq!(joined.exit_status(), Some(3));
    /// # Ok(())
    /// # }
    /// ```
    pub fn exit_job(&self, status: i32, reason: &str) {
        self.bootstrap.exit(status, reason);
    }

    /// Returns the status that this process is to end with, if a PE has ended the job with one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// assert_eq!(joined.exit_status(), None);
    /// joined.leave()
    /// # }
    /// ```
    #[must_use]
    pub fn exit_status(&self) -> Option<i32> {
        self.bootstrap.failure()?.exit_status()
    }

    /// Returns a handle by which any thread ends the job, even after [`open`](Self::open).
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// let job = joined.job_handle();
    /// let pe = joined.open()?;
    /// job.abort("no input");
    /// assert!(pe.synchronize().is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn job_handle(&self) -> JobHandle {
        JobHandle::new(Arc::downgrade(&self.bootstrap))
    }

    /// Leaves the job in order, before a device was opened. Collective.
    ///
    /// # Errors
    /// The job has failed, or not every PE leaves before the deadline.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// let joined = oxshmem::Pe::join(oxshmem::Config::from_env()?)?;
    /// joined.leave()
    /// # }
    /// ```
    pub fn leave(self) -> Result<()> {
        Ok(self.bootstrap.finalize()?)
    }

    /// Takes the remaining stages.
    fn build(&self, phases: &mut Phases) -> Result<Connected> {
        let opened = DeviceOpened::new(self, phases)?;
        let agreed = Agreed::new(self, opened, phases)?;
        let laid_out = LaidOut::new(self, agreed, phases)?;
        Connected::new(self, laid_out, phases)
    }
}

/// Stage 2: the PE's device is open, and the paths to its peers are planned.
struct DeviceOpened {
    plan: Plan,
    device: Arc<dyn Device>,
}

impl DeviceOpened {
    fn new(joined: &Joined, phases: &mut Phases) -> Result<Self> {
        let nodes = Nodes::find(&joined.bootstrap, joined.config.bootstrap_timeout())?;
        let plan = Plan::new(&joined.config, &joined.bootstrap, nodes)?;
        let device = open_device(&joined.config, &joined.bootstrap)?;
        phases.end("device", &joined.profile);
        Ok(Self { plan, device })
    }
}

/// Stage 3: all PEs have the same sizes, know which of them reach each other by load and store, and
/// have opened the same kind of HCA.
struct Agreed {
    config: Config,
    plan: Plan,
    device: Arc<dyn Device>,
    /// Identities of all PEs' devices.
    devices: Vec<DeviceIdentity>,
    /// Connections to the PEs that are reached by load and store.
    links: PeerLinks,
    reach: PeerAccess,
    tuning: Tuning,
    hca: Option<Opened>,
}

impl Agreed {
    fn new(joined: &Joined, opened: DeviceOpened, phases: &mut Phases) -> Result<Self> {
        let Joined { config, bootstrap, .. } = joined;
        let DeviceOpened { plan, device } = opened;
        let tuning = Tuning::of_config(config)?;
        agree_on_sizes(config, &tuning, device.as_ref(), bootstrap)?;
        let (plan, devices, reach) = plan.settle(config, device.as_ref(), bootstrap)?;
        phases.end("peers", &joined.profile);
        let me = bootstrap.rank() as usize;
        let (timeout, peers) = (config.bootstrap_timeout(), plan.direct_peers(me));
        let links = PeerLinks::connect(&bootstrap.job_name().to_string(), me, &peers, timeout, || {
            Ok(bootstrap.barrier("sockets of the heap")?)
        })?;
        let (plan, hca) = open_hca(config, (bootstrap, &links), device.as_ref(), plan)?;
        phases.end("HCA", &joined.profile);
        let chunk = config.heap_chunk().0.next_multiple_of(device.granularity());
        let config = if chunk == config.heap_chunk().0 {
            config.clone()
        } else {
            let max = config.heap_max().0.next_multiple_of(chunk);
            config.to_builder().heap_chunk(chunk).heap_max(max).build()?
        };
        Ok(Self { config, plan, device, devices, links, reach, tuning, hca })
    }

    fn heap_layout(&self, me: u32) -> HeapLayout {
        let neighbours = &self.plan.neighbours;
        let chunk = self.config.heap_chunk().0;
        let max = self.config.heap_max().0.next_multiple_of(chunk);
        HeapLayout { max, chunk, slots: neighbours.slots(), my_slot: me as usize - neighbours.first() }
    }
}

/// Stage 4: the slab has a place for everything that host and device share.
struct LaidOut {
    agreed: Agreed,
    heap_layout: HeapLayout,
    slab: Arc<Slab>,
    parts: Parts,
    queues: Option<NetworkLayout>,
}

impl LaidOut {
    fn new(joined: &Joined, agreed: Agreed, phases: &mut Phases) -> Result<Self> {
        let bootstrap = &joined.bootstrap;
        let (me, n_pes) = (bootstrap.rank(), bootstrap.size());
        let heap_layout = agreed.heap_layout(me);
        let hca = agreed.hca.as_ref();
        let mut layout = Layout::default();
        let max_chunks = heap_layout.max / heap_layout.chunk;
        let parts = Parts::new(&mut layout, (me, n_pes), max_chunks, hca, &agreed.config);
        let queues =
            agreed.plan.network.map(|kind| NetworkLayout::new(kind, &mut layout, &agreed.config, (me, n_pes), hca));
        let on_host = hca.is_some_and(|hca| hca.queues_on_host);
        let slab = Arc::new(Slab::new(Arc::clone(&agreed.device), &layout, on_host)?);
        phases.end("slab", &joined.profile);
        // From here on a failure of the job ends every device wait.
        let (control, at) = (Arc::clone(&slab), parts.control);
        let dump = dump_of_failure(&joined.watched);
        bootstrap.on_failure(Box::new(move |failure| {
            end_waits(&control, at);
            dump(failure);
        }));
        Ok(Self { agreed, heap_layout, slab, parts, queues })
    }
}

/// Stage 5: the heap is mapped, the network is connected, and device code knows the PE's state. A
/// PE without its bootstrap.
struct Connected {
    id: PeId,
    host_ops: Arc<dyn LoadedModule>,
    collectives: OnceCell<Arc<dyn LoadedModule>>,
    levels: OnceCell<Arc<dyn LoadedModule>>,
    teams: Teams,
    mixed_words: Option<MixedWords>,
    network: Option<Network>,
    heap: SymmetricHeap,
    slab: Arc<Slab>,
    parts: Parts,
    device: Arc<dyn Device>,
    state: abi::State,
    plan: Plan,
    config: Config,
    reader: Reader,
}

impl Connected {
    fn new(joined: &Joined, laid_out: LaidOut, phases: &mut Phases) -> Result<Self> {
        let bootstrap = &joined.bootstrap;
        let LaidOut { agreed, heap_layout, slab, mut parts, queues } = laid_out;
        let Agreed { config, plan, device, devices, links, reach, tuning, hca } = agreed;
        let id = PeId::next();
        let mut heap = SymmetricHeap::new(Arc::clone(&device), id, heap_layout, links)?;
        phases.end("heap addresses", &joined.profile);

        // Before an engine on the GPU runs, which an allocation might wait for.
        let reader = Reader::new(device.as_ref())?;
        let network = match queues {
            Some(queues) => Some(Network::connect(
                &config,
                (bootstrap, &plan, heap.links()),
                (device.as_ref(), &devices),
                &slab,
                queues,
                hca,
            )?),
            None => None,
        };
        if let Some(network) = &network {
            let (slab, at) = (Arc::clone(&slab), parts.control);
            network.when_dead(move || end_waits(&slab, at));
        }
        phases.end("network", &joined.profile);

        // The first allocation is the runtime's own: the workspaces of teams.
        let workspaces = parts.teams.reserve(&mut heap, &slab)?;
        let state = describe(&config, bootstrap, &plan, &heap, (&slab, &parts), network.as_ref())?;
        device.install(&state)?;
        // A GPU may let the load of a module, and room for larger stacks, wait for running kernels,
        // and one of these may wait for the collective. So both come before the program's kernels,
        // except where the driver would have to compile the module.
        let load = |source| -> Result<_> {
            let module = device.load(source)?;
            module.reserve_stacks()?;
            Ok(module)
        };
        let load_if = |needed, source| -> Result<_> {
            Ok(if needed && device.has_code_of(source)? { OnceCell::from(load(source)?) } else { OnceCell::new() })
        };
        let n_pes = bootstrap.size() as usize;
        let host_ops = load(&HOST_OPS)?;
        let collectives = load_if(n_pes > 1, &COLLECTIVES)?;
        // If all PEs reach each other, no team has several nodes.
        let levels = load_if(reach.cliques(&Vec::from_iter(0..n_pes)).len() > 1, &LEVELS)?;
        phases.end("modules", &joined.profile);

        let teams = Teams::new(config.max_teams(), reach, tuning);
        Backing { network: network.as_ref(), slab: &slab, keys: parts.keys, config: &config, bootstrap }
            .back(&mut heap, workspaces.end)?;
        phases.end("heap memory", &joined.profile);
        let mixed_words = network
            .as_ref()
            .and_then(|network| MixedWords::watch(config.atomics(), network.atomics(), &device, &slab, state.teams));
        bootstrap.barrier("end of init")?;
        phases.end("others", &joined.profile);
        Ok(Self {
            id,
            host_ops,
            collectives,
            levels,
            teams,
            mixed_words,
            network,
            heap,
            slab,
            parts,
            device,
            state,
            plan,
            config,
            reader,
        })
    }

    fn into_pe(self, joined: Joined) -> Pe {
        let (queues, ring) = self.network.as_ref().map(|network| network.places(&self.slab)).unwrap_or_default();
        let device = Arc::clone(&self.device);
        joined.watched.scene().attach(Ground { state: self.state, device, reader: self.reader, queues, ring });
        Pe {
            id: self.id,
            loans: Loans::default(),
            host_ops: self.host_ops,
            collectives: self.collectives,
            levels: self.levels,
            teams: RefCell::new(self.teams),
            contexts: RefCell::default(),
            stopped: Cell::default(),
            own_is_late: Cell::default(),
            aggregate: OnceCell::new(),
            aggregates: RefCell::default(),
            mixed_words: self.mixed_words,
            network: self.network,
            buffers: RefCell::default(),
            symmetric: RefCell::default(),
            heap: RefCell::new(self.heap),
            slab: self.slab,
            parts: self.parts,
            #[cfg(feature = "cudarc")]
            modules: RefCell::default(),
            device: self.device,
            state: self.state,
            plan: self.plan,
            config: self.config,
            bootstrap: joined.bootstrap,
            init_phases: Vec::new(),
            unreported: RefCell::default(),
            named: RefCell::default(),
            wait_check: None,
            profile: joined.profile,
            watched: joined.watched,
            _occupied: joined.occupied,
            _one_thread: PhantomData,
        }
    }
}

impl Pe {
    /// Begins the checks that go on beside calls, and says which cannot be made.
    fn begin_checks(&mut self) {
        let (wanted, on_gpu) = (self.config.checks(), self.gpu().is_some());
        if wanted.buffers
            && let Some(reason) = self.unwatched_buffers()
        {
            report(format_args!("PE {}: OXSHMEM_CHECK=buffers: {reason}", self.my_pe()));
        }
        if wanted.waits {
            let providers = self.network.as_ref().map(Network::providers).unwrap_or_default();
            match WaitCheck::start(&self.bootstrap, self.watched.scene(), providers, on_gpu) {
                Ok(check) => self.wait_check = Some(check),
                Err(reason) => report(format_args!("PE {}: OXSHMEM_CHECK=waits: {reason}", self.my_pe())),
            }
        }
    }

    /// Returns why no source of a put is watched, or not each.
    fn unwatched_buffers(&self) -> Option<&'static str> {
        let others = (0..self.n_pes()).filter(|pe| *pe != self.my_pe());
        if self.hca_name().is_some_and(|name| name != "soft") {
            return Some("only the software HCA watches; use OXSHMEM_HCA=soft");
        }
        if self.network.is_some() && self.gpu().is_some() {
            return Some("the software HCA watches on the cpu device alone; use OXSHMEM_DEVICE=cpu");
        }
        if self.network.as_ref().is_some_and(|network| network.proxy().is_some()) {
            return Some(
                "over the CPU proxy a source is watched from when the proxy posts, which is late; OXSHMEM_TRANSPORT=ibgda \
                 has it watched from the kernel's doorbell",
            );
        }
        let near = others.filter(|pe| self.is_direct(*pe)).count();
        (near != 0).then_some(
            "puts by load and store have read their source when they return, so nothing is watched for those; \
             OXSHMEM_TRANSPORT=ibgda has all puts watched",
        )
    }
}

/// Returns what has a dump of the PE made when the job fails. Where a PE ends the job with a
/// status, or cannot initialise, its reason says all: no dump is made of that.
fn dump_of_failure(watched: &Watched) -> impl Fn(&Failure) + Send + Sync + 'static {
    let scene = Arc::clone(watched.scene());
    move |failure| {
        let explained =
            (failure.kind == FailureKind::Aborted && !scene.is_attached()) || failure.exit_status().is_some();
        if scene.when().abort && !explained {
            watcher::request(&scene, format!("the job has failed: {failure}"));
        }
        watcher::note_failure(&scene);
    }
}

/// Writes a line that was requested to stderr. Ignores a closed stderr.
pub(super) fn report(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "oxshmem: {line}");
}

/// Returns what device code knows of the PE.
fn describe(
    config: &Config,
    bootstrap: &Bootstrap,
    plan: &Plan,
    heap: &SymmetricHeap,
    (slab, parts): (&Slab, &Parts),
    network: Option<&Network>,
) -> Result<abi::State> {
    let mut state = abi::State {
        magic: abi::MAGIC,
        abi_version: abi::ABI_VERSION,
        bytes: const { const32(size_of::<abi::State>()) },
        my_pe: bootstrap.rank().cast_signed(),
        n_pes: bootstrap.size().cast_signed(),
        network: abi::Network::None as u32,
        heap_base: heap.base(),
        heap_bytes: heap.layout().max,
        chunk_log2: heap.layout().chunk.trailing_zeros(),
        max_chunks: u32::try_from(parts.keys.max_chunks).unwrap_or(u32::MAX),
        lkeys: slab.address(parts.keys.local),
        rkeys: slab.address(parts.keys.remote),
        cards: 1,
        local_regions: slab.address(parts.regions),
        n_local_regions: slab.address(parts.region_count),
        numbered_contexts: slab.address(parts.numbered),
        n_numbered_contexts: slab.address(parts.numbered_count),
        control: slab.address(parts.control),
        timeout_ns: u64::try_from(config.timeout().as_nanos()).unwrap_or(u64::MAX),
        ..abi::State::default()
    };
    if let Some(profile) = &parts.profile {
        profile.describe(slab, &mut state)?;
    }
    plan.describe(&mut state);
    parts.teams.describe(slab, &mut state);
    if let Some(network) = network {
        network.describe(config, plan, slab, &mut state);
        parts.keys.describe(network.rails(), slab, &mut state)?;
        let region = abi::LocalRegion {
            base: slab.address(parts.staging),
            bytes: STAGING_BYTES as u64,
            lkeys: state.slab_lkeys,
        };
        slab.write(parts.regions, 0, &region)?;
        slab.write(parts.region_count, 0, &1u64)?;
    }
    Ok(state)
}

/// Ends all waits of device code: the job, or the network, is gone.
fn end_waits(slab: &Slab, control: Offset) {
    if let Err(error) = slab.write(control, ABORT_AT, &abi::ABORT_JOB) {
        tracing::error!(%error, "cannot tell running kernels that the job has failed");
    }
}

/// Returns this PE's number among those of its node.
fn node_rank(bootstrap: &Bootstrap) -> usize {
    bootstrap.node_peers().iter().position(|pe| *pe == bootstrap.rank()).unwrap_or_default()
}

/// Opens the device that the configuration requests. `auto` takes a GPU that can be used, and says
/// in the log why none can.
fn open_device(config: &Config, bootstrap: &Bootstrap) -> Result<Arc<dyn Device>> {
    let open_cuda = || -> Result<CudaDevice> { Ok(CudaDevice::open(config, node_rank(bootstrap), &HOST_OPS)?) };
    match config.device() {
        config::Device::Cpu => Ok(Arc::new(CpuDevice::new(config)?)),
        config::Device::Cuda => Ok(Arc::new(open_cuda()?)),
        config::Device::Auto => match open_cuda() {
            Ok(device) => Ok(Arc::new(device)),
            Err(reason) => {
                // A machine with a driver is expected to use its GPU.
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

/// Makes sure that sizes agree at all PEs: offsets and keys are exchanged by position, so these
/// must be the same everywhere; and PEs of different releases may mean different things by what
/// they exchange.
fn agree_on_sizes(config: &Config, tuning: &Tuning, device: &dyn Device, bootstrap: &Bootstrap) -> Result<()> {
    let mine = format!(
        "OxSHMEM {} with device ABI {}, device {} OXSHMEM_HEAP_MAX={} OXSHMEM_HEAP_CHUNK={} OXSHMEM_QPS_PER_PEER={} OXSHMEM_MAX_TEAMS={} OXSHMEM_COLLECTIVES={} OXSHMEM_TUNING={} OXSHMEM_COLLECTIVES_SMS={} \
         OXSHMEM_TRANSPORT={} OXSHMEM_NETWORK={} OXSHMEM_DISABLE_P2P={}",
        env!("CARGO_PKG_VERSION"),
        abi::ABI_VERSION,
        device.name(),
        config.heap_max().0,
        config.heap_chunk().0,
        config.qps_per_peer(),
        config.max_teams(),
        config.collectives(),
        tuning.lines().join("; "),
        config.collectives_sms(),
        config.transport(),
        config.network(),
        config.disable_p2p(),
    );
    // The texts alone when they differ, which all PEs see: they would be most of what a PE
    // receives.
    let own = digest(mine.as_bytes()).to_le_bytes();
    if bootstrap.allgather("configuration", &own)?.iter().all(|theirs| *theirs == own) {
        return Ok(());
    }
    let all = bootstrap.allgather("configurations that differ", mine.as_bytes())?;
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

/// The phases of init, in their order.
const PHASES: [&str; 11] = [
    "bootstrap",
    "device",
    "peers",
    "HCA",
    "slab",
    "heap addresses",
    "network",
    "modules",
    "heap memory",
    "others",
    "teams",
];

/// How long each phase of init took. A profile is told of each as it begins and ends.
#[derive(Debug, Default)]
struct Phases {
    parts: Vec<(&'static str, Duration)>,
    last: u64,
}

impl Phases {
    fn begin(profile: &HostProfile) -> Self {
        profile.phase_begins(PHASES[0]);
        Self { parts: Vec::new(), last: monotonic_ns() }
    }

    /// Ends phase `name`: what was done since the phase before was this.
    fn end(&mut self, name: &'static str, profile: &HostProfile) {
        debug_assert_eq!(PHASES.get(self.parts.len()), Some(&name), "the order of phases is in PHASES");
        let now = monotonic_ns();
        profile.phase_ended(name, self.last, now);
        self.parts.push((name, Duration::from_nanos(now - self.last)));
        self.last = now;
        if let Some(next) = PHASES.get(self.parts.len()) {
            profile.phase_begins(next);
        }
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Duration = self.parts.iter().map(|(_, time)| *time).sum();
        write!(f, "{:.1} ms", all.as_secs_f64() * 1e3)?;
        let mut separator = ": ";
        for (name, time) in &self.parts {
            write!(f, "{separator}{name} {:.1}", time.as_secs_f64() * 1e3)?;
            separator = ", ";
        }
        Ok(())
    }
}
