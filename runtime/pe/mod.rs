//! A processing element: one process's membership in a job, from init to finalize.

mod buffers;
mod finalize;
mod init;
mod job_handle;
mod launch;
pub(crate) mod loans;
pub(crate) mod memory;
mod occupied;
pub(crate) mod parts;
mod symmetric;
mod sync;

use std::cell::{Cell, OnceCell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use oxshmem_hca::provider::{Attempt, Counters};

pub use init::{Joined, init};
pub use job_handle::JobHandle;
use loans::Loans;
use occupied::Occupied;
use parts::Parts;

use crate::Result;
use crate::abi;
use crate::aggregate::AggregateTable;
use crate::bootstrap::Bootstrap;
use crate::buffer::{Buffers, Symmetric};
use crate::check::waits::WaitCheck;
use crate::config::Config;
use crate::context::ContextTable;
use crate::device::{self, CudaGpu, Device, LoadedModule};
use crate::dump::scene::Scene;
use crate::dump::watcher::Watched;
use crate::fault::DeviceFault;
use crate::heap::SymmetricHeap;
use crate::identity::PeId;
use crate::profile::device::DevicePlaces;
use crate::profile::host::HostProfile;
use crate::slab::Slab;
use crate::team::storage::TeamStorage;
use crate::team::table::Teams;
use crate::transport::ibgda::Ibgda;
use crate::transport::{MixedWords, Network, NetworkKind, Nodes, Plan};

/// How the runtime reaches a PE.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::Path;
///
/// assert_eq!(pe.path(pe.my_pe()), Some(Path::Own));
/// # pe.finalize()
/// # }
/// ```
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

/// This process's place in a job: its PE. Made by [`init`] or [`Pe::with_config`], ended by
/// [`finalize`](Pe::finalize).
///
/// It allocates symmetric memory ([`alloc`](Pe::alloc)), reads and writes this PE's copy
/// ([`read`](Pe::read), [`write`](Pe::write)), and issues [`Operations`](crate::Operations) and
/// kernels, which it waits for; [`on`](Pe::on) issues them on a stream.
///
/// Collective calls (`alloc`, [`free`](Pe::free), [`barrier_all`](crate::Operations::barrier_all),
/// `sync_all`, `finalize`) must be made by every PE in the same order.
///
/// # Errors
/// A process has one PE at a time; a second [`init`] is an error. What belongs to a PE that has
/// ended (slices, streams, teams, modules) is refused by later ones.
///
/// # Threads and drop
/// `Send` and not `Sync`: a PE belongs to one thread at a time. Dropping it without `finalize`
/// leaves the job as a crash would: the other PEs get an error.
///
/// ```
/// use oxshmem::Operations;
/// # fn main() -> oxshmem::Result<()> {
/// let pe = oxshmem::init()?;
/// let inbox = pe.alloc::<u64>(1)?;
/// pe.put(&inbox, &[pe.my_pe() as u64], (pe.my_pe() + 1) % pe.n_pes())?;
/// pe.barrier_all()?;
/// println!("{}", pe.read(&inbox)?[0]);
/// pe.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct Pe {
    id: PeId,
    // Dropped in this order: first what uses memory, then memory.
    wait_check: Option<WaitCheck>,
    loans: Loans,
    host_ops: Arc<dyn LoadedModule>,
    collectives: OnceCell<Arc<dyn LoadedModule>>,
    levels: OnceCell<Arc<dyn LoadedModule>>,
    teams: RefCell<Teams>,
    contexts: RefCell<ContextTable>,
    aggregate: OnceCell<Arc<dyn LoadedModule>>,
    aggregates: RefCell<AggregateTable>,
    mixed_words: Option<MixedWords>,
    network: Option<Network>,
    /// What the network's keys are for, which outlives them.
    buffers: RefCell<Buffers>,
    symmetric: RefCell<Vec<Symmetric>>,
    heap: RefCell<SymmetricHeap>,
    slab: Arc<Slab>,
    parts: Parts,
    /// Modules of the program, which stay loaded as long as the PE is there.
    #[cfg(feature = "cudarc")]
    modules: RefCell<Vec<Arc<cudarc::driver::CudaModule>>>,
    device: Arc<dyn Device>,
    state: abi::State,
    plan: Plan,
    config: Config,
    bootstrap: Arc<Bootstrap>,
    init_phases: Vec<(&'static str, Duration)>,
    profile: HostProfile,
    /// Whether a kernel was stopped in the middle, and may have left calls of teams half counted.
    stopped: Cell<bool>,
    /// Whether a wait for the PE's own stream has ended by its deadline, and none has ended well
    /// since: what is queued there may still use the staging buffer.
    own_is_late: Cell<bool>,
    /// An error of device code that no wait has returned yet.
    unreported: RefCell<Option<DeviceFault>>,
    /// The stream of the program that was named last.
    named: RefCell<Option<device::Stream>>,
    // After the bootstrap, whose end may be what a dump is made of.
    watched: Watched,
    _occupied: Occupied,
    _one_thread: PhantomData<Cell<()>>,
}

impl Pe {
    /// Returns this PE's number.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.my_pe() < pe.n_pes());
    /// # pe.finalize()
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
    /// # let pe = oxshmem::init()?;
    /// println!("{} PEs", pe.n_pes());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn n_pes(&self) -> usize {
        self.bootstrap.size() as usize
    }

    /// Returns the configuration in force.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// println!("the heap has at most {} bytes", pe.config().heap_max().0);
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns `cpu` or `cuda`.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert_eq!(pe.device_name() == "cuda", pe.gpu().is_some());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn device_name(&self) -> &'static str {
        self.device.name()
    }

    /// Returns the GPU that this PE uses, for programs that use it too: all pointers of this
    /// library are valid in its primary context. `None` on the `cpu` device.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// match pe.gpu() {
    ///     Some(gpu) => println!("GPU {}, {}", gpu.ordinal, gpu.name),
    ///     None => assert_eq!(pe.device_name(), "cpu"),
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn gpu(&self) -> Option<CudaGpu> {
        self.device.gpu()
    }

    /// Makes the GPU the calling thread's current one, for the CUDA runtime and driver alike, if
    /// the thread has none yet. Nothing on the `cpu` device.
    ///
    /// # Errors
    /// The GPU's context is lost.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// pe.make_gpu_current()?; // calls of the CUDA runtime in this thread now mean the PE's GPU
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn make_gpu_current(&self) -> Result<()> {
        Ok(self.device.make_current()?)
    }

    /// Returns the provider of the HCA in use (`soft` or `mlx5`), if there is one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// if let Some(name) = pe.hca_name() {
    ///     println!("work requests are executed by {name}");
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn hca_name(&self) -> Option<&'static str> {
        self.network.as_ref().map(Network::provider_name)
    }

    /// Returns what was tried in which way to open and use the HCA: ways to register memory and to
    /// ring doorbells, each with what came of it.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// for attempt in pe.hca_attempts() {
    ///     println!("{attempt:?}");
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn hca_attempts(&self) -> Vec<Attempt> {
        self.network.as_ref().map(Network::attempts).unwrap_or_default()
    }

    /// Returns how `pe` is reached; `None` if there is no such PE.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// assert!(pe.path(pe.n_pes()).is_none());
    /// # pe.finalize()
    /// # }
    /// ```
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

    /// Returns the phases of this PE's init in their order, and how long each took, waiting for
    /// other PEs included. All PEs of a job have the same phases.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// for (phase, time) in pe.init_phases() {
    ///     println!("{phase}: {time:?}");
    /// }
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn init_phases(&self) -> &[(&'static str, Duration)] {
        &self.init_phases
    }

    /// Returns what the HCA has done, where that is counted; `None` without a network.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// println!("{:?}", pe.hca_counters());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn hca_counters(&self) -> Option<Counters> {
        self.network.as_ref().and_then(Network::counters)
    }

    /// Returns the number of doorbells that device code has rung; `None` if it rings none, or if
    /// the device is lost.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// println!("{:?} doorbells", pe.doorbells());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn doorbells(&self) -> Option<u64> {
        self.network.as_ref().and_then(Network::doorbells)
    }

    /// Returns what the CPU proxy has done, as of a short while ago; `None` without one.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// println!("{:?}", pe.proxy_counters());
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn proxy_counters(&self) -> Option<oxshmem_proxy::thread::Counters> {
        self.network.as_ref().and_then(Network::proxy)
    }

    /// Returns what counts and records calls of the host.
    pub(crate) fn host_profile(&self) -> &HostProfile {
        &self.profile
    }

    /// Returns where device code counts and records its calls, if it does.
    pub(crate) fn device_profile(&self) -> Option<&DevicePlaces> {
        self.parts.profile.as_ref()
    }

    /// Returns the network, if there is one.
    pub(crate) fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// Returns the PE as dumps show it.
    pub(crate) fn scene(&self) -> &Scene {
        self.watched.scene()
    }

    pub(crate) fn id(&self) -> PeId {
        self.id
    }

    /// Keeps a module loaded as long as the PE is there.
    #[cfg(feature = "cudarc")]
    pub(crate) fn keep(&self, module: Arc<cudarc::driver::CudaModule>) {
        self.modules.borrow_mut().push(module);
    }

    #[cfg(feature = "cudarc")]
    pub(crate) fn loans(&self) -> &Loans {
        &self.loans
    }

    pub(crate) fn device(&self) -> &dyn Device {
        self.device.as_ref()
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.plan.nodes
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

    pub(crate) fn contexts(&self) -> &RefCell<ContextTable> {
        &self.contexts
    }

    pub(crate) fn aggregates(&self) -> &RefCell<AggregateTable> {
        &self.aggregates
    }

    /// Returns the queue pairs that device code posts to, if it posts by itself.
    pub(crate) fn ibgda(&self) -> Option<&Ibgda> {
        self.network.as_ref().and_then(Network::ibgda)
    }

    /// Returns whether atomics on memory that this PE loads and stores are atomic with those of its
    /// owner.
    pub(crate) fn shares_atomics(&self) -> bool {
        self.plan.shares_atomics
    }

    /// Returns whether `pe` is reached by load and store.
    pub(crate) fn is_direct(&self, pe: usize) -> bool {
        self.plan.is_direct(pe)
    }

    pub(crate) fn shared_device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn team_storage(&self) -> &TeamStorage {
        &self.parts.teams
    }

    /// Returns the address of this PE's heap.
    pub(crate) fn heap_base(&self) -> u64 {
        self.state.heap_base
    }

    /// Returns a PE number as device code takes it; what does not fit is out of range there too.
    /// Negative numbers of C programs, extended to a `usize`, become themselves again.
    pub(crate) fn peer(&self, pe: usize) -> i32 {
        i32::try_from(pe.cast_signed()).unwrap_or(i32::MAX)
    }
}
