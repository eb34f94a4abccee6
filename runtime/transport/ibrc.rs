//! IBRC: a ring that device code writes descriptors into, and the proxy's thread, which posts them.
//!
//! The ring and all that goes with it lie in host memory that kernels reach
//! ([`oxshmem_proxy::block`]). What sets up queue pairs and registers memory is a [`Fabric`]; what
//! posts and polls is the [`Backend`] that it gives to the proxy.

use std::cell::RefCell;
use std::fmt::Debug;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use oxshmem_hca::objects::{Mkey, Pd, QpAddress, QpAttributes};
use oxshmem_hca::provider::{Attempt, Provider};
use oxshmem_hca::soft::doorbell_rung;
use oxshmem_hca::topology::{Distance, MAX_SENDERS};
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_proxy::block::{self, Block};
use oxshmem_proxy::devx::{QueueLayout, Queues};
use oxshmem_proxy::engine::{Engine, EngineOptions};
use oxshmem_proxy::parking::wake_sleepers;
use oxshmem_proxy::striping::{Striping, striped};
use oxshmem_proxy::thread::{Lost, Moment, Pace, Proxy};
use oxshmem_proxy::work::{Backend, Registered};
use oxshmem_system::words::count32;

use super::addresses::{self, Ends};
use super::atomics::Atomics;
use super::error::TransportError;
use super::fabric::{ChunkKeys, Fabric, Kind, Region, lkeys};
use super::opened::{OpenCard, Opened, are_connected, distinct, of_card, unordered};
use super::plan::Plan;
use super::push::Stance;
use super::qp_attributes::attributes;
use super::rails::Rails;
use super::receiving::Receiving;
use super::staging::{self, Bounce};
use super::verbs::VerbsFabric;
use crate::Result;
use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::config::{Choice, Config};
use crate::device::{Device, HostMemory};
use crate::dump::ring::RingPlace;
use crate::fault;
use crate::heap::SymmetricHeap;
use crate::memory::{MemoryBytes, MemoryKind, MemoryUse};
use crate::profile::counters::{QpCount, Traffic};
use crate::slab::{Layout, Offset, Slab};

/// log2 of the landing slots: enough for eight warps on each of four queues that fetch at a time.
const LOG_LANDING: u32 = 10;

/// Blocks of a send queue unless `OXSHMEM_QP_DEPTH` says otherwise: a thousand requests, which is
/// more than are on their way at a time.
const DEPTH: u32 = 2048;

/// How a proxy waits for work. Device code on the CPU wakes it, and needs the core that it spins
/// on; kernels of a GPU can not wake it, and wait as long as the longest nap.
const CPU_PACE: Pace = Pace { spin_passes: 64, longest_nap: Duration::from_millis(16) };
const GPU_PACE: Pace = Pace { spin_passes: 4096, longest_nap: Duration::from_millis(1) };

/// What of the proxy lies in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProxyLayout {
    proxy: Offset,
    laps: Offset,
}

impl ProxyLayout {
    pub(crate) fn new(layout: &mut Layout) -> Self {
        Self {
            proxy: layout.array(MemoryKind::Rings, 1, size_of::<abi::Proxy>() as u64),
            laps: layout.array(MemoryKind::Landing, 1, 4 << LOG_LANDING),
        }
    }
}

/// The network of a PE whose work requests the proxy posts.
#[derive(Debug)]
pub(crate) struct Ibrc {
    // Dropped in this order: the thread, what is registered, memory.
    proxy: Proxy,
    fabric: RefCell<Box<dyn Fabric>>,
    _block: Box<dyn HostMemory>,
    memory: MemoryUse,
    bounce: Option<Bounce>,
    /// How the card reads large puts.
    attempts: Vec<Attempt>,
    layout: ProxyLayout,
    options: EngineOptions,
    atomics: Atomics,
    qpns: Vec<u32>,
    slab_lkeys: [u32; MAX_SENDERS],
    /// Where the cards of all PEs are.
    rails: Rails,
}

