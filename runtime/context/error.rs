//! Errors of contexts.

use super::sharing::Sharing;

/// What is wrong with a context or a call that creates one.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{ContextError, ContextOptions, Error, Sharing};
///
/// let none = ContextOptions::new(Sharing::Block).count(0);
/// let error = pe.team_world().create_contexts(&pe, &none).unwrap_err();
/// assert!(matches!(error, Error::Context(ContextError::Count { count: 0, .. })));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// Too few or too many contexts.
    #[error("{count} contexts in one call; 1 to {most} can be created at a time")]
    Count {
        /// What the call requests.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// A send queue of an invalid size.
    #[error("a send queue of {depth} blocks; its depth is a power of two from {least} to {most}")]
    Depth {
        /// What the call requests.
        depth: u32,
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// A team that there cannot be.
    #[error("{far} of {members} members have queue pairs; a team has 1 to {most} members, and at most all have")]
    Members {
        /// Members of the team.
        members: usize,
        /// Those that have queue pairs.
        far: usize,
        /// The most members.
        most: usize,
    },
    /// Members requested different contexts. Nothing was created.
    #[error(
        "PE {me} creates {mine}, PE {pe} creates {theirs}; all members of the team have to create the same contexts"
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
        /// The contexts.
        what: String,
        /// Why.
        reason: String,
    },
    /// No such context in the set.
    #[error("context {index} of a set of {count}; contexts are 0 to {last}", last = count.saturating_sub(1))]
    OutOfRange {
        /// The context.
        index: usize,
        /// Contexts of the set.
        count: usize,
    },
    /// More contexts than can have numbers.
    #[error(
        "{count} contexts need numbers, and {used} of {most} are taken; create fewer (destroying contexts frees no numbers)"
    )]
    Numbers {
        /// Contexts that need one.
        count: usize,
        /// Numbers that were given.
        used: u32,
        /// All that there are.
        most: u32,
    },
    /// No set of contexts has this number.
    #[error("this PE has no contexts of number {number}; they may have been destroyed")]
    Unknown {
        /// The number.
        number: u32,
    },
    /// A context that was destroyed. Nothing was done.
    #[error(
        "a context of {count} for one {sharing} at a time was destroyed; contexts can be used until Contexts::destroy"
    )]
    Destroyed {
        /// Contexts of the set.
        count: usize,
        /// What they were for.
        sharing: Sharing,
    },
    /// A context of a PE that has been finalized. Nothing was done.
    #[error("a context belongs to a PE that has been finalized; create it again with this PE")]
    EarlierPe,
}
