//! Transports: which PEs are reached by load and store, and which over the network.

pub(crate) mod ibgda;
pub(crate) mod ibrc;
mod reach;
mod verbs;

use ibgda::{Ibgda, QueueLayout};
use ibrc::{Ibrc, ProxyLayout};
use oxshmem_hca::provider::Counters;
pub(crate) use reach::Reach;

use crate::bootstrap::Bootstrap;
use crate::config::{Config, Hca, Transport};
use crate::device::{Device, DeviceError};
use crate::fault::DeviceFault;
use crate::heap::SymmetricHeap;
use crate::slab::{Layout, Slab};
use crate::{Result, abi};

/// PEs that one word of the device state can describe.
const MAX_LOAD_STORE_PES: usize = 64;

/// A transport that was asked for is not to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// `OXSHMEM_TRANSPORT=p2p`, but not every PE is load/store reachable.
    #[error(
        "OXSHMEM_TRANSPORT=p2p, but PE {pe} (host {host}) is not load/store reachable from PE {me} (host {my_host}): {reason}; set \
         OXSHMEM_TRANSPORT=auto to reach it over the network"
    )]
    NotReachable {
        /// This PE.
        me: usize,
        /// Its host.
        my_host: String,
        /// The first PE that is not reachable.
        pe: usize,
        /// Its host.
        host: String,
        /// Why.
        reason: &'static str,
    },
    /// `OXSHMEM_TRANSPORT=p2p`, but the devices of PEs of one node cannot reach each other's memory.
    #[error(
        "OXSHMEM_TRANSPORT=p2p, but PE {me} ({device}) has no load/store access to the memory of PE {pe} ({peer_device}): {reason}; set \
         OXSHMEM_TRANSPORT=auto to reach it over the network, or run each PE on a GPU with peer access to the others (nvidia-smi topo -p2p r)"
    )]
    NoPeerAccess {
        /// This PE.
        me: usize,
        /// Its device.
        device: String,
        /// The peer.
        pe: usize,
        /// Its device.
        peer_device: String,
        /// Why.
        reason: String,
    },
    /// Known, but not part of this release.
    #[error("{name} is not available in this build: {remedy}")]
    NotAvailable {
        /// The variable and its value.
        name: &'static str,
        /// What to use instead.
        remedy: &'static str,
    },
    /// An HCA could not be used for what the queues need.
    #[error("HCA {device}: {what}")]
    Hca {
        /// The device.
        device: String,
        /// What is missing.
        what: String,
    },
    /// The faults asked for cannot be read.
    #[error("OXSHMEM_SOFT_FAULTS: {0}")]
    Faults(oxshmem_hca::soft::ParseFaultError),
    /// The pairs of PEs in `OXSHMEM_P2P_FAULTS` cannot be read.
    #[error("OXSHMEM_P2P_FAULTS: `{pair}` is not a pair of different PEs, as in `0-1,2-3`")]
    Pair {
        /// What was found in the place of a pair.
        pair: String,
    },
    /// What a peer says of its reach cannot be read.
    #[error("PE {pe} said of the memory it reaches what this version cannot read; all PEs must run the same build")]
    Reach {
        /// The peer.
        pe: usize,
    },
    /// The proxy's thread could not be started.
    #[error(
        "cannot start the thread of the CPU proxy: {source}; raise the limit of threads (ulimit -u), or use OXSHMEM_TRANSPORT=ibgda"
    )]
    ProxyThread {
        /// The system's answer.
        source: std::io::Error,
    },
    /// Addresses from a peer that cannot be read.
    #[error("PE {pe} sent addresses of queue pairs that this version cannot read; all PEs must run the same build")]
    Address {
        /// The peer.
        pe: usize,
    },
}

/// The run of PEs whose heaps have a place beside the own one, which is among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadStore {
    pub first: usize,
    pub count: usize,
}

/// How the PEs of a job are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub load_store: LoadStore,
    /// Bit i: the heap of PE `load_store.first + i` is mapped here, and this PE's there.
    pub direct: u64,
    /// The network, if some PE needs one.
    pub network: Option<NetworkKind>,
}

/// Who posts work requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkKind {
    /// Device code.
    Ibgda,
    /// The CPU proxy.
    Ibrc,
}

