//! IBGDA: queue pairs in the device's memory, which device code fills and rings.
//!
//! Per PE there is one slab (per card one umem, one key) that holds every send queue, doorbell
//! record, CQE and [`abi::Qp`] of the default context, and one for each set of contexts that the
//! program creates. Each queue pair has a collapsed CQ. Set-up speaks PRM commands to
//! [`Provider`]s, whichever they are.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use oxshmem_hca::objects::QpAddress;
use oxshmem_hca::provider::{Attempt, Provider};
use oxshmem_hca::soft::doorbell_rung;
use oxshmem_proxy::striping::Striping;

use super::addresses;
use super::atomics::Atomics;
use super::card::Card;
use super::doorbell::{self, Posting, Way};
use super::error::TransportError;
use super::fabric::{ChunkKeys, Region};
use super::near::Nodes;
use super::opened::{Opened, Order, are_connected, distinct, of_card, unordered};
use super::queues::{QueueLayout, QueueSet, Shape};
use super::rails::Rails;
use super::rings::{self, Lent};
use crate::Result;
use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::config::{self, Config};
use crate::device::{Device, DeviceError, DeviceIdentity};
use crate::dump::queues::{QueuePlace, QueuePlaces};
use crate::fault::Cause;
use crate::heap::{PeerLinks, SymmetricHeap};
use crate::memory::MemoryUse;
use crate::profile::counters::QpCount;
use crate::slab::{Layout, Slab};

/// Lays out the queue pairs of the default context: those to every other PE, and to this one if
/// `own`.
pub(crate) fn default_queues(layout: &mut Layout, config: &Config, (me, n_pes): (u32, u32), own: bool) -> QueueLayout {
    let peers = (0..n_pes).filter(|pe| own || *pe != me).map(|pe| (pe, pe)).collect();
    let (columns, depth) = (config.qps_per_peer(), config.send_queue_depth(n_pes));
    QueueLayout::new(layout, Shape { rows: n_pes, peers, columns, depth, apart: false, forgotten_by_host: true })
}

/// The network of a PE: open cards, and a queue pair or several to every other PE.
#[derive(Debug)]
pub(crate) struct Ibgda {
    me: usize,
    /// Queue pairs of contexts, by the number of their set, and whether they are direct
    /// ([`Self::are_direct`]).
    contexts: RefCell<BTreeMap<u32, (QueueSet, bool)>>,
    /// Slabs of contexts that were destroyed, for later ones.
    spare: RefCell<Vec<Arc<Slab>>>,
    queues: QueueSet,
    /// Where dumps find all of them.
    places: Arc<QueuePlaces>,
    // Behind the queue pairs, which are on them.
    cards: Vec<Card>,
    striping: Striping,
    atomics: Atomics,
    /// The fence modes of signals after their data, and of the first request after a fence.
    order: Order,
    /// How device code tells cards what it has posted.
    posting: Posting,
    /// Whether what reads the queues sees what has reached the GPU's memory, where they are.
    in_device_memory: bool,
    /// Which cards puts are staged for.
    staging: rings::Plan,
    /// Memory for the staging rings of other PEs.
    lent: Vec<Lent>,
    /// What was tried on the way, apart from what the cards themselves tried.
    attempts: Vec<Attempt>,
    /// By PE: the addresses of its cards' ports.
    ports: Vec<Vec<QpAddress>>,
    /// Where the cards of all PEs are.
    rails: Rails,
    /// The same for contexts that do not push.
    direct: Rails,
}