impl Ibrc {
    /// Opens the card, connects to every other PE and starts the proxy. Collective.
    pub(crate) fn connect(
        config: &Config,
        (bootstrap, plan): (&Bootstrap, &Plan),
        device: &dyn Device,
        slab: &Slab,
        layout: ProxyLayout,
        opened: Option<Opened>,
    ) -> Result<Self> {
        let (me, n_pes, per_peer) = (bootstrap.rank(), bootstrap.size(), config.qps_per_peer());
        let block_layout =
            block::Layout { log_depth: config.proxy_ring().trailing_zeros(), log_landing: LOG_LANDING, n_pes };
        let striping =
            opened.as_ref().map_or(Striping::new(per_peer, 1), |opened| striping(config, opened, (me, n_pes)));
        // Before the fabric, which they have to outlive, even when something fails.
        let memory = device.host_memory(block_layout.bytes())?;
        let bounce;
        let rails = opened.as_ref().map(|opened| opened.rails.clone()).unwrap_or_default();
        let (mut fabric, atomics) = open(config, (bootstrap, plan), device, opened, &striping)?;
        let own = fabric.has_own();
        let count = (n_pes - u32::from(!own)) * per_peer;
        let base = memory.address() as u64;

        let landing = Region {
            memory: None,
            device: None,
            address: base + block_layout.landing(),
            bytes: block_layout.landing_bytes(),
            iova: base + block_layout.landing(),
            kind: Kind::Library,
            remote: false,
        };
        let landing_keys = lkeys(&fabric.register(&landing)?);
        let whole = slab.address(Offset(0));
        let region = Region {
            memory: slab.memory(),
            device: device.exporter(),
            address: whole,
            bytes: slab.bytes(),
            iova: whole,
            kind: Kind::Library,
            remote: false,
        };
        let slab_lkeys = lkeys(&fabric.register(&region)?);
        let (staged, attempts) = staging::set_up(config, device, fabric.as_mut(), me)?;
        let copier;
        (bounce, copier) = staged.unzip();
        if let Some(bounce) = &bounce {
            bounce.sources.add(&region, slab_lkeys);
        }
        let options = EngineOptions {
            me,
            own,
            n_pes,
            striping,
            window: config.proxy_ring() as usize,
            landing: Registered { address: landing.address, length: 0, keys: landing_keys },
            slots: 1 << LOG_LANDING,
            staging: bounce.as_ref().map(|bounce| bounce.staging),
        };
        exchange(fabric.as_mut(), (bootstrap, &rails), &options)?;

        let backend = fabric.backend()?;
        let qpns: Vec<u32> = (0..count).map(|qp| fabric.qpn(qp)).collect();
        let mut used = fabric.memory_use();
        used.add(MemoryKind::Landing, MemoryBytes::host(block_layout.landing_bytes()));
        used.add(MemoryKind::Rings, MemoryBytes::host(memory.bytes() - block_layout.landing_bytes()));
        used.add(MemoryKind::Staging, MemoryBytes::host(bounce.as_ref().map_or(0, Bounce::bytes)));
        let engine = Engine::new(options.clone(), *backend.capabilities());
        slab.write(layout.proxy, 0, &describe(slab, layout, base, block_layout))?;
        device.set_doorbell_hook(wake_sleepers);
        let pace = if device.gpu().is_some() { GPU_PACE } else { CPU_PACE };
        // SAFETY: the memory is a field after the proxy, is zero, and only device code, the card
        // and this use it.
        let block = unsafe { Block::new(memory.address(), block_layout) };
        let proxy = Proxy::start(block, engine, backend, copier, qpns.clone(), pace)
            .map_err(|source| TransportError::ProxyThread { source })?;
        if config.profile().trace {
            proxy.record_moments(config.profile_records() as usize);
        }
        Ok(Self {
            proxy,
            fabric: RefCell::new(fabric),
            _block: memory,
            memory: used,
            bounce,
            attempts,
            layout,
            options,
            atomics,
            qpns,
            slab_lkeys,
            rails,
        })
    }

