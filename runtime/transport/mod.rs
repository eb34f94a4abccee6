//! Transports: which PEs are reached by load and store, and which over the network.

mod addresses;
mod atomics;
mod card;
mod doorbell;
mod error;
mod fabric;
mod flush;
mod hca;
pub(crate) mod ibgda;
pub(crate) mod ibrc;
pub(crate) mod keys;
mod measure;
mod mixed_words;
mod near;
mod nodes;
mod opened;
mod peer_access;
mod plan;
mod push;
mod qp_attributes;
pub(crate) mod queues;
mod rails;
mod receiving;
mod rings;
mod selection;
mod staging;
mod verbs;

use std::sync::Arc;

use oxshmem_hca::provider::{Attempt, Counters, Provider};
use oxshmem_proxy::thread::Moment;

use atomics::Atomics;
pub use error::TransportError;
pub(crate) use fabric::{ChunkKeys, Kind, Region, lkeys};
pub(crate) use hca::open as open_hca;
use ibgda::Ibgda;
use ibrc::{Ibrc, ProxyLayout};
pub(crate) use mixed_words::MixedWords;
pub(crate) use near::Nodes;
pub(crate) use opened::Opened;
pub(crate) use peer_access::PeerAccess;
pub(crate) use plan::{NetworkKind, Plan};
use queues::QueueLayout;
pub(crate) use rails::{CardPath, Rails};

