//! What a context tells of itself: what its service has done, and operations that were not
//! acknowledged, as the rings tell.

use std::collections::BTreeMap;

use super::error::{AggregateError, Lost, LostAt};
use super::set::{Aggregate, AggregateCounters, Set};
use crate::Result;
use crate::abi;
use crate::pe::Pe;
use crate::team::Team;

/// The layout of a header; see `detail/aggregate/ring.h`, whose constants a test compares.
mod header {
    pub const NUMBER_BITS: u32 = 7;
    pub const SOURCE: u32 = crate::abi::AGGREGATE_HEAP_BITS;
    pub const DESTINATION: u32 = SOURCE + NUMBER_BITS;
    pub const BYTES: u32 = DESTINATION + NUMBER_BITS;
    pub const KIND: u32 = BYTES + 8;
    pub const SKIP: u64 = 0;
    pub const FENCE: u64 = 8;
    pub const KINDS: u64 = 9;
}

/// A record, as its header describes it.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    kind: u64,
    source: u64,
    destination: u64,
    length: u64,
}

impl Record {
    /// Returns the record of a header; `None` if it is none.
    fn parse(word: u64) -> Option<Self> {
        let field = |shift: u32, bits: u32| word >> shift & ((1 << bits) - 1);
        let kind = word >> header::KIND;
        let payload = field(header::BYTES, 8) + 1;
        let unit = u64::from(abi::AGGREGATE_RECORD_BYTES);
        let length = if kind == header::SKIP { field(0, header::SOURCE) } else { (8 + payload).next_multiple_of(unit) };
        let sound = kind < header::KINDS && length != 0 && length.is_multiple_of(unit);
        sound.then(|| Self {
            kind,
            source: field(header::SOURCE, header::NUMBER_BITS),
            destination: field(header::DESTINATION, header::NUMBER_BITS),
            length,
        })
    }
}

impl Aggregate {
    /// Returns what the service of this PE has done so far: sent from the rings that this PE has
    /// for its node, and applied what arrived at it.
    ///
    /// # Errors
    /// The context was destroyed, or the device is lost.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// # let (world, options) = (pe.team_world(), oxshmem::AggregateOptions::new());
    /// # let memory = pe.alloc::<u64>(options.words(&world)?)?;
    /// let context = world.create_aggregate(&pe, &memory, &options)?;
    /// assert_eq!(context.counters(&pe)?.records, 0);
    /// # context.destroy(&pe)?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn counters(&self, pe: &Pe) -> Result<AggregateCounters> {
        self.0.check(pe.id())?;
        let service: abi::AggregateService = self.0.slab.read(self.0.service, 0)?;
        Ok(AggregateCounters {
            writes: service.segments,
            bytes: service.segment_bytes,
            acknowledgements: service.acknowledgements,
            records: service.records,
        })
    }

    /// Returns the operations of this PE that were not acknowledged: those that may not have been
    /// done, if the job has failed or a deadline has passed. It reads the rings as they are, at
    /// this PE's node, and waits for nothing.
    ///
    /// # Errors
    /// The context was destroyed, or the device is lost.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// # let (world, options) = (pe.team_world(), oxshmem::AggregateOptions::new());
    /// # let memory = pe.alloc::<u64>(options.words(&world)?)?;
    /// let context = world.create_aggregate(&pe, &memory, &options)?;
    /// assert!(context.unacknowledged(&pe)?.by_pe.is_empty());
    /// # context.destroy(&pe)?;
    /// # pe.finalize()
    /// # }
    /// ```
    pub fn unacknowledged(&self, pe: &Pe) -> Result<Lost> {
        self.0.check(pe.id())?;
        lost(&self.0, pe)
    }
}

/// Counts the records of this PE that were not acknowledged.
pub(super) fn lost(set: &Set, pe: &Pe) -> Result<Lost> {
    let team = pe.team(set.team)?;
    let mut lost = Lost::default();
    for (route, at, node) in &set.rings {
        let (rail, receiver) = (pe_of(&team, route.rail), pe_of(&team, route.receiver));
        let (counts, whole) = count(set, pe, *at)?;
        for (number, operations) in counts {
            let member = team.nodes().lists()[*node].get(number).copied().unwrap_or_default();
            lost.by_pe.push(LostAt { pe: pe_of(&team, member), operations, rail, receiver });
        }
        if !whole {
            lost.unreadable.push(rail);
        }
    }
    Ok(lost)
}

fn pe_of(team: &Team, member: usize) -> usize {
    team.set_of_members().pe(member).unwrap_or(member)
}

/// Counts the records of this PE in the ring that is mapped at `at`, by the number of their
/// destination in its node. Returns also whether all that was reserved has been written.
fn count(set: &Set, pe: &Pe, at: u64) -> Result<(BTreeMap<usize, u64>, bool)> {
    let read = |from: u64, bytes: &mut [u8]| {
        // SAFETY: rings of this PE's node are mapped until the PE ends.
        unsafe { pe.device().read(from, bytes) }
    };
    let mut ring = abi::AggregateRing::default();
    read(at, bytemuck::bytes_of_mut(&mut ring))?;
    let (segment, capacity) = (set.options.segment, set.options.capacity());
    let mut counts = BTreeMap::new();
    let mut position = ring.applied;
    while position < ring.tail {
        // A segment is readable as far as all that was reserved in it has been written.
        let number = position / segment;
        let (begin, slots) = (number * segment, u64::from(abi::AGGREGATE_SEGMENTS));
        let written = ring.written[usize::try_from(number % slots).unwrap_or_default()];
        let reserved = ring.tail.min(begin + segment) - begin;
        if written.wrapping_sub(number / slots * segment) != reserved {
            return Ok((counts, false));
        }
        while position < begin + reserved {
            let mut word = 0u64;
            let place = at + size_of::<abi::AggregateRing>() as u64 + position % capacity;
            read(place, bytemuck::bytes_of_mut(&mut word))?;
            let Some(record) = Record::parse(word) else { return Ok((counts, false)) };
            let operation = record.kind != header::SKIP && record.kind != header::FENCE;
            if operation && record.source == u64::from(set.described.my_number) {
                *counts.entry(usize::try_from(record.destination).unwrap_or_default()).or_default() += 1;
            }
            position += record.length;
        }
    }
    Ok((counts, true))
}

/// Adds to an error what may not have been done because of it.
pub(super) fn explain(set: &Set, pe: &Pe, error: crate::Error) -> crate::Error {
    match lost(set, pe) {
        Ok(lost) if lost != Lost::default() => {
            AggregateError::Lost { me: pe.my_pe(), lost, reason: error.to_string() }.into()
        }
        // The first error is the one to report.
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed() {
        // detail/aggregate/ring.h: a put (1) of 8 bytes from the node's PE 2 to number 5, at 0x40.
        let word = 1 << 60 | 7 << 52 | 5 << 45 | 2 << 38 | 0x40;
        assert_eq!(Record::parse(word), Some(Record { kind: 1, source: 2, destination: 5, length: 16 }));
        assert_eq!(Record::parse(1 << 60 | 8 << 52).map(|record| record.length), Some(32));
        assert_eq!(Record::parse(247 << 52 | 1 << 60).map(|record| record.length), Some(256));
        assert_eq!(Record::parse(48).map(|record| record.length), Some(48));
        assert_eq!(Record::parse(0), None);
        assert_eq!(Record::parse(9 << 60), None);
    }
}
