//! Sets of queue pairs of IBGDA, in the device's memory, which device code fills and rings: those
//! of the default context, and those of each set of contexts that a program creates.

use std::sync::Arc;

use oxshmem_hca::objects::{Cq, CqAttributes, Doorbell, Pd, Qp, QpAddress, QpGeometry, Uar, Umem};
use oxshmem_hca::prm::qpc::{QpState, SendDbrMode};
use oxshmem_hca::provider::Attempt;
use oxshmem_hca::wire::{cqe, dbr};
use oxshmem_system::side_by_side::side_by_side;
use oxshmem_system::words::{count32, low8, low32, native};

use super::addresses::{self, Ends};
use super::card::{Card, SlabOnCard};
use super::doorbell::{Posting, Ringing};
use super::error::TransportError;
use super::opened::{Order, hca_error};
use super::qp_attributes::attributes;
use super::rails::Rails;
use super::receiving::Receiving;
use super::rings::{self, Borrowed, Rings};
use crate::Result;
use crate::abi::{self, BLOCK_BYTES, LANDING_BYTES, LINE_BYTES};
use crate::config::Config;
use crate::device::{Device, DeviceError};
use crate::fault::{self, Cause};
use crate::memory::{MemoryKind, MemoryUse};
use crate::profile::counters::{QpCount, Traffic};
use crate::slab::{Layout, Offset, Slab};

/// A collapsed CQ uses its first entry alone; two is the least that drivers create.
const LOG_CQ_SIZE: u8 = 1;

/// log2 of the most and of the fewest landing slots of a QP: enough for eight warps that fetch at a
/// time, and for two.
const LOG_LANDING: (u32, u32) = (8, 6);

/// The queue pairs of a set: rows, each of a peer, with as many queue pairs as there are columns.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// PEs, or members of a team.
    pub rows: u32,
    /// The rows that have queue pairs, in ascending order, each with the number of its PE.
    pub peers: Vec<(u32, u32)>,
    /// Queue pairs of each row.
    pub columns: u32,
    /// Blocks of a send queue, a power of two.
    pub depth: u32,
    /// Whether each column has words of its own that say which of its queue pairs were used.
    pub apart: bool,
    /// Whether the host forgets which queue pairs were used. It does so while no kernel runs that
    /// may post, so not where a service's kernels do, which come and go. Device code does it where
    /// one thread, warp or block at a time uses a column.
    pub forgotten_by_host: bool,
}

/// Where the queues of a set are in its slab. QPs are numbered by peer, then by column; the
/// device's array has entries for rows without queue pairs too, which stay zero.
#[derive(Debug, Clone)]
pub(crate) struct QueueLayout {
    shape: Shape,
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
    pub(crate) fn new(layout: &mut Layout, shape: Shape) -> Self {
        let depth = u64::from(shape.depth);
        // Where there are so many QPs that their queues are short, few threads fetch through one of
        // them.
        let (most, fewest) = LOG_LANDING;
        let log_landing = depth.trailing_zeros().saturating_sub(3).clamp(fewest, most);
        let all = u64::from(shape.rows) * u64::from(shape.columns);
        let real = shape.peers.len() as u64 * u64::from(shape.columns);
        let mut made = Self {
            log_depth: depth.trailing_zeros(),
            log_landing,
            qps: layout.array(MemoryKind::Records, all, size_of::<abi::Qp>() as u64),
            used: Offset::default(),
            cqs: layout.array(MemoryKind::Queues, real, BLOCK_BYTES << LOG_CQ_SIZE),
            cq_records: layout.array(MemoryKind::Records, real, LINE_BYTES),
            records: layout.array(MemoryKind::Records, real, LINE_BYTES),
            queues: layout.array(MemoryKind::Queues, real, depth * BLOCK_BYTES),
            stamps: layout.array(MemoryKind::Queues, real, depth * 4),
            landing: layout.array(MemoryKind::Landing, real, landing_bytes(log_landing)),
            laps: layout.array(MemoryKind::Landing, real, 4 << log_landing),
            shape,
        };
        made.used = layout.array(MemoryKind::Records, made.used_words(), 8);
        made
    }

    /// Returns the number of queue pairs.
    pub(crate) fn count(&self) -> u32 {
        count32(self.shape.peers.len()) * self.shape.columns
    }