impl Ibgda {
    /// Creates the queue pairs on an open HCA and connects them. `devices` says what every PE's
    /// device is. Collective.
    pub(crate) fn connect(
        config: &Config,
        (bootstrap, nodes, links): (&Bootstrap, &Nodes, &PeerLinks),
        (device, devices): (&dyn Device, &[DeviceIdentity]),
        slab: &Arc<Slab>,
        queues: QueueLayout,
        opened: Opened,
    ) -> Result<Self> {
        if opened.provider_name() == "soft" && *config.hca() != config::Hca::Null {
            let me = bootstrap.rank() as usize;
            check_soft_reach(opened.cards[0].provider.as_ref(), (nodes, me), device, devices)?;
        }
        match opened.way {
            Way::Memory => device.set_doorbell_hook(doorbell_rung),
            Way::Thread => device.set_doorbell_hook(doorbell::announce),
            Way::Mapped => {}
        }

        let places = Arc::new(QueuePlaces::default());
        let striping = opened.striping(config);
        let mut order = opened.order(config);
        let Opened { cards, atomics, way, mut attempts, rails, .. } = opened;
        let me = bootstrap.rank() as usize;
        let posting = Posting { way, mode: config.ibgda_doorbell_record().mode() };
        let staging = rings::Plan::new(config, (nodes, me), &cards);
        let cards = cards.into_iter().map(Card::new).collect::<Result<Vec<_>>>()?;
        let columns: Vec<u32> = (0..config.qps_per_peer()).map(|column| striping.target(column)).collect();
        let card_of = queues.cards((&rails, me), &columns);
        // Only cards of other rails are near the GPU of another PE, and all PEs push or none does.
        let (lent, borrowed) = if rails.is_pushing() {
            staging.exchange((bootstrap, links), device, |card| staging.bytes_on(card, &card_of))?
        } else {
            Default::default()
        };
        let on = (&cards[..], &staging, borrowed);
        let (queues, tried) = QueueSet::create(on, (&rails, me), (device, posting), slab, queues, columns)?;
        for attempt in &tried {
            tracing::info!(pe = me, "{attempt}");
        }
        attempts.extend(tried);

        let in_device_memory = device.gpu().is_some() && is_ordered_by_device(slab.memory().is_some(), way);
        let ports: Vec<_> = cards.iter().map(|card| card.open.port(config)).collect();
        let ports = addresses::exchange_ports(bootstrap, &rails, &ports)?;
        // A PE gets only the numbers of the queue pairs that lead to it.
        let numbers = bootstrap.alltoall("numbers of queue pairs", &queues.numbers(&rails))?;
        let in_order = queues.connect((config, &cards, order), (&rails, me), &ports, &numbers)?;
        if !are_connected(bootstrap, in_order)? {
            order = Order::new(false);
            let found = unordered();
            tracing::info!(pe = me, "{found}");
            attempts.push(found);
        }
        places.add(None, place(&queues));
        Ok(Self {
            me,
            contexts: RefCell::default(),
            spare: RefCell::default(),
            queues,
            places,
            cards,
            striping,
            atomics,
            order,
            posting,
            in_device_memory,
            staging,
            lent,
            attempts,
            ports,
            direct: rails.without_pushing(),
            rails,
        })
    }