    /// Fills in what device code needs to know.
    pub(crate) fn describe(&self, slab: &Slab, state: &mut abi::State) {
        state.network = abi::Network::Ibrc as u32;
        state.qps_per_pe = self.options.striping.per_peer();
        state.cards = self.options.striping.targets();
        self.atomics.tell(state.cards, state);
        state.inline_up_to = abi::INLINE_ONE_BLOCK;
        state.slab_lkeys = self.slab_lkeys.map(u32::to_be);
        state.proxy = slab.address(self.layout.proxy);
    }

    /// Returns what is allocated beside the slab.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        self.memory
    }

    /// Returns what does atomics.
    pub(crate) fn atomics(&self) -> Atomics {
        self.atomics
    }

    /// Registers chunk `index` of the heap with each card; its addresses on the wire are offsets in
    /// the heap.
    pub(crate) fn register(&self, device: &dyn Device, heap: &SymmetricHeap, index: usize) -> Result<Vec<ChunkKeys>> {
        let bytes = heap.layout().chunk;
        let offset = index as u64 * bytes;
        let memory = Some(heap.chunks()[index].memory.as_fd());
        let device = device.exporter();
        let (address, kind) = (heap.base() + offset, Kind::Library);
        let region = Region { memory, device, kind, address, bytes, iova: offset, remote: true };
        let keys = self.fabric.borrow_mut().register(&region)?;
        if let Some(bounce) = &self.bounce {
            bounce.sources.add(&region, lkeys(&keys));
        }
        Ok(keys)
    }

    /// Registers memory of the program with each card; the keys by card.
    pub(crate) fn register_program(&self, region: &Region<'_>) -> Result<Vec<ChunkKeys>> {
        let keys = self.fabric.borrow_mut().register(region)?;
        if let Some(bounce) = &self.bounce {
            bounce.sources.add(region, lkeys(&keys));
        }
        Ok(keys)
    }

    /// Ends a registration of memory of the program.
    pub(crate) fn forget_program(&self, keys: &[ChunkKeys]) -> Result<()> {
        if let Some(bounce) = &self.bounce {
            bounce.sources.remove(keys.iter().map(|keys| keys.lkey));
        }
        self.fabric.borrow_mut().forget(keys)
    }

    /// Makes the cards ready for keys of a peer's chunks, by card of the peer.
    pub(crate) fn prepare(&self, pe: u32, rkeys: &[Vec<u32>]) -> Result<()> {
        let EngineOptions { me, striping, .. } = &self.options;
        if pe == *me {
            return Ok(());
        }
        (0..striping.per_peer()).filter_map(|i| self.options.qp(pe, i)).try_for_each(|qp| {
            let rkeys = rkeys.get(striping.target(qp) as usize).map_or(&[][..], Vec::as_slice);
            self.fabric.borrow().prepare(qp, rkeys)
        })
    }

    pub(crate) fn provider_name(&self) -> &'static str {
        self.fabric.borrow().name()
    }

    pub(crate) fn providers(&self) -> Vec<Arc<dyn Provider>> {
        self.fabric.borrow().providers()
    }

    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        [self.fabric.borrow().attempts(), self.attempts.clone()].concat()
    }

    /// Returns what the card says about the failure of a queue pair.
    pub(crate) fn explanation(&self, qpn: u32) -> Option<String> {
        let qp = count32(self.qpns.iter().position(|known| *known == qpn)?);
        let pe = self.options.peer(qp);
        self.proxy.lost().into_iter().find(|lost| lost.pe == pe)?.reason
    }

    /// Returns the peers that are lost, and why.
    pub(crate) fn lost(&self) -> Vec<(u32, String)> {
        let why = |lost: Lost| {
            let reason = lost.reason.map_or_else(String::new, |reason| format!(": {reason}"));
            (lost.pe, fault::syndrome(lost.syndrome) + &reason)
        };
        self.proxy.lost().into_iter().map(why).collect()
    }

    /// Returns where dumps find the ring. `slab` is the PE's.
    pub(crate) fn place(&self, slab: &Arc<Slab>) -> RingPlace {
        RingPlace { slab: Arc::clone(slab), at: self.layout.proxy, proxy: self.proxy.observer() }
    }

    pub(crate) fn proxy(&self) -> oxshmem_proxy::thread::Counters {
        self.proxy.counters()
    }

    /// Returns what the proxy has done on each queue pair.
    pub(crate) fn qp_counts(&self) -> Vec<QpCount> {
        let striping = &self.options.striping;
        let lost = self.proxy.lost();
        let count = |(qp, qpn): (u32, &u32)| {
            let pe = self.options.peer(qp);
            QpCount {
                qpn: *qpn,
                pe: pe as usize,
                card: striping.card(qp),
                context_set: None,
                receives_only: false,
                blocks: None,
                broken: lost.iter().any(|lost| lost.pe == pe),
                staged: (0, 0),
                traffic: self.proxy.queue_counters(qp).map(Traffic::from).unwrap_or_default(),
            }
        };
        let receiving = self.fabric.borrow().receives();
        (0..).zip(&self.qpns).map(count).chain(receiving).collect()
    }

    /// Returns where the cards of all PEs are.
    pub(crate) fn rails(&self) -> &Rails {
        &self.rails
    }

    /// Returns when descriptors were posted and done, and how many older moments were forgotten.
    pub(crate) fn moments(&self) -> (Vec<Moment>, u64) {
        self.proxy.moments()
    }

    pub(crate) fn wake(&self) {
        self.proxy.wake();
    }
}

