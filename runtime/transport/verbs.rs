//! IBRC over the kernel's verbs: which device a PE uses, and queue pairs on it to every peer.

use std::sync::Arc;

use oxshmem_hca::objects::QpAddress;
use oxshmem_hca::provider::{Access, Attempt, Provider};
use oxshmem_hca::topology::Distance;
use oxshmem_hca::verbs::{
    Atomicity, CompletionQueue, Context, MemoryRegion, Port, ProtectionDomain, QueuePair, QueuePairSize, VerbsError,
};
use oxshmem_proxy::verbs::VerbsBackend;
use oxshmem_proxy::work::{Backend, LEAST_INLINE_BYTES};
use oxshmem_system::words::native;

use super::error::TransportError;
use super::fabric::{ChunkKeys, Fabric, Region};
use super::near::Nodes;
use super::qp_attributes::{attributes, pkey_index};
use super::selection;
use super::selection::Chosen;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::config::{Choice, Config};
use crate::device::Device;
use crate::memory::MemoryUse;
use crate::profile::counters::QpCount;

/// The least depth of a queue pair that is of use.
const MIN_DEPTH: u32 = 16;

impl From<VerbsError> for crate::Error {
    fn from(error: VerbsError) -> Self {
        Self::Hca(error.into())
    }
}

/// A port of a device of the kernel's verbs, with queue pairs to every peer.
#[derive(Debug)]
pub(super) struct VerbsFabric {
    // Dropped in this order: what uses memory, then memory's registration, then what both need.
    queue_pairs: Vec<QueuePair>,
    regions: Vec<MemoryRegion>,
    addresses: Vec<QpAddress>,
    completions: Arc<CompletionQueue>,
    domain: Arc<ProtectionDomain>,
    port: Port,
    distance: Distance,
    depth: u32,
    config: Config,
}

impl VerbsFabric {
    /// Opens the port that the configuration names, or the one that falls to this PE, and creates
    /// `peers` queue pairs to other PEs, and those to this PE itself. Collective.
    pub(super) fn open(
        config: &Config,
        bootstrap: &Bootstrap,
        nodes: &Nodes,
        device: &dyn Device,
        peers: u32,
        depth: u32,
    ) -> Result<Self> {
        let count = peers + config.qps_per_peer();
        let (port, distance) = open_port(config, bootstrap, nodes, device)?;
        let context = &port.context;
        let limits = context.limits();
        // Every request may end with a completion of its own: those that are flushed do.
        let wanted = depth;
        let depth = depth.min(limits.queue_depth).min(limits.cq_depth / count.max(1));
        if depth < MIN_DEPTH {
            let what = format!(
                "has room for {} completions, {count} queue pairs need {} at least; lower OXSHMEM_QPS_PER_PEER",
                limits.cq_depth,
                count * MIN_DEPTH
            );
            return Err(VerbsError::Unsupported { device: context.name().to_owned(), what }.into());
        }
        if depth < wanted {
            tracing::info!(
                device = context.name(),
                depth,
                wanted,
                "the card's queues are not as deep as OXSHMEM_QP_DEPTH"
            );
        }
        let domain = ProtectionDomain::new(context)?;
        let completions = CompletionQueue::new(context, count * depth)?;
        let size = QueuePairSize { sends: depth, inline_bytes: LEAST_INLINE_BYTES };
        let queue_pairs = (0..count)
            .map(|_| QueuePair::new(&domain, &completions, &port, size))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let addresses = queue_pairs.iter().map(QueuePair::address).collect();
        let regions = Vec::new();
        let config = config.clone();
        Ok(Self { queue_pairs, regions, addresses, completions, domain, port, distance, depth, config })
    }

    /// Returns whether its atomics are atomic with those of CPUs and GPUs.
    pub(super) fn is_coherent(&self) -> bool {
        self.port.context.limits().atomicity == Atomicity::Global
    }

    fn queue_pair(&self, qp: u32) -> Result<&QueuePair> {
        Ok(self.queue_pairs.get(qp as usize).ok_or_else(|| self.gone())?)
    }

    fn gone(&self) -> TransportError {
        TransportError::Hca {
            device: self.port.context.name().to_owned(),
            what: "its queue pairs are in use".to_owned(),
        }
    }
}