    /// Returns the number of words of a column that say which of its queue pairs were used, where
    /// columns have their own.
    pub(crate) fn words_of_column(&self) -> u64 {
        u64::from(self.shape.rows).div_ceil(64)
    }

    fn used_words(&self) -> u64 {
        let Shape { rows, columns, apart, .. } = self.shape;
        if apart { self.words_of_column() * u64::from(columns) } else { u64::from(rows * columns).div_ceil(64) }
    }

    /// Returns the word and the bit that say that a queue pair was used.
    fn used_bit(&self, row: u32, column: u32) -> (u64, u32) {
        if self.shape.apart {
            (u64::from(column) * self.words_of_column() + u64::from(row / 64), row % 64)
        } else {
            let position = row * self.shape.columns + column;
            (u64::from(position / 64), position % 64)
        }
    }

    /// Returns the place in the device's array of the queue pair that a bit is about.
    fn position(&self, word: u64, bit: u32) -> u64 {
        if self.shape.apart {
            let words = self.words_of_column();
            (word % words * 64 + u64::from(bit)) * u64::from(self.shape.columns) + word / words
        } else {
            word * 64 + u64::from(bit)
        }
    }

    /// Returns the number of entries of the device's array.
    pub(crate) fn entries(&self) -> u64 {
        u64::from(self.shape.rows) * u64::from(self.shape.columns)
    }

    /// Returns the number of queue pairs of a row.
    pub(crate) fn columns(&self) -> u32 {
        self.shape.columns
    }

    /// Returns whether the host forgets which queue pairs were used.
    pub(crate) fn forgotten_by_host(&self) -> bool {
        self.shape.forgotten_by_host
    }

    /// Returns where the device finds the queue pairs, and the words that say which were used.
    pub(crate) fn places(&self) -> (Offset, Offset) {
        (self.qps, self.used)
    }

    /// Returns the card of each queue pair of `me`: those of each column lead to the card of the
    /// peers that `targets` has for it.
    pub(super) fn cards(&self, (rails, me): (&Rails, usize), targets: &[u32]) -> Vec<u32> {
        let peers = self.shape.peers.iter().map(|(_, pe)| *pe as usize);
        peers.flat_map(|pe| targets.iter().map(move |target| rails.sender(me, pe, *target))).collect()
    }

    /// Returns the peers' numbers in the job, each with its row and the number of its first queue
    /// pair.
    fn peers(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        let columns = self.shape.columns;
        self.shape.peers.iter().zip(0u32..).map(move |((row, pe), i)| (*row, *pe, i * columns))
    }
}

/// Returns the bytes of the slots, and of one more for results that are not needed; whole lines.
const fn landing_bytes(log_landing: u32) -> u64 {
    ((1u64 << log_landing) + 1).next_multiple_of(LINE_BYTES / LANDING_BYTES) * LANDING_BYTES
}

