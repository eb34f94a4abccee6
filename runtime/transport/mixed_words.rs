//! Finds words that atomics of GPUs and of cards change with no barrier between, which are not
//! atomic with each other.
//!
//! Every PE keeps which words its device code changed by atomics, and in which phase: world
//! barriers, and calls that free memory, separate phases. When the PEs finalize, each is told what
//! the others did to its words, and compares. Only the `cpu` device tells of atomics: on a GPU that
//! would cost each of them several instructions.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::atomics::Atomics;
use super::error::TransportError;
use crate::bootstrap::Bootstrap;
use crate::device::Device;
use crate::device::cpu::AtomicAccess;
use crate::slab::Slab;
use crate::{Result, abi, config};
use oxshmem_system::words::native;

/// What is watched: an 8-byte word is two.
const UNIT: u64 = 4;

/// The most units of which a PE keeps what was done to them.
const MOST_UNITS: usize = if cfg!(test) { 1 << 10 } else { 1 << 20 };

/// The most bytes that a PE sends in one exchange.
const MOST_BYTES: usize = 1 << 20;

/// Phases, modulo 64, in which a unit was changed; a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Phases {
    by_gpu: u64,
    by_card: u64,
}

/// What this PE's device code did to one unit of a PE's heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    unit: u64,
    phases: Phases,
}

impl Entry {
    const BYTES: usize = 24;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let Self { unit, phases: Phases { by_gpu, by_card } } = self;
        let mut bytes = [0; Self::BYTES];
        for (room, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([unit, by_gpu, by_card]) {
            *room = word.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let [unit, by_gpu, by_card] = [0, 1, 2].map(|word| u64::from_le_bytes(words[word]));
        Self { unit, phases: Phases { by_gpu, by_card } }
    }
}

/// What this PE's device code did.
#[derive(Debug, Default)]
struct Table {
    /// Address of the number of the world team's last meeting.
    meetings: usize,
    /// How often memory was freed.
    frees: u32,
    /// By PE and unit.
    units: HashMap<(i32, u64), Phases>,
    /// Changes that found no room.
    left_out: u64,
}

impl Table {
    fn phase(&self) -> u32 {
        // SAFETY: the row of the world team lies in the slab, which [`MixedWords`] keeps; device
        // code changes it meanwhile.
        let meetings = unsafe { AtomicU32::from_ptr(self.meetings as *mut u32) }.load(Ordering::Relaxed);
        meetings.wrapping_add(self.frees)
    }

    fn note(&mut self, access: AtomicAccess, phase: u32) {
        for unit in access.offset / UNIT..(access.offset + u64::from(access.bytes)).div_ceil(UNIT) {
            let room = self.units.len() < MOST_UNITS;
            let phases = match self.units.get_mut(&(access.pe, unit)) {
                Some(phases) => phases,
                None if room => self.units.entry((access.pe, unit)).or_default(),
                None => {
                    self.left_out += 1;
                    continue;
                }
            };
            let bits = if access.by_card { &mut phases.by_card } else { &mut phases.by_gpu };
            *bits |= 1 << (phase % u64::BITS);
        }
    }

    /// Returns what was done to the words of each PE.
    fn by_pe(&self, n_pes: usize) -> Vec<Vec<Entry>> {
        let mut entries = vec![Vec::new(); n_pes];
        for (&(pe, unit), &phases) in &self.units {
            if let Some(of_pe) = usize::try_from(pe).ok().and_then(|pe| entries.get_mut(pe)) {
                of_pe.push(Entry { unit, phases });
            }
        }
        entries
    }
}

/// The table of this process, which has one PE at a time.
static TABLE: Mutex<Option<Table>> = Mutex::new(None);

fn table() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an atomic of device code; the executor calls it.
fn note(access: AtomicAccess) {
    if let Some(table) = table().as_mut() {
        let phase = table.phase();
        table.note(access, phase);
    }
}

/// Watches the atomics of a PE until it is dropped.
#[derive(Debug)]
pub(crate) struct MixedWords {
    mode: config::Atomics,
    device: Arc<dyn Device>,
    /// Holds what [`Table::meetings`] names.
    _slab: Arc<Slab>,
}

impl MixedWords {
    /// Begins to watch, if GPUs' atomics and cards' may meet and the device tells of them. The same
    /// on all PEs. `teams`: address of the rows of teams, of which the world's is the first.
    pub(crate) fn watch(
        mode: config::Atomics,
        atomics: Atomics,
        device: &Arc<dyn Device>,
        slab: &Arc<Slab>,
        teams: u64,
    ) -> Option<Self> {
        if !atomics.are_watched(mode) || !device.set_atomic_hook(Some(note)) {
            return None;
        }
        let meetings = native(teams) + offset_of!(abi::Team, epoch);
        *table() = Some(Table { meetings, ..Table::default() });
        Some(Self { mode, device: Arc::clone(device), _slab: Arc::clone(slab) })
    }

