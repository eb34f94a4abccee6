//! IBGDA: queue pairs in the slab, which device code fills and rings.
//!
//! Per PE there is one slab (per card one umem, one key) that holds every send queue, doorbell
//! record, CQE and [`abi::Qp`]. Each queue pair has a collapsed CQ. Set-up speaks PRM commands to
//! [`Provider`]s, whichever they are.

use std::cell::RefCell;
use std::sync::Arc;

use oxshmem_hca::objects::{Cq, CqAttributes, Doorbell, Mkey, Pd, Qp, QpAddress, QpGeometry, Uar, Umem};
use oxshmem_hca::prm::qpc::QpState;
use oxshmem_hca::provider::{Access, Attempt, Provider, UmemSource};
use oxshmem_hca::soft::doorbell_rung;
use oxshmem_hca::wire::{cqe, dbr};
use oxshmem_proxy::striping::Striping;
use oxshmem_system::side_by_side::side_by_side;
use oxshmem_system::words::{count32, low8, low32};

use super::atomics::Atomics;
use super::doorbell::{self, Ringing, Way};
use super::error::TransportError;
use super::fabric::ChunkKeys;
use super::hca::{OpenCard, Opened, Order, of_card};
use super::qp_attributes::attributes;
use crate::Result;
use crate::abi::{self, BLOCK_BYTES, LANDING_BYTES, LINE_BYTES};
use crate::bootstrap::Bootstrap;
use crate::config::{self, Config};
use crate::device::{Device, DeviceError};
use crate::fault::{self, Cause};
use crate::heap::SymmetricHeap;
use crate::slab::{Layout, Offset, Slab};

/// A collapsed CQ uses its first entry alone; two is the least that drivers create.
const LOG_CQ_SIZE: u8 = 1;

/// Bytes of a queue pair's number where PEs tell it to each other.
const QPN_BYTES: usize = 3;

/// log2 of the most and of the fewest landing slots of a QP: enough for eight warps that fetch at a
/// time, and for two.
const LOG_LANDING: (u32, u32) = (8, 6);

/// Where the queues are in the slab. QPs are numbered by peer, then by index among those to that
/// peer; the device's array has entries for this PE too, which stay zero unless this PE's atomics
/// on its own memory go through the card.
#[derive(Debug, Clone)]
pub(crate) struct QueueLayout {
    me: u32,
    n_pes: u32,
    /// Whether there are queues from this PE to itself.
    own: bool,
    per_peer: u32,
    log_depth: u32,
    log_landing: u32,
    qps: Offset,
    used: Offset,
    cqs: Offset,
    cq_records: Offset,
    records: Offset,
    queues: Offset,
    stamps: Offset,
    landing: Offset,
    laps: Offset,
}

impl QueueLayout {
    pub(crate) fn new(layout: &mut Layout, config: &Config, (me, n_pes): (u32, u32), own: bool) -> Self {
        let per_peer = config.qps_per_peer();
        let depth = u64::from(config.send_queue_depth(n_pes));
        // Where there are so many QPs that their queues are short, few threads fetch through one of
        // them.
        let (most, fewest) = LOG_LANDING;
        let log_landing = depth.trailing_zeros().saturating_sub(3).clamp(fewest, most);
        let all = u64::from(n_pes * per_peer);
        let real = u64::from((n_pes - u32::from(!own)) * per_peer);
        Self {
            me,
            n_pes,
            own,
            per_peer,
            log_depth: depth.trailing_zeros(),
            log_landing,
            qps: layout.array(all, size_of::<abi::Qp>() as u64),
            used: layout.array(all.div_ceil(64), 8),
            cqs: layout.array(real, BLOCK_BYTES << LOG_CQ_SIZE),
            cq_records: layout.array(real, LINE_BYTES),
            records: layout.array(real, LINE_BYTES),
            queues: layout.array(real, depth * BLOCK_BYTES),
            stamps: layout.array(real, depth * 4),
            landing: layout.array(real, landing_bytes(log_landing)),
            laps: layout.array(real, 4 << log_landing),
        }
    }