fn at(array: Offset, index: u32, stride: u64) -> Offset {
    Offset(array.0 + u64::from(index) * stride)
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

/// Queue pairs in a slab.
#[derive(Debug)]
pub(crate) struct QueueSet {
    // Dropped in this order: the queue pairs, the pages they use, and memory.
    queue_pairs: QueuePairs,
    receiving: Receiving,
    ringing: Ringing,
    rings: Rings,
    on_cards: Vec<SlabOnCard>,
    /// The card of each queue pair.
    cards: Vec<u32>,
    /// The peer's card that each column leads to.
    targets: Vec<u32>,
    layout: QueueLayout,
    slab: Arc<Slab>,
}

impl QueueSet {
    /// Registers a slab with all cards and creates the queue pairs there: those of each column lead
    /// to the card of the peers that `targets` has for it. Also returns what was tried to stage
    /// puts.
    pub(super) fn create(
        (cards, staging, borrowed): (&[Card], &rings::Plan, Vec<Borrowed>),
        (rails, me): (&Rails, usize),
        (device, posting): (&dyn Device, Posting),
        slab: &Arc<Slab>,
        layout: QueueLayout,
        targets: Vec<u32>,
    ) -> Result<(Self, Vec<Attempt>)> {
        let on_cards = cards.iter().map(|card| SlabOnCard::new(card, device, slab)).collect::<Result<Vec<_>>>()?;
        let count = layout.count();
        let mut ringing = Ringing::new(cards.iter().map(|card| &card.open.provider), posting, device, count)?;
        let (mut places, card_of) = (Vec::new(), layout.cards((rails, me), &targets));
        for (row, pe, first) in layout.peers() {
            for (column, target) in (0u32..).zip(&targets) {
                let number = rails.sender(me, pe as usize, *target) as usize;
                let (Doorbell { uar, .. }, doorbell) = ringing.give(device, number)?;
                let (pd, umem) = (&cards[number].pd, &on_cards[number].umem);
                let lkey = on_cards[number].key.lkey();
                let index = first + column;
                let mode = posting.mode;
                places.push(PlacedQp { pd, umem, lkey, uar, index, pe, row, column, doorbell, mode });
            }
        }
        if posting.mode == SendDbrMode::NoDbrExt {
            check_count(cards, &card_of)?;
        }
        slab.fill(layout.cqs, u64::from(count) * (BLOCK_BYTES << LOG_CQ_SIZE), cqe::INITIAL_BYTE)?;
        let commands = cards.iter().map(|card| card.open.provider.info().commands_at_a_time).max().unwrap_or(1);
        let pairs = side_by_side(&places, commands, |place| place.create(&layout))?;
        let queue_pairs = QueuePairs { pairs, commands };
        let (rings, attempts) = Rings::create((staging, borrowed), cards, device, &card_of)?;
        let mut described = vec![abi::Qp::default(); (layout.shape.rows * layout.shape.columns) as usize];
        for (place, qp) in places.iter().zip(&queue_pairs.pairs) {
            let position = place.row * layout.shape.columns + place.column;
            let described = &mut described[position as usize];
            *described = place.describe(slab, &layout, qp);
            if let Some(ring) = rings.of(place.index) {
                ring.describe(described);
            }
        }
        slab.write_all(layout.qps, &described)?;
        ringing.start(device)?;
        let apart = layout.shape.peers.iter().copied().filter(|(_, pe)| rails.are_apart(me, *pe as usize));
        let own: Vec<_> = cards.iter().map(|card| (&card.pd, card.open.log_max_rd_atomic)).collect();
        let receiving = Receiving::create(device, &own, apart, &targets)?;
        drop(places);
        let (cards, slab) = (card_of, Arc::clone(slab));
        Ok((Self { queue_pairs, receiving, ringing, rings, on_cards, cards, targets, layout, slab }, attempts))
    }

    /// Returns what is allocated beside the slab.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        let mut memory = MemoryUse::default();
        memory.add(MemoryKind::Records, self.ringing.memory());
        memory += self.receiving.memory_use();
        memory += self.rings.memory_use();
        memory
    }

    /// Returns the bytes of the staging rings of queue pairs to a PE, if they have such.
    pub(super) fn staging_ring_bytes(&self, pe: u32) -> Option<u64> {
        let (_, _, first) = self.layout.peers().find(|(_, peer, _)| *peer == pe)?;
        (first..first + self.layout.shape.columns).find_map(|index| Some(self.rings.of(index)?.bytes()))
    }

    /// Returns the keys of the slab, by card.
    pub(super) fn on_cards(&self) -> &[SlabOnCard] {
        &self.on_cards
    }

    pub(crate) fn layout(&self) -> &QueueLayout {
        &self.layout
    }

    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    /// Returns the numbers of the queue pairs, a row of [`addresses::bytes_of_column`] for each
    /// column; zeros in rows without.
    pub(super) fn numbers(&self, rails: &Rails) -> Vec<u8> {
        let share = self.layout.shape.columns as usize * addresses::bytes_of_column(rails);
        let mut numbers = Vec::with_capacity(self.layout.shape.rows as usize * share);
        for (row, _, to_peer) in self.peers() {
            numbers.resize(row as usize * share, 0);
            for (column, qp) in (0u32..).zip(to_peer) {
                addresses::append_numbers(rails, &mut numbers, (qp.qpn(), self.receiving.qpn(row, column)));
            }
        }
        numbers.resize(self.layout.shape.rows as usize * share, 0);
        numbers
    }

    /// Connects each queue pair to the peer's that leads to this PE. `numbers`: by row, what the
    /// peer has told this PE. `ports`: by PE, the addresses of its cards' ports.
    pub(super) fn connect(
        &self,
        (config, cards, order): (&Config, &[Card], Order),
        (rails, me): (&Rails, usize),
        ports: &[Vec<QpAddress>],
        numbers: &[Vec<u8>],
    ) -> Result<bool> {
        let (mut connections, mut receiving) = (Vec::new(), Vec::new());
        for (row, pe, first) in self.layout.peers() {
            let pe = pe as usize;
            let ends = addresses::ends(rails, (me, pe), &ports[pe], &numbers[row as usize], &self.targets)?;
            for (column, Ends { to, from }) in (0u32..).zip(ends) {
                if to.qpn == 0 || from.is_some_and(|from| from.qpn == 0) {
                    return Err(TransportError::Address { pe }.into());
                }
                let index = first + column;
                let log_max_rd_atomic = cards[self.cards[index as usize] as usize].open.log_max_rd_atomic;
                connections.push((index, to, attributes(config, log_max_rd_atomic, index)));
                receiving.extend(from.map(|from| (row, column, from)));
            }
        }
        self.receiving.connect(config, &receiving)?;
        let QueuePairs { pairs, commands } = &self.queue_pairs;
        let connected = side_by_side(&connections, *commands, |(index, address, attributes)| {
            let pair = &pairs[*index as usize];
            pair.connect(address, attributes)?;
            if order.is_relying() { pair.is_in_order() } else { Ok(true) }
        })?;
        Ok(connected.into_iter().all(|in_order| in_order))
    }

    /// Returns the peers' rows and numbers, each with its queue pairs.
    fn peers(&self) -> impl Iterator<Item = (u32, u32, &[Qp])> {
        let each = self.queue_pairs.pairs.chunks_exact(self.layout.shape.columns.max(1) as usize);
        self.layout.peers().zip(each).map(|((row, pe, _), to_peer)| (row, pe, to_peer))
    }

    /// Returns the queue pairs to a card of a PE.
    pub(super) fn to_card(&self, pe: u32, target: u32) -> impl Iterator<Item = u32> {
        let row = self.peers().find(move |(_, peer, _)| *peer == pe);
        row.into_iter().flat_map(move |(_, _, to_peer)| {
            to_peer.iter().zip(&self.targets).filter(move |(_, to)| **to == target).map(|(qp, _)| qp.qpn())
        })
    }

    /// Returns what made a queue pair fail, if the HCA remembers.
    pub(super) fn cause(&self, cards: &[Card], qpn: u32) -> Option<Cause> {
        let queues = &self.layout;
        // Cards number their queue pairs each for itself.
        let (failure, index) =
            self.queue_pairs.pairs.iter().zip(0u32..).filter(|(qp, _)| qp.qpn() == qpn).find_map(|(_, index)| {
                let card = &cards[self.cards[index as usize] as usize];
                card.open.provider.first_failure(qpn).map(|failure| (failure, index))
            })?;
        let slot = failure.wqe_index & ((1 << queues.log_depth) - 1);
        let wqe = at(at(queues.queues, index, BLOCK_BYTES << queues.log_depth), low32(slot), BLOCK_BYTES);
        // Control segment: the opcode is the last byte of the first word. The remote address
        // segment follows.
        let first: u32 = self.slab.read(wqe, 0).ok()?;
        let address: u64 = self.slab.read(wqe, 2).ok()?;
        Some(Cause {
            wqe_index: failure.wqe_index,
            opcode: low8(u32::from_be(first).into()),
            address: u64::from_be(address),
            syndrome: failure.syndrome,
            text: failure.text,
        })
    }

    /// Returns the peers with a queue pair in error, and why, where the HCA remembers. Each queue
    /// pair is queried.
    pub(super) fn lost(&self, cards: &[Card]) -> Vec<(u32, String)> {
        let why = |qp: &Qp| match self.cause(cards, qp.qpn()) {
            Some(cause) => Some(format!("{}: {}", fault::syndrome(cause.syndrome.into()), cause.text)),
            None => {
                qp.query().is_ok_and(|found| found.state == QpState::Err).then(|| "a queue pair is in error".into())
            }
        };
        self.peers().filter_map(|(_, pe, to_peer)| Some((pe, to_peer.iter().find_map(why)?))).collect()
    }

    /// Returns what each queue pair has done. `set`: the number of the contexts that they are of.
    pub(super) fn counts(&self, cards: &[Card], set: Option<u32>) -> Result<Vec<QpCount>, DeviceError> {
        let columns = self.layout.shape.columns;
        let known: Vec<abi::Qp> =
            self.slab.read_many(self.layout.qps, 0, self.layout.shape.rows as usize * columns as usize)?;
        let mut counts = Vec::with_capacity(self.queue_pairs.pairs.len());
        let mut on_cards = self.cards.iter();
        for (row, pe, to_peer) in self.peers() {
            let of_row = known.iter().skip(row as usize * columns as usize);
            for ((qp, on_device), card) in to_peer.iter().zip(of_row).zip(&mut on_cards) {
                let broken = on_device.completed >= abi::BROKEN;
                // The gate counts modulo a power of two.
                let reserved = on_device.gate >> abi::GATE_RESERVED_SHIFT;
                let ahead = reserved.wrapping_sub(on_device.completed) << abi::GATE_RESERVED_SHIFT;
                let posted = on_device.completed.wrapping_add(ahead >> abi::GATE_RESERVED_SHIFT);
                let counted = cards[*card as usize].open.provider.qp_counters(qp.qpn());
                let traffic =
                    Traffic { doorbells: Some(on_device.doorbells), ..counted.map(Traffic::from).unwrap_or_default() };
                counts.push(QpCount {
                    qpn: qp.qpn(),
                    pe: pe as usize,
                    card: *card,
                    context_set: set,
                    receives_only: false,
                    blocks: (!broken).then_some((posted, on_device.completed)),
                    broken,
                    staged: (on_device.staged, on_device.staged_bytes),
                    traffic,
                });
            }
        }
        counts.extend(self.receiving.counts(set));
        Ok(counts)
    }

    /// Returns the number of doorbells that device code has rung.
    pub(super) fn doorbells(&self) -> Result<u64, DeviceError> {
        (0..self.layout.entries())
            .map(|index| self.slab.read::<abi::Qp>(self.layout.qps, index).map(|qp| qp.doorbells))
            .sum()
    }

    /// Forgets which queue pairs were used, if all of them are idle and the host forgets that of
    /// this set. Then nothing may be posting to it meanwhile. `flushed`: a queue pair is idle only
    /// when its last write was flushed too.
    pub(super) fn forget_idle(&self, flushed: bool) -> Result<(), DeviceError> {
        if !self.layout.forgotten_by_host() {
            return Ok(());
        }
        let words = self.layout.used_words();
        let used: Vec<u64> = self.slab.read_many(self.layout.used, 0, native(words))?;
        let mut any = false;
        for (word, mut bits) in (0u64..).zip(used) {
            while bits != 0 {
                let qp: abi::Qp = self.slab.read(self.layout.qps, self.layout.position(word, bits.trailing_zeros()))?;
                // All modulo 2^42. A QP that is broken never becomes idle.
                let reserved = (qp.gate >> abi::GATE_RESERVED_SHIFT) << abi::GATE_RESERVED_SHIFT;
                let is = |blocks: u64| reserved == blocks << abi::GATE_RESERVED_SHIFT;
                if qp.completed >= abi::BROKEN || !is(qp.completed) || flushed && !is(qp.flushed_at) {
                    return Ok(());
                }
                any = true;
                bits &= bits - 1;
            }
        }
        if any {
            self.slab.fill(self.layout.used, words * 8, 0)?;
        }
        Ok(())
    }

    /// Has device code that posts to the queue pairs from now on report that their context was
    /// destroyed.
    pub(super) fn retire(&self) -> Result<(), DeviceError> {
        for ((row, _, first), _) in self.layout.peers().zip(0u32..) {
            for column in 0..self.layout.shape.columns {
                let position = u64::from(row * self.layout.shape.columns + column);
                let mut qp: abi::Qp = self.slab.read(self.layout.qps, position)?;
                qp.breakage.first = abi::ErrorRecord {
                    code: abi::ErrorCode::ContextDestroyed as u32,
                    pe: qp.pe,
                    team: abi::TEAM_INVALID,
                    qpn: self.queue_pairs.pairs[(first + column) as usize].qpn(),
                    ..abi::ErrorRecord::default()
                };
                qp.breakage.claimed = abi::ERROR_VALID;
                qp.completed = abi::BROKEN;
                qp.room = 0;
                self.slab.write(self.layout.qps, position, &qp)?;
            }
        }
        Ok(())
    }
}

