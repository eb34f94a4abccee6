//! Keys of the heap's chunks: device code finds them in two tables of the slab.

use std::ops::Range;

use oxshmem_system::words::{count32, low8};

use super::Network;
use super::fabric::ChunkKeys;
use super::opened::Opened;
use super::rails::Rails;
use crate::Result;
use crate::abi;
use crate::bootstrap::Bootstrap;
use crate::device::DeviceError;
use crate::heap::SymmetricHeap;
use crate::memory::MemoryKind;
use crate::slab::{Layout, Offset, Slab};

/// Where the tables are. Both are rows of a key for each chunk, big-endian, as they travel: of
/// local keys a row for each card of this PE, and of remote keys a row for each PE of each card.
/// The latter holds the keys that the peer's own cards have given, each in the row of the card that
/// this PE sends to it by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyTables {
    pub local: Offset,
    pub remote: Offset,
    /// Which card sends to each card of each PE, where PEs push.
    senders: Option<Offset>,
    pub max_chunks: u64,
    /// This PE, and how many there are.
    pes: (usize, usize),
    /// This PE's cards; those of each PE that peers send to.
    cards: (u64, u32),
}

impl KeyTables {
    /// Reserves the tables in the slab, for this PE and a number of PEs. `hca` is none where
    /// nothing needs keys, or the kernel's verbs drive a card.
    pub(crate) fn new(layout: &mut Layout, pes: (u32, u32), max_chunks: u64, hca: Option<&Opened>) -> Self {
        let (me, n_pes) = (pes.0 as usize, u64::from(pes.1));
        let cards = hca.map_or(1, |hca| hca.cards.len() as u64);
        let targets = hca.map_or(1, Opened::targets);
        let pushes = hca.is_some_and(|hca| hca.rails.is_pushing());
        Self {
            local: layout.array(MemoryKind::Tables, cards * max_chunks, 4),
            remote: layout.array(MemoryKind::Tables, cards * n_pes * max_chunks, 4),
            senders: pushes.then(|| layout.array(MemoryKind::Tables, n_pes * u64::from(targets), 1)),
            max_chunks,
            pes: (me, pes.1 as usize),
            cards: (cards, targets),
        }
    }

    /// Tells device code where the tables are, and which card sends to which.
    pub(crate) fn describe(self, rails: &Rails, slab: &Slab, state: &mut abi::State) -> Result<(), DeviceError> {
        let Some(senders) = self.senders else { return Ok(()) };
        let (me, n_pes) = self.pes;
        let to_pe = |pe: usize| (0..self.cards.1).map(move |target| low8(rails.sender(me, pe, target).into()));
        slab.write_all(senders, &(0..n_pes).flat_map(to_pe).collect::<Vec<u8>>())?;
        state.senders = slab.address(senders);
        Ok(())
    }

    /// Returns where rows of keys for a peer's card begin: that of the card that this PE sends to
    /// it by, and, where PEs push, that of the card which contexts send by that do not.
    fn remote_rows(self, rails: &Rails, pe: usize, target: u32) -> impl Iterator<Item = u64> {
        let (me, n_pes) = self.pes;
        let pushed = self.remote_row(rails, pe, target);
        let direct = (target as usize * n_pes + pe) as u64 * self.max_chunks;
        let direct = (rails.is_pushing() && rails.has_room_for_direct(me) && direct != pushed).then_some(direct);
        std::iter::once(pushed).chain(direct)
    }

    /// Returns where the row of keys for a peer's card begins, of the card that this PE sends by.
    fn remote_row(self, rails: &Rails, pe: usize, target: u32) -> u64 {
        let (me, n_pes) = self.pes;
        (rails.sender(me, pe, target) as usize * n_pes + pe) as u64 * self.max_chunks
    }

    /// Returns the remote keys of the first `chunks` chunks of a PE and of the `further` ones, by
    /// card of that PE, in host byte order.
    pub(crate) fn read_remote(
        self,
        rails: &Rails,
        slab: &Slab,
        (pe, chunks): (usize, usize),
        further: &[u64],
    ) -> Result<Vec<Vec<u32>>, DeviceError> {
        let row = |target: u32| {
            let at = self.remote_row(rails, pe, target);
            let mut keys: Vec<u32> = slab.read_many(self.remote, at, chunks)?;
            for chunk in further {
                keys.push(slab.read(self.remote, at + chunk)?);
            }
            Ok(keys.into_iter().map(u32::from_be).collect())
        };
        (0..self.cards.1).map(row).collect()
    }