    /// The PEs that there are queues to, each with the position of its first queue.
    fn peers(&self) -> impl Iterator<Item = (u32, u32)> {
        let (me, own, per_peer) = (self.me, self.own, self.per_peer);
        (0..self.n_pes).filter(move |pe| own || *pe != me).zip(0u32..).map(move |(pe, i)| (pe, i * per_peer))
    }
}

/// Slots, and one more for results that are not needed; whole lines.
const fn landing_bytes(log_landing: u32) -> u64 {
    ((1u64 << log_landing) + 1).next_multiple_of(LINE_BYTES / LANDING_BYTES) * LANDING_BYTES
}

fn at(array: Offset, index: u32, stride: u64) -> Offset {
    Offset(array.0 + u64::from(index) * stride)
}

/// The network of a PE: open cards, and a queue pair or several to every other PE.
#[derive(Debug)]
pub(crate) struct Ibgda {
    queue_pairs: QueuePairs,
    // Behind the queue pairs, which use its pages.
    _ringing: Ringing,
    cards: Vec<Card>,
    striping: Striping,
    atomics: Atomics,
    /// The fence modes of signals after their data, and of the first request after a fence.
    order: Order,
    /// Whether what reads the queues sees what has reached the GPU's memory, where they are.
    in_device_memory: bool,
    /// What was tried on the way, apart from what the cards themselves tried.
    attempts: Vec<Attempt>,
    queues: QueueLayout,
}

/// Queue pairs, each with a completion queue of its own.
#[derive(Debug)]
struct QueuePairs {
    pairs: Vec<Qp>,
    /// Commands that are worth giving at a time.
    commands: usize,
}

impl Drop for QueuePairs {
    fn drop(&mut self) {
        // A pair that cannot be destroyed reports that when it is dropped below.
        let _ = side_by_side(&self.pairs, self.commands, |qp| qp.close().and_then(|()| qp.cq().close()));
    }
}

/// A card, and what is registered with it.
#[derive(Debug)]
struct Card {
    // Dropped in this order.
    chunks: RefCell<Vec<Mkey>>,
    slab_key: Mkey,
    umem: Arc<Umem>,
    pd: Arc<Pd>,
    open: OpenCard,
}

impl Card {
    /// Registers the slab with a card.
    fn new(open: OpenCard, device: &dyn Device, slab: &Slab) -> Result<Self> {
        let pd = Pd::alloc(&open.provider)?;
        let base = slab.address(Offset(0));
        let (len, addr) = (usize::try_from(slab.bytes()).unwrap_or(usize::MAX), base as *mut u8);
        let source = match slab.memory() {
            Some(fd) => UmemSource::Fd { fd, offset: 0, len, addr, device: device.exporter() },
            None => UmemSource::Host { addr, len },
        };
        // SAFETY: the slab outlives this object (see `Pe`), and is used through raw pointers only.
        let umem = unsafe { Umem::register(&open.provider, source, Access::LOCAL) }?;
        // SAFETY: as above.
        let slab_key = unsafe { Mkey::register(&pd, source, Some(&umem), base, Access::LOCAL) }?;
        Ok(Self { chunks: RefCell::default(), slab_key, umem, pd, open })
    }
}