/// Refuses more queue pairs without doorbell record than a card has.
fn check_count(cards: &[Card], card_of: &[u32]) -> Result<()> {
    for (card, number) in cards.iter().zip(0u32..) {
        let provider = card.open.provider.as_ref();
        let (count, most) = (card_of.iter().filter(|of| **of == number).count(), provider.info().without_records);
        if count > native(most.into()) {
            let what = format!(
                "{count} queue pairs without doorbell record are requested at a time, and it has {most} for all processes together; lower \
                 OXSHMEM_QPS_PER_PEER or the number of contexts, or use OXSHMEM_IBGDA_DOORBELL_RECORD=always"
            );
            return Err(hca_error(provider, what));
        }
    }
    Ok(())
}

/// A queue pair's place among those of its set, and what it is created with.
struct PlacedQp<'a> {
    pd: &'a Arc<Pd>,
    umem: &'a Arc<Umem>,
    /// The key of the slab on the queue pair's card.
    lkey: u32,
    uar: Arc<Uar>,
    /// Its number among the queue pairs in the slab.
    index: u32,
    /// The peer.
    pe: u32,
    row: u32,
    column: u32,
    /// Address of its doorbell.
    doorbell: u64,
    /// Whether it has a doorbell record.
    mode: SendDbrMode,
}