    /// Exchanges the keys of memory of the program that is in `chunks` of the heap, which it fills
    /// with the same ones; `None`: it is there no more. Collective.
    pub(crate) fn fill_run(
        self,
        network: &Network,
        slab: &Slab,
        bootstrap: &Bootstrap,
        chunks: Range<u64>,
        keys: Option<&[ChunkKeys]>,
    ) -> Result<()> {
        let (cards, targets) = self.cards;
        let key = |card: u64, key: fn(&ChunkKeys) -> u32| {
            let card = usize::try_from(card).unwrap_or(usize::MAX);
            keys.and_then(|keys| keys.get(card)).map_or(0, key)
        };
        let fill = |table: Offset, row: u64, key: u32| {
            let count = usize::try_from(chunks.end - chunks.start).unwrap_or(usize::MAX);
            slab.write_from(table, row + chunks.start, &vec![key.to_be(); count])
        };
        for card in 0..cards {
            fill(self.local, card * self.max_chunks, key(card, |keys| keys.lkey))?;
        }
        let rkeys: Vec<u8> =
            (0..targets).flat_map(|target| key(target.into(), |keys| keys.rkey).to_be_bytes()).collect();
        for (pe, theirs) in bootstrap.allgather("keys of the program's memory", &rkeys)?.iter().enumerate() {
            let theirs = theirs.as_chunks::<4>().0.iter().map(|key| u32::from_be_bytes(*key));
            let mut by_card = Vec::new();
            for (target, key) in (0..targets).zip(theirs) {
                self.remote_rows(network.rails(), pe, target).try_for_each(|row| fill(self.remote, row, key))?;
                by_card.push(vec![key]);
            }
            if keys.is_some() {
                network.prepare(count32(pe), &by_card)?;
            }
        }
        Ok(())
    }

    /// Registers chunks that were added to the heap, and exchanges their keys. Collective.
    pub(crate) fn fill(
        self,
        network: &Network,
        slab: &Slab,
        heap: &SymmetricHeap,
        bootstrap: &Bootstrap,
        added: Range<usize>,
    ) -> Result<()> {
        let targets = self.cards.1;
        let (first, count) = (added.start as u64, added.len());
        // By chunk, and for each of them by card that peers send to.
        let mut rkeys = Vec::new();
        let mut by_card: Vec<Vec<u32>> = Vec::new();
        for index in added {
            let keys = network.register(slab.device(), heap, index)?;
            by_card.resize(keys.len().max(by_card.len()), Vec::new());
            by_card.iter_mut().zip(&keys).for_each(|(row, keys)| row.push(keys.lkey.to_be()));
            rkeys.extend(keys.iter().take(targets as usize).flat_map(|keys| keys.rkey.to_be_bytes()));
        }
        // A copy for each row: memory of a GPU takes some microseconds for one, whatever its
        // length.
        for (card, keys) in (0u64..).zip(&by_card) {
            slab.write_from(self.local, card * self.max_chunks + first, keys)?;
        }
        for (pe, theirs) in bootstrap.allgather("keys of the heap", &rkeys)?.iter().enumerate() {
            let mut prepared = Vec::new();
            for (target, keys) in (0..targets).zip(of_cards(theirs, targets, count)) {
                for row in self.remote_rows(network.rails(), pe, target) {
                    slab.write_from(self.remote, row + first, &keys)?;
                }
                prepared.push(keys.into_iter().map(u32::from_be).collect());
            }
            network.prepare(count32(pe), &prepared)?;
        }
        Ok(())
    }
}

/// Returns the keys of `chunks` chunks by card that peers send to, as the tables have them
/// (big-endian), of what a PE has told: by chunk, and for each of them by card.
fn of_cards(told: &[u8], targets: u32, chunks: usize) -> Vec<Vec<u32>> {
    let keys = told.as_chunks::<4>().0;
    let of_card = |target: usize| {
        let of_card = keys.iter().skip(target).step_by((targets as usize).max(1));
        of_card.take(chunks).map(|key| u32::from_ne_bytes(*key)).collect()
    };
    (0..targets as usize).map(of_card).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_by_chunk_and_written_by_card() {
        let told: Vec<u8> = [11u32, 21, 12, 22, 13, 23].iter().flat_map(|key| key.to_be_bytes()).collect();
        let rows = |targets, chunks| -> Vec<Vec<u32>> {
            let rows = of_cards(&told, targets, chunks);
            rows.into_iter().map(|row| row.into_iter().map(u32::from_be).collect()).collect()
        };
        assert_eq!(rows(2, 3), [[11, 12, 13], [21, 22, 23]]);
        assert_eq!(rows(1, 6), [[11, 21, 12, 22, 13, 23]]);
        // No more than the chunks, whatever was told.
        assert_eq!(rows(2, 2), [[11, 12], [21, 22]]);
        assert_eq!(rows(2, 9), [[11, 12, 13], [21, 22, 23]]);
    }
}
