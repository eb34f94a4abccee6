//! Errors of teams.

use crate::abi;
use crate::bootstrap::{Failure, list};
use crate::fault::TYPES_OF_OPERATORS;

/// What is wrong with a team or a call that creates one.
///
/// ```
/// # fn main() -> oxshmem::Result<()> {
/// # let pe = oxshmem::init()?;
/// use oxshmem::{Error, TeamError};
///
/// let refused = pe.team_world().split_strided(&pe, 0, 1, pe.n_pes() + 1);
/// assert!(matches!(refused, Err(Error::Team(_))));
/// assert!(matches!(pe.team(0x4242), Err(Error::Team(TeamError::BadHandle { handle: 0x4242, .. }))));
/// # pe.finalize()
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TeamError {
    /// The handle of no team, or of one that was destroyed.
    #[error("{handle:#x} is not the handle of a team of PE {me}; it may have been destroyed")]
    BadHandle {
        /// The handle.
        handle: i32,
        /// This PE.
        me: usize,
    },
    /// Numbers that do not describe a part of the team.
    #[error("{call} of a team of {n} PEs: {reason}")]
    BadSplit {
        /// The call, with its arguments.
        call: String,
        /// PEs of the team that was to be split.
        n: usize,
        /// What does not fit.
        reason: String,
    },
    /// PEs that split a team, each by numbers of its own, and do not agree on a part. Nothing was
    /// created.
    #[error(
        "PE {pe} calls {call}, and PE {other}, which is a member of that, {other_call}; all members of a part pass the same numbers"
    )]
    Parts {
        /// A PE that is in the part that it names.
        pe: usize,
        /// Its call, with its arguments.
        call: String,
        /// A PE that is in that part as well, and names another one.
        other: usize,
        /// What that one does.
        other_call: String,
    },
    /// A team that cannot be destroyed.
    #[error("{name} cannot be destroyed; it ends with finalize")]
    Predefined {
        /// The team.
        name: String,
    },
    /// A team that an aggregating context is over. Nothing was destroyed.
    #[error("{name} has aggregating context {number} over it; destroy that before the team (Aggregate::destroy)")]
    Aggregates {
        /// The team.
        name: String,
        /// The number of the context.
        number: u32,
    },
    /// A member has put collectives of a team that was to be destroyed on a stream that goes on.
    /// Nothing was destroyed, and the team can be used.
    #[error(
        "destroy of {team}: PE {pe} has put collectives of the team on a stream that goes on: {reason}. Nothing was destroyed; destroy the team again when that PE has synchronized the stream"
    )]
    Busy {
        /// The team.
        team: String,
        /// The member.
        pe: usize,
        /// Which stream it is, what it does, and the deadline.
        reason: String,
    },
    /// The members did not all come, or called different things. Nothing was created or destroyed.
    #[error("{failure}{pes}")]
    Meeting {
        /// What the rendezvous says; its numbers of missing members are those in the team.
        failure: Failure,
        /// The PEs that are missing, where they are known.
        pes: MissingPes,
    },
    /// No row of the table of teams is free at all members.
    #[error(
        "no room for a team of {members} PEs: of {limit} teams (OXSHMEM_MAX_TEAMS) PE {pe} is in {used}, and no place is free on all members; destroy teams that are not needed, or raise OXSHMEM_MAX_TEAMS"
    )]
    Exhausted {
        /// PEs of the team that was to be created.
        members: usize,
        /// The member that is in most teams.
        pe: usize,
        /// How many.
        used: usize,
        /// The limit.
        limit: usize,
    },
    /// The workspaces of teams do not fit the heap.
    #[error(
        "the workspaces of {teams} teams (OXSHMEM_MAX_TEAMS) take {bytes} bytes of the symmetric heap, which has {heap} (OXSHMEM_HEAP_MAX); raise OXSHMEM_HEAP_MAX or lower OXSHMEM_MAX_TEAMS"
    )]
    NoHeap {
        /// Bytes of all workspaces.
        bytes: u64,
        /// Teams.
        teams: u64,
        /// The heap's limit.
        heap: u64,
    },
    /// A member could not set the team up; nothing was created.
    #[error("PE {pe} cannot set up the team: {reason}")]
    Setup {
        /// The member.
        pe: usize,
        /// Why.
        reason: String,
    },
    /// A reduction that is not defined.
    #[error("{op:?} is not defined for {element}; {TYPES_OF_OPERATORS}")]
    BadReduction {
        /// The operator.
        op: abi::ReduceOp,
        /// The element type.
        element: &'static str,
    },
}

/// PEs that did not come, for a message.
///
/// ```
/// use oxshmem::{MissingPes, TeamError};
///
/// /// Returns the PEs that a team was waited for in vain.
/// fn missing(error: &TeamError) -> Option<&MissingPes> {
///     match error {
///         TeamError::Meeting { pes, .. } => Some(pes),
///         _ => None,
///     }
/// }
/// # assert!(missing(&TeamError::Setup { pe: 0, reason: String::new() }).is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPes(pub Vec<u32>);

impl std::fmt::Display for MissingPes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.len() {
            0 => Ok(()),
            1 => write!(f, "; missing is PE {}", list(&self.0)),
            _ => write!(f, "; missing are PEs {}", list(&self.0)),
        }
    }
}