impl Ibgda {
    /// Creates the queue pairs on an open HCA and connects them. `devices` says what every PE's
    /// device is. Collective.
    pub(crate) fn connect(
        config: &Config,
        bootstrap: &Bootstrap,
        (device, devices): (&dyn Device, &[String]),
        slab: &Slab,
        queues: QueueLayout,
        opened: Opened,
    ) -> Result<Self> {
        if opened.provider_name() == "soft" && *config.hca() != config::Hca::Null {
            check_soft_reach(opened.cards[0].provider.as_ref(), bootstrap, device, devices)?;
        }
        match opened.way {
            Way::Memory => device.set_doorbell_hook(doorbell_rung),
            Way::Thread => device.set_doorbell_hook(doorbell::announce),
            Way::Mapped => {}
        }

        let striping = opened.striping(config);
        let order = opened.order(config);
        let Opened { cards, atomics, way, attempts, .. } = opened;
        let cards = cards.into_iter().map(|card| Card::new(card, device, slab)).collect::<Result<Vec<_>>>()?;
        let count = count32(queues.peers().count()) * queues.per_peer;
        let mut ringing = Ringing::new(cards.iter().map(|card| &card.open.provider), way, device, count)?;
        let mut places = Vec::new();
        for (pe, first) in queues.peers() {
            for i in 0..queues.per_peer {
                let index = first + i;
                let card = striping.card(index) as usize;
                let Card { pd, umem, .. } = &cards[card];
                let (Doorbell { uar, .. }, doorbell) = ringing.give(device, card)?;
                places.push(PlacedQp { pd, umem, uar, index, pe, position: pe * queues.per_peer + i, doorbell });
            }
        }
        slab.fill(queues.cqs, u64::from(count) * (BLOCK_BYTES << LOG_CQ_SIZE), cqe::INITIAL_BYTE)?;
        let commands = cards.iter().map(|card| card.open.provider.info().commands_at_a_time).max().unwrap_or(1);
        let pairs = side_by_side(&places, commands, |place| place.create(&queues))?;
        let queue_pairs = QueuePairs { pairs, commands };
        let mut described = vec![abi::Qp::default(); (queues.n_pes * queues.per_peer) as usize];
        for (place, qp) in places.iter().zip(&queue_pairs.pairs) {
            described[place.position as usize] = place.describe(slab, &queues, qp);
        }
        slab.write_all(queues.qps, &described)?;
        ringing.start(device)?;

        // A CPU that rings sees a doorbell earlier than the card sees the queue, unless a fence of
        // system scope lies between.
        let in_device_memory = device.gpu().is_some() && way != Way::Thread;
        let connected = Self {
            queue_pairs,
            _ringing: ringing,
            cards,
            striping,
            atomics,
            order,
            in_device_memory,
            attempts,
            queues,
        };
        connected.exchange(config, bootstrap)?;
        Ok(connected)
    }

    /// Tells every PE the addresses of the queue pairs to it, and connects to those it has for this
    /// one. The ports are told to all, once for each card, and a PE gets only the numbers of the
    /// queue pairs that lead to it: 34 bytes and 3 for each queue pair, from every PE.
    fn exchange(&self, config: &Config, bootstrap: &Bootstrap) -> Result<()> {
        let QueueLayout { per_peer, n_pes, .. } = self.queues;
        let ports: Vec<u8> =
            self.cards.iter().flat_map(|card| card.open.provider.info().address().to_bytes()).collect();
        let ports = bootstrap.allgather("addresses of ports", &ports)?;
        let share = per_peer as usize * QPN_BYTES;
        let mut mine = vec![0; n_pes as usize * share];
        for (pe, to_peer) in self.peers() {
            for (qp, room) in to_peer.iter().zip(mine[pe as usize * share..].chunks_exact_mut(QPN_BYTES)) {
                room.copy_from_slice(&qp.qpn().to_le_bytes()[..QPN_BYTES]);
            }
        }
        let numbers = bootstrap.alltoall("numbers of queue pairs", &mine)?;
        let mut connections = Vec::new();
        for (pe, first) in self.queues.peers() {
            let unreadable = || TransportError::Address { pe: pe as usize };
            let ports = ports[pe as usize].chunks(QpAddress::BYTES).map(QpAddress::from_bytes);
            let ports = ports.collect::<Result<Vec<_>, _>>()?;
            let (numbers, []) = numbers[pe as usize].as_chunks::<QPN_BYTES>() else { return Err(unreadable().into()) };
            if (ports.len(), numbers.len()) != (self.cards.len(), per_peer as usize) {
                return Err(unreadable().into());
            }
            for (i, number) in (0..per_peer).zip(numbers) {
                let qpn = u32::from_le_bytes([number[0], number[1], number[2], 0]);
                let address = QpAddress { qpn, ..ports[self.striping.card(i) as usize] };
                let index = first + i;
                let log_max_rd_atomic = self.card(index).open.log_max_rd_atomic;
                connections.push((index, address, attributes(config, log_max_rd_atomic, index)));
            }
        }
        let QueuePairs { pairs, commands } = &self.queue_pairs;
        side_by_side(&connections, *commands, |(index, address, attributes)| {
            pairs[*index as usize].connect(address, attributes)
        })?;
        // No PE posts before the other end is ready to receive.
        Ok(bootstrap.barrier("queue pairs connected")?)
    }