impl NetworkKind {
    fn of(config: &Config) -> Self {
        // Plain verbs leave posting to the CPU.
        match (config.transport(), config.hca()) {
            (Transport::Ibrc, _) | (Transport::Auto, Hca::Verbs { .. }) => Self::Ibrc,
            _ => Self::Ibgda,
        }
    }
}

/// What a network needs of the slab.
#[derive(Debug)]
pub(crate) enum NetworkLayout {
    Ibgda(QueueLayout),
    Ibrc(ProxyLayout),
}

impl NetworkLayout {
    pub(crate) fn new(kind: NetworkKind, layout: &mut Layout, config: &Config, me: u32, n_pes: u32) -> Self {
        match kind {
            NetworkKind::Ibgda => Self::Ibgda(QueueLayout::new(layout, config, me, n_pes)),
            NetworkKind::Ibrc => Self::Ibrc(ProxyLayout::new(layout)),
        }
    }
}

/// Keys of a heap chunk, in host byte order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkKeys {
    pub lkey: u32,
    pub rkey: u32,
}

/// The network of a PE.
#[derive(Debug)]
pub(crate) enum Network {
    Ibgda(Ibgda),
    Ibrc(Ibrc),
}

impl Network {
    /// Opens the HCA and connects to every other PE. Collective.
    pub(crate) fn connect(
        config: &Config,
        bootstrap: &Bootstrap,
        (device, devices): (&dyn Device, &[String]),
        slab: &Slab,
        layout: NetworkLayout,
    ) -> Result<Self> {
        match layout {
            NetworkLayout::Ibgda(queues) => {
                Ibgda::connect(config, bootstrap, (device, devices), slab, queues).map(Self::Ibgda)
            }
            NetworkLayout::Ibrc(layout) => Ibrc::connect(config, bootstrap, device, slab, layout).map(Self::Ibrc),
        }
    }

    /// Fills in what device code needs to know.
    pub(crate) fn describe(&self, slab: &Slab, state: &mut abi::State) {
        match self {
            Self::Ibgda(ibgda) => ibgda.describe(slab, state),
            Self::Ibrc(ibrc) => ibrc.describe(slab, state),
        }
    }

    /// Registers chunk `index` of the heap; its addresses on the wire are offsets in the heap.
    pub(crate) fn register(&self, heap: &SymmetricHeap, index: usize) -> Result<ChunkKeys> {
        match self {
            Self::Ibgda(ibgda) => ibgda.register(heap, index),
            Self::Ibrc(ibrc) => ibrc.register(heap, index),
        }
    }

    /// Makes the HCA ready for keys of a peer's chunks, so that no kernel has to wait for that. They are in host byte order.
    pub(crate) fn prepare(&self, pe: u32, rkeys: &[u32]) -> Result<()> {
        match self {
            Self::Ibgda(ibgda) => ibgda.prepare(pe, rkeys),
            Self::Ibrc(ibrc) => ibrc.prepare(pe, rkeys),
        }
    }

    pub(crate) fn provider_name(&self) -> &'static str {
        match self {
            Self::Ibgda(ibgda) => ibgda.provider_name(),
            Self::Ibrc(ibrc) => ibrc.provider_name(),
        }
    }

    pub(crate) fn counters(&self) -> Option<Counters> {
        match self {
            Self::Ibgda(ibgda) => ibgda.counters(),
            Self::Ibrc(ibrc) => ibrc.counters(),
        }
    }

    /// Says more about a completion error, where the HCA does.
    pub(crate) fn explain(&self, slab: &Slab, fault: &mut DeviceFault) {
        match self {
            Self::Ibgda(ibgda) => {
                if let Some(cause) = fault.failed_qp().and_then(|qpn| ibgda.cause(slab, qpn)) {
                    fault.explain(cause);
                }
            }
            Self::Ibrc(ibrc) => {
                if let Some(text) = fault.failed_qp().and_then(|qpn| ibrc.explanation(qpn)) {
                    fault.annotate(&text);
                }
            }
        }
    }

    /// Doorbells that device code has rung.
    pub(crate) fn doorbells(&self, slab: &Slab) -> Option<u64> {
        match self {
            Self::Ibgda(ibgda) => ibgda.doorbells(slab).ok(),
            Self::Ibrc(_) => None,
        }
    }

    /// What the CPU proxy has done.
    pub(crate) fn proxy(&self) -> Option<oxshmem_proxy::thread::Counters> {
        match self {
            Self::Ibgda(_) => None,
            Self::Ibrc(ibrc) => Some(ibrc.proxy()),
        }
    }

    /// Kernels are about to run.
    pub(crate) fn wake(&self) {
        if let Self::Ibrc(ibrc) = self {
            ibrc.wake();
        }
    }

    /// Forgets which queue pairs were used, if all of them are idle. Nothing may be posting meanwhile.
    pub(crate) fn forget_idle(&self, slab: &Slab) -> std::result::Result<(), DeviceError> {
        match self {
            Self::Ibgda(ibgda) => ibgda.forget_idle(slab),
            Self::Ibrc(_) => Ok(()),
        }
    }
}

