//! Errors of aggregating contexts.

use std::fmt;
use std::time::Duration;

/// What is wrong with an aggregating context or a call that creates one.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{AggregateError, AggregateOptions, Error};
///
/// let error = AggregateOptions::new().segment(1000).words(&pe.team_world()).unwrap_err();
/// assert!(matches!(error, AggregateError::Segment { bytes: 1000, .. }));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AggregateError {
    /// A segment of an invalid size.
    #[error(
        "segment size {bytes} is invalid: it must be a power of two from {least} to {most} bytes (AggregateOptions::segment)"
    )]
    Segment {
        /// What the call requests.
        bytes: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Records that would wait too long.
    #[error("age {age:?} is invalid: records wait at most {most:?} (AggregateOptions::age)")]
    Age {
        /// What the call requests.
        age: Duration,
        /// The most.
        most: Duration,
    },
    /// Memory for the rings that is too short.
    #[error("{given} words of symmetric memory for {what}, which takes {needed} (AggregateOptions::words)")]
    Memory {
        /// Words that the call passes.
        given: usize,
        /// Words that it takes.
        needed: usize,
        /// The context.
        what: String,
    },
    /// Memory for the rings that another aggregating context has.
    #[error("this memory has the rings of aggregating context {number}; destroy that, or pass other memory")]
    InUse {
        /// The number of that context.
        number: u32,
    },
    /// A node with too many members.
    #[error(
        "a node has {members} members of the team; an aggregating context supports at most {most} on a node: split the team"
    )]
    Node {
        /// Its members.
        members: usize,
        /// The most.
        most: usize,
    },
    /// A heap whose offsets do not fit a record.
    #[error(
        "the heap may grow to {heap} bytes; an aggregating context supports at most {most}: lower OXSHMEM_HEAP_MAX"
    )]
    Heap {
        /// `OXSHMEM_HEAP_MAX`.
        heap: u64,
        /// The most.
        most: u64,
    },
    /// The rings of a node need atomics between its GPUs.
    #[error(
        "the link between GPUs of this node has no native atomics, which an aggregating context needs; use contexts (Team::create_contexts)"
    )]
    NoAtomics,
    /// Members requested different contexts. Nothing was created.
    #[error(
        "PE {me} creates {mine}, PE {pe} creates {theirs}; all members of the team have to create the same aggregating context"
    )]
    Mismatch {
        /// This PE.
        me: usize,
        /// Its call.
        mine: String,
        /// A PE that called something else.
        pe: usize,
        /// What it called.
        theirs: String,
    },
    /// A member could not create its part. Nothing was created.
    #[error("PE {pe} cannot create {what}: {reason}")]
    Setup {
        /// The PE.
        pe: usize,
        /// The context.
        what: String,
        /// Why.
        reason: String,
    },
    /// Operations that may not have been done: the records of them were not acknowledged.
    #[error("PE {me}: operations of an aggregating context are lost: {lost}; the reason: {reason}")]
    Lost {
        /// The PE that issued them.
        me: usize,
        /// Where they were to go.
        lost: Lost,
        /// What went wrong.
        reason: String,
    },
    /// The service of this PE has ended.
    #[error("PE {me}: the service of an aggregating context has ended: {reason}")]
    Service {
        /// This PE.
        me: usize,
        /// Why.
        reason: String,
    },
    /// A context that was destroyed. Nothing was done.
    #[error("an aggregating context was destroyed; it can be used until Aggregate::destroy")]
    Destroyed,
    /// No aggregating context has this number.
    #[error("this PE has no aggregating context of number {number}; it may have been destroyed")]
    Unknown {
        /// The number.
        number: u32,
    },
    /// A context of a PE that has been finalized. Nothing was done.
    #[error("an aggregating context belongs to a PE that has been finalized; create it again with this PE")]
    EarlierPe,
}

/// Operations that this PE has put into an aggregating context and that were not acknowledged.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// let options = oxshmem::AggregateOptions::new();
/// let memory = pe.alloc::<u64>(options.words(&pe.team_world())?)?;
/// let context = pe.team_world().create_aggregate(&pe, &memory, &options)?;
/// let lost: oxshmem::Lost = context.unacknowledged(&pe)?;
/// assert!(lost.by_pe.is_empty());
/// # context.destroy(&pe)?;
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lost {
    /// For each destination, by its PE: operations, the rail peer whose ring has their records, and
    /// the PE that was to apply them. A put that takes several records counts as many.
    pub by_pe: Vec<LostAt>,
    /// Rings of which a part was reserved and never written, by their rail peers: a PE of the node
    /// died while it wrote there. Operations after that part are not counted.
    pub unreadable: Vec<usize>,
}

/// Operations for one PE that were not acknowledged.
///
/// ```
/// let at = oxshmem::LostAt { pe: 3, operations: 12, rail: 1, receiver: 2 };
/// assert_eq!(at.to_string(), "12 for PE 3 (by way of PE 1 and PE 2)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostAt {
    /// The destination.
    pub pe: usize,
    /// Operations.
    pub operations: u64,
    /// The PE of this node that sends for it to the destination's node.
    pub rail: usize,
    /// The PE of that node that applies them.
    pub receiver: usize,
}

impl fmt::Display for LostAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pe, operations, rail, receiver } = self;
        write!(f, "{operations} for PE {pe} (by way of PE {rail} and PE {receiver})")
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, at) in self.by_pe.iter().enumerate() {
            write!(f, "{}{at}", if index == 0 { "" } else { ", " })?;
        }
        if self.by_pe.is_empty() {
            f.write_str("none that can be counted")?;
        }
        for rail in &self.unreadable {
            write!(f, "; and what follows a record in the ring at PE {rail} that was never written")?;
        }
        Ok(())
    }
}
