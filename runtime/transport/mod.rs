//! Transports: which PEs are reached by load and store, and which over the network.

pub(crate) mod ibgda;
pub(crate) mod ibrc;
pub(crate) mod keys;
mod opened;
mod reach;
mod ringing;
mod selection;
mod staging;
mod verbs;

use ibgda::{Ibgda, QueueLayout};
use ibrc::{Ibrc, ProxyLayout};
pub(crate) use opened::{Opened, open as open_hca};
use std::sync::Arc;

use oxshmem_hca::provider::{Attempt, Counters, Provider};
pub(crate) use reach::Reach;

use crate::bootstrap::Bootstrap;
use crate::config::{Config, Hca, Transport};
use crate::device::{Device, DeviceError};
use crate::fault::{DeviceFault, FaultKind};
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
    /// The HCA that was asked for cannot be used.
    #[error("OXSHMEM_HCA={hca}: {source}")]
    Asked {
        /// The variable's value.
        hca: String,
        /// Why.
        source: Box<oxshmem_hca::Error>,
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
    /// A PE in `OXSHMEM_P2P_FAULTS` does not exist.
    #[error("OXSHMEM_P2P_FAULTS: `{pair}` names PE {pe}, and the PEs of this job are 0 to {last}; name pairs of those")]
    PairOutOfRange {
        /// The pair.
        pair: String,
        /// The PE.
        pe: usize,
        /// The last PE of the job.
        last: usize,
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
    /// Puts cannot be staged, as they were asked to be.
    #[error("OXSHMEM_IBRC_STAGING={setting}: puts cannot be staged: {source}; use auto or off")]
    Staging {
        /// The variable's value.
        setting: String,
        /// Why.
        source: Box<crate::Error>,
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
    pub(crate) fn new(
        kind: NetworkKind,
        layout: &mut Layout,
        config: &Config,
        pes: (u32, u32),
        opened: Option<&Opened>,
    ) -> Self {
        match kind {
            NetworkKind::Ibgda => {
                let own = opened.is_some_and(|opened| !opened.coherent);
                Self::Ibgda(QueueLayout::new(layout, config, pes, own))
            }
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
    Ibgda(Box<Ibgda>),
    Ibrc(Box<Ibrc>),
}

impl Network {
    /// Connects to every other PE, on the HCA that was opened. Collective.
    pub(crate) fn connect(
        config: &Config,
        bootstrap: &Bootstrap,
        (device, devices): (&dyn Device, &[String]),
        slab: &Slab,
        layout: NetworkLayout,
        opened: Option<Opened>,
    ) -> Result<Self> {
        match (layout, opened) {
            (NetworkLayout::Ibgda(queues), Some(opened)) => {
                let ibgda = Ibgda::connect(config, bootstrap, (device, devices), slab, queues, opened)?;
                Ok(Self::Ibgda(Box::new(ibgda)))
            }
            (NetworkLayout::Ibgda(_), None) => Err(TransportError::NotAvailable {
                name: "OXSHMEM_TRANSPORT=ibgda without an HCA that takes commands",
                remedy: "use OXSHMEM_TRANSPORT=ibrc",
            }
            .into()),
            (NetworkLayout::Ibrc(layout), opened) => {
                let ibrc = Ibrc::connect(config, bootstrap, device, slab, layout, opened)?;
                Ok(Self::Ibrc(Box::new(ibrc)))
            }
        }
    }

    /// Fills in what device code needs to know.
    pub(crate) fn describe(&self, slab: &Slab, state: &mut abi::State) {
        match self {
            Self::Ibgda(ibgda) => ibgda.describe(slab, state),
            Self::Ibrc(ibrc) => ibrc.describe(slab, state),
        }
    }

    /// Registers chunk `index` of the heap with each card; its addresses on the wire are offsets in the heap.
    pub(crate) fn register(&self, device: &dyn Device, heap: &SymmetricHeap, index: usize) -> Result<Vec<ChunkKeys>> {
        match self {
            Self::Ibgda(ibgda) => ibgda.register(device, heap, index),
            Self::Ibrc(ibrc) => ibrc.register(device, heap, index),
        }
    }

    /// Makes the HCA ready for keys of a peer's chunks, so that no kernel has to wait for that. They are in host byte order, by card.
    pub(crate) fn prepare(&self, pe: u32, rkeys: &[Vec<u32>]) -> Result<()> {
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

    /// What was tried in which way to open and use the HCA.
    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        match self {
            Self::Ibgda(ibgda) => ibgda.attempts(),
            Self::Ibrc(ibrc) => ibrc.attempts(),
        }
    }

    /// What the cards have done, all together, where that is counted.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.providers().iter().map(|provider| provider.counters()).reduce(|all, each| Some(all? + each?)).flatten()
    }

    /// That a card is gone, if one is.
    pub(crate) fn dead(&self) -> Option<oxshmem_hca::Error> {
        self.providers().iter().find_map(|provider| {
            let reason = provider.dead()?;
            Some(oxshmem_hca::Error::Dead { device: provider.info().device.clone(), reason })
        })
    }

    /// Ends all waits of device code by `end` when a card is found to be gone.
    pub(crate) fn when_dead(&self, end: impl Fn() + Send + Sync + 'static) {
        let end = Arc::new(end);
        for provider in self.providers() {
            let end = Arc::clone(&end);
            provider.when_dead(Box::new(move || end()));
        }
    }

    /// The cards, where they take commands.
    fn providers(&self) -> Vec<Arc<dyn Provider>> {
        match self {
            Self::Ibgda(ibgda) => ibgda.providers(),
            Self::Ibrc(ibrc) => ibrc.providers(),
        }
    }

    /// Says more about a completion error, where the HCA does; and about a wait without end, if a connection is lost.
    pub(crate) fn explain(&self, slab: &Slab, fault: &mut DeviceFault) {
        if let FaultKind::Timeout { lost, .. } = &mut fault.kind {
            *lost = match self {
                Self::Ibgda(ibgda) => ibgda.lost(slab),
                Self::Ibrc(ibrc) => ibrc.lost(),
            };
        }
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
        match self {
            Self::Ibgda(_) => ringing::announce(),
            Self::Ibrc(ibrc) => ibrc.wake(),
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