impl PlacedQp<'_> {
    /// Creates the queue pair and its completion queue, whose entries are filled already.
    fn create(&self, queues: &QueueLayout) -> Result<Qp> {
        let &Self { pd, umem, ref uar, index, mode, .. } = self;
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
            send_dbr_mode: mode,
        };
        Qp::create(pd, &cq, uar, umem, &geometry).map_err(|error| match (mode, &error) {
            (SendDbrMode::NoDbrExt, oxshmem_hca::Error::Command { .. }) => {
                let what = format!(
                    "{error}; queue pairs without doorbell record may be used up, since all processes of a card share them: end those \
                     processes, or use OXSHMEM_IBGDA_DOORBELL_RECORD=always"
                );
                hca_error(pd.provider().as_ref(), what)
            }
            _ => error.into(),
        })
    }

    /// Returns what device code knows of the queue pair.
    fn describe(&self, slab: &Slab, queues: &QueueLayout, qp: &Qp) -> abi::Qp {
        let &Self { index, pe, lkey, row, column, doorbell, mode, .. } = self;
        let (word, bit) = queues.used_bit(row, column);
        abi::Qp {
            wq: slab.address(at(queues.queues, index, BLOCK_BYTES << queues.log_depth)),
            stamps: slab.address(at(queues.stamps, index, 4 << queues.log_depth)),
            dbr: match mode {
                SendDbrMode::DbrValid => slab.address(at(queues.records, index, LINE_BYTES)) + dbr::SEND_OFFSET as u64,
                SendDbrMode::NoDbrExt => 0,
            },
            doorbell,
            cqe: slab.address(at(queues.cqs, index, BLOCK_BYTES << LOG_CQ_SIZE)),
            landing: slab.address(at(queues.landing, index, landing_bytes(queues.log_landing))),
            laps: slab.address(at(queues.laps, index, 4 << queues.log_landing)),
            qpn: qp.qpn(),
            depth_log2: queues.log_depth,
            pe: pe.cast_signed(),
            index: row * queues.shape.columns + column,
            landing_log2: queues.log_landing,
            landing_key: lkey.to_be(),
            used_word: slab.address(queues.used) + word * 8,
            used_mask: 1 << bit,
            // Every counter starts at zero.
            ..abi::Qp::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each queue pair has a bit of its own, from which it is found again; columns that are apart
    /// share no word.
    #[test]
    fn every_queue_pair_has_a_bit() {
        for (rows, columns, apart) in [(1, 1, true), (2, 3, true), (64, 2, true), (65, 5, true), (130, 3, false)] {
            let peers = (0..rows).map(|pe| (pe, pe)).collect();
            let shape = Shape { rows, peers, columns, depth: 256, apart, forgotten_by_host: !apart };
            let queues = QueueLayout::new(&mut Layout::default(), shape);
            let mut seen = std::collections::BTreeMap::new();
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let (word, bit) = queues.used_bit(row, column);
                assert!(word < queues.used_words() && bit < 64, "{rows} x {columns}: {word}, {bit}");
                assert_eq!(queues.position(word, bit), u64::from(row * columns + column), "{rows} x {columns}");
                if apart {
                    assert_eq!(word / queues.words_of_column(), u64::from(column));
                }
                assert_eq!(seen.insert((word, bit), (row, column)), None);
            }
        }
    }
}