    /// Says that all PEs have freed memory, which may be given out again for other words.
    pub(crate) fn freed(&self) {
        if let Some(table) = table().as_mut() {
            table.frees = table.frees.wrapping_add(1);
        }
    }

    /// Compares what all PEs did. Collective.
    ///
    /// # Errors
    /// A word of this PE that atomics of both kinds changed in one phase.
    pub(crate) fn check(&self, bootstrap: &Bootstrap) -> Result<()> {
        let (me, n_pes) = (bootstrap.rank(), bootstrap.size() as usize);
        let (entries, left_out) = match table().as_ref() {
            Some(table) => (table.by_pe(n_pes), table.left_out),
            None => (vec![Vec::new(); n_pes], 0),
        };
        if left_out > 0 {
            tracing::warn!(
                pe = me,
                "{left_out} atomics are not in the check for words that GPUs and cards both change: a PE keeps {MOST_UNITS} words"
            );
        }
        let any = |of: fn(&Phases) -> u64| entries.iter().flatten().any(|entry| of(&entry.phases) != 0);
        let most = entries.iter().map(Vec::len).max().unwrap_or_default();
        let mine = [u64::from(any(|phases| phases.by_gpu)), u64::from(any(|phases| phases.by_card)), most as u64];
        let told = bootstrap.allgather("atomics of both kinds", &mine.map(u64::to_le_bytes).concat())?;
        let mut all = [0; 3];
        for (pe, bytes) in told.iter().enumerate() {
            let (words, rest) = bytes.as_chunks::<8>();
            if words.len() != all.len() || !rest.is_empty() {
                return Err(TransportError::Address { pe }.into());
            }
            all.iter_mut().zip(words).for_each(|(all, word)| *all = u64::from_le_bytes(*word).max(*all));
        }
        if all[0] == 0 || all[1] == 0 {
            return Ok(());
        }
        let share = (MOST_BYTES / n_pes / Entry::BYTES).max(1);
        let rounds = usize::try_from(all[2]).unwrap_or(usize::MAX).div_ceil(share);
        let mut words = Words::default();
        for round in 0..rounds {
            let mut outgoing = vec![0; n_pes * share * Entry::BYTES];
            for (of_pe, room) in entries.iter().zip(outgoing.chunks_exact_mut(share * Entry::BYTES)) {
                let room = room.as_chunks_mut::<{ Entry::BYTES }>().0;
                for (room, entry) in room.iter_mut().zip(of_pe.iter().skip(round * share)) {
                    *room = entry.to_bytes();
                }
            }
            for (pe, bytes) in (0..).zip(bootstrap.alltoall("words with atomics", &outgoing)?) {
                // What is all zeros is room that was not needed.
                let entries = bytes.as_chunks::<{ Entry::BYTES }>().0.iter().map(|entry| Entry::from_bytes(*entry));
                entries.for_each(|entry| words.add(pe, entry));
            }
        }
        match words.mixed() {
            None => Ok(()),
            Some(Mixed { offset, by_gpu, by_card, others }) => {
                Err(TransportError::MixedAtomics { me, offset, by_gpu, by_card, others, mode: self.mode }.into())
            }
        }
    }
}

impl Drop for MixedWords {
    fn drop(&mut self) {
        self.device.set_atomic_hook(None);
        *table() = None;
    }
}

/// What all PEs did to one PE's words.
#[derive(Debug, Default)]
struct Words(BTreeMap<u64, Vec<(u32, Phases)>>);

/// The first word that atomics of both kinds changed in one phase.
#[derive(Debug, PartialEq, Eq)]
struct Mixed {
    offset: u64,
    by_gpu: Vec<u32>,
    by_card: Vec<u32>,
    /// Other such words.
    others: usize,
}

impl Words {
    fn add(&mut self, pe: u32, entry: Entry) {
        if entry.phases != Phases::default() {
            self.0.entry(entry.unit).or_default().push((pe, entry.phases));
        }
    }

