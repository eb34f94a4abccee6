//! What of a PE is where in the slab.

use crate::abi::{self, ErrorRecord};
use crate::config::Config;
use crate::memory::MemoryKind;
use crate::profile::device::DevicePlaces;
use crate::slab::{Layout, Offset};
use crate::team::storage::TeamStorage;
use crate::transport::Opened;
use crate::transport::keys::KeyTables;

/// Host operations pass their data through a registered buffer of this size.
pub(crate) const STAGING_BYTES: usize = 1 << 20;

/// Where the control block says whether an error was recorded, which, and how much of it there is
/// to read.
pub(super) const CLAIMED_AT: usize = core::mem::offset_of!(abi::Control, claimed);
pub(super) const ERROR_AT: usize = core::mem::offset_of!(abi::Control, error);
pub(super) const REPORT_BYTES: usize = ERROR_AT + size_of::<ErrorRecord>();

/// Where [`abi::Control::abort`] is, in words of 4 bytes.
pub(super) const ABORT_AT: u64 = (core::mem::offset_of!(abi::Control, abort) / 4) as u64;

/// What is where in the slab.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    pub control: Offset,
    pub teams: TeamStorage,
    pub region_count: Offset,
    pub regions: Offset,
    pub numbered_count: Offset,
    pub numbered: Offset,
    pub keys: KeyTables,
    pub staging: Offset,
    pub profile: Option<DevicePlaces>,
}

impl Parts {
    pub fn new(
        layout: &mut Layout,
        (me, n_pes): (u32, u32),
        max_chunks: u64,
        hca: Option<&Opened>,
        config: &Config,
    ) -> Self {
        Self {
            control: layout.array(MemoryKind::Tables, 1, size_of::<abi::Control>() as u64),
            teams: TeamStorage::new(layout, n_pes, config),
            region_count: layout.array(MemoryKind::Tables, 1, 8),
            regions: layout.array(
                MemoryKind::Tables,
                abi::MAX_LOCAL_REGIONS as u64,
                size_of::<abi::LocalRegion>() as u64,
            ),
            numbered_count: layout.array(MemoryKind::Tables, 1, 8),
            numbered: layout.array(
                MemoryKind::Tables,
                u64::from(abi::MAX_NUMBERED_CONTEXTS),
                size_of::<abi::Context>() as u64,
            ),
            keys: KeyTables::new(layout, (me, n_pes), max_chunks, hca),
            staging: layout.array(MemoryKind::Staging, 1, STAGING_BYTES as u64),
            profile: DevicePlaces::new(layout, n_pes, config),
        }
    }
}