fn describe(slab: &Slab, layout: ProxyLayout, base: u64, block: block::Layout) -> abi::Proxy {
    abi::Proxy {
        slots: base,
        taken_word: base + block.taken(),
        completed_word: base + block.completed(),
        acknowledgements: base + block.acknowledgements(),
        landing: base + block.landing(),
        faults: base + block.faults(),
        laps: slab.address(layout.laps),
        depth_log2: block.log_depth,
        landing_log2: block.log_landing,
        ..abi::Proxy::default()
    }
}

/// Returns how the queue pairs of a PE are spread over its cards.
fn striping(config: &Config, opened: &Opened, (me, n_pes): (u32, u32)) -> Striping {
    let striping = opened.striping(config);
    if !opened.rails.is_pushing() {
        return striping;
    }
    // In the order of dense indices.
    let peers = (0..n_pes).filter(|pe| *pe != me).chain(opened.atomics.by_card.then_some(me));
    let senders: Vec<u32> = peers
        .flat_map(|pe| (0..striping.per_peer()).map(move |i| (pe, i)))
        .map(|(pe, i)| opened.rails.sender(me as usize, pe as usize, striping.target(i)))
        .collect();
    striping.push(count32(opened.cards.len()), senders)
}

/// Tells every PE the addresses of the queue pairs to it, and connects to those it has for this
/// one. Collective.
fn exchange(fabric: &mut dyn Fabric, (bootstrap, rails): (&Bootstrap, &Rails), options: &EngineOptions) -> Result<()> {
    let EngineOptions { me, n_pes, ref striping, .. } = *options;
    let ports = addresses::exchange_ports(bootstrap, rails, &fabric.ports())?;
    let mut mine = Vec::new();
    for (pe, i) in (0..n_pes).flat_map(|pe| (0..striping.per_peer()).map(move |i| (pe, i))) {
        let sends = options.qp(pe, i).map_or(0, |qp| fabric.qpn(qp));
        addresses::append_numbers(rails, &mut mine, (sends, fabric.qpn_of_receiver(pe, i)));
    }
    let numbers = bootstrap.alltoall("numbers of queue pairs", &mine)?;
    let targets: Vec<u32> = (0..striping.per_peer()).map(|i| striping.target(i)).collect();
    let (mut sending, mut receiving) = (Vec::new(), Vec::new());
    for ((pe, ports), numbers) in (0u32..).zip(&ports).zip(&numbers) {
        let ends = addresses::ends(rails, (me as usize, pe as usize), ports, numbers, &targets)?;
        for (i, Ends { to, from }) in (0u32..).zip(ends) {
            sending.extend(options.qp(pe, i).map(|qp| (qp, to)));
            receiving.extend(from.map(|from| (pe, i, from)));
        }
    }
    let in_order = fabric.connect(&sending, &receiving)?;
    if !are_connected(bootstrap, in_order)? {
        fabric.order_strongly();
    }
    Ok(())
}