    fn mixed(&self) -> Option<Mixed> {
        let mut found: Option<Mixed> = None;
        let mut last = None;
        for (unit, changes) in &self.0 {
            let all = changes.iter().fold(Phases::default(), |all, (_, phases)| Phases {
                by_gpu: all.by_gpu | phases.by_gpu,
                by_card: all.by_card | phases.by_card,
            });
            let both = all.by_gpu & all.by_card;
            let word = Some(unit * UNIT / 8);
            if both == 0 || last == word {
                continue;
            }
            last = word;
            match &mut found {
                Some(found) => found.others += 1,
                None => {
                    let pes = |of: fn(&Phases) -> u64| {
                        let those = changes.iter().filter(|(_, phases)| of(phases) & both != 0);
                        those.map(|(pe, _)| *pe).collect()
                    };
                    let (by_gpu, by_card) = (pes(|phases| phases.by_gpu), pes(|phases| phases.by_card));
                    found = Some(Mixed { offset: unit * UNIT, by_gpu, by_card, others: 0 });
                }
            }
        }
        found
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn access(offset: u64, bytes: u32, by_card: bool) -> AtomicAccess {
        AtomicAccess { offset, bytes, pe: 1, by_card }
    }

    /// Returns what PE 1 finds when these PEs did this in these phases.
    fn found(changes: &[(u32, AtomicAccess, u32)]) -> Option<Mixed> {
        let mut words = Words::default();
        for (pe, access, phase) in changes {
            let mut table = Table::default();
            table.note(*access, *phase);
            for entry in table.by_pe(2).swap_remove(1) {
                assert_eq!(Entry::from_bytes(entry.to_bytes()), entry);
                words.add(*pe, entry);
            }
        }
        words.mixed()
    }

    #[test]
    fn a_word_of_both_kinds_is_named_with_its_pes() {
        let changes = [
            (0, access(0x40, 8, false), 5),
            (1, access(0x40, 8, false), 5),
            (2, access(0x40, 8, true), 5),
            (3, access(0x40, 8, true), 6),
            (2, access(0x64, 4, true), 5),
            (0, access(0x60, 8, false), 5),
        ];
        assert_eq!(found(&changes), Some(Mixed { offset: 0x40, by_gpu: vec![0, 1], by_card: vec![2], others: 1 }));
    }

    #[test]
    fn one_kind_other_phases_and_neighbours_are_good() {
        assert_eq!(found(&[(0, access(0x40, 8, true), 5), (2, access(0x40, 8, true), 5)]), None);
        assert_eq!(found(&[(0, access(0x40, 8, false), 5), (2, access(0x40, 8, true), 6)]), None);
        assert_eq!(found(&[(0, access(0x40, 4, false), 5), (2, access(0x44, 4, true), 5)]), None);
        assert!(found(&[(0, access(0x40, 8, false), 5), (2, access(0x44, 4, true), 5)]).is_some());
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let mut table = Table::default();
        (0..MOST_UNITS as u64 + 3).for_each(|unit| table.note(access(unit * UNIT, 4, true), 0));
        // One that is known has its room.
        table.note(access(0, 4, true), 0);
        assert_eq!((table.units.len(), table.left_out), (MOST_UNITS, 3));
    }
}