use crate::bootstrap::Bootstrap;
use crate::config::{self, Config};
use crate::device::{Device, DeviceError, DeviceIdentity};
use crate::dump::queues::QueuePlaces;
use crate::dump::ring::RingPlace;
use crate::fault::{DeviceFault, FaultKind, STAGING};
use crate::heap::{PeerLinks, SymmetricHeap};
use crate::memory::{MemoryBytes, MemoryKind, MemoryUse};
use crate::profile::counters::QpCount;
use crate::slab::{Layout, Slab};
use crate::{Result, abi};

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
                let own = opened.is_some_and(|opened| opened.atomics.by_card);
                Self::Ibgda(ibgda::default_queues(layout, config, pes, own))
            }
            NetworkKind::Ibrc => Self::Ibrc(ProxyLayout::new(layout)),
        }
    }
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
        (bootstrap, plan, links): (&Bootstrap, &Plan, &PeerLinks),
        (device, devices): (&dyn Device, &[DeviceIdentity]),
        slab: &Arc<Slab>,
        layout: NetworkLayout,
        opened: Option<Opened>,
    ) -> Result<Self> {
        match (layout, opened) {
            (NetworkLayout::Ibgda(queues), Some(opened)) => {
                let ibgda =
                    Ibgda::connect(config, (bootstrap, &plan.nodes, links), (device, devices), slab, queues, opened)?;
                Ok(Self::Ibgda(Box::new(ibgda)))
            }
            (NetworkLayout::Ibgda(_), None) => Err(TransportError::NotAvailable {
                name: "OXSHMEM_TRANSPORT=ibgda without an HCA that takes commands",
                remedy: "use OXSHMEM_TRANSPORT=ibrc",
            }
            .into()),
            (NetworkLayout::Ibrc(layout), opened) => {
                let ibrc = Ibrc::connect(config, (bootstrap, plan), device, slab, layout, opened)?;
                Ok(Self::Ibrc(Box::new(ibrc)))
            }
        }
    }

    /// Fills in what device code needs to know.
    pub(crate) fn describe(&self, config: &Config, plan: &Plan, slab: &Slab, state: &mut abi::State) {
        match self {
            Self::Ibgda(ibgda) => ibgda.describe(slab, state),
            Self::Ibrc(ibrc) => ibrc.describe(slab, state),
        }
        let providers = self.providers();
        let known = flush::Known {
            cards: state.cards,
            pushes: self.rails().is_pushing(),
            // Nothing is known of cards that are driven by the kernel's verbs.
            visible_completions: !providers.is_empty()
                && providers.iter().all(|provider| provider.info().visible_completions),
            shares_memory: plan.shares_memory(config),
        };
        let flushes = flush::on_quiet(config.ib_flush(), known);
        tracing::debug!(target: "oxshmem::transport", ?known, flushes, "whether quiet reads after what it has written");
        state.flush_on_quiet = u32::from(flushes);
    }

    /// Returns what does atomics.
    pub(crate) fn atomics(&self) -> Atomics {
        match self {
            Self::Ibgda(ibgda) => ibgda.atomics(),
            Self::Ibrc(ibrc) => ibrc.atomics(),
        }
    }

    /// Registers chunk `index` of the heap with each card; its addresses on the wire are offsets in
    /// the heap.
    pub(crate) fn register(&self, device: &dyn Device, heap: &SymmetricHeap, index: usize) -> Result<Vec<ChunkKeys>> {
        match self {
            Self::Ibgda(ibgda) => ibgda.register(device, heap, index),
            Self::Ibrc(ibrc) => ibrc.register(device, heap, index),
        }
    }

    /// Registers memory of the program with each card; the keys by card.
    pub(crate) fn register_program(&self, region: &Region<'_>) -> Result<Vec<ChunkKeys>> {
        match self {
            Self::Ibgda(ibgda) => ibgda.register_program(region),
            Self::Ibrc(ibrc) => ibrc.register_program(region),
        }
    }

    /// Ends a registration of memory of the program, which no transfer uses any more.
    pub(crate) fn forget_program(&self, keys: &[ChunkKeys]) -> Result<()> {
        match self {
            Self::Ibgda(ibgda) => ibgda.forget_program(keys),
            Self::Ibrc(ibrc) => ibrc.forget_program(keys),
        }
    }

    /// Makes the HCA ready for keys of a peer's chunks, so that no kernel has to wait for that.
    /// They are in host byte order, by card of the peer.
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

    /// Returns where dumps find the queue pairs that device code fills, or the ring. `slab` is the
    /// PE's.
    pub(crate) fn places(&self, slab: &Arc<Slab>) -> (Option<Arc<QueuePlaces>>, Option<RingPlace>) {
        match self {
            Self::Ibgda(ibgda) => (Some(Arc::clone(ibgda.places())), None),
            Self::Ibrc(ibrc) => (None, Some(ibrc.place(slab))),
        }
    }

    /// Returns what was tried in which way to open and use the HCA.
    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        match self {
            Self::Ibgda(ibgda) => ibgda.attempts(),
            Self::Ibrc(ibrc) => ibrc.attempts(),
        }
    }

    /// Returns what the cards have done, all together, where that is counted.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.providers().iter().map(|provider| provider.counters()).reduce(|all, each| Some(all? + each?)).flatten()
    }

    /// Returns what the network has allocated beside the slab.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        let mut memory = match self {
            Self::Ibgda(ibgda) => ibgda.memory_use(),
            Self::Ibrc(ibrc) => ibrc.memory_use(),
        };
        for provider in self.providers() {
            let (device, host) = provider.memory();
            memory.add(MemoryKind::Engine, MemoryBytes::device(device));
            memory.add(MemoryKind::Engine, MemoryBytes::host(host));
        }
        memory
    }

    /// Returns the error that a card is gone, if one is.
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

    /// Returns the cards, where they take commands.
    pub(crate) fn providers(&self) -> Vec<Arc<dyn Provider>> {
        match self {
            Self::Ibgda(ibgda) => ibgda.providers(),
            Self::Ibrc(ibrc) => ibrc.providers(),
        }
    }

    /// Says more about a completion error, where the HCA does; and about a wait without end, if a
    /// connection is lost.
    pub(crate) fn explain(&self, fault: &mut DeviceFault) {
        let staged = fault.operation == STAGING;
        if let FaultKind::Timeout { lost, ring, pe, .. } = &mut fault.kind {
            *lost = match self {
                Self::Ibgda(ibgda) => ibgda.lost(),
                Self::Ibrc(ibrc) => ibrc.lost(),
            };
            *ring = self.ibgda().filter(|_| staged).and_then(|ibgda| ibgda.staging_ring_bytes(pe.cast_unsigned()));
        }
        match self {
            Self::Ibgda(ibgda) => {
                if let Some(cause) = fault.failed_qp().and_then(|qpn| ibgda.cause(qpn)) {
                    fault.explain(cause);
                }
            }
            Self::Ibrc(ibrc) => {
                if let Some(text) = fault.failed_qp().and_then(|qpn| ibrc.explanation(qpn)) {
                    fault.annotate(&text);
                }
            }
        }
        if fault.is_flushed() {
            // In a collapsed CQ requests that are flushed replace the one that failed.
            let counted: Vec<_> = self.providers().iter().flat_map(|provider| provider.error_counts()).collect();
            fault.name_first(&counted);
        }
    }

    /// Returns the queue pairs that device code posts to, if it posts by itself.
    pub(crate) fn ibgda(&self) -> Option<&Ibgda> {
        match self {
            Self::Ibgda(ibgda) => Some(ibgda),
            Self::Ibrc(_) => None,
        }
    }

    /// Returns the number of doorbells that device code has rung.
    pub(crate) fn doorbells(&self) -> Option<u64> {
        match self {
            Self::Ibgda(ibgda) => ibgda.doorbells().ok(),
            Self::Ibrc(_) => None,
        }
    }

    /// Returns what each queue pair has done.
    pub(crate) fn qp_counts(&self) -> Result<Vec<QpCount>> {
        match self {
            Self::Ibgda(ibgda) => Ok(ibgda.qp_counts()?),
            Self::Ibrc(ibrc) => Ok(ibrc.qp_counts()),
        }
    }

    /// Returns where the cards of all PEs are.
    pub(crate) fn rails(&self) -> &Rails {
        match self {
            Self::Ibgda(ibgda) => ibgda.rails(),
            Self::Ibrc(ibrc) => ibrc.rails(),
        }
    }

    /// Returns whether contexts with this choice send by each PE's own cards although PEs push.
    ///
    /// # Errors
    /// They cannot have what was chosen.
    pub(crate) fn are_contexts_direct(&self, chosen: config::Rails) -> Result<bool> {
        match (self, chosen, self.rails().is_pushing()) {
            (_, config::Rails::Push, false) => Err(TransportError::ContextsPush.into()),
            (Self::Ibrc(_), config::Rails::Direct, true) => Err(TransportError::ContextsShareProxy.into()),
            (Self::Ibgda(ibgda), config::Rails::Direct, true) if ibgda.has_room_for_direct() => Ok(true),
            (Self::Ibgda(_), config::Rails::Direct, true) => Err(TransportError::ContextsDirect.into()),
            _ => Ok(false),
        }
    }

    /// Returns when the proxy posted and finished descriptors, and how many older moments it has
    /// forgotten. `None` without one.
    pub(crate) fn proxy_moments(&self) -> Option<(Vec<Moment>, u64)> {
        match self {
            Self::Ibgda(_) => None,
            Self::Ibrc(ibrc) => Some(ibrc.moments()),
        }
    }

    /// Returns what the CPU proxy has done.
    pub(crate) fn proxy(&self) -> Option<oxshmem_proxy::thread::Counters> {
        match self {
            Self::Ibgda(_) => None,
            Self::Ibrc(ibrc) => Some(ibrc.proxy()),
        }
    }

    /// Wakes what serves kernels, which are about to run.
    pub(crate) fn wake(&self) {
        match self {
            Self::Ibgda(_) => doorbell::announce(),
            Self::Ibrc(ibrc) => ibrc.wake(),
        }
    }

    /// Forgets which queue pairs were used, if all of a set are idle. No kernel may be posting
    /// meanwhile, unless it is a service's. `state` is what [`describe`](Self::describe) filled in.
    pub(crate) fn forget_idle(&self, state: &abi::State) -> std::result::Result<(), DeviceError> {
        match self {
            Self::Ibgda(ibgda) => ibgda.forget_idle(state),
            Self::Ibrc(_) => Ok(()),
        }
    }
}
