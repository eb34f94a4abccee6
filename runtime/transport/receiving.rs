//! Queue pairs by which peers send to this PE, and by which it sends nothing: the other ends of
//! what peers push. Their queues lie in host memory, short, and nothing is ever posted there.

use std::sync::Arc;

use oxshmem_hca::objects::{Pd, QpAddress};
use oxshmem_hca::soft::doorbell_rung;
use oxshmem_hca::wire::ctrl::Fence;
use oxshmem_proxy::devx::{QueueLayout, Queues};

use super::error::TransportError;
use super::qp_attributes::attributes;
use crate::Result;
use crate::config::Config;
use crate::device::{Device, HostMemory};
use crate::memory::{MemoryBytes, MemoryKind, MemoryUse};
use crate::profile::counters::{QpCount, Traffic};

/// log2 of the blocks of a send queue: as many as drivers make at least.
const LOG_DEPTH: u32 = 2;

/// One of the queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    /// Where the peer is in the set that the queue pair belongs to.
    row: u32,
    pe: u32,
    column: u32,
    /// This PE's card that the peer sends to.
    target: u32,
    /// The number among the queue pairs on that card.
    index: u32,
}

/// The queue pairs on a card.
#[derive(Debug)]
struct OnCard {
    // Dropped in this order.
    queues: Queues,
    memory: Box<dyn HostMemory>,
    layout: QueueLayout,
    log_max_rd_atomic: u8,
}

/// The queue pairs of a set.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// By row and column.
    ends: Vec<End>,
    /// By card, for the PE's own; none where there are no queue pairs.
    cards: Vec<Option<OnCard>>,
}

impl Receiving {
    /// Creates queue pairs for these rows, ascending and each with the number of its peer: one for
    /// each column, on the PE's own card that `targets` has for it. `cards` has what they belong
    /// to, and how many reads and atomics a queue pair there may have in flight, as a logarithm.
    pub(super) fn create(
        device: &dyn Device,
        cards: &[(&Arc<Pd>, u8)],
        rows: impl Iterator<Item = (u32, u32)>,
        targets: &[u32],
    ) -> Result<Self> {
        let mut counts = vec![0u32; cards.len()];
        let mut ends = Vec::new();
        for (row, pe) in rows {
            for (column, target) in (0u32..).zip(targets) {
                let count = &mut counts[*target as usize];
                ends.push(End { row, pe, column, target: *target, index: *count });
                *count += 1;
            }
        }
        let on_card = |((pd, log_max_rd_atomic), count): (&(&Arc<Pd>, u8), u32)| -> Result<Option<OnCard>> {
            if count == 0 {
                return Ok(None);
            }
            let layout = QueueLayout { count, log_depth: LOG_DEPTH };
            let memory = device.host_memory(layout.bytes())?;
            // SAFETY: the memory is a field after the queues, is zero, and nothing else uses it.
            let queues = unsafe { Queues::create(pd, memory.address(), layout, false, Fence::None, doorbell_rung) }?;
            Ok(Some(OnCard { queues, memory, layout, log_max_rd_atomic: *log_max_rd_atomic }))
        };
        let cards = cards.iter().zip(counts).map(on_card).collect::<Result<_>>()?;
        Ok(Self { ends, cards })
    }

    fn place(&self, row: u32, column: u32) -> Option<(&OnCard, &End)> {
        let found = self.ends.binary_search_by_key(&(row, column), |end| (end.row, end.column)).ok()?;
        let end = &self.ends[found];
        Some((self.cards.get(end.target as usize)?.as_ref()?, end))
    }

    /// Returns the number of the queue pair of a row and column, by which the peer finds it; 0
    /// where there is none.
    pub(super) fn qpn(&self, row: u32, column: u32) -> u32 {
        self.place(row, column).and_then(|(card, end)| card.queues.qpn(end.index)).unwrap_or(0)
    }

    /// Connects queue pairs, by row and column, to those that the peers send by.
    pub(super) fn connect(&self, config: &Config, peers: &[(u32, u32, QpAddress)]) -> Result<()> {
        let mut by_card = vec![Vec::new(); self.cards.len()];
        for (number, (row, column, address)) in (0u32..).zip(peers) {
            let (card, end) = self.place(*row, *column).ok_or(TransportError::Address { pe: *row as usize })?;
            let attributes = attributes(config, card.log_max_rd_atomic, number);
            by_card[end.target as usize].push((end.index, *address, attributes));
        }
        for (card, peers) in self.cards.iter().zip(&by_card) {
            if let Some(card) = card {
                card.queues.connect(peers)?;
            }
        }
        Ok(())
    }

    /// Returns the queue pairs as counters have them. `set`: the number of the contexts that they
    /// are of.
    pub(super) fn counts(&self, set: Option<u32>) -> Vec<QpCount> {
        let count = |end: &End| QpCount {
            qpn: self.qpn(end.row, end.column),
            pe: end.pe as usize,
            card: end.target,
            context_set: set,
            receives_only: true,
            blocks: None,
            broken: false,
            staged: (0, 0),
            traffic: Traffic::default(),
        };
        self.ends.iter().map(count).collect()
    }

    /// Returns what is allocated.
    pub(super) fn memory_use(&self) -> MemoryUse {
        let mut memory = MemoryUse::default();
        for OnCard { memory: bytes, layout, .. } in self.cards.iter().flatten() {
            memory.add(MemoryKind::Records, MemoryBytes::host(layout.record_bytes()));
            memory.add(MemoryKind::Queues, MemoryBytes::host(bytes.bytes() - layout.record_bytes()));
        }
        memory
    }
}
