//! A processing element: one process's membership in a job, from init to finalize.

mod init;
mod launch;
pub(crate) mod memory;
mod sync;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use init::Occupied;
pub use init::init;
use memory::STAGING_BYTES;
use oxshmem_hca::provider::{Attempt, Counters};
use sync::{ABORT_AT, REPORT_BYTES, Unread};

use crate::Result;
use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::config::Config;
use crate::device::{CudaGpu, Device, LoadedModule, Wait};
use crate::heap::SymmetricHeap;
use crate::host::operations::Operations;
use crate::identity::PeId;
use crate::slab::{Layout, Offset, Slab};
use crate::team::storage::TeamStorage;
use crate::team::table::Teams;
use crate::transport::keys::KeyTables;
use crate::transport::{Network, NetworkKind, Plan};

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
/// It allocates symmetric memory ([`alloc`](Pe::alloc)), reads and writes this PE's copy ([`read`](Pe::read), [`write`](Pe::write)), and issues
/// [`Operations`](crate::Operations) and kernels, which it waits for; [`on`](Pe::on) issues them on a stream.
///
/// Collective calls (`alloc`, [`free`](Pe::free), [`barrier_all`](crate::Operations::barrier_all), `sync_all`, `finalize`) must be made by every
/// PE in the same order.
///
/// # Errors
/// A process has one PE at a time; a second [`init`] is an error. What belongs to a PE that has ended (slices, streams, teams, modules) is refused by
/// later ones.
///
/// # Threads and drop
/// `Send` and not `Sync`: a PE belongs to one thread at a time. Dropping it without `finalize` leaves the job as a crash would: the
/// other PEs get an error.
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
    unread: RefCell<BTreeMap<usize, Unread>>,
    host_ops: Arc<dyn LoadedModule>,
    collectives: OnceCell<Arc<dyn LoadedModule>>,
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

/// What is where in the slab.
#[derive(Debug, Clone, Copy)]
struct Parts {
    control: Offset,
    teams: TeamStorage,
    region_count: Offset,
    regions: Offset,
    keys: KeyTables,
    staging: Offset,
}

impl Parts {
    fn new(layout: &mut Layout, n_pes: u32, max_chunks: u64, cards: u64, max_teams: u32) -> Self {
        Self {
            control: layout.array(1, size_of::<abi::Control>() as u64),
            teams: TeamStorage::new(layout, n_pes, max_teams),
            region_count: layout.array(1, 8),
            regions: layout.array(abi::MAX_LOCAL_REGIONS as u64, size_of::<abi::LocalRegion>() as u64),
            keys: KeyTables::new(layout, n_pes, max_chunks, cards),
            staging: layout.array(1, STAGING_BYTES as u64),
        }
    }
}

impl Pe {
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

    pub(crate) fn id(&self) -> PeId {
        self.id
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