    /// Returns what is allocated beside the PE's slab: slabs of contexts too, also of those that
    /// were destroyed.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        let mut memory = self.queues.memory_use();
        for (queues, _) in self.contexts.borrow().values() {
            memory += queues.memory_use();
            memory += queues.slab().memory_use();
        }
        self.spare.borrow().iter().for_each(|slab| memory += slab.memory_use());
        self.lent.iter().for_each(|lent| memory += lent.memory_use());
        memory
    }

    /// Returns the cards of `count` contexts: the one that the program chose, or each in turn.
    /// Where one card does all atomics on a PE's memory, they are all on that one.
    pub(crate) fn cards_of_contexts(&self, count: u32, chosen: Option<u32>) -> Result<Vec<u32>> {
        let cards = self.striping.targets();
        let first = self.atomics.on_first_card(cards);
        match chosen {
            Some(card) if card >= cards => Err(TransportError::NoCard { card, cards }.into()),
            Some(card) if first && card != 0 => Err(TransportError::CardWithoutAtomics { card }.into()),
            Some(card) => Ok(vec![card; count as usize]),
            None if first => Ok(vec![0; count as usize]),
            None => Ok((0..count).map(|context| context % cards).collect()),
        }
    }

    /// Returns whether contexts that send by each PE's own cards have keys beside those that push.
    pub(super) fn has_room_for_direct(&self) -> bool {
        self.rails.has_room_for_direct(self.me)
    }

    /// Returns by which cards PEs send through a set of queue pairs.
    fn rails_of(&self, direct: bool) -> (&Rails, usize) {
        (if direct { &self.direct } else { &self.rails }, self.me)
    }

    /// Returns zeroed memory for the queue pairs of contexts: of contexts that were destroyed, if
    /// some had as much.
    pub(crate) fn memory_for_contexts(
        &self,
        device: &Arc<dyn Device>,
        layout: &Layout,
        like: &Slab,
    ) -> Result<Arc<Slab>> {
        let mut spare = self.spare.borrow_mut();
        if let Some(found) = spare.iter().position(|slab| layout.fits(slab)) {
            let slab = spare.swap_remove(found);
            slab.clear()?;
            return Ok(slab);
        }
        Ok(Arc::new(Slab::new(Arc::clone(device), layout, like.memory().is_none())?))
    }

    /// Creates queue pairs of contexts in a slab, which are direct or not ([`Self::are_direct`]);
    /// nothing is connected yet. Returns their numbers, for the peers.
    pub(crate) fn create_contexts(
        &self,
        (set, direct): (u32, bool),
        (device, slab): (&dyn Device, &Arc<Slab>),
        layout: QueueLayout,
        targets: Vec<u32>,
    ) -> Result<Vec<u8>> {
        let rails = self.rails_of(direct);
        let cards = (&self.cards[..], &self.staging, Vec::new());
        let (queues, _) = QueueSet::create(cards, rails, (device, self.posting), slab, layout, targets)?;
        let numbers = queues.numbers(rails.0);
        self.places.add(Some(set), place(&queues));
        self.contexts.borrow_mut().insert(set, (queues, direct));
        Ok(numbers)
    }

    /// Connects the queue pairs of a set: `numbers` has by member what it has told this PE.
    pub(crate) fn connect_contexts(&self, config: &Config, set: u32, numbers: &[Vec<u8>]) -> Result<()> {
        let contexts = self.contexts.borrow();
        let Some((queues, direct)) = contexts.get(&set) else { return Ok(()) };
        let on = (config, &self.cards[..], self.order);
        if !queues.connect(on, self.rails_of(*direct), &self.ports, numbers)? {
            // Device code knows one order for all its queue pairs, and was told that at init.
            let what = "its queue pairs have come to place writes out of order since init (adaptive routing); set \
                        OXSHMEM_IB_STRONG_ORDERING=1, or leave adaptive routing as it is during a job";
            let device = self.cards[0].open.provider.info().device.clone();
            return Err(TransportError::Hca { device, what: what.to_owned() }.into());
        }
        Ok(())
    }

    /// Returns how many bytes a PE tells a member of each context.
    pub(crate) fn bytes_of_context(&self, direct: bool) -> usize {
        addresses::bytes_of_column(self.rails_of(direct).0)
    }

    /// Destroys the queue pairs of a set. Device code that still posts to them gets an error.
    pub(crate) fn destroy_contexts(&self, set: u32) -> Result<()> {
        let Some((queues, _)) = self.contexts.borrow_mut().remove(&set) else { return Ok(()) };
        self.places.remove(set);
        let retired = queues.retire();
        let slab = Arc::clone(queues.slab());
        drop(queues);
        self.spare.borrow_mut().push(slab);
        Ok(retired?)
    }

    /// Fills in what device code needs to know.
    pub(crate) fn describe(&self, slab: &Slab, state: &mut abi::State) {
        let (qps, used) = self.queues.layout().places();
        state.network = abi::Network::Ibgda as u32;
        state.qps = slab.address(qps);
        state.qps_per_pe = self.queues.layout().columns();
        state.used = slab.address(used);
        state.cards = self.striping.targets();
        for (key, card) in state.slab_lkeys.iter_mut().zip(self.queues.on_cards()) {
            *key = card.key.lkey().to_be();
        }
        self.atomics.tell(state.cards, state);
        let is_far = |card: &Card| card.open.way().0.is_staged();
        state.inline_up_to = if self.cards.iter().any(is_far) { abi::INLINE_MOST } else { abi::INLINE_ONE_BLOCK };
        state.direct_up_to = self.staging.direct_up_to(state.inline_up_to);
        (state.signal_order, state.fence_order) = (self.order.signal.bits().into(), self.order.fence.bits().into());
        state.queues_in_device_memory = u32::from(self.in_device_memory);
    }

    /// Registers chunk `index` of the heap with each card; its addresses on the wire are offsets in
    /// the heap.
    pub(crate) fn register(&self, device: &dyn Device, heap: &SymmetricHeap, index: usize) -> Result<Vec<ChunkKeys>> {
        self.cards.iter().map(|card| card.register(device, heap, index)).collect()
    }

    /// Registers memory of the program with each card; the keys by card.
    pub(crate) fn register_program(&self, region: &Region<'_>) -> Result<Vec<ChunkKeys>> {
        let mut keys = Vec::new();
        for card in &self.cards {
            match card.register_program(region) {
                Ok(registered) => keys.push(registered),
                Err(error) => {
                    // What the other cards have is of no use without this one.
                    self.forget_program(&keys)?;
                    return Err(error);
                }
            }
        }
        Ok(keys)
    }

    /// Ends a registration of memory of the program.
    pub(crate) fn forget_program(&self, keys: &[ChunkKeys]) -> Result<()> {
        self.cards.iter().zip(keys).try_for_each(|(card, keys)| card.forget_program(keys))
    }

    /// Makes the cards ready for keys of a peer's chunks, so that no kernel has to wait for that.
    /// They are in host byte order, by card of the peer.
    pub(crate) fn prepare(&self, pe: u32, rkeys: &[Vec<u32>]) -> Result<()> {
        self.prepare_set((&self.queues, false), pe, rkeys)?;
        self.contexts.borrow().values().try_for_each(|(queues, direct)| self.prepare_set((queues, *direct), pe, rkeys))
    }

    /// Does the same for the queue pairs of a set of contexts.
    pub(crate) fn prepare_contexts(&self, set: u32, pe: u32, rkeys: &[Vec<u32>]) -> Result<()> {
        let contexts = self.contexts.borrow();
        contexts.get(&set).map_or(Ok(()), |(queues, direct)| self.prepare_set((queues, *direct), pe, rkeys))
    }

    fn prepare_set(&self, (queues, direct): (&QueueSet, bool), pe: u32, rkeys: &[Vec<u32>]) -> Result<()> {
        let (rails, me) = self.rails_of(direct);
        for (target, rkeys) in (0u32..).zip(rkeys) {
            let sender = rails.sender(me, pe as usize, target);
            let to_card = queues.to_card(pe, target);
            let uses: Vec<(u32, u32)> = to_card.flat_map(|qpn| rkeys.iter().map(move |rkey| (qpn, *rkey))).collect();
            self.cards[sender as usize].open.provider.prepare(&uses)?;
        }
        Ok(())
    }

    pub(crate) fn providers(&self) -> Vec<Arc<dyn Provider>> {
        distinct(self.cards.iter().map(|card| &card.open.provider))
    }

    /// Returns where dumps find the queue pairs, those of contexts too.
    pub(crate) fn places(&self) -> &Arc<QueuePlaces> {
        &self.places
    }

    /// Returns what does atomics.
    pub(crate) fn atomics(&self) -> Atomics {
        self.atomics
    }

    pub(crate) fn provider_name(&self) -> &'static str {
        self.cards[0].open.provider.info().provider
    }

    /// Returns what made a queue pair fail, if the HCA remembers.
    pub(crate) fn cause(&self, qpn: u32) -> Option<Cause> {
        let of_contexts = || self.contexts.borrow().values().find_map(|(queues, _)| queues.cause(&self.cards, qpn));
        self.queues.cause(&self.cards, qpn).or_else(of_contexts)
    }

    /// Returns the peers with a queue pair in error, and why, where the HCA remembers. Each queue
    /// pair is queried.
    pub(crate) fn lost(&self) -> Vec<(u32, String)> {
        let mut lost: BTreeMap<u32, String> = self.queues.lost(&self.cards).into_iter().collect();
        for (queues, _) in self.contexts.borrow().values() {
            for (pe, why) in queues.lost(&self.cards) {
                lost.entry(pe).or_insert(why);
            }
        }
        lost.into_iter().collect()
    }

    /// Returns what was tried in which way.
    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        let providers = self.providers();
        let of_card = |provider: &Arc<dyn Provider>| of_card(providers.len(), provider.as_ref(), provider.attempts());
        providers.iter().flat_map(of_card).chain(self.attempts.iter().cloned()).collect()
    }

    /// Returns what each queue pair has done, those of contexts too.
    pub(crate) fn qp_counts(&self) -> Result<Vec<QpCount>, DeviceError> {
        let mut counts = self.queues.counts(&self.cards, None)?;
        for (set, (queues, _)) in self.contexts.borrow().iter() {
            counts.extend(queues.counts(&self.cards, Some(*set))?);
        }
        Ok(counts)
    }

    /// Returns where the cards of all PEs are.
    pub(crate) fn rails(&self) -> &Rails {
        &self.rails
    }

    /// Returns the bytes of the staging rings of queue pairs to a PE, if they have such.
    pub(crate) fn staging_ring_bytes(&self, pe: u32) -> Option<u64> {
        let contexts = self.contexts.borrow();
        std::iter::once(&self.queues)
            .chain(contexts.values().map(|(queues, _)| queues))
            .find_map(|queues| queues.staging_ring_bytes(pe))
    }

    /// Returns the number of doorbells that device code has rung, on all queue pairs.
    pub(crate) fn doorbells(&self) -> Result<u64, DeviceError> {
        let of_contexts: u64 =
            self.contexts.borrow().values().map(|(queues, _)| queues.doorbells()).sum::<Result<u64, DeviceError>>()?;
        Ok(self.queues.doorbells()? + of_contexts)
    }

    /// Forgets which queue pairs were used, if all of a set are idle. No kernel may be posting
    /// meanwhile, unless it is a service's. `state` is what [`describe`](Self::describe) filled in.
    pub(crate) fn forget_idle(&self, state: &abi::State) -> Result<(), DeviceError> {
        // What a later quiet or fence has to read after is not idle, although it is complete.
        let flushed = state.flush_on_quiet != 0 || state.cards > 1;
        self.queues.forget_idle(flushed)?;
        self.contexts.borrow().values().try_for_each(|(queues, _)| queues.forget_idle(flushed))
    }
}