/// Opens the card that the configuration asks for, with the queue pairs to every other PE, and
/// agrees on what does atomics. Collective.
fn open(
    config: &Config,
    (bootstrap, plan): (&Bootstrap, &Plan),
    device: &dyn Device,
    opened: Option<Opened>,
    striping: &Striping,
) -> Result<(Box<dyn Fabric>, Atomics)> {
    let peers = bootstrap.size() - 1;
    // What waits for a free place waits in the engine. Queues that fit the cache of the proxy's
    // core are filled faster.
    let depth = match config.qp_depth() {
        Choice::Given(depth) => depth,
        Choice::Auto => config.send_queue_depth(bootstrap.size()).min(DEPTH),
    };
    match opened {
        None => {
            let fabric = VerbsFabric::open(config, bootstrap, &plan.nodes, device, peers * striping.per_peer(), depth)?;
            let stance = Stance::direct(config);
            let (atomics, told) =
                Atomics::agree(config, bootstrap, fabric.is_coherent() && plan.shares_atomics, stance.bits())?;
            stance.settle(&told)?;
            Ok((Box::new(fabric), atomics))
        }
        Some(opened) => {
            let (own, fence) = (opened.atomics.by_card, opened.order(config).fence);
            let peers = peers + u32::from(own);
            let me = bootstrap.rank() as usize;
            let rows = (0..bootstrap.size()).filter(|pe| opened.rails.are_apart(me, *pe as usize)).map(|pe| (pe, pe));
            let rows: Vec<_> = rows.collect();
            let open =
                |(number, card)| DevxFabric::new(config, device, card, fence, (striping.on(number, peers), depth));
            let cards = (0u32..).zip(opened.cards).map(open).collect::<Result<Vec<_>>>()?;
            let domains: Vec<_> = cards.iter().map(|card| (&card.pd, card.open.log_max_rd_atomic)).collect();
            let targets: Vec<u32> = (0..striping.per_peer()).map(|i| striping.target(i)).collect();
            let receiving = Receiving::create(device, &domains, rows.into_iter(), &targets)?;
            let striping = striping.clone();
            let fabric = StripedFabric { cards, receiving, striping, own, attempts: opened.attempts };
            Ok((Box::new(fabric), opened.atomics))
        }
    }
}

/// Queue pairs that are spread over cards, all of which DevX commands set up.
#[derive(Debug)]
struct StripedFabric {
    // Dropped before the cards.
    receiving: Receiving,
    cards: Vec<DevxFabric>,
    striping: Striping,
    own: bool,
    attempts: Vec<Attempt>,
}

impl StripedFabric {
    /// Returns the card of a queue pair, and its index there.
    fn place(&self, qp: u32) -> (&DevxFabric, u32) {
        let (card, index) = self.striping.place(qp);
        (&self.cards[card as usize], index)
    }
}