impl Plan {
    /// Decides per peer: load/store inside the node unless the configuration forbids it, the network for everyone else.
    pub(crate) fn new(config: &Config, bootstrap: &Bootstrap) -> std::result::Result<Self, TransportError> {
        let (me, n_pes) = (bootstrap.rank() as usize, bootstrap.size() as usize);
        let node: Vec<usize> = bootstrap.node_peers().into_iter().map(|rank| rank as usize).collect();
        let alone = config.disable_p2p() || matches!(config.transport(), Transport::Ibgda | Transport::Ibrc);
        let load_store = if alone { LoadStore { first: me, count: 1 } } else { run_around(me, &node) };
        let reachable = |pe: usize| (load_store.first..load_store.first + load_store.count).contains(&pe);
        let outside = (0..n_pes).find(|pe| !reachable(*pe));
        if let (Transport::P2p, Some(pe)) = (config.transport(), outside) {
            return Err(TransportError::NotReachable {
                me,
                my_host: bootstrap.peers()[me].host.clone(),
                pe,
                host: bootstrap.peers()[pe].host.clone(),
                reason: if config.disable_p2p() {
                    "OXSHMEM_DISABLE_P2P=1"
                } else if node.contains(&pe) {
                    "it is on the same node, but outside the run of 64 consecutive PEs that can be mapped"
                } else {
                    "it is on another node, or in another network namespace"
                },
            });
        }
        let direct = u64::MAX >> (MAX_LOAD_STORE_PES - load_store.count);
        Ok(Self { load_store, direct, network: outside.map(|_| NetworkKind::of(config)) })
    }

    /// Whether the heap of `pe` is mapped here.
    pub(crate) fn is_direct(&self, pe: usize) -> bool {
        pe.checked_sub(self.load_store.first)
            .is_some_and(|slot| slot < self.load_store.count && self.direct >> slot & 1 == 1)
    }

    /// The PEs whose heaps are mapped here, but for `me`, with the place of each.
    pub(crate) fn direct_peers(&self, me: usize) -> Vec<(usize, usize)> {
        let LoadStore { first, count } = self.load_store;
        (first..first + count).filter(|pe| *pe != me && self.is_direct(*pe)).map(|pe| (pe, pe - first)).collect()
    }
}

/// The longest run of consecutive PEs of the node around `me`, at most [`MAX_LOAD_STORE_PES`], the same for all of its members.
fn run_around(me: usize, node: &[usize]) -> LoadStore {
    let on_node = |pe: usize| node.binary_search(&pe).is_ok();
    let mut first = me;
    while first > 0 && on_node(first - 1) {
        first -= 1;
    }
    let mut end = me + 1;
    while on_node(end) {
        end += 1;
    }
    // Longer runs are cut in pieces that do not depend on who asks.
    first += (me - first) / MAX_LOAD_STORE_PES * MAX_LOAD_STORE_PES;
    LoadStore { first, count: (end - first).min(MAX_LOAD_STORE_PES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_where_another_node_begins() {
        let node = [2, 3, 4, 7];
        for me in [2, 3, 4] {
            assert_eq!(run_around(me, &node), LoadStore { first: 2, count: 3 });
        }
        assert_eq!(run_around(7, &node), LoadStore { first: 7, count: 1 });
    }

    #[test]
    fn members_of_a_long_run_agree_on_its_pieces() {
        let node: Vec<usize> = (10..200).collect();
        for me in 10..200 {
            let run = run_around(me, &node);
            assert!((run.first..run.first + run.count).contains(&me) && run.count <= 64);
            for pe in run.first..run.first + run.count {
                assert_eq!(run_around(pe, &node), run);
            }
        }
    }
}