/// Returns where dumps find the queue pairs of a set.
fn place(queues: &QueueSet) -> QueuePlace {
    let entries = queues.layout().entries();
    QueuePlace { slab: Arc::clone(queues.slab()), at: queues.layout().places().0, entries }
}

/// Refuses peers whose memory the software HCA cannot reach: it has no other way there than the
/// device's own. Those of other nodes it reaches over TCP, or has refused before.
fn check_soft_reach(
    provider: &dyn Provider,
    (nodes, me): (&Nodes, usize),
    device: &dyn Device,
    devices: &[DeviceIdentity],
) -> Result<()> {
    let Some((pe, reason)) = unreached(nodes, me, |pe| device.reaches(&devices[pe])) else { return Ok(()) };
    let what = format!(
        "the software HCA moves data by loads and stores of the GPU, so it does not reach the memory of PE {pe} ({}) from {} either: \
         {reason}; run the PEs on GPUs with peer access (nvidia-smi topo -p2p r) or on one GPU, use a ConnectX card, or \
         OXSHMEM_DEVICE=cpu",
        devices[pe],
        device.identity()
    );
    Err(TransportError::Hca { device: provider.info().device.clone(), what }.into())
}

/// Returns the first PE of this PE's node whose device it does not reach, and why.
fn unreached(
    nodes: &Nodes,
    me: usize,
    reaches: impl Fn(usize) -> std::result::Result<(), String>,
) -> Option<(usize, String)> {
    let others = nodes.members(me).into_iter().filter(|pe| *pe != me);
    others.filter_map(|pe| reaches(pe).err().map(|reason| (pe, reason))).next()
}