/// Opens the port that the configuration names, or the one that falls to this PE, and says how far
/// it is. Collective.
fn open_port(config: &Config, bootstrap: &Bootstrap, nodes: &Nodes, device: &dyn Device) -> Result<(Port, Distance)> {
    // Verbs drive one device per PE, and so there is one.
    let Chosen { card, distance, .. } = selection::choose(config, bootstrap, nodes, device)?.0.swap_remove(0);
    let gid_index = match config.ib_gid_index() {
        Choice::Auto => None,
        Choice::Given(index) => Some(index),
    };
    let port = Port::query(&Context::open(&card.device)?, card.port.unwrap_or(1), gid_index, pkey_index(config))?;
    if port.context.limits().atomicity == Atomicity::None {
        let what = "has no atomics (ibv_devinfo -v: ATOMIC_NONE), which locks and the atomics of programs need; name a device that has them \
                    (OXSHMEM_HCA=verbs:DEVICE), or use OXSHMEM_HCA=soft";
        return Err(VerbsError::Unsupported { device: card.device, what: what.to_owned() }.into());
    }
    tracing::info!(pe = bootstrap.rank(), device = card.device, port = port.info.number, gid = %port.info.gid, "opened an RDMA device");
    Ok((port, distance))
}

impl Fabric for VerbsFabric {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn has_own(&self) -> bool {
        true
    }

    fn distance(&self) -> Option<Distance> {
        Some(self.distance)
    }

    fn register(&mut self, region: &Region<'_>) -> Result<Vec<ChunkKeys>> {
        let len = usize::try_from(region.bytes).unwrap_or(usize::MAX);
        let access = if region.remote { Access::ALL } else { Access::LOCAL };
        let address = std::ptr::with_exposed_provenance_mut(native(region.address));
        // SAFETY: what is registered outlives the fabric (see `Fabric::register`), and is used
        // through raw pointers only.
        let key = unsafe { MemoryRegion::register(&self.domain, address, len, region.iova, access) }?;
        let keys = ChunkKeys { lkey: key.lkey(), rkey: key.rkey() };
        self.regions.push(key);
        Ok(vec![keys])
    }

    fn forget(&mut self, keys: &[ChunkKeys]) -> Result<()> {
        self.regions.retain(|region| keys.iter().all(|keys| keys.lkey != region.lkey()));
        Ok(())
    }

    fn ports(&self) -> Vec<QpAddress> {
        let first = self.addresses.first().map(|address| {
            let log_rra_max = attributes(&self.config, address.log_rra_max, 0).log_max_rd_atomic;
            QpAddress { qpn: 0, log_rra_max, ..*address }
        });
        first.into_iter().collect()
    }

    fn qpn_of_receiver(&self, _pe: u32, _column: u32) -> u32 {
        // Verbs drive one card, whose rail is not known.
        0
    }

    fn receives(&self) -> Vec<QpCount> {
        Vec::new()
    }

    fn connect(&mut self, peers: &[(u32, QpAddress)], _receiving: &[(u32, u32, QpAddress)]) -> Result<bool> {
        for (qp, address) in peers {
            self.queue_pair(*qp)?.connect(address, &attributes(&self.config, u8::MAX, *qp))?;
        }
        // Verbs do not say.
        Ok(true)
    }

    fn order_strongly(&mut self) {
        tracing::warn!(
            "a peer's queue pairs place writes out of order, and verbs have no requests that wait for those before them"
        );
    }

    fn qpn(&self, qp: u32) -> u32 {
        self.addresses.get(qp as usize).map_or(0, |address| address.qpn)
    }

    fn prepare(&self, _qp: u32, _rkeys: &[u32]) -> Result<()> {
        // The card looks keys up by itself.
        Ok(())
    }

    fn backend(&mut self) -> Result<Box<dyn Backend>> {
        let queue_pairs = std::mem::take(&mut self.queue_pairs);
        Ok(Box::new(VerbsBackend::new(&self.port, queue_pairs, Arc::clone(&self.completions), self.depth)))
    }

    fn attempts(&self) -> Vec<Attempt> {
        Vec::new()
    }

    fn memory_use(&self) -> MemoryUse {
        MemoryUse::default()
    }

    fn providers(&self) -> Vec<Arc<dyn Provider>> {
        Vec::new()
    }
}
