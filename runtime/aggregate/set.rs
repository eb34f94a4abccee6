//! Aggregating contexts as programs have them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::AggregateError;
use super::options::AggregateOptions;
use super::places::Route;
use crate::abi;
use crate::heap::error::HeapError;
use crate::identity::PeId;
use crate::kernel::args::KernelArg;
use crate::slab::{Offset, Slab};

/// An aggregating context ([`Team::create_aggregate`](crate::Team::create_aggregate)): small puts,
/// signals and atomics without a result, of all PEs of a node for one other node, leave together.
/// Kernels take it by reference as `oxshmem::aggregate::Context` (`oxshmem/aggregate.h`); see
/// `docs/contexts.md`.
///
/// # Errors
/// A context that was destroyed, or of a PE that has been finalized, is refused by every launch.
///
/// # Threads and drop
/// `Send` and `Sync`: it is a name. A context that is dropped stays until finalize, since
/// destroying it is collective.
///
/// ```
/// use oxshmem::AggregateOptions;
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let (world, options) = (pe.team_world(), AggregateOptions::new());
/// let memory = pe.alloc::<u64>(options.words(&world)?)?;
/// let context = world.create_aggregate(&pe, &memory, &options)?;
/// // Kernels take &context.
/// context.destroy(&pe)?;
/// pe.free(memory)?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug)]
pub struct Aggregate(pub(super) Arc<Set>);

/// An aggregating context in the table.
#[derive(Debug)]
pub(super) struct Set {
    pub pe: PeId,
    pub number: u32,
    /// The handle of its team.
    pub team: i32,
    pub options: AggregateOptions,
    /// Addresses of this PE's copy of the rings and inboxes.
    pub memory: Range<u64>,
    pub described: abi::Aggregate,
    pub slab: Slab,
    /// Where the `abi::AggregateService` is.
    pub service: Offset,
    /// The rings to other nodes, by node: what they are, and where they are mapped.
    pub rings: Vec<(Route, u64, usize)>,
    pub ended: AtomicBool,
}

impl Set {
    /// Refuses a context that cannot be used by the PE `pe`.
    pub(super) fn check(&self, pe: PeId) -> Result<(), AggregateError> {
        if pe != self.pe {
            Err(AggregateError::EarlierPe)
        } else if self.ended.load(Ordering::Relaxed) {
            Err(AggregateError::Destroyed)
        } else {
            Ok(())
        }
    }
}

/// What the service of this PE has done for an aggregating context: [`Aggregate::counters`].
///
/// ```
/// let counters = oxshmem::AggregateCounters { writes: 2, bytes: 8192, acknowledgements: 1, records: 300 };
/// // A write and its count are two work requests, an acknowledgement is one.
/// assert_eq!(counters.work_requests(), 5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AggregateCounters {
    /// Writes to other nodes, each followed by its count.
    pub writes: u64,
    /// Bytes of records in these writes.
    pub bytes: u64,
    /// Counts that were sent back to acknowledge records.
    pub acknowledgements: u64,
    /// Records applied to memory of this PE's node.
    pub records: u64,
}

impl AggregateCounters {
    /// Returns the work requests that this took.
    ///
    /// ```
    /// assert_eq!(oxshmem::AggregateCounters::default().work_requests(), 0);
    /// ```
    #[must_use]
    pub fn work_requests(&self) -> u64 {
        2 * self.writes + self.acknowledgements
    }
}

impl Aggregate {
    /// Returns the number of the context, by which [`Pe::aggregate_of`](crate::Pe::aggregate_of)
    /// finds it. Another PE may have another number for it.
    ///
    /// ```
    /// # fn main() -> oxshmem::Result<()> {
    /// # let pe = oxshmem::init()?;
    /// # let (world, options) = (pe.team_world(), oxshmem::AggregateOptions::new());
    /// # let memory = pe.alloc::<u64>(options.words(&world)?)?;
    /// let context = world.create_aggregate(&pe, &memory, &options)?;
    /// assert_eq!(pe.aggregate_of(context.number())?.number(), context.number());
    /// # context.destroy(&pe)?;
    /// # pe.finalize()
    /// # }
    /// ```
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns what kernels of programs in other languages are given.
    #[doc(hidden)]
    #[must_use]
    pub fn as_device_has_it(&self) -> &abi::Aggregate {
        &self.0.described
    }
}

impl KernelArg for &Aggregate {
    type Bytes = [u8; size_of::<abi::Aggregate>()];
    fn bytes(&self, pe: PeId) -> Result<Self::Bytes, HeapError> {
        self.0.check(pe)?;
        Ok(bytemuck::cast(self.0.described))
    }
}