    /// The card of a queue pair.
    fn card(&self, index: u32) -> &Card {
        &self.cards[self.striping.card(index) as usize]
    }

    /// The PEs that there are queue pairs to, each with those.
    fn peers(&self) -> impl Iterator<Item = (u32, &[Qp])> {
        let each = self.queue_pairs.pairs.chunks_exact(self.queues.per_peer as usize);
        self.queues.peers().zip(each).map(|((pe, _), to_peer)| (pe, to_peer))
    }

    /// Fills in what device code needs to know.
    pub(crate) fn describe(&self, slab: &Slab, state: &mut abi::State) {
        state.network = abi::Network::Ibgda as u32;
        state.qps = slab.address(self.queues.qps);
        state.qps_per_pe = self.queues.per_peer;
        state.used = slab.address(self.queues.used);
        state.cards = self.striping.cards();
        for (key, card) in state.slab_lkeys.iter_mut().zip(&self.cards) {
            *key = card.slab_key.lkey().to_be();
        }
        self.atomics.tell(state.cards, state);
        (state.signal_order, state.fence_order) = (self.order.signal.bits().into(), self.order.fence.bits().into());
        state.queues_in_device_memory = u32::from(self.in_device_memory);
    }

    /// Registers chunk `index` of the heap with each card; its addresses on the wire are offsets in
    /// the heap.
    pub(crate) fn register(&self, device: &dyn Device, heap: &SymmetricHeap, index: usize) -> Result<Vec<ChunkKeys>> {
        use std::os::fd::AsFd;
        let chunk = heap.layout().chunk;
        let offset = index as u64 * chunk;
        let source = UmemSource::Fd {
            fd: heap.chunks()[index].memory.as_fd(),
            offset: 0,
            len: usize::try_from(chunk).unwrap_or(usize::MAX),
            addr: (heap.base() + offset) as *mut u8,
            device: device.exporter(),
        };
        let with = |card: &Card| {
            // SAFETY: the heap outlives this object (see `Pe`), and is used through raw pointers
            // only.
            let key = unsafe { Mkey::register(&card.pd, source, None, offset, Access::ALL) }?;
            let keys = ChunkKeys { lkey: key.lkey(), rkey: key.rkey() };
            card.chunks.borrow_mut().push(key);
            Ok(keys)
        };
        self.cards.iter().map(with).collect()
    }

    /// Makes the cards ready for keys of a peer's chunks, so that no kernel has to wait for that.
    /// They are in host byte order, by card.
    pub(crate) fn prepare(&self, pe: u32, rkeys: &[Vec<u32>]) -> Result<()> {
        let Some((_, to_peer)) = self.peers().find(|(peer, _)| *peer == pe) else { return Ok(()) };
        for ((number, card), rkeys) in (0u32..).zip(&self.cards).zip(rkeys) {
            let on_card = (0u32..).zip(to_peer).filter(|(i, _)| self.striping.card(*i) == number);
            let uses: Vec<(u32, u32)> =
                on_card.flat_map(|(_, qp)| rkeys.iter().map(|rkey| (qp.qpn(), *rkey))).collect();
            card.open.provider.prepare(&uses)?;
        }
        Ok(())
    }

