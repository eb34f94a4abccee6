//! Keys of the heap's chunks: device code finds them in two tables of the slab.

use std::ops::Range;

use oxshmem_system::words::low32;

use super::Network;
use super::fabric::ChunkKeys;
use crate::Result;
use crate::bootstrap::Bootstrap;
use crate::device::DeviceError;
use crate::heap::SymmetricHeap;
use crate::memory::MemoryKind;
use crate::slab::{Layout, Offset, Slab};

/// Where the tables are. Both are rows of a key for each chunk, big-endian, as they travel: of
/// local keys a row for each card, and of remote keys a row for each PE of each card.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyTables {
    pub local: Offset,
    pub remote: Offset,
    pub max_chunks: u64,
}

impl KeyTables {
    /// Reserves the tables in the slab.
    pub(crate) fn new(layout: &mut Layout, n_pes: u32, max_chunks: u64, cards: u64) -> Self {
        Self {
            local: layout.array(MemoryKind::Tables, cards * max_chunks, 4),
            remote: layout.array(MemoryKind::Tables, cards * u64::from(n_pes) * max_chunks, 4),
            max_chunks,
        }
    }

    /// Returns the remote keys of the first `chunks` chunks of a PE, one of `n_pes`, and of the
    /// `further` ones, by card, in host byte order.
    pub(crate) fn read_remote(
        self,
        slab: &Slab,
        (pe, n_pes): (usize, usize),
        (cards, chunks): (usize, usize),
        further: &[u64],
    ) -> Result<Vec<Vec<u32>>, DeviceError> {
        let row = |card: usize| {
            let at = (card * n_pes + pe) as u64 * self.max_chunks;
            let mut keys: Vec<u32> = slab.read_many(self.remote, at, chunks)?;
            for chunk in further {
                keys.push(slab.read(self.remote, at + chunk)?);
            }
            Ok(keys.into_iter().map(u32::from_be).collect())
        };
        (0..cards).map(row).collect()
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
        let (n_pes, cards) = (u64::from(bootstrap.size()), network.cards());
        let key = |card: u64, key: fn(&ChunkKeys) -> u32| {
            let card = usize::try_from(card).unwrap_or(usize::MAX);
            keys.and_then(|keys| keys.get(card)).map_or(0, key)
        };
        let fill = |table: Offset, row: u64, key: u32| {
            let count = usize::try_from(chunks.end - chunks.start).unwrap_or(usize::MAX);
            slab.write_from(table, row * self.max_chunks + chunks.start, &vec![key.to_be(); count])
        };
        let mut rkeys = Vec::new();
        for card in 0..cards {
            fill(self.local, card, key(card, |keys| keys.lkey))?;
            rkeys.extend_from_slice(&key(card, |keys| keys.rkey).to_be_bytes());
        }
        for (pe, theirs) in (0u64..).zip(&bootstrap.allgather("keys of the program's memory", &rkeys)?) {
            let theirs = theirs.as_chunks::<4>().0.iter().map(|key| u32::from_be_bytes(*key));
            let mut by_card = Vec::new();
            for (card, key) in (0..cards).zip(theirs) {
                fill(self.remote, card * n_pes + pe, key)?;
                by_card.push(vec![key]);
            }
            if keys.is_some() {
                network.prepare(low32(pe), &by_card)?;
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
        let n_pes = u64::from(bootstrap.size());
        // By chunk, and for each of them by card.
        let mut rkeys = Vec::new();
        let mut cards = 0;
        for index in added.clone() {
            let keys = network.register(slab.device(), heap, index)?;
            cards = keys.len();
            for (card, keys) in (0u64..).zip(keys) {
                slab.write(self.local, card * self.max_chunks + index as u64, &keys.lkey.to_be())?;
                rkeys.extend_from_slice(&keys.rkey.to_be_bytes());
            }
        }
        for (pe, theirs) in (0u64..).zip(&bootstrap.allgather("keys of the heap", &rkeys)?) {
            let mut by_card = vec![Vec::new(); cards];
            let mut keys = theirs.as_chunks::<4>().0.iter();
            for index in added.clone() {
                for ((card, prepared), key) in (0u64..).zip(&mut by_card).zip(&mut keys) {
                    let row = card * n_pes + pe;
                    slab.write(self.remote, row * self.max_chunks + index as u64, &u32::from_ne_bytes(*key))?;
                    prepared.push(u32::from_be_bytes(*key));
                }
            }
            network.prepare(low32(pe), &by_card)?;
        }
        Ok(())
    }
}