impl Fabric for StripedFabric {
    fn name(&self) -> &'static str {
        self.cards[0].open.provider.info().provider
    }

    fn has_own(&self) -> bool {
        self.own
    }

    fn distance(&self) -> Option<Distance> {
        self.cards.iter().filter_map(|card| Some(card.open.chosen.as_ref()?.distance)).max()
    }

    fn register(&mut self, region: &Region<'_>) -> Result<Vec<ChunkKeys>> {
        let mut keys = Vec::new();
        for card in 0..self.cards.len() {
            match self.cards[card].register(region) {
                Ok(registered) => keys.push(registered),
                Err(error) => {
                    // What the other cards have is of no use without this one.
                    self.forget(&keys)?;
                    return Err(error);
                }
            }
        }
        Ok(keys)
    }

    fn forget(&mut self, keys: &[ChunkKeys]) -> Result<()> {
        self.cards.iter_mut().zip(keys).try_for_each(|(card, keys)| card.forget(keys))
    }

    fn ports(&self) -> Vec<QpAddress> {
        self.cards.iter().map(|card| card.open.port(&card.config)).collect()
    }

    fn connect(&mut self, peers: &[(u32, QpAddress)], receiving: &[(u32, u32, QpAddress)]) -> Result<bool> {
        if let Some(card) = self.cards.first() {
            self.receiving.connect(&card.config, receiving)?;
        }
        let mut by_card = vec![Vec::new(); self.cards.len()];
        for (qp, address) in peers {
            let (card, index) = self.striping.place(*qp);
            let OpenCard { log_max_rd_atomic, .. } = self.cards[card as usize].open;
            let attributes = attributes(&self.cards[card as usize].config, log_max_rd_atomic, *qp);
            by_card[card as usize].push((index, *address, attributes));
        }
        let mut in_order = true;
        for (card, peers) in self.cards.iter_mut().zip(&by_card) {
            in_order &= card.connect(peers)?;
        }
        Ok(in_order)
    }

    fn order_strongly(&mut self) {
        self.cards.iter_mut().filter_map(|card| card.queues.as_mut()).for_each(Queues::order_strongly);
        let found = unordered();
        tracing::info!("{found}");
        self.attempts.push(found);
    }

    fn qpn(&self, qp: u32) -> u32 {
        let (card, index) = self.place(qp);
        card.qpns.get(index as usize).copied().unwrap_or(0)
    }

    fn qpn_of_receiver(&self, pe: u32, column: u32) -> u32 {
        self.receiving.qpn(pe, column)
    }

    fn receives(&self) -> Vec<QpCount> {
        self.receiving.counts(None)
    }

    fn prepare(&self, qp: u32, rkeys: &[u32]) -> Result<()> {
        let uses: Vec<(u32, u32)> = rkeys.iter().map(|rkey| (self.qpn(qp), *rkey)).collect();
        Ok(self.place(qp).0.open.provider.prepare(&uses)?)
    }

    fn backend(&mut self) -> Result<Box<dyn Backend>> {
        let backends = self.cards.iter_mut().map(DevxFabric::backend).collect::<Result<Vec<_>>>()?;
        striped(self.striping.clone(), backends).ok_or_else(|| self.cards[0].gone())
    }

    fn attempts(&self) -> Vec<Attempt> {
        let providers = self.providers();
        let of_card = |provider: &Arc<dyn Provider>| of_card(providers.len(), provider.as_ref(), provider.attempts());
        providers.iter().flat_map(of_card).chain(self.attempts.iter().cloned()).collect()
    }

    fn memory_use(&self) -> MemoryUse {
        let mut memory = self.receiving.memory_use();
        self.cards.iter().for_each(|card| memory += card.used);
        memory
    }

    fn providers(&self) -> Vec<Arc<dyn Provider>> {
        distinct(self.cards.iter().map(|card| &card.open.provider))
    }
}

/// Queue pairs in host memory of one card.
#[derive(Debug)]
struct DevxFabric {
    // Dropped in this order: what uses memory, then memory.
    queues: Option<Queues>,
    keys: Vec<Mkey>,
    pd: Arc<Pd>,
    open: OpenCard,
    memory: Arc<dyn HostMemory>,
    used: MemoryUse,
    qpns: Vec<u32>,
    config: Config,
}