    pub(crate) fn providers(&self) -> Vec<Arc<dyn Provider>> {
        self.cards.iter().map(|card| Arc::clone(&card.open.provider)).collect()
    }

    /// What does atomics.
    pub(crate) fn atomics(&self) -> Atomics {
        self.atomics
    }

    pub(crate) fn provider_name(&self) -> &'static str {
        self.cards[0].open.provider.info().provider
    }

    /// What made a queue pair fail, if the HCA remembers.
    pub(crate) fn cause(&self, slab: &Slab, qpn: u32) -> Option<Cause> {
        // Cards number their queue pairs each for itself.
        let (failure, index) =
            self.queue_pairs.pairs.iter().zip(0u32..).filter(|(qp, _)| qp.qpn() == qpn).find_map(|(_, index)| {
                self.card(index).open.provider.first_failure(qpn).map(|failure| (failure, index))
            })?;
        let slot = failure.wqe_index & ((1 << self.queues.log_depth) - 1);
        let wqe = at(at(self.queues.queues, index, BLOCK_BYTES << self.queues.log_depth), low32(slot), BLOCK_BYTES);
        // Control segment: the opcode is the last byte of the first word. The remote address
        // segment follows.
        let first: u32 = slab.read(wqe, 0).ok()?;
        let address: u64 = slab.read(wqe, 2).ok()?;
        Some(Cause {
            wqe_index: failure.wqe_index,
            opcode: low8(u32::from_be(first).into()),
            address: u64::from_be(address),
            syndrome: failure.syndrome,
            text: failure.text,
        })
    }

    /// The peers with a queue pair in error, and why, where the HCA remembers. Each queue pair is
    /// queried.
    pub(crate) fn lost(&self, slab: &Slab) -> Vec<(u32, String)> {
        let why = |qp: &Qp| match self.cause(slab, qp.qpn()) {
            Some(cause) => Some(format!("{}: {}", fault::syndrome(cause.syndrome.into()), cause.text)),
            None => {
                qp.query().is_ok_and(|found| found.state == QpState::Err).then(|| "a queue pair is in error".into())
            }
        };
        self.peers().filter_map(|(pe, to_peer)| Some((pe, to_peer.iter().find_map(why)?))).collect()
    }

    /// What was tried in which way.
    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        let of_card = |card: &Card| {
            let provider = card.open.provider.as_ref();
            of_card(self.cards.len(), provider, provider.attempts())
        };
        self.cards.iter().flat_map(of_card).chain(self.attempts.iter().cloned()).collect()
    }

    /// Doorbells that device code has rung, on all queue pairs.
    pub(crate) fn doorbells(&self, slab: &Slab) -> Result<u64, DeviceError> {
        let all = u64::from(self.queues.n_pes * self.queues.per_peer);
        (0..all).map(|index| slab.read::<abi::Qp>(self.queues.qps, index).map(|qp| qp.doorbells)).sum()
    }

    /// Forgets which queue pairs were used, if all of them are idle. Nothing may be posting
    /// meanwhile.
    pub(crate) fn forget_idle(&self, slab: &Slab) -> Result<(), DeviceError> {
        let words = u64::from(self.queues.n_pes * self.queues.per_peer).div_ceil(64);
        let mut any = false;
        for word in 0..words {
            let mut bits: u64 = slab.read(self.queues.used, word)?;
            while bits != 0 {
                let qp: abi::Qp = slab.read(self.queues.qps, word * 64 + u64::from(bits.trailing_zeros()))?;
                // All modulo 2^42. A QP that is broken never becomes idle, and with several cards
                // one is when its last write was flushed.
                let reserved = (qp.gate >> abi::GATE_RESERVED_SHIFT) << abi::GATE_RESERVED_SHIFT;
                let is = |blocks: u64| reserved == blocks << abi::GATE_RESERVED_SHIFT;
                if qp.completed >= abi::BROKEN || !is(qp.completed) || self.striping.cards() > 1 && !is(qp.flushed_at) {
                    return Ok(());
                }
                any = true;
                bits &= bits - 1;
            }
        }
        if any {
            slab.fill(self.queues.used, words * 8, 0)?;
        }
        Ok(())
    }
}

