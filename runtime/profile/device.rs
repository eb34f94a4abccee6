//! The memory in which device code counts and records its calls, where it was compiled with
//! OXSHMEM_PROFILE (`detail/profile.h`).

use oxshmem_system::words::native;

use super::host::Count;
use crate::abi::{self, ProfileCount, ProfileRecord};
use crate::config::Config;
use crate::device::DeviceError;
use crate::memory::MemoryKind;
use crate::slab::{Layout, Offset, Slab};

/// Where it is in the slab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DevicePlaces {
    head: Offset,
    peers: (Offset, u64),
    teams: (Offset, u64),
    /// The ring, and log2 of its records.
    records: Option<(Offset, u32)>,
}

/// The row of a peer or a team, the number of the operation, and its count.
pub(crate) type Counted = (u32, u32, Count);

/// The newest records of device code in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct DeviceRecords {
    pub kept: Vec<ProfileRecord>,
    pub dropped: u64,
}

impl DevicePlaces {
    /// Lays it out, if anything of it is requested.
    pub fn new(layout: &mut Layout, n_pes: u32, config: &Config) -> Option<Self> {
        let wanted = config.profile();
        if !wanted.counters && !wanted.trace {
            return None;
        }
        let mut array = |count: u64, bytes: usize| layout.array(MemoryKind::Profile, count, bytes as u64);
        let mut counts = |rows: u32| {
            let count = u64::from(rows) * u64::from(abi::PROFILE_OPS);
            (array(count, size_of::<ProfileCount>()), count)
        };
        let (peers, teams) = (counts(n_pes), counts(config.max_teams()));
        let head = array(1, size_of::<abi::Profile>());
        let records = wanted.trace.then(|| {
            let count = config.profile_records();
            (array(count.into(), size_of::<ProfileRecord>()), count.trailing_zeros())
        });
        Some(Self { head, peers, teams, records })
    }

    /// Tells device code of it.
    pub fn describe(&self, slab: &Slab, state: &mut abi::State) -> Result<(), DeviceError> {
        let head = abi::Profile {
            records: self.records.map_or(0, |(at, _)| slab.address(at)),
            records_log2: self.records.map_or(0, |(_, log2)| log2),
            peers: slab.address(self.peers.0),
            teams: slab.address(self.teams.0),
            ..abi::Profile::default()
        };
        state.profile = slab.address(self.head);
        slab.write(self.head, 0, &head)
    }

    /// Returns the counts that are not zero: the row of the peer, then those of the team, with the
    /// number of the operation.
    pub fn counts(&self, slab: &Slab) -> Result<[Vec<Counted>; 2], DeviceError> {
        let read = |(at, count): (Offset, u64)| -> Result<Vec<Counted>, DeviceError> {
            let all: Vec<ProfileCount> = slab.read_many(at, 0, native(count))?;
            let place = |at: u32| (at / abi::PROFILE_OPS, at % abi::PROFILE_OPS);
            let counted = (0u32..).zip(all).filter(|(_, count)| count.calls != 0);
            Ok(counted
                .map(|(at, ProfileCount { calls, bytes, nanoseconds })| {
                    (place(at).0, place(at).1, Count { calls, bytes, nanoseconds })
                })
                .collect())
        };
        Ok([read(self.peers)?, read(self.teams)?])
    }

    /// Returns the records that are whole. Kernels that run meanwhile may overwrite some.
    pub fn records(&self, slab: &Slab) -> Result<DeviceRecords, DeviceError> {
        let Some((at, log2)) = self.records else { return Ok(DeviceRecords::default()) };
        let made = slab.read::<abi::Profile>(self.head, 0)?.made;
        let ring: Vec<ProfileRecord> = slab.read_many(at, 0, 1 << log2)?;
        Ok(newest(ring, made))
    }
}

/// Returns the records of a ring that are among the newest of all that were made, in their order.
/// Others belong to an earlier lap, and were overwritten late, or are not whole.
fn newest(ring: Vec<ProfileRecord>, made: u64) -> DeviceRecords {
    let oldest = made.saturating_sub(ring.len() as u64);
    let mut kept: Vec<_> = ring.into_iter().filter(|record| (oldest + 1..=made).contains(&record.number)).collect();
    kept.sort_unstable_by_key(|record| record.number);
    let dropped = made - kept.len() as u64;
    DeviceRecords { kept, dropped }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;

    #[test]
    fn what_is_not_of_the_newest_lap_counts_as_dropped() {
        let ring = |numbers: &[u64]| {
            let record = |number: &u64| ProfileRecord { number: *number, ..ProfileRecord::zeroed() };
            numbers.iter().map(record).collect::<Vec<_>>()
        };
        let numbers = |records: DeviceRecords| {
            (records.kept.iter().map(|record| record.number).collect::<Vec<_>>(), records.dropped)
        };
        assert_eq!(numbers(newest(ring(&[0, 0, 0, 0]), 0)), (vec![], 0));
        assert_eq!(numbers(newest(ring(&[1, 2, 0, 0]), 2)), (vec![1, 2], 0));
        assert_eq!(numbers(newest(ring(&[5, 6, 3, 4]), 6)), (vec![3, 4, 5, 6], 2));
        // One of an earlier lap was written late, and one is not whole.
        assert_eq!(numbers(newest(ring(&[1, 6, 0, 4]), 6)), (vec![4, 6], 4));
    }
}