/// The queue pairs with the memory that their queues lie in.
struct OwnedQueues {
    queues: Queues,
    _memory: Arc<dyn HostMemory>,
}

impl DevxFabric {
    fn new(
        config: &Config,
        device: &dyn Device,
        open: OpenCard,
        fence: Fence,
        (count, depth): (u32, u32),
    ) -> Result<Self> {
        let layout = QueueLayout { count, log_depth: depth.trailing_zeros() };
        let pd = Pd::alloc(&open.provider)?;
        let memory: Arc<dyn HostMemory> = Arc::from(device.host_memory(layout.bytes())?);
        let extended = open.extended_atomics;
        // SAFETY: the owner of the queues owns the memory, and drops it after them.
        let queues = unsafe { Queues::create(&pd, memory.address(), layout, extended, fence, doorbell_rung) }?;
        let mut used = MemoryUse::default();
        used.add(MemoryKind::Records, MemoryBytes::host(layout.record_bytes()));
        used.add(MemoryKind::Queues, MemoryBytes::host(memory.bytes() - layout.record_bytes()));
        let qpns = (0..count).filter_map(|qp| queues.qpn(qp)).collect();
        Ok(Self { queues: Some(queues), keys: Vec::new(), pd, open, memory, used, qpns, config: config.clone() })
    }

    /// Connects queue pairs, each to a peer's. Returns whether they deliver in order.
    fn connect(&self, peers: &[(u32, QpAddress, QpAttributes)]) -> Result<bool> {
        let Some(queues) = &self.queues else { return Err(self.gone()) };
        Ok(queues.connect(peers)?)
    }

    fn gone(&self) -> crate::Error {
        let what = "its queue pairs are in use".to_owned();
        TransportError::Hca { device: self.open.provider.info().device.clone(), what }.into()
    }

    /// Ends a registration.
    fn forget(&mut self, keys: &ChunkKeys) -> Result<()> {
        match self.keys.iter().position(|key| key.lkey() == keys.lkey) {
            Some(found) => Ok(self.keys.swap_remove(found).close()?),
            None => Ok(()),
        }
    }

    /// Registers memory until it is forgotten or this is dropped, which the memory outlives.
    fn register(&mut self, region: &Region<'_>) -> Result<ChunkKeys> {
        let (source, access) = region.source();
        // SAFETY: what is registered outlives the fabric (see `Fabric::register`), and is used
        // through raw pointers only.
        let key = unsafe { Mkey::register(&self.pd, source, None, region.iova, access) }?;
        let keys = ChunkKeys { lkey: key.lkey(), rkey: key.rkey() };
        self.keys.push(key);
        Ok(keys)
    }

    /// Gives the queue pairs away, once.
    fn backend(&mut self) -> Result<Box<dyn Backend>> {
        let queues = self.queues.take().ok_or_else(|| self.gone())?;
        Ok(Box::new(OwnedQueues { queues, _memory: Arc::clone(&self.memory) }))
    }
}

impl Backend for OwnedQueues {
    fn capabilities(&self) -> &oxshmem_proxy::work::Capabilities {
        self.queues.capabilities()
    }

    fn post(
        &mut self,
        qp: u32,
        requests: &[oxshmem_proxy::work::WorkRequest],
    ) -> std::result::Result<(), oxshmem_proxy::work::PostError> {
        self.queues.post(qp, requests)
    }

    fn announce(&self) {
        self.queues.announce();
    }

    fn poll(
        &mut self,
        completions: &mut Vec<oxshmem_proxy::work::Completion>,
    ) -> std::result::Result<(), oxshmem_proxy::work::PollError> {
        self.queues.poll(completions)
    }

    fn status(&self) -> String {
        self.queues.status()
    }

    fn explain(&self, qp: u32) -> Option<String> {
        self.queues.explain(qp)
    }
}