/// Refuses peers whose memory the software HCA cannot reach: it has no other way there than the
/// device's own.
fn check_soft_reach(
    provider: &dyn Provider,
    bootstrap: &Bootstrap,
    device: &dyn Device,
    devices: &[String],
) -> Result<()> {
    for pe in bootstrap.node_peers().into_iter().filter(|pe| *pe != bootstrap.rank()) {
        if let Err(reason) = device.reaches(&devices[pe as usize]) {
            let what = format!(
                "the software HCA moves data by loads and stores of the GPU, so it does not reach the memory of PE {pe} ({}) from {} either: \
                 {reason}; run the PEs on GPUs with peer access (nvidia-smi topo -p2p r) or on one GPU, use a ConnectX card, or \
                 OXSHMEM_DEVICE=cpu",
                devices[pe as usize],
                device.identity()
            );
            return Err(TransportError::Hca { device: provider.info().device.clone(), what }.into());
        }
    }
    Ok(())
}

/// A queue pair's place among those of this PE, and what it is created with.
struct PlacedQp<'a> {
    pd: &'a Arc<Pd>,
    umem: &'a Arc<Umem>,
    uar: Arc<Uar>,
    /// Its number among the queue pairs in the slab.
    index: u32,
    /// The peer.
    pe: u32,
    /// Where device code finds it.
    position: u32,
    /// Address of its doorbell.
    doorbell: u64,
}

impl PlacedQp<'_> {
    /// Creates the queue pair and its completion queue, whose entries are filled already.
    fn create(&self, queues: &QueueLayout) -> Result<Qp, oxshmem_hca::Error> {
        let &Self { pd, umem, ref uar, index, .. } = self;
        let cq = Cq::create(
            uar,
            umem,
            &CqAttributes {
                log_size: LOG_CQ_SIZE,
                umem_offset: at(queues.cqs, index, BLOCK_BYTES << LOG_CQ_SIZE).0,
                dbr_offset: at(queues.cq_records, index, LINE_BYTES).0,
                collapsed: true,
            },
        )?;
        let geometry = QpGeometry {
            log_sq_size: low8(queues.log_depth.into()),
            sq_offset: at(queues.queues, index, BLOCK_BYTES << queues.log_depth).0,
            dbr_offset: at(queues.records, index, LINE_BYTES).0,
            user_index: index,
        };
        Qp::create(pd, &cq, uar, umem, &geometry)
    }

    /// Returns what device code knows of the queue pair.
    fn describe(&self, slab: &Slab, queues: &QueueLayout, qp: &Qp) -> abi::Qp {
        let &Self { index, pe, position, doorbell, .. } = self;
        abi::Qp {
            wq: slab.address(at(queues.queues, index, BLOCK_BYTES << queues.log_depth)),
            stamps: slab.address(at(queues.stamps, index, 4 << queues.log_depth)),
            dbr: slab.address(at(queues.records, index, LINE_BYTES)) + dbr::SEND_OFFSET as u64,
            doorbell,
            cqe: slab.address(at(queues.cqs, index, BLOCK_BYTES << LOG_CQ_SIZE)),
            landing: slab.address(at(queues.landing, index, landing_bytes(queues.log_landing))),
            laps: slab.address(at(queues.laps, index, 4 << queues.log_landing)),
            qpn: qp.qpn(),
            depth_log2: queues.log_depth,
            pe: pe.cast_signed(),
            index: position,
            landing_log2: queues.log_landing,
            // Every counter starts at zero.
            ..abi::Qp::default()
        }
    }
}