/// Returns whether a fence of the device's scope orders the stores of its kernels to queues and
/// doorbells for what reads them: the card reads queues in the device's memory behind the stores
/// that have reached it. Queues in memory of the host need a fence of system scope, and so does a
/// CPU that rings, which sees a doorbell earlier than the card sees the queue.
fn is_ordered_by_device(in_device_memory: bool, way: Way) -> bool {
    in_device_memory && way != Way::Thread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_software_hca_is_refused_for_devices_of_the_node_alone() {
        let nodes = Nodes::by_name(&["a", "b", "a", "b"]);
        let reaches = |pe| if pe < 3 { Ok(()) } else { Err(format!("not {pe}")) };
        assert_eq!(unreached(&nodes, 0, reaches), None);
        assert_eq!(unreached(&nodes, 1, reaches), Some((3, "not 3".to_owned())));
    }

    #[test]
    fn queues_of_the_host_and_doorbells_of_a_thread_take_fences_of_the_system() {
        for (in_device_memory, way, expected) in [
            (true, Way::Mapped, true),
            (true, Way::Memory, true),
            (true, Way::Thread, false),
            (false, Way::Mapped, false),
            (false, Way::Memory, false),
            (false, Way::Thread, false),
        ] {
            assert_eq!(is_ordered_by_device(in_device_memory, way), expected, "{in_device_memory}, {way:?}");
        }
    }
}
